//! Connections of `WebFetch`. Takes a host that a call wants to fetch from, gives whether settings and definitions let it;
//! takes a connection that has ended, gives an event and an audit entry like those of commands.

use std::net::IpAddr;
use std::sync::Arc;

use decurion_egress::rules::{AddressFault, Decision};
use decurion_egress::{Host, HostRules};
use decurion_protocol::{AuditKind, CallId, DecidedBy, Event, RunSpec, Verdict};
use decurion_tools::http::{Connection, Connections};

use super::{Connecting, by_setting, denying_all, write};
use crate::bounds;
use crate::journal::{Journal, Who};
use crate::witness::Witness;

/// The gate of one call.
pub struct Fetching {
    /// What the settings deny; the error says which entry cannot be read.
    denied: Result<HostRules, String>,
    /// What the definitions forbid.
    spec: Arc<RunSpec>,
    journal: Journal,
    who: Who,
    call: CallId,
    witness: Witness,
}

impl Fetching {
    pub fn new(by: Connecting, denied: &[String]) -> Self {
        let denied: Vec<(String, String)> =
            denied.iter().map(|host| (host.clone(), by_setting(host))).collect();
        let open = HostRules::new([], [], true).map_err(|error| error.to_string());
        let denied = open.and_then(|open| denying_all(open, &denied));
        let Connecting { spec, journal, who, call, witness, .. } = by;
        Self { denied, spec, journal, who, call, witness }
    }
}

impl Connections for Fetching {
    fn refuses(&self, host: &str, port: u16) -> Option<String> {
        let Ok(parsed) = Host::parse(host) else { return Some("it is not a valid host name".to_owned()) };
        let denied = match &self.denied {
            Ok(rules) => match rules.decide(&parsed, port) {
                Decision::Denied { by } => Some(format!("blocked by {by}")),
                // What is left is decided about by the rules for WebFetch.
                _ => None,
            },
            Err(reason) => Some(reason.clone()),
        };
        denied.or_else(|| bounds::refuses_fetch(&self.spec, host, Some(port)))
    }

    fn refuses_address(&self, address: IpAddr, port: u16) -> Option<String> {
        match self.denied.as_ref().ok()?.vet(address, port) {
            Err(AddressFault::Denied { by }) => Some(format!("blocked by {by}")),
            // Rules for WebFetch decide about addresses that are not public.
            Err(AddressFault::Special { .. }) | Ok(()) => None,
        }
    }

    fn record(&self, connection: &Connection) {
        let Connection { host, port, refused, bytes_up, bytes_down, .. } = connection.clone();
        let address = connection.address.map(|address| address.to_string());
        let reason = match &refused {
            Some(reason) => reason.clone(),
            None => format!("WebFetch, call {}", self.call),
        };
        self.witness.record(AuditKind::Egress {
            host: host.clone(),
            port,
            address: address.clone(),
            verdict: if refused.is_none() { Verdict::Allow } else { Verdict::Deny },
            // Who allowed it is in the entry about the call.
            by: refused.is_some().then_some(DecidedBy::Rule),
            reason,
            bytes_up,
            bytes_down,
        });
        let event = Event::Connection {
            call: self.call.clone(),
            host,
            port,
            address,
            refused,
            bytes_up,
            bytes_down,
            duration_ms: u64::try_from(connection.duration.as_millis()).unwrap_or(u64::MAX),
        };
        // One call makes few.
        write(&Arc::default(), self.journal.clone(), self.who.clone(), event);
    }
}

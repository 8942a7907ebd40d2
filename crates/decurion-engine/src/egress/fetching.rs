//! Connections of `WebFetch`. Takes a host that a call wants to fetch from, gives whether settings and definitions let it;
//! takes a connection that has ended, gives an event and an audit entry like those of commands.

use decurion_egress::rules::Decision;
use decurion_egress::{Host, HostRules};
use decurion_protocol::{AuditKind, CallId, DecidedBy, Event, Verdict};
use decurion_tools::http::{Connection, Connections};

use super::write;
use crate::audit::Witness;
use crate::bounds;
use crate::call::{Bench, Call};
use crate::journal::{Journal, Who};

/// The gate of one call.
pub struct Fetching {
    hosts: HostRules,
    journal: Journal,
    who: Who,
    call: CallId,
    witness: Witness,
}

impl Fetching {
    /// For this call.
    pub fn new(bench: &Bench<'_>, call: &Call) -> Self {
        let egress = bench.ports.equipment.egress.as_ref();
        let open = || HostRules::new([], [], true).unwrap_or_else(|_| HostRules::closed());
        let denied = egress.map_or_else(open, |egress| egress.denied());
        Self {
            hosts: bounds::narrow(denied, &bench.spec.definition.sandbox),
            journal: bench.ports.journal.clone(),
            who: bench.ports.who.clone(),
            call: call.id.clone(),
            witness: Witness::new(bench),
        }
    }
}

impl Connections for Fetching {
    fn refuses(&self, host: &str, port: u16) -> Option<String> {
        match self.hosts.decide(&Host::parse(host).ok()?, port) {
            Decision::Denied { pattern } => {
                Some(format!("sandbox.network.deniedDomains of the settings has {pattern}"))
            }
            Decision::Outside => Some("the definition of this agent does not list this host".to_owned()),
            // These are decided about by the rules for WebFetch.
            Decision::Listed | Decision::Open | Decision::Unknown | Decision::UnlistedAddress => None,
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
        write(self.journal.clone(), self.who.clone(), event);
    }
}

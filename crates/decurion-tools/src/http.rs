//! The one web client of the tools: time-outs, redirects and certificates are set here. Made when a tool
//! first asks for it, since reading the certificates costs more than all the rest of a start.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A handle on the shared client. Clones share one; the default handle has not made it yet.
#[derive(Clone, Debug, Default)]
pub struct Http {
    client: Arc<OnceLock<reqwest::Client>>,
}

impl Http {
    /// The client, made now if nobody asked before.
    pub fn client(&self) -> Result<&reqwest::Client, reqwest::Error> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let made = make()?;
        Ok(self.client.get_or_init(|| made))
    }

    /// Whether the client exists already.
    pub fn is_made(&self) -> bool {
        self.client.get().is_some()
    }
}

fn make() -> Result<reqwest::Client, reqwest::Error> {
    // It fails only where a provider is installed already, and then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        // The tool follows redirects itself: one to another host must be shown, not followed.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("decurion/", env!("CARGO_PKG_VERSION")))
        .referer(false)
        .dns_resolver(PublicNames)
        .build()
}

/// Resolves names, but not to this machine or its neighbours on the link: a host that was permitted by its
/// name must not turn out to be the service behind localhost or a cloud's store of secrets.
#[derive(Debug)]
struct PublicNames;

impl Resolve for PublicNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let look_up = move || resolved(&host);
            Ok(tokio::task::spawn_blocking(look_up).await??)
        })
    }
}

fn resolved(host: &str) -> std::io::Result<Addrs> {
    let local = is_local_name(host);
    let found: Vec<SocketAddr> = (host, 0).to_socket_addrs()?.collect();
    let kept: Vec<SocketAddr> =
        found.into_iter().filter(|address| local || !is_own(address.ip().to_canonical())).collect();
    if kept.is_empty() {
        let reason = format!("this name stands for an address of this machine or its link: {host}");
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason));
    }
    Ok(Box::new(kept.into_iter()))
}

/// Names that mean this machine by definition.
pub(crate) fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost")
}

/// Addresses reached only on the same link; clouds keep machine credentials there.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified() || is_link_local(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_made_once_and_shared() {
        let http = Http::default();
        let other = http.clone();
        assert!(!http.is_made());
        let made: *const reqwest::Client = http.client().unwrap();
        assert!(other.is_made());
        assert!(std::ptr::eq(made, other.client().unwrap()));
    }

    #[test]
    fn names_do_not_lead_to_this_machine() {
        assert!(resolved("localhost").is_ok());
        // A literal address is a name to the resolver; it stands for any name that maps to it.
        assert!(resolved("127.0.0.1").is_err());
        assert!(resolved("169.254.169.254").is_err());
        assert!(resolved("192.0.2.1").is_ok());
        assert!(is_local_name("API.localhost.") && !is_local_name("localhost.example.org"));
    }
}

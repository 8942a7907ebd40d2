//! A certificate authority for one session. Takes the names it may sign for, gives certificates for hosts among them.
//!
//! Its key never leaves the process, and its certificate names the hosts it may sign for: a program that trusts it trusts
//! it for no other host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::MaskedError;

/// The clock of a sandbox may lag behind.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
/// Longer than any session; some programs refuse certificates of more than 398 days.
const AFTER: Duration = Duration::from_secs(90 * 24 * 3600);
/// Hosts of which the certificate is kept.
const CACHED_MAX: usize = 256;

/// Signs certificates for the hosts of secrets.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// One key for the certificates of all hosts: they are all this process.
    host_key: KeyPair,
    now: SystemTime,
    provider: Arc<CryptoProvider>,
    configs: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl Authority {
    /// An authority for these names and those below them.
    pub(super) fn new<'a>(
        names: impl Iterator<Item = &'a str>,
        now: SystemTime,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, MaskedError> {
        let mut params = params("decurion session authority", now);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let permitted_subtrees = names.map(|name| GeneralSubtree::DnsName(name.to_owned())).collect();
        params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer, host_key: KeyPair::generate()?, now, provider, configs: Mutex::default() })
    }

    /// The authority's own certificate.
    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// TLS settings for a server that claims to be this host. Only HTTP/1.1 is offered.
    pub(super) fn server_config(&self, host: &str) -> Result<Arc<ServerConfig>, MaskedError> {
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = configs.get(host) {
            return Ok(config.clone());
        }
        // Below a wildcard, a client can ask for any number of hosts.
        if configs.len() >= CACHED_MAX {
            configs.clear();
        }
        let config = Arc::new(self.make_config(host)?);
        configs.insert(host.to_owned(), config.clone());
        Ok(config)
    }

    fn make_config(&self, host: &str) -> Result<ServerConfig, MaskedError> {
        let mut params = params(host, self.now);
        params.subject_alt_names = CertificateParams::new(vec![host.to_owned()])?.subject_alt_names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.host_key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.host_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn params(name: &str, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // A common name has at most 64 letters.
    params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + AFTER).into();
    params
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

    use super::*;

    /// Whether a client that trusts the authority accepts its certificate for this host.
    fn accepts(authority: &Authority, host: &'static str) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(authority.issuer.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(authority.provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client =
            ClientConnection::new(Arc::new(config), ServerName::try_from(host).unwrap()).unwrap();
        let mut server = ServerConnection::new(authority.server_config(host).unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        !client.is_handshaking()
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "certificates are verified by the real clock")]
    fn a_certificate_holds_only_for_the_hosts_of_the_authority() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authority = Authority::new(["good.com"].into_iter(), SystemTime::now(), provider).unwrap();
        assert!(accepts(&authority, "good.com"));
        assert!(accepts(&authority, "api.good.com"));
        // Even the process itself could not sign for another host.
        assert!(!accepts(&authority, "evil.com"));
    }
}

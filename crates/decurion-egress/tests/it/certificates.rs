//! Certificates for tests. Takes a host name, gives TLS settings of a server with a certificate for it, and of clients that
//! trust the authority that signed it.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// Signs certificates of servers.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }
}

pub fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A server with a certificate for this host.
pub fn server_config(authority: &Authority, host: &str) -> Arc<rustls::ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority.0).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Arc::new(config)
}

/// A client that trusts these authorities only.
pub fn client_config(authorities: &[&Authority]) -> Arc<rustls::ClientConfig> {
    client_config_of(&authorities.iter().map(|authority| authority.pem()).collect::<String>())
}

/// A client that trusts the authorities in this text only.
pub fn client_config_of(pem: &str) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

//! Secrets that commands can use and not read. Takes secrets and the hosts they are for, gives a sentinel for each; the
//! proxy puts the secret in its place, in requests to those hosts.
//!
//! For these hosts the proxy ends TLS itself, with a certificate of an authority made for the session, and opens TLS to the
//! host, whose certificate is verified as everywhere. Between them it speaks HTTP/1.1 and replaces the sentinel in header
//! values, also inside `Authorization: Basic`, and nowhere else: not in the URL and not in bodies. Sent to another host, or
//! over plain HTTP, a sentinel stays what it is.
//!
//! A host could send the secret back, as it is or in base64. In headers of a response, and in text of at most 1 MiB with a
//! known length, it is replaced by the sentinel again; in other bodies it is overwritten. Hosts are asked not to compress
//! what they send. What is *not* replaced: bodies that are compressed all the same, other spellings, half a secret (a
//! request for a range), and secrets shorter than eight bytes. So give a secret only to hosts that do not echo it.
//!
//! Upgrades (WebSocket) and HTTP/2 do not work with these hosts.

mod authority;
mod body;
mod exchange;

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::clients::random_hex;
use crate::host::Host;
use crate::rules::{Pattern, PatternError};
use authority::Authority;
pub(crate) use exchange::carry;

/// Shorter texts are not looked for in responses: they would be found by chance.
const ECHO_MIN: usize = 8;

/// How a secret may be written in what a host sends back: as it is, and as base64 of it with anything before and after. Only
/// those that are long enough to be looked for.
pub fn spellings(secret: &str) -> Vec<String> {
    let mut found = vec![secret.to_owned()];
    for before in 0..3 {
        let padded = [&[0; 2][..before], secret.as_bytes()].concat();
        // Letters at both ends depend on what stands beside the secret.
        let (first, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        for encoded in [STANDARD.encode(&padded), URL_SAFE.encode(&padded)] {
            found.push(encoded[first..end].to_owned());
        }
    }
    found.retain(|text| text.len() >= ECHO_MIN);
    found.sort();
    found.dedup();
    // The longest first: one may be part of another.
    found.sort_by_key(|text| std::cmp::Reverse(text.len()));
    found
}

/// A secret as settings give it.
#[derive(Clone)]
pub struct Secret {
    /// Name of the variable that holds the sentinel in the sandbox.
    pub name: String,
    pub value: String,
    /// Hosts that may get it: `example.com`, `*.example.com`, or one of these with a port. Without a port, port 443 is meant.
    pub hosts: Vec<String>,
}

/// Why secrets cannot be masked.
#[derive(Debug, thiserror::Error)]
pub enum MaskedError {
    /// A host is no pattern.
    #[error("secret {name}: {error}")]
    Host {
        /// Name of the secret.
        name: String,
        error: PatternError,
    },
    /// A host is an address: certificates are made for names only.
    #[error("secret {name}: {}", IS_ADDRESS)]
    Address {
        /// Name of the secret.
        name: String,
    },
    /// The value cannot stand in a header.
    #[error("secret {name}: the value is empty or has characters that cannot stand in a header")]
    Value {
        /// Name of the secret.
        name: String,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// An extra root certificate cannot be read.
    #[error("cannot read a root certificate: {0}")]
    Root(#[from] rustls::pki_types::pem::Error),
    /// The system gives no random bytes.
    #[error("cannot get random bytes: {0}")]
    Random(#[from] std::io::Error),
}

/// The secrets of a session.
pub struct Masked {
    secrets: Vec<SecretEntry>,
    authority: Authority,
    upstream: Arc<rustls::ClientConfig>,
}

struct SecretEntry {
    name: String,
    value: String,
    sentinel: String,
    hosts: Vec<Pattern>,
}

const IS_ADDRESS: &str = "this is an address; name the host, since certificates are made for names only";

/// Why this cannot be a host of a secret, if so.
pub fn unusable_secret_host(entry: &str) -> Option<String> {
    match Pattern::parse(entry) {
        Ok(pattern) => pattern.base_name().is_none().then(|| IS_ADDRESS.to_owned()),
        Err(error) => Some(error.reason.to_string()),
    }
}

impl Masked {
    /// Masks these secrets. Hosts are verified by the roots of the system and those in `extra_roots` (PEM). `now` dates the
    /// certificates of the session.
    pub fn new(secrets: Vec<Secret>, extra_roots: &str, now: SystemTime) -> Result<Self, MaskedError> {
        let secrets = secrets.into_iter().map(SecretEntry::new).collect::<Result<Vec<_>, _>>()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let extra: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(extra_roots.as_bytes()).collect::<Result<_, _>>()?;
        let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(extra, provider.clone())?;
        let mut upstream = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .dangerous() // the name of the method: this verifier is the one of the system
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        upstream.alpn_protocols = vec![b"http/1.1".to_vec()];
        let names = secrets.iter().flat_map(|secret| &secret.hosts).filter_map(Pattern::base_name);
        let authority = Authority::new(names, now, provider)?;
        Ok(Self { secrets, authority, upstream: Arc::new(upstream) })
    }

    /// Variables to set in the sandbox: the name of each secret and its sentinel.
    pub fn environment(&self) -> Vec<(String, String)> {
        self.secrets.iter().map(|secret| (secret.name.clone(), secret.sentinel.clone())).collect()
    }

    /// The certificate of the session's authority.
    pub fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// The contents for the file that [`environment_for_ca`] names: the roots of the system and the session's authority.
    pub fn bundle_pem(&self, system_roots: &str) -> String {
        let separator = if system_roots.is_empty() || system_roots.ends_with('\n') { "" } else { "\n" };
        format!("{system_roots}{separator}{}", self.ca_pem())
    }

    /// Whether a secret is for this host.
    pub(crate) fn covers(&self, host: &Host, port: u16) -> bool {
        self.secrets.iter().any(|secret| secret.is_for(host, port))
    }

    fn substitution(&self, host: &Host, port: u16) -> Substitution {
        let own = self.secrets.iter().filter(|secret| secret.is_for(host, port));
        Substitution::new(own.map(|secret| (secret.sentinel.clone(), secret.value.clone())).collect())
    }
}

impl SecretEntry {
    fn new(secret: Secret) -> Result<Self, MaskedError> {
        let Secret { name, value, hosts } = secret;
        if value.is_empty() || HeaderValue::from_str(&value).is_err() {
            return Err(MaskedError::Value { name });
        }
        let mut patterns = Vec::new();
        for host in hosts {
            let pattern =
                Pattern::parse(&host).map_err(|error| MaskedError::Host { name: name.clone(), error })?;
            if pattern.base_name().is_none() {
                return Err(MaskedError::Address { name });
            }
            patterns.push(pattern);
        }
        let sentinel = format!("decurion-masked-{}", random_hex()?);
        Ok(Self { name, value, sentinel, hosts: patterns })
    }

    fn is_for(&self, host: &Host, port: u16) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(host, port) && port == pattern.port().unwrap_or(443))
    }
}

/// Sentinels and secrets for one host.
struct Substitution {
    /// A sentinel and its secret.
    unmasking: Vec<(String, String)>,
    /// How a secret may be written, and its sentinel.
    masking: Vec<(String, String)>,
}

impl Substitution {
    fn new(pairs: Vec<(String, String)>) -> Self {
        let spelled = |(sentinel, value): &(String, String)| {
            let sentinel = sentinel.clone();
            spellings(value).into_iter().map(move |text| (text, sentinel.clone()))
        };
        let masking = pairs.iter().flat_map(spelled).collect();
        Self { unmasking: pairs, masking }
    }

    /// Puts secrets in the place of their sentinels.
    fn unmask(&self, headers: &mut HeaderMap) {
        for (name, header) in headers.iter_mut() {
            let basic = (name == AUTHORIZATION).then(|| self.unmask_basic(header.as_bytes())).flatten();
            set(header, basic.or_else(|| replace(header.as_bytes(), &self.unmasking)));
        }
    }

    fn unmask_basic(&self, header: &[u8]) -> Option<Vec<u8>> {
        let (scheme, encoded) = std::str::from_utf8(header).ok()?.split_once(' ')?;
        let decoded =
            STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        let changed = replace(&decoded, &self.unmasking)?;
        Some(format!("{scheme} {}", STANDARD.encode(changed)).into_bytes())
    }

    /// Puts sentinels in the place of their secrets.
    fn mask(&self, headers: &mut HeaderMap) {
        // Names arrive in small letters. One that holds a secret is of no use to a client.
        let secrets: Vec<String> = self.masking.iter().map(|(text, _)| text.to_ascii_lowercase()).collect();
        let holds_secret =
            |name: &&HeaderName| secrets.iter().any(|secret| name.as_str().contains(secret.as_str()));
        let named: Vec<HeaderName> = headers.keys().filter(holds_secret).cloned().collect();
        for name in named {
            headers.remove(name);
        }
        for (_, header) in headers.iter_mut() {
            let changed = replace(header.as_bytes(), &self.masking);
            set(header, changed);
        }
    }

    fn mask_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        replace(bytes, &self.masking).unwrap_or_else(|| bytes.to_vec())
    }

    /// What must not be in a response.
    fn needles(&self) -> Vec<Vec<u8>> {
        self.masking.iter().map(|(text, _)| text.clone().into_bytes()).collect()
    }
}

/// The bytes with each pair's first text replaced by its second; none if no text occurs.
fn replace(bytes: &[u8], pairs: &[(String, String)]) -> Option<Vec<u8>> {
    let mut changed: Option<Vec<u8>> = None;
    for (from, to) in pairs {
        let current = changed.as_deref().unwrap_or(bytes);
        if let Some(next) = replace_all(current, from.as_bytes(), to.as_bytes()) {
            changed = Some(next);
        }
    }
    changed
}

fn replace_all(bytes: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let mut result = Vec::new();
    let mut rest = bytes;
    while let Some(at) = find(rest, from) {
        result.extend_from_slice(&rest[..at]);
        result.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    if rest.len() == bytes.len() {
        return None;
    }
    result.extend_from_slice(rest);
    Some(result)
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, text)
}

fn set(header: &mut HeaderValue, changed: Option<Vec<u8>>) {
    if let Some(mut value) = changed.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok()) {
        value.set_sensitive(true);
        *header = value;
    }
}

/// Variables that make the usual programs trust the session's authority.
///
/// The file at `path` is [`Masked::bundle_pem`]: most of these variables replace the roots of the system, so the file has to
/// contain those too. Only `NODE_EXTRA_CA_CERTS` and `DENO_CERT` add to them. Java and programs that use GnuTLS, such as some
/// builds of wget, read none of these.
pub fn environment_for_ca(path: &str) -> Vec<(&'static str, String)> {
    let names = [
        "SSL_CERT_FILE",
        "NIX_SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "PIP_CERT",
        "CARGO_HTTP_CAINFO",
        "GIT_SSL_CAINFO",
        "AWS_CA_BUNDLE",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        "BUNDLE_SSL_CA_CERT",
        "npm_config_cafile",
        "NODE_EXTRA_CA_CERTS",
        "DENO_CERT",
    ];
    names.into_iter().map(|name| (name, path.to_owned())).collect()
}

/// The roots of the system as text. Like the proxy itself, it follows `SSL_CERT_FILE` and `SSL_CERT_DIR` of this process.
pub fn system_roots_pem() -> String {
    let encoded = |certificate: CertificateDer<'static>| {
        let text = STANDARD.encode(&certificate);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    // What cannot be read is missing, and hosts that need it are refused by the program that connects.
    rustls_native_certs::load_native_certs().certs.into_iter().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn substitution(value: &str) -> Substitution {
        Substitution::new(vec![("decurion-masked-1".to_owned(), value.to_owned())])
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn sentinels_in_headers_become_secrets_also_inside_basic() {
        let unmasked = |name: &'static str, value: &str| {
            let mut headers = headers(name, value);
            substitution("s3cret-value").unmask(&mut headers);
            headers[name].to_str().unwrap().to_owned()
        };
        assert_eq!(unmasked("authorization", "Bearer decurion-masked-1"), "Bearer s3cret-value");
        assert_eq!(unmasked("x-key", "decurion-masked-1,decurion-masked-1"), "s3cret-value,s3cret-value");
        let basic = format!("Basic {}", STANDARD.encode("me:decurion-masked-1"));
        let expected = format!("Basic {}", STANDARD.encode("me:s3cret-value"));
        assert_eq!(unmasked("authorization", &basic), expected);
        assert_eq!(unmasked("x-key", &basic), basic);
        assert_eq!(unmasked("x-key", "decurion-masked-2"), "decurion-masked-2");
    }

    #[test]
    fn secrets_in_responses_become_sentinels_unless_they_are_short() {
        let masked = |value: &str, text: &str| substitution(value).mask_bytes(text.as_bytes());
        assert_eq!(masked("s3cret-value", "a s3cret-value b"), b"a decurion-masked-1 b");
        assert_eq!(masked("a", "a banana"), b"a banana");
        for login in ["", "u", "me", "you", "some"] {
            for end in ["", "!", "!!"] {
                let basic = STANDARD.encode(format!("{login}:s3cret-value{end}"));
                let shown = masked("s3cret-value", &basic);
                assert!(find(&shown, b"decurion-masked-1").is_some(), "{basic}");
            }
        }
        let mut echoed = headers("x-echo", "key=s3cret-value");
        substitution("s3cret-value").mask(&mut echoed);
        assert_eq!(echoed["x-echo"], "key=decurion-masked-1");
    }

    #[test]
    fn secrets_that_cannot_be_masked_are_refused() {
        let new = |value: &str, host: &str| {
            let secret =
                Secret { name: "KEY".to_owned(), value: value.to_owned(), hosts: vec![host.to_owned()] };
            SecretEntry::new(secret).map(|_| ())
        };
        assert!(new("value", "*.example.com").is_ok());
        assert!(matches!(new("", "example.com"), Err(MaskedError::Value { .. })));
        assert!(matches!(new("a\r\nb", "example.com"), Err(MaskedError::Value { .. })));
        assert!(matches!(new("value", "10.0.0.1"), Err(MaskedError::Address { .. })));
        assert!(matches!(new("value", "*"), Err(MaskedError::Host { .. })));
    }
}

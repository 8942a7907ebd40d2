//! Why a connection came to nothing. Takes the error of any step, gives the answer in the client's protocol and the ending
//! for the record.

use std::io;

use crate::client_hello::HelloError;
use crate::gate::{EgressRefusal, Reason};
use crate::http::RequestHeadError;
use crate::record::Ending;
use crate::socks::{NO_METHOD, SocksError, SocksReply, VERSION};

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionFault {
    #[error("{0}")]
    Head(#[from] RequestHeadError),
    #[error("{0}")]
    Socks(#[from] SocksError),
    #[error("the first byte is neither of HTTP nor of SOCKS5")]
    UnknownProtocol,
    #[error("the client does not offer to log in with a user name")]
    NoLogin,
    #[error("the token is missing or unknown")]
    Unauthenticated,
    #[error("the request was not complete in time")]
    TooSlow,
    #[error("{0}")]
    Refused(EgressRefusal),
    #[error("cannot connect to {host}:{port}: {}", reason(error))]
    Unreachable { host: String, port: u16, error: io::Error },
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("the TLS hello was not complete in time")]
    HelloTooSlow,
    #[error("the TLS hello names {found}, and the connection is for {host}")]
    ServerName { host: String, found: String },
    #[error("the TLS hello may hide another server name (encrypted client hello)")]
    HiddenName,
    #[error("the client closed the connection")]
    ClientLeft,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("no byte passed for too long")]
    Idle,
    #[error("the client was removed")]
    ClientRemoved,
}

/// A fatal TLS alert, "unrecognized name": clients show it as the reason.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

impl ConnectionFault {
    /// How the record says the connection ended.
    pub(crate) fn ending(&self) -> Ending {
        match self {
            Self::ClientLeft => Ending::ClientLeft,
            Self::Unreachable { .. } | Self::Broken(_) => Ending::Failed(self.to_string()),
            Self::Refused(refusal) if refusal.failed_lookup().is_some() => Ending::Failed(self.to_string()),
            Self::Idle => Ending::Idle,
            Self::ClientRemoved => Ending::Stopped,
            _ => Ending::Refused,
        }
    }

    /// Whether this says that the connection may not be, as opposed to how an allowed one ended.
    pub(crate) fn is_refusal(&self) -> bool {
        self.ending() == Ending::Refused
    }

    /// The answer for an HTTP client before its tunnel or response has begun.
    pub(crate) fn http_answer(&self) -> Option<Vec<u8>> {
        let (status, hint) = match self {
            Self::Head(RequestHeadError::TooLarge) => ("431 Request Header Fields Too Large", None),
            Self::Head(_) | Self::UnknownProtocol => ("400 Bad Request", None),
            Self::Unauthenticated => ("407 Proxy Authentication Required", None),
            Self::TooSlow => ("408 Request Timeout", None),
            Self::Refused(refusal) if refusal.failed_lookup().is_none() => {
                ("403 Forbidden by the sandbox", refusal.hint())
            }
            Self::Refused(_) | Self::Unreachable { .. } => ("502 Bad Gateway", None),
            _ => return None,
        };
        // Clients that cannot open a tunnel show the words after the status code, and not the body.
        let phrase =
            [Some(self.to_string()), hint.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let phrase: String = phrase.chars().filter(|letter| matches!(letter, ' '..='~')).take(400).collect();
        let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        let body = format!("decurion: {self}\n{hint}");
        let unknown = matches!(self, Self::Unauthenticated);
        let login = if unknown { "Proxy-Authenticate: Basic realm=\"decurion\"\r\n" } else { "" };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}: {phrase}\r\n{login}Content-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        Some((head + &body).into_bytes())
    }

    /// The answer for a SOCKS client before its tunnel has begun.
    pub(crate) fn socks_answer(&self) -> Option<Vec<u8>> {
        let reply = match self {
            Self::NoLogin => return Some(vec![VERSION, NO_METHOD]),
            Self::Unauthenticated => return Some(vec![1, 1]),
            Self::Refused(EgressRefusal { reason: Reason::Lookup { .. }, .. }) => SocksReply::HostUnreachable,
            Self::Refused(_) => SocksReply::NotAllowed,
            Self::Socks(SocksError::Command) => SocksReply::CommandUnknown,
            Self::Socks(SocksError::AddressType) => SocksReply::AddressUnknown,
            Self::Socks(SocksError::Malformed) => SocksReply::Failed,
            Self::Unreachable { error, .. } if error.kind() == io::ErrorKind::ConnectionRefused => {
                SocksReply::ConnectionRefused
            }
            Self::Unreachable { .. } => SocksReply::HostUnreachable,
            _ => return None,
        };
        Some(reply.message().to_vec())
    }

    /// The answer for a client inside its tunnel.
    pub(crate) fn tunnel_answer(&self) -> Option<Vec<u8>> {
        matches!(self, Self::ServerName { .. } | Self::HiddenName).then(|| UNRECOGNIZED_NAME.to_vec())
    }
}

/// Why a server cannot be reached, without the system's number for it.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        io::ErrorKind::HostUnreachable => "the host is unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "the network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

//! The words of SOCKS5 (RFC 1928 and 1929). Takes the bytes of a client's three messages, gives what they say and how long
//! they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first byte of a SOCKS5 connection.
pub(crate) const VERSION: u8 = 5;
/// The only way to log in that is offered.
pub(crate) const USER_AND_PASSWORD: u8 = 2;
/// The answer if the client does not offer it.
pub(crate) const NO_METHOD: u8 = 0xff;

/// Answers to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocksReply {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandUnknown = 7,
    AddressUnknown = 8,
}

impl SocksReply {
    /// The message. The address from which the proxy connected is no concern of the client: it is sent as zeros.
    pub(crate) fn message(self) -> [u8; 10] {
        [VERSION, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// A message that breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocksError {
    #[error("the SOCKS message is malformed")]
    Malformed,
    #[error("the SOCKS command is not CONNECT")]
    Command,
    #[error("the SOCKS address type is unknown")]
    AddressType,
}

/// A message and its length, or `None` if more bytes are needed.
pub(crate) type SocksMessage<T> = Result<Option<(T, usize)>, SocksError>;

/// The first message: whether the client offers to log in with user and password.
pub(crate) fn greeting(bytes: &[u8]) -> SocksMessage<bool> {
    expect(bytes, 0, VERSION)?;
    let &[_, count, ref rest @ ..] = bytes else { return Ok(None) };
    let methods = rest.get(..count.into());
    Ok(methods.map(|methods| (methods.contains(&USER_AND_PASSWORD), 2 + methods.len())))
}

/// The second message: the user name. The password is not looked at.
pub(crate) fn login(bytes: &[u8]) -> SocksMessage<String> {
    expect(bytes, 0, 1)?;
    let &[_, user_length, ref rest @ ..] = bytes else { return Ok(None) };
    let Some((user, rest)) = rest.split_at_checked(user_length.into()) else { return Ok(None) };
    let &[password_length, ref rest @ ..] = rest else { return Ok(None) };
    if rest.len() < password_length.into() {
        return Ok(None);
    }
    let length = 3 + usize::from(user_length) + usize::from(password_length);
    Ok(Some((String::from_utf8_lossy(user).into_owned(), length)))
}

/// The third message: the host and port to connect to.
pub(crate) fn request(bytes: &[u8]) -> SocksMessage<(String, u16)> {
    expect(bytes, 0, VERSION)?;
    if bytes.get(1).is_some_and(|command| *command != 1) {
        return Err(SocksError::Command);
    }
    expect(bytes, 2, 0)?;
    let (host, rest): (String, &[u8]) = match bytes.get(3..) {
        None | Some([] | [1 | 3 | 4]) => return Ok(None),
        Some([1, rest @ ..]) => match rest.split_first_chunk::<4>() {
            Some((address, rest)) => (IpAddr::V4(Ipv4Addr::from(*address)).to_string(), rest),
            None => return Ok(None),
        },
        Some([4, rest @ ..]) => match rest.split_first_chunk::<16>() {
            Some((address, rest)) => (IpAddr::V6(Ipv6Addr::from(*address)).to_string(), rest),
            None => return Ok(None),
        },
        Some([3, length, rest @ ..]) => match rest.split_at_checked((*length).into()) {
            Some((name, rest)) => {
                (std::str::from_utf8(name).map_err(|_| SocksError::Malformed)?.to_owned(), rest)
            }
            None => return Ok(None),
        },
        Some(_) => return Err(SocksError::AddressType),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
    let port = u16::from_be_bytes(*port);
    if port == 0 {
        return Err(SocksError::Malformed);
    }
    Ok(Some(((host, port), bytes.len() - rest.len())))
}

fn expect(bytes: &[u8], index: usize, value: u8) -> Result<(), SocksError> {
    let right = bytes.get(index).is_none_or(|byte| *byte == value);
    if right { Ok(()) } else { Err(SocksError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message is read only once it is whole, and bytes after it are left alone.
    fn check<T: PartialEq + std::fmt::Debug>(
        parse: fn(&[u8]) -> SocksMessage<T>,
        message: &[u8],
        expected: T,
    ) {
        for end in 0..message.len() {
            assert_eq!(parse(&message[..end]), Ok(None), "{end} bytes of {message:?}");
        }
        let followed = [message, b"rest"].concat();
        assert_eq!(parse(&followed), Ok(Some((expected, message.len()))));
    }

    #[test]
    fn whole_messages_are_read_and_parts_are_waited_for() {
        check(greeting, &[5, 2, 0, 2], true);
        check(greeting, &[5, 1, 0], false);
        check(greeting, &[5, 0], false);
        check(login, b"\x01\x03abc\x01x", "abc".to_owned());
        check(login, b"\x01\x03abc\x00", "abc".to_owned());
        check(request, &[5, 1, 0, 1, 10, 0, 0, 1, 1, 187], ("10.0.0.1".to_owned(), 443));
        check(request, b"\x05\x01\x00\x03\x05a.com\x00\x50", ("a.com".to_owned(), 80));
        let v6 = [&[5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[0, 80]].concat();
        check(request, &v6, ("::1".to_owned(), 80));
    }

    #[test]
    fn messages_that_break_the_protocol_are_refused() {
        assert_eq!(greeting(&[4]), Err(SocksError::Malformed));
        assert_eq!(login(&[5]), Err(SocksError::Malformed));
        assert_eq!(request(&[5, 2]), Err(SocksError::Command));
        assert_eq!(request(&[5, 3]), Err(SocksError::Command));
        assert_eq!(request(&[5, 1, 1]), Err(SocksError::Malformed));
        assert_eq!(request(&[5, 1, 0, 2, 0]), Err(SocksError::AddressType));
        assert_eq!(request(b"\x05\x01\x00\x03\x01\xff\x00\x50"), Err(SocksError::Malformed));
        assert_eq!(request(b"\x05\x01\x00\x03\x01a\x00\x00"), Err(SocksError::Malformed));
    }
}

//! The first message of a TLS client. Takes the first bytes of a connection, gives the server name in them.
//!
//! Only what names the server is read. A second hello, which a server may ask for in the same connection, is not: servers
//! choose their certificate by the first one.

/// The most bytes that are read to see the whole hello.
pub(crate) const HELLO_MAX: usize = 64 * 1024;

/// A record of the handshake.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
const RECORD_MAX: usize = 1 << 14;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// Whether a connection that begins with this byte is TLS: every kind of record.
pub(crate) fn is_tls(first: u8) -> bool {
    (20..=24).contains(&first)
}

/// What matters of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// The name as the client sent it.
    pub(crate) server_name: Option<String>,
    /// Whether there may be a second, encrypted hello inside, which may name another server.
    pub(crate) encrypted_inside: bool,
}

/// Why first bytes are no hello that can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("the connection does not begin with TLS")]
    NotTls,
    #[error("the TLS hello is malformed")]
    Malformed,
    #[error("the TLS hello is too large")]
    TooLarge,
}

/// Reads a hello while its bytes arrive. Each record is looked at once, however small the pieces are in which it comes.
#[derive(Debug, Default)]
pub(crate) struct HelloReader {
    message: Vec<u8>,
    consumed: usize,
}

impl HelloReader {
    /// Reads on in all bytes received so far; `None` if more are needed.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Result<Option<ClientHello>, HelloError> {
        if bytes.first().is_some_and(|first| *first != HANDSHAKE) {
            return Err(HelloError::NotTls);
        }
        while let Some(record) = next_record(&bytes[self.consumed..])? {
            self.consumed += RECORD_HEADER + record.len();
            self.message.extend_from_slice(record);
            if let Some(length) = message_length(&self.message)? {
                // A client waits for an answer after its hello, so nothing may follow in the same record.
                let exact = self.message.len() == MESSAGE_HEADER + length;
                return if exact {
                    parse_hello(&self.message[4..]).map(Some)
                } else {
                    Err(HelloError::Malformed)
                };
            }
        }
        if bytes.len() >= HELLO_MAX { Err(HelloError::TooLarge) } else { Ok(None) }
    }
}

/// The length of the message, once all of it or more is there.
fn message_length(message: &[u8]) -> Result<Option<usize>, HelloError> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(HelloError::Malformed);
    }
    let &[_, high, middle, low, ref body @ ..] = message else { return Ok(None) };
    let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if length > HELLO_MAX {
        return Err(HelloError::TooLarge);
    }
    Ok((body.len() >= length).then_some(length))
}

/// The content of the record at the beginning of the bytes, if all of it is there.
fn next_record(bytes: &[u8]) -> Result<Option<&[u8]>, HelloError> {
    let well_formed = |index: usize, right: fn(u8) -> bool| bytes.get(index).is_none_or(|byte| right(*byte));
    if !well_formed(0, |kind| kind == HANDSHAKE) || !well_formed(1, |major| major == 3) {
        return Err(HelloError::Malformed);
    }
    let &[_, _, _, high, low, ref rest @ ..] = bytes else { return Ok(None) };
    let length = usize::from(high) << 8 | usize::from(low);
    if length == 0 || length > RECORD_MAX {
        return Err(HelloError::Malformed);
    }
    Ok(rest.get(..length))
}

fn parse_hello(message: &[u8]) -> Result<ClientHello, HelloError> {
    let mut reader = FieldReader(message);
    reader.take(2 + 32)?; // version and random
    reader.vector8()?; // session id
    reader.vector16()?; // cipher suites
    reader.vector8()?; // compression methods
    let mut hello = ClientHello { server_name: None, encrypted_inside: false };
    if reader.0.is_empty() {
        return Ok(hello);
    }
    let mut extensions = FieldReader(reader.vector16()?);
    reader.end()?;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let content = extensions.vector16()?;
        match kind {
            SERVER_NAME if hello.server_name.is_some() => return Err(HelloError::Malformed),
            SERVER_NAME => hello.server_name = Some(parse_server_name(content)?),
            ENCRYPTED_CLIENT_HELLO => hello.encrypted_inside = true,
            _ => {}
        }
    }
    Ok(hello)
}

/// Exactly one name of the only kind there is.
fn parse_server_name(content: &[u8]) -> Result<String, HelloError> {
    let mut outer = FieldReader(content);
    let mut list = FieldReader(outer.vector16()?);
    outer.end()?;
    if list.take(1)? != [0] {
        return Err(HelloError::Malformed);
    }
    let name = list.vector16()?;
    list.end()?;
    String::from_utf8(name.to_vec()).map_err(|_| HelloError::Malformed)
}

/// Takes fields from the front of a message.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number16(&mut self) -> Result<u16, HelloError> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn vector8(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    fn vector16(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.number16()?;
        self.take(length.into())
    }

    fn end(&self) -> Result<(), HelloError> {
        if self.0.is_empty() { Ok(()) } else { Err(HelloError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<ClientHello>, HelloError> {
        HelloReader::default().advance(bytes)
    }

    /// An extension with the type and content.
    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &u16::try_from(content.len()).unwrap().to_be_bytes(), content].concat()
    }

    fn server_name(name: &str) -> Vec<u8> {
        let length = u16::try_from(name.len()).unwrap();
        let entry = [&[0][..], &length.to_be_bytes(), name.as_bytes()].concat();
        let list = [&u16::try_from(entry.len()).unwrap().to_be_bytes()[..], &entry].concat();
        extension(SERVER_NAME, &list)
    }

    /// A handshake message with these extensions.
    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            [&[HANDSHAKE, 3, 1][..], &u16::try_from(part.len()).unwrap().to_be_bytes(), part].concat()
        };
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_name_is_found_however_the_hello_is_cut_into_records() {
        let message = message(&[extension(10, &[0, 2, 0, 29]), server_name("a.example.com")].concat());
        for size in 1..=message.len() {
            let bytes = records(&message, size);
            let mut reader = HelloReader::default();
            for end in 0..bytes.len() {
                assert_eq!(reader.advance(&bytes[..end]), Ok(None), "records of {size}, {end} bytes");
            }
            let hello = reader.advance(&bytes).unwrap().unwrap();
            assert_eq!(parse(&bytes), Ok(Some(hello.clone())));
            assert_eq!(hello.server_name.as_deref(), Some("a.example.com"));
            assert!(!hello.encrypted_inside);
        }
    }

    #[test]
    fn what_is_no_single_clear_hello_is_refused() {
        let plain = message(&server_name("a.com"));
        let two_names = message(&[server_name("a.com"), server_name("b.com")].concat());
        let mut two_entries = server_name("a.com");
        two_entries.extend_from_within(6..);
        let entries = u16::try_from(two_entries.len() - 6).unwrap();
        two_entries[2..4].copy_from_slice(&(entries + 2).to_be_bytes());
        two_entries[4..6].copy_from_slice(&entries.to_be_bytes());
        let mut followed = plain.clone();
        followed.push(0);
        let mut not_hello = plain.clone();
        not_hello[0] = 2;
        let mut too_long = plain.clone();
        too_long[1] = 2;
        let cases = [
            (b"GET / HTTP/1.1".to_vec(), HelloError::NotTls),
            (vec![0x80, 0x2e, 1], HelloError::NotTls),
            (vec![HANDSHAKE, 2], HelloError::Malformed),
            (vec![HANDSHAKE, 3, 1, 0, 0], HelloError::Malformed),
            (vec![HANDSHAKE, 3, 1, 0xff, 0xff], HelloError::Malformed),
            (records(&two_names, 4000), HelloError::Malformed),
            (records(&message(&two_entries), 4000), HelloError::Malformed),
            (records(&followed, 4000), HelloError::Malformed),
            (records(&not_hello, 4000), HelloError::Malformed),
            (records(&too_long, 4000), HelloError::TooLarge),
            ([records(&plain[..10], 10), vec![23]].concat(), HelloError::Malformed),
            (records(&message(&[0, 0, 0, 9, 0]), 4000), HelloError::Malformed),
        ];
        for (index, (bytes, error)) in cases.into_iter().enumerate() {
            assert_eq!(parse(&bytes), Err(error), "case {index}");
        }
    }

    #[test]
    fn a_hello_without_name_and_one_with_a_hidden_name_are_told_apart() {
        let bare = parse(&records(&message(&[]), 4000)).unwrap().unwrap();
        assert_eq!(bare, ClientHello { server_name: None, encrypted_inside: false });
        let hidden = [server_name("a.com"), extension(ENCRYPTED_CLIENT_HELLO, &[0])].concat();
        assert!(parse(&records(&message(&hidden), 4000)).unwrap().unwrap().encrypted_inside);
    }

    #[test]
    fn endless_tiny_records_are_cut_off() {
        let mut long = message(&[]);
        long[1..4].copy_from_slice(&[0, 0xff, 0xff]);
        long.resize(20_000, 0);
        let bytes = records(&long, 1);
        assert_eq!(parse(&bytes[..HELLO_MAX]), Err(HelloError::TooLarge));
    }
}

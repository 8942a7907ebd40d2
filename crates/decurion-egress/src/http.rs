//! Heads of HTTP/1 requests, read strictly. Takes bytes of a client, gives the parts of its request, or the reason why
//! the request is refused.
//!
//! Everything that two programs could read differently is refused: bare line feeds, folded lines, spaces around names,
//! two lengths. The head for the server is written anew from the parts, so nothing that was not understood gets
//! through.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::host::Host;

/// The most bytes of a head, the empty line included.
pub(crate) const HEAD_MAX: usize = 32 * 1024;

/// Headers that are about one connection and not about the request (RFC 9110, section 7.6.1). `Host` and those about the
/// length of the body are among them because they are written anew.
const NOT_FORWARDED: [&str; 12] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authorization",
    "proxy-authenticate",
    "http2-settings",
    "host",
    "content-length",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) method: String,
    pub(crate) target: String,
    /// 0 or 1, of HTTP/1.
    pub(crate) minor_version: u8,
    /// Names in lower case, values without spaces around them.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

/// How long the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Bytes(u64),
    Chunked,
}

/// Why a request is refused before anything is decided about its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestHeadError {
    #[error("the request head is too large")]
    TooLarge,
    #[error("a line does not end in CR LF")]
    LineEnd,
    #[error("the request line is malformed")]
    RequestLine,
    #[error("the HTTP version is not 1.0 or 1.1")]
    Version,
    #[error("a header is malformed")]
    Header,
    #[error("a header that may stand once stands twice: {0}")]
    Duplicate(&'static str),
    #[error("the length of the body is ambiguous")]
    Length,
    #[error("CONNECT takes no body")]
    ConnectBody,
    #[error("this is a proxy: the request has to name an http:// URL, or use CONNECT")]
    NotAbsolute,
    #[error("the URL is malformed")]
    Url,
    #[error("the Host header is missing or differs from the host of the request")]
    HostMismatch,
    #[error("the chunks of the body are malformed")]
    Chunk,
}

/// The length of the head at the beginning of the bytes, if all of it is there. `searched` bytes held no end before.
pub(crate) fn head_length(bytes: &[u8], searched: usize) -> Result<Option<usize>, RequestHeadError> {
    let start = searched.saturating_sub(3);
    let seen = &bytes[start..bytes.len().min(HEAD_MAX)];
    if let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
        return Ok(Some(start + end + 4));
    }
    // A client that ends its lines otherwise would be waited for until its time is over.
    let bare = |(index, byte): (usize, &u8)| {
        *byte == b'\n' && (start + index == 0 || bytes[start + index - 1] != b'\r')
    };
    if seen.iter().enumerate().any(bare) {
        return Err(RequestHeadError::LineEnd);
    }
    if bytes.len() >= HEAD_MAX { Err(RequestHeadError::TooLarge) } else { Ok(None) }
}

impl RequestHead {
    /// Reads a whole head, with its empty line.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, RequestHeadError> {
        let lines = bytes.strip_suffix(b"\r\n\r\n").ok_or(RequestHeadError::LineEnd)?;
        let mut lines = split_lines(lines)?.into_iter();
        let (method, target, minor_version) =
            parse_request_line(lines.next().ok_or(RequestHeadError::RequestLine)?)?;
        let headers = lines.map(parse_header).collect::<Result<_, _>>()?;
        Ok(Self { method, target, minor_version, headers })
    }

    /// The value of a header that may stand once at most.
    pub(crate) fn single(&self, name: &'static str) -> Result<Option<&[u8]>, RequestHeadError> {
        let mut values =
            self.headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_slice());
        let value = values.next();
        if values.next().is_some() { Err(RequestHeadError::Duplicate(name)) } else { Ok(value) }
    }

    /// The user name of `Proxy-Authorization: Basic`. The password is not looked at.
    pub(crate) fn proxy_user(&self) -> Result<Option<String>, RequestHeadError> {
        let Some(value) = self.single("proxy-authorization")? else { return Ok(None) };
        Ok(basic_user(value))
    }

    /// The length of the body, if the head gives it in exactly one way.
    pub(crate) fn body_length(&self) -> Result<BodyLength, RequestHeadError> {
        let length = self.single("content-length")?;
        let encoding = self.single("transfer-encoding")?;
        match (length, encoding) {
            (None, None) => Ok(BodyLength::Bytes(0)),
            (None, Some(encoding))
                if encoding.eq_ignore_ascii_case(b"chunked") && self.minor_version == 1 =>
            {
                Ok(BodyLength::Chunked)
            }
            (Some(digits), None) => {
                parse_decimal(digits).map(BodyLength::Bytes).ok_or(RequestHeadError::Length)
            }
            _ => Err(RequestHeadError::Length),
        }
    }

    /// The host and port of a CONNECT request.
    pub(crate) fn connect_target(&self) -> Result<(&str, u16), RequestHeadError> {
        if self.body_length()? != BodyLength::Bytes(0) {
            return Err(RequestHeadError::ConnectBody);
        }
        let (host, port) = Host::parse_with_port(&self.target, None).ok_or(RequestHeadError::Url)?;
        // Not every client sends this header, and some leave the port out of it.
        if self.single("host")?.is_some() {
            self.check_host(host, port, Some(port))?;
        }
        Ok((host, port))
    }

    /// The host, port and path of a request for an `http://` URL.
    pub(crate) fn url_target(&self) -> Result<(&str, u16, String), RequestHeadError> {
        let scheme = self.target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
        let rest = &self.target[scheme.ok_or(RequestHeadError::NotAbsolute)?.len()..];
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        // A backslash is a slash to some programs, and what follows a fragment sign is for no server.
        if rest.contains(['#', '\\']) {
            return Err(RequestHeadError::Url);
        }
        let (host, port) = Host::parse_with_port(authority, Some(80)).ok_or(RequestHeadError::Url)?;
        self.check_host(host, port, Some(80))?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok((host, port, path))
    }

    /// Whether the only `Host` header names this host and port.
    pub(crate) fn check_host(
        &self,
        host: &str,
        port: u16,
        default: Option<u16>,
    ) -> Result<(), RequestHeadError> {
        let value = self.single("host")?.ok_or(RequestHeadError::HostMismatch)?;
        let text = std::str::from_utf8(value).map_err(|_| RequestHeadError::HostMismatch)?;
        let (own_host, own_port) =
            Host::parse_with_port(text, default).ok_or(RequestHeadError::HostMismatch)?;
        let same = match (Host::parse(own_host), Host::parse(host)) {
            (Ok(own), Ok(host)) => own == host,
            // What is no host is refused later, with its reason.
            (_, Err(_)) => own_host == host,
            (Err(_), Ok(_)) => false,
        };
        if same && own_port == port { Ok(()) } else { Err(RequestHeadError::HostMismatch) }
    }

    /// The head for the server: for this path and host, without what was meant for the proxy.
    pub(crate) fn for_server(&self, path: &str, host: &Host, port: u16) -> Result<Vec<u8>, RequestHeadError> {
        let authority = host.in_authority();
        let host = if port == 80 { authority } else { format!("{authority}:{port}") };
        let mut head =
            format!("{} {path} HTTP/1.{}\r\nhost: {host}\r\n", self.method, self.minor_version).into_bytes();
        let dropped = self.connection_headers();
        for (name, value) in &self.headers {
            if !NOT_FORWARDED.contains(&name.as_str()) && !dropped.contains(name) {
                head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
            }
        }
        match self.body_length()? {
            BodyLength::Chunked => head.extend(b"transfer-encoding: chunked\r\n"),
            BodyLength::Bytes(0) if self.single("content-length")?.is_none() => {}
            BodyLength::Bytes(length) => head.extend(format!("content-length: {length}\r\n").into_bytes()),
        }
        head.extend(b"connection: close\r\n\r\n");
        Ok(head)
    }

    /// Headers that the client declared to be about this connection only.
    fn connection_headers(&self) -> Vec<String> {
        let values = self.headers.iter().filter(|(name, _)| name == "connection").map(|(_, value)| value);
        values
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase())
            .collect()
    }
}

/// Lines without their ends. Every CR stands before an LF and the other way round.
fn split_lines(bytes: &[u8]) -> Result<Vec<&[u8]>, RequestHeadError> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        let line_end = rest[end..].starts_with(b"\r\n");
        if !line_end {
            return Err(RequestHeadError::LineEnd);
        }
        lines.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    lines.push(rest);
    Ok(lines)
}

fn parse_request_line(line: &[u8]) -> Result<(String, String, u8), RequestHeadError> {
    let line = std::str::from_utf8(line).map_err(|_| RequestHeadError::RequestLine)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(RequestHeadError::RequestLine);
    };
    let visible = !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token(method.as_bytes()) || !visible {
        return Err(RequestHeadError::RequestLine);
    }
    let minor_version = match version {
        "HTTP/1.1" => 1,
        "HTTP/1.0" => 0,
        _ => return Err(RequestHeadError::Version),
    };
    Ok((method.to_owned(), target.to_owned(), minor_version))
}

fn parse_header(line: &[u8]) -> Result<(String, Vec<u8>), RequestHeadError> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(RequestHeadError::Header)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    // A folded line begins with a space, which is no part of a token.
    let clean = value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..));
    if !is_token(name) || !clean {
        return Err(RequestHeadError::Header);
    }
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value.trim_ascii().to_vec()))
}

fn is_token(bytes: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(allowed)
}

fn parse_decimal(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn basic_user(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    decoded.split_once(':').map(|(user, _)| user.to_owned())
}

/// The most bytes of a line with the length of a chunk, and of all trailers.
const CHUNK_LINE_MAX: usize = 256;
const TRAILERS_MAX: usize = 8 * 1024;

/// What the bytes of a chunked body begin with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkStart {
    /// More bytes are needed.
    Incomplete,
    /// A chunk of this many bytes begins after this many bytes.
    Chunk { size: u64, after: usize },
    /// The last chunk and its trailers end after this many bytes.
    End { after: usize },
}

/// Reads the line before a chunk. Extensions are refused: no client uses them, and parsers differ about them.
pub(crate) fn chunk_start(bytes: &[u8]) -> Result<ChunkStart, RequestHeadError> {
    let seen = &bytes[..bytes.len().min(CHUNK_LINE_MAX)];
    let Some(end) = seen.iter().position(|byte| *byte == b'\r') else {
        let plain = seen.iter().all(u8::is_ascii_hexdigit) && seen.len() < CHUNK_LINE_MAX;
        return if plain { Ok(ChunkStart::Incomplete) } else { Err(RequestHeadError::Chunk) };
    };
    let digits = std::str::from_utf8(&seen[..end]).map_err(|_| RequestHeadError::Chunk)?;
    let plain = (1..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain {
        return Err(RequestHeadError::Chunk);
    }
    let size = u64::from_str_radix(digits, 16).map_err(|_| RequestHeadError::Chunk)?;
    match bytes.get(end + 1) {
        None => Ok(ChunkStart::Incomplete),
        Some(b'\n') if size > 0 => Ok(ChunkStart::Chunk { size, after: end + 2 }),
        Some(b'\n') => trailers_end(bytes, end + 2),
        Some(_) => Err(RequestHeadError::Chunk),
    }
}

fn trailers_end(bytes: &[u8], start: usize) -> Result<ChunkStart, RequestHeadError> {
    let rest = &bytes[start..];
    if rest.starts_with(b"\r\n") {
        return Ok(ChunkStart::End { after: start + 2 });
    }
    if let Some(end) = rest.windows(4).position(|window| window == b"\r\n\r\n") {
        for line in split_lines(&rest[..end])? {
            parse_header(line)?;
        }
        return Ok(ChunkStart::End { after: start + end + 4 });
    }
    if rest.len() > TRAILERS_MAX { Err(RequestHeadError::Chunk) } else { Ok(ChunkStart::Incomplete) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RequestHead, RequestHeadError> {
        RequestHead::parse(text.as_bytes())
    }

    #[test]
    fn a_head_is_read_into_its_parts() {
        let head = parse("GET http://a.com/x?y HTTP/1.1\r\nHost: A.com:80\r\nX-Empty:\r\nX: \t a b \r\n\r\n")
            .unwrap();
        assert_eq!(head.url_target(), Ok(("a.com", 80, "/x?y".to_owned())));
        assert_eq!(head.single("x-empty"), Ok(Some(&b""[..])));
        assert_eq!(head.single("x"), Ok(Some(&b"a b"[..])));
        assert_eq!(head.body_length(), Ok(BodyLength::Bytes(0)));
    }

    #[test]
    fn what_two_programs_could_read_differently_is_refused() {
        let cases = [
            ("GET http://a.com/ HTTP/1.1\nHost: a.com\r\n\r\n", RequestHeadError::LineEnd),
            ("GET http://a.com/ HTTP/1.1\r\nA: b\rC: d\r\n\r\n", RequestHeadError::LineEnd),
            ("GET http://a.com/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", RequestHeadError::LineEnd),
            ("GET http://a.com/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", RequestHeadError::Header),
            ("GET http://a.com/ HTTP/1.1\r\nA : b\r\n\r\n", RequestHeadError::Header),
            ("GET http://a.com/ HTTP/1.1\r\n A: b\r\n\r\n", RequestHeadError::Header),
            ("GET http://a.com/ HTTP/1.1\r\nno colon\r\n\r\n", RequestHeadError::Header),
            ("GET http://a.com/ HTTP/1.1\r\nA: b\0c\r\n\r\n", RequestHeadError::Header),
            ("GET http://a.com/ HTTP/1.1\r\n: b\r\n\r\n", RequestHeadError::Header),
            ("GET  http://a.com/ HTTP/1.1\r\n\r\n", RequestHeadError::RequestLine),
            ("GET http://a.com/ x HTTP/1.1\r\n\r\n", RequestHeadError::RequestLine),
            ("GET\thttp://a.com/ HTTP/1.1\r\n\r\n", RequestHeadError::RequestLine),
            ("G@T http://a.com/ HTTP/1.1\r\n\r\n", RequestHeadError::RequestLine),
            ("\r\nGET http://a.com/ HTTP/1.1\r\n\r\n", RequestHeadError::RequestLine),
            ("GET http://ä.com/ HTTP/1.1\r\n\r\n", RequestHeadError::RequestLine),
            ("GET http://a.com/ HTTP/2.0\r\n\r\n", RequestHeadError::Version),
            ("GET http://a.com/ HTTP/1.1x\r\n\r\n", RequestHeadError::Version),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_body_has_one_length() {
        let length = |headers: &str| {
            parse(&format!("POST http://a.com/ HTTP/1.1\r\n{headers}\r\n\r\n")).unwrap().body_length()
        };
        assert_eq!(length("Content-Length: 5"), Ok(BodyLength::Bytes(5)));
        assert_eq!(length("Transfer-Encoding: Chunked"), Ok(BodyLength::Chunked));
        assert_eq!(
            length("Content-Length: 5\r\nContent-Length: 5"),
            Err(RequestHeadError::Duplicate("content-length"))
        );
        let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity";
        assert_eq!(length(twice), Err(RequestHeadError::Duplicate("transfer-encoding")));
        for headers in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Content-Length: 5, 5",
            "Content-Length: +5",
            "Content-Length: 0x5",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: identity",
        ] {
            assert_eq!(length(headers), Err(RequestHeadError::Length), "{headers}");
        }
        let old = parse("POST http://a.com/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        assert_eq!(old.body_length(), Err(RequestHeadError::Length));
    }

    #[test]
    fn the_host_header_has_to_agree_with_the_target() {
        let url = |target: &str, headers: &str| {
            parse(&format!("GET {target} HTTP/1.1\r\n{headers}\r\n\r\n")).unwrap().url_target().map(|_| ())
        };
        assert_eq!(url("http://a.com:80/", "Host: A.com."), Ok(()));
        assert_eq!(url("http://0x7f.1/", "Host: 127.0.0.1"), Ok(()));
        assert_eq!(url("HTTP://a.com?x", "Host: a.com"), Ok(()));
        assert_eq!(url("http://a.com/", "X: y"), Err(RequestHeadError::HostMismatch));
        assert_eq!(url("http://a.com/", "Host: b.com"), Err(RequestHeadError::HostMismatch));
        assert_eq!(url("http://a.com/", "Host: a.com:8080"), Err(RequestHeadError::HostMismatch));
        assert_eq!(url("http://a.com/", "Host: a.com@b.com"), Err(RequestHeadError::HostMismatch));
        assert_eq!(
            url("http://a.com/", "Host: a.com\r\nHost: a.com"),
            Err(RequestHeadError::Duplicate("host"))
        );
        assert_eq!(url("http://a.com\\@b.com/", "Host: a.com"), Err(RequestHeadError::Url));
        assert_eq!(url("http://a.com/#x", "Host: a.com"), Err(RequestHeadError::Url));
        assert_eq!(url("http:///x", "Host: a.com"), Err(RequestHeadError::Url));
        assert_eq!(url("https://a.com/", "Host: a.com"), Err(RequestHeadError::NotAbsolute));
        assert_eq!(url("/x", "Host: a.com"), Err(RequestHeadError::NotAbsolute));
        let connect = |headers: &str| {
            parse(&format!("CONNECT a.com:443 HTTP/1.1\r\n{headers}\r\n\r\n"))
                .unwrap()
                .connect_target()
                .map(|_| ())
        };
        assert_eq!(connect("X: y"), Ok(()));
        assert_eq!(connect("Host: a.com\r\nContent-Length: 0"), Ok(()));
        assert_eq!(connect("Host: b.com:443"), Err(RequestHeadError::HostMismatch));
        assert_eq!(connect("Host: a.com:80"), Err(RequestHeadError::HostMismatch));
        assert_eq!(connect("Content-Length: 1"), Err(RequestHeadError::ConnectBody));
        assert_eq!(connect("Transfer-Encoding: chunked"), Err(RequestHeadError::ConnectBody));
    }

    #[test]
    fn the_server_gets_no_header_that_was_meant_for_the_proxy() {
        let head = parse(
            "POST http://A.com:8080/x HTTP/1.1\r\nHost: a.com:8080\r\nProxy-Authorization: Basic eA==\r\n\
             Connection: x-hop, Close\r\nX-Hop: 1\r\nUpgrade: websocket\r\nTE: trailers\r\nAccept: */*\r\n\
             Proxy-Connection: keep-alive\r\nContent-Length: 0\r\n\r\n",
        )
        .unwrap();
        let host = Host::parse("A.com").unwrap();
        let expected = "POST /x HTTP/1.1\r\nhost: a.com:8080\r\naccept: */*\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(head.for_server("/x", &host, 8080).unwrap()).unwrap(), expected);
    }

    #[test]
    fn the_user_of_basic_authorization_is_found() {
        let user = |value: &str| basic_user(value.as_bytes());
        assert_eq!(user("Basic dG9rZW46"), Some("token".to_owned()));
        assert_eq!(user("basic dG9rZW46eDp5"), Some("token".to_owned()));
        for value in ["Basic dG9rZW4=", "Bearer dG9rZW46", "Basic", "Basic %%%", ""] {
            assert_eq!(user(value), None, "{value}");
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_within_its_bound() {
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n\r\nrest", 0), Ok(Some(18)));
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n\r", 0), Ok(None));
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n\r\n", 15), Ok(Some(18)));
        assert_eq!(head_length(b"GET / HTTP/1.1\n", 0), Err(RequestHeadError::LineEnd));
        assert_eq!(head_length(&vec![b'a'; HEAD_MAX - 1], 0), Ok(None));
        assert_eq!(head_length(&vec![b'a'; HEAD_MAX], 0), Err(RequestHeadError::TooLarge));
        let late = [vec![b'a'; HEAD_MAX - 2], b"\r\n\r\n".to_vec()].concat();
        assert_eq!(head_length(&late, 0), Err(RequestHeadError::TooLarge));
    }

    #[test]
    fn chunks_are_read_strictly() {
        assert_eq!(chunk_start(b"5\r\nhello"), Ok(ChunkStart::Chunk { size: 5, after: 3 }));
        assert_eq!(chunk_start(b"0\r\n\r\nGET"), Ok(ChunkStart::End { after: 5 }));
        assert_eq!(chunk_start(b"0\r\nA: b\r\n\r\n"), Ok(ChunkStart::End { after: 11 }));
        for bytes in [&b""[..], b"5", b"5\r", b"0\r\n", b"0\r\nA: b\r\n"] {
            assert_eq!(chunk_start(bytes), Ok(ChunkStart::Incomplete), "{bytes:?}");
        }
        for bytes in [
            &b"5;x=y\r\n"[..],
            b"\r\n",
            b"+5\r\n",
            b"0x5\r\n",
            b"5\n",
            b"5\rx",
            b" 5\r\n",
            b"0\r\nA b\r\n\r\n",
        ] {
            assert!(chunk_start(bytes).is_err(), "{bytes:?}");
        }
        assert!(chunk_start(b"FFFFFFFFFFFFFFFF\r\n").is_err());
    }
}

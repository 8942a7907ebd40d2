//! The lines of a server's output, made fit for the protocol. Takes its standard output, gives the same lines, except that
//! an answer which is too long or not JSON becomes an error that answers the same request: otherwise the call would wait
//! for its whole time limit and report silence. Lines that answer nothing (a log on standard output) pass.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use serde::de::IgnoredAny;
use serde_json::json;
use tokio::io::{AsyncRead, ReadBuf};

/// The longest line that is kept, as in the protocol's library.
const LONGEST_LINE: usize = 16 * 1024 * 1024;
/// How much of the start and the end of a line may hold the number of the request.
const ENDS: usize = 1024;
/// How much is read at once.
const CHUNK: usize = 16 * 1024;

/// The output of a server, read line by line.
pub(super) struct Lines<R> {
    output: R,
    /// The line that is being read; of one that is too long only its start and the last bytes.
    line: Vec<u8>,
    length: usize,
    /// What is checked and not yet given.
    checked: Vec<u8>,
    given: usize,
}

impl<R> Lines<R> {
    pub fn new(output: R) -> Self {
        Self { output, line: Vec::new(), length: 0, checked: Vec::new(), given: 0 }
    }

    fn add(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        self.line.extend_from_slice(bytes);
        if self.length > LONGEST_LINE {
            let tail = self.line.len() - ENDS;
            self.line.drain(ENDS.min(tail)..tail);
            self.line.shrink_to(CHUNK);
        }
    }

    fn end_line(&mut self) {
        let problem = if self.length > LONGEST_LINE {
            Some(format!("its answer is longer than {} MiB", LONGEST_LINE >> 20))
        } else if serde_json::from_slice::<IgnoredAny>(&self.line).is_err() {
            Some("its answer is not JSON".to_owned())
        } else {
            None
        };
        match problem.map(|problem| (request_of(&self.line), problem)) {
            Some((Some(id), message)) => {
                let error =
                    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32_700, "message": message}});
                self.checked.extend_from_slice(error.to_string().as_bytes());
            }
            Some((None, _)) if self.length > LONGEST_LINE => {}
            _ => self.checked.append(&mut self.line),
        }
        self.checked.push(b'\n');
        self.line.clear();
        self.length = 0;
    }
}

/// The number of the request that a damaged line answers: `"id": 7` before its result, or as the last thing in it.
fn request_of(line: &[u8]) -> Option<u64> {
    let line = line.trim_ascii();
    if !line.starts_with(b"{") {
        return None;
    }
    let head = &line[..line.len().min(ENDS)];
    let result = [&b"\"result\""[..], b"\"error\""].into_iter().filter_map(|key| find(head, key)).min();
    let head = &head[..result.unwrap_or(head.len())];
    let tail = &line[line.len().saturating_sub(ENDS)..];
    let last = tail.windows(4).rposition(|bytes| bytes == b"\"id\"");
    let first = find(head, b"\"id\"").and_then(|key| number_after(head, key));
    let last = || number_after(tail, last?).filter(|(_, rest)| rest.trim_ascii() == b"}");
    first.or_else(last).map(|(id, _)| id)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|bytes| bytes == wanted)
}

/// The number behind the key `"id"` that starts here, and what follows it.
fn number_after(bytes: &[u8], key: usize) -> Option<(u64, &[u8])> {
    let value = bytes[key + 4..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&value[..digits]).ok()?.parse().ok()?;
    Some((number, &value[digits..]))
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        while this.given == this.checked.len() {
            this.checked.clear();
            this.given = 0;
            let mut chunk = [0; CHUNK];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.output).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.add(read.filled());
        }
        let waiting = &this.checked[this.given..];
        let count = waiting.len().min(into.remaining());
        into.put_slice(&waiting[..count]);
        this.given += count;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    /// What comes of these bytes, given in pieces of this size.
    async fn given(bytes: &[u8], piece: usize) -> String {
        let (mut server, client) = tokio::io::duplex(piece);
        let bytes = bytes.to_vec();
        let writing = tokio::spawn(async move {
            tokio::io::AsyncWriteExt::write_all(&mut server, &bytes).await.unwrap();
        });
        let mut text = Vec::new();
        Lines::new(client).read_to_end(&mut text).await.unwrap();
        writing.await.unwrap();
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn sound_lines_and_logs_pass_unchanged_however_they_are_cut() {
        let text = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\nstarting up\r\n{not json}\n[1, 2]\n";
        for piece in [1, 2, 3, 7, 64, 4096] {
            assert_eq!(given(text.as_bytes(), piece).await, text);
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_not_json_is_an_error_of_its_request() {
        let cases = [
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[}\n",
            "{\"id\" : 7 , \"result\": \"\u{1}\"}\n",
            "{\"result\": {\"id\": 3,}, \"id\": 7}\n",
        ];
        for case in cases {
            let text = given(case.as_bytes(), 5).await;
            let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["id"], 7, "{case} {text}");
            assert_eq!(answer["error"]["message"], "its answer is not JSON", "{case}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_an_error_of_its_request_and_is_not_held() {
        let long = "x".repeat(LONGEST_LINE);
        for (line, id) in [
            (format!("{{\"id\":7,\"result\":\"{long}\"}}\n"), Some(7)),
            (format!("{{\"result\":\"{long}\",\"id\":8}}\n"), Some(8)),
            (format!("{long}x\n"), None),
        ] {
            let text = given(line.as_bytes(), CHUNK).await;
            assert!(text.len() < 200, "{} bytes", text.len());
            let answer: Option<serde_json::Value> = serde_json::from_str(&text).ok();
            assert_eq!(answer.map(|answer| answer["id"].clone()), id.map(serde_json::Value::from), "{text}");
        }
        let mut lines = Lines::new(tokio::io::empty());
        for _ in 0..2 * LONGEST_LINE / CHUNK {
            lines.extend(&[b'x'; CHUNK]);
        }
        assert!(lines.line.capacity() <= 2 * CHUNK, "{}", lines.line.capacity());
    }
}

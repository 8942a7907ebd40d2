//! The body of a response without secrets. Takes the pieces of a body as they come, gives the same number of bytes in which
//! every secret is overwritten, also one that two pieces share.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

/// Replaces each byte of a secret: the length of a body must stay what its head says.
const BLANK: u8 = b'*';

/// A body whose pieces pass as they come.
pub(super) struct BlankedBody {
    inner: Incoming,
    blanker: Blanker,
    ended: bool,
}

impl BlankedBody {
    /// The body without these texts.
    pub(super) fn new(inner: Incoming, needles: Vec<Vec<u8>>) -> Self {
        Self { inner, blanker: Blanker { needles, held: Vec::new() }, ended: false }
    }
}

impl Body for BlankedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        while !self.ended {
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => {
                    // Trailers were not asked for.
                    let Ok(data) = frame.into_data() else { continue };
                    let passed = self.blanker.push(&data);
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(passed.into()))));
                    }
                }
                None => self.ended = true,
            }
        }
        let rest = std::mem::take(&mut self.blanker.held);
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.blanker.held.is_empty() && (self.ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.inner.size_hint(), self.blanker.held.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + held);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

/// Overwrites texts in bytes that come in pieces.
struct Blanker {
    needles: Vec<Vec<u8>>,
    /// The end of what came, if it may be the beginning of a needle.
    held: Vec<u8>,
}

impl Blanker {
    /// Takes a piece, gives what can pass by now.
    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(piece);
        for needle in &self.needles {
            blank(&mut bytes, needle);
        }
        let begun = self.needles.iter().map(|needle| begun_at_end(&bytes, needle)).max().unwrap_or(0);
        self.held = bytes.split_off(bytes.len() - begun);
        bytes
    }
}

fn blank(bytes: &mut [u8], needle: &[u8]) {
    let mut from = 0;
    while let Some(at) = super::find(&bytes[from..], needle) {
        let end = from + at + needle.len();
        bytes[from + at..end].fill(BLANK);
        from = end;
    }
}

/// How many bytes at the end may be the beginning of the needle.
fn begun_at_end(bytes: &[u8], needle: &[u8]) -> usize {
    let longest = needle.len().saturating_sub(1).min(bytes.len());
    (1..=longest).rev().find(|length| bytes.ends_with(&needle[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way of cutting a text in three gives the text without the needles, and no byte more or less.
    #[test]
    fn a_secret_is_overwritten_however_the_body_is_cut() {
        let text = b"a s3cret-value, s3cs3cret-value s3cret-valu".as_slice();
        let wanted = b"a ************, s3c************ s3cret-valu".as_slice();
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut blanker = Blanker { needles: vec![b"s3cret-value".to_vec()], held: Vec::new() };
                let mut passed = Vec::new();
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    passed.extend(blanker.push(piece));
                }
                passed.extend(blanker.held);
                assert_eq!(passed, wanted, "{first} {second}");
            }
        }
    }

    #[test]
    fn nothing_is_held_back_that_cannot_be_a_secret() {
        let mut blanker = Blanker { needles: vec![b"s3cret-value".to_vec()], held: Vec::new() };
        assert_eq!(blanker.push(b"data: one\n\n"), b"data: one\n\n");
        assert_eq!(blanker.push(b"data: s3c"), b"data: ");
    }
}

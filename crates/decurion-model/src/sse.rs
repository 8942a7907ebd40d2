//! Server-sent events: bytes in any chunking come in, whole frames go out. Pure and incremental; the same
//! bytes give the same frames however they are cut, and no line or frame grows past a bound.

/// The longest line, and the most data of one frame. A reply's largest honest frame is one tool call's
/// whole input.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// One event of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its name; empty if it has none.
    pub event: &'a [u8],
    /// Its data; several `data` lines are joined by newlines.
    pub data: &'a [u8],
}

/// A stream that cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line, or the data of one frame, passes [`MAX_FRAME`].
    #[error("an event of the stream is longer than {MAX_FRAME} bytes")]
    TooLong,
}

/// The state between two chunks.
#[derive(Debug, Default)]
pub struct SseParser {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    event: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a CR, so an LF that follows belongs to it.
    after_cr: bool,
    /// The first line is over; only before it a byte order mark may stand.
    begun: bool,
}

impl SseParser {
    /// Takes the next bytes and hands over every frame that they complete. After an error, of the stream's
    /// or the receiver's, nothing more can be taken.
    pub fn push<E: From<SseError>>(
        &mut self,
        mut chunk: &[u8],
        mut receive: impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.after_cr && !chunk.is_empty() {
            self.after_cr = false;
            chunk = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while let Some(end) = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (part, rest) = chunk.split_at(end);
            if self.line.is_empty() {
                check(part.len())?;
                self.take_line(part, &mut receive)?;
            } else {
                self.keep(part)?;
                let mut line = std::mem::take(&mut self.line);
                self.take_line(&line, &mut receive)?;
                line.clear();
                self.line = line;
            }
            chunk = match rest {
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => rest,
            };
            self.after_cr = rest == b"\r";
        }
        self.keep(chunk)?;
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), SseError> {
        check(self.line.len() + part.len())?;
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn take_line<E: From<SseError>>(
        &mut self,
        line: &[u8],
        receive: &mut impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_first = !std::mem::replace(&mut self.begun, true);
        let mark = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| is_first);
        let line = mark.unwrap_or(line);
        if line.is_empty() {
            return self.dispatch(receive);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = colon.map_or((line, b"".as_slice()), |at| (&line[..at], &line[at + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                check(self.data.len() + value.len() + 1)?;
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            b"event" => {
                self.event.clear();
                self.event.extend_from_slice(value);
            }
            // Comments, ids, retry times and unknown fields.
            _ => {}
        }
        Ok(())
    }

    fn dispatch<E>(&mut self, receive: &mut impl FnMut(Frame<'_>) -> Result<(), E>) -> Result<(), E> {
        let result =
            if self.has_data { receive(Frame { event: &self.event, data: &self.data }) } else { Ok(()) };
        self.event.clear();
        self.data.clear();
        self.has_data = false;
        result
    }
}

fn check(length: usize) -> Result<(), SseError> {
    if length > MAX_FRAME { Err(SseError::TooLong) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Frames = Vec<(Vec<u8>, Vec<u8>)>;

    fn frames<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Frames, SseError> {
        let mut parser = SseParser::default();
        let mut frames = Vec::new();
        for chunk in chunks {
            parser.push(chunk, |frame| {
                frames.push((frame.event.to_vec(), frame.data.to_vec()));
                Ok::<_, SseError>(())
            })?;
        }
        Ok(frames)
    }

    fn check_text(text: &[u8], expected: &[(&str, &str)]) {
        let expected: Frames = expected
            .iter()
            .map(|(event, data)| (event.as_bytes().to_vec(), data.as_bytes().to_vec()))
            .collect();
        assert_eq!(frames([text]).unwrap(), expected, "{:?}", String::from_utf8_lossy(text));
        for at in 0..=text.len() {
            assert_eq!(frames([&text[..at], &text[at..]]).unwrap(), expected, "split at {at}");
        }
        assert_eq!(frames(text.chunks(1)).unwrap(), expected, "byte by byte");
    }

    #[test]
    fn every_form_of_line_and_frame_is_read() {
        check_text(b"data: a\n\n", &[("", "a")]);
        check_text(b"data:a\r\n\r\ndata:b\r\rdata: c\n\n", &[("", "a"), ("", "b"), ("", "c")]);
        check_text(b"event: x\ndata: a\ndata:\ndata: b\n\n", &[("x", "a\n\nb")]);
        check_text(b": note\nid: 1\nretry: 2\nother\ndata\n\n", &[("", "")]);
        check_text(b"event: lost\n\ndata: y\n\n", &[("", "y")]);
        check_text("\u{feff}data: é\u{1f600}\n\n".as_bytes(), &[("", "é\u{1f600}")]);
        check_text(b"data: a\n\n\xef\xbb\xbfdata: b\n\n", &[("", "a")]);
        check_text(b"data:  two spaces: colon\n\n", &[("", " two spaces: colon")]);
        check_text(b"\n\n\r\n\rdata: a\r\r\n\n", &[("", "a")]);
        check_text(b"data: never finished\n", &[]);
    }

    #[test]
    fn a_line_and_a_frame_have_a_longest_length() {
        let line = [b"data: ".to_vec(), vec![b'x'; 10 * 1024 * 1024]].concat();
        assert_eq!(frames([line.as_slice()]), Err(SseError::TooLong));
        assert_eq!(frames(line.chunks(1000)), Err(SseError::TooLong));
        let frame = [b"data: ".to_vec(), vec![b'x'; 1000], b"\n".to_vec()].concat().repeat(5000);
        assert_eq!(frames([frame.as_slice()]), Err(SseError::TooLong));
        let comment = [b":".to_vec(), vec![b'x'; 1000], b"\n".to_vec()].concat().repeat(5000);
        assert_eq!(frames([comment.as_slice()]), Ok(vec![]));
    }

    fn stream_like() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"data: ".to_vec()),
            Just(b"event: x".to_vec()),
            Just(b"data:{\"a\":1}".to_vec()),
            Just(b":".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"\n\n".to_vec()),
            Just(b"\xef\xbb\xbf".to_vec()),
            Just("é\u{1f600}".as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn any_chunking_gives_the_same_frames(text in stream_like(), cuts in prop::collection::vec(0_usize..200, 0..12)) {
            let whole = frames([text.as_slice()]).unwrap();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(frames(chunks).unwrap(), whole);
        }
    }
}

//! How long something is on the wire. Takes a value, gives the bytes that its JSON has, without making them.

use std::io;

use serde::Serialize;

/// How many bytes a value takes as JSON. What cannot be said in JSON counts as far as it could be.
pub fn size_of(value: &(impl Serialize + ?Sized)) -> usize {
    let mut count = Count(0);
    // Counting cannot fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::size_of;

    #[test]
    fn it_is_the_length_of_what_would_be_written() {
        for value in [json!(null), json!("\u{1}é\"\n"), json!({"a": [1, 2.5, {"b": "x"}], "…": true})] {
            assert_eq!(size_of(&value), value.to_string().len());
        }
        assert_eq!(size_of("text"), 6);
    }
}

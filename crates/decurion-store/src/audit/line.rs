//! One line of the audit log. Takes an entry and the line before it, gives a line that carries its number, the hash of
//! the line before and a code that only the holder of the key can make; and reads such a line back.
//!
//! The code is over the bytes as written, not over a re-encoding of them, so that entries of later versions verify too.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The longest line that is read. An entry's texts are cut long before.
pub(super) const LINE_LIMIT: usize = 64 << 10;
/// What stands before the code and after it.
const BEFORE_CODE: &[u8] = b",\"mac\":\"";
const AFTER_CODE: &[u8] = b"\"}";
/// The block size of SHA-256, which HMAC is defined by.
const BLOCK: usize = 64;

pub(super) type Hash = [u8; 32];

/// The key of a log.
#[derive(Clone)]
pub(super) struct AuditKey(pub(super) [u8; 32]);

/// The last line of a chain: its number and its hash. The chain begins with number 0 and a hash of zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tip {
    pub(super) seq: u64,
    pub(super) hash: Hash,
}

/// What a line says.
pub(super) struct ParsedEntry<'a> {
    pub(super) seq: u64,
    pub(super) previous: Hash,
    pub(super) entry: &'a RawValue,
    pub(super) hash: Hash,
}

/// What the head file says: the last line, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadFile {
    pub(super) tip: Tip,
    pub(super) segment: u32,
    /// The length of the segment after that line.
    pub(super) length: u64,
}

#[derive(Serialize, Deserialize)]
struct WrittenEntry<'a> {
    seq: u64,
    prev: &'a str,
    #[serde(borrow)]
    entry: &'a RawValue,
}

#[derive(Serialize, Deserialize)]
struct WrittenHead {
    head: u64,
    hash: String,
    segment: u32,
    length: u64,
}

impl AuditKey {
    /// HMAC-SHA-256 (RFC 2104). The key is shorter than a block, so it is only padded.
    fn code(&self, bytes: &[u8]) -> Hash {
        let padded = |with: u8| {
            let mut block = [with; BLOCK];
            block.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let inner = Sha256::new().chain_update(padded(0x36)).chain_update(bytes).finalize();
        Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
    }

    /// An object with its code as the last member; `body` lacks the closing brace.
    fn seal(&self, mut body: Vec<u8>) -> Vec<u8> {
        let code = to_hex(&self.code(&body));
        for part in [BEFORE_CODE, code.as_bytes(), AFTER_CODE] {
            body.extend_from_slice(part);
        }
        body
    }

    /// Whether the code of a sealed object is right.
    pub(super) fn sealed(&self, bytes: &[u8]) -> bool {
        let split = || {
            let rest = bytes.strip_suffix(AFTER_CODE)?;
            let (rest, code) = rest.split_at_checked(rest.len().checked_sub(BLOCK)?)?;
            Some((rest.strip_suffix(BEFORE_CODE)?, code))
        };
        split().is_some_and(|(body, code)| to_hex(&self.code(body)).as_bytes() == code)
    }

    /// The line after `tip` that holds this entry, and the new tip. The line has no line end yet.
    pub(super) fn line(&self, tip: Tip, entry: &RawValue) -> serde_json::Result<(Vec<u8>, Tip)> {
        let seq = tip.seq.saturating_add(1);
        let mut body = serde_json::to_vec(&WrittenEntry { seq, prev: &to_hex(&tip.hash), entry })?;
        body.pop();
        let line = self.seal(body);
        let hash = Sha256::digest(&line).into();
        Ok((line, Tip { seq, hash }))
    }

    /// The content of the head file.
    pub(super) fn head(&self, head: &HeadFile) -> serde_json::Result<Vec<u8>> {
        let written = WrittenHead {
            head: head.tip.seq,
            hash: to_hex(&head.tip.hash),
            segment: head.segment,
            length: head.length,
        };
        let mut body = serde_json::to_vec(&written)?;
        body.pop();
        Ok(self.seal(body))
    }

    /// The head in these bytes, if this key made it.
    pub(super) fn read_head(&self, bytes: &[u8]) -> Option<HeadFile> {
        if !self.sealed(bytes) {
            return None;
        }
        let written: WrittenHead = serde_json::from_slice(bytes).ok()?;
        let tip = Tip { seq: written.head, hash: from_hex(&written.hash)? };
        Some(HeadFile { tip, segment: written.segment, length: written.length })
    }
}

impl ParsedEntry<'_> {
    /// The tip of a chain that ends with this line.
    pub(super) fn tip(&self) -> Tip {
        Tip { seq: self.seq, hash: self.hash }
    }

    /// Whether this line follows a tip.
    pub(super) fn follows(&self, tip: Tip) -> bool {
        tip.seq.checked_add(1) == Some(self.seq) && self.previous == tip.hash
    }
}

/// Reads a line without its line end, of any author. `Key::sealed` says whether to believe it.
pub(super) fn parse(line: &[u8]) -> Option<ParsedEntry<'_>> {
    let written: WrittenEntry<'_> = serde_json::from_slice(line).ok()?;
    let hash = Sha256::digest(line).into();
    Some(ParsedEntry { seq: written.seq, previous: from_hex(written.prev)?, entry: written.entry, hash })
}

/// A hash in hexadecimal digits.
pub(super) fn to_hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash that 64 hexadecimal digits write.
pub(super) fn from_hex(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_that_of_the_standard() {
        // RFC 4231, test case 1: the key is 20 bytes, which padding with zeros to 32 does not change.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let code = to_hex(&AuditKey(key).code(b"Hi There"));
        assert_eq!(code, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        // Test case 2: the key is "Jefe".
        let mut key = [0; 32];
        key[..4].copy_from_slice(b"Jefe");
        let code = to_hex(&AuditKey(key).code(b"what do ya want for nothing?"));
        assert_eq!(code, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn line_is_bound_to_its_bytes_its_key_and_the_line_before() {
        let key = AuditKey([7; 32]);
        let entry = RawValue::from_string(r#"{"kind":"later","number":1.50}"#.to_owned()).unwrap();
        let (first, tip) = key.line(Tip::default(), &entry).unwrap();
        let (second, _) = key.line(tip, &entry).unwrap();
        assert!(key.sealed(&first) && !AuditKey([8; 32]).sealed(&first));
        let parsed = parse(&second).unwrap();
        assert!(parsed.follows(tip) && !parsed.follows(Tip::default()));
        assert_eq!(parsed.entry.get(), entry.get(), "an entry of a later version keeps its bytes");
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 1;
            assert!(!key.sealed(&changed), "byte {at}");
        }
    }

    #[test]
    fn head_comes_back_only_from_its_key() {
        let head = HeadFile { tip: Tip { seq: 9, hash: [3; 32] }, segment: 2, length: 77 };
        let bytes = AuditKey([7; 32]).head(&head).unwrap();
        assert_eq!(AuditKey([7; 32]).read_head(&bytes), Some(head));
        assert_eq!(AuditKey([8; 32]).read_head(&bytes), None);
        assert_eq!(from_hex("zz"), None);
    }
}

//! The repositories nested in a checkout. Takes git's list of the checkout's files, as it is on disk; gives the
//! paths in it at which another repository stands, where git calls itself.
//!
//! The list comes with the repository and may be made to deceive: what git could read in another way is an error.

use std::io::Read as _;

use camino::Utf8Path;

/// A longer list is not read.
const MOST_BYTES: u64 = 256 << 20;
/// The kind of an entry that stands for another repository.
const NESTED: u32 = 0o160_000;
const KIND: u32 = 0o170_000;

/// The paths of nested repositories; none where there is no list. `hash` is the length of an object's name.
pub(super) fn nested(own: &Utf8Path, hash: usize) -> Result<Vec<Vec<u8>>, String> {
    let Some(bytes) = read(&own.join("index"))? else { return Ok(Vec::new()) };
    let mut list = List::default();
    list.add(&bytes, hash).ok_or_else(broken)?;
    if let Some(shared) = list.shared.take() {
        let name: String = shared.iter().map(|byte| format!("{byte:02x}")).collect();
        let bytes = read(&own.join(format!("sharedindex.{name}")))?.ok_or_else(broken)?;
        list.add(&bytes, hash).ok_or_else(broken)?;
    }
    Ok(list.nested)
}

fn broken() -> String {
    "its list of files is not understood".to_owned()
}

fn read(path: &Utf8Path) -> Result<Option<Vec<u8>>, String> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(None) };
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err("its list of files is too long".to_owned());
    }
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    read.map_err(|error| format!("its list of files cannot be read: {error}"))?;
    Ok(Some(bytes))
}

#[derive(Default)]
struct List {
    nested: Vec<Vec<u8>>,
    /// The name of another list that this one adds to.
    shared: Option<Vec<u8>>,
}

/// Where an entry begins, and whether its path is written out.
struct Entry {
    at: usize,
    whole: bool,
}

impl List {
    /// Reads one list; none where it is not understood.
    fn add(&mut self, bytes: &[u8], hash: usize) -> Option<()> {
        let (version, count) = (number(bytes, 4)?, number(bytes, 8)?);
        if bytes.get(..4)? != b"DIRC" || !(2..=4).contains(&version) {
            return None;
        }
        let mut at = 12;
        let mut name: Vec<u8> = Vec::new();
        let mut entries = Vec::new();
        for _ in 0..count {
            let begin = at;
            let kind = number(bytes, begin + 24)? & KIND;
            at = begin + 40 + hash;
            let flags = u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
            at += 2;
            if flags & 0x4000 != 0 {
                at += 2;
            }
            let mut whole = true;
            if version == 4 {
                let cut = varint(bytes, &mut at)?;
                name.truncate(name.len().checked_sub(cut)?);
                whole = name.is_empty();
            } else {
                name.clear();
            }
            let length = bytes.get(at..)?.iter().position(|byte| *byte == 0)?;
            name.extend(&bytes[at..at + length]);
            at += length + 1;
            // Git goes by the length that stands in the entry, as far as that can be told there.
            if usize::from(flags & 0xFFF) != name.len().min(0xFFF) {
                return None;
            }
            if version != 4 {
                at = begin + (at - begin).div_ceil(8) * 8;
            }
            if kind == NESTED {
                self.nested.push(name.clone());
            }
            entries.push(Entry { at: begin, whole });
        }
        self.extensions(bytes.get(..bytes.len().checked_sub(hash)?)?, at, &entries, hash)
    }

    /// What follows the entries: another list may be named, and other places where entries begin.
    fn extensions(&mut self, bytes: &[u8], mut at: usize, entries: &[Entry], hash: usize) -> Option<()> {
        while at < bytes.len() {
            let (name, length) = (bytes.get(at..at + 4)?, number(bytes, at + 4)?);
            at += 8;
            let content = bytes.get(at..at + usize::try_from(length).ok()?)?;
            at += content.len();
            match name {
                b"link" => self.shared = Some(content.get(..hash)?.to_vec()),
                b"IEOT" => {
                    let mut next = 0;
                    for block in content.get(4..)?.chunks(8) {
                        let (begin, count) = (number(block, 0)?, number(block, 4)?);
                        let first = entries.get(next)?;
                        if first.at != usize::try_from(begin).ok()? || !first.whole {
                            return None;
                        }
                        next += usize::try_from(count).ok()?;
                    }
                    if next != entries.len() {
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A number in as many bytes as it needs.
fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0usize;
    for round in 0.. {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if round > 0 {
            value = value.checked_add(1)?;
        }
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 127))?;
        if byte & 128 == 0 {
            break;
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with these entries (kind, path), and what follows them.
    fn list(version: u32, entries: &[(u32, &str)], follows: &[u8]) -> Vec<u8> {
        let count = u32::try_from(entries.len()).unwrap();
        let mut bytes = [b"DIRC".as_slice(), &version.to_be_bytes(), &count.to_be_bytes()].concat();
        let mut before = "";
        for (kind, path) in entries {
            let begin = bytes.len();
            bytes.extend([0; 24]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0; 32]);
            bytes.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
            if version == 4 {
                bytes.push(u8::try_from(before.len()).unwrap());
                before = path;
            }
            bytes.extend(path.as_bytes());
            bytes.push(0);
            while version != 4 && (bytes.len() - begin) % 8 != 0 {
                bytes.push(0);
            }
        }
        [bytes.as_slice(), follows, &[0; 20]].concat()
    }

    fn nested(bytes: &[u8]) -> Option<Vec<String>> {
        let mut list = List::default();
        list.add(bytes, 20)?;
        Some(list.nested.into_iter().map(|path| String::from_utf8(path).unwrap()).collect())
    }

    #[test]
    fn nested_repositories_are_found_in_every_version() {
        let entries = [(0o100_644, "a"), (NESTED, "lib/one"), (0o120_000, "lib/two"), (NESTED, "z")];
        for version in 2..=4 {
            assert_eq!(nested(&list(version, &entries, b"")).unwrap(), ["lib/one", "z"], "{version}");
        }
    }

    #[test]
    fn a_list_that_git_could_read_in_another_way_is_refused() {
        let entries = [(0o100_644, "a"), (0o100_644, "b")];
        let places = |first: u32, count: u32| {
            let words = [12, 1, first, count].map(u32::to_be_bytes);
            [b"IEOT".as_slice(), words.concat().as_slice()].concat()
        };
        assert!(nested(&list(2, &entries, &places(12, 2))).is_some());
        assert!(nested(&list(2, &entries, &places(20, 2))).is_none(), "entries begin elsewhere");
        assert!(nested(&list(2, &entries, &places(12, 1))).is_none(), "there are fewer of them");
        assert!(nested(&list(5, &entries, b"")).is_none(), "a later version");
        let mut lies = list(2, &entries, b"");
        lies[12 + 61] = 9;
        assert!(nested(&lies).is_none(), "a path is longer than it says");
        assert!(nested(&lies[..40]).is_none(), "it ends too early");
    }
}

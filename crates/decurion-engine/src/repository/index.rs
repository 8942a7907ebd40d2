//! The files of a checkout that git knows. Takes git's list of them, as it is on disk; gives their paths, and those at
//! which another repository stands, where git calls itself.
//!
//! The list comes with the repository and may be made to deceive: what git could read in another way is an error.

use std::io::Read as _;

use camino::Utf8Path;

/// The kind of an entry that stands for another repository.
const NESTED: u32 = 0o160_000;
/// The kind of an entry that stands for all that is below a folder.
const FOLDER: u32 = 0o040_000;
const KIND: u32 = 0o170_000;
/// No path is longer.
const LONGEST_PATH: usize = 4096;
/// How many bytes of paths one byte of a list may stand for: entries share the beginnings of their paths.
const MOST_UNFOLDED: usize = 4;

/// The paths of nested repositories; none where there is no list. `hash` is the length of an object's name, `left` how
/// many bytes may still be read. A list that leaves out what is below some folders is an error: git reads the rest
/// from its objects, and repositories may be nested there.
pub(super) fn nested(own: &Utf8Path, hash: usize, left: &mut u64) -> Result<Vec<Vec<u8>>, String> {
    let mut nested = Vec::new();
    let mut sparse = false;
    entries(own, hash, left, &mut |kind, path| {
        sparse |= kind == FOLDER;
        if kind == NESTED {
            nested.push(path.to_vec());
        }
    })?;
    if sparse { Err(not_whole()) } else { Ok(nested) }
}

/// Shows every path in the list. A list that leaves out what is below some folders is an error.
pub(super) fn files(
    own: &Utf8Path,
    hash: usize,
    left: &mut u64,
    look: &mut dyn FnMut(&[u8]),
) -> Result<(), String> {
    let mut sparse = false;
    entries(own, hash, left, &mut |kind, path| {
        sparse |= kind == FOLDER;
        look(path);
    })?;
    if sparse { Err(not_whole()) } else { Ok(()) }
}

/// The first path in the list by which git would write, read or remove a file out of the checkout or in its own folder; none
/// where every path is one of the checkout. Git checks paths when it adds them, and not when it reads a list that is there.
pub(super) fn stray(own: &Utf8Path, hash: usize, left: &mut u64) -> Result<Option<String>, String> {
    let mut stray = None;
    entries(own, hash, left, &mut |kind, path| {
        if stray.is_none() && !is_within(kind, path) {
            stray = Some(String::from_utf8_lossy(path).into_owned());
        }
    })?;
    Ok(stray)
}

/// Whether each name on the way to a path is an ordinary one. A path for all that is below a folder ends with a slash.
fn is_within(kind: u32, path: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").filter(|_| kind == FOLDER).unwrap_or(path);
    let is_odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.eq_ignore_ascii_case(b".git");
    !path.split(|byte| *byte == b'/').any(is_odd)
}

fn entries(
    own: &Utf8Path,
    hash: usize,
    left: &mut u64,
    look: &mut dyn FnMut(u32, &[u8]),
) -> Result<(), String> {
    let Some(bytes) = read(&own.join("index"), left)? else { return Ok(()) };
    let mut list = List { look, shared: None };
    list.add(&bytes, hash).ok_or_else(broken)?;
    if let Some(shared) = list.shared.take() {
        let name: String = shared.iter().map(|byte| format!("{byte:02x}")).collect();
        let bytes = read(&own.join(format!("sharedindex.{name}")), left)?.ok_or_else(broken)?;
        list.add(&bytes, hash).ok_or_else(broken)?;
    }
    Ok(())
}

fn not_whole() -> String {
    "its list of files is not whole (a sparse index)".to_owned()
}

fn broken() -> String {
    "its list of files is not understood".to_owned()
}

fn read(path: &Utf8Path, left: &mut u64) -> Result<Option<Vec<u8>>, String> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(None) };
    if !metadata.is_file() {
        return Err("its list of files is not a file".to_owned());
    }
    if metadata.len() > *left {
        return Err(
            "its list of files, with those of the repositories around it and nested in it, is too long to \
                    be looked through"
                .to_owned(),
        );
    }
    let mut bytes = Vec::new();
    let opened = decurion_tools::open_ordinary(path.as_std_path());
    let read = opened.and_then(|file| file.take(*left).read_to_end(&mut bytes));
    let read = read.map_err(|error| format!("its list of files cannot be read: {error}"))?;
    *left = left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
    Ok(Some(bytes))
}

struct List<'l> {
    /// Is shown the kind and the path of each entry.
    look: &'l mut dyn FnMut(u32, &[u8]),
    /// The name of another list that this one adds to.
    shared: Option<Vec<u8>>,
}

/// Where an entry begins, and whether its path is written out.
struct Entry {
    at: usize,
    whole: bool,
}

impl List<'_> {
    /// Reads one list; none where it is not understood.
    fn add(&mut self, bytes: &[u8], hash: usize) -> Option<()> {
        let (version, count) = (number(bytes, 4)?, number(bytes, 8)?);
        if bytes.get(..4)? != b"DIRC" || !(2..=4).contains(&version) {
            return None;
        }
        let mut at = 12;
        let mut name: Vec<u8> = Vec::new();
        let mut entries = Vec::new();
        let mut unfolded = bytes.len().saturating_mul(MOST_UNFOLDED);
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
            if name.len() + length > LONGEST_PATH {
                return None;
            }
            name.extend(&bytes[at..at + length]);
            unfolded = unfolded.checked_sub(name.len())?;
            at += length + 1;
            // Git goes by the length that stands in the entry, as far as that can be told there.
            if usize::from(flags & 0xFFF) != name.len().min(0xFFF) {
                return None;
            }
            if version != 4 {
                at = begin + (at - begin).div_ceil(8) * 8;
            }
            (self.look)(kind, &name);
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
pub(super) mod tests {
    use super::*;

    /// A list with these entries (kind, path), and what follows them.
    pub(in crate::repository) fn list(version: u32, entries: &[(u32, &str)], follows: &[u8]) -> Vec<u8> {
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
        let mut found = Vec::new();
        let mut look = |kind: u32, path: &[u8]| {
            if kind == NESTED {
                found.push(String::from_utf8(path.to_vec()).unwrap());
            }
        };
        List { look: &mut look, shared: None }.add(bytes, 20)?;
        Some(found)
    }

    #[test]
    fn nested_repositories_are_found_in_every_version() {
        let entries = [(0o100_644, "a"), (NESTED, "lib/one"), (0o120_000, "lib/two"), (NESTED, "z")];
        for version in 2..=4 {
            assert_eq!(nested(&list(version, &entries, b"")).unwrap(), ["lib/one", "z"], "{version}");
        }
    }

    #[test]
    fn paths_that_lead_out_of_the_checkout_are_told() {
        for (kind, path, odd) in [
            (0o100_644, "a/.gitignore", false),
            (0o100_644, "a/..b/c", false),
            (FOLDER, "a/", false),
            (0o100_644, "a/", true),
            (0o100_644, "../a", true),
            (0o100_644, "a/../../b", true),
            (0o100_644, "/a", true),
            (0o100_755, ".git/hooks/post-checkout", true),
            (0o100_644, "a/.GIT/config", true),
            (NESTED, "./a", true),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let own = Utf8Path::from_path(folder.path()).unwrap();
            std::fs::write(own.join("index"), list(2, &[(0o100_644, "a"), (kind, path)], b"")).unwrap();
            let expected = odd.then(|| path.to_owned());
            assert_eq!(stray(own, 20, &mut 1000), Ok(expected), "{path}");
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

    /// Entries may share the beginnings of their paths, so that a short list stands for any amount of text.
    #[test]
    fn list_that_unfolds_to_too_much_is_refused() {
        let unfolding = |first: usize, entries: usize| {
            let count = u32::try_from(entries + 1).unwrap();
            let mut bytes = [b"DIRC".as_slice(), &4_u32.to_be_bytes(), &count.to_be_bytes()].concat();
            for (at, path) in
                std::iter::once(vec![b'a'; first]).chain(vec![b"b".to_vec(); entries]).enumerate()
            {
                bytes.extend([0; 24]);
                bytes.extend(NESTED.to_be_bytes());
                bytes.extend([0; 32]);
                bytes.extend(u16::try_from(first.min(0xFFF)).unwrap().to_be_bytes());
                bytes.push(u8::from(at > 0));
                bytes.extend(path);
                bytes.push(0);
            }
            [bytes.as_slice(), &[0; 20]].concat()
        };
        assert_eq!(nested(&unfolding(200, 100)).unwrap().len(), 101);
        assert!(nested(&unfolding(4096, 1)).is_some());
        assert!(nested(&unfolding(4097, 1)).is_none(), "a path that is too long");
        assert!(nested(&unfolding(4000, 10_000)).is_none(), "too much text");
    }
}

//! Links for terminals that can follow them (OSC 8). Takes the text of a line; gives which parts of it are addresses or places
//! in files, and where each leads: to what it says, and nowhere else.

use std::fmt::Write as _;
use std::ops::Range;

/// The longest address that is made a link.
const LONGEST: usize = 1_000;
/// What ends a link, and begins none.
pub const END: &str = "\x1b]8;;\x1b\\";
/// Endings of names of hosts, which are not those of files.
const DOMAINS: [&str; 7] = ["com", "dev", "internal", "io", "local", "net", "org"];

/// What places in files are relative to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkBase {
    /// The machine that they are on: a terminal may be on another.
    pub host: String,
    pub folder: String,
}

impl LinkBase {
    /// The parts of a line that lead somewhere, in order, with the sequence that begins each.
    pub fn of(&self, line: &str) -> Vec<(Range<usize>, String)> {
        if !line.contains(':') {
            return Vec::new();
        }
        let is_between = |letter: char| letter.is_whitespace() || "\"'`<>()[]{}│".contains(letter);
        let mut found = Vec::new();
        let mut at = 0;
        for word in line.split(is_between) {
            let from = at;
            at += word.len();
            // All that words are split at is ASCII but one.
            at += line[at..].chars().next().map_or(0, char::len_utf8);
            let word = word.trim_end_matches(['.', ',', ';', ':', '!', '?']);
            if let Some(target) = self.target(word) {
                found.push((from..from + word.len(), format!("\x1b]8;;{target}\x1b\\")));
            }
        }
        found
    }

    fn target(&self, word: &str) -> Option<String> {
        if word.len() > LONGEST {
            return None;
        }
        let is_web = ["https://", "http://"].iter().any(|scheme| {
            word.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
                && word.len() > scheme.len()
        });
        if is_web {
            return Some(encoded(word, |byte| byte.is_ascii_graphic()));
        }
        let path = file_of(word)?;
        let folder = self.folder.trim_end_matches('/');
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{folder}/{path}") };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        Some(format!("file://{}{}", encoded(&self.host, is_plain), encoded(&path, is_plain)))
    }
}

/// The file of a place in one: `src/main.rs:18`, `src/main.rs:18:7`.
fn file_of(word: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (before, last) = word.rsplit_once(':')?;
    if !is_number(last) {
        return None;
    }
    let path = match before.rsplit_once(':') {
        Some((path, line)) if is_number(line) => path,
        _ => before,
    };
    let name = path.rsplit('/').next()?;
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    let is_file = ending.is_some_and(|ending| {
        ending.starts_with(|letter: char| letter.is_ascii_alphabetic()) && !DOMAINS.contains(&ending)
    });
    (is_file && !path.contains(':') && !path.starts_with('~')).then_some(path)
}

/// The text with every byte that is not plain as `%` and two digits.
fn encoded(text: &str, is_plain: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which parts of a line are links, and to where.
    fn links(line: &str) -> Vec<(String, String)> {
        let links = LinkBase { host: "box".to_owned(), folder: "/w/my project".to_owned() };
        let target = |begin: &str| begin["\x1b]8;;".len()..begin.len() - 2].to_owned();
        links.of(line).into_iter().map(|(range, begin)| (line[range].to_owned(), target(&begin))).collect()
    }

    #[test]
    fn addresses_and_places_in_files_lead_to_what_they_say() {
        for (line, expected) in [
            (
                "see https://ui.perfetto.dev, now",
                vec![("https://ui.perfetto.dev", "https://ui.perfetto.dev")],
            ),
            ("(http://a.b/c?d=e&f#g)", vec![("http://a.b/c?d=e&f#g", "http://a.b/c?d=e&f#g")]),
            (
                "at src/main.rs:18:7: error",
                vec![("src/main.rs:18:7", "file://box/w/my%20project/src/main.rs")],
            ),
            ("`/etc/x.conf:3`", vec![("/etc/x.conf:3", "file://box/etc/x.conf")]),
            (
                "日本 src/日.rs:1 and https://日本.jp/",
                vec![
                    ("src/日.rs:1", "file://box/w/my%20project/src/%E6%97%A5.rs"),
                    ("https://日本.jp/", "https://%E6%97%A5%E6%9C%AC.jp/"),
                ],
            ),
            ("18:07, localhost:8080, db.local:5432, v1.2:3, ~/x.rs:1, Note:5", vec![]),
            ("javascript:alert(1) file:///etc/passwd data:x,y ssh://a.b:22", vec![]),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(text, target)| (text.to_owned(), target.to_owned())).collect();
            assert_eq!(links(line), expected, "{line}");
        }
        assert_eq!(links(&format!("https://{}", "a".repeat(LONGEST))), []);
    }

    #[test]
    fn nothing_in_a_text_ends_a_link_early() {
        for text in ["https://a\u{1b}\\b", "https://a\u{7}b", "https://a\u{9c}b", "src/\u{1b}]8;;x.rs:1"] {
            for (_, target) in links(text) {
                assert!(!target.contains(char::is_control), "{target:?}");
            }
        }
    }
}

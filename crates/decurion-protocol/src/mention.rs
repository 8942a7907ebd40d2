//! Files that a prompt names: `@path`, `@"a path"`, `@path#L10-20`. Takes the text of a prompt; gives what is named in it.

/// A name in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The path as it is written, without sign and quotes.
    pub path: String,
    /// The first and the last line, where only these are meant.
    pub lines: Option<(u64, u64)>,
}

/// Whether an at sign here begins a name: one inside of an address does not.
pub fn begins(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    before.is_none_or(|letter| letter.is_whitespace() || "([{<\"'`,;:（「『".contains(letter))
}

/// What a prompt names, each as the names that it may be, the longest first: what stands behind a name in a sentence is
/// no part of it.
pub fn mentions(text: &str) -> Vec<Vec<Mention>> {
    let signs = text.match_indices('@').map(|(at, _)| at).filter(|at| begins(text, *at));
    signs.filter_map(|at| named(&text[at + 1..])).collect()
}

/// What an at sign before this names.
fn named(rest: &str) -> Option<Vec<Mention>> {
    if let Some(quoted) = rest.strip_prefix('"') {
        let (path, _) = quoted.split_once('"')?;
        let is_path = !path.is_empty() && !path.contains('\n');
        return is_path.then(|| vec![Mention { path: path.to_owned(), lines: None }]);
    }
    let mut word = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
    let mut names = Vec::new();
    while !word.is_empty() {
        names.extend(with_lines(word));
        names.push(Mention { path: word.to_owned(), lines: None });
        let Some(shorter) = word.strip_suffix(|sign: char| ".,;:!?)]}>'\"`）」』。、".contains(sign))
        else {
            break;
        };
        word = shorter;
    }
    (!names.is_empty()).then_some(names)
}

fn with_lines(word: &str) -> Option<Mention> {
    let (path, lines) = word.rsplit_once("#L")?;
    let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
    let last = last.strip_prefix('L').unwrap_or(last);
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (!path.is_empty() && 0 < first && first <= last)
        .then(|| Mention { path: path.to_owned(), lines: Some((first, last)) })
}

/// A name as it is written in a prompt.
pub fn written(path: &str) -> String {
    if path.contains(char::is_whitespace) { format!("@\"{path}\"") } else { format!("@{path}") }
}

/// How the file name of an image ends, in small letters.
const IMAGES: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];

/// Whether a path looks like that of an image.
pub fn is_image(path: &str) -> bool {
    let end = path.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    end.is_some_and(|end| IMAGES.contains(&end.as_str()))
}

/// The images of a pasted text that is nothing but their paths, as a terminal writes files that are dropped on it: quoted,
/// with backslashes, or as an address.
pub fn dropped_images(text: &str) -> Option<Vec<String>> {
    let paths = words(text.trim())?.into_iter().map(|word| match word.strip_prefix("file://") {
        Some(address) => unescaped(address),
        None => Some(word),
    });
    let paths: Vec<String> = paths.collect::<Option<_>>()?;
    let is_ours = |path: &String| (path.starts_with('/') || path.starts_with("~/")) && is_image(path);
    // A quotation mark cannot be written in a name.
    let fits = |path: &String| is_ours(path) && !path.contains(|sign: char| sign == '"' || sign.is_control());
    (!paths.is_empty() && paths.iter().all(fits)).then_some(paths)
}

/// The words of a line as a shell reads them, without anything that it would do.
fn words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            quote @ ('\'' | '"') => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        end if end == quote => break,
                        '\\' if quote == '"' => word.push(letters.next()?),
                        inner => word.push(inner),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next()?),
            blank if blank.is_whitespace() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Some(words)
}

/// The path of a `file:` address, with `%20` and the like in their place.
fn unescaped(address: &str) -> Option<String> {
    let path = address.strip_prefix("localhost").unwrap_or(address);
    let (mut bytes, mut rest) = (Vec::new(), path.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_names_files() {
        for (text, expected) in [
            ("look at @src/main.rs and @docs/", "src/main.rs | docs/"),
            ("(see @a.rs), or @\"my file.md\".", "a.rs), a.rs) a.rs | my file.md"),
            ("@a.rs#L10-20 @b.rs#L7, please", "a.rs:10-20 a.rs#L10-20 | b.rs#L7, b.rs:7-7 b.rs#L7"),
            ("@a#L0 @a#L9-3", "a#L0 | a#L9-3"),
            ("me@example.org wrote @ and @\"", ""),
            ("全角「@日本.md」", "日本.md」 日本.md"),
        ] {
            let word = |mention: &Mention| match mention.lines {
                Some((first, last)) => format!("{}:{first}-{last}", mention.path),
                None => mention.path.clone(),
            };
            let found =
                mentions(text).into_iter().map(|names| names.iter().map(word).collect::<Vec<_>>().join(" "));
            assert_eq!(found.collect::<Vec<_>>().join(" | "), expected, "{text:?}");
        }
    }

    #[test]
    fn a_pasted_path_of_an_image_is_known_however_a_terminal_writes_it() {
        for (text, expected) in [
            ("/tmp/a.png", Some(vec!["/tmp/a.png"])),
            ("'/tmp/my shot.PNG' ", Some(vec!["/tmp/my shot.PNG"])),
            ("/tmp/my\\ shot.jpg /tmp/b.gif", Some(vec!["/tmp/my shot.jpg", "/tmp/b.gif"])),
            ("\"/tmp/a b.webp\"", Some(vec!["/tmp/a b.webp"])),
            ("file:///tmp/a%20b.png", Some(vec!["/tmp/a b.png"])),
            ("~/shot.jpeg", Some(vec!["~/shot.jpeg"])),
            ("look at /tmp/a.png", None),
            ("a.png", None),
            ("/tmp/a.rs", None),
            ("'/tmp/a.png", None),
            ("file:///tmp/%2", None),
            ("", None),
        ] {
            let expected = expected.map(|paths| paths.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(dropped_images(text), expected, "{text:?}");
        }
    }
}

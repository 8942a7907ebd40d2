//! Paths as text. Takes what a model wrote and where it wrote it; gives an absolute path without `.` or
//! `..`, without asking the file system, so that permission and the tool speak of the same path.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use crate::{InputError, Surroundings};

/// Titles are cut here.
const TITLE_CHARS: usize = 200;

/// The absolute, lexically normalised path that a field of an input means.
pub fn absolute(
    tool: &str,
    field: &str,
    text: &str,
    around: &Surroundings,
) -> Result<Utf8PathBuf, InputError> {
    if text.is_empty() {
        return Err(InputError::new(tool, format!("`{field}` is empty; give a path")));
    }
    if text.contains('\0') {
        return Err(InputError::new(tool, format!("`{field}` has a NUL character, which no path has")));
    }
    Ok(normalised(&joined(text, around)))
}

fn joined(text: &str, around: &Surroundings) -> Utf8PathBuf {
    if let Some(home) = &around.home {
        if text == "~" {
            return home.clone();
        }
        if let Some(rest) = text.strip_prefix("~/") {
            // A second slash would make it absolute and lose the home.
            return home.join(rest.trim_start_matches('/'));
        }
    }
    around.cwd.join(text)
}

/// The same path without `.`, `..` and doubled slashes. `..` goes up one name, whatever that name links to.
pub fn normalised(path: &Utf8Path) -> Utf8PathBuf {
    let mut result = Utf8PathBuf::with_capacity(path.as_str().len());
    for component in path.components() {
        match component {
            Utf8Component::CurDir => {}
            // At the root `pop` does nothing, as in the file system.
            Utf8Component::ParentDir => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// Whether a path is one of these directories or below one.
pub fn is_inside(path: &Utf8Path, directories: &[Utf8PathBuf]) -> bool {
    directories.iter().any(|directory| path.starts_with(directory))
}

/// A path as people and models are shown it: relative to the working directory where it is inside.
pub fn shown<'a>(path: &'a Utf8Path, around: &Surroundings) -> &'a str {
    match path.strip_prefix(&around.cwd) {
        Ok(rest) if rest.as_str().is_empty() => ".",
        Ok(rest) => rest.as_str(),
        Err(_) => path.as_str(),
    }
}

/// One line for people: control characters made visible, length bounded.
pub fn title(verb: &str, what: &str) -> String {
    let mut line = String::with_capacity(verb.len() + what.len().min(TITLE_CHARS) + 1);
    line.push_str(verb);
    line.push(' ');
    for (count, character) in what.chars().enumerate() {
        if count == TITLE_CHARS {
            line.push('…');
            break;
        }
        if character.is_control() || is_invisible(character) {
            line.extend(character.escape_unicode());
        } else {
            line.push(character);
        }
    }
    line
}

/// Characters that show nothing or turn the direction of writing, and so could disguise a path.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around() -> Surroundings {
        Surroundings {
            cwd: "/srv/project".into(),
            home: Some("/home/ann".into()),
            directories: vec!["/srv/project".into()],
        }
    }

    #[test]
    fn a_path_has_one_absolute_spelling() {
        let cases = [
            ("a.rs", "/srv/project/a.rs"),
            ("./a/./b//c", "/srv/project/a/b/c"),
            ("../x", "/srv/x"),
            ("a/../../../../..", "/"),
            ("/etc//passwd", "/etc/passwd"),
            ("/../../etc", "/etc"),
            ("~", "/home/ann"),
            ("~/x/../y", "/home/ann/y"),
            ("~//etc", "/home/ann/etc"),
            ("~bob/x", "/srv/project/~bob/x"),
            ("a/", "/srv/project/a"),
        ];
        for (text, expected) in cases {
            assert_eq!(absolute("T", "f", text, &around()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn no_path_is_no_path() {
        for text in ["", "a\0b"] {
            assert!(absolute("T", "f", text, &around()).unwrap_err().to_string().contains("`f`"));
        }
    }

    #[test]
    fn inside_is_by_whole_names() {
        let directories = ["/srv/project".into()];
        assert!(is_inside("/srv/project".into(), &directories));
        assert!(is_inside("/srv/project/a".into(), &directories));
        assert!(!is_inside("/srv/project2".into(), &directories));
        assert!(!is_inside("/srv".into(), &directories));
    }

    #[test]
    fn titles_are_short_single_honest_lines() {
        assert_eq!(shown("/srv/project/a/b".into(), &around()), "a/b");
        assert_eq!(shown("/srv/project".into(), &around()), ".");
        assert_eq!(shown("/srv/projects".into(), &around()), "/srv/projects");
        assert_eq!(title("Read", "a\nb\u{202e}c"), "Read a\\u{a}b\\u{202e}c");
        assert_eq!(title("Read", &"x".repeat(999)).chars().count(), 5 + TITLE_CHARS + 1);
    }
}

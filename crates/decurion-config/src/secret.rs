//! Secrets. Takes a key from the environment, a settings file or a file of its own, gives a value that
//! prints as its placeholder everywhere. A keyring is not asked in this version: it would cost start-up
//! time, and the environment and files cover every setting that is known.

use std::fmt;
use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;

use crate::read::{self, ReadError};
use crate::redact::PLACEHOLDER;

/// A text that is never shown: `Debug` gives a placeholder, and there is no `Display` and no `Serialize`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Takes a text that a person has typed, if it can be sent; else what is wrong with it.
    pub fn for_header(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        check_header_value(text).map(|()| Self::new(text))
    }

    /// The text itself. Call this where it is put on the wire and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PLACEHOLDER)
    }
}

/// Whether a text can be sent as (part of) a header: visible ASCII and spaces inside. Says what is wrong
/// without repeating any of it.
pub(crate) fn check_header_value(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        Err("is empty")
    } else if text.len() > MAX_SECRET_BYTES {
        Err("is too long")
    } else if !text.bytes().all(|byte| (0x20..0x7f).contains(&byte) || byte == b'\t') {
        Err("holds characters that cannot be sent in a header")
    } else {
        Ok(())
    }
}

const MAX_SECRET_BYTES: usize = 16 * 1024;

/// Reads a secret from a file of its own: the whole text without the blanks around it. Also says whether
/// others than its owner may read the file.
pub(crate) fn from_file(path: &Utf8Path) -> Result<(Secret, bool), String> {
    let file = read::open(path)
        .and_then(|file| file.ok_or_else(|| ReadError::Io(std::io::ErrorKind::NotFound.into())))
        .map_err(|error| format!("the file that holds its key cannot be used ({error}): {path}"))?;
    let exposed = file.metadata().is_ok_and(|metadata| metadata.mode() & 0o077 != 0);
    let bytes = read::bounded(file, MAX_SECRET_BYTES)
        .map_err(|error| format!("the file that holds its key cannot be used ({error}): {path}"))?;
    let text =
        String::from_utf8(bytes).map_err(|_| format!("the file that holds its key is not text: {path}"))?;
    let text = text.trim();
    check_header_value(text).map_err(|reason| format!("the key in this file {reason}: {path}"))?;
    Ok((Secret::new(text), exposed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_shows_nothing() {
        let secret = Secret::new("canary-9f8e7d");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "[redacted] Some([redacted])");
        assert_eq!(secret.expose(), "canary-9f8e7d");
    }

    #[test]
    fn a_file_gives_its_text_and_says_who_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("key");
        for (content, mode, expected) in [
            ("k-1234\n", 0o600, Ok(("k-1234", false))),
            (" k-1234 ", 0o640, Ok(("k-1234", true))),
            ("\n", 0o600, Err("is empty")),
            ("canary\ncanary", 0o600, Err("cannot be sent")),
            ("canaryé", 0o600, Err("cannot be sent")),
        ] {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match (from_file(&path), expected) {
                (Ok((secret, exposed)), Ok(wanted)) => assert_eq!((secret.expose(), exposed), wanted),
                (Err(error), Err(words)) => {
                    assert!(error.contains(words), "{error}");
                    assert!(!error.contains("canary"), "{error}");
                }
                (got, wanted) => panic!("{got:?} instead of {wanted:?}"),
            }
        }
        assert!(from_file(&path.join("none")).unwrap_err().contains("cannot be used"));
        assert!(
            from_file(Utf8Path::from_path(folder.path()).unwrap()).unwrap_err().contains("ordinary file")
        );
    }
}

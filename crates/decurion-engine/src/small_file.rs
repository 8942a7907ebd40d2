//! Small files, as git has many. Takes a path, gives the text; the look at the disk is noted.

use std::io::Read as _;

use camino::Utf8Path;

/// The most that is read of a small file.
const MOST_BYTES: u64 = 256 << 10;

/// The text of a small file; none for everything else.
pub(crate) fn small(path: &Utf8Path) -> Option<String> {
    crate::footprint::note_content(path.as_std_path());
    let file = crate::footprint::told(path, decurion_tools::open_ordinary(path.as_std_path())).ok()?;
    if file.metadata().ok()?.len() > MOST_BYTES {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

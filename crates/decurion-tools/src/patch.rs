//! What changed between two texts. Takes both, gives hunks with three lines of context around each change,
//! in the shape that programs reading results know.

use std::time::Duration;

use serde_json::{Value, json};
use similar::{ChangeTag, DiffOp, TextDiff};

/// Lines around a change.
const CONTEXT: usize = 3;
/// A patch of more lines than this is left out: whoever wants it has both files.
const MAX_LINES: usize = 4_000;
/// Nor are texts compared, or lines carried, beyond these sizes.
const MAX_TEXT_BYTES: usize = 4 << 20;
const MAX_PATCH_BYTES: usize = 256 << 10;
/// After this the difference found is no longer the smallest, only a correct one.
const EFFORT: Duration = Duration::from_millis(250);

/// The hunks as `[{oldStart, oldLines, newStart, newLines, lines}]`.
pub(crate) fn structured_patch(old: &str, new: &str) -> Value {
    if old.len() + new.len() > MAX_TEXT_BYTES {
        return json!([]);
    }
    let diff = TextDiff::configure().timeout(EFFORT).diff_lines(old, new);
    let groups = diff.grouped_ops(CONTEXT);
    let lines: usize = groups.iter().flatten().map(|op| op.old_range().len() + op.new_range().len()).sum();
    if lines > MAX_LINES {
        return json!([]);
    }
    let mut room = MAX_PATCH_BYTES;
    let hunks: Option<Vec<Value>> = groups.iter().map(|group| hunk(&diff, group, &mut room)).collect();
    hunks.map_or_else(|| json!([]), Value::Array)
}

/// How many lines the change from one content to the other adds and takes away; none of what is not text.
pub fn line_counts(old: &[u8], new: &[u8]) -> (u64, u64) {
    let (Ok(old), Ok(new)) = (std::str::from_utf8(old), std::str::from_utf8(new)) else { return (0, 0) };
    if old.len() + new.len() > MAX_TEXT_BYTES {
        return (new.lines().count() as u64, old.lines().count() as u64);
    }
    let diff = TextDiff::configure().timeout(EFFORT).diff_lines(old, new);
    let count = |tag: ChangeTag| diff.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
    (count(ChangeTag::Insert), count(ChangeTag::Delete))
}

/// One hunk; none where it does not fit any more.
fn hunk(diff: &TextDiff<'_, '_, str>, group: &[DiffOp], room: &mut usize) -> Option<Value> {
    let (first, last) = (group.first()?, group.last()?);
    let old = first.old_range().start..last.old_range().end;
    let new = first.new_range().start..last.new_range().end;
    let mut lines = Vec::new();
    for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
        let sign = match change.tag() {
            ChangeTag::Equal => ' ',
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
        };
        let text = change.value();
        *room = room.checked_sub(text.len())?;
        lines.push(format!("{sign}{}", text.strip_suffix('\n').unwrap_or(text)));
        if change.missing_newline() {
            lines.push("\\ No newline at end of file".to_owned());
        }
    }
    Some(json!({
        "oldStart": old.start + 1, "oldLines": old.len(),
        "newStart": new.start + 1, "newLines": new.len(),
        "lines": lines,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_have_context_and_counts() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
        assert_eq!(
            structured_patch(old, new),
            json!([{
                "oldStart": 2, "oldLines": 7, "newStart": 2, "newLines": 7,
                "lines": [" 2", " 3", " 4", "-5", "+five", " 6", " 7", " 8"],
            }])
        );
        assert_eq!(structured_patch(old, old), json!([]));
        assert_eq!(
            structured_patch("a", "b\n"),
            json!([{
                "oldStart": 1, "oldLines": 1, "newStart": 1, "newLines": 1,
                "lines": ["-a", "\\ No newline at end of file", "+b"],
            }])
        );
    }

    #[test]
    fn lines_are_counted_by_what_changes() {
        let count = |old: &[u8], new: &[u8]| line_counts(old, new);
        assert_eq!(count(b"", b""), (0, 0));
        assert_eq!(count(b"a\nb\n", b"a\nb\n"), (0, 0));
        assert_eq!(count(b"", b"a\nb"), (2, 0));
        assert_eq!(count(b"a\nb\nc\n", b"a\nc\n"), (0, 1));
        assert_eq!(count(b"a\nb\n", b"a\nx\ny\n"), (2, 1));
        assert_eq!(count(b"a\n\xff", b"a\n"), (0, 0));
        let long = "x\n".repeat(MAX_TEXT_BYTES);
        assert_eq!(line_counts(long.as_bytes(), b"y\n"), (1, MAX_TEXT_BYTES as u64));
    }

    #[test]
    fn a_huge_patch_is_left_out() {
        let old = "x\n".repeat(MAX_LINES);
        assert_eq!(structured_patch(&old, &old.replace('x', "y")), json!([]));
        assert_eq!(structured_patch(&"x".repeat(MAX_PATCH_BYTES), "y"), json!([]));
        assert_eq!(structured_patch(&"x\n".repeat(MAX_TEXT_BYTES), "y"), json!([]));
    }
}

//! A change of a file as lines. Takes the change that a tool reports, the one that a call would make, or two texts;
//! gives numbered lines with `+` and `-`, in the colours of the file's language, and says how many are left out.

use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use serde_json::Value;
use similar::{Algorithm, ChangeTag, DiffOp, TextDiff};

use crate::code::Highlight;
use crate::text::{one_line, visible, width, wrap};
use crate::theme::Theme;

/// How many lines of a change are kept.
const MOST_KEPT: usize = 2_000;
/// How many lines around a change are shown.
const CONTEXT: usize = 3;
/// Texts that differ in more lines than this are not compared line by line: the effort grows with the square, and a
/// time limit would show the same change differently each time it is drawn.
const MOST_COMPARED: usize = 2_000;
/// How many characters of one line are shown where all is shown.
const MOST_IN_LINE: usize = 20_000;
/// With less room than this for the text the numbers are left out.
const LEAST_ROOM: usize = 24;

/// A piece of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// The number of its first line, before and after.
    pub start: (u64, u64),
    /// Its lines, each with ` `, `+` or `-` in front.
    pub lines: Vec<String>,
}

/// What was changed in one file, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileChange {
    /// The file; its name says which language it is.
    pub path: String,
    /// The pieces, or as many of them as are kept.
    pub hunks: Vec<Hunk>,
    /// How many lines are added in all.
    pub added: usize,
    /// How many are removed.
    pub removed: usize,
    /// How many lines are not kept.
    pub missing: usize,
    /// Whether the lines' numbers are those of the file.
    pub numbered: bool,
    /// Whether it is made in every place where the text stands.
    pub everywhere: bool,
    /// What becomes of which cell, where it is about one of a notebook: its lines alone do not say that.
    pub cell: Option<String>,
}

impl FileChange {
    /// From one text of a file to another.
    pub fn between(path: &str, old: &str, new: &str) -> Self {
        Self { numbered: true, ..Self::of(path, compared(old, new)) }
    }

    /// What a tool says that it changed; none if it says nothing of it.
    pub fn reported(structured: &Value) -> Option<Self> {
        let text = |name: &str| structured[name].as_str();
        if let (Some(path), Some(new)) = (text("notebook_path"), text("new_source")) {
            // A cell has no place in the file that a person would know.
            let mode = CellMode::of(structured);
            let new = if mode == CellMode::Delete { "" } else { new };
            let hunks = compared(text("old_source").unwrap_or_default(), new);
            return Some(Self { cell: mode.done(text("cell_id")), ..Self::of(path, hunks) });
        }
        let path = text("filePath")?;
        let mut hunks = patch(&structured["structuredPatch"]);
        if hunks.is_empty() && text("type") == Some("create") {
            hunks = compared("", text("content").unwrap_or_default());
        }
        (!hunks.is_empty()).then(|| Self { numbered: true, ..Self::of(path, hunks) })
    }

    /// What git says is changed, file by file, from its unified form.
    pub fn of_diff(text: &str) -> Vec<Self> {
        let mut changes: Vec<Self> = Vec::new();
        let mut hunks: Vec<Hunk> = Vec::new();
        let mut about = None::<(String, Option<String>)>;
        let mut left = (0, 0);
        let mut end = |about: &mut Option<(String, Option<String>)>, hunks: &mut Vec<Hunk>| {
            if let Some((path, cell)) = about.take() {
                changes.push(Self { numbered: true, cell, ..Self::of(&path, std::mem::take(hunks)) });
            }
        };
        for line in text.lines() {
            if left != (0, 0) || line.starts_with('\\') {
                left.0 -= u64::from(line.starts_with(['-', ' ']) || line.is_empty()).min(left.0);
                left.1 -= u64::from(line.starts_with(['+', ' ']) || line.is_empty()).min(left.1);
                hunks.last_mut().into_iter().for_each(|hunk| hunk.lines.push(line.to_owned()));
            } else if let Some(names) = line.strip_prefix("diff --git ") {
                end(&mut about, &mut hunks);
                // Both halves are the same unless it was renamed, which its own lines say.
                let name = names.rsplit_once(" b/").map_or(names, |(_, name)| name);
                about = Some((name.to_owned(), None));
            } else if let Some((start, lengths)) = Hunk::head(line) {
                left = lengths;
                hunks.push(Hunk { start, lines: Vec::new() });
            } else if let Some((_, note)) = &mut about
                && ["new file", "deleted file", "rename from", "old mode", "new mode", "Binary files"]
                    .iter()
                    .any(|word| line.starts_with(word))
            {
                *note = Some(note.take().map_or_else(|| line.to_owned(), |note| format!("{note}, {line}")));
            }
        }
        end(&mut about, &mut hunks);
        changes
    }

    /// What a call with this input would change; none if it is not one that changes a file. A patch of the file has its
    /// lines and their numbers; without one the texts of the input are compared.
    pub fn asked(tool: &str, input: &Value, lines: Option<&Value>) -> Option<Self> {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let edit = |edit: &Value| compared(&text(edit, "old_string"), &text(edit, "new_string"));
        let is_true = |value: &Value| value["replace_all"].as_bool() == Some(true);
        let path = text(input, if tool == "NotebookEdit" { "notebook_path" } else { "file_path" });
        let hunks = lines.map(patch).unwrap_or_default();
        if !hunks.is_empty() {
            return Some(Self { numbered: true, everywhere: is_true(input), ..Self::of(&path, hunks) });
        }
        Some(match tool {
            "Edit" => Self { everywhere: is_true(input), ..Self::of(&path, edit(input)) },
            "MultiEdit" => {
                let edits = input["edits"].as_array().map(Vec::as_slice).unwrap_or_default();
                let hunks = edits.iter().flat_map(edit).collect();
                Self { everywhere: edits.iter().any(is_true), ..Self::of(&path, hunks) }
            }
            "Write" => Self::between(&path, "", &text(input, "content")),
            "NotebookEdit" => {
                let mode = CellMode::of(input);
                let new = if mode == CellMode::Delete { String::new() } else { text(input, "new_source") };
                let cell = Some(mode.asked(input["cell_id"].as_str()));
                Self { cell, ..Self::of(&path, compared("", &new)) }
            }
            _ => return None,
        })
    }

    fn of(path: &str, hunks: Vec<Hunk>) -> Self {
        let count = |sign: char| {
            hunks.iter().flat_map(|hunk| &hunk.lines).filter(|line| line.starts_with(sign)).count()
        };
        let (added, removed) = (count('+'), count('-'));
        let mut change = Self { path: path.to_owned(), added, removed, ..Self::default() };
        change.hunks = hunks;
        change.keep(MOST_KEPT);
        change
    }

    /// Leaves out what is beyond so many lines.
    fn keep(&mut self, most: usize) {
        let mut left = most;
        for hunk in &mut self.hunks {
            self.missing += hunk.lines.len().saturating_sub(left);
            hunk.lines.truncate(left);
            left -= hunk.lines.len();
        }
        self.hunks.retain(|hunk| !hunk.lines.is_empty());
    }

    /// How much is added and removed, in their colours: ` +3 −1`.
    pub fn counts(&self, theme: &Theme) -> Vec<Span<'static>> {
        let mut spans = Vec::new();
        if self.added > 0 {
            spans.push(Span::styled(format!(" +{}", self.added), theme.added));
        }
        if self.removed > 0 {
            spans.push(Span::styled(format!(" −{}", self.removed), theme.removed));
        }
        spans
    }

    /// The change as rows of this width, so many at most and one that says what is missing, with this hint behind it.
    pub fn lines(&self, theme: &Theme, columns: usize, most: usize, hint: &str) -> Vec<Line<'static>> {
        crate::fault_point::pass("diff");
        let mut page = DiffRows::new(self, theme, columns.max(2), most.max(1));
        if let Some(cell) = &self.cell {
            page.say(cell);
        }
        if self.everywhere {
            page.say("in every place where this stands:");
        }
        for (at, hunk) in self.hunks.iter().enumerate() {
            if at > 0 && !page.is_full() {
                page.say("⋮");
            }
            page.hunk(hunk);
        }
        page.finish(self.missing, hint)
    }
}

impl Hunk {
    /// Where a piece begins and how many lines it has, before and after: `@@ -1,2 +3,4 @@`.
    fn head(line: &str) -> Option<((u64, u64), (u64, u64))> {
        let (old, new) = line.strip_prefix("@@ -")?.split_once(" @@")?.0.split_once(" +")?;
        let range = |text: &str| {
            let (start, length) = text.split_once(',').unwrap_or((text, "1"));
            Some((start.parse().ok()?, length.parse().ok()?))
        };
        let ((old, removed), (new, added)) = (range(old)?, range(new)?);
        Some(((old, new), (removed, added)))
    }
}

/// What a call does to a cell of a notebook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellMode {
    Replace,
    Insert,
    Delete,
}

impl CellMode {
    /// As a call says it, or its result. Nothing said is the same as for the tool itself.
    fn of(value: &Value) -> Self {
        match value["edit_mode"].as_str() {
            Some("insert") => Self::Insert,
            Some("delete") => Self::Delete,
            _ => Self::Replace,
        }
    }

    /// What would become of this cell.
    fn asked(self, cell: Option<&str>) -> String {
        let cell = cell.map(one_line);
        match (self, cell) {
            (Self::Insert, Some(cell)) => format!("inserts a cell after {cell}"),
            (Self::Insert, None) => "inserts a cell at the beginning".to_owned(),
            (Self::Replace, Some(cell)) => format!("replaces cell {cell}"),
            (Self::Delete, Some(cell)) => format!("deletes cell {cell}"),
            (Self::Replace, None) => "replaces a cell that it does not name".to_owned(),
            (Self::Delete, None) => "deletes a cell that it does not name".to_owned(),
        }
    }

    /// What became of this cell; none where the result does not name it.
    fn done(self, cell: Option<&str>) -> Option<String> {
        let cell = one_line(cell?);
        Some(match self {
            Self::Insert => format!("inserted cell {cell}"),
            Self::Replace => format!("replaced cell {cell}"),
            Self::Delete => format!("deleted cell {cell}"),
        })
    }
}

/// Rows that are being filled.
struct DiffRows<'a> {
    theme: &'a Theme,
    path: &'a str,
    columns: usize,
    most: usize,
    /// How wide the numbers are; none are shown where there is no room.
    numbers: usize,
    rows: Vec<Line<'static>>,
    /// How many lines of the change found no place.
    missing: usize,
}

impl<'a> DiffRows<'a> {
    fn new(change: &'a FileChange, theme: &'a Theme, columns: usize, most: usize) -> Self {
        let last = |hunk: &Hunk| hunk.start.0.max(hunk.start.1).saturating_add(hunk.lines.len() as u64);
        let wide = change.hunks.iter().map(last).max().unwrap_or(0).to_string().len();
        let fits = change.numbered && columns >= wide + LEAST_ROOM;
        let numbers = if fits { wide } else { 0 };
        Self { theme, path: &change.path, columns, most, numbers, rows: Vec::new(), missing: 0 }
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= self.most
    }

    /// A word of ours between the lines.
    fn say(&mut self, words: &str) {
        let shown = crate::text::cut(words, self.columns).into_owned();
        self.rows.push(Line::styled(shown, self.theme.faint));
    }

    fn hunk(&mut self, hunk: &Hunk) {
        let (mut old, mut new) = hunk.start;
        // What stands above is not known: each piece is read as if it began in plain code.
        let mut highlight = Highlight::of_file(self.path, self.theme);
        for line in &hunk.lines {
            let (sign, text) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
            if self.is_full() {
                self.missing += usize::from(sign != "\\");
                continue;
            }
            match sign {
                "+" => self.line(new, sign, self.theme.added, text, Some(&mut highlight)),
                "-" => self.line(old, sign, self.theme.removed, text, None),
                "\\" => self.say(&one_line(line)),
                // A line without a sign is shown whole.
                _ => {
                    let text = if sign == " " { text } else { line };
                    self.line(new, " ", Style::default(), text, Some(&mut highlight));
                }
            }
            old = old.saturating_add(u64::from(sign != "+" && sign != "\\"));
            new = new.saturating_add(u64::from(sign != "-" && sign != "\\"));
        }
    }

    /// One line, as many rows as it takes. What is removed has one colour, so that nothing in it looks new.
    fn line(&mut self, number: u64, sign: &str, style: Style, text: &str, highlight: Option<&mut Highlight>) {
        let wide = self.numbers;
        let lead = if wide > 0 { format!("{number:>wide$} ") } else { String::new() };
        let mark = format!("{sign} ");
        let taken = width(&lead) + width(&mark);
        let room = self.columns.saturating_sub(taken).max(1);
        let left = self.most - self.rows.len();
        let (text, is_cut) = beginning(text, room.saturating_mul(left).min(MOST_IN_LINE));
        let text = visible(text);
        let spans = match highlight {
            Some(highlight) => highlight.line_over(&text, style),
            None => vec![Span::styled(text.into_owned(), style)],
        };
        let gap = " ".repeat(taken);
        let mut rows = wrap(Line::from(spans), room, "");
        let is_cut = is_cut || rows.len() > left;
        rows.truncate(left);
        if let Some(last) = rows.last_mut().filter(|_| is_cut) {
            mark_cut(last, room, self.theme.faint);
        }
        for (at, row) in rows.into_iter().enumerate() {
            let mut spans = Vec::with_capacity(row.spans.len() + 2);
            if at == 0 {
                spans.push(Span::styled(lead.clone(), self.theme.faint));
                spans.push(Span::styled(mark.clone(), style));
            } else {
                spans.push(Span::raw(gap.clone()));
            }
            spans.extend(row.spans);
            spans.retain(|span| !span.content.is_empty());
            self.rows.push(Line::from(spans));
        }
    }

    fn finish(mut self, unkept: usize, hint: &str) -> Vec<Line<'static>> {
        let missing = self.missing + unkept;
        if missing > 0 {
            let plural = if missing == 1 { "line" } else { "lines" };
            self.say(&format!("… {missing} more {plural}{hint}"));
        }
        self.rows
    }
}

/// Marks at the end of a row that the line continues.
fn mark_cut(row: &mut Line<'static>, room: usize, style: Style) {
    while row.width() + 1 > room
        && let Some(last) = row.spans.last_mut()
    {
        if last.content.to_mut().pop().is_none() {
            row.spans.pop();
        }
    }
    row.spans.push(Span::styled("…", style));
}

/// So many characters of a text, and whether there are more.
fn beginning(text: &str, most: usize) -> (&str, bool) {
    match text.char_indices().nth(most) {
        Some((at, _)) => (&text[..at], true),
        None => (text, false),
    }
}

/// The pieces that a tool's result lists. They come from a record that anybody could have written.
fn patch(pieces: &Value) -> Vec<Hunk> {
    let hunk = |hunk: &Value| {
        let number = |name: &str| hunk[name].as_u64().unwrap_or(1);
        let lines = hunk["lines"].as_array()?.iter().filter_map(|line| line.as_str().map(str::to_owned));
        Some(Hunk { start: (number("oldStart"), number("newStart")), lines: lines.collect() })
    };
    pieces.as_array().map(|pieces| pieces.iter().filter_map(hunk).collect()).unwrap_or_default()
}

/// The difference of two texts, with some lines around it.
fn compared(old: &str, new: &str) -> Vec<Hunk> {
    let (old_lines, new_lines) = (lines_of(old), lines_of(new));
    if old_lines == new_lines && old != new {
        let words = "\\ only the line break at the end differs".to_owned();
        return vec![Hunk { start: (1, 1), lines: vec![words] }];
    }
    let same = old_lines.iter().zip(&new_lines).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old_lines[same..], &new_lines[same..]);
    let same_end =
        old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (old_rest.len() - same_end, new_rest.len() - same_end);
    if old_rest + new_rest > MOST_COMPARED {
        return vec![replaced(&old_lines, &new_lines, same, (old_rest, new_rest))];
    }
    let diff = TextDiff::configure().algorithm(Algorithm::Myers).diff_slices(&old_lines, &new_lines);
    diff.grouped_ops(CONTEXT).iter().filter_map(|group| grouped(&diff, group)).collect()
}

/// The lines of a text, each with its line end if that is not a line feed.
fn lines_of(text: &str) -> Vec<&str> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    if text.is_empty() { Vec::new() } else { text.split('\n').collect() }
}

/// All of the old lines that differ, then all of the new ones.
fn replaced(old: &[&str], new: &[&str], same: usize, (old_rest, new_rest): (usize, usize)) -> Hunk {
    let from = same.saturating_sub(CONTEXT);
    let start = from as u64 + 1;
    let end = same + new_rest;
    let signed =
        |sign: char, lines: &[&str]| lines.iter().map(|line| format!("{sign}{line}")).collect::<Vec<_>>();
    let mut lines = signed(' ', &new[from..same]);
    lines.extend(signed('-', &old[same..same + old_rest]));
    lines.extend(signed('+', &new[same..end]));
    lines.extend(signed(' ', &new[end..new.len().min(end + CONTEXT)]));
    Hunk { start: (start, start), lines }
}

fn grouped(diff: &TextDiff<'_, '_, str>, group: &[DiffOp]) -> Option<Hunk> {
    let first = group.first()?;
    let changes = group.iter().flat_map(|op| diff.iter_changes(op));
    let lines = changes.map(|change| {
        let sign = match change.tag() {
            ChangeTag::Equal => ' ',
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
        };
        format!("{sign}{}", change.value())
    });
    let start = (first.old_range().start as u64 + 1, first.new_range().start as u64 + 1);
    Some(Hunk { start, lines: lines.collect() })
}

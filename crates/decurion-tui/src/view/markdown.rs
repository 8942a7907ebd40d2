//! Markdown as lines. Takes what a model wrote, also while it is being written; gives styled lines of a width, and says
//! how much of a growing text will stay as it is.

use pulldown_cmark::{Alignment, CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::table::{MarkdownCell, MarkdownTable};
use crate::code::Highlight;
use crate::text::{plain, visible, wrap};
use crate::theme::Theme;

/// How many lines of code above the first that is laid out are read for what it is in the middle of. A comment that is
/// longer is in other colours until the block is finished.
const READ_ABOVE: usize = 300;

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS
}

/// A text as lines no wider than `columns`.
pub fn lines(text: &str, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    crate::fault_point::pass("markdown");
    let text = plain(text);
    let mut page = MarkdownLines::new(theme, columns.max(1));
    for event in Parser::new_ext(&text, options()) {
        page.event(event);
    }
    page.finish()
}

/// The last of those lines, so many at most: for a text that is drawn again whenever it has grown. Of code, which can be
/// long and is one block until it ends, no more lines are laid out than are asked for.
pub fn tail(text: &str, theme: &Theme, columns: usize, most: usize) -> Vec<Line<'static>> {
    let text = plain(text);
    let mut page = MarkdownLines { most, ..MarkdownLines::new(theme, columns.max(1)) };
    for event in Parser::new_ext(&text, options()) {
        page.event(event);
    }
    let mut lines = page.finish();
    lines.split_off(lines.len().saturating_sub(most))
}

/// How many bytes of a growing text are of blocks that nothing which follows can change.
pub fn settled(text: &str) -> usize {
    // Half a line may still turn out to belong to the block above it.
    let text = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
    if is_open_code(text) { 0 } else { last_block(text) }
}

/// Whether a text is code from its beginning, with no end yet. That can grow long, and every line of it asks.
fn is_open_code(text: &str) -> bool {
    let mut lines = text.lines();
    let Some((mark, count)) = lines.next().and_then(fence) else { return false };
    let closes = |line: &str| {
        fence(line).is_some_and(|(other, length)| other == mark && length >= count)
            && line.trim_start().trim_start_matches(mark).trim().is_empty()
    };
    !lines.any(closes)
}

/// The mark of a line that fences code, and how often it stands there.
fn fence(line: &str) -> Option<(char, usize)> {
    let marks = line.trim_start_matches(' ');
    let mark = marks.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = marks.trim_start_matches(mark);
    let count = marks.len() - rest.len();
    // Further in it would be code already, and code in a sentence has its marks again.
    (line.len() - marks.len() < 4 && count >= 3 && !(mark == '`' && rest.contains('`')))
        .then_some((mark, count))
}

/// Where the last block of a text begins.
fn last_block(text: &str) -> usize {
    let (mut depth, mut last) = (0usize, 0);
    for (event, range) in Parser::new_ext(text, options()).into_offset_iter() {
        match event {
            Event::Start(_) => {
                if depth == 0 {
                    last = range.start;
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Rule if depth == 0 => last = range.start,
            _ => {}
        }
    }
    // A block begins at the beginning of its line, with its markers.
    text[..last].rfind('\n').map_or(0, |at| at + 1)
}

/// Lines that are being laid out.
struct MarkdownLines<'a> {
    theme: &'a Theme,
    columns: usize,
    /// How many lines of a block of code are laid out: its last ones.
    most: usize,
    lines: Vec<Line<'static>>,
    /// What every line begins with here: quotes, and room below the marks of lists.
    margins: Vec<Margin>,
    /// The sentence being read.
    spans: Vec<Span<'static>>,
    styles: Vec<Style>,
    /// The numbers of the lists around; none for one with dots.
    lists: Vec<Option<u64>>,
    addresses: Vec<(String, usize)>,
    code: Option<Code>,
    table: Option<MarkdownTable>,
    /// Whether the next block stands apart from what is above it.
    apart: bool,
}

struct Margin {
    /// For its first line alone.
    mark: Option<Span<'static>>,
    rest: Span<'static>,
}

struct Code {
    language: String,
    text: String,
}

impl<'a> MarkdownLines<'a> {
    fn new(theme: &'a Theme, columns: usize) -> Self {
        Self {
            theme,
            columns,
            most: usize::MAX,
            lines: Vec::new(),
            margins: Vec::new(),
            spans: Vec::new(),
            styles: vec![Style::default()],
            lists: Vec::new(),
            addresses: Vec::new(),
            code: None,
            table: None,
            apart: false,
        }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Code(text) => self.span(&text, self.theme.code),
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text) => self.text(&text),
            // Models break lines where they want them broken.
            Event::SoftBreak | Event::HardBreak => self.flush(),
            Event::Rule => self.rule(),
            Event::TaskListMarker(done) => self.span(if done { "☒ " } else { "☐ " }, self.theme.accent),
            Event::FootnoteReference(name) => self.text(&format!("[{name}]")),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.stand_apart(),
            Tag::Heading { level, .. } => self.heading(level),
            Tag::BlockQuote(_) => {
                self.stand_apart();
                self.margins.push(Margin { mark: None, rest: Span::styled("│ ", self.theme.faint) });
            }
            Tag::CodeBlock(kind) => self.code_begins(&kind),
            Tag::List(first) => {
                self.flush();
                if self.lists.is_empty() {
                    self.stand_apart();
                }
                self.lists.push(first);
            }
            Tag::Item => self.item(),
            Tag::Table(alignments) => self.table_begins(alignments),
            Tag::TableCell => self.spans.clear(),
            Tag::Emphasis => self.style(Modifier::ITALIC),
            Tag::Strong => self.style(Modifier::BOLD),
            Tag::Strikethrough => self.style(Modifier::CROSSED_OUT),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.addresses.push((visible(&dest_url).into_owned(), self.spans.len()));
                self.styles.push(self.theme.link);
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => {
                self.flush();
                self.apart = true;
            }
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.flush();
                self.apart = true;
            }
            TagEnd::BlockQuote(_) => {
                self.margins.pop();
                self.apart = true;
            }
            TagEnd::CodeBlock => self.code_ends(),
            TagEnd::List(_) => {
                self.lists.pop();
                self.apart = true;
            }
            TagEnd::Item => {
                self.flush();
                self.margins.pop();
            }
            TagEnd::Table => self.table_ends(),
            TagEnd::TableHead | TagEnd::TableRow => {
                if let Some(table) = &mut self.table {
                    table.end_row();
                }
            }
            TagEnd::TableCell => {
                let cell = MarkdownCell::new(std::mem::take(&mut self.spans));
                if let Some(table) = &mut self.table {
                    table.push(cell);
                }
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => self.address(),
            _ => {}
        }
    }

    fn now(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn style(&mut self, modifier: Modifier) {
        self.styles.push(self.now().add_modifier(modifier));
    }

    fn text(&mut self, text: &str) {
        match &mut self.code {
            Some(code) => code.text.push_str(text),
            None => self.span(text, Style::default()),
        }
    }

    fn span(&mut self, text: &str, style: Style) {
        let text = visible(text).replace('\n', " ");
        self.spans.push(Span::styled(text, self.now().patch(style)));
    }

    /// Where a link leads, if that is not what it says.
    fn address(&mut self) {
        self.styles.pop();
        let Some((address, from)) = self.addresses.pop() else { return };
        let said: String = self.spans.iter().skip(from).map(|span| span.content.as_ref()).collect();
        if !address.is_empty() && said != address && format!("mailto:{said}") != address {
            self.spans.push(Span::styled(format!(" ({address})"), self.theme.faint));
        }
    }

    fn heading(&mut self, level: HeadingLevel) {
        self.stand_apart();
        let style = self.theme.heading;
        let under = matches!(level, HeadingLevel::H1 | HeadingLevel::H2);
        self.styles.push(if under { style.add_modifier(Modifier::UNDERLINED) } else { style });
    }

    fn item(&mut self) {
        self.flush();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            _ => "• ".to_owned(),
        };
        let rest = Span::raw(" ".repeat(mark.chars().count()));
        self.margins.push(Margin { mark: Some(Span::styled(mark, self.theme.accent)), rest });
        self.apart = false;
    }

    fn rule(&mut self) {
        self.stand_apart();
        self.spans.push(Span::styled("─".repeat(self.room().min(40)), self.theme.faint));
        self.flush();
        self.apart = true;
    }

    fn code_begins(&mut self, kind: &CodeBlockKind<'_>) {
        self.flush();
        self.stand_apart();
        let language = match kind {
            CodeBlockKind::Fenced(language) => {
                language.split([' ', ',']).next().unwrap_or_default().to_owned()
            }
            CodeBlockKind::Indented => String::new(),
        };
        self.code = Some(Code { language, text: String::new() });
    }

    fn code_ends(&mut self) {
        let Some(code) = self.code.take() else { return };
        let text = code.text.strip_suffix('\n').unwrap_or(&code.text);
        let mut highlight = Highlight::new(&code.language, self.theme);
        let above = text.split('\n').count().saturating_sub(self.most);
        if above > 0 {
            // A mark of a list stands before the first line, whether that is shown or not.
            self.margin();
        }
        for line in text.split('\n').take(above).skip(above.saturating_sub(READ_ABOVE)) {
            highlight.pass(&visible(line));
        }
        for line in text.split('\n').skip(above) {
            let line = visible(line);
            let mut spans = vec![Span::raw("  ")];
            spans.extend(highlight.line(&line));
            self.put(Line::from(spans), "    ");
        }
        self.apart = true;
    }

    fn table_begins(&mut self, alignments: Vec<Alignment>) {
        self.flush();
        self.stand_apart();
        self.table = Some(MarkdownTable::new(alignments));
    }

    fn table_ends(&mut self) {
        let Some(table) = self.table.take() else { return };
        for line in table.lines(self.theme, self.room()) {
            self.put(line, "");
        }
        self.apart = true;
    }

    /// How many columns are left beside the margins.
    fn room(&self) -> usize {
        let taken: usize = self.margins.iter().map(|margin| margin.rest.width()).sum();
        self.columns.saturating_sub(taken).max(1)
    }

    /// Lays out the sentence read so far.
    fn flush(&mut self) {
        if !self.spans.is_empty() {
            let line = Line::from(std::mem::take(&mut self.spans));
            self.put(line, "");
        }
    }

    /// A line, as many as it takes.
    fn put(&mut self, line: Line<'static>, hang: &str) {
        for line in wrap(line, self.room(), hang) {
            let mut spans = self.margin();
            spans.extend(line.spans);
            self.lines.push(Line::from(spans));
        }
    }

    /// What the next line begins with. Margins that leave no room are left out.
    fn margin(&mut self) -> Vec<Span<'static>> {
        let wide: usize = self.margins.iter().map(|margin| margin.rest.width()).sum();
        let fits = wide < self.columns;
        let take = |margin: &mut Margin| margin.mark.take().unwrap_or_else(|| margin.rest.clone());
        self.margins.iter_mut().map(take).filter(|_| fits).collect()
    }

    /// An empty line between blocks.
    fn stand_apart(&mut self) {
        self.flush();
        if std::mem::take(&mut self.apart) && !self.lines.is_empty() {
            let mut spans: Vec<Span<'static>> =
                self.margins.iter().map(|margin| margin.rest.clone()).collect();
            while spans.last().is_some_and(|span| span.content.trim().is_empty()) {
                spans.pop();
            }
            if let Some(last) = spans.last_mut() {
                last.content = last.content.trim_end().to_owned().into();
            }
            self.lines.push(Line::from(spans));
        }
    }

    fn finish(mut self) -> Vec<Line<'static>> {
        // A block that has no end yet is shown as far as it is.
        self.code_ends();
        self.table_ends();
        self.flush();
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// The short way to see that code has no end yet says what reading all of it says.
        #[test]
        fn open_code_is_seen_without_reading_it(
            first in prop::sample::select(vec!["```", "````rust", "~~~", "   ```", "    ```", "``", "```a`b", "~~~ x`y", "```\t"]),
            pieces in prop::collection::vec(prop::sample::select(vec![
                "\n", "\n", "```", "`", "~~~", "~", " ", "    ", "\t", "a", "- b", "\u{a0}", "# c",
            ]), 0..24),
        ) {
            let text = format!("{first}{}\n", pieces.concat());
            if is_open_code(&text) {
                prop_assert_eq!(last_block(&text), 0, "{:?}", text);
            }
        }
    }

    #[test]
    fn open_code() {
        for (text, is_open) in [
            ("```rust\nfn x() {}\n\n\n# a\n", true),
            ("~~~\n```\n", true),
            ("````\n```\n", true),
            ("```\n```\n", false),
            ("```\n  `````  \n", false),
            ("```\n    ```\n", true),
            ("```\n``` x\n", true),
            ("a\n```\n", false),
            ("``` a ``` b\n", false),
            ("", false),
        ] {
            assert_eq!(is_open_code(text), is_open, "{text:?}");
        }
    }
}

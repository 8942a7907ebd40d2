//! The screen as lines: what is finished, and what stands below it and changes.

use std::borrow::Cow;

use decurion_protocol::{Question, TodoStatus};
use jiff::Timestamp;
use ratatui_core::text::{Line, Span};

use super::open::Overlay;
use super::tasks::TaskPanel;
use super::{App, Caption};
use crate::commands::{self, HelpGroup, Topic};
use crate::composer::Composer;
use crate::keymap::Helped;
use crate::screen::CursorPosition;
use crate::text::{cut, one_line, width, wrap};
use crate::view::agents::Panel;
use crate::view::item;
use crate::view::question::Asking;
use crate::view::working::{self, Working};
use crate::view::{status, streaming, todos};

/// How much of the screen the tree of agents takes without focus.
const PANEL_ROWS: usize = 8;
/// How many rows a prompt may take.
const COMPOSER_ROWS: usize = 10;
/// A terminal with fewer rows shows what needs a decision, and little else.
const LOW: usize = 12;
/// How many lines of the todo list are shown during work.
const PINNED_TODOS: usize = 6;
/// How many prompts that wait are shown.
const SHOWN_SENT: usize = 3;

/// Signs at the beginning of a prompt or a word, and what they do.
const SIGNS: [(&str, &str); 3] = [
    ("@", "attach a file, a folder or an image; @ and an agent: tell that agent"),
    ("!", "run a command in the shell; its output joins the conversation"),
    ("#", "keep a line in the instructions that every session here reads"),
];
/// The keys of the short help.
const SHORT_KEYS: [&str; 13] = [
    "submit",
    "newline",
    "interrupt",
    "leave",
    "background",
    "mode",
    "transcript",
    "tasks",
    "history",
    "editor",
    "suspend",
    "complete",
    "up",
];

/// The start of a line, at any width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePlace {
    /// The item of the line.
    item: usize,
    /// How many letters of the item stand above it.
    letters: usize,
    /// How many it has.
    of: usize,
}

/// How many letters a line has; signs come and go with the width.
fn letters(line: &Line<'_>) -> usize {
    line.spans.iter().flat_map(|span| span.content.chars()).filter(|sign| sign.is_alphanumeric()).count()
}

fn indented(mut line: Line<'static>) -> Line<'static> {
    line.spans.insert(0, Span::raw("  "));
    line
}

impl App {
    /// The lines that are finished since this was asked last.
    pub fn finished(&mut self) -> Vec<Line<'static>> {
        let from = std::mem::replace(&mut self.drawn, self.items.len());
        self.lines_of(from)
    }

    /// The last of all finished lines, about so many: for a screen on which nothing is drawn yet.
    pub fn all_finished(&mut self, most: usize) -> Vec<Line<'static>> {
        self.drawn = self.items.len();
        self.lines_of(self.place_of_line(most, self.columns).item)
    }

    /// The same; nothing where it stands above already.
    pub fn unshown(&mut self, most: usize) -> Vec<Line<'static>> {
        if self.drawn > 0 { Vec::new() } else { self.all_finished(most) }
    }

    /// Where the line begins that is so many lines before the end of what is drawn, at the width that it was drawn at.
    pub fn place_of_line(&self, lines: usize, columns: usize) -> LinePlace {
        let (mut item, mut count, mut first) = (self.drawn, 0, Vec::new());
        while item > 0 && count < lines {
            item -= 1;
            first = self.lines_of_item(item, columns);
            count += first.len();
        }
        let above = count.saturating_sub(lines);
        let sum = |lines: &[Line<'static>]| lines.iter().map(letters).sum();
        LinePlace { item, letters: sum(&first[..above]), of: sum(&first) }
    }

    /// The finished lines from there on, at this width: for a screen that is drawn again. Of an item whose beginning has
    /// gone up, what is above stays there and is not said again.
    pub fn finished_from(&mut self, place: LinePlace) -> Vec<Line<'static>> {
        self.drawn = self.items.len();
        let Some(item) = (place.item < self.drawn).then_some(place.item) else { return Vec::new() };
        let (mut lines, mut above) = (self.lines_of_item(item, self.columns), 0);
        // A line that is cut or laid out otherwise at another width has other letters there, and is shown again.
        if lines.iter().map(letters).sum::<usize>() == place.of {
            let mut is_above = |line: &Line<'static>| {
                let before = above;
                above += letters(line);
                before < place.letters && above <= place.letters
            };
            let gone = lines.iter().take_while(|line| is_above(line)).count();
            lines.drain(..gone);
        }
        lines.extend(self.lines_of(item + 1));
        lines
    }

    fn lines_of_item(&self, item: usize, columns: usize) -> Vec<Line<'static>> {
        item::lines(&self.items[item], &self.theme, columns, self.fold)
    }

    fn lines_of(&self, from: usize) -> Vec<Line<'static>> {
        (from..self.items.len()).flat_map(|item| self.lines_of_item(item, self.columns)).collect()
    }

    /// The page over everything, if one is open: its rows, and where the cursor is.
    pub fn page(&mut self) -> Option<(Vec<Line<'static>>, CursorPosition)> {
        let size = (self.columns, self.rows);
        let page = self.page.as_mut()?;
        let (mut rows, cursor) = page.rows((&self.items, self.dropped), &self.theme, size);
        let asked = self.view.questions.len();
        if let Some(last) = rows.last_mut().filter(|_| asked > 0) {
            let words =
                if asked == 1 { "1 question waits".to_owned() } else { format!("{asked} questions wait") };
            *last = Line::styled(format!("? {words} for you · esc back"), self.theme.asking);
        }
        Some((rows, cursor))
    }

    /// What the terminal's title says.
    pub fn title(&self) -> String {
        let folder = self.view.info.as_ref().and_then(|info| info.cwd.file_name()).unwrap_or("decurion");
        let mark = match (self.view.questions.len(), self.moves()) {
            (1.., _) => "? ",
            (0, true) => "● ",
            (0, false) => "",
        };
        format!("{mark}{}", one_line(folder))
    }

    /// The lines below, which change, and where the cursor is.
    pub fn live(&self, now: Timestamp) -> (Vec<Line<'static>>, CursorPosition) {
        crate::fault_point::pass("live");
        let (mut lines, cursor) = self.above_caption(now);
        lines.extend(self.caption());
        (lines, cursor)
    }

    /// Comments on the demo, apart from its screen.
    fn caption(&self) -> Vec<Line<'static>> {
        let Some(Caption { words, keys }) = &self.caption else { return Vec::new() };
        let (mark, theme) = ("▶ ", &self.theme);
        let words = cut(&one_line(words), self.columns.saturating_sub(width(mark))).into_owned();
        let gap = self.columns.saturating_sub(width(mark) + width(&words) + width(keys));
        let mut spans = vec![Span::styled(mark, theme.asking), Span::styled(words, theme.prompt)];
        if gap > 1 && !keys.is_empty() {
            spans.push(Span::styled(format!("{}{}", " ".repeat(gap), one_line(keys)), theme.faint));
        }
        vec![Line::default(), Line::from(spans)]
    }

    fn above_caption(&self, now: Timestamp) -> (Vec<Line<'static>>, CursorPosition) {
        let mut lines = self.coming(now);
        let panel = self.panel(now);
        if !panel.is_empty() {
            lines.push(Line::default());
        }
        lines.extend(panel);
        lines.extend(self.waiting());
        lines.push(Line::default());
        if let Some((asked, question)) = self.shown_question() {
            let (theme, columns) = (&self.theme, self.columns);
            let waiting = self.view.questions.len();
            let (step, marked) = (asked.picked.step, &asked.marked);
            let chosen = self.would_answer().then_some(asked.chosen);
            // No decision without seeing its subject: the rest gives way.
            let rows = self.rows.saturating_sub(self.caption().len());
            let room = rows.saturating_sub(if self.rows < LOW { 2 } else { 4 });
            let question = &self.named(question);
            let answers = asked.picked.chosen();
            let asking = Asking { theme, columns, rows: room, step, chosen, marked, answers, waiting };
            if !matches!(self.open, Overlay::Nothing) && !self.would_answer() {
                // It gives way itself to what has the keys.
                lines.push(asking.in_a_line(question));
                return self.with_prompt(lines);
            }
            let asking = asking.lines(question);
            if self.would_answer() || lines.len() + asking.len() > room {
                let rest = room.saturating_sub(asking.len());
                let from = lines.len().saturating_sub(rest);
                lines = lines.split_off(from);
            }
            lines.extend(asking);
            if let Some(note) = asked.note.as_ref().filter(|_| self.would_answer()) {
                let lead = if note.refuses { "tell it: " } else { "answer: " };
                return self.with_writing(lines, &note.words, lead);
            }
            if !self.would_answer() {
                lines.push(Line::styled(cut("  (tab to answer it)", columns).into_owned(), theme.asking));
                return self.with_writing(lines, &self.composer, "> ");
            }
            lines.extend(self.status());
            return (lines, None);
        }
        self.with_prompt(lines)
    }

    /// What is written below these lines: the prompt, without a cursor while the tree has the keys, or a budget in its
    /// place.
    fn with_prompt(&self, lines: Vec<Line<'static>>) -> (Vec<Line<'static>>, CursorPosition) {
        match &self.open {
            Overlay::Tasks(TaskPanel { budget: Some(budget), .. }) => {
                self.with_writing(lines, budget, "budget: ")
            }
            Overlay::Tasks(_) => (self.with_writing(lines, &self.composer, "> ").0, None),
            _ => self.with_writing(lines, &self.composer, "> "),
        }
    }

    fn status(&self) -> Vec<Line<'static>> {
        let mut known = Cow::Borrowed(&self.known);
        if self.leaving && known.hint.is_none() {
            known.to_mut().hint = Some("leaves when everything is done; esc stays".to_owned());
        }
        if let Some(vim) = self.vim.as_ref().filter(|_| known.hint.is_none()) {
            known.to_mut().lead = vim.label();
        }
        status::lines(&self.view, &known, &self.theme, (self.columns, self.rows))
    }

    /// A question whose asker has names that people know.
    pub(super) fn named(&self, question: &Question) -> Question {
        let name = |part: &String| {
            let task = part.parse().ok().and_then(|task| self.view.task(&task));
            task.map_or_else(|| part.clone(), crate::view::agents::name)
        };
        Question { path: question.path.iter().map(name).collect(), ..question.clone() }
    }

    /// How many tokens were written when the live line changed last.
    fn written_by(&self, moment: Timestamp) -> u64 {
        let (known, at) = self.written.get();
        if at == Some(moment) {
            return known;
        }
        let written = self.view.root.written();
        self.written.set((written, Some(moment)));
        written
    }

    /// What is being said and done, and the live line below it.
    fn coming(&self, now: Timestamp) -> Vec<Line<'static>> {
        let (theme, columns) = (&self.theme, self.columns);
        // Agents that are waited for stand in the tree.
        let mut lines = streaming::lines(&self.conversation, theme, columns, self.view.has_foreground());
        if self.is_busy() && self.view.root.asks == 0 {
            if self.rows >= LOW {
                lines.push(Line::default());
            }
            let is_still = self.known.reduced_motion;
            let now = working::moment(now);
            let written = self.written_by(now);
            lines.push(Working { theme, columns, now, written, is_still }.line(&self.view));
            lines.extend(self.pinned_todos());
        }
        // Half of the screen at most: the rest of it is above, or comes when it is finished.
        let most = (self.rows / 2).max(1);
        let from = lines.len().saturating_sub(most);
        lines.split_off(from)
    }

    /// The todo list of the current work, while some steps are left.
    fn pinned_todos(&self) -> Vec<Line<'static>> {
        let todos = &self.view.root.todos;
        if self.rows < LOW || todos.iter().all(|todo| todo.status == TodoStatus::Completed) {
            return Vec::new();
        }
        let most = PINNED_TODOS.min(self.rows / 4);
        let lines = todos::lines(todos, &self.theme, self.columns.saturating_sub(2), most);
        lines.into_iter().map(indented).collect()
    }

    /// Prompts that wait for their turn.
    fn waiting(&self) -> Vec<Line<'static>> {
        if !self.is_busy() {
            return Vec::new();
        }
        let shown = self.sent.iter().chain(&self.queued).take(SHOWN_SENT).map(|(_, text)| {
            let words = format!("  Queued: {}", one_line(text));
            Line::styled(cut(&words, self.columns).into_owned(), self.theme.faint)
        });
        let mut lines: Vec<Line<'static>> = shown.collect();
        let waiting = self.sent.len() + self.queued.len();
        if let Some(more) = waiting.checked_sub(SHOWN_SENT).filter(|more| *more > 0) {
            lines.push(Line::styled(format!("  … and {more} more"), self.theme.faint));
        }
        if !self.sent.is_empty() {
            lines.push(Line::styled("  (↑ to edit)", self.theme.faint));
        }
        lines
    }

    /// The tree of agents, or what else is open.
    pub(super) fn panel(&self, now: Timestamp) -> Vec<Line<'static>> {
        let (theme, columns) = (&self.theme, self.columns);
        let usual = PANEL_ROWS.min(self.rows / 3);
        let most = self.rows.saturating_sub(if self.rows < LOW { 4 } else { 8 }).max(1);
        match &self.open {
            Overlay::Nothing => {
                Panel { theme, columns, most: usual, now, chosen: None, all: false }.lines(&self.view)
            }
            Overlay::Tasks(tasks) => self.tasks(tasks, most, now),
            Overlay::Help(from) => self.help(*from),
            Overlay::List(Topic::Themes, list) => {
                let sample = self.sample();
                let mut lines = list.lines(theme, columns, most.saturating_sub(sample.len()).max(4), now);
                lines.extend(sample);
                lines
            }
            Overlay::List(_, list) => list.lines(theme, columns, most, now),
            Overlay::Search(word, passed) => {
                let found = self.history.find(word, *passed).map(one_line).unwrap_or_default();
                let line = format!("reverse-search {word:?}: {found}");
                vec![Line::styled(cut(&line, columns).into_owned(), theme.accent)]
            }
        }
    }

    fn tasks(&self, tasks: &TaskPanel, most: usize, now: Timestamp) -> Vec<Line<'static>> {
        let (theme, columns) = (&self.theme, self.columns);
        let chosen = tasks.chosen.as_ref();
        let todos = &self.view.root.todos;
        let most_todos = (most / 3).max(1);
        let mut lines = todos::lines(todos, theme, columns, most_todos);
        let most = most.saturating_sub(lines.len() + 1).max(1);
        let tree = Panel { theme, columns, most, now, chosen, all: true }.lines(&self.view);
        if !lines.is_empty() && !tree.is_empty() {
            lines.push(Line::default());
        }
        lines.extend(tree);
        if lines.is_empty() {
            lines.push(Line::styled("No agents or background commands yet", theme.faint));
        }
        let (foot, style) = match tasks.asked {
            Some(asked) => {
                let question = self.task_question(tasks, asked);
                (format!("{question} ({})", Self::task_answer(asked)), theme.asking)
            }
            None if self.rows < LOW => return lines,
            None if tasks.budget.is_some() => {
                ("for example 10 turns, $2, 100k tokens, 5m · enter · esc".to_owned(), theme.faint)
            }
            None => (
                "↑↓ · enter look, steer · x stop · p pause/resume (P: whole subtree) · b background · $ budget · r \
                 resume · esc back · other keys write the prompt"
                    .to_owned(),
                theme.faint,
            ),
        };
        lines.extend(wrap(Line::styled(foot, style), columns.max(1), ""));
        lines
    }

    /// The short help from a line on, as much of it as fits.
    fn help(&self, from: usize) -> Vec<Line<'static>> {
        let most = self.rows.saturating_sub(7).max(1);
        let rows = self.short_help();
        let from = from.min(rows.len().saturating_sub(most));
        let below = rows.len() - from - most.min(rows.len() - from);
        let mut lines: Vec<Line<'static>> = rows.into_iter().skip(from).take(most).collect();
        let foot = if below > 0 {
            format!("↓ {below} more · any other key closes")
        } else {
            "any other key closes".to_owned()
        };
        lines.push(Line::styled(cut(&foot, self.columns).into_owned(), self.theme.faint));
        lines
    }

    /// The names of the commands, and the signs and keys that everybody needs.
    fn short_help(&self) -> Vec<Line<'static>> {
        let heading = |words: &str| Line::styled(words.to_owned(), self.theme.heading);
        let mut lines = vec![heading("Commands")];
        let wide = HelpGroup::ALL.iter().map(|group| group.heading().len() + 1).max().unwrap_or_default();
        for group in HelpGroup::ALL {
            let names: Vec<String> = commands::names_of(group).map(|name| format!("/{name}")).collect();
            lines.extend(self.explained(group.heading(), &names.join(" "), "", wide));
        }
        lines.push(heading("Prompt"));
        for (sign, words) in SIGNS {
            lines.extend(self.explained(sign, words, "", wide));
        }
        lines.push(heading("Keys"));
        let keys: Vec<Helped> =
            self.keymap.help().into_iter().filter(|helped| SHORT_KEYS.contains(&helped.name)).collect();
        let wide = self.column_of(&keys);
        for helped in keys {
            lines.extend(self.explained(helped.shown(), helped.words, "", wide));
        }
        let foot = "/help explains every command and key, / searches the commands";
        lines.extend(wrap(Line::styled(foot, self.theme.faint), self.columns.max(1), ""));
        lines
    }

    /// All commands, signs and keys.
    pub(super) fn whole_help(&self) -> Vec<Line<'static>> {
        let heading = |words: &str| Line::styled(words.to_owned(), self.theme.heading);
        let keys = self.keymap.help();
        let wide = self.column_of(&keys);
        let mut lines = vec![heading("Commands")];
        for (name, words) in commands::all() {
            lines.extend(self.explained(&format!("/{name}"), words, "", wide));
        }
        lines.push(heading("Prompt"));
        for (sign, words) in SIGNS {
            lines.extend(self.explained(sign, words, "", wide));
        }
        lines.push(heading("Keys"));
        for helped in &keys {
            let name = format!(" · {}", helped.name);
            lines.extend(self.explained(helped.shown(), helped.words, &name, wide));
        }
        let foot = "action names for keys.json are shown after the dot";
        lines.extend(wrap(Line::styled(foot, self.theme.faint), self.columns.max(1), ""));
        lines
    }

    /// Keys have their own column if there is room for one.
    fn column_of(&self, keys: &[Helped]) -> usize {
        let widest = keys.iter().map(|helped| width(&helped.keys)).max().unwrap_or_default();
        if self.columns < 60 { 0 } else { widest.min(self.columns / 2) }
    }

    /// A key, a sign or a command, what it does, and its name.
    fn explained(&self, key: &str, words: &str, name: &str, wide: usize) -> Vec<Line<'static>> {
        let line = Line::from(vec![
            Span::styled(format!("  {key:<wide$} "), self.theme.accent),
            Span::raw(words.to_owned()),
            Span::styled(name.to_owned(), self.theme.faint),
        ]);
        let hang = " ".repeat(if wide == 0 { 4 } else { wide + 3 });
        wrap(line, self.columns.max(1), &hang)
    }

    /// The prompt below these lines, and the status below it.
    fn with_writing(
        &self,
        mut lines: Vec<Line<'static>>,
        writing: &Composer,
        lead: &'static str,
    ) -> (Vec<Line<'static>>, CursorPosition) {
        let room = self.columns.saturating_sub(lead.len()).max(2);
        let rows = writing.rows(room);
        let (row, column) = writing.place(&rows);
        let from = row.saturating_sub(COMPOSER_ROWS - 1);
        let cursor = (lines.len() + row - from, column + lead.len());
        for (at, shown) in rows.iter().enumerate().skip(from).take(COMPOSER_ROWS) {
            let lead = if at == 0 { lead.to_owned() } else { " ".repeat(lead.len()) };
            lines.push(Line::from(vec![
                Span::styled(lead, self.theme.accent),
                Span::raw(shown.shown.clone()),
            ]));
        }
        lines.extend(self.proposals());
        lines.extend(self.status());
        (lines, Some(cursor))
    }
}

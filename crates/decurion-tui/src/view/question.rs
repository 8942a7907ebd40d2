//! A question as lines. Takes the question, its agent, and the chosen answer; gives what a person must see to decide,
//! whole if possible and marked where it is cut, and the answers below it.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use decurion_protocol::choice::{Chosen, Subject};
use decurion_protocol::permission::CONNECTION;
use decurion_protocol::{Question, Wanted};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::steps::{ChoiceEffect, QuestionStep, steps};
use crate::text::{cut, cut_line, one_line, visible, width, wrap};
use crate::theme::Theme;

use super::danger::dangers;
use super::diff::FileChange;
use super::markdown;

/// How many lines of what is asked about are shown.
const MOST_LINES: usize = 40;
/// How many of them always have room; the last may say that there are more.
const LEAST_LINES: usize = 3;
/// With fewer lines each part has only its beginning.
const LOW: usize = 8;
/// How many lines of a plan are shown.
const MOST_PLAN: usize = 60;
/// How wide the line between a plan and the answers is.
const RULE: usize = 40;

/// How a question is shown.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub theme: &'a Theme,
    pub columns: usize,
    /// How many rows at most: the subject gives way, and that is marked.
    pub rows: usize,
    /// Which of its steps is shown.
    pub step: usize,
    /// Which of the answers is chosen; none where keys are not for the question.
    pub chosen: Option<usize>,
    /// Those that are marked, where several can be chosen.
    pub marked: &'a BTreeSet<usize>,
    /// What was chosen in the steps before.
    pub answers: &'a [Chosen],
    /// How many questions wait, this one included.
    pub waiting: usize,
}

/// What stands before a command in the title.
fn run_words(question: &Question) -> &'static str {
    if question.leaves_sandbox() { "Run without the sandbox: " } else { "Run: " }
}

/// The agents that ask, without the main agent, which needs no name.
pub fn agents_below_root(question: &Question) -> impl Iterator<Item = &String> {
    question.path.iter().enumerate().filter(|(at, name)| !(*at == 0 && *name == "main")).map(|(_, name)| name)
}

impl Asking<'_> {
    /// Who asks what and why, and the answers.
    pub fn lines(&self, question: &Question) -> Vec<Line<'static>> {
        crate::fault_point::pass("question");
        let subject = question.subject();
        let head = wrap(self.head(question), self.columns, "  ");
        if self.rows < LOW {
            return self.in_few_lines(question, head);
        }
        let mut lines = self.shortened(head, (self.rows / 6).max(2));
        let before = self.shortened(self.before_answers(question), (self.rows / 4).max(1));
        // Who asks, what would be done and the answer that is chosen are in sight, however many answers there are.
        let least = if matches!(subject, Subject::Call | Subject::Plan(_)) { LEAST_LINES } else { 0 };
        let taken = lines.len() + before.len();
        let answers = self.in_sight(self.answers(question), self.rows.saturating_sub(taken + least).max(1));
        let room = self.rows.saturating_sub(taken + answers.len() + 1).max(1);
        match subject {
            Subject::Call => {
                let most = self.at_most(room, MOST_LINES);
                lines.extend(self.bounded(self.subject(question, room), most));
            }
            Subject::Plan(plan) => {
                // Made visible first, so that a person who agrees sees all of it.
                let plan = visible(&plan);
                let all = markdown::lines(&plan, self.theme, self.columns.saturating_sub(2).max(1));
                lines.extend(self.bounded(all, self.at_most(room, MOST_PLAN)));
                // The plan's own numbers are not the answers'.
                lines.push(Line::styled("─".repeat(self.columns.min(RULE)), self.theme.faint));
            }
            Subject::Choices(_) | Subject::Elicitation => {}
        }
        lines.extend(before);
        lines.extend(answers);
        lines
    }

    /// The beginning of each: who asks, what would be done or is asked, and the answer that is chosen.
    fn in_few_lines(&self, question: &Question, head: Vec<Line<'static>>) -> Vec<Line<'static>> {
        let mut lines = self.begun(head, 1);
        let room = self.rows.saturating_sub(2).max(1);
        let about = match question.subject() {
            Subject::Call => self.bounded(self.subject(question, room), usize::MAX - 1),
            Subject::Plan(plan) => self.text(&plan, "  ", self.columns),
            Subject::Choices(_) | Subject::Elicitation => self.before_answers(question),
        };
        lines.extend(self.begun(about, room));
        let room = self.rows.saturating_sub(lines.len()).max(1);
        lines.extend(self.in_sight(self.answers(question), room));
        lines
    }

    /// One line that there is a question, if there is no room for more.
    pub fn in_a_line(&self, question: &Question) -> Line<'static> {
        Line::styled(cut(&self.head(question).to_string(), self.columns).into_owned(), self.theme.asking)
    }

    /// This many lines at most; no limit in plain mode, which has no pages.
    fn at_most(&self, room: usize, most: usize) -> usize {
        if self.rows == usize::MAX { room } else { room.min(most) }
    }

    /// Why it is asked, and what is asked in the step.
    fn before_answers(&self, question: &Question) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        if question.subject() == Subject::Call {
            for danger in dangers(question) {
                lines.extend(self.sentence(&format!("⚠ {danger}"), self.theme.error));
            }
            lines.extend(self.sentence(&format!("Reason: {}", question.reason), self.theme.faint));
        }
        let steps = steps(question);
        let Some(step) = steps.get(self.step) else { return lines };
        lines.extend(self.chips(&steps));
        for (chosen, asked) in self.answers.iter().zip(&steps).filter(|_| step.is_review) {
            let name = if asked.header.is_empty() { &asked.title } else { &asked.header };
            lines.extend(self.sentence(&format!("{name}: {}", chosen.answers.join(", ")), Style::default()));
        }
        if !step.title.is_empty() {
            let all = steps.iter().filter(|step| !step.is_review).count();
            let count = if all > 1 && !step.is_review {
                format!(" ({} of {all})", self.step + 1)
            } else {
                String::new()
            };
            let bold = Style::new().add_modifier(Modifier::BOLD);
            lines.extend(self.sentence(&format!("{}{count}", step.title), bold));
        }
        if let Some(Wanted::Url { url, .. }) = question.elicitation.as_ref().map(|asked| &asked.wanted) {
            lines.extend(self.text(url, "  ", self.columns));
        }
        lines
    }

    /// A word for each of the model's questions: those that are answered, and the one that is asked now.
    fn chips(&self, steps: &[QuestionStep]) -> Option<Line<'static>> {
        if steps.iter().all(|step| step.header.is_empty()) {
            return None;
        }
        let mut spans = vec![Span::raw("  ")];
        for (at, step) in steps.iter().enumerate() {
            let name = if step.is_review { "Send" } else { step.header.as_str() };
            let name = one_line(name);
            let (words, style) = match at.cmp(&self.step) {
                Ordering::Less => (format!("✓ {name}"), self.theme.good),
                Ordering::Equal => (format!("[{name}]"), self.theme.accent),
                Ordering::Greater => (name, self.theme.faint),
            };
            if at > 0 {
                spans.push(Span::styled(" · ", self.theme.faint));
            }
            spans.push(Span::styled(words, style));
        }
        Some(cut_line(Line::from(spans), self.columns))
    }

    /// The answers, each with its lines.
    fn answers(&self, question: &Question) -> Vec<Vec<Line<'static>>> {
        let steps = steps(question);
        let Some(step) = steps.get(self.step) else { return Vec::new() };
        let mut answers = Vec::new();
        for (at, offered) in step.offers.iter().enumerate() {
            let is_marked = self.marked.contains(&at);
            let mark = match (step.several, is_marked, &offered.what) {
                (true, true, ChoiceEffect::Label(_)) => "[x] ",
                (true, false, ChoiceEffect::Label(_)) => "[ ] ",
                _ => "",
            };
            let words = one_line(&offered.words);
            // Plain lines have no such key.
            let words = if self.rows == usize::MAX { words.trim_end_matches(" (esc)") } else { &words };
            let mut lines = self.choice(at, &format!("{mark}{words}"));
            if !offered.details.is_empty() {
                lines.extend(self.indented(&offered.details));
            }
            answers.push(lines);
        }
        // If none is chosen, these keys do nothing.
        let back = (self.step > 0).then_some("← previous question");
        let several = step.several.then_some("space to select, enter to confirm");
        let hints: Vec<&str> = several.into_iter().chain(back).collect();
        if !hints.is_empty() && self.chosen.is_some() {
            answers.push(self.sentence(&hints.join(" · "), self.theme.faint));
        }
        answers
    }

    /// So many lines of the answers at most, with the one that is chosen, and how many there are besides.
    fn in_sight(&self, answers: Vec<Vec<Line<'static>>>, most: usize) -> Vec<Line<'static>> {
        if answers.iter().map(Vec::len).sum::<usize>() <= most {
            return answers.into_iter().flatten().collect();
        }
        let chosen = self.chosen.unwrap_or(0).min(answers.len() - 1);
        if most < 3 {
            let line = answers[chosen].first().cloned().unwrap_or_default();
            let words = cut(&line.to_string(), self.columns.saturating_sub(3)).into_owned();
            return vec![Line::styled(format!("{words} ↑↓"), line.style)];
        }
        // A line above and one below say what is missing.
        let room = most.saturating_sub(2).max(1);
        let (mut from, mut to, mut used) = (chosen, chosen + 1, answers[chosen].len());
        loop {
            if to < answers.len() && used + answers[to].len() <= room {
                used += answers[to].len();
                to += 1;
            } else if from > 0 && used + answers[from - 1].len() <= room {
                from -= 1;
                used += answers[from].len();
            } else {
                break;
            }
        }
        let missing = |count: usize, sign: &str| {
            let words = format!("  {sign} {count} more (ctrl+o to see all)");
            (count > 0).then(|| Line::styled(cut(&words, self.columns).into_owned(), self.theme.warning))
        };
        let (above, below) = (missing(from, "↑"), missing(answers.len() - to, "↓"));
        let shown: Vec<Line<'static>> = answers.into_iter().skip(from).take(to - from).flatten().collect();
        above.into_iter().chain(self.begun(shown, room)).chain(below).collect()
    }

    /// The beginning of an answer that does not fit, so that no answer is given unseen.
    fn begun(&self, mut lines: Vec<Line<'static>>, most: usize) -> Vec<Line<'static>> {
        if lines.len() > most {
            lines.truncate(most);
            if let Some(last) = lines.last_mut() {
                let room = self.columns.saturating_sub(2);
                *last = Line::styled(format!("{} …", cut(&last.to_string(), room)), last.style);
            }
        }
        lines
    }

    /// Who asks, by the path of agents from the root, and how many more wait.
    fn head(&self, question: &Question) -> Line<'static> {
        let what = match question.subject() {
            Subject::Call => match self.short_command(question) {
                Some(command) => format!("{}{command}", run_words(question)),
                None => one_line(&question.title()),
            },
            Subject::Choices(_) => "The model has a question".to_owned(),
            Subject::Plan(_) => "Start with this plan?".to_owned(),
            Subject::Elicitation => {
                let server = question.elicitation.as_ref().map(|asked| one_line(&asked.server));
                format!("The MCP server {} asks", server.unwrap_or_default())
            }
        };
        let mut spans = vec![Span::styled("? ", self.theme.asking)];
        // With one agent there are no others to ask.
        for agent in agents_below_root(question) {
            spans.push(Span::styled(format!("{} › ", one_line(agent)), self.theme.faint));
        }
        spans.push(Span::styled(what, Modifier::BOLD));
        if self.waiting > 1 {
            spans.push(Span::styled(format!("  (1 of {})", self.waiting), self.theme.asking));
        }
        Line::from(spans)
    }

    /// What would be done.
    fn subject(&self, question: &Question, most: usize) -> Vec<Line<'static>> {
        let (input, room) = (&question.input, self.columns.saturating_sub(2).max(1));
        match question.tool.as_str() {
            "Bash" if self.short_command(question).is_some() => {
                self.description(question).into_iter().collect()
            }
            "Bash" => {
                let mut lines = self.text(input["command"].as_str().unwrap_or_default(), "$ ", room);
                lines.extend(self.description(question));
                lines
            }
            CONNECTION => self.text(&question.intent.title, "", room),
            tool if let Some(change) = FileChange::asked(tool, input, question.patch.as_ref()) => {
                let path =
                    input["file_path"].as_str().or(input["notebook_path"].as_str()).unwrap_or_default();
                // Once is enough, where the title names it to its end.
                let named = question.intent.title.rsplit(' ').next().unwrap_or_default();
                let is_named = !named.is_empty() && path.ends_with(named);
                let mut lines = if is_named { Vec::new() } else { self.text(path, "", room) };
                lines.extend(change.lines(
                    self.theme,
                    room,
                    most.saturating_sub(1).max(1),
                    " (ctrl+o to see all)",
                ));
                lines
            }
            _ => {
                let mut lines = Vec::new();
                let whole = serde_json::to_string_pretty(input).unwrap_or_default();
                if input.as_object().is_some_and(|members| !members.is_empty()) {
                    lines.extend(self.text(&whole, "", room));
                }
                lines
            }
        }
    }

    /// A command that fits into the title as it is.
    fn short_command(&self, question: &Question) -> Option<String> {
        let command = question.input["command"].as_str().filter(|_| question.tool == "Bash")?;
        let asker: usize = agents_below_root(question).map(|agent| width(agent) + 3).sum();
        let fits = width(command) + asker + "?   (1 of 99)".len() + run_words(question).len() <= self.columns;
        (fits && one_line(command) == command && !command.is_empty()).then(|| command.to_owned())
    }

    /// What the model says that the command is for: in one line with a name, so that it neither hides the command nor
    /// looks like one.
    fn description(&self, question: &Question) -> Option<Line<'static>> {
        let said = question.input["description"].as_str().map(one_line).filter(|said| !said.is_empty())?;
        let said = format!("Description: {said}");
        Some(Line::styled(cut(&said, self.columns.saturating_sub(2)).into_owned(), self.theme.faint))
    }

    /// So many lines of what would be done, and how many there are besides.
    fn bounded(&self, all: Vec<Line<'static>>, most: usize) -> Vec<Line<'static>> {
        let indented = |line: Line<'static>| {
            let mut spans = vec![Span::raw("  ")];
            spans.extend(line.spans);
            Line { spans, style: line.style, alignment: None }
        };
        self.shortened(all.into_iter().map(indented).collect(), most.saturating_add(1))
    }

    /// So many lines at most, the last of which says how many are missing.
    fn shortened(&self, mut lines: Vec<Line<'static>>, most: usize) -> Vec<Line<'static>> {
        if lines.len() > most {
            // A person must know if part of the subject is hidden.
            let missing = lines.len() - most.saturating_sub(1);
            lines.truncate(most.saturating_sub(1));
            let words = format!("  … {missing} more lines (ctrl+o to see all)");
            lines.push(Line::styled(cut(&words, self.columns).into_owned(), self.theme.warning));
        }
        lines
    }

    /// Every character of a text, as it is.
    fn text(&self, text: &str, lead: &str, room: usize) -> Vec<Line<'static>> {
        let text = visible(text);
        let line = |(at, line): (usize, &str)| {
            let lead = if at == 0 { lead } else { "" };
            wrap(Line::styled(format!("{lead}{line}"), self.theme.code), room, "  ")
        };
        text.lines().enumerate().flat_map(line).collect()
    }

    fn sentence(&self, text: &str, style: Style) -> Vec<Line<'static>> {
        wrap(Line::styled(format!("  {}", one_line(text)), style), self.columns, "  ")
    }

    /// What a choice means, below it.
    fn indented(&self, text: &str) -> Vec<Line<'static>> {
        wrap(Line::styled(format!("     {}", one_line(text)), self.theme.faint), self.columns, "     ")
    }

    fn choice(&self, at: usize, words: &str) -> Vec<Line<'static>> {
        let is_chosen = self.chosen == Some(at);
        let style = if is_chosen { self.theme.accent } else { Style::default() };
        let mark = if is_chosen { "❯" } else { " " };
        wrap(Line::styled(format!("{mark} {}. {words}", at + 1), style), self.columns, "     ")
    }
}

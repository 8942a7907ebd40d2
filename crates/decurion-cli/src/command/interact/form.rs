//! Questions to a person before a session is shown. Takes lists and questions; asks them in a terminal that is drawn on, or
//! as plain lines for screen readers and terminals that can do nothing else; gives the answers.

use std::io::{BufRead as _, Write as _};

use decurion_config::Environment;
use decurion_tui::OutsideSignal;
use decurion_tui::form::{self, Tone, characters};
use decurion_tui::list::{ChoiceList, ListRow, Offer};
use decurion_tui::plain::StdinLines;
use decurion_tui::terminal;
use decurion_tui::theme::Shades;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::report::Failure;
use crate::screen;

pub enum Questions {
    /// With arrow keys; and whether there is nothing else that an interrupt could end.
    Drawn(Box<form::TerminalForm>, bool),
    /// In lines that stay.
    Lines(TypedAnswers),
}

/// The lines that a person types.
pub struct TypedAnswers {
    lines: StdinLines,
    /// Those that are listened to already; without any, a signal does what it does to every program.
    signals: Option<mpsc::Receiver<OutsideSignal>>,
    /// The one that ended the questions.
    by: Option<OutsideSignal>,
}

impl TypedAnswers {
    pub fn new(lines: StdinLines, signals: Option<mpsc::Receiver<OutsideSignal>>) -> Self {
        Self { lines, signals, by: None }
    }

    /// The next line; none at the end of input, and once a signal has ended the questions.
    async fn next(&mut self, question: &str) -> Result<Option<String>, Failure> {
        print(question)?;
        while self.by.is_none() {
            let signal = async {
                match &mut self.signals {
                    Some(signals) => signals.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                signal = signal => match signal {
                    Some(OutsideSignal::Suspend) => {
                        decurion_exec::foreground::stop_group();
                        print(question)?;
                    }
                    signal => self.by = signal.or(Some(OutsideSignal::Terminate)),
                },
                line = self.lines.next() => return Ok(line.map(|line| line.trim().to_owned())),
            }
        }
        say!("");
        Ok(None)
    }

    /// The same without showing what is typed.
    async fn next_hidden(&mut self, question: &str) -> Result<Option<String>, Failure> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).ok();
        if let Some(before) = &before {
            let mut hidden = before.clone();
            hidden.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(&stdin, OptionalActions::Flush, &hidden);
        }
        let answer = self.next(question).await;
        if let Some(before) = &before {
            let _ = tcsetattr(&stdin, OptionalActions::Flush, before);
        }
        say!("");
        answer
    }
}

/// A row that can be chosen.
pub struct FormRow {
    /// What it is known by.
    pub id: String,
    pub name: String,
    /// A few words beside it.
    pub note: String,
}

impl FormRow {
    pub fn new(id: impl Into<String>, name: impl Into<String>, note: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into(), note: note.into() }
    }
}

pub enum FormAnswer {
    /// The row of this id.
    Row(String),
    /// What was written in place of a row.
    Written(String),
}

#[allow(clippy::needless_pass_by_value)] // as `map_err` has it
fn gone(error: std::io::Error) -> Failure {
    Failure::failed(format!("the terminal cannot be read: {error}"))
}

impl Questions {
    /// Takes the terminal. `signals` is the receiver, if signals are already being received.
    pub fn take(
        environment: &Environment,
        plain: bool,
        signals: Option<mpsc::Receiver<OutsideSignal>>,
    ) -> Result<Self, Failure> {
        let says = |name: &str| environment.get(name).unwrap_or_default();
        if plain || matches!(says("TERM"), "" | "dumb") {
            return Ok(Self::Lines(TypedAnswers::new(StdinLines::of_stdin(), signals)));
        }
        let shades = if says("NO_COLOR").is_empty() {
            terminal::said().shades.unwrap_or_default()
        } else {
            Shades::None
        };
        let is_all = signals.is_none();
        let form = form::TerminalForm::take(shades, signals, decurion_exec::foreground::stop_group);
        form.map(|form| Self::Drawn(Box::new(form), is_all)).map_err(gone)
    }

    /// Gives the terminal back, and the lines that were read from it. A signal that ended the questions is the end.
    pub async fn end(self) -> Result<Option<StdinLines>, Failure> {
        let (by, is_all, lines) = match self {
            Self::Drawn(form, is_all) => (form.end().await, is_all, None),
            Self::Lines(TypedAnswers { lines, by, .. }) => (by, false, Some(lines)),
        };
        let code = match by {
            // As it does before anything listens: without a word.
            Some(OutsideSignal::Interrupt) if is_all => std::process::exit(130),
            Some(OutsideSignal::Interrupt | OutsideSignal::Suspend) | None => return Ok(lines),
            Some(OutsideSignal::Hangup) => 129,
            Some(OutsideSignal::Terminate) => 143,
        };
        Err(Failure { message: "interrupted by a signal".to_owned(), hints: Vec::new(), code })
    }

    /// Says something that stays.
    pub fn say(&mut self, tone: Tone, text: &str) -> Result<(), Failure> {
        match self {
            Self::Drawn(form, _) => form.say(tone, text).map_err(gone),
            Self::Lines(_) => {
                say!("{text}");
                Ok(())
            }
        }
    }

    /// Says what went wrong, and what to do about it.
    pub fn say_failure(&mut self, failure: &Failure) -> Result<(), Failure> {
        self.say(Tone::Bad, &failure.message)?;
        failure.hints.iter().try_for_each(|hint| self.say(Tone::Plain, &format!("  {hint}")))
    }

    /// Lets a person choose a row, the first unless another is the default; none if they left. `other` is what they may
    /// write in place of a row.
    pub async fn choose(
        &mut self,
        title: &str,
        rows: &[FormRow],
        usual: usize,
        other: Option<&'static str>,
    ) -> Result<Option<FormAnswer>, Failure> {
        match self {
            Self::Drawn(form, _) => draw_list(form, title, rows, usual, other).await.map_err(gone),
            Self::Lines(typed) => print_list(typed, title, rows, usual, other).await,
        }
    }

    /// Lets a person write a line; none if they left.
    pub async fn line(&mut self, question: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Drawn(form, _) => form.line(question).await.map_err(gone),
            Self::Lines(typed) => typed.next(question).await,
        }
    }

    /// The same without showing what is written.
    pub async fn hidden(&mut self, question: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Drawn(form, _) => form.hidden(question).await.map_err(gone),
            Self::Lines(typed) => {
                let secret = typed.next_hidden(question).await?;
                let count = secret.as_deref().map_or(0, |secret| secret.chars().count());
                say!("({})", characters(count));
                Ok(secret)
            }
        }
    }

    /// Waits for something that takes a while; none if the person did not.
    pub async fn wait<T>(
        &mut self,
        words: &str,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Failure> {
        match self {
            Self::Drawn(form, _) => form.wait(words, work).await.map_err(gone),
            Self::Lines(_) => {
                say!("{words} …");
                Ok(Some(work.await))
            }
        }
    }
}

/// The keys that filter a list and that write something else.
const FILTER: char = '/';
const OTHER: char = 'o';
/// The most rows that need no filter.
const FEW: usize = 9;

async fn draw_list(
    form: &mut form::TerminalForm,
    title: &str,
    rows: &[FormRow],
    usual: usize,
    other: Option<&'static str>,
) -> std::io::Result<Option<FormAnswer>> {
    let mut offers = vec![Offer::row('\n', "select")];
    if rows.len() > FEW {
        offers.push(Offer::all(FILTER, "filter").asking("filter"));
    }
    if let Some(other) = other {
        offers.push(Offer::all(OTHER, "other").asking(other));
    }
    let row = |(at, choice): (usize, &FormRow)| ListRow {
        id: choice.id.clone(),
        name: if at < FEW { format!("{}. {}", at + 1, choice.name) } else { format!("   {}", choice.name) },
        note: choice.note.clone(),
        when: None,
        details: Vec::new(),
    };
    let with = |part: &str| {
        let fits = |choice: &&FormRow| choice.name.to_lowercase().contains(&part.to_lowercase());
        let rows = rows.iter().filter(fits).enumerate().map(row).collect();
        ChoiceList::new(title, rows, &offers, "nothing fits; / filters again")
    };
    let mut list = with("");
    list.chosen = usual;
    loop {
        match form.choose(&mut list).await? {
            None => return Ok(None),
            Some((FILTER, _, part)) => list = with(&part),
            Some((OTHER, _, words)) => return Ok(Some(FormAnswer::Written(words))),
            Some((_, id, _)) => {
                let chosen = rows.iter().find(|choice| choice.id == id);
                if let Some(chosen) = chosen {
                    form.say(Tone::Faint, &format!("{title} {}", chosen.name))?;
                }
                return Ok(Some(FormAnswer::Row(id)));
            }
        }
    }
}

async fn print_list(
    typed: &mut TypedAnswers,
    title: &str,
    rows: &[FormRow],
    usual: usize,
    other: Option<&'static str>,
) -> Result<Option<FormAnswer>, Failure> {
    say!("{title}");
    for (at, choice) in rows.iter().enumerate() {
        let gap = if choice.note.is_empty() { "" } else { "  " };
        say!("  {}. {}{gap}{}", at + 1, choice.name, choice.note);
    }
    let or = other.map_or_else(String::new, |other| format!(", or {other}"));
    let question = format!("Choose 1–{}{or} [{}] (q to quit): ", rows.len(), usual + 1);
    loop {
        let Some(answer) = typed.next(&question).await?.filter(|answer| answer != "q") else {
            return Ok(None);
        };
        let number = if answer.is_empty() { Some(usual + 1) } else { answer.parse().ok() };
        let row = number.and_then(|number| rows.get(number.checked_sub(1)?));
        match row {
            Some(row) => return Ok(Some(FormAnswer::Row(row.id.clone()))),
            None if other.is_some() && number.is_none() => return Ok(Some(FormAnswer::Written(answer))),
            None => say!("{:?} isn't one of the options.", crate::report::visible(&answer)),
        }
    }
}

/// Prints a question, behind which the answer is typed.
fn print(question: &str) -> Result<(), Failure> {
    let mut out = screen::stdout();
    out.write_all(question.as_bytes()).and_then(|()| out.flush()).map_err(gone)
}

/// A line from the terminal; none at the end of input.
pub fn ask(question: &str) -> Result<Option<String>, Failure> {
    print(question)?;
    let mut line = String::new();
    let count = std::io::stdin().lock().read_line(&mut line).map_err(gone)?;
    Ok((count > 0).then(|| line.trim().to_owned()))
}

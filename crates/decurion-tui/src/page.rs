//! A page that takes the whole screen: a conversation with all folded parts, a live one of an agent, or a text. Takes
//! items and keys; gives the rows in sight. It is drawn beside the terminal's own buffer, which it leaves alone.

use decurion_protocol::{AgentId, Envelope, Event, Role};
use ratatui_core::style::Modifier;
use ratatui_core::text::{Line, Span};

use crate::composer::{Composer, ComposerEdit};
use crate::conversation::{Conversation, ConversationItem};
use crate::keymap::Action;
use crate::text::{cut, one_line, visible, width, wrap};
use crate::theme::Theme;
use crate::view::diff::FileChange;
use crate::view::item::{self, ItemFolding};
use crate::view::streaming;

pub struct FullPage {
    /// What it shows, in words.
    pub title: String,
    /// The message for the agent that it shows.
    pub words: Composer,
    of: Of,
    is_awaited: bool,
    /// The first row in sight, counted from the end: 0 follows what is new.
    back: usize,
    /// The lines of the finished items at a width, and how many items they are of.
    lines: Vec<Line<'static>>,
    made: PageLayout,
}

/// What lines were made of.
#[derive(Default, PartialEq, Eq)]
struct PageLayout {
    columns: usize,
    /// How many items were not kept any more then.
    dropped: usize,
    items: usize,
}

/// What a page shows.
enum Of {
    /// The root's conversation, whose items are kept by the app.
    Root,
    Agent(Box<AgentPage>),
    Text(String),
    /// Changes of files, and a remark below them.
    Changes(Vec<FileChange>, String),
}

/// A live conversation of an agent.
struct AgentPage {
    agent: AgentId,
    conversation: Conversation,
    items: Vec<ConversationItem>,
    /// What came while its past was looked up.
    early: Option<Vec<Envelope>>,
    /// Messages that it has not received yet.
    told: Vec<String>,
}

impl FullPage {
    fn new(title: impl Into<String>, of: Of) -> Self {
        let title = title.into();
        let (words, lines, made) = (Composer::default(), Vec::new(), PageLayout::default());
        Self { title, words, of, back: 0, lines, made, is_awaited: false }
    }

    pub fn root() -> Self {
        Self::new("conversation", Of::Root)
    }

    /// Whether it is that.
    pub fn is_root(&self) -> bool {
        matches!(self.of, Of::Root)
    }

    /// An agent's, whose past is still to come.
    pub fn agent(title: String, agent: AgentId) -> Self {
        let conversation = Conversation::of(Some(agent.clone()));
        let (items, early, told) = (Vec::new(), Some(Vec::new()), Vec::new());
        Self::new(title, Of::Agent(Box::new(AgentPage { agent, conversation, items, early, told })))
    }

    /// A text, from its beginning.
    pub fn text(title: impl Into<String>, text: impl Into<String>) -> Self {
        let mut page = Self::new(title, Of::Text(text.into()));
        page.back = usize::MAX;
        page
    }

    /// Changes of files, from their beginning.
    pub fn changes(title: impl Into<String>, changes: Vec<FileChange>, notes: String) -> Self {
        let mut page = Self::new(title, Of::Changes(changes, notes));
        page.back = usize::MAX;
        page
    }

    /// A text that is still to come.
    pub fn awaited(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self { is_awaited: true, ..Self::text(title, text) }
    }

    /// Whether its text is still to come.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Whose conversation it is, if an agent's.
    pub fn agent_id(&self) -> Option<&AgentId> {
        match &self.of {
            Of::Agent(following) => Some(&following.agent),
            Of::Root | Of::Text(_) | Of::Changes(..) => None,
        }
    }

    pub fn take(&mut self, envelope: &Envelope) {
        let Of::Agent(following) = &mut self.of else { return };
        if envelope.agent.as_ref() != Some(&following.agent) {
            return;
        }
        match &mut following.early {
            Some(early) => early.push(envelope.clone()),
            None => following.take(envelope),
        }
    }

    /// The agent that it shows was not told this after all: it is written again.
    pub fn not_told(&mut self, text: &str) {
        if let Of::Agent(following) = &mut self.of
            && let Some(at) = following.told.iter().rposition(|told| told == text)
        {
            following.told.remove(at);
        }
        self.words.put_before(text);
    }

    /// Takes what happened before; what came meanwhile follows it, once.
    pub fn past(&mut self, past: &[Envelope]) {
        let Of::Agent(following) = &mut self.of else { return };
        let Some(early) = following.early.take() else { return };
        let last = past.last().map_or(0, |envelope| envelope.seq);
        for envelope in past {
            following.take(envelope);
        }
        let new = early
            .iter()
            .filter(|envelope| envelope.seq > last || envelope.seq == last && !envelope.event.is_durable());
        for envelope in new {
            following.take(envelope);
        }
    }

    /// What a key does to the page, of a screen with so many rows.
    pub fn key(&mut self, action: Action, rows: usize) -> Turned {
        let page = rows.saturating_sub(3).max(1);
        match action {
            Action::Interrupt | Action::Transcript if self.words.is_empty() => return Turned::Closed,
            Action::Interrupt => drop(self.words.take()),
            Action::Up => self.back = self.back.saturating_add(1),
            Action::Down => self.back = self.back.saturating_sub(1),
            Action::PageUp => self.back = self.back.saturating_add(page),
            Action::Submit if self.agent_id().is_some() => {
                let text = self.words.take();
                let Of::Agent(following) = &mut self.of else { return Turned::Stays };
                if !text.trim().is_empty() {
                    following.told.push(text.clone());
                    return Turned::Told(text);
                }
            }
            Action::Edit(edit) if self.agent_id().is_some() => self.words.edit(edit),
            Action::Newline if self.agent_id().is_some() => self.words.insert("\n"),
            Action::Edit(ComposerEdit::Type('q')) => return Turned::Closed,
            Action::PageDown | Action::Edit(ComposerEdit::Type(' ')) => {
                self.back = self.back.saturating_sub(page);
            }
            Action::Leave | Action::Suspend | Action::Redraw => return Turned::Passed,
            _ => {}
        }
        Turned::Stays
    }

    /// The rows to show, as many as the screen has, and where the cursor is.
    pub fn rows(
        &mut self,
        root: (&[ConversationItem], usize),
        theme: &Theme,
        size: (usize, usize),
    ) -> (Vec<Line<'static>>, Option<(usize, usize)>) {
        crate::fault_point::pass("page");
        let (columns, rows) = (size.0.max(1), size.1.max(1));
        self.remake(root, theme, columns);
        let coming = self.coming(theme, columns);
        let foot = 1 + usize::from(self.agent_id().is_some());
        let room = rows.saturating_sub(foot + 1);
        let all = self.lines.len() + coming.len();
        self.back = self.back.min(all.saturating_sub(room));
        let end = all - self.back;
        let from = end.saturating_sub(room);
        let mut shown = vec![self.head(theme, columns, from, all)];
        shown.extend(self.lines.iter().chain(&coming).skip(from).take(end - from).cloned());
        shown.resize(rows.saturating_sub(foot).max(1), Line::default());
        let mut cursor = None;
        if self.agent_id().is_some() {
            cursor = Some((shown.len(), 9 + width(self.words.raw())));
            let text = cut(&one_line(self.words.raw()), columns.saturating_sub(10)).into_owned();
            shown.push(Line::from(vec![Span::styled("Message: ", theme.accent), Span::raw(text)]));
        }
        shown.push(Line::styled(cut(self.keys(), columns).into_owned(), theme.faint));
        shown.truncate(rows);
        (shown, cursor)
    }

    /// All of it, for a reader that cannot turn pages.
    pub fn all(
        &mut self,
        root: (&[ConversationItem], usize),
        theme: &Theme,
        columns: usize,
    ) -> Vec<Line<'static>> {
        self.remake(root, theme, columns.max(1));
        self.lines.clone()
    }

    fn keys(&self) -> &'static str {
        match self.of {
            Of::Agent(_) => "↑↓ pageup pagedown · enter sends · esc back",
            Of::Root | Of::Text(_) | Of::Changes(..) => "↑↓ pageup pagedown · q or esc back",
        }
    }

    fn head(&self, theme: &Theme, columns: usize, from: usize, all: usize) -> Line<'static> {
        let place = if self.back > 0 { format!("  line {} of {all}", from + 1) } else { String::new() };
        let room = columns.saturating_sub(width(&place));
        let title = cut(&one_line(&self.title), room).into_owned();
        Line::from(vec![
            Span::styled(title, theme.heading.add_modifier(Modifier::REVERSED)),
            Span::styled(place, theme.faint),
        ])
    }

    /// Makes the lines of what is new, or of all at another width.
    fn remake(&mut self, (root, dropped): (&[ConversationItem], usize), theme: &Theme, columns: usize) {
        if let Of::Text(text) = &self.of {
            if self.made.columns != columns {
                let text = visible(text);
                let line = |line: &str| wrap(Line::raw(line.to_owned()), columns, "");
                self.lines = text.lines().flat_map(line).collect();
                self.made.columns = columns;
            }
            return;
        }
        if let Of::Changes(changes, notes) = &self.of {
            if self.made.columns != columns {
                self.lines = changed(changes, notes, theme, columns);
                self.made.columns = columns;
            }
            return;
        }
        let items: &[ConversationItem] = match &self.of {
            Of::Agent(following) => &following.items,
            Of::Root | Of::Text(_) | Of::Changes(..) => root,
        };
        if self.made.columns != columns || self.made.dropped != dropped {
            self.lines.clear();
            self.made = PageLayout { columns, dropped, items: 0 };
        }
        for item in &items[self.made.items..] {
            self.lines.extend(item::lines(item, theme, columns, ItemFolding::Open));
        }
        self.made.items = items.len();
    }

    fn coming(&self, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
        let Of::Agent(following) = &self.of else { return Vec::new() };
        if following.early.is_some() {
            return vec![Line::styled("loading the transcript …", theme.faint)];
        }
        let mut lines = streaming::lines(&following.conversation, theme, columns, false);
        lines.extend(following.told.iter().map(|text| {
            let words = format!("  Queued for its next step: {}", one_line(text));
            Line::styled(cut(&words, columns).into_owned(), theme.faint)
        }));
        lines
    }
}

/// Changes of files as lines, each below its name.
fn changed(changes: &[FileChange], notes: &str, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for change in changes {
        let mut head = vec![Span::styled(one_line(&change.path), theme.heading)];
        head.extend(change.counts(theme));
        lines.extend(wrap(Line::from(head), columns, ""));
        lines.extend(change.lines(theme, columns, usize::MAX, ""));
        lines.push(Line::default());
    }
    let notes = visible(notes);
    lines
        .extend(notes.lines().flat_map(|line| wrap(Line::styled(line.to_owned(), theme.faint), columns, "")));
    lines
}

/// What a key did to a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    Stays,
    Closed,
    /// Send the agent this message.
    Told(String),
    /// It is not for the page.
    Passed,
}

impl AgentPage {
    fn take(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::Message { message, .. } if message.role == Role::User => {
                let heard = message.text();
                self.told.retain(|text| !heard.contains(text.as_str()));
            }
            Event::RunEnded { .. } => self.told.clear(),
            _ => {}
        }
        self.conversation.take(envelope);
        self.items.extend(self.conversation.take_finished());
    }
}

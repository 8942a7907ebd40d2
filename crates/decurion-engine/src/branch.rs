//! Conversations that go on from an earlier line. Takes the records of a session, gives for each what of it is still
//! part of the root's conversation, and finds the line that a resume wants to go on from.
//!
//! The transcript keeps all lines. `Branched` says from which one the conversation goes on; what the root said and
//! heard between that line and the event is dropped, here and wherever the record is read again.

use std::borrow::Cow;

use decurion_protocol::{
    Block, CallId, Envelope, Event, LineId, MessageMeta, Origin, PlaceError, ResumeAt, SessionId,
};

/// What a refused guard begins with: programs that lead a session look for these words.
const REJECTED: &str = "Resume rejected by --resume-drops-turn:";

/// Where the root's conversation went on from an earlier line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Branch {
    /// The last line that stayed.
    at: LineId,
    /// The record of that line.
    through: u64,
    /// The record that says so, or one before it and behind everything that was dropped.
    seq: u64,
}

/// All such places of a session.
#[derive(Clone, Debug, Default)]
pub struct Branches(Vec<Branch>);

/// What of a record is part of a conversation.
#[derive(Debug, PartialEq)]
pub enum Part<'a> {
    Whole(&'a Event),
    /// This beginning of it.
    Cut(Box<Event>, &'a Event),
    /// Nothing: the conversation went on from an earlier line.
    Dropped(&'a Event),
}

impl Branches {
    /// Takes a record in; whether it is a branch that was not known.
    pub fn note(&mut self, envelope: &Envelope) -> bool {
        let Event::Branched { at, through } = &envelope.event else { return false };
        let branch = Branch { at: *at, through: *through, seq: envelope.seq };
        let is_new = !self.0.contains(&branch);
        if is_new {
            self.0.push(branch);
        }
        is_new
    }

    /// What of a record is part of the conversation as it was at the record `until`.
    pub fn part<'a>(&self, envelope: &'a Envelope, until: u64) -> Part<'a> {
        let mut event = Cow::Borrowed(&envelope.event);
        let over = |branch: &&Branch| {
            branch.seq <= until && branch.through <= envelope.seq && envelope.seq < branch.seq
        };
        for branch in self.0.iter().filter(over).filter(|_| envelope.agent.is_none()) {
            if branch.through < envelope.seq {
                return Part::Dropped(&envelope.event);
            }
            if let Some(cut) = cut(&event, branch.at) {
                event = Cow::Owned(cut);
            }
        }
        match event {
            Cow::Borrowed(event) => Part::Whole(event),
            Cow::Owned(cut) => Part::Cut(Box::new(cut), &envelope.event),
        }
    }
}

/// A message up to one of its lines; none if that is all of it.
fn cut(event: &Event, at: LineId) -> Option<Event> {
    let Event::Message { message, lines, parent, meta } = event else { return None };
    let kept = lines.iter().position(|line| *line == at)? + 1;
    if kept == lines.len() || lines.len() != message.blocks.len() {
        return None;
    }
    let mut message = message.clone();
    message.blocks.truncate(kept);
    let lines = lines[..kept].to_vec();
    Some(Event::Message { message, lines, parent: *parent, meta: meta.clone() })
}

/// Looks for the line that a resume wants to go on from, and at what would be dropped.
#[derive(Debug)]
pub struct Search {
    wanted: ResumeAt,
    through: Option<u64>,
    /// Whether the prompt whose turn is to be dropped was seen behind the line.
    saw_prompt: bool,
    /// Why the guard refuses.
    refusal: Option<String>,
}

impl Search {
    pub fn new(wanted: ResumeAt) -> Self {
        Self { wanted, through: None, saw_prompt: false, refusal: None }
    }

    /// Takes the next record in, and what of it is part of the conversation.
    pub fn take(&mut self, envelope: &Envelope, part: &Part<'_>) {
        let event: &Event = match part {
            Part::Whole(event) => event,
            Part::Cut(event, _) => event,
            Part::Dropped(_) => return,
        };
        if envelope.agent.is_some() {
            return;
        }
        if self.through.is_some() {
            self.judge(event);
        } else if lines(event).contains(&self.wanted.line) {
            self.through = Some(envelope.seq);
            if let Some(rest) = rest(event, self.wanted.line) {
                self.refuse(|| format!("it would drop the end of the turn before, from {rest} on"));
            }
        }
    }

    /// The record to go on from.
    pub fn found(self, session: SessionId) -> Result<Event, PlaceError> {
        let ResumeAt { line, drops } = self.wanted;
        let Some(through) = self.through else {
            return Err(PlaceError::Usage(format!(
                "no message with this uuid is part of the conversation of session {session}, which can also go on from \
                 its end: {line}"
            )));
        };
        let unseen = || format!("it is no prompt behind {line}");
        let missing = drops.filter(|_| !self.saw_prompt).map(|_| unseen());
        match (drops, self.refusal.or(missing)) {
            (Some(prompt), Some(why)) => Err(PlaceError::Usage(format!(
                "{REJECTED} more or less than the turn of {prompt} would be dropped: {why}; nothing was changed"
            ))),
            _ => Ok(Event::Branched { at: line, through }),
        }
    }

    /// Whether something that would be dropped belongs to the turn that is expected to be.
    fn judge(&mut self, event: &Event) {
        let Some(prompt) = self.wanted.drops else { return };
        let Some(line) = lines(event).first().copied() else { return };
        match event {
            Event::Message { lines, meta, .. } if meta.origin == Origin::Prompt => {
                if lines.contains(&prompt) {
                    self.saw_prompt = true;
                } else {
                    self.refuse(|| format!("there is another prompt behind it, {line}"));
                }
            }
            Event::Message { meta, .. } if tells(meta) => {
                self.refuse(|| format!("the session was told something meanwhile, in {line}"));
            }
            Event::Message { meta, .. } if meta.origin != Origin::Model => {}
            // What an interrupt left says nothing that would be missed.
            Event::CallEnded { output, .. } if output.is_error => {}
            _ if !self.saw_prompt => {
                self.refuse(|| format!("it would drop the end of the turn before, from {line} on"));
            }
            _ => {}
        }
    }

    fn refuse(&mut self, why: impl FnOnce() -> String) {
        self.refusal.get_or_insert_with(why);
    }
}

/// Whether a message tells of an ending, or what another agent said.
fn tells(meta: &MessageMeta) -> bool {
    !meta.delivers.is_empty()
}

/// The first line of a message behind one of its lines.
fn rest(event: &Event, at: LineId) -> Option<LineId> {
    let Event::Message { lines, .. } = event else { return None };
    let place = lines.iter().position(|line| *line == at)?;
    lines.get(place + 1).copied()
}

/// The lines of the chain that a record takes.
fn lines(event: &Event) -> Vec<LineId> {
    match event {
        Event::Message { lines, .. } => lines.clone(),
        Event::CallEnded { line, .. } => vec![*line],
        Event::Compacted { boundary, line, .. } => vec![*boundary, *line],
        _ => Vec::new(),
    }
}

/// The calls that a message makes.
pub fn calls(blocks: &[Block]) -> impl Iterator<Item = &CallId> {
    blocks.iter().filter_map(|block| match block {
        Block::ToolUse { id, .. } => Some(id),
        _ => None,
    })
}

//! What is open above the prompt: the keys, the tree, a search, a list. Takes keys; gives what they ask for.

use std::path::Path;

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Command, Inspected, LineId, PermissionUpdate, ResumeAt, Rewound, Rule, SessionId, Start, Verdict,
};
use serde_json::{Value, json};

use super::tasks::TaskPanel;
use super::{App, AwaitedReply, Effect, Farewell, NextSession};
use crate::commands::Topic;
use crate::composer::{ComposerEdit, CursorMotion};
use crate::keymap::Action;
use crate::list::{ChoiceList, ListAction, ListRow, Offer};
use crate::port::{FrontEndJob, JobPurpose};
use crate::text::{cut, one_line};
use crate::view::item::ItemFolding;
use crate::view::status::SessionHome;

/// How much of a prompt names the work on it.
const MOST_NAME: usize = 40;

#[derive(Clone, Debug, Default)]
pub(super) enum Overlay {
    #[default]
    Nothing,
    /// The keys and commands, from this row on.
    Help(usize),
    Tasks(TaskPanel),
    /// A search of earlier prompts: the word, and how many that hold it were passed.
    Search(String, usize),
    List(Topic, ChoiceList),
}

impl App {
    /// A key while something is open above the prompt; none if it is not for that.
    pub(super) fn open_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        match &mut self.open {
            Overlay::Nothing => None,
            Overlay::Help(_) => self.help_key(action),
            Overlay::Tasks(_) => self.tasks_key(action),
            Overlay::Search(..) => self.search_key(action),
            Overlay::List(topic, list) => {
                let topic = *topic;
                let picked = list.key(action);
                self.preview_theme(&picked);
                match picked {
                    ListAction::Taken => Some(self.ask_for_preview()),
                    ListAction::Passed => None,
                    ListAction::Closed => {
                        self.open = Overlay::Nothing;
                        Some(Vec::new())
                    }
                    ListAction::Do(key, row, words) => Some(self.do_listed(topic, key, &row, &words)),
                }
            }
        }
    }

    fn help_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        let Overlay::Help(from) = &mut self.open else { return None };
        match action {
            Action::Down | Action::PageDown => *from += if action == Action::Down { 1 } else { 10 },
            Action::Up => *from = from.saturating_sub(1),
            Action::PageUp => *from = from.saturating_sub(10),
            Action::Leave => return None,
            _ => self.open = Overlay::Nothing,
        }
        Some(Vec::new())
    }

    fn search_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        let Overlay::Search(word, passed) = &mut self.open else { return None };
        match action {
            Action::Interrupt => self.open = Overlay::Nothing,
            // Further back, as long as there is one.
            Action::History | Action::Up => {
                *passed += usize::from(self.history.find(word, *passed + 1).is_some());
            }
            Action::Down => *passed = passed.saturating_sub(1),
            Action::Edit(ComposerEdit::Type(letter)) => {
                word.push(letter);
                *passed = 0;
            }
            Action::Edit(ComposerEdit::Delete(CursorMotion::Left)) => {
                word.pop();
                *passed = 0;
            }
            Action::Submit | Action::Complete => {
                let found = self.history.find(word, *passed).map(str::to_owned);
                self.open = Overlay::Nothing;
                if let Some(found) = found {
                    self.composer.set(&found);
                }
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    /// Opens what a command lists.
    pub(super) fn list(&mut self, topic: Topic) -> Vec<Effect> {
        let program = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            vec![Effect::Errand(JobPurpose::List(topic), FrontEndJob::Program(words))]
        };
        let what = match topic {
            Topic::Agents => return program(&["agents", "list", "--json"]),
            Topic::Sessions => return program(&["sessions", "list", "--json"]),
            Topic::Plugins => return program(&["plugin", "list", "--json"]),
            Topic::Memory => return vec![Effect::Errand(JobPurpose::List(topic), FrontEndJob::Memories)],
            Topic::Worktrees => return program(&["worktrees", "list", "--json"]),
            Topic::Rules => Inspected::Rules,
            Topic::Hooks => Inspected::Hooks,
            Topic::Servers => Inspected::Servers,
            Topic::Context => Inspected::Context,
            Topic::Prompts
            | Topic::Skills
            | Topic::Models
            | Topic::Leaving
            | Topic::Themes
            | Topic::Consent => {
                self.open = Overlay::List(topic, self.own_list(topic));
                return Vec::new();
            }
        };
        vec![self.ask_for(AwaitedReply::List(topic), Command::Inspect { what })]
    }

    /// A list of what is known here.
    fn own_list(&self, topic: Topic) -> ChoiceList {
        let named = |(name, words): &(String, String)| ListRow {
            id: name.clone(),
            name: format!("/{name}"),
            note: words.clone(),
            ..ListRow::default()
        };
        match topic {
            Topic::Prompts => self.list_of_prompts(),
            Topic::Skills => {
                let rows = self.library.skills.iter().map(named).collect();
                ChoiceList::new(
                    "Skills and commands",
                    rows,
                    &[Offer::row('\n', "write it")],
                    "there are none",
                )
            }
            Topic::Models => {
                let row =
                    |name: &String| ListRow { id: name.clone(), name: name.clone(), ..ListRow::default() };
                let rows = self.library.models.iter().map(row).collect();
                let now = self.view.root.model.as_deref().unwrap_or("none yet");
                let offers = [
                    Offer::row('\n', "use it"),
                    Offer::all('o', "another").asking("model, or provider/model"),
                ];
                ChoiceList::new(
                    format!("Models · now {now}"),
                    rows,
                    &offers,
                    "no models are named in the settings",
                )
            }
            Topic::Leaving => self.list_of_leaving(),
            Topic::Themes => self.list_of_themes(),
            _ => ChoiceList::default(),
        }
    }

    fn list_of_prompts(&self) -> ChoiceList {
        let row = |prompt: &super::Prompted| ListRow {
            id: prompt.line.to_string(),
            name: one_line(&prompt.text),
            ..ListRow::default()
        };
        let rows: Vec<ListRow> = self.prompts.iter().map(row).collect();
        let offers = [
            Offer::row('\n', "conversation and files"),
            Offer::row('c', "conversation"),
            Offer::row('f', "files"),
        ];
        let mut list = ChoiceList::new("Back to before which prompt?", rows, &offers, "no prompts yet");
        list.chosen = self.prompts.len().saturating_sub(1);
        list
    }

    /// What is still at work, and what can become of it.
    fn list_of_leaving(&self) -> ChoiceList {
        let row = |id: &str, name: &str, note: &str| ListRow {
            id: id.to_owned(),
            name: name.to_owned(),
            note: note.to_owned(),
            ..ListRow::default()
        };
        let mut rows = Vec::new();
        if self.known.home == SessionHome::Kept {
            rows.push(row("keep", "Keep running in background", "`decurion attach` comes back to it"));
        }
        rows.push(row("wait", "Wait", "leave when everything is done"));
        rows.push(row("stop", "Stop and quit", ""));
        let own = self.own_work().into_iter();
        let others = self.view.background().map(crate::view::agents::name);
        let working: Vec<String> = own.chain(others.map(|name| one_line(&name))).collect();
        let title = match working.len() {
            0 | 1 => format!("Still running: {}", working.first().map_or("the last prompt", String::as_str)),
            many => format!("{many} still running: {}", working.join(" | ")),
        };
        ChoiceList::new(title, rows, &[Offer::row('\n', "choose")], "")
    }

    /// What the main agent is at, if it works; and what a person runs himself.
    fn own_work(&self) -> Option<String> {
        let own = self.conversation.calling().iter().find(|calling| calling.title.starts_with("! "));
        let prompt = self.prompts.last().filter(|_| self.is_busy() || !self.sent.is_empty());
        let sent = self.sent.front().map(|(_, text)| text);
        let asked = prompt.map(|prompt| &prompt.text).or(sent).map(|text| one_line(text));
        asked.map(|text| cut(&text, MOST_NAME).into_owned()).or(own.map(|calling| one_line(&calling.title)))
    }

    fn do_listed(&mut self, topic: Topic, key: char, row: &str, words: &str) -> Vec<Effect> {
        let effects = match topic {
            Topic::Agents => return self.do_agent(key, row, words),
            Topic::Sessions => match row.parse::<SessionId>() {
                Ok(id) if key == '\t' => self.go_to(Start::Fork { from: id, id: None, at: None }),
                Ok(id) => self.go_to(Start::Resume { id, at: None }),
                Err(_) => Vec::new(),
            },
            Topic::Prompts => self.rewind(key, row),
            Topic::Skills => {
                self.composer.set(&format!("/{row} "));
                Vec::new()
            }
            Topic::Models => {
                let model = if key == 'o' { words } else { row };
                vec![self.ask("model", Command::SetModel { model: model.to_owned() })]
            }
            Topic::Rules => return self.do_rule(key, row, words),
            Topic::Servers => self.do_server(key, row),
            Topic::Plugins => {
                let (verb, of) = match key {
                    'e' => ("enable", row),
                    'd' => ("disable", row),
                    _ => ("add", words),
                };
                if verb == "disable" {
                    self.open = Overlay::Nothing;
                    return program(JobPurpose::Say, &["plugin", verb, of]);
                }
                let words: Vec<String> = ["plugin", verb, of].map(str::to_owned).into();
                let preview = words.iter().cloned().chain(["--preview".to_owned()]).collect();
                vec![Effect::Errand(JobPurpose::Consent(words), FrontEndJob::Program(preview))]
            }
            Topic::Consent => match serde_json::from_str(row) {
                Ok(words) => vec![Effect::Errand(JobPurpose::Say, FrontEndJob::Program(words))],
                Err(_) => Vec::new(),
            },
            Topic::Worktrees if key == 'c' => program(JobPurpose::Say, &["worktrees", "clean"]),
            Topic::Worktrees => program(JobPurpose::Say, &["worktrees", "remove", row]),
            Topic::Leaving => self.do_leave(row),
            Topic::Themes => self.use_theme(row),
            Topic::Memory => vec![Effect::EditFile(row.to_owned())],
            Topic::Hooks | Topic::Context => Vec::new(),
        };
        self.open = Overlay::Nothing;
        effects
    }

    /// Asks whether these words of ours may be done, after showing what they would do; what shows nothing was done.
    pub(super) fn consent_came(&mut self, mut words: Vec<String>, printed: &str) {
        let shown = printed.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let Some(shown) = shown.filter(|shown| shown["question"].is_string()) else {
            self.say("info", printed.trim_end());
            return;
        };
        let text = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
        self.say("info", text("shows"));
        words.extend(["--as-shown".to_owned(), text("fingerprint")]);
        let row = |id: String, name: &str| ListRow { id, name: name.to_owned(), ..ListRow::default() };
        let rows = vec![row(String::new(), "No"), row(json!(words).to_string(), "Yes")];
        self.open_list(
            Topic::Consent,
            ChoiceList::new(text("question"), rows, &[Offer::row('\n', "choose")], ""),
        );
    }

    /// Asks for the last exchange of the session that is chosen, where it is not known.
    pub(super) fn ask_for_preview(&mut self) -> Vec<Effect> {
        let Overlay::List(Topic::Sessions, list) = &mut self.open else { return Vec::new() };
        let Some(row) = list.rows.get_mut(list.chosen).filter(|row| row.details.len() == 1) else {
            return Vec::new();
        };
        // Once is enough, with any result.
        row.details.push(String::new());
        let id = row.id.clone();
        vec![Effect::Errand(JobPurpose::Preview(id.clone()), FrontEndJob::Preview(id))]
    }

    pub(super) fn preview_came(&mut self, id: &str, text: &str) {
        let Overlay::List(Topic::Sessions, list) = &mut self.open else { return };
        if let Some(row) = list.rows.iter_mut().find(|row| row.id == id) {
            row.details.truncate(1);
            row.details.push(text.to_owned());
        }
    }

    fn do_agent(&mut self, key: char, row: &str, words: &str) -> Vec<Effect> {
        let (name, origin) = row.split_once('\n').unwrap_or((row, ""));
        match key {
            '\n' => program(JobPurpose::Page(format!("agent {name}")), &["agents", "show", name]),
            'e' => {
                program(JobPurpose::Page(format!("what {name} would run with")), &["agents", "explain", name])
            }
            'l' => program(
                JobPurpose::Page("agents: what is wrong with their files".to_owned()),
                &["agents", "lint"],
            ),
            'd' if Path::new(origin).extension().is_some_and(|end| end == "md") => {
                vec![Effect::EditFile(origin.to_owned())]
            }
            'd' => {
                self.say(
                    "info",
                    format!("{name} is {origin} and has no file; n writes one that takes its place"),
                );
                Vec::new()
            }
            _ => vec![Effect::Errand(JobPurpose::Edit, FrontEndJob::NewAgent(words.to_owned()))],
        }
    }

    fn do_rule(&mut self, key: char, row: &str, words: &str) -> Vec<Effect> {
        let (update, waits) = if key == 'x' {
            if !matches!(words.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
                self.say("info", "no rule was removed");
                return Vec::new();
            }
            let Ok((behavior, rule)) = serde_json::from_str::<(Verdict, Rule)>(row) else {
                return Vec::new();
            };
            (
                PermissionUpdate::RemoveRules { behavior, rules: vec![rule] },
                AwaitedReply::Refusal("permissions"),
            )
        } else {
            let (behavior, list) = match key {
                'a' => (Verdict::Allow, "allow"),
                's' => (Verdict::Ask, "ask"),
                _ => (Verdict::Deny, "deny"),
            };
            match Rule::parse(words, RuleSource::Session) {
                Ok(rule) => {
                    let waits = AwaitedReply::Rule(list, rule.to_string());
                    (PermissionUpdate::AddRules { behavior, rules: vec![rule] }, waits)
                }
                Err(error) => {
                    self.say("error", error.to_string());
                    return Vec::new();
                }
            }
        };
        let mut effects = vec![self.ask_for(waits, Command::Permit { updates: vec![update] })];
        effects.extend(self.list(Topic::Rules));
        effects
    }

    fn do_server(&mut self, key: char, row: &str) -> Vec<Effect> {
        let (server, health) = row.split_once('\n').unwrap_or((row, ""));
        let server = server.to_owned();
        let command = match key {
            'r' => Command::ReconnectServer { server },
            _ => Command::ToggleServer { server, on: health == "disabled" },
        };
        vec![self.ask("mcp", command)]
    }

    fn do_leave(&mut self, row: &str) -> Vec<Effect> {
        match row {
            "keep" => vec![Effect::Leave(Farewell::Keep)],
            "wait" => {
                self.leaving = true;
                // Where no line at the bottom says so all the while.
                if self.fold == ItemFolding::Printed {
                    self.say("info", "leaves when everything is done");
                }
                self.leave_if_done()
            }
            _ => vec![Effect::Leave(Farewell::Close)],
        }
    }

    /// Whether another session can take this one's place; says why not.
    fn can_go(&mut self) -> bool {
        let why_not = if self.known.attached() {
            "this session runs in another process; leave it first"
        } else if self.has_any_work() {
            "work is still running here: wait for it, or stop it with /tasks"
        } else {
            return true;
        };
        self.say("warning", why_not);
        false
    }

    /// Another session in place of this one. What still works here ends with it.
    pub(super) fn go_to(&mut self, start: Start) -> Vec<Effect> {
        if !self.can_go() {
            return Vec::new();
        }
        let draft = self.composer.text();
        vec![self.leave_for(start, draft)]
    }

    /// Nothing is changed here: it may turn out that this session stays.
    fn leave_for(&self, start: Start, draft: String) -> Effect {
        let (mode, model) = (self.view.mode, self.view.root.model.clone());
        Effect::Leave(Farewell::Next(Box::new(NextSession {
            start,
            draft,
            mode,
            model,
            shades: self.theme.shades,
            log_in: false,
        })))
    }

    /// This session again, once a provider was set up: everything is decided anew with it.
    pub(super) fn log_in(&mut self) -> Vec<Effect> {
        let Some(id) = self.view.info.as_ref().map(|info| info.session) else { return Vec::new() };
        if !self.can_go() {
            return Vec::new();
        }
        let (start, draft) = (Start::Resume { id, at: None }, self.composer.text());
        let (mode, model) = (self.view.mode, self.view.root.model.clone());
        vec![Effect::Leave(Farewell::Next(Box::new(NextSession {
            start,
            draft,
            mode,
            model,
            log_in: true,
            shades: self.theme.shades,
        })))]
    }

    /// Back to before a prompt: the conversation, the files, or both.
    fn rewind(&mut self, key: char, row: &str) -> Vec<Effect> {
        let Some(prompt) = self.prompts.iter().find(|prompt| prompt.line.to_string() == row).cloned() else {
            return Vec::new();
        };
        // Both or neither: files that are put back go with the conversation.
        if key != 'f' && !self.can_go() {
            return Vec::new();
        }
        if key == 'c' {
            return self.go_back(prompt.line);
        }
        let then = (key == '\n').then_some(prompt.line);
        vec![self.ask_for(AwaitedReply::Rewound(then), Command::Rewind { to: prompt.line, dry_run: false })]
    }

    /// What was put back; then the conversation, where that is wanted too.
    pub(super) fn rewound(&mut self, then: Option<LineId>, value: &Value) -> Vec<Effect> {
        let rewound = serde_json::from_value::<Rewound>(value.clone()).unwrap_or_default();
        if rewound.error.is_some() {
            // The session says why.
            if then.is_some() {
                self.say("info", "the conversation stays where it is too");
            }
            return Vec::new();
        }
        match rewound.files.len() {
            0 => self.say("info", "no file has changed since that prompt"),
            files => self.say("info", format!("{files} file(s) are as they were before that prompt")),
        }
        then.map(|line| self.go_back(line)).unwrap_or_default()
    }

    fn go_back(&mut self, line: LineId) -> Vec<Effect> {
        let Some(prompt) = self.prompts.iter().find(|prompt| prompt.line == line).cloned() else {
            return Vec::new();
        };
        let Some(session) = self.view.info.as_ref().map(|info| info.session) else { return Vec::new() };
        if !self.can_go() {
            return Vec::new();
        }
        let start = match prompt.before {
            Some(before) => Start::Resume { id: session, at: Some(ResumeAt { line: before, drops: None }) },
            None => Start::New { id: None },
        };
        vec![self.leave_for(start, prompt.text)]
    }

    /// Continues the latest other session of a list.
    pub(super) fn latest(&mut self, printed: &str) -> Vec<Effect> {
        let here = self.view.info.as_ref().map(|info| info.session);
        let ids = printed.lines().filter_map(|line| {
            let row: Value = serde_json::from_str(line).ok()?;
            row["session"].as_str()?.parse::<SessionId>().ok()
        });
        if let Some(id) = ids.into_iter().find(|id| Some(*id) != here) {
            return self.go_to(Start::Resume { id, at: None });
        }
        self.say("info", "no other sessions in this folder");
        Vec::new()
    }
}

/// An errand for one of the program's own subcommands.
pub(super) fn program(purpose: JobPurpose, words: &[&str]) -> Vec<Effect> {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    vec![Effect::Errand(purpose, FrontEndJob::Program(words))]
}

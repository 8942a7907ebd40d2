//! Commands of our own that show or change something besides the conversation: status, clipboard, changes, themes, files
//! of the person. Takes what stands behind the command; gives effects, or says what is wrong.

use decurion_protocol::{Command, Inspected, McpDetail, PermissionUpdate, WorkingChanges, nearest};
use ratatui_core::text::Line;

use super::open::Overlay;
use super::{App, AwaitedReply, Effect};
use crate::commands::{self, Topic};
use crate::conversation::ConversationItem;
use crate::list::{ChoiceList, ListAction, ListRow, Offer};
use crate::page::FullPage;
use crate::port::{FrontEndJob, JobPurpose};
use crate::text::one_line;
use crate::theme::{Shades, THEMES, Theme};
use crate::view::agents::{money, tokens};
use crate::view::diff::FileChange;
use crate::view::item::ItemFolding;
use crate::view::status::mode_words;

/// How many bytes go to a clipboard: terminals take about 100 000 of the sequence, which is a third longer.
const MOST_COPIED: usize = 74_000;
/// The theme that goes by the terminal's background.
const AUTO: &str = "auto";

impl App {
    /// Whether a prompt is a command that does not exist and is near to one that does. It is not sent; the session knows
    /// commands that were written since, so it decides about all others.
    pub(super) fn is_misspelt(&mut self, text: &str) -> bool {
        let Some(name) = commands::looks_like(text.trim_start()) else { return false };
        let skills = || self.library.skills.iter().map(|(name, _)| name.as_str());
        if skills().any(|known| known == name) || name.starts_with("mcp__") {
            return false;
        }
        let near = nearest(name, commands::all().map(|(name, _)| name).chain(skills()));
        if near.is_empty() {
            return false;
        }
        let near: Vec<String> = near.iter().map(|name| format!("/{name}")).collect();
        self.say("warning", format!("Unknown command /{name}. Did you mean {}?", near.join(" or ")));
        true
    }

    /// What is in force, once the session has told of its servers.
    pub(super) fn ask_for_status(&mut self) -> Vec<Effect> {
        vec![self.ask_for(AwaitedReply::Status, Command::Inspect { what: Inspected::Servers })]
    }

    /// A page of what is in force.
    pub(super) fn show_status(&mut self, servers: &[McpDetail]) {
        let (view, known) = (&self.view, &self.known);
        let mut rows: Vec<(&str, String)> = vec![("Version", known.version.clone())];
        if let Some(info) = &view.info {
            rows.push(("Session", info.session.to_string()));
            rows.push(("Folder", info.cwd.to_string()));
        }
        if let Some(worktree) = &view.root.worktree {
            rows.push(("Worktree", worktree.clone()));
        }
        let model = view.root.model.as_ref().or(known.model.as_ref());
        rows.push(("Model", model.cloned().unwrap_or_else(|| "none".to_owned())));
        rows.push(("Provider", known.provider.clone()));
        rows.push(("Mode", mode_words(view.mode).to_owned()));
        rows.push((
            "Sandbox",
            if known.sandbox.is_empty() { "off".to_owned() } else { known.sandbox.clone() },
        ));
        if view.root.tokens > 0 {
            let window = model.and_then(|model| known.windows.of(model));
            let of = window.map_or_else(String::new, |most| format!(" of {}", tokens(most)));
            rows.push(("Context", format!("{}{of}", tokens(view.root.tokens))));
        }
        rows.push(("Cost", money(view.cost(), view.cost_is_bound())));
        let agents = view.tasks().iter().filter(|task| task.is_agent());
        let working = agents.clone().filter(|task| !task.state.is_ended()).count();
        rows.push(("Agents", format!("{} started, {working} at work", agents.count())));
        let server = |server: &McpDetail| {
            let status = &server.status;
            let why = status.reason.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("{}: {}, {} tools{why}", status.name, status.status.name(), server.tools.len())
        };
        let servers: Vec<String> = servers.iter().map(server).collect();
        rows.push(("Servers", if servers.is_empty() { "none".to_owned() } else { servers.join("\n") }));
        rows.retain(|(_, value)| !value.is_empty());
        let row = |(name, value): (&str, String)| {
            let mut lines = value.lines().map(one_line);
            let first = format!("{name:<9} {}", lines.next().unwrap_or_default());
            std::iter::once(first)
                .chain(lines.map(|line| format!("{:<9} {line}", "")))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let text = rows.into_iter().map(row).collect::<Vec<_>>().join("\n");
        self.show_page("status", text);
    }

    /// Shows a requested text: over everything, or as lines in plain mode.
    pub(super) fn show_page(&mut self, title: &str, text: String) {
        if self.fold == ItemFolding::Printed {
            self.say("info", text);
        } else {
            self.page = Some(FullPage::text(title, text));
        }
    }

    /// The last answer to the terminal's clipboard.
    pub(super) fn copy(&mut self) -> Vec<Effect> {
        if self.fold == ItemFolding::Printed {
            self.say(
                "warning",
                "plain lines have no clipboard: /export FILE writes the conversation to a file",
            );
            return Vec::new();
        }
        let text = self.last_answer();
        if text.is_empty() {
            self.say("info", "nothing to copy yet");
            return Vec::new();
        }
        if text.len() > MOST_COPIED {
            let (kilobytes, most) = (text.len() / 1000, MOST_COPIED / 1000);
            self.say("warning", format!("the answer has {kilobytes} KB, a terminal's clipboard takes {most}: /export writes it to a file"));
            return Vec::new();
        }
        self.known.hint =
            Some(format!("copied {} characters, if the terminal allows it (OSC 52)", text.chars().count()));
        vec![Effect::Copy(text)]
    }

    /// The last answer, which may have come in pieces.
    fn last_answer(&self) -> String {
        let mut pieces = Vec::new();
        for item in self.items.iter().rev() {
            match item {
                ConversationItem::Said { text, goes_on } => {
                    pieces.push(text.as_str());
                    if !goes_on {
                        break;
                    }
                }
                ConversationItem::Prompt(_) if !pieces.is_empty() => break,
                _ => {}
            }
        }
        pieces.reverse();
        // What is pasted elsewhere commands nothing there either.
        let is_text = |letter: &char| matches!(letter, '\n' | '\t') || !letter.is_control();
        pieces.join("\n\n").chars().filter(is_text).collect()
    }

    /// What is changed in the working tree, once git has said so.
    pub(super) fn ask_for_changes(&mut self) -> Vec<Effect> {
        self.known.hint = Some("asking git …".to_owned());
        vec![self.ask_for(AwaitedReply::Changes, Command::Inspect { what: Inspected::Changes })]
    }

    /// The changes as a page, or as text in plain mode.
    pub(super) fn show_changes(&mut self, changes: WorkingChanges) {
        self.known.hint = None;
        let WorkingChanges { diff, untracked, is_cut } = changes;
        if diff.trim().is_empty() && untracked.is_empty() {
            self.say("info", "no changes in the working tree");
            return;
        }
        let mut notes: Vec<String> = Vec::new();
        if is_cut {
            notes.push("The rest is left out: there is too much of it.".to_owned());
        }
        if !untracked.is_empty() {
            notes.push(format!("Not tracked by git:\n{}", untracked.join("\n")));
        }
        let page = FullPage::changes(
            "changes since the last commit",
            FileChange::of_diff(&diff),
            notes.join("\n\n"),
        );
        self.page = Some(page);
    }

    /// One more directory, once the program has found it.
    pub(super) fn add_directory(&mut self, path: &str) -> Vec<Effect> {
        if path.is_empty() {
            self.say("info", "/add-dir PATH allows reading and editing in that directory, for this session");
            return Vec::new();
        }
        vec![Effect::Errand(JobPurpose::AddDirectory, FrontEndJob::Folder(path.to_owned()))]
    }

    /// The directory is there.
    pub(super) fn directory_found(&mut self, path: String) -> Vec<Effect> {
        let updates = vec![PermissionUpdate::AddDirectories { directories: vec![path.into()] }];
        vec![self.ask("/add-dir", Command::Permit { updates })]
    }

    /// Writes the conversation to a file; without a name the prompt holds one to be changed.
    pub(super) fn export(&mut self, file: &str) -> Vec<Effect> {
        let Some(session) = self.view.info.as_ref().map(|info| info.session.to_string()) else {
            self.say("info", "nothing to export yet");
            return Vec::new();
        };
        let begin: String = session.chars().take(8).collect();
        let usual = format!("~/session-{begin}.md");
        if !file.is_empty() || self.fold == ItemFolding::Printed {
            let file = if file.is_empty() { usual } else { file.to_owned() };
            return vec![Effect::Errand(JobPurpose::Say, FrontEndJob::Export(file))];
        }
        self.composer.set(&format!("/export {usual}"));
        self.known.hint = Some(
            "enter writes it there; change the name first if you like (FILE.jsonl: the transcript)"
                .to_owned(),
        );
        Vec::new()
    }

    /// The themes, the one in force chosen.
    pub(super) fn list_of_themes(&self) -> ChoiceList {
        let row = |name: &str, note: &str| ListRow {
            id: name.to_owned(),
            name: name.to_owned(),
            note: note.to_owned(),
            ..ListRow::default()
        };
        let mut rows = vec![row(AUTO, "by the terminal's background")];
        rows.extend(THEMES.iter().map(|(name, _, words)| row(name, words)));
        let mut list = ChoiceList::new("Theme", rows, &[Offer::row('\n', "use and keep it")], "");
        let now = THEMES.iter().position(|(_, shades, _)| *shades == self.theme.shades);
        list.chosen = now.map_or(0, |at| at + 1);
        list
    }

    /// The colours of a theme.
    fn themed(&self, name: &str) -> Theme {
        Theme::new(Shades::named(name).unwrap_or(self.known.background))
    }

    /// Shows the theme that is chosen in the list, or the one before again.
    pub(super) fn preview_theme(&mut self, picked: &ListAction) {
        let Overlay::List(Topic::Themes, list) = &self.open else { return };
        let chosen = list.rows.get(list.chosen).map(|row| row.id.clone());
        match picked {
            ListAction::Taken => {
                let before = self.theme.clone();
                self.theme_before.get_or_insert(before);
                self.theme = self.themed(&chosen.unwrap_or_default());
            }
            ListAction::Closed => {
                if let Some(before) = self.theme_before.take() {
                    self.theme = before;
                }
            }
            ListAction::Do(..) | ListAction::Passed => {}
        }
    }

    /// Uses a theme from now on.
    pub(super) fn use_theme(&mut self, name: &str) -> Vec<Effect> {
        self.theme = self.themed(name);
        self.theme_before = None;
        vec![Effect::Errand(JobPurpose::Say, FrontEndJob::Theme(name.to_owned())), Effect::Repaint]
    }

    /// A few lines in the colours of a theme.
    pub(super) fn sample(&self) -> Vec<Line<'static>> {
        let (old, new) = (
            "fn area(w: u32) -> u32 {\n    w * 2\n}\n",
            "fn area(w: u32) -> u32 {\n    w * w // squared\n}\n",
        );
        let room = self.columns.saturating_sub(2).max(2);
        let lines = FileChange::between("sample.rs", old, new).lines(&self.theme, room, 6, "");
        let indented = |mut line: Line<'static>| {
            line.spans.insert(0, "  ".into());
            line
        };
        lines.into_iter().map(indented).collect()
    }

    /// The key that closes things, with nothing open and nothing under way: pressed twice it empties the prompt, or goes
    /// back to an earlier one.
    pub(super) fn escape(&mut self, again: bool) -> Vec<Effect> {
        if self.composer.is_empty() {
            if self.prompts.is_empty() {
                return Vec::new();
            }
            if again {
                return self.list(Topic::Prompts);
            }
            self.known.hint = Some("press esc again to go back to an earlier prompt".to_owned());
        } else if again {
            let text = self.composer.take();
            self.end_proposals();
            self.history.push(&text);
            return vec![Effect::Remember(text)];
        } else {
            self.known.hint = Some("press esc again to clear the prompt".to_owned());
        }
        self.typist.escaped = true;
        Vec::new()
    }
}

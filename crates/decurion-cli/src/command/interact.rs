//! `decurion` at a terminal: the interactive front end. Takes what was decided about the session, opens it, and shows
//! it until the person leaves; then says goodbye, continues without a terminal, or opens another session in its place.
//!
//! | file | what |
//! |---|---|
//! | `leave.rs` | the ways to leave a session, and what follows |
//! | `first_start.rs` | questions before the first screen: a model, trust |
//! | `form.rs` | how these are asked: with arrow keys, or in plain lines |
//! | `background.rs` | a session that continues without a terminal |
//! | `program.rs` | what this program does for the front end |
//! | `prompts.rs` | prompts kept for later sessions |
//! | `records.rs` | conversations as text, instruction and memory files |
//! | `setup.rs` | setting up a provider that works |

mod background;
pub mod crash_notice;
pub mod first_start;
pub mod form;
pub mod leave;
mod program;
mod prompts;
mod records;
mod setup;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use camino::Utf8Path;
use decurion_config::shell_env::is_ordinary;
use decurion_config::{Environment, Loaded};
use decurion_exec::concealment;
use decurion_exec::keeper::{self, Leash};
use decurion_protocol::{
    Command, CommandSender, Envelope, Link, Mode, OpenSession, Place, Request, RequestId, SessionId, Start,
};
use decurion_serve::socket::Listener;
use decurion_store::{Archive, Found};
use decurion_tui::app::{App, NameLibrary, NextSession};
use decurion_tui::conversation::Greeting;
use decurion_tui::keymap::Keymap;
use decurion_tui::links::LinkBase;
use decurion_tui::plain::StdinLines;
use decurion_tui::terminal::{self, Notices, OwnedTerminal, Sequence};
use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::status::{SessionHome, Windows};
use decurion_tui::{FrontEndEnd, OutsideSignal, Showing};
use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use super::run::{Answer, Work, heard, open_door};
use crate::clock::SystemClock;
use crate::crash;
use crate::report::{Failure, note};
use crate::screen;
use leave::{Exits, following, open};
use program::TerminalProgram;
use prompts::PromptHistory;

/// How long a session may take to end after a fault.
const GOODBYE: Duration = Duration::from_secs(10);

/// Whether a terminal can do nothing but show lines.
pub fn is_dumb(environment: &Environment) -> bool {
    environment.get("TERM").is_none_or(|term| term == "dumb")
}

/// Runs this program once more, as the one that works, and waits at the terminal for it. The first so many arguments name
/// the subcommand.
pub fn keep(subcommand: usize) -> Result<u8, Failure> {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let kept_by = ["--kept-by".into(), keeper::own_id().to_string().into()];
    arguments.splice(subcommand..subcommand, kept_by);
    match keep_with(&arguments)? {
        keeper::ChildEnding::Exited(code) => Ok(code),
        keeper::ChildEnding::WentOn => Ok(0),
        keeper::ChildEnding::Killed { signal, held } => {
            give_back_terminal(held);
            if !is_wish(signal) {
                note(format!("killed by signal {signal}; everything up to here is recorded"));
                note("resume with: decurion --continue");
            }
            Ok(u8::try_from(128 + signal).unwrap_or(1))
        }
    }
}

/// Runs this program once more with these arguments, and waits at the terminal for it.
pub fn keep_with(arguments: &[OsString]) -> Result<keeper::ChildEnding, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot tell which program this is: {error}")))?;
    // Nothing is known of the settings here, and nothing of it is needed.
    concealment::hide_variables(&|name, _| !is_ordinary(&name.to_string_lossy()));
    crate::wire::conceal_json();
    keeper::keep(program.as_os_str(), arguments)
        .map_err(|error| Failure::failed(format!("cannot start {}: {error}", program.display())))
}

/// Puts right what a child that was killed left of the terminal; `held` says that it had that to itself.
pub fn give_back_terminal(held: bool) {
    let title = if held { terminal::OLD_TITLE } else { b"" };
    let _ = screen::command_terminal(&[terminal::RESET, title, b"\r\n"]);
}

/// Whether a signal that ended the child is a person's request to end, sent before the child could handle it.
fn is_wish(signal: i32) -> bool {
    use rustix::process::Signal;
    [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw).contains(&signal)
}

/// What a terminal needs besides the session.
pub struct Surroundings<'a> {
    pub loaded: &'a Arc<Loaded>,
    pub environment: &'a Environment,
    /// Whether nothing may move or be coloured.
    pub plain: bool,
    /// What holds us to the process that waits at the terminal.
    pub leash: Option<Leash>,
}

/// What comes after a session.
pub enum After {
    /// The end, with this exit code.
    End(u8),
    /// A provider is set up, and the session begins anew with it.
    LogIn(Box<LogIn>),
}

/// A session that waits for another provider.
pub struct LogIn {
    /// Its id; none if it has no prompt.
    pub session: Option<SessionId>,
    /// What it is to begin with.
    pub next: NextSession,
    /// What a person types, where that is plain lines.
    pub lines: Option<StdinLines>,
}

/// What a session begins with that was left to set up a provider.
#[derive(Default)]
pub struct Left {
    /// What is written in its prompt.
    pub draft: String,
    /// Whether its conversation is shown above.
    pub is_above: bool,
    /// A message about the provider.
    pub words: Option<String>,
    /// What a person types, where that is plain lines.
    pub lines: Option<StdinLines>,
}

/// Opens the session and shows it until the person leaves.
pub async fn run(
    answer: Answer,
    place: Arc<dyn Place>,
    around: Surroundings<'_>,
    left: Left,
) -> Result<After, Failure> {
    let mut signals =
        signals(around.leash.is_some()).map_err(|error| Failure::failed(format!("no signals: {error}")))?;
    let Answer {
        request, work, agents, skills, prompts, state, known, model, windows, api_key_source, ..
    } = answer;
    let mut library = library(&skills, &agents);
    library.skills.extend(
        prompts
            .iter()
            .flat_map(crate::servers::ServerPrompts::commands)
            .map(|command| (command.name.clone(), command.description.clone())),
    );
    library.models =
        known.models().iter().filter_map(|model| model["value"].as_str().map(str::to_owned)).collect();
    let mut first = match work {
        Work::Interactive(command) => command,
        _ => None,
    };
    let (shades, typed) = look(&around);
    let mut draft = left.draft + &typed;
    let mut is_above = left.is_above;
    let provider = provider_words(model.as_deref(), &api_key_source);
    let mut screen =
        Screening { around: &around, state: state.as_deref(), library, model, windows, provider, shades };
    let mut lines = around.plain.then(|| left.lines.unwrap_or_else(StdinLines::of_stdin));
    let mut request = request;
    // From before it is opened: a resumed session writes to its journal soon after.
    let killed = crash_notice::of(&request, state.as_deref(), "Ctrl+T, then r");
    let mut link = open(&*place, request.clone()).await?;
    let mut words: Option<(&str, String)> = left.words.map(|words| ("info", words)).or(killed);
    loop {
        let door = state.as_deref().and_then(|state| open_door(state, request.cwd.clone(), &link));
        let session = link.session;
        let exits = Arc::new(Exits {
            place: Arc::clone(&place),
            request: request.clone(),
            session,
            state: around.loaded.paths.state.clone(),
            door: door.as_ref().map(|door| door.path().to_owned()),
            next: Mutex::default(),
        });
        let is_new = matches!(request.start, Start::New { .. });
        let mut showing = screen.showing(link, &request.cwd, is_new, Owner::Ours(Arc::clone(&exits)))?;
        if std::mem::take(&mut is_above) {
            showing.app.is_above();
        }
        showing.app.draft(&std::mem::take(&mut draft));
        if let Some((level, words)) = words.take() {
            showing.app.say(level, words);
        }
        let commands = showing.link.commands.clone();
        // After the journal is read, so that its effects appear as new.
        if let Some(command) = first.take() {
            let _ = commands.send(Request { id: RequestId(0), command }).await;
        }
        let shown = AssertUnwindSafe(show(showing, lines.as_mut(), &mut signals)).catch_unwind().await;
        let Ok(ended) = shown else { return Err(broken(commands, door, &exits).await) };
        crash::tell();
        let ended = ended.map_err(|error| Failure::failed(format!("the terminal: {error}")))?;
        if let FrontEndEnd::Kept(link, view) = ended {
            let Some(leash) = around.leash else { return Ok(After::End(0)) };
            return background::go_on(link, door, leash, session, signals, *view).await.map(After::End);
        }
        if let Some(door) = door {
            door.finish().await;
        }
        let FrontEndEnd::Next(next) = ended else {
            exits.discard_empty();
            return Ok(After::End(say_goodbye(&ended, &exits)));
        };
        if next.log_in {
            let session = Some(session).filter(|_| !exits.is_empty());
            exits.discard_empty();
            return Ok(After::LogIn(Box::new(LogIn { session, next: *next, lines })));
        }
        screen.shades = next.shades;
        request = following(request, session, &next);
        if matches!(next.start, Start::New { .. }) {
            screen.model = next.model.clone().or(screen.model);
        }
        draft = next.draft;
        (link, words) = succeed(&exits, &mut request, next.mode).await?;
        if link.session != session {
            exits.discard_empty();
        }
    }
}

/// The session that replaces another, and its first message. If it does not open, the previous one is resumed, and says
/// why.
async fn succeed(
    exits: &Exits,
    request: &mut OpenSession,
    mode: Mode,
) -> Result<(Link, Option<(&'static str, String)>), Failure> {
    let opened = match exits.next() {
        Some(link) => Ok(link),
        None => open(&*exits.place, request.clone()).await,
    };
    let failure = match opened {
        Ok(link) => {
            let words = match request.start {
                Start::New { .. } if exits.is_empty() => None,
                ref start => words_for(start, exits.is_on_record()),
            };
            return Ok((link, words.map(|words| ("info", words.to_owned()))));
        }
        Err(failure) => failure,
    };
    request.start = Start::Resume { id: exits.session, at: None };
    request.mode = Some(mode);
    let link = open(&*exits.place, request.clone()).await?;
    Ok((link, Some(("error", failure.message))))
}

/// The message when one session replaces another.
fn words_for(start: &Start, is_on_record: bool) -> Option<&'static str> {
    match start {
        Start::New { .. } if is_on_record => Some("New session. The one above is kept (/resume)."),
        Start::New { .. } => Some("New session. No transcript of the one above is kept."),
        Start::Fork { .. } => Some("Forked. The original session is unchanged."),
        Start::Resume { at: Some(_), .. } => Some("Rewound to here. Later messages stay in the transcript."),
        Start::Resume { at: None, .. } => None,
    }
}

/// The screen itself failed: the session is ended as if the person had left, so that its journal is closed and none of
/// its work continues.
async fn broken(commands: CommandSender, door: Option<Listener>, exits: &Exits) -> Failure {
    let command = Command::Close { reason: "a fault in the program".to_owned() };
    if commands.send(Request { id: RequestId(u64::MAX), command }).await.is_ok() {
        let _ = tokio::time::timeout(GOODBYE, commands.closed()).await;
    }
    if let Some(door) = door {
        door.finish().await;
    }
    crash::tell();
    if !exits.is_on_record() {
        return Failure::failed("internal error; no transcript of this session is kept");
    }
    Failure::failed("internal error; everything up to here is recorded")
        .hint(format!("resume with: decurion --resume {}", exits.session))
}

/// Says how it ended, and where to find the session again; gives the exit code.
fn say_goodbye(ended: &FrontEndEnd, exits: &Exits) -> u8 {
    let code = match ended {
        FrontEndEnd::Left | FrontEndEnd::Kept(..) | FrontEndEnd::Next(_) => 0,
        FrontEndEnd::Over => {
            note("the session ended: its transcript can no longer be written, or another process closed it");
            1
        }
        FrontEndEnd::By(OutsideSignal::Interrupt) => 130,
        FrontEndEnd::By(OutsideSignal::Hangup) => 129,
        FrontEndEnd::By(_) => 143,
    };
    // A terminal that is gone reads nothing.
    if code != 129 && exits.is_on_record() && !exits.is_empty() {
        note(format!("resume with: decurion --resume {}", exits.session));
    }
    code
}

/// Shows a session in a terminal, or as plain lines that answer to those of a person.
pub async fn show(
    showing: Showing,
    plain: Option<&mut StdinLines>,
    signals: &mut mpsc::Receiver<OutsideSignal>,
) -> std::io::Result<FrontEndEnd> {
    match plain {
        Some(lines) => Box::pin(decurion_tui::plain::run(showing, signals, lines)).await,
        None => Box::pin(decurion_tui::run(showing, signals)).await,
    }
}

/// Whose process a session is in.
pub enum Owner {
    /// Ours, with the ways out of it.
    Ours(Arc<Exits>),
    Others,
}

/// What every session that is shown here has in common.
pub struct Screening<'a> {
    pub around: &'a Surroundings<'a>,
    /// The state folder; none where nothing is kept.
    pub state: Option<&'a Utf8Path>,
    /// What can be named.
    pub library: NameLibrary,
    /// The name of the model that will answer first.
    pub model: Option<String>,
    /// How many tokens each model can take.
    pub windows: Windows,
    /// Who answers, and where the key for that comes from.
    pub provider: String,
    /// What the terminal can show.
    pub shades: Shades,
}

/// Who answers, and where the key for that comes from.
fn provider_words(model: Option<&str>, key: &str) -> String {
    let provider = model.and_then(|model| model.split_once(['/', ':'])).map(|(provider, _)| provider);
    match (provider, key) {
        (Some(provider), "" | "none") => provider.to_owned(),
        (Some(provider), key) => format!("{provider} (key: {key})"),
        (None, key) => key.to_owned(),
    }
}

impl Screening<'_> {
    /// A session as it is shown from now on, with what is on record of it.
    pub fn showing(
        &self,
        link: Link,
        cwd: &Utf8Path,
        is_new: bool,
        owner: Owner,
    ) -> Result<Showing, Failure> {
        let loaded = self.around.loaded;
        let prompts = PromptHistory::new(self.state, cwd);
        // Without a transcript of this session, keys and earlier prompts still exist.
        let state = loaded.paths.state.as_deref();
        let history = decurion_tui::history::History::new(prompts.earlier());
        let mut app = App::new(Theme::new(self.shades), keys(state)?, history, OwnedTerminal::size());
        app.library = self.library.clone();
        let known = &mut app.known;
        known.windows.clone_from(&self.windows);
        known.model.clone_from(&self.model);
        known.sandbox = crate::wire::sandbox_name(loaded);
        known.can_bypass = loaded.settings.permissions.default_mode == Mode::BypassPermissions;
        env!("CARGO_PKG_VERSION").clone_into(&mut known.version);
        known.provider.clone_from(&self.provider);
        known.background = self.shades;
        known.notices = notices(self.around);
        known.reduced_motion = loaded.settings.reduced_motion;
        known.links = links(self.around, cwd);
        known.has_own = program::status_command(loaded).is_some();
        let exits = match owner {
            Owner::Ours(exits) => {
                // Continuing without a terminal needs a socket to come back through.
                if self.around.leash.is_some() && exits.door.is_some() {
                    known.home = SessionHome::Kept;
                }
                Some(exits)
            }
            Owner::Others => {
                known.home = SessionHome::Others;
                None
            }
        };
        app.set_vim(loaded.settings.editor_mode.as_deref() == Some("vim"));
        let past = if is_new { Vec::new() } else { past(state, link.session) };
        let taken = past.last().map_or(0, |envelope| envelope.seq);
        app.recall(&past);
        // Only the next run records it, and a person should see it before sending a prompt.
        if let Some(exits) = &exits {
            app.view.mode = in_force(&exits.request, &past, loaded.settings.permissions.default_mode);
        }
        if is_new && !self.around.plain {
            app.greet(self.greeting(cwd));
        }
        let desk =
            Arc::new(TerminalProgram::new(loaded, self.around.environment, prompts, (link.session, exits)));
        Ok(Showing { link, app, taken, desk, clock: Arc::new(SystemClock::new()), between: None })
    }
}

impl Screening<'_> {
    fn greeting(&self, cwd: &Utf8Path) -> Greeting {
        let home = self.around.loaded.paths.home.as_deref();
        let below = home.and_then(|home| cwd.strip_prefix(home).ok());
        let folder = below.map_or_else(|| cwd.to_string(), |below| format!("~/{below}"));
        let model = self.model.as_deref().unwrap_or("no model");
        Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: model.rsplit('/').next().unwrap_or(model).to_owned(),
            folder: folder.trim_end_matches('/').to_owned(),
        }
    }
}

/// The mode of a session that is opened with this request: the requested one, or the last one that a person chose, if
/// it is still available. The mode of a single run ended with it.
fn in_force(request: &OpenSession, past: &[Envelope], usual: Mode) -> Mode {
    let mut own = past.iter().rev().filter(|envelope| envelope.agent.is_none());
    let recorded = own.find_map(|envelope| envelope.event.mode());
    let is_to_be_had = |mode: &Mode| *mode != Mode::BypassPermissions || request.bypass;
    request.mode.or(recorded.filter(is_to_be_had)).unwrap_or(usual)
}

/// What is on record of a session.
fn past(state: Option<&Utf8Path>, session: SessionId) -> Vec<Envelope> {
    let Some(state) = state else { return Vec::new() };
    let archive = Archive::new(state);
    let Some(Found::Ours(paths)) = archive.find(session, &[]) else { return Vec::new() };
    archive.since(&paths, 0).unwrap_or_else(|error| {
        note(format!("what was said before cannot be shown: {error}"));
        Vec::new()
    })
}

/// What can be named after a slash or an at sign.
pub fn library(
    skills: &[Arc<decurion_protocol::Skill>],
    agents: &[Arc<decurion_protocol::AgentDefinition>],
) -> NameLibrary {
    let by_user = skills.iter().filter(|skill| skill.invocable.by_user());
    NameLibrary {
        skills: by_user.map(|skill| (skill.name.clone(), skill.description.clone())).collect(),
        agents: agents.iter().map(|agent| (agent.name.clone(), agent.description.clone())).collect(),
        models: Vec::new(),
    }
}

/// What the terminal can show, by the settings, the environment, or the terminal's own word; and what was typed until it
/// had said so.
pub fn look(around: &Surroundings<'_>) -> (Shades, String) {
    if let Some(shades) = known_shades(around) {
        return (shades, String::new());
    }
    let said = terminal::said();
    (said.shades.unwrap_or_default(), said.typed)
}

/// What links in what is shown are relative to, where the terminal is known to follow links or to pass over them.
fn links(around: &Surroundings<'_>, cwd: &Utf8Path) -> Option<LinkBase> {
    let says = |name: &str| around.environment.get(name).unwrap_or_default();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    (!around.plain && follows_links(says)).then(|| LinkBase { host, folder: cwd.to_string() })
}

/// Whether a terminal with this environment is known to follow links or to pass over them.
fn follows_links<'a>(says: impl Fn(&str) -> &'a str) -> bool {
    const TERMS: [&str; 8] = ["alacritty", "contour", "foot", "ghostty", "kitty", "rio", "tmux", "wezterm"];
    const PROGRAMS: [&str; 8] =
        ["Hyper", "Tabby", "WezTerm", "ghostty", "iTerm.app", "rio", "tmux", "vscode"];
    const OWN: [&str; 3] = ["KITTY_WINDOW_ID", "KONSOLE_VERSION", "WT_SESSION"];
    /// Older ones have faults with links.
    const VTE: u32 = 5_000;
    let term = says("TERM");
    // Inside of GNU screen the variables are those of the terminal around it.
    if matches!(term, "" | "dumb" | "linux") || term.starts_with("screen") && says("TMUX").is_empty() {
        return false;
    }
    TERMS.iter().any(|name| term.contains(name))
        || PROGRAMS.contains(&says("TERM_PROGRAM"))
        || says("VTE_VERSION").parse::<u32>().is_ok_and(|version| version >= VTE)
        || OWN.iter().any(|name| !says(name).is_empty())
        || term.starts_with("screen")
}

fn known_shades(around: &Surroundings<'_>) -> Option<Shades> {
    let says = |name: &str| around.environment.get(name).unwrap_or_default();
    if around.plain || !says("NO_COLOR").is_empty() || says("TERM") == "dumb" {
        return Some(Shades::None);
    }
    if let Some(shades) = around.loaded.settings.theme.as_deref().and_then(Shades::named) {
        return Some(shades);
    }
    // "15;0": white letters on black, set by some terminals for their programs.
    let background = says("COLORFGBG").rsplit(';').next()?.parse::<u8>().ok()?;
    Some(if matches!(background, 7 | 9..=15) { Shades::Light } else { Shades::Dark })
}

/// How the terminal notifies a person who looks elsewhere. Whether tmux passes anything through is unknown, so there
/// only an explicit setting counts.
fn notices(around: &Surroundings<'_>) -> Notices {
    let says = |name: &str| around.environment.get(name).unwrap_or_default();
    let tmux = !says("TMUX").is_empty();
    let sequence = |kind| Notices::Sequence { kind, tmux };
    match around.loaded.settings.notifications.as_deref() {
        Some("off") => return Notices::Off,
        Some("bell") => return Notices::Bell,
        Some("osc9") => return sequence(Sequence::Osc9),
        Some("osc777") => return sequence(Sequence::Osc777),
        Some("osc99") => return sequence(Sequence::Osc99),
        _ if tmux || !says("STY").is_empty() => return Notices::Bell,
        _ => {}
    }
    match (says("TERM_PROGRAM"), says("TERM")) {
        ("iTerm.app", _) => sequence(Sequence::Osc9),
        ("WezTerm" | "ghostty", _) => sequence(Sequence::Osc777),
        (_, "xterm-kitty") => sequence(Sequence::Osc99),
        (_, term) if ["foot", "rxvt", "xterm-ghostty"].iter().any(|known| term.starts_with(known)) => {
            sequence(Sequence::Osc777)
        }
        _ => Notices::Bell,
    }
}

/// The keys, with a person's own: `keys.json` in the state folder, an object of keys and names of actions.
fn keys(state: Option<&Utf8Path>) -> Result<Keymap, Failure> {
    let mut keymap = Keymap::default();
    let Some(path) = state.map(|state| state.join("keys.json")) else { return Ok(keymap) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(keymap),
        Err(error) => return Err(Failure::usage(format!("cannot read {path}: {error}"))),
    };
    let wrong = |reason: String| {
        Failure::usage(format!("{path}: {reason}"))
            .hint("it is like {\"ctrl+q\": \"leave\", \"ctrl+b\": null}; the key ? lists keys and actions")
    };
    let bound: BTreeMap<String, Option<String>> =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    for (key, action) in bound {
        keymap.bind(&key, action.as_deref()).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(keymap)
}

/// Signals as the front end knows them. With a keeper, those that the terminal sends to both of us come from it alone.
pub fn signals(kept: bool) -> std::io::Result<mpsc::Receiver<OutsideSignal>> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw());
    let (interrupt, suspend) = if kept {
        drop(signal(SignalKind::interrupt())?);
        drop(signal(stop)?);
        (SignalKind::user_defined1(), SignalKind::user_defined2())
    } else {
        (SignalKind::interrupt(), stop)
    };
    heard([
        (interrupt, OutsideSignal::Interrupt),
        (suspend, OutsideSignal::Suspend),
        (SignalKind::terminate(), OutsideSignal::Terminate),
        (SignalKind::hangup(), OutsideSignal::Hangup),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_for_terminals_that_are_known_to_take_them() {
        for (variables, follows) in [
            (&[("TERM", "xterm-256color")][..], false),
            (&[("TERM", "xterm-256color"), ("VTE_VERSION", "7600")], true),
            (&[("TERM", "xterm-256color"), ("VTE_VERSION", "4200")], false),
            (&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "vscode")], true),
            (&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "Apple_Terminal")], false),
            (&[("TERM", "xterm-kitty")], true),
            (&[("TERM", "tmux-256color")], true),
            (&[("TERM", "screen-256color"), ("TMUX", "/tmp/x")], true),
            (&[("TERM", "screen-256color"), ("VTE_VERSION", "7600")], false),
            (&[("TERM", "linux"), ("WT_SESSION", "1")], false),
            (&[("TERM", "dumb"), ("TERM_PROGRAM", "vscode")], false),
            (&[], false),
        ] {
            let says = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| *value)
            };
            assert_eq!(follows_links(says), follows, "{variables:?}");
        }
    }
}

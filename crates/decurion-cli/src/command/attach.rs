//! `decurion attach` and `decurion ps`: sessions that live in other processes. Takes which one; shows it in this terminal
//! as its own would, or lists them all. The process that has a session keeps it: leaving here ends nothing.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::{Environment, LoadRequest, Paths, Plugins};
use decurion_engine::{Definitions as _, Library as _};
use decurion_protocol::{Command, SessionId, SessionSummary, SessionView};
use decurion_serve::socket::{ConnectError, Hello, LiveSessions};
use decurion_store::{Archive, Found};
use decurion_tui::plain::StdinLines;
use decurion_tui::view::status::Windows;
use decurion_tui::{FrontEndEnd, OutsideSignal};
use serde_json::json;

use super::interact::form::ask;
use super::interact::{Owner, Screening, Surroundings, library, look, show, signals};
use super::run::block_on;
use crate::args::AttachArgs;
use crate::definitions::LiveDefinitions;
use crate::library::Shelf;
use crate::models::Configured;
use crate::report::{Failure, note};
use crate::screen::TextStyle;
use crate::table::{TableCell, TextTable, short, short_ids};
use crate::wire;

/// How long a session may take to answer before it counts as one that only takes long.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How soon a session that is no longer needed ends.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Shows a session of another process.
pub fn run(args: &AttachArgs) -> Result<u8, Failure> {
    if !super::interact::first_start::somebody() {
        return Err(
            Failure::usage("not a terminal").hint("`decurion tasks` shows and steers a session without one")
        );
    }
    let (cwd, environment) = wire::surroundings()?;
    let paths = Paths::discover(&cwd, &environment)?;
    let state = wire::state(&paths)?;
    block_on(async {
        let live = LiveSessions::new(&state);
        let hello = choose(&live, args.session.as_deref(), &paths).await?;
        let attached = live.attach(hello.session).await.map_err(|error| unreachable_session(&error))?;
        let loaded =
            Arc::new(decurion_config::load(&LoadRequest::new(hello.cwd.clone(), environment.clone()))?);
        let plain = args.plain || environment.get("TERM").is_none_or(|term| term == "dumb");
        let around = Surroundings { loaded: &loaded, environment: &environment, plain, leash: None };
        let plugins = Plugins::load(&loaded, &[]);
        let agents = LiveDefinitions::new(&loaded, None, &plugins).all();
        let mut library = library(&Shelf::new(&loaded, &plugins).skills(), &agents);
        let models = Configured::new(Arc::clone(&loaded), None);
        library.models = models.names();
        let windows = Windows::new(move |model| models.window(model));
        let (shades, typed) = look(&around);
        let provider = String::new();
        let (around, place, model) = (&around, Some(state.as_path()), None);
        let screen = Screening { around, state: place, library, model, windows, provider, shades };
        let mut showing = screen.showing(attached.link, &hello.cwd, false, Owner::Others)?;
        showing.app.draft(&typed);
        let mut signals = signals(false).map_err(|error| Failure::failed(format!("no signals: {error}")))?;
        let mut lines = plain.then(StdinLines::of_stdin);
        let ended = show(showing, lines.as_mut(), &mut signals)
            .await
            .map_err(|error| Failure::failed(format!("the terminal: {error}")))?;
        Ok(match &ended {
            FrontEndEnd::By(OutsideSignal::Interrupt) => 130,
            FrontEndEnd::By(OutsideSignal::Hangup) => 129,
            FrontEndEnd::By(_) => 143,
            FrontEndEnd::Left | FrontEndEnd::Over | FrontEndEnd::Kept(..) | FrontEndEnd::Next(..) => {
                if goes_on(&live, &state, hello.session, matches!(ended, FrontEndEnd::Over)).await {
                    let id = hello.session;
                    note(format!("still running; reattach: decurion attach {id}"));
                } else {
                    say_over(&state, hello.session);
                }
                0
            }
        })
    })?
}

/// Whether the session continues without us. Its socket may outlive it for a moment: what counts is an answer. A slow
/// one is alive, unless the session has left us.
async fn goes_on(live: &LiveSessions, state: &Utf8Path, session: SessionId, has_left: bool) -> bool {
    // One without a terminal ends when no agent works and the last client leaves: to ask it is to be a client again.
    let socket = live.socket(session);
    if !recorded(&Archive::new(state), session).is_working() {
        for _ in 0..(ENDS_WITHIN.as_millis() / LOOK_EVERY.as_millis()) {
            if !socket.exists() {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    let Ok(mut attached) = live.attach(session).await else { return false };
    let answer = tokio::time::timeout(ANSWER_WITHIN, attached.ask(Command::Tasks)).await;
    answer.map_or(!has_left, |answer| answer.is_some())
}

fn say_over(state: &Utf8Path, session: SessionId) {
    note("the session has ended");
    if let Some(Found::Ours(_)) = Archive::new(state).find(session, &[]) {
        note(format!("resume with: decurion --resume {session}"));
    }
}

fn unreachable_session(error: &ConnectError) -> Failure {
    Failure::failed(error.to_string()).hint("`decurion ps` lists the running sessions")
}

/// The session that is meant: by the beginning of its id, the only one of this folder, or the only one.
async fn choose(live: &LiveSessions, wanted: Option<&str>, paths: &Paths) -> Result<Hello, Failure> {
    let all = hellos(live).await?;
    let fits = |hello: &&Hello| match wanted {
        Some(text) => hello.session.to_string().starts_with(text),
        None => hello.cwd == paths.cwd,
    };
    let mut fitting: Vec<Hello> = all.iter().filter(fits).cloned().collect();
    if fitting.is_empty() && wanted.is_none() {
        fitting.clone_from(&all);
    }
    let hint = "`decurion ps` lists the running sessions";
    match fitting.len() {
        1 => Ok(fitting.remove(0)),
        0 if all.is_empty() => Err(Failure::usage("no running sessions")
            .hint("`decurion --continue` resumes the last one of this folder")),
        0 => Err(Failure::usage(format!("no running session has this id: {}", wanted.unwrap_or_default()))
            .hint(hint)),
        _ => Ok(pick(&Archive::new(wire::state(paths)?), fitting)?),
    }
}

/// Lists sessions and asks which one is meant.
fn pick(archive: &Archive, mut sessions: Vec<Hello>) -> Result<Hello, Failure> {
    say!("Which session?");
    let listed = archive.list(None).unwrap_or_default();
    for (at, hello) in sessions.iter().enumerate() {
        let view = recorded(archive, hello.session);
        let state = match (view.questions.len(), view.is_working()) {
            (0, false) => "idle".to_owned(),
            (0, true) => "working".to_owned(),
            (1, _) => "1 question".to_owned(),
            (many, _) => format!("{many} questions"),
        };
        let id = hello.session.to_string();
        say!("{:>3}. {}  {state:<11}  {}  {}", at + 1, &id[..8], hello.cwd, title(&listed, hello));
    }
    let answer = ask(&format!("Choose 1–{} (Enter to quit): ", sessions.len()))?.unwrap_or_default();
    let number = answer.parse::<usize>().ok().filter(|number| (1..=sessions.len()).contains(number));
    match number {
        Some(number) => Ok(sessions.swap_remove(number - 1)),
        None if answer.is_empty() => Err(Failure::usage("no session chosen")),
        None => {
            Err(Failure::usage(format!("\"{}\" is not one of the sessions", crate::report::visible(&answer)))
                .hint("name one by the beginning of its id: decurion attach ID"))
        }
    }
}

async fn hellos(live: &LiveSessions) -> Result<Vec<Hello>, Failure> {
    live.hellos().await.map_err(|error| Failure::failed(format!("cannot read the state folder: {error}")))
}

/// Lists the sessions that live in some process.
pub fn list(json: bool) -> Result<u8, Failure> {
    let (cwd, environment): (Utf8PathBuf, Environment) = wire::surroundings()?;
    let state = wire::state(&Paths::discover(&cwd, &environment)?)?;
    let all = block_on(async { hellos(&LiveSessions::new(&state)).await })??;
    let archive = Archive::new(&state);
    let recorded_ids = archive.list(None).unwrap_or_default();
    let ids = recorded_ids.iter().map(|one| one.session).chain(all.iter().map(|hello| hello.session));
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let length = short_ids(ids.iter().map(String::as_str));
    let mut table = TextTable::new(["ID", "PID", "STATE", "FOLDER", "TITLE"]);
    for hello in &all {
        let view = recorded(&archive, hello.session);
        let counts = view.standings();
        // The session's own agent is one of them.
        let root = &view.root;
        let working =
            counts.working + usize::from(root.began.is_some() && root.ended.is_none() && root.asks == 0);
        let title = title(&recorded_ids, hello);
        if json {
            say!(
                "{}",
                json!({"session": hello.session, "pid": hello.pid, "cwd": hello.cwd, "title": title,
                    "working": working, "waiting": counts.waiting, "questions": view.questions.len()})
            );
            continue;
        }
        let id = hello.session.to_string();
        table.row([
            TableCell::new(TextStyle::Strong, short(&id, length)),
            hello.pid.to_string().into(),
            standing(working, view.questions.len()),
            TableCell::new(TextStyle::Faint, hello.cwd.as_str()),
            title.into(),
        ]);
    }
    table.print();
    if all.is_empty() && !json {
        say!("No running sessions.");
    }
    Ok(0)
}

/// How a session stands: what needs a person comes first.
fn standing(working: usize, questions: usize) -> TableCell {
    let asks = match questions {
        0 => None,
        1 => Some("1 question".to_owned()),
        count => Some(format!("{count} questions")),
    };
    let works = (working > 0).then(|| format!("{working} working"));
    let style = if asks.is_some() { TextStyle::Warning } else { TextStyle::Plain };
    let words: Vec<String> = asks.into_iter().chain(works).collect();
    TableCell::new(style, if words.is_empty() { "idle".to_owned() } else { words.join(", ") })
}

/// The session as far as it is on record.
fn recorded(archive: &Archive, session: SessionId) -> SessionView {
    let mut view = SessionView::default();
    if let Some(Found::Ours(paths)) = archive.find(session, &[]) {
        let past = archive.since(&paths, 0).unwrap_or_default();
        for envelope in &past {
            view.take(envelope);
        }
    }
    view
}

fn title(all: &[SessionSummary], hello: &Hello) -> String {
    let title = all.iter().find(|summary| summary.session == hello.session).map(|summary| &*summary.title);
    crate::report::visible(title.unwrap_or_default())
}

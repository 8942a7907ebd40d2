//! `decurion sessions`: what was recorded. Takes a subcommand, prints lists, conversations or whole sessions, or removes one.

use std::io::Write as _;

use camino::Utf8Path;
use decurion_protocol::event::Origin;
use decurion_protocol::{Block, Envelope, Event, Message, Role, SessionId, SessionSummary};
use decurion_store::{Archive, Found, LeaseState, Leases, OpenError, ReplayOptions, SessionPaths, replay};
use serde_json::json;

use crate::args::SessionsCommand;
use crate::consent::agreed;
use crate::report::{Failure, note, visible};
use crate::screen::TextStyle;
use crate::table::{TableCell, TextTable, ago, short, short_ids, size};
use crate::{screen, wire};

/// Lists, shows, exports or removes sessions.
pub fn run(command: SessionsCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let home = wire::state(&decurion_config::Paths::discover(&cwd, &environment)?)?;
    let archive = Archive::new(home);
    match command {
        SessionsCommand::List { all, json } => {
            let filter = (!all).then_some(cwd.as_path());
            list(&archive, filter, json)
        }
        SessionsCommand::Show { id, json } => show(&find(&archive, &id)?, json),
        SessionsCommand::Export { id, json, output } => {
            export(&archive, &find(&archive, &id)?, json, output.as_deref())
        }
        SessionsCommand::Rm { id, yes } => remove(&archive, &id, yes),
    }
    .map(|()| 0)
}

/// The id of a session that is named by all of it or by its beginning, where that is the beginning of no other.
pub(super) fn named(archive: &Archive, id: &str) -> Result<SessionId, Failure> {
    if let Ok(session) = id.parse() {
        return Ok(session);
    }
    let listed = archive.list(None).map_err(|error| unreadable(archive, &error))?;
    let beginning = id.to_ascii_lowercase();
    let begins = |session: &SessionId| !beginning.is_empty() && session.to_string().starts_with(&beginning);
    let found: Vec<SessionId> = listed.iter().map(|one| one.session).filter(begins).collect();
    match &*found {
        [session] => Ok(*session),
        [] => Err(Failure::usage(format!("session not found: {}", visible(id)))
            .hint("`decurion sessions list --all` lists the sessions")),
        several => Err(Failure::usage(format!("{} sessions begin with {id}", several.len()))
            .hint("give more of the id; `decurion sessions list --all` lists the sessions")),
    }
}

/// The record of the session of this id, or of this beginning of one.
pub(super) fn find(archive: &Archive, id: &str) -> Result<SessionPaths, Failure> {
    let session = named(archive, id)?;
    match archive.find(session, &[]) {
        Some(Found::Ours(paths)) => Ok(paths),
        _ => Err(decurion_protocol::PlaceError::NoSuchSession(session).into()),
    }
}

fn list(archive: &Archive, cwd: Option<&Utf8Path>, json: bool) -> Result<(), Failure> {
    let all = archive.list(None).map_err(|error| unreadable(archive, &error))?;
    // The beginning of an id that is shown is enough for every command, also in other folders.
    let length = id_length(&all);
    let sessions = || all.iter().filter(|session| cwd.is_none_or(|cwd| session.cwd == cwd));
    if json {
        sessions().for_each(|session| say!("{}", json!(session)));
        return Ok(());
    }
    if sessions().next().is_none() {
        say!(
            "{}",
            if cwd.is_some() {
                "No sessions in this folder (--all lists those of every folder)."
            } else {
                "No sessions."
            }
        );
        return Ok(());
    }
    let mut table = TextTable::new(["ID", "UPDATED", "SIZE", "FOLDER", "TITLE"]);
    for session in sessions() {
        let id = session.session.to_string();
        table.row([
            TableCell::new(TextStyle::Strong, short(&id, length)),
            ago(session.modified).into(),
            size(session.bytes).into(),
            TableCell::new(TextStyle::Faint, if cwd.is_some() { "" } else { session.cwd.as_str() }),
            decurion_serve::progress::one_line(&session.title).into(),
        ]);
    }
    table.print();
    Ok(())
}

/// How much of its id tells a session from all others.
pub(in crate::command) fn id_length(all: &[SessionSummary]) -> usize {
    let ids: Vec<String> = all.iter().map(|session| session.session.to_string()).collect();
    short_ids(ids.iter().map(String::as_str))
}

/// Removes a session for good, after asking. Its worktrees are not touched.
fn remove(archive: &Archive, id: &str, yes: bool) -> Result<(), Failure> {
    let session = find(archive, id)?.session();
    let leases = Leases::new(archive.layout().home());
    let live = || {
        Failure::usage(format!("session {session} is running"))
            .hint(format!("`decurion attach {session}` shows it; end it first"))
    };
    if leases.is_alive(session) {
        return Err(live());
    }
    let all = archive.list(None).map_err(|error| unreadable(archive, &error))?;
    let title = all.into_iter().find(|one| one.session == session).map(|one| one.title);
    let title = decurion_serve::progress::one_line(&title.unwrap_or_default());
    let (worktrees, _) = leases.all(None).map_err(|error| unreadable(archive, &error))?;
    let kept = worktrees.iter().filter(|one| one.session == session && one.state != LeaseState::Removed);
    for lease in kept {
        note(format!(
            "its worktree {} stays, with the work in it: {} on {}",
            visible(&lease.name),
            visible(lease.path.as_str()),
            visible(&lease.branch)
        ));
    }
    agreed(yes, &format!("Remove session {session} ({title}) for good?"))?;
    archive.remove(session).map_err(|error| match error {
        OpenError::Held { .. } => live(),
        error => Failure::failed(format!("cannot remove session {session}: {error}")),
    })?;
    say!("Removed session {session}.");
    Ok(())
}

/// The state folder cannot be read.
pub(super) fn unreadable(archive: &Archive, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot read the state folder {}: {error}", archive.layout().home()))
}

fn show(paths: &SessionPaths, json: bool) -> Result<(), Failure> {
    let mut print = |envelope: Envelope| {
        let at = decurion_serve::stream_json::timestamp(envelope.at);
        match envelope.event {
            Event::Message { message, .. } if json => say!("{}", json!({"at": at, "message": message})),
            // What the runtime told the model is no word of the person.
            Event::Message { meta, .. } if matches!(meta.origin, Origin::Note(_)) => {}
            Event::Message { message, .. } => print_message(&message),
            Event::CallEnded { call, output, .. } if json => say!(
                "{}",
                json!({"at": at, "call": call, "content": output.content, "is_error": output.is_error})
            ),
            Event::CallEnded { output, .. } => {
                say!("  → {}", decurion_serve::progress::one_line(&output.content.text()));
            }
            Event::Compacted { summary, .. } => {
                say!("\n— conversation shortened —\n{}", summary.text());
            }
            Event::RunEnded { outcome, .. } if !json => say!("\n— {} —", outcome.word()),
            _ => {}
        }
    };
    let report = replay(paths, &ReplayOptions::default(), &mut print)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", paths.transcript())))?;
    if let Some(problems) = report.problems() {
        note(format!("{}: {problems}", paths.transcript()));
    }
    Ok(())
}

fn print_message(message: &Message) {
    let who = match message.role {
        Role::User => "you",
        Role::Assistant => "agent",
    };
    for block in &message.blocks {
        match block {
            Block::Text { text } => say!("\n{who}: {text}"),
            Block::ToolUse { name, input, .. } => {
                say!("\n{who} calls {name} {}", decurion_serve::progress::one_line(&input.to_string()));
            }
            _ => {}
        }
    }
}

fn export(
    archive: &Archive,
    paths: &SessionPaths,
    json: bool,
    output: Option<&Utf8Path>,
) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::failed(format!("cannot export {}: {error}", paths.session()));
    let mut out: Box<dyn std::io::Write> = match output {
        Some(path) => Box::new(std::io::BufWriter::new(std::fs::File::create(path).map_err(failed)?)),
        None => Box::new(screen::stdout()),
    };
    if json {
        archive.export(paths, &mut out).map_err(failed)?;
    } else {
        let mut transcript = std::fs::File::open(paths.transcript()).map_err(failed)?;
        std::io::copy(&mut transcript, &mut out).map_err(failed)?;
    }
    out.flush().map_err(failed)
}

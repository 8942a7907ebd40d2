//! `decurion sessions`: what was recorded. Takes a subcommand, prints lists, conversations or whole sessions.

use std::io::Write as _;

use camino::Utf8Path;
use decurion_protocol::{Block, Envelope, Event, Message, Role, SessionId};
use decurion_store::{Archive, Found, ReplayOptions, SessionPaths, replay};
use serde_json::json;

use crate::args::SessionsCommand;
use crate::report::{Failure, visible};
use crate::{screen, wire};

/// Lists, shows or exports sessions.
pub fn run(command: SessionsCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let paths = decurion_config::Paths::discover(&cwd, &environment)?;
    let home = paths.state.ok_or_else(|| {
        Failure::usage("there is no state folder, because there is no home folder").hint("set DECURION_HOME")
    })?;
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
        [] => Err(Failure::usage(format!("there is no session of this id: {}", visible(id)))
            .hint("`decurion sessions list --all` shows them")),
        several => Err(Failure::usage(format!("{} sessions begin with {id}", several.len()))
            .hint("give more of the id; `decurion sessions list --all` shows them")),
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
    let sessions = archive.list(cwd).map_err(|error| unreadable(archive, &error))?;
    if sessions.is_empty() && !json {
        say!("no sessions{}", if cwd.is_some() { " in this folder (--all shows all)" } else { "" });
    }
    for session in sessions {
        if json {
            say!("{}", json!(session));
        } else {
            let when = session.modified.map(|at| at.strftime("%Y-%m-%d %H:%M").to_string());
            let kilobytes = session.bytes.div_ceil(1024);
            say!(
                "{}  {}  {kilobytes:>6} KB  {}",
                session.session,
                when.unwrap_or_default(),
                decurion_serve::progress::one_line(&session.title)
            );
        }
    }
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
        crate::report::note(format!("{}: {problems}", paths.transcript()));
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

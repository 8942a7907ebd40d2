//! `decurion trace`: where the time of a session went. Takes a session, reads what was recorded of it, writes a
//! trace-event file for Perfetto or Chrome, a picture, or both.

use std::io::{BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::PlaceError;
use decurion_serve::trace::{Timeline, TimelineFold};
use decurion_store::{Archive, ReplayOptions, Scope, SessionPaths, replay};
use serde_json::json;

use super::sessions::{find, unreadable};
use crate::args::TraceArgs;
use crate::report::{Failure, note};
use crate::{screen, wire};

/// What stands for standard output.
const STDOUT: &str = "-";

pub fn run(args: &TraceArgs) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let paths = decurion_config::Paths::discover(&cwd, &environment)?;
    let home = paths.state.ok_or_else(|| {
        Failure::usage("there is no state folder, because there is no home folder").hint("set DECURION_HOME")
    })?;
    let archive = Archive::new(home);
    let session = choose(&archive, &paths.cwd, args.session.as_deref())?;
    let wanted = TraceTarget::of(args, &session)?;
    let timeline = read(&session)?;
    if let Some(target) = &wanted.trace {
        save(target, args.force, &mut |out| timeline.write_json(out))?;
    }
    if let Some(target) = &wanted.picture {
        save(target, args.force, &mut |out| out.write_all(timeline.svg().as_bytes()))?;
    }
    wanted.tell(args.json, &session, &timeline);
    Ok(0)
}

/// The session of this id, or the one of this folder that was written last.
fn choose(archive: &Archive, cwd: &Utf8Path, wanted: Option<&str>) -> Result<SessionPaths, Failure> {
    if let Some(id) = wanted {
        return find(archive, id);
    }
    let latest = archive.latest(cwd).map_err(|error| unreadable(archive, &error))?;
    let latest = latest.ok_or_else(|| {
        Failure::usage("no sessions in this folder")
            .hint("name one of another folder; `decurion sessions list --all` shows them")
    })?;
    find(archive, &latest.session.to_string())
}

pub fn read(session: &SessionPaths) -> Result<Timeline, Failure> {
    let mut fold = TimelineFold::new();
    let options = ReplayOptions { scope: Scope::Everything, ..ReplayOptions::default() };
    let report =
        replay(session, &options, &mut |envelope| fold.take(&envelope)).map_err(|error| {
            match error.kind() {
                std::io::ErrorKind::NotFound => PlaceError::NoSuchSession(session.session()).into(),
                _ => Failure::failed(format!("cannot read {}: {error}", session.transcript())),
            }
        })?;
    if let Some(problems) = report.problems() {
        note(format!("{}: {problems}", session.transcript()));
    }
    Ok(fold.finish())
}

struct TraceTarget {
    trace: Option<Utf8PathBuf>,
    picture: Option<Utf8PathBuf>,
}

impl TraceTarget {
    /// What the arguments ask for, refused before anything is read or written.
    fn of(args: &TraceArgs, session: &SessionPaths) -> Result<Self, Failure> {
        let (trace, picture) = match (&args.output, &args.svg) {
            (None, None) => {
                let id = session.session().to_string();
                let short = id.split('-').next().unwrap_or_default();
                (Some(Utf8PathBuf::from(format!("trace-{short}.json"))), None)
            }
            (trace, picture) => (trace.clone(), picture.clone()),
        };
        if trace.is_some() && trace == picture {
            return Err(Failure::usage("the trace and the picture cannot go to the same place"));
        }
        let to_stdout = [&trace, &picture].into_iter().flatten().any(|target| target == STDOUT);
        if to_stdout && args.json {
            return Err(Failure::usage("--json prints on standard output, where the trace goes already")
                .hint("give -o a file, or leave out --json"));
        }
        for target in [&trace, &picture].into_iter().flatten() {
            if !args.force && target != STDOUT && target.is_file() {
                return Err(there_already(target));
            }
        }
        Ok(Self { trace, picture })
    }

    fn tell(&self, json: bool, session: &SessionPaths, timeline: &Timeline) {
        let unfinished = timeline.spans.iter().filter(|span| span.unfinished).count();
        let (agents, spans) = (timeline.agents.len(), timeline.spans.len());
        if json {
            let summary = json!({
                "session": session.session(), "agents": agents, "spans": spans,
                "flows": timeline.flows.len(), "unfinished": unfinished,
                "duration_ms": timeline.end / 1_000, "trace": self.trace, "svg": self.picture,
            });
            say!("{summary}");
            return;
        }
        let open = match unfinished {
            0 => String::new(),
            some => format!(", {some} of them without an end on record"),
        };
        for (target, hint) in
            [(&self.trace, "; open it in https://ui.perfetto.dev or chrome://tracing"), (&self.picture, "")]
        {
            if let Some(target) = target.as_ref().filter(|target| *target != STDOUT) {
                say!("{target}: {agents} agents, {spans} spans{open}{hint}");
            }
        }
    }
}

fn there_already(target: &Utf8Path) -> Failure {
    Failure::usage(format!("file exists: {target}"))
        .hint("--force replaces it; -o - writes to standard output")
}

/// Writes a file whole or not at all, readable by its owner alone: it tells what was done, command by command.
pub fn save(
    target: &Utf8Path,
    force: bool,
    write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot write {target}: {error}"));
    if target == STDOUT {
        let mut out = BufWriter::new(screen::stdout());
        return match write(&mut out).and_then(|()| out.flush()) {
            // The reader may stop reading.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(failed),
        };
    }
    if target.exists() && !target.is_file() {
        // A pipe or a device is written to, never replaced.
        let mut out = BufWriter::new(std::fs::OpenOptions::new().write(true).open(target).map_err(failed)?);
        return write(&mut out).and_then(|()| out.flush()).map_err(failed);
    }
    let folder = target.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mut out = BufWriter::new(file.as_file_mut());
    write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
    drop(out);
    let kept = if force { file.persist(target) } else { file.persist_noclobber(target) };
    kept.map(drop).map_err(|error| match error.error.kind() {
        std::io::ErrorKind::AlreadyExists => there_already(target),
        _ => failed(error.error),
    })
}

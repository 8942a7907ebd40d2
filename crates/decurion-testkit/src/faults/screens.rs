//! C3, the half at a terminal: panics in what draws and what takes keys. Takes sessions at a terminal that fail at a
//! chosen point, gives whether the terminal was given back with a report, the record closed and everybody gone.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::stand::{HANG, brief, ended_well};
use super::terminal::{PATIENCE, Session, Setting, said};
use super::{Options, Report, in_parallel};

/// The points, and which times they are passed at.
const POINTS: &[(&str, &[u32])] = &[
    ("update", &[1, 5]),
    ("effect", &[1, 2]),
    ("signal", &[1]),
    ("draw", &[1, 2, 6]),
    ("resize", &[1]),
    ("repaint", &[1, 2]),
    ("key", &[1, 4]),
    ("paste", &[1]),
    ("event", &[1, 5, 20]),
    ("live", &[1, 2, 6]),
    ("item", &[1, 4]),
    ("agents", &[1, 5]),
    ("coming", &[1, 3]),
    ("diff", &[1]),
    ("markdown", &[1, 3]),
    ("question", &[1, 2]),
    ("status", &[1, 2, 5]),
    ("table", &[1]),
    ("page", &[1, 2]),
    ("list", &[1, 2]),
    ("composer", &[1, 2, 5]),
    ("conversation", &[1, 10]),
];
/// How a fault is told.
const TOLD: [&str; 2] = ["decurion: a fault in the program: a fault on purpose", "decurion: internal error"];
const REPORT: &str = "the report is in ";
const RESUME: &str = "decurion --resume ";

/// Tries them all, or some in the short form.
pub(super) fn everywhere(options: &Options, report: &mut Report) {
    let all =
        POINTS.iter().flat_map(|(point, times)| times.iter().map(move |time| format!("{point}:{time}")));
    let step = if options.ci { 4 } else { 1 };
    let points: Vec<String> = all.step_by(step).collect();
    let results = in_parallel(options.width, &points, |point| at(options, point));
    for (point, result) in points.iter().zip(results) {
        report.add(format_args!("at the terminal, {point}"), result);
    }
    report.add("an agent at the terminal", agent(options));
}

fn script(work: &Path) -> String {
    let file = work.join("notes.txt");
    let file = file.display();
    format!(
        r#"
when text=/and then$/
  say "The session lives."
when agent=Explore
  say "Nothing found."
when text=/go$/
  say chunk=6 <<END
    # A list

    | a | b |
    |---|---|
    | 1 | 2 |

    And *so* on.
  END
  call Bash {{"command": "sleep 300", "description": "sleep", "run_in_background": true}}
  call Write {{"file_path": "{file}", "content": "one\ntwo\n"}}
  call Agent {{"description": "look", "prompt": "look around", "subagent_type": "Explore"}}
when
  say "Done with it."
"#
    )
}

/// One session whose code fails at a point.
fn at(options: &Options, point: &str) -> Result<(), String> {
    let setting =
        Setting { arguments: vec!["--panic-at".into(), point.into()], asks: true, ..Setting::default() };
    let mut session = Session::begin(options, script, |_| {}, &setting)?;
    tour(&mut session)?;
    match session.end(PATIENCE)? {
        None => {
            return Err(format!("it goes on: the point was not reached: {}", brief(&session.pty.screen())));
        }
        Some(ending) if ending.code() != 1 => {
            return Err(format!("{ending:?}: {}", brief(&session.pty.screen())));
        }
        Some(_) => {}
    }
    session.judge()?;
    let written = String::from_utf8_lossy(session.pty.written()).into_owned();
    told(&written, point)?;
    goes_on(&session, &written)
}

/// Does a bit of everything, until the program is gone.
fn tour(session: &mut Session) -> Result<(), String> {
    type Step = fn(&mut Session) -> std::io::Result<()>;
    let steps: [(Step, u64); 17] = [
        (|session| session.pty.resize((110, 32)), 200),
        (|session| session.pty.write("\x1b[200~it is\ntime to\x1b[201~"), 60),
        (|session| session.pty.write(" go\r"), 900),
        // Looked at, and allowed, whatever is asked.
        (|session| session.pty.write("\x1b[B"), 100),
        (|session| session.pty.write("1"), 500),
        (|session| session.pty.write("1"), 500),
        (|session| session.pty.write("1"), 700),
        (|session| session.pty.write("\x0f"), 150),
        (|session| session.pty.write("\x1b[5~"), 100),
        (|session| session.pty.write("\x1b"), 150),
        // An answer that nobody asked for stands in the prompt.
        (|session| session.pty.write("\x15/agents \r"), 400),
        (|session| session.pty.write("\x1b[B"), 100),
        (|session| session.pty.write("\x1b"), 150),
        (|session| session.pty.write("\x0c"), 150),
        (|session| session.pty.signal(Signal::INT), 200),
        (|session| session.pty.resize((90, 24)), 250),
        (|session| session.pty.write("x"), 60),
    ];
    for (step, rest) in steps {
        if session.end(Duration::ZERO)?.is_some() {
            return Ok(());
        }
        // One that has just gone takes no signal and no key.
        let _ = step(session);
        for _ in 0..rest / 20 {
            session.pty.pump(Duration::from_millis(20)).map_err(said)?;
            if session.end(Duration::from_millis(1))?.is_some() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// That the fault was told, with a report that says where. What was typed too late is shown by the terminal itself, and
/// may stand in the middle of one of the lines.
fn told(written: &str, point: &str) -> Result<(), String> {
    let name = point.split(':').next().unwrap_or_default();
    if !TOLD.iter().any(|words| written.contains(words)) {
        return Err(format!("the fault was not told: {}", end_of(written)));
    }
    let path = between(written, REPORT).ok_or("no report is named")?;
    let path = PathBuf::from(path);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mode = std::fs::metadata(&path).map_err(said)?.permissions().mode() & 0o777;
    if !text.contains(&format!("a fault on purpose at {name}")) || mode != 0o600 {
        return Err(format!("the report is not as it should be (mode {mode:o}): {}", brief(&text)));
    }
    Ok(())
}

/// The rest of the line behind some words.
fn between<'a>(written: &'a str, words: &str) -> Option<&'a str> {
    written.split(words).nth(1)?.split(['\r', '\n', ' ']).next()
}

fn end_of(written: &str) -> String {
    let from = written.len().saturating_sub(300);
    format!("{:?}", &written[written.ceil_char_boundary(from)..])
}

/// That the session can be taken up, where it had begun.
fn goes_on(session: &Session, written: &str) -> Result<(), String> {
    let id = between(written, RESUME).ok_or("the session is not named")?;
    if !session.stand.transcript(id).exists() {
        return Ok(());
    }
    let run = session.stand.resume(id, "and then").run(HANG).map_err(said)?;
    ended_well(&run).map_err(|problem| format!("refused to go on: {problem}"))?;
    session.stand.check_left()
}

/// A panic in an agent, while somebody looks: it ends that agent, and the terminal stays as it is.
fn agent(options: &Options) -> Result<(), String> {
    let script = "when text=/and then$/
  say \"The session lives.\"
when agent=Explore
  say \"I begin\"
  panic
when text=/go$/
  call Agent {\"description\": \"look\", \"prompt\": \"look around\", \"subagent_type\": \"Explore\"}
when
  say \"The agent is gone.\"
";
    let file = tempfile::NamedTempFile::new().map_err(said)?;
    std::fs::write(file.path(), script).map_err(said)?;
    let model = format!("scripted:{}", file.path().display());
    let setting = Setting { arguments: vec!["--model".into(), model], ..Setting::default() };
    let mut session = Session::with(options, |_| "when\n  say \"x\"\n".to_owned(), |_| {}, &setting)?;
    let raw = session.pty.modes().map_err(said)?;
    session.say("go")?;
    session.pty.wait_for("The agent is gone.", PATIENCE)?;
    if session.pty.modes().map_err(said)? != raw || raw == session.pty.modes_before() {
        return Err("the terminal was given back while the session goes on".into());
    }
    session.say("and then")?;
    session.pty.wait_for("The session lives.", PATIENCE)?;
    session.leave()?;
    let written = String::from_utf8_lossy(session.pty.written()).into_owned();
    if written.contains(REPORT) { Ok(()) } else { Err("the fault was not told at the end".into()) }
}

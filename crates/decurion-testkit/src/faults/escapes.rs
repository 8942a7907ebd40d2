//! C2: a storm of resizes, and text that would command the terminal. Takes sessions at a terminal whose model and tools
//! say the worst, gives whether they panicked, still answer, and let any foreign sequence through.

use std::time::{Duration, Instant};

use serde_json::json;

use super::stand::HANG;
use super::terminal::{PATIENCE, Session, Setting, USUAL, said};
use super::{Dice, Options, Report, Row, in_parallel};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "C2", what: "resizes down to 1×1, text that commands the terminal", run: storm }]
}

/// Sequences that no text may bring to the terminal, each with something that says whose it is.
const FOREIGN: &[&str] = &[
    "\u{1b}]0;OWNED\u{7}",
    "\u{1b}]2;OWNED\u{1b}\\",
    "\u{1b}]52;c;T1dORUQ=\u{7}",
    "\u{1b}]8;;http://owned\u{1b}\\link\u{1b}]8;;\u{1b}\\",
    "\u{1b}[13;37H",
    "\u{1b}[?1047h",
    "\u{1b}[?1003h",
    "\u{1b}[38;5;213m",
    "\u{1b}[6n",
    "\u{1b}[5i",
    "\u{1b}[>4;2m",
    "\u{1b}[8;7;7t",
    "\u{1b}c",
    "\u{1b}(0",
    "\u{1b}#8",
    "\u{1b}PqOWNED\u{1b}\\",
    "\u{1b}_OWNED\u{1b}\\",
    "\u{1b}^OWNED\u{1b}\\",
    "\u{1b}XOWNED\u{1b}\\",
    "\u{9b}13;37H",
    "\u{9d}0;OWNED\u{9c}",
    "\u{90}qOWNED\u{9c}",
    "\u{85}\u{84}\u{8d}",
    "\u{8}\u{8}\u{b}\u{c}\u{e}\u{f}\u{7f}",
    "\u{7}",
    "\u{1b}[2\u{1b}[?47h",
    "\u{1b}",
    "\u{202e}desrever\u{2066}\u{200f}\u{feff}\u{e0041}",
];

/// Text that is wide, combined, long or turned around, and harmless.
const WIDE: &[&str] = &[
    "日本語のテキスト、",
    "👨\u{200d}👩\u{200d}👧\u{200d}👦🏳\u{fe0f}\u{200d}🌈",
    "e\u{301}\u{302}\u{303}\u{304}\u{305}\u{306} a\u{20dd}",
    "مرحبا שלום",
    "हिन्दी ไทย 한국어",
    "averyveryveryveryveryveryveryveryveryverylongwordthatfitsnowhereatall",
];

/// What is checked of everything that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usual,
    NoColour,
    Dumb,
}

fn storm(options: &Options) -> Report {
    // The parser that looks at the screen has troubles of its own with the smallest ones, which are caught.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let report = all_kinds(options);
    std::panic::set_hook(hook);
    report
}

fn all_kinds(options: &Options) -> Report {
    let resizes = options.count(320, 10_000);
    let kinds = [Kind::Usual, Kind::Usual, Kind::NoColour, Kind::Dumb];
    let cases: Vec<(usize, Kind)> = kinds.into_iter().enumerate().collect();
    let results = in_parallel(options.width, &cases, |(nth, kind)| {
        let mut dice = Dice::new(options.seed, *nth as u64);
        one(options, *kind, resizes / kinds.len() as u64, &mut dice)
    });
    let mut report = Report::default();
    let (mut all, mut bytes, mut sequences) = (0, 0, 0);
    for ((nth, kind), result) in cases.iter().zip(results) {
        let result = result.map(|counts| {
            (all, bytes, sequences) =
                (all + counts.resizes, bytes + counts.bytes, sequences + counts.sequences);
        });
        report.add(format_args!("session {nth} ({kind:?})"), result);
    }
    if let Err(problem) = control() {
        report.failures.push(problem);
    }
    let figure = format!(
        "{all} resizes from 1×1 to 300×100 (seed {}): {} sessions with a panic, no answer or a raw escape; {} KiB \
         written with {sequences} sequences, all our own",
        options.seed,
        report.failures.len(),
        bytes / 1024
    );
    report.figure(figure)
}

struct Counts {
    resizes: u64,
    bytes: usize,
    sequences: usize,
}

/// One session: storms with rests between, in which things are drawn.
fn one(options: &Options, kind: Kind, resizes: u64, dice: &mut Dice) -> Result<Counts, String> {
    let environment = match kind {
        Kind::Usual => vec![("COLORTERM", "truecolor")],
        Kind::NoColour => vec![("NO_COLOR", "1")],
        Kind::Dumb => vec![("TERM", "dumb")],
    };
    let setting = Setting { environment, settings: hooks(), ..Setting::default() };
    let mut session =
        Session::with(options, |work| script(work.to_str().unwrap_or_default()), |_| {}, &setting)?;
    let deadline = Instant::now() + HANG * 10;
    for nth in 0..resizes {
        if nth % ROUND == 0 && session.stand.model.load().active == 0 {
            begin(&mut session, kind, nth / ROUND)?;
        }
        if kind != Kind::Dumb {
            look(&mut session, nth, dice)?;
        }
        let size = (1 + dice.below(300), 1 + dice.below(100));
        // Small ones more often than they would come.
        let size = if dice.below(4) == 0 { (1 + size.0 % 8, 1 + size.1 % 4) } else { size };
        let size = (u16::try_from(size.0).unwrap_or(1), u16::try_from(size.1).unwrap_or(1));
        session.pty.resize(size).map_err(said)?;
        let rest =
            if nth % 8 == 7 { Duration::from_millis(100) } else { dice.time(Duration::from_millis(4)) };
        session.pty.rest(rest).map_err(said)?;
        if Instant::now() > deadline {
            return Err(format!("only {nth} resizes in {} s", HANG.as_secs() * 10));
        }
    }
    still_answers(&mut session, kind)?;
    let written = session.pty.written().to_vec();
    let found = scan(&written, kind);
    if let Some(first) = found.foreign.first() {
        return Err(format!("{} foreign sequences, the first {first}", found.foreign.len()));
    }
    Ok(Counts { resizes, bytes: written.len(), sequences: found.own })
}

/// Pastes and types the next prompt. Where the terminal itself shows what is typed, nothing is typed that it acts on.
fn begin(session: &mut Session, kind: Kind, round: u64) -> Result<(), String> {
    if kind == Kind::Dumb {
        return session.say(&format!("round {round}"));
    }
    let pasted = FOREIGN[usize::try_from(round).unwrap_or(0) % FOREIGN.len()];
    session.pty.write(format!("\u{1b}[200~pasted {pasted} and\n\n\n\n\n more\u{1b}[201~")).map_err(said)?;
    session.say(&format!(" round {round}"))
}

/// Opens one of the views now and then, and closes it again.
fn look(session: &mut Session, nth: u64, dice: &mut Dice) -> Result<(), String> {
    let key = match nth % 24 {
        4 => ["\u{f}", "\u{14}", "?", "\u{12}"][dice.place(4)],
        // Long before the next key: together they would mean another.
        14 => "\u{1b}",
        _ => return Ok(()),
    };
    session.pty.write(key).map_err(said)
}

fn still_answers(session: &mut Session, kind: Kind) -> Result<(), String> {
    session.pty.resize(USUAL).map_err(said)?;
    // Whatever is open is closed, and what is written goes.
    let keys: &[&str] = if kind == Kind::Dumb { &[] } else { &["\u{1b}", "\u{1b}", "\u{15}"] };
    for key in keys {
        session.pty.write(key).map_err(said)?;
        session.pty.rest(Duration::from_millis(150)).map_err(said)?;
    }
    session.say("are you there")?;
    let shown = session.pty.wait(PATIENCE * 2, |screen| screen.contains("I am here 4711."));
    shown
        .map_err(|screen| format!("it does not answer any more; the screen ends with {}", end_of(&screen)))?;
    session.leave()
}

/// The last rows of a screen.
fn end_of(screen: &str) -> String {
    let rows: Vec<&str> = screen.lines().rev().take(8).collect();
    let rows: Vec<String> = rows.into_iter().rev().map(|row| row.chars().take(100).collect()).collect();
    rows.join(" | ")
}

/// After so many resizes there is a new prompt, unless the last is still worked on.
const ROUND: u64 = 48;

/// What the model says, what its calls are about and what they print.
fn script(work: &str) -> String {
    let text = |from: usize| {
        let mut text = String::new();
        for (at, foreign) in FOREIGN.iter().enumerate() {
            text.push_str(&format!("x{foreign}y {} ", WIDE[(at + from) % WIDE.len()]));
            if at % 7 == 6 {
                text.push_str("\n\n");
            }
        }
        text
    };
    let quoted = |text: &str| json!(text).to_string();
    let all = FOREIGN.concat();
    let said = text(0);
    let table =
        format!("| a | {} |\n|---|---|\n| {} | `{}` |\n\n```\n{}\n```\n", WIDE[0], WIDE[1], &all[..40], said);
    let listed = format!("# {}\n\n- {}\n- {}\n\n> {}", WIDE[2], said, WIDE[3], said);
    let printed = json!({
        "command": format!("printf '%s\\n' {}; printf '\\x9b13;37H\\x1b]0;OWNED\\x07\\xff\\xfe'; seq 1 50", shell_quoted(&said)),
        "description": format!("print {all}"),
    });
    let file = json!({"file_path": format!("{work}/na{}me", FOREIGN[..4].concat().replace('/', "")), "content": said});
    let agent =
        json!({"description": format!("look {all}"), "prompt": "look around", "subagent_type": "Explore"});
    format!(
        "when text=/are you there$/\n  say \"I am here 4711.\"\n\
         when agent=Explore\n  say chunk=9 {}\n\
         when text=/round \\d+$/\n  say chunk=5 {}\n  delay 20ms\n  say chunk=11 {}\n  call Bash {printed}\n  call Write {file}\n  call Agent {agent}\n\
         when\n  think {}\n  say chunk=7 {}\n",
        quoted(&said),
        quoted(&listed),
        quoted(&table),
        quoted(&said),
        quoted(&text(3)),
    )
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', ""))
}

/// Hooks that say the worst, to the person and as errors.
fn hooks() -> String {
    let all = FOREIGN.concat();
    let message = json!({"systemMessage": format!("hook {all}")}).to_string();
    let command = format!("printf '%s' {}", shell_quoted(&message));
    let failing = format!("printf '%s' {} >&2; exit 1", shell_quoted(&all));
    json!({"hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": command}]}],
        "PostToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": failing}]}],
    }})
    .to_string()
}

/// What a program wrote, as a terminal takes it apart.
struct Found {
    /// How many sequences are our own.
    own: usize,
    foreign: Vec<String>,
}

fn scan(written: &[u8], kind: Kind) -> Found {
    let text = String::from_utf8_lossy(written);
    let mut found = Found { own: 0, foreign: Vec::new() };
    let mut rest = &text[..];
    while let Some(at) = rest.find(is_command) {
        let before: String =
            rest[..at].chars().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect();
        rest = &rest[at..];
        let length = length(rest);
        let (sequence, after) = rest.split_at(length);
        if is_own(sequence, kind) || is_own_bell(sequence, &before, kind) {
            found.own += 1;
        } else {
            found.foreign.push(format!("{sequence:?} after {before:?}"));
        }
        rest = after;
    }
    found
}

/// Whether it is the bell that calls a person. It stands between two frames, and among plain lines where one begins or
/// behind the sign before the prompt; what is planted stands in the middle of a text.
fn is_own_bell(sequence: &str, before: &str, kind: Kind) -> bool {
    let is_between = kind == Kind::Dumb && (before.ends_with("\n> ") || before.ends_with('\n'));
    sequence == "\u{7}" && (before.is_empty() || is_between)
}

/// Whether a character does something to a terminal. Lines end as they do everywhere.
fn is_command(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\r' | '\n')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// How long the sequence is that begins here.
fn length(text: &str) -> usize {
    let first = text.chars().next().map_or(0, char::len_utf8);
    if let Some(rest) = text.strip_prefix("\u{1b}[") {
        return rest.find(|letter: char| !matches!(letter, ' '..='?')).map_or(text.len(), |end| 2 + end + 1);
    }
    if let Some(rest) = text.strip_prefix("\u{1b}]") {
        let bell = rest.find('\u{7}').map(|at| 2 + at + 1);
        let end = rest.find('\u{1b}').map(|at| 2 + at + 2);
        return bell.into_iter().chain(end).min().unwrap_or(text.len()).min(text.len());
    }
    if text.starts_with('\u{1b}') { text.chars().take(2).map(char::len_utf8).sum() } else { first }
}

/// Whether this is a sequence that the screen itself makes.
fn is_own(sequence: &str, kind: Kind) -> bool {
    if kind == Kind::Dumb {
        return false;
    }
    // The cursor's place is kept while rows are cleared.
    if matches!(sequence, "\u{1b}7" | "\u{1b}8") {
        return true;
    }
    let Some(rest) = sequence.strip_prefix("\u{1b}[") else {
        return is_own_title(sequence);
    };
    let Some((parameters, last)) = rest.split_at_checked(rest.len().saturating_sub(1)) else { return false };
    match last {
        "h" => matches!(parameters, "?2026" | "?25" | "?7" | "?1004" | "?2004" | "?1049"),
        "l" => matches!(parameters, "?2026" | "?25" | "?7" | "?1004" | "?2004" | "?1049" | "?47"),
        // The window's title is put aside, and there again.
        "t" => matches!(parameters, "22;0" | "23;0"),
        // What kind of terminal it is, asked once.
        "c" => parameters.is_empty(),
        "A" | "B" | "C" => parameters.parse::<u16>().is_ok(),
        "J" => matches!(parameters, "" | "2" | "3"),
        // A page is drawn row by row; its cursor is never where the planted one goes.
        "H" => {
            parameters.is_empty()
                || parameters.split(';').all(|part| part.parse::<u16>().is_ok()) && parameters != "13;37"
        }
        "K" => matches!(parameters, "" | "2"),
        "m" => parameters.split(';').all(|code| is_own_style(code, kind)),
        _ => false,
    }
}

/// The program names the window after itself, in plain words, and asks for the colour behind.
fn is_own_title(sequence: &str) -> bool {
    if sequence == "\u{1b}]11;?\u{1b}\\" {
        return true;
    }
    let title = sequence.strip_prefix("\u{1b}]0;").and_then(|rest| rest.strip_suffix('\u{7}'));
    title.is_some_and(|title| !title.contains(char::is_control) && !title.contains("OWNED"))
}

fn is_own_style(code: &str, kind: Kind) -> bool {
    match code.parse::<u8>() {
        Ok(0 | 1 | 2 | 3 | 4 | 7 | 9 | 22..=24 | 27 | 29) => true,
        Ok(30..=37 | 39..=47 | 49 | 90..=97 | 100..=107) => kind != Kind::NoColour,
        _ => false,
    }
}

/// That the scan sees: every planted sequence is found where it comes through.
fn control() -> Result<(), String> {
    for foreign in FOREIGN {
        if scan(format!("before {foreign} after").as_bytes(), Kind::Usual).foreign.is_empty() {
            return Err(format!("the scan is blind: it should see {foreign:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scan_tells_our_own_sequences_from_others() {
        control().unwrap();
        let own = "\u{1b}[?2026h\u{1b}[?25l\u{1b}[12A\r\u{1b}[2K\u{1b}[0;1;91mtext\u{1b}[0m 日本 👨\u{200d}👩\r\n\u{1b}[J\u{1b}[?7h";
        let found = scan(own.as_bytes(), Kind::Usual);
        assert_eq!((found.own, found.foreign.len()), (8, 0), "{:?}", found.foreign);
        assert_eq!(scan(own.as_bytes(), Kind::NoColour).foreign.len(), 1);
    }

    #[test]
    fn the_script_can_be_read() {
        decurion_model::script::Script::parse(&script("/work")).unwrap();
    }
}

//! `decurion demo` at a terminal: what a person sees, how it ends, and that nothing is left of it.

use std::time::Duration;

use decurion_testkit::proc::{Home, Program, wait_until_gone};
use decurion_testkit::pty::Pty;
use decurion_testkit::sys::Ending;
use rustix::process::Signal;

use super::{PATIENCE, Terminal, kill, text_of};
use crate::stand::{DECURION, file_in, files_below, finished};

/// The first and the last that is said of what is shown.
const FIRST: &str = "A real session in a real repository";
const OFFER: &str = "Press s to save it as decurion-demo.svg";
const INVITATION: &str = "cd path/to/your/repository && decurion";
/// What a log says at its end.
const LOGGED: &str = "The repository was temporary";
const USUAL: (u16, u16) = (100, 30);

fn demo(home: &Home) -> Program {
    home.program(DECURION).arg("demo")
}

/// A demo that plays.
fn playing(program: &Program) -> Pty {
    let mut pty = Pty::start(program, USUAL).unwrap();
    pty.wait_for(FIRST, PATIENCE).unwrap();
    pty
}

fn ended(pty: &mut Pty) -> Ending {
    pty.end(PATIENCE).unwrap().expect("it ends")
}

/// Neither a file nor a process nor a change of the terminal.
#[track_caller]
fn assert_nothing_left(home: &Home, pty: &Pty) {
    assert_eq!(pty.left_behind(), Vec::<String>::new());
    assert_eq!(wait_until_gone(home.marker(), PATIENCE), Vec::<i32>::new(), "processes");
    let kept = std::fs::read_dir(home.path().join("tmp")).unwrap().flatten();
    assert_eq!(kept.map(|entry| entry.path()).collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
    assert_eq!(files_below(home.state()), Vec::<std::path::PathBuf>::new(), "the person's own state folder");
}

/// The process that plays, and not the one that waits for it.
fn worker(pty: &Pty) -> i32 {
    let keeper = pty.pid();
    text_of(format!("/proc/{keeper}/task/{keeper}/children")).trim().parse().unwrap()
}

#[test]
fn plays_in_the_real_interface_at_a_readable_pace_until_a_key_makes_it_fast() {
    let home = Home::new().unwrap();
    let mut pty = playing(&demo(&home));
    let screen = pty.screen();
    assert!(
        screen.contains("ask before acting") && screen.contains("any key: faster · esc: leave"),
        "{screen}"
    );
    let screen = pty.wait_for("Three agents look around in parallel", PATIENCE).unwrap();
    assert!(screen.contains("> The test of this repository fails."), "{screen}");
    let is_tree = |screen: &str| screen.matches("● Explore · ").count() == 3;
    pty.wait(PATIENCE, is_tree).unwrap();
    let question = [
        "Decurion asks before it changes a file",
        "? Edit slug.sh?",
        "5 +   sed -e 's/  */-/g'",
        "❯ 1. Yes, this once",
    ];
    pty.wait(PATIENCE, |screen| question.iter().all(|shown| screen.contains(shown))).unwrap();
    let screen = pty.wait_for("The demo answers: Yes", PATIENCE).unwrap();
    assert!(screen.contains("❯ 1. Yes, this once"), "{screen}");
    pty.wait_for("● Edit slug.sh  +1 −1", PATIENCE).unwrap();
    pty.wait_for("The demo presses ctrl+b", PATIENCE).unwrap();
    pty.write("x").unwrap();
    pty.wait(PATIENCE, |screen| screen.contains("esc: leave") && !screen.contains("any key: faster"))
        .unwrap();
    pty.wait_for("The test passes now, also the slow one.", PATIENCE).unwrap();
    let screen = pty.wait_for(OFFER, PATIENCE).unwrap();
    for shown in ["Who did what, in ", "  $ Run the slow test ", "  Explore · Read the test ", "model writes"]
    {
        assert!(screen.contains(shown), "no {shown} in\n{screen}");
    }
    pty.write("s").unwrap();
    assert_eq!(ended(&mut pty), Ending::Exited(0));
    let screen = pty.screen();
    assert!(screen.contains("Saved: ") && screen.ends_with(INVITATION), "{screen}");
    let picture = text_of(file_in(&home, "decurion-demo.svg"));
    assert!(picture.starts_with("<svg ") && picture.contains("Read the history"), "{picture}");
    assert_nothing_left(&home, &pty);
}

#[test]
fn keys_at_once_play_it_fast_and_another_key_saves_nothing() {
    let home = Home::new().unwrap();
    let mut pty = playing(&demo(&home).env("NO_COLOR", "1"));
    pty.write("xyz \r").unwrap();
    pty.wait_for(OFFER, PATIENCE).unwrap();
    pty.write("q").unwrap();
    assert_eq!(ended(&mut pty), Ending::Exited(0));
    assert!(pty.screen().ends_with(INVITATION), "{}", pty.screen());
    assert_eq!(files_below(home.work()), Vec::<std::path::PathBuf>::new());
    assert_nothing_left(&home, &pty);
    let written = String::from_utf8_lossy(pty.written());
    let styles = written.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m'));
    let codes = styles
        .map(|(codes, _)| codes)
        .filter(|codes| codes.chars().all(|sign| sign.is_ascii_digit() || sign == ';'));
    let colour = |code: &&str| matches!(code.parse(), Ok(30..=38 | 40..=48 | 90..=107));
    let colours: Vec<&str> = codes.flat_map(|codes| codes.split(';')).filter(colour).collect();
    assert_eq!(colours, Vec::<&str>::new(), "NO_COLOR is set");
}

#[test]
fn esc_and_ctrl_c_leave_at_any_time() {
    for (key, moment) in [
        ("\x1b", FIRST),
        ("\x03", "Three agents look around in parallel"),
        ("\x1b", "Decurion asks before it changes a file"),
        ("\x03", "The agent waits for the slow test"),
    ] {
        let home = Home::new().unwrap();
        let mut pty = playing(&demo(&home));
        pty.wait_for(moment, PATIENCE).unwrap();
        pty.write(key).unwrap();
        assert_eq!(ended(&mut pty), Ending::Exited(0), "{moment}: {}", pty.screen());
        let screen = pty.screen();
        assert!(screen.ends_with(INVITATION) && !screen.contains("Who did what"), "{moment}: {screen}");
        assert_nothing_left(&home, &pty);
    }
}

#[test]
fn signals_and_a_closed_terminal_leave_nothing() {
    type Ends = fn(&mut Pty);
    let ways: [(&str, Ends); 4] = [
        ("terminated", |pty| pty.signal(Signal::TERM).unwrap()),
        ("its terminal is closed", Pty::close),
        ("the process that plays is killed", |pty| kill(worker(pty))),
        ("the process that waits is killed", |pty| pty.signal(Signal::KILL).unwrap()),
    ];
    for (way, end) in ways {
        let home = Home::new().unwrap();
        let mut pty = playing(&demo(&home));
        pty.wait_for("Three agents look around in parallel", PATIENCE).unwrap();
        end(&mut pty);
        assert_ne!(ended(&mut pty), Ending::Exited(0), "{way}");
        wait_until_gone(home.marker(), PATIENCE);
        // Where the process that waits is gone, nobody puts the terminal right before the other one ends.
        pty.rest(Duration::ZERO).unwrap();
        assert_nothing_left(&home, &pty);
    }
}

#[test]
fn ctrl_z_gives_the_shell_its_turn_and_a_resize_is_followed() {
    let terminal = Terminal::in_shell("when\n  say \"never asked\"\n");
    terminal.say("\"$D\" demo");
    terminal.wait_for("Three agents look around in parallel");
    terminal.keys("C-z");
    terminal.wait_until("the shell", |screen| screen.trim_end().ends_with("shell$"));
    terminal.say("fg");
    terminal.wait_for("esc: leave");
    terminal.resize(70, 22);
    terminal.wait_for("❯ 1. Yes, this once");
    terminal.keys("Escape");
    terminal.wait_for(INVITATION);
}

#[test]
fn a_persons_own_settings_are_neither_needed_nor_used() {
    let home = Home::new().unwrap();
    std::fs::write(home.home().join(".claude/settings.json"), "{ broken").unwrap();
    let mut pty = playing(&demo(&home));
    pty.write("\x1b").unwrap();
    assert_eq!(ended(&mut pty), Ending::Exited(0), "{}", pty.screen());
    let hook = r#"{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "touch $HOME/ran"}]}]}}"#;
    std::fs::write(home.home().join(".claude/settings.json"), hook).unwrap();
    let mut pty = playing(&demo(&home));
    pty.wait_for("Three agents look around in parallel", PATIENCE).unwrap();
    pty.write("\x1b").unwrap();
    assert_eq!(ended(&mut pty), Ending::Exited(0), "{}", pty.screen());
    assert!(!home.home().join("ran").exists());
    assert_nothing_left(&home, &pty);
}

#[test]
fn keep_keeps_the_repository_and_the_session() {
    let home = Home::new().unwrap();
    let mut pty = playing(&demo(&home).arg("--keep"));
    pty.write("x").unwrap();
    pty.wait_for(OFFER, PATIENCE).unwrap();
    pty.write("q").unwrap();
    assert_eq!(ended(&mut pty), Ending::Exited(0));
    let screen = pty.screen();
    let kept =
        screen.lines().find_map(|line| line.strip_prefix("Kept: ")).unwrap_or_else(|| panic!("{screen}"));
    assert!(text_of(format!("{kept}/repository/slug.sh")).contains("sed -e 's/  */-/g'"));
    let trace = home.program(DECURION).args(["trace", "--svg", "-"]);
    let trace =
        finished(trace.cwd(format!("{kept}/repository")).env("DECURION_HOME", format!("{kept}/state")));
    assert!(trace.lines.concat().contains("Read the history"), "{trace:?}");
}

#[test]
fn a_terminal_that_cannot_show_it_gets_a_log() {
    let home = Home::new().unwrap();
    let small = |size| Pty::start(&demo(&home), size).unwrap();
    let mut pty = small((59, 30));
    assert_eq!(ended(&mut pty), Ending::Exited(0));
    let written = String::from_utf8_lossy(pty.written()).into_owned();
    assert!(written.contains("terminal too small") && written.contains("60×20"), "{written}");
    assert!(written.contains("What happened") && written.contains(LOGGED), "{written}");
    let mut pty = small((100, 19));
    assert_eq!(ended(&mut pty), Ending::Exited(0));
    assert!(String::from_utf8_lossy(pty.written()).contains("terminal too small"));
    for program in [demo(&home).arg("--fast"), demo(&home).env("TERM", "dumb")] {
        let mut pty = Pty::start(&program, USUAL).unwrap();
        assert_eq!(ended(&mut pty), Ending::Exited(0));
        let written = String::from_utf8_lossy(pty.written()).into_owned();
        assert!(written.contains(LOGGED) && !written.contains(FIRST), "{written}");
    }
}

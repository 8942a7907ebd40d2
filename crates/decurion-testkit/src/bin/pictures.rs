//! Pictures of the program at a terminal, for the guide. Takes the folder to write to; starts the program beside this one
//! in terminals, plays scripted sessions, and draws what each screen shows as SVG.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a program for people

#[path = "pictures/drawing.rs"]
mod drawing;
#[path = "pictures/film.rs"]
mod film;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use decurion_testkit::proc::Home;
use decurion_testkit::pty::Pty;
use decurion_testkit::tmux::Tmux;

/// A screen that does not show what it should by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// The size of the terminal in which the demo plays.
const DEMO: (u16, u16) = (96, 28);
/// How often it is looked at.
const FRAME: Duration = Duration::from_millis(400);
/// How long its end is shown.
const LAST: Duration = Duration::from_secs(6);
/// What is on the screen that is shown where nothing moves.
const POSTER: &str = "● Explore · Read the history  ";

/// A session with agents at work at every depth, one of which asks.
const SCRIPT: &str = r#"
when agent=main turn=1
  say "I will look at the parser and its callers at the same time, then change both.\n\n| part | who | what |\n|---|---|---|\n| `src/parse.rs` | Explore | how dates are read |\n| callers | Explore | who relies on it |\n\n1. read the **format** first\n2. change `parse_date`, with a test\n"
  call TodoWrite {"todos": [{"content": "Read how dates are parsed", "activeForm": "Reading how dates are parsed", "status": "in_progress"}, {"content": "Find the callers of parse_date", "activeForm": "Finding the callers of parse_date", "status": "pending"}, {"content": "Make it strict, with a test", "activeForm": "Making it strict, with a test", "status": "pending"}]}
  call Write {"file_path": "src/parse.rs", "content": "/// Reads a date.\npub fn parse_date(text: &str) -> Option<Date> {\n    let (year, rest) = text.split_once('-')?;\n    Some(Date { year: year.parse().ok()? }) // days follow\n}\n"}
when agent=main turn=2
  call Agent {"description": "how dates are read", "prompt": "look", "subagent_type": "Explore", "run_in_background": true}
  call Agent {"description": "who calls parse_date", "prompt": "find", "subagent_type": "general-purpose", "run_in_background": true}
  call Agent {"description": "write the test", "prompt": "test", "subagent_type": "general-purpose", "run_in_background": true}
when agent=main
  say "Three agents work on it now. I go on as soon as the first of them reports."
when first="look" turn=1
  say "I read the module from its beginning."
  call Grep {"pattern": "parse_date", "path": "."}
when first="look" turn=2
  call Bash {"command": "sleep 600"}
when first="find" turn=1
  call Agent {"description": "callers in the tests", "prompt": "deeper", "subagent_type": "general-purpose"}
when first="deeper" turn=1
  call Bash {"command": "sleep 601"}
when first="test" turn=1
  call Bash {"command": "cargo test --quiet parse; sleep 602"}
when
  say "Nothing more was found."
"#;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: pictures FOLDER [demo]\n\nThe binary under test is the one beside this one.");
        return ExitCode::from(2);
    };
    let drawn = match std::env::args_os().nth(2) {
        Some(only) if only == "demo" => film_demo(&folder),
        _ => draw_all(&folder).and_then(|()| film_demo(&folder)),
    };
    match drawn {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pictures: {error}");
            ExitCode::from(1)
        }
    }
}

fn draw_all(folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let wide = Shown::start((100, 34))?;
    wide.say("make parse_date strict")?;
    wide.wait("waiting for you")?;
    wide.wait("1. Yes, this once")?;
    wide.wait("callers in the tests  $ sleep 601")?;
    wide.wait("how dates are read  $ sleep 600")?;
    wide.draw(&folder.join("question.svg"))?;
    wide.press(&["1"])?;
    wide.wait("● general-purpose · write the test")?;
    wide.draw(&folder.join("conversation.svg"))?;
    wide.press(&["C-t", "Down", "Down"])?;
    wide.wait("look, steer")?;
    wide.draw(&folder.join("tasks.svg"))?;
    wide.press(&["Up", "Up", "Enter"])?;
    wide.wait("I read the module from its beginning.")?;
    wide.draw(&folder.join("agent.svg"))?;
    wide.press(&["Escape"])?;
    wide.wait("look, steer")?;
    wide.press(&["Escape"])?;
    wide.say("/agents")?;
    wide.wait("Verification")?;
    wide.draw(&folder.join("agents.svg"))?;
    wide.press(&["Escape"])?;
    wide.write("/co")?;
    wide.wait("/compact")?;
    wide.draw(&folder.join("commands.svg"))?;
    wide.press(&["C-u"])?;
    wide.resize((44, 34))?;
    // As it is drawn again, and not as the terminal has broken it.
    wide.wait("\n  soon as the first of them")?;
    wide.draw(&folder.join("narrow.svg"))?;
    wide.resize((100, 34))?;
    wide.wait("I go on as soon as the first of them")?;
    wide.press(&["C-d"])?;
    wide.wait("Keep running")?;
    wide.draw(&folder.join("leaving.svg"))?;
    wide.press(&["Down", "Down", "Enter"])?;
    Ok(())
}

/// The demo from its beginning to its end, as it is played without a key.
fn film_demo(folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let home = Home::new()?;
    let binary = std::env::current_exe()?.with_file_name("decurion");
    // Its folder is shown: one with a short name.
    let program = home.program(binary).arg("demo").env("COLORFGBG", "15;0").env("TMPDIR", "/tmp");
    let mut pty = Pty::start(&program, DEMO)?;
    let mut film = film::Film::new(DEMO);
    let begins = Instant::now();
    while begins.elapsed() < PATIENCE && !pty.screen().contains("any other key to end") {
        pty.rest(FRAME)?;
        film.take(pty.shown(), FRAME, pty.screen().contains(POSTER));
    }
    pty.write("q")?;
    if pty.end(PATIENCE)?.is_none() {
        return Err(format!("the demo does not end:\n{}", pty.screen()).into());
    }
    film.take(pty.shown(), LAST, false);
    let path = folder.join("demo.svg");
    std::fs::write(&path, film.svg())?;
    println!("{}", path.display());
    Ok(())
}

/// The program in a terminal.
struct Shown {
    tmux: Tmux,
    size: std::cell::Cell<(u16, u16)>,
    _home: Home,
}

impl Shown {
    fn start(size: (u16, u16)) -> Result<Self, Box<dyn Error>> {
        let home = Home::new()?;
        let script = home.path().join("session.script");
        std::fs::write(&script, SCRIPT)?;
        std::fs::create_dir_all(home.work().join("src"))?;
        std::fs::create_dir_all(home.state())?;
        std::fs::write(home.state().join("settings.json"), r#"{"agents": {"maxDepth": 2}}"#)?;
        let binary = std::env::current_exe()?.with_file_name("decurion");
        let model = format!("scripted:{}", script.display());
        let program = home
            .program(binary)
            .args(["--model", &model, "--allowedTools", "Write,Bash(sleep:*),Agent"])
            .env("COLORFGBG", "15;0")
            .env("TERM", "tmux-256color");
        let tmux = Tmux::start(&program, size)?;
        let shown = Self { tmux, size: std::cell::Cell::new(size), _home: home };
        shown.wait(">")?;
        Ok(shown)
    }

    fn press(&self, keys: &[&str]) -> Result<(), Box<dyn Error>> {
        Ok(self.tmux.press(keys)?)
    }

    fn write(&self, text: &str) -> Result<(), Box<dyn Error>> {
        Ok(self.tmux.write(text)?)
    }

    fn say(&self, text: &str) -> Result<(), Box<dyn Error>> {
        self.write(text)?;
        self.press(&["Enter"])
    }

    fn resize(&self, size: (u16, u16)) -> Result<(), Box<dyn Error>> {
        self.size.set(size);
        Ok(self.tmux.resize(size)?)
    }

    fn wait(&self, text: &str) -> Result<(), Box<dyn Error>> {
        let looked = self.tmux.wait(PATIENCE, |screen| screen.contains(text));
        looked.map(drop).map_err(|screen| format!("{text:?} is not on the screen:\n{screen}").into())
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        std::fs::write(path, drawing::svg(&self.tmux.coloured()?, self.size.get()))?;
        println!("{}", path.display());
        Ok(())
    }
}

//! A person's yes. Takes a question about what was just shown, gives whether it may be done: by an answer on the
//! terminal, or by `--yes` without one.

use std::io::{IsTerminal as _, Write as _};

use crate::report::Failure;
use crate::screen;

/// Asks on the terminal, unless that was answered by the command line.
pub fn agreed(yes: bool, question: &str) -> Result<(), Failure> {
    can_be_asked(yes)?;
    if yes {
        return Ok(());
    }
    let mut out = screen::stderr();
    let _ = out.write_all(format!("{question} Type yes: ").as_bytes()).and_then(|()| out.flush());
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    let said = line.trim().to_ascii_lowercase();
    if read.is_ok() && matches!(said.as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::failed("not confirmed; nothing was changed"))
}

/// Whether anybody can answer.
pub fn can_be_asked(yes: bool) -> Result<(), Failure> {
    if yes || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage("confirmation required")
        .hint("check what is printed above, then run this in a terminal or pass --yes"))
}

//! Colours by the terminal's background, which the program asks it for; and what somebody types until it has said so.

use decurion_testkit::pty::Pty;

use super::{PATIENCE, USUAL};
use crate::stand::Stand;

/// What the program asks: its background, and what kind of terminal it is.
const ASKED: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
const KIND: &str = "\x1b[?62;22c";
/// The codes of a colour that is not the same on both backgrounds: of what is chosen.
const ON_DARK: &str = "96";
const ON_LIGHT: &str = "34";

/// The program in a terminal that says this, whatever it is asked.
fn in_terminal(stand: &Stand, says: &str) -> Pty {
    let mut pty = Pty::start(&stand.decurion(), USUAL).unwrap();
    pty.keep_silent();
    pty.write(says).unwrap();
    pty.wait_for("ask before acting", PATIENCE).unwrap();
    assert!(pty.written().windows(ASKED.len()).any(|bytes| bytes == ASKED), "nobody asked");
    pty
}

/// Whether what is chosen in a list has the colour for a dark background, and for a light one.
fn accents(pty: &mut Pty) -> [bool; 2] {
    pty.forget();
    pty.write("/co").unwrap();
    pty.wait_for("❯ /co", PATIENCE).unwrap();
    let written = String::from_utf8_lossy(pty.written());
    let styles = written.split("\x1b[").filter_map(|sequence| sequence.split_once('m'));
    let codes: Vec<&str> = styles.flat_map(|(codes, _)| codes.split(';')).collect();
    [ON_DARK, ON_LIGHT].map(|code| codes.contains(&code))
}

#[test]
fn colours_are_those_for_the_background_of_the_terminal() {
    let stand = Stand::new("when\n  say \"Yes.\"\n");
    for (background, expected) in [
        ("\x1b]11;rgb:ffff/ffff/dddd\x1b\\", [false, true]),
        ("\x1b]11;rgb:1111/1111/2222\x07", [true, false]),
        // One that knows of no such question.
        ("", [true, false]),
    ] {
        let mut pty = in_terminal(&stand, &format!("{background}{KIND}"));
        assert_eq!(
            accents(&mut pty),
            expected,
            "{background:?}: {:?}",
            String::from_utf8_lossy(pty.written())
        );
    }
}

#[test]
fn what_is_typed_before_the_terminal_has_answered_is_in_the_prompt() {
    let stand = Stand::new("when text=/count the kumquats$/\n  say \"There are two.\"\n");
    let says = format!("count\x1b]11;rgb:ffff/ffff/ffff\x1b\\ the{KIND}");
    let mut pty = in_terminal(&stand, &says);
    pty.wait_for("> count the", PATIENCE).unwrap();
    pty.write(" kumquats\r").unwrap();
    pty.wait_for("There are two.", PATIENCE).unwrap();
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

//! What a shell text would do. Takes the text and where it would run; gives every simple command in it, what
//! each would touch, and why anything was not understood. Nothing is run and nothing is looked up.
//!
//! Two rules hold it together: what is not fully understood is a *doubt*, never a guess that passes; and
//! what a command would run, however deep, is in the list as a command of its own.

mod expand;
mod git;
mod given;
mod hazard;
mod path;
mod program;
mod runner;
mod seems;
mod syntax;
mod text;
mod variable;
mod walk;

use decurion_protocol::intent::ShellIntent;

use crate::Surroundings;
pub use git::takes_value as git_option_takes_value;
pub use path::normal;
pub use program::{removes_operands, replaces_target};
pub use seems::seems_to_read;
pub use variable::is_harmless_assignment;
use walk::Walker;

/// A text longer than this is not taken apart.
pub const MAX_TEXT: usize = 64 * 1024;
/// A text of more commands than this is asked about.
pub const MAX_COMMANDS: usize = 200;

/// Takes a shell text apart.
pub fn analyse(command: &str, around: &Surroundings) -> ShellIntent {
    if command.len() > MAX_TEXT {
        let doubt = Some(format!("the text is longer than {MAX_TEXT} bytes"));
        return ShellIntent { doubt, ..ShellIntent::default() };
    }
    let parsed = syntax::parse(command);
    let mut walker = Walker::new(around, parsed.bodies);
    walker.script(&parsed.script);
    let too_many =
        (walker.commands.len() > MAX_COMMANDS).then(|| "there are too many commands in it".to_owned());
    let doubt = deceiving(command).or(parsed.doubt).or(walker.doubt).or(too_many);
    ShellIntent { commands: walker.commands, doubt, not_literal: walker.not_literal, moves: walker.moves }
}

/// The words of a rule's text, split as bash would; none where it is not one plain command.
pub fn rule_words(text: &str) -> Option<Vec<String>> {
    let parsed = syntax::parse(text);
    if parsed.doubt.is_some() {
        return None;
    }
    let [list] = parsed.script.lists.as_slice() else { return None };
    let ([command], true) = (list.first.as_slice(), list.rest.is_empty()) else { return None };
    let syntax::Body::Simple { assigns, words } = &command.body else { return None };
    if !command.redirects.is_empty() {
        return None;
    }
    let mut found = Vec::new();
    for assign in assigns {
        found.push(assign.value.source.clone());
    }
    for word in words {
        let mut text = String::new();
        for part in &word.parts {
            match part {
                syntax::Part::Text { text: piece, .. } | syntax::Part::Ansi(piece) => text.push_str(piece),
                syntax::Part::Glob(mark) | syntax::Part::Mark(mark) => text.push(*mark),
                _ => {
                    text.clone_from(&word.source);
                    break;
                }
            }
        }
        found.push(text);
    }
    Some(found)
}

/// Whether a list of words, separated by blanks or line ends, has this one. Long lists are looked through for each command.
fn lists(list: &str, word: &str) -> bool {
    let is_blank = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_whitespace);
    let is_word = !word.is_empty() && !word.bytes().any(|byte| byte.is_ascii_whitespace());
    let bytes = list.as_bytes();
    let ends =
        |at: usize| is_blank(at.checked_sub(1).map(|at| &bytes[at])) && is_blank(bytes.get(at + word.len()));
    is_word && memchr::memmem::find_iter(bytes, word).any(ends)
}

/// Whether a program has options that run another or write a file, so that a word which may be one matters.
pub fn has_hazards(program: &str) -> bool {
    hazard::has_any(&path::program(program).0)
}

/// A word as it would be typed: with quotes where it needs them.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,~$*?[]{}^!#…".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The text with control characters and characters that deceive the eye made visible.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if (is_deceiving(c) || c.is_control()) && c != '\n' && c != '\t' {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Why a text may not be what it looks like.
fn deceiving(text: &str) -> Option<String> {
    let found = text.chars().find(|c| (c.is_control() && *c != '\n' && *c != '\t') || is_deceiving(*c))?;
    Some(format!("it has a character that deceives, U+{:04X}", u32::from(found)))
}

/// Characters that are not seen, that turn the direction of text, or that look like a blank.
fn is_deceiving(c: char) -> bool {
    matches!(u32::from(c),
        0x00A0 | 0x00AD | 0x034F | 0x061C | 0x115F | 0x1160 | 0x1680 | 0x17B4 | 0x17B5 | 0x180B..=0x180E
        | 0x2000..=0x200F | 0x2028..=0x202F | 0x205F..=0x206F | 0x3000 | 0x3164 | 0xFEFF | 0xFFA0
        | 0xFFF0..=0xFFFB | 0x1D173..=0x1D17A | 0xE0000..=0xE0FFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around() -> Surroundings {
        Surroundings { cwd: "/w".into(), home: Some("/home/user".into()), directories: Vec::new() }
    }

    /// The commands found, with `?` before those in doubt, and the doubt about the whole.
    fn found(text: &str) -> (Vec<String>, bool) {
        let shell = analyse(text, &around());
        let show = |command: &decurion_protocol::intent::ShellCommand| {
            format!("{}{}", if command.doubt.is_some() { "?" } else { "" }, command.words.join("|"))
        };
        (shell.commands.iter().map(show).collect(), shell.doubt.is_some())
    }

    #[test]
    fn words_are_what_bash_would_pass() {
        for (text, words) in [
            ("a b  c", "a|b|c"),
            ("a 'b c' \"d e\"", "a|b c|d e"),
            ("a b\\ c \\'", "a|b c|'"),
            ("a \"b\\\"c\\$d\\e\"", "a|b\"c$d\\e"),
            ("a $'b\\tc\\x41\\101\\u0042'", "a|b\tcAAB"),
            ("a b\\\nc", "a|bc"),
            ("a b#c #d", "a|b#c"),
            ("a {b,c}d", "a|bd|cd"),
            ("a {b,}{c,}", "a|bc|b|c"),
            ("a {1..3} {x} @{u}", "a|1|2|3|{x}|@{u}"),
            ("a '' \"\"", "a||"),
            ("X=1 Y='2 3' a", "X=1|Y=2 3|a"),
            ("a >x 2>&1 b", "a|b"),
            ("a ~/x", "a|/home/user/x"),
            ("a x=~/y", "a|x=/home/user/y"),
        ] {
            assert_eq!(found(text), (vec![words.to_owned()], false), "{text}");
        }
    }

    #[test]
    fn only_whole_words_are_listed() {
        let list = "aaa b-c\n    aa --long";
        for (word, listed) in [
            ("aaa", true),
            ("aa", true),
            ("b-c", true),
            ("--long", true),
            ("a", false),
            ("b", false),
            ("-c", false),
            ("--lon", false),
            ("--long ", false),
            ("aaa b-c", false),
            ("\n", false),
            ("", false),
        ] {
            assert_eq!(lists(list, word), listed, "{word:?}");
        }
    }

    #[test]
    fn every_command_is_found() {
        for (text, commands) in [
            ("a; b && c || d | e & f", "a b c d e f"),
            ("(a; { b; })", "a b"),
            ("if a; then b; elif c; then d; else e; fi", "a b c d e"),
            ("while a; do b; done; until c; do d; done", "a b c d"),
            ("for x in 1; do a; done", "a"),
            ("case x in a) a;; (b|c) b;; esac", "a b"),
            ("echo $(a) `b` \"$(c)\" <(d) ${x:-$(e)}", "a b c d e"),
            ("timeout 5 nice -n 3 a", "timeout nice a"),
            ("bash -c 'a; b'", "bash a b"),
            ("eval -- 'a; b'", "eval a b"),
            ("find . -exec a {} \\; -exec b {} +", "find a b"),
        ] {
            let (found, doubt) = found(text);
            let programs: Vec<&str> = found
                .iter()
                .map(|command| command.split('|').next().unwrap())
                .filter(|name| *name != "echo")
                .collect();
            assert_eq!((programs.join(" "), doubt), (commands.to_owned(), false), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_a_doubt() {
        for text in [
            "'a",
            "\"a",
            "`a",
            "$(a",
            "a)",
            "a;;",
            "if a",
            "if a; then b",
            "for x",
            "a <",
            "a <<E",
            "a <<E\nx",
            "{ a",
            "(a",
            "x=(a b)",
            "x[0]=1",
            "${!x}",
            "${x@P}",
            "${x:=y}",
            "$((x))",
            "$((a[0]))",
            "f() { a; }",
            "function f { a; }",
            "coproc a",
            "select x in a; do b; done",
            "a {1..9999}",
            "$[1]",
            "$\"a\"",
            "a {b,{c}",
            "a\r",
            "a\u{200b}",
            "[[ $x -eq 1 ]]",
            "time -p a",
            "cat <<E\n$(a)\nE\nb",
            "$x",
            "a$(b)",
            "eval $x",
            "cd -",
            "pushd x",
            "command cd x && cat y",
            "cat <<E\\\nF\nx\nEF\n",
            "PATH=x a",
            "a > /dev/tcp/b/1",
            "()",
            "a <()",
            "a `b 'c\\\nd'`",
            "in",
            "]]",
            "set -k; a x=1",
            "set -o posix; a",
            "compgen -C a",
            "eval 'cd x'; a > b",
            ". -- /dev/stdin <<< a",
        ] {
            let shell = analyse(text, &around());
            let doubt = shell.doubt.is_some() || shell.commands.iter().any(|command| command.doubt.is_some());
            assert!(doubt, "{text}: {shell:?}");
        }
    }

    #[test]
    fn directories_are_followed() {
        let touched = |text: &str| -> Vec<String> {
            let shell = analyse(text, &around());
            assert!(shell.moves);
            let last = shell.commands.last().unwrap();
            last.touches.iter().map(|touch| touch.path.to_string()).collect()
        };
        assert_eq!(touched("cd a && cat ../x"), ["/w/x"]);
        assert_eq!(touched("cd a; cat x"), ["/w/a/x", "/w/x"]);
        assert_eq!(touched("(cd a); cat x"), ["/w/x"]);
        assert_eq!(touched("cd a && cd b && cat x"), ["/w/a/b/x"]);
        assert_eq!(touched("b || cd a && cat x"), ["/w/a/x", "/w/x"]);
        assert_eq!(touched("b || cd a && c && cat x"), ["/w/a/x", "/w/x"]);
    }

    #[test]
    fn deep_and_long_texts_end() {
        for text in [
            "(".repeat(10_000),
            "$(".repeat(10_000),
            "`".repeat(9_999),
            "{".repeat(10_000),
            "a;".repeat(20_000),
            "a{b,c}".repeat(2_000),
            "a ".repeat(30_000),
        ] {
            let shell = analyse(&text, &around());
            assert!(shell.doubt.is_some() || shell.commands.len() <= MAX_COMMANDS);
        }
    }
}

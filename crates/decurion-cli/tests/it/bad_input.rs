//! What is wrong before anything starts: one message that names the thing, exit code 2, nothing written and
//! nobody asked.

use decurion_testkit::proc::{Finished, Home};

use crate::stand::{DECURION, Stand, files_below, finished};

/// A command line and what must be said about it.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("an unknown flag", &["-p", "x", "--frobnicate"], &["--frobnicate"]),
    ("an unknown format", &["-p", "x", "--output-format", "xml"], &["xml", "stream-json"]),
    ("no print", &["x"], &["-p"]),
    ("settings that are not there", &["-p", "x", "--settings", "/nowhere/settings.json"], &["/nowhere/settings.json"]),
    ("settings that are no JSON", &["-p", "x", "--settings", "{\"model\": }"], &["--settings", "1:11"]),
    ("a setting of the wrong type", &["-p", "x", "--settings", "{\n \"permissions\": {\"allow\": \"Bash\"}}"], &["permissions.allow", "2:"]),
    ("an unknown source of settings", &["-p", "x", "--setting-sources", "user,elsewhere"], &["elsewhere"]),
    ("a provider nobody configured", &["-p", "x", "--settings", "{\"provider\": \"nowhere\"}"], &["nowhere"]),
    ("a script that is not there", &["-p", "x", "--model", "scripted:missing.script"], &["missing.script"]),
    ("a rule that does not end", &["-p", "x", "--allowedTools", "Bash(ls"], &["Bash(ls"]),
    ("a rule without a tool", &["-p", "x", "--disallowedTools", "(ls)"], &["(ls)"]),
    ("a rule in the settings", &["-p", "x", "--settings", "{\"permissions\": {\"deny\": [\"Bash(\"]}}"], &["Bash("]),
    ("a mode nobody knows", &["-p", "x", "--permission-mode", "yolo"], &["yolo", "acceptEdits"]),
    ("a tool nobody has", &["-p", "x", "--tools", "Read,Frobnicate"], &["Frobnicate", "Read"]),
    ("a session id that is a path", &["-p", "x", "--session-id", "../../etc/passwd"], &["../../etc/passwd"]),
    ("a session to resume that is no id", &["-p", "x", "--resume", "last"], &["last", "sessions list"]),
    ("a session to resume that is not there", &["-p", "x", "--resume", "00000000-0000-4000-8000-000000000000"], &["00000000-0000-4000-8000-000000000000"]),
    ("nothing to continue", &["-p", "x", "--continue"], &["continue"]),
    ("continue and resume", &["-p", "x", "--continue", "--resume", "00000000-0000-4000-8000-000000000000"], &["--continue", "--resume"]),
    ("a fork of nothing", &["-p", "x", "--fork-session"], &["--fork-session"]),
    ("a message to go on from in nothing", &["-p", "x", "--resume-session-at", "00000000-0000-4000-8000-000000000000"], &["--resume-session-at", "--resume"]),
    ("a turn to drop without a message", &["-p", "x", "--resume-drops-turn", "00000000-0000-4000-8000-000000000000"], &["--resume-session-at"]),
    ("a new id for an old session", &["-p", "x", "--resume", "00000000-0000-4000-8000-000000000000", "--session-id", "00000000-0000-4000-8000-000000000001"], &["--session-id"]),
    ("keep and do not keep", &["-p", "x", "--no-session-persistence", "--require-persistence"], &["--no-session-persistence", "--require-persistence"]),
    ("two system prompts", &["-p", "x", "--system-prompt", "a", "--system-prompt-file", "b"], &["--system-prompt"]),
    ("a system prompt that is not there", &["-p", "x", "--system-prompt-file", "missing.md"], &["missing.md"]),
    ("a schema that is not there", &["-p", "x", "--json-schema", "missing.json"], &["missing.json"]),
    ("a schema that is no JSON", &["-p", "x", "--json-schema", "{\"type\":"], &["--json-schema"]),
    ("a schema that is no schema", &["-p", "x", "--json-schema", "{\"type\": 5}"], &["5", "JSON Schema"]),
    ("a schema of something else", &["-p", "x", "--json-schema", "{\"type\": \"array\"}"], &["object"]),
    ("no turns", &["-p", "x", "--max-turns", "0"], &["--max-turns"]),
    ("turns that are no number", &["-p", "x", "--max-turns", "many"], &["--max-turns", "many"]),
    ("money that is none", &["-p", "x", "--max-budget-usd=-1"], &["--max-budget-usd", "-1"]),
    ("money without end", &["-p", "x", "--max-budget-usd", "inf"], &["--max-budget-usd", "inf"]),
    ("no prompt", &["-p"], &["prompt"]),
    ("a prompt of two arguments", &["-p", "fix", "it"], &["unexpected argument \"it\"", "quotes"]),
    (
        "a command behind an option",
        &["--model", "x", "mcp", "serve"],
        &["subcommand mcp serve must come before the options", "decurion mcp serve --help"],
    ),
    ("a session that is not there", &["trace", "nosuch"], &["session not found: nosuch", "sessions list"]),
    ("one to go on with", &["-p", "x", "--resume", "nosuch"], &["session not found: nosuch"]),
    ("a name that looks like the prompt", &["-p", "--worktree", "name", "fix it"], &["fix it", "--worktree=NAME"]),
    ("a command behind an option", &["-p", "x", "sessions"], &["'sessions'", "--print"]),
    ("an empty prompt", &["-p", "  \n"], &["prompt"]),
    ("show of a path", &["sessions", "show", "../x"], &["../x"]),
    ("export of a session that is not there", &["sessions", "export", "00000000-0000-4000-8000-000000000000"], &["00000000-0000-4000-8000-000000000000"]),
    ("a check of a file that is not there", &["permissions", "check", "missing.jsonl"], &["missing.jsonl"]),
];

/// One message, naming every one of these; exit code 2; nothing on standard output.
fn assert_refused(name: &str, finished: &Finished, needles: &[&str]) {
    let errors = &finished.errors;
    assert_eq!(finished.ending.code(), 2, "{name}: {finished:?}");
    assert_eq!(finished.lines, Vec::<String>::new(), "{name}");
    for needle in needles {
        assert!(errors.contains(needle), "{name}: {needle:?} is not in {errors:?}");
    }
    let messages = errors.lines().filter(|line| line.starts_with("decurion:") || line.starts_with("error:"));
    assert_eq!(messages.count(), 1, "{name}: {errors}");
    assert!(errors.lines().count() <= 12, "{name}: {errors}");
    assert!(!errors.contains("panicked"), "{name}: {errors}");
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_begun() {
    let stand = Stand::new("when\n say \"never\"");
    for (name, arguments, needles) in CASES {
        assert_refused(name, &stand.run(arguments), needles);
        assert_eq!(stand.written(), Vec::<std::path::PathBuf>::new(), "{name}");
        assert_eq!(stand.left_at_home(), Vec::<std::path::PathBuf>::new(), "{name}");
    }
    assert_eq!(stand.model.requests().len(), 0);
    assert!(stand.home.processes().is_empty());
}

#[test]
fn a_broken_settings_file_is_named_with_its_line_column_and_key() {
    let stand = Stand::new("when\n say \"never\"");
    let rows: [(&str, &[&str]); 4] = [
        (
            "{\n  \"model\": \"m\",\n  \"permissions\": {\n    \"deny\": \"Bash\"\n  }\n}\n",
            &[":4:", "permissions.deny"],
        ),
        ("{\n  \"durability\": \"perhaps\"\n}\n", &[":2:", "durability", "perhaps"]),
        ("{\n  \"model\": \"m\"\n  \"effort\": 1\n}\n", &[":3:"]),
        ("{\n  \"limits\": {\"bashTimeoutMs\": -4}\n}\n", &[":2:", "limits.bashTimeoutMs"]),
    ];
    for (text, needles) in rows {
        let file = stand.home.state().join("settings.json");
        std::fs::write(&file, text).unwrap();
        let run = stand.run(&["-p", "x"]);
        assert_refused(text, &run, needles);
        assert!(run.errors.contains(file.to_str().unwrap()), "{}", run.errors);
        assert_eq!(stand.written(), [file]);
    }
    assert_eq!(stand.model.requests().len(), 0);
}

#[test]
fn a_settings_file_that_cannot_be_read_is_named() {
    let stand = Stand::new("when\n say \"never\"");
    let file = stand.home.state().join("settings.json");
    std::fs::create_dir(&file).unwrap();
    assert_refused("a folder", &stand.run(&["-p", "x"]), &[file.to_str().unwrap()]);
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, b"{\"model\": \"\xff\"}").unwrap();
    assert_refused("not text", &stand.run(&["-p", "x"]), &[file.to_str().unwrap()]);
}

#[test]
fn input_that_is_not_text_is_refused_with_its_place() {
    let stand = Stand::new("when\n say \"never\"");
    let run = finished(stand.decurion().args(["-p"]).input(b"some text \xff\xfe".to_vec()));
    assert_refused("stdin", &run, &["UTF-8", "byte 10"]);
    assert_eq!(stand.model.requests().len(), 0);
}

#[test]
fn a_working_directory_that_is_gone_is_said_to_be() {
    let stand = Stand::new("when\n say \"never\"");
    let vanish = format!("mkdir gone && cd gone && rmdir ../gone && exec {DECURION} -p x");
    let program = stand.home.program("/bin/sh").args(["-c", &vanish]);
    let run = finished(program.env("ANTHROPIC_BASE_URL", stand.model.url()).env("ANTHROPIC_API_KEY", "k"));
    assert_refused("gone", &run, &["director"]);
    assert_eq!(stand.written(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn without_a_provider_three_ways_to_one_are_named() {
    let home = Home::new().unwrap();
    let run = finished(home.program(DECURION).args(["-p", "x"]));
    let needles = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "Ollama", "settings.json", "decurion demo"];
    assert_refused("nothing", &run, &needles);
    for number in ["1. ", "2. ", "3. "] {
        assert_eq!(run.errors.matches(number).count(), 1, "{}", run.errors);
    }
    assert_eq!(files_below(home.state()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_model_that_the_provider_does_not_know_is_named() {
    let stand = Stand::new(
        "when model=nonesuch\n fail 404 type=not_found_error \"model: nonesuch\"\nwhen\n say \"x\"",
    );
    let run = stand.run(&["-p", "x", "--model", "nonesuch"]);
    assert_eq!(run.ending.code(), 1, "{run:?}");
    assert!(run.errors.contains("nonesuch") && run.errors.contains("model"), "{}", run.errors);
    assert_eq!(stand.model.requests().len(), 1, "asked again for a model that is not there");
}

#[test]
fn a_reader_that_has_gone_ends_a_command_quietly() {
    let stand = Stand::new("when\n say \"never\"");
    let script = "mkfifo $TMPDIR/p; exec 3<>$TMPDIR/p 4>$TMPDIR/p 3<&-; \"$@\" >&4; echo \"code $?\"";
    for command in [&["doctor"][..], &["agents", "list"], &["config", "show"], &["sessions", "list"]] {
        let program = stand.home.program("bash").args(["-c", script, "bash", DECURION]).args(command);
        let run = finished(program);
        assert_eq!((run.lines.join("\n").as_str(), run.errors.as_str()), ("code 141", ""), "{command:?}");
        std::fs::remove_file(stand.home.path().join("tmp/p")).unwrap();
    }
}

#[test]
fn an_unknown_flag_suggests_no_hidden_one() {
    let stand = Stand::new("when\n say \"x\"");
    for (flag, suggested) in [("--frobnicate", None), ("--kept-bye", None), ("--modle", Some("'--model'"))] {
        let run = stand.run(&[flag, "x"]);
        assert_eq!(run.ending.code(), 2, "{run:?}");
        assert!(run.errors.contains(&format!("unexpected argument '{flag}'")), "{run:?}");
        let tip = run.errors.lines().find(|line| line.contains("a similar argument exists"));
        assert_eq!(tip.is_some(), suggested.is_some(), "{run:?}");
        assert!(suggested.is_none_or(|name| tip.unwrap().contains(name)), "{run:?}");
    }
}

#[test]
fn a_session_id_that_is_no_uuid_is_reported_as_such() {
    let stand = Stand::new("when\n say \"x\"");
    let run = stand.run(&["-p", "go", "--session-id", "5"]);
    assert_eq!(run.ending.code(), 2, "{run:?}");
    assert!(run.errors.contains("not a valid session id (a UUID with hyphens): \"5\""), "{run:?}");
}

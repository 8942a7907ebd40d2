//! Sessions over several starts of the program: taken up, copied, named, not kept, listed, shown, exported,
//! shortened, and taken over from another program; and the commands that only look.

use decurion_testkit::faults::transcript::sealed;
use decurion_testkit::proc::Finished;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand, finished, result, without_times};

/// Says how many prompts it has seen, so that a reply shows what the conversation held.
const COUNTING: &str = "when match=\"third\"
  say \"first=${seen.first} turn=${seen.turn}\"
when match=\"second\"
  say \"two: turn ${seen.turn}\"
when
  say \"one: turn ${seen.turn}\"
";
const ID: &str = "11111111-2222-4333-8444-555555555555";
const OTHER: &str = "99999999-2222-4333-8444-555555555555";

fn ask(stand: &Stand, prompt: &str, more: &[&str]) -> (String, Value) {
    let run = finished(stand.decurion().args(["-p", prompt, "--output-format", "json"]).args(more));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    assert_eq!(stand.model.problems(), Vec::<String>::new());
    let result = result(&run);
    (result["result"].as_str().unwrap().to_owned(), result["session_id"].clone())
}

/// The texts of the last request's messages.
fn last_messages(stand: &Stand) -> Vec<Value> {
    stand.model.requests().last().unwrap().json()["messages"].as_array().unwrap().clone()
}

#[test]
fn a_session_is_continued_resumed_and_forked() {
    let stand = Stand::new(COUNTING);
    let (said, id) = ask(&stand, "first", &["--session-id", ID]);
    assert_eq!((said.as_str(), id), ("one: turn 1", json!(ID)));
    let (said, id) = ask(&stand, "second", &["--continue"]);
    assert_eq!((said.as_str(), id), ("two: turn 2", json!(ID)));
    let (_, id) = ask(&stand, "third", &["--resume", ID]);
    assert_eq!(id, json!(ID));
    assert_eq!(last_messages(&stand).len(), 5);
    // A copy goes its own way under an id of its own.
    let (_, copy) = ask(&stand, "third", &["--resume", ID, "--fork-session"]);
    assert_ne!(copy, json!(ID));
    assert_eq!(last_messages(&stand).len(), 7);
    let (_, copy) = ask(&stand, "third", &["--continue", "--fork-session", "--session-id", OTHER]);
    assert_eq!(copy, json!(OTHER));
    // The original does not know of it.
    ask(&stand, "third", &["--resume", ID]);
    assert_eq!(last_messages(&stand).len(), 7);
    // An id is used once.
    let again = stand.run(&["-p", "x", "--session-id", ID]);
    assert_eq!(again.ending.code(), 2, "{again:?}");
    assert!(again.errors.contains(ID) && again.errors.contains("--resume"), "{}", again.errors);
    // With the heads.
    assert_eq!(lines(&stand, &["sessions", "list"]).len(), 4);
}

#[test]
fn a_session_that_is_killed_again_and_again_stays_within_one_budget() {
    // Each request is billed as 20,000 tokens read and 4,000 written, and dies in the middle of its reply.
    let stand =
        Stand::new("when\n say chunk=1 \"wait\"\n usage input=20000 output=4000\n stall after 4 events");
    let limited = |more: [&str; 2]| {
        let program = stand.decurion().args(["-p", "go", "--model", "claude-sonnet-4-5"]).args(more);
        program.args(["--max-budget-usd", "1", "--output-format", "stream-json"]).args(["--verbose"])
    };
    let mut started = ["--session-id", ID];
    for _ in 0..20 {
        let mut running = limited(started).args(["--include-partial-messages"]).start().unwrap();
        if running.wait_for_line(LIMIT, |line| line.contains("text_delta")).is_some() {
            running.signal(Signal::KILL).unwrap();
            running.finish(LIMIT).unwrap();
            started = ["--resume", ID];
            continue;
        }
        let run = running.finish(LIMIT).unwrap();
        assert_eq!(run.ending.code(), 4, "{run:?}");
        assert_eq!(result(&run)["subtype"], "error_max_budget_usd");
        let told = run.output().contains("this session has used $");
        assert!(told, "what was used before is not shown: {run:?}");
        let requests = stand.model.requests().len();
        // In millionths of a dollar: three for a token read, fifteen for one written.
        let billed = requests * (20_000 * 3 + 4_000 * 15);
        assert!(requests >= 1 && billed <= 1_000_000, "{requests} requests cost {billed} millionths");
        // A higher limit lets it continue.
        let more = stand.decurion().args(["-p", "go", "--resume", ID, "--max-budget-usd", "9"]);
        let mut more = more
            .args(["--output-format", "stream-json", "--verbose", "--include-partial-messages"])
            .start()
            .unwrap();
        assert!(more.wait_for_line(LIMIT, |line| line.contains("text_delta")).is_some());
        more.signal(Signal::KILL).unwrap();
        more.finish(LIMIT).unwrap();
        return;
    }
    panic!("{} requests and no end of the budget", stand.model.requests().len());
}

/// The model refuses every request that a provider would refuse.
#[test]
fn a_transcript_with_damaged_blocks_is_resumed_with_valid_requests() {
    let script = "when text=\"again\"\n  say \"still here\"\nwhen turn=1\n  say \"looking\"\n  call Bash {\"command\": \"echo found\"}\n\
        when turn=2\n  say \"it is found\"\n";
    let text = |text: &str| format!("{{\"type\":\"text\",\"text\":\"{text}\"}}");
    let rows = [
        (text("looking"), "7".to_owned()),
        (text("looking"), "{\"type\":\"text\",\"text\":[\"looking\"]}".to_owned()),
        (text("it is found"), "{\"type\":\"tool_use\",\"id\":1}".to_owned()),
        ("{\"command\":\"echo found\"}".to_owned(), "\"echo found\"".to_owned()),
        ("\"content\":\"go\"".to_owned(), "\"content\":[{\"type\":\"texu\",\"text\":\"go\"}]".to_owned()),
        ("\"content\":\"found\"".to_owned(), "\"content\":[7]".to_owned()),
    ];
    for (whole, damaged) in rows {
        let stand = Stand::new(script);
        let flags = ["--allowedTools", "Bash"];
        let run = finished(stand.decurion().args(["-p", "go", "--session-id", ID]).args(flags));
        assert_eq!(run.output(), "it is found", "{run:?}");
        let path = stand.written().into_iter().find(|path| path.ends_with(format!("{ID}.jsonl"))).unwrap();
        let transcript = std::fs::read_to_string(&path).unwrap();
        assert!(transcript.contains(&whole), "{whole}: {transcript}");
        std::fs::write(&path, transcript.replace(&whole, &damaged)).unwrap();
        let run = finished(stand.decurion().args(["-p", "again", "--resume", ID]).args(flags));
        assert_eq!((run.ending.code(), run.output().as_str()), (0, "still here"), "{damaged}: {run:?}");
        let told = run.errors.contains("1 part of the conversation is damaged");
        assert!(told, "{damaged}: {}", run.errors);
        assert_eq!(stand.model.problems(), Vec::<String>::new(), "{damaged}");
    }
}

/// What a person's editor or `sed` makes of a transcript.
type Edit = fn(String) -> String;

#[test]
fn an_edited_transcript_keeps_its_conversation() {
    let edits: [(&str, Edit); 4] = [
        ("line ends of another system", |text| text.replace('\n', "\r\n")),
        ("a project that moved", |text| text.replace("\"cwd\":\"", "\"cwd\":\"/moved")),
        ("line ends lost", |text| text.replace('\n', "")),
        ("a byte order mark, and no end of the last line", |text| format!("\u{feff}{}", text.trim_end())),
    ];
    for (name, edit) in edits {
        let stand = Stand::new(COUNTING);
        ask(&stand, "first", &["--session-id", ID]);
        ask(&stand, "second", &["--resume", ID]);
        let path = stand.written().into_iter().find(|path| path.ends_with(format!("{ID}.jsonl"))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let edited = edit(text.clone());
        std::fs::write(&path, &edited).unwrap();
        let run = finished(stand.decurion().args(["-p", "third", "--resume", ID]));
        assert_eq!(run.ending.code(), 0, "{name}: {run:?}");
        let told = run.errors.contains("edited lines");
        assert_eq!(told, edited.contains("/moved"), "{name}: {}", run.errors);
        assert_eq!(last_messages(&stand).len(), 5, "{name}");
        assert_eq!(run.lines.last().map(String::as_str), Some("first turn=3"), "{name}");
        let now = std::fs::read_to_string(&path).unwrap();
        assert!(now.starts_with(&edited), "nothing is cut: {name}");
    }
}

#[test]
fn a_session_of_a_later_version_is_shown_and_not_continued() {
    let stand = Stand::new(COUNTING);
    ask(&stand, "first", &["--session-id", ID]);
    let path = stand.written().into_iter().find(|path| path.ends_with(format!("{ID}.jsonl"))).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    // A later version took a right away, in words that this one does not know.
    let record = r#"{"type":"decurion","v":1,"must":2,"sessionId":"ID","timestamp":"2026-11-15T06:35:22.007Z","event":{"type":"walls_raised","around":"/"},"seq":900,"ordinal":900"#;
    std::fs::write(&path, text + &sealed(&record.replace("ID", ID))).unwrap();
    let before = std::fs::read(&path).unwrap();
    for flags in [&["--resume", ID][..], &["--continue"], &["--resume", ID, "--fork-session"]] {
        let run = finished(stand.decurion().args(["-p", "second"]).args(flags));
        assert_eq!(run.ending.code(), 2, "{flags:?}: {run:?}");
        for word in ["level 2", "understands level 1", "or later to continue it", "sessions show"] {
            assert!(run.errors.contains(word), "{flags:?}: {}", run.errors);
        }
        assert_eq!(std::fs::read(&path).unwrap(), before, "{flags:?}: nothing is changed");
    }
    let shown = finished(stand.decurion().args(["sessions", "show", ID]));
    assert!(shown.ending.code() == 0 && shown.output().contains("one: turn 1"), "{shown:?}");
    let exported = finished(stand.decurion().args(["sessions", "export", ID]));
    assert!(exported.ending.code() == 0 && exported.output().contains("walls_raised"), "{exported:?}");
    assert_eq!(stand.model.requests().len(), 1, "no later request was sent");
}

/// An agent, then a word.
const WITH_AGENT: &str = "when agent=main turn=1
  call Agent {\"description\": \"look\", \"prompt\": \"Look around.\", \"subagent_type\": \"general-purpose\", \"run_in_background\": false}
when agent=main
  say \"main is done\"
when
  say \"the agent is done\"
";

#[test]
fn one_bad_file_of_an_agent_does_not_stop_a_resume() {
    let stand = Stand::new(WITH_AGENT);
    ask(&stand, "first", &["--session-id", ID]);
    let named = |end: &str| {
        let fits = |path: &std::path::PathBuf| path.to_str().is_some_and(|path| path.ends_with(end));
        stand.written().into_iter().filter(fits).collect::<Vec<_>>()
    };
    let is_agents = |path: &std::path::PathBuf| path.to_str().unwrap().contains("subagents/agent-");
    let path = named(".jsonl").into_iter().find(is_agents).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    let run = finished(stand.decurion().args(["-p", "second", "--resume", ID]));
    assert_eq!((run.ending.code(), run.lines), (0, vec!["main is done".to_owned()]), "{}", run.errors);
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(run.errors.contains(&format!("left out {name}")), "{}", run.errors);
    // Only the session's own file may refuse, and by its name.
    let root = named(&format!("{ID}.jsonl")).remove(0);
    std::fs::rename(&root, root.with_extension("kept")).unwrap();
    std::os::unix::fs::symlink(root.with_extension("kept"), &root).unwrap();
    let run = stand.run(&["-p", "third", "--resume", ID]);
    assert_eq!(run.ending.code(), 2, "{run:?}");
    assert!(run.errors.contains(root.to_str().unwrap()), "{}", run.errors);
    assert!(!run.errors.contains("DECURION_HOME"), "{}", run.errors);
}

#[test]
fn a_session_goes_on_from_an_earlier_message() {
    let stand = Stand::new(COUNTING);
    let uuid = |lines: &[Value], kind: &str| {
        let of = |line: &&Value| line["type"] == kind;
        lines.iter().find(of).unwrap()["uuid"].as_str().unwrap().to_owned()
    };
    let run = finished(stand.decurion().args([
        "-p",
        "first",
        "--output-format",
        "stream-json",
        "--session-id",
        ID,
    ]));
    let seen: Vec<Value> = run.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reply = uuid(&seen, "assistant");
    ask(&stand, "second", &["--resume", ID]);
    let transcript = || {
        let text = finished(stand.decurion().args(["sessions", "export", ID]));
        text.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let is_prompt = |line: &&Value| line["type"] == "user" && line["message"]["content"] == "second";
    let before = transcript();
    let second = before.iter().find(is_prompt).unwrap()["uuid"].as_str().unwrap().to_owned();
    // What was not expected, or is not there, changes nothing.
    for (at, drops, expected) in [
        (reply.as_str(), reply.as_str(), "Resume rejected by --resume-drops-turn:"),
        (OTHER, second.as_str(), OTHER),
        ("yesterday", second.as_str(), "--resume-session-at"),
        (reply.as_str(), "", "--resume-drops-turn"),
    ] {
        let flags = [format!("--resume-session-at={at}"), format!("--resume-drops-turn={drops}")];
        let refused = finished(stand.decurion().args(["-p", "third", "--resume", ID]).args(&flags));
        assert_eq!(refused.ending.code(), 2, "{refused:?}");
        assert!(refused.errors.contains(expected), "{}", refused.errors);
        assert_eq!(transcript(), before);
    }
    // A copy up to there, then the session itself, and so it stays.
    ask(&stand, "third", &["--resume", ID, "--fork-session", "--resume-session-at", &reply]);
    assert_eq!(last_messages(&stand).len(), 3);
    assert_eq!(transcript(), before);
    ask(&stand, "third", &["--resume", ID, "--resume-session-at", &reply, "--resume-drops-turn", &second]);
    assert_eq!(last_messages(&stand).len(), 3);
    ask(&stand, "third", &["--resume", ID]);
    assert_eq!(last_messages(&stand).len(), 5);
    // The chain of what was said since goes on from that message.
    let after = transcript();
    let next = after.iter().find(|line| line["message"]["content"] == "third").unwrap();
    assert_eq!(next["parentUuid"], reply);
}

#[test]
fn a_session_that_is_not_kept_leaves_nothing() {
    let stand = Stand::new("when turn=1\n call Bash {\"command\": \"seq 1 20000\"}\nwhen\n say \"done\"");
    ask(&stand, "first", &["--no-session-persistence", "--allowedTools", "Bash"]);
    assert_eq!(stand.written(), Vec::<std::path::PathBuf>::new());
    let run = stand.run(&["-p", "x", "--continue"]);
    assert_eq!(run.ending.code(), 2);
}

fn lines(stand: &Stand, arguments: &[&str]) -> Vec<String> {
    let run: Finished = stand.run(arguments);
    assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{arguments:?}");
    run.lines
}

#[test]
fn sessions_are_listed_shown_and_exported() {
    let stand = Stand::new(
        "when turn=1\n say \"Looking.\"\n call Bash {\"command\": \"echo here\"}\nwhen\n say \"Found \\u001b[31mit\\u001b[0m.\"",
    );
    ask(&stand, "where is it?", &["--session-id", ID, "--allowedTools", "Bash"]);
    let list = lines(&stand, &["sessions", "list"]);
    let list = without_times(&list.join("\n"));
    let size = list.lines().last().unwrap().split("  ").nth(2).unwrap().to_owned();
    assert!(size.ends_with(" KB"), "{list}");
    let list = list.replace(&size, "SIZE");
    assert_eq!(list, format!("ID  UPDATED  SIZE  TITLE\n{}  AGO  SIZE  where is it?", &ID[..8]));
    let everywhere = lines(&stand, &["sessions", "list", "--all"]).join("\n");
    assert!(everywhere.contains("FOLDER") && everywhere.contains("work"), "{everywhere}");
    let json: Value =
        serde_json::from_str(&lines(&stand, &["sessions", "list", "--all", "--json"])[0]).unwrap();
    assert_eq!((&json["session"], &json["title"]), (&json!(ID), &json!("where is it?")));
    let shown = lines(&stand, &["sessions", "show", ID]).join("\n");
    assert!(shown.trim_start().starts_with("you: where is it?"), "{shown}");
    for part in ["you: where is it?", "agent: Looking.", "agent calls Bash", "→ here", "completed"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    // The beginning of an id is enough where no other begins so.
    assert_eq!(lines(&stand, &["sessions", "show", &ID[..4]]).join("\n"), shown);
    let messages = lines(&stand, &["sessions", "show", ID, "--json"]);
    assert!(messages.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    let transcript = lines(&stand, &["sessions", "export", ID]);
    assert!(transcript.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{transcript:?}");
    let events = lines(&stand, &["sessions", "export", ID, "--json"]);
    let kinds: Vec<Value> = events
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"]["type"].clone())
        .collect();
    assert_eq!(kinds.first(), Some(&json!("session_opened")));
    assert_eq!(kinds.last(), Some(&json!("run_ended")));
    let file = stand.file("out.jsonl");
    lines(&stand, &["sessions", "export", ID, "--output", &file]);
    assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), transcript.len());
}

#[test]
fn a_conversation_is_shortened_on_demand() {
    let stand = Stand::new(
        "when match=\"second\"\n say \"on: ${seen.turn}\"\nwhen turn=1\n say \"The answer is 42.\"\nwhen\n say \"SUMMARY of what was said\"",
    );
    ask(&stand, "first", &["--session-id", ID]);
    let before = stand.model.requests().len();
    let run = finished(stand.decurion().args(["-p", "/compact keep the numbers", "--resume", ID]));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let asked = stand.model.requests();
    assert_eq!(asked.len(), before + 1);
    assert!(String::from_utf8_lossy(&asked[before].body).contains("keep the numbers"));
    ask(&stand, "second", &["--resume", ID]);
    let messages = Value::from(last_messages(&stand)).to_string();
    assert!(
        messages.contains("SUMMARY of what was said") && !messages.contains("The answer is 42"),
        "{messages}"
    );
}

#[test]
fn a_session_of_another_program_is_taken_over_without_touching_it() {
    let stand = Stand::new(
        "when first=\"count the crates\"\n say \"I know: ${seen.turn}\"\nwhen\n say \"I know nothing\"",
    );
    let work = stand.home.work().canonicalize().unwrap();
    let slug: String =
        work.to_str().unwrap().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let folder = stand.home.home().join(".claude/projects").join(slug);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{ID}.jsonl"));
    std::fs::write(&file, foreign_transcript(work.to_str().unwrap())).unwrap();
    let before = std::fs::read(&file).unwrap();
    // Only asked for by name: what is continued is ours.
    assert_eq!(stand.run(&["-p", "x", "--continue"]).ending.code(), 2);
    let (said, id) = ask(&stand, "and now?", &["--resume", ID]);
    assert_eq!((said.as_str(), id), ("I know: 3", json!(ID)));
    let messages = Value::from(last_messages(&stand)).to_string();
    assert!(messages.contains("twelve of them") && messages.contains("ls crates"), "{messages}");
    let (said, _) = ask(&stand, "and then?", &["--continue"]);
    assert_eq!(said, "I know: 4");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(stand.left_at_home(), [file]);
}

/// A prompt, a call with its result, an answer, as the other program writes them.
fn foreign_transcript(cwd: &str) -> String {
    let mut parent = Value::Null;
    let mut lines = String::new();
    let mut add = |kind: &str, message: Value| {
        let uuid = json!(format!("aaaaaaaa-0000-4000-8000-{:012}", lines.lines().count() + 1));
        let line = json!({
            "parentUuid": parent, "isSidechain": false, "userType": "external", "cwd": cwd, "sessionId": ID,
            "version": "2.1.325", "gitBranch": "", "type": kind, "message": message, "uuid": uuid,
            "timestamp": "2026-03-04T05:06:07.008Z",
        });
        parent = uuid;
        lines.push_str(&line.to_string());
        lines.push('\n');
    };
    let usage = json!({"input_tokens": 10, "output_tokens": 5});
    add("user", json!({"role": "user", "content": "count the crates"}));
    add(
        "assistant",
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "some-model", "usage": usage,
               "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls crates"}}],
               "stop_reason": "tool_use", "stop_sequence": null}),
    );
    add(
        "user",
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b c"}]}),
    );
    add(
        "assistant",
        json!({"id": "msg_2", "type": "message", "role": "assistant", "model": "some-model", "usage": usage,
               "content": [{"type": "text", "text": "There are twelve of them."}],
               "stop_reason": "end_turn", "stop_sequence": null}),
    );
    lines
}

#[test]
fn resume_without_an_id_lists_the_sessions_of_this_folder() {
    let stand = Stand::new(COUNTING);
    let run = stand.run(&["-p", "--resume"]);
    assert_eq!(run.ending.code(), 2, "{run:?}");
    assert!(run.errors.starts_with("decurion: --resume needs the id of a session\n"), "{run:?}");
    ask(&stand, "the first question", &["--session-id", ID]);
    let run = stand.run(&["-p", "--resume", "--output-format", "json"]);
    let listed = "--resume 11111111  just now, the first question\n";
    assert!(run.ending.code() == 2 && run.errors.contains(listed), "{run:?}");
    assert!(run.errors.contains("--continue takes the last session of this folder"), "{run:?}");
}

#[test]
fn the_settings_in_force_are_shown_with_their_origin_and_without_keys() {
    let stand = Stand::new("when\n say \"x\"");
    let settings = json!({"permissions": {"allow": ["Bash(git log:*)"]}});
    std::fs::write(stand.home.state().join("settings.json"), settings.to_string()).unwrap();
    let run = stand.run(&["config", "show", "--origin"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let output = run.output();
    assert!(output.contains("Bash(git log:*)") && output.contains("settings.json:1:"), "{output}");
    assert!(output.contains("ANTHROPIC_BASE_URL"), "{output}");
    assert!(!output.contains(decurion_testkit::proc::canary::PROVIDER_KEY), "{output}");
    let json = stand.run(&["config", "show", "--json"]);
    assert!(json.lines.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{json:?}");
    assert!(!json.output().contains(decurion_testkit::proc::canary::PROVIDER_KEY));
    let doctor = stand.run(&["doctor"]);
    assert!(doctor.output().contains("Sandbox   on (namespaces)"), "{doctor:?}");
    assert!(!doctor.output().contains(decurion_testkit::proc::canary::PROVIDER_KEY));
}

#[test]
fn rules_are_checked_from_lines() {
    let stand = Stand::new("when\n say \"x\"");
    let call = |rules: Value, command: &str| json!({"mode": "default", "rules": rules, "tool": "Bash", "input": {"command": command}, "cwd": "/repo"});
    let input = [
        call(json!({"allow": ["Bash(git:*)"], "ask": [], "deny": []}), "git push"),
        call(json!({"allow": ["Bash(git:*)"], "ask": [], "deny": ["Bash(git push:*)"]}), "git push"),
        call(json!({"allow": ["Bash(git:*)"], "ask": [], "deny": []}), "git log; curl evil.example"),
    ];
    let input: String = input.iter().map(|line| format!("{line}\n")).collect();
    let run = finished(stand.decurion().args(["permissions", "check"]).input(input));
    let decided: Vec<Value> = run
        .lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["decision"].clone())
        .collect();
    assert_eq!(decided, ["allow", "deny", "ask"], "{run:?}");
}

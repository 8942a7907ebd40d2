//! Hooks of a program that leads the real binary, for a call that is longer than a line: what was cut for them is whole
//! in the file, or the call is not done.

use decurion_testkit::proc::Home;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand, file_in};
use crate::talk::{LED, answer, initialize, next, prompt};

/// A file of 1.2 MB, as it is to be written.
fn content() -> String {
    "a line of the file\n".repeat(64 << 10)
}

/// Lets a model write the file, and the host's hook change the call so; gives the file and what the model was told.
fn written(change: fn(&mut Value)) -> (Option<String>, String) {
    let home = Home::new().unwrap();
    let call = json!({"file_path": file_in(&home, "before.txt"), "content": content()});
    // The usage of the reply keeps the session from making its conversation shorter, which would begin it anew.
    let script = format!(
        "when turn=1\n  call Write as toolu_write {call}\n  usage input=10 output=10\nwhen\n  say \"done\"\n  usage input=10 output=10\n"
    );
    let stand = Stand::in_home(home, &script);
    let mut run = stand.decurion().args(LED).args(["--allowedTools", "Write"]).start_talking().unwrap();
    run.say(&initialize("one", json!({"hooks": {"PreToolUse": [{"hookCallbackIds": ["guard"]}]}}))).unwrap();
    run.say(&prompt("go")).unwrap();
    let asked = next(&mut run, |line| line["request"]["subtype"] == "hook_callback");
    let mut input = asked["request"]["input"]["tool_input"].clone();
    let shown = input["content"].as_str().unwrap();
    assert!(shown.len() < content().len() && shown.contains("[cut here by decurion: "), "{}", shown.len());
    change(&mut input);
    let specific =
        json!({"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": input});
    run.say(&answer(&asked, &json!({"hookSpecificOutput": specific}))).unwrap();
    let told = next(&mut run, |line| line["message"]["content"][0]["tool_use_id"] == "toolu_write");
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    let ended = run.finish(LIMIT).unwrap();
    assert_eq!(ended.ending.code(), 0, "{}", ended.errors);
    assert!(ended.lines.iter().all(|line| line.len() <= 1_000_000));
    let file =
        ["before.txt", "after.txt"].iter().find_map(|name| std::fs::read_to_string(stand.file(name)).ok());
    (file, told["message"]["content"][0]["content"].as_str().unwrap().to_owned())
}

#[test]
fn what_a_hook_was_shown_cut_is_whole_in_the_file_or_not_written() {
    let moved = |input: &mut Value| {
        let path = input["file_path"].as_str().unwrap().replace("before", "after");
        input["file_path"] = json!(path);
    };
    let (file, told) = written(moved);
    assert!(file.as_deref() == Some(&content()), "{:?}: {told}", file.map(|file| file.len()));
    assert!(told.contains("after.txt"), "{told}");
    // As long as the call itself, and made of part of it.
    let capitals = |input: &mut Value| {
        let text = input["content"].as_str().unwrap().to_uppercase() + &"x".repeat(300_000);
        input["content"] = json!(text);
    };
    let (file, told) = written(capitals);
    assert_eq!(file.map(|file| file.len()), None, "{told}");
    assert!(
        told.contains("is too long for one line; what was cut of it must come back as it was shown"),
        "{told}"
    );
}

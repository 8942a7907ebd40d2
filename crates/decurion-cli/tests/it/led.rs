//! A program that introduces itself to the real binary: what its first line wants of the session is so from the
//! first request on, and what comes too late is told.

use decurion_testkit::proc::Running;
use decurion_testkit::proc::canary::PROVIDER_KEY;
use expect_test::expect;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand};
use crate::talk::{LED, answer, control, initialize, next, prompt};

const PLAY: &str = r#"
when agent=helper
  say "helped"
when agent=main turn=1
  call Agent {"description": "look", "prompt": "look", "subagent_type": "helper"}
when agent=main
  say "done"
"#;

#[test]
fn what_the_first_line_wants_is_so_from_the_first_request_on() {
    let stand = Stand::new(PLAY);
    let mut run = stand.decurion().args(LED).args(["--system-prompt", ""]).start_talking().unwrap();
    let helper = json!({"description": "helps a lot", "prompt": "You help."});
    let wanted = json!({
        "systemPrompt": ["You are brief."], "appendSystemPrompt": "Be kind.", "agents": {"helper": helper},
        "hooks": {"MoonRise": [{"hookCallbackIds": ["x"]}]},
    });
    run.say(&initialize("one", wanted)).unwrap();
    let hello = next(&mut run, |line| line["type"] == "control_response");
    let said = &hello["response"]["response"];
    assert_eq!((&said["hooks_applied"], &said["plugins_applied"]), (&json!(true), &json!(true)), "{hello}");
    let names: Vec<_> = said["agents"].as_array().unwrap().iter().map(|agent| &agent["name"]).collect();
    assert!(names.contains(&&json!("helper")), "{names:?}");
    run.say(&prompt("go")).unwrap();
    let result = next(&mut run, |line| line["type"] == "result");
    assert_eq!(result["result"], "done", "{result}");
    // Now it is too late for more.
    run.say(&initialize("two", json!({"agents": {}, "systemPrompt": ["Shout."]}))).unwrap();
    let late = next(&mut run, |line| line["response"]["request_id"] == "two");
    assert_eq!(late["response"]["error_code"], "initialize_too_late", "{late}");
    run.hang_up();
    let ended = run.finish(LIMIT).unwrap();
    assert_eq!(ended.ending.code(), 0, "{ended:?}");
    assert_eq!(
        ended.errors.lines().collect::<Vec<_>>(),
        [
            "decurion: initialize: `hooks.MoonRise`: there is no such event here",
            "decurion: initialize came too late: the session began without what it asks for; send it before anything else (and start a session that is resumed with --await-initialize)",
        ]
    );
    let requests = stand.model.requests();
    let system = |request: &[u8]| serde_json::from_slice::<Value>(request).unwrap()["system"].to_string();
    let systems: Vec<String> = requests.iter().map(|request| system(&request.body)).collect();
    assert!(systems[0].contains("You are brief.") && systems[0].contains("Be kind."), "{systems:?}");
    assert!(systems[1].contains("You help."), "{systems:?}");
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

const GUARDED: &str =
    "when turn=1\n  call Write {\"file_path\": \"x\", \"content\": \"x\"}\nwhen\n  say \"done\"\n";

fn guard() -> Value {
    json!({"hooks": {"PreToolUse": [{"hookCallbackIds": ["guard"], "onFailure": "block"}]}})
}

/// Greets with a guard that denies everything and gives work; tells how the greeting was answered, and whether what
/// the guard denies was done.
fn guarded(stand: &Stand, mut run: Running, first: &[String]) -> (String, bool) {
    for line in first {
        run.say(line).unwrap();
    }
    run.say(&initialize("guarded", guard())).unwrap();
    let hello = next(&mut run, |line| line["response"]["request_id"] == "guarded");
    let hello = &hello["response"];
    if hello["subtype"] == "success" {
        assert_eq!(hello["response"]["hooks_applied"], true, "{hello}");
        run.say(&prompt("go")).unwrap();
        let asked = next(&mut run, |line| line["request"]["subtype"] == "hook_callback");
        let denied = json!({"hookEventName": "PreToolUse", "permissionDecision": "deny"});
        run.say(&answer(&asked, &json!({"hookSpecificOutput": denied}))).unwrap();
        next(&mut run, |line| line["type"] == "result");
    }
    run.hang_up();
    run.finish(LIMIT).unwrap();
    (hello["error_code"].as_str().unwrap_or("success").to_owned(), stand.home.work().join("x").exists())
}

/// What a host says before its greeting takes nothing of the greeting away, and where it is too late for one, that is
/// no success.
#[test]
fn a_guard_is_in_place_or_its_host_is_told_that_it_is_not() {
    let look = control("look", &json!({"subtype": "get_settings"}));
    let moved = control("moved", &json!({"subtype": "set_permission_mode", "mode": "acceptEdits"}));
    for (first, expected) in [
        (vec![], "success"),
        (vec![json!({"type": "keep_alive"}).to_string()], "success"),
        (vec!["garbage".to_owned()], "success"),
        (vec![look.clone(), look.clone(), moved], "success"),
        (vec![initialize("wrong", json!({"hooks": []}))], "success"),
        (vec![json!({"type": "control_cancel_request", "request_id": "x"}).to_string()], "success"),
        (vec![prompt("")], "initialize_too_late"),
        (vec!["{}".to_owned(); 64], "initialize_too_late"),
    ] {
        let stand = Stand::new(GUARDED);
        let program = stand.decurion().args(LED).args(["--permission-mode", "acceptEdits"]);
        let run = program.start_talking().unwrap();
        assert_eq!(guarded(&stand, run, &first), (expected.to_owned(), false), "{first:?}");
    }
}

/// Neither a host that asks for something else first nor one whose greeting is refused waits for an answer in vain.
#[test]
fn whoever_waits_before_it_greets_is_answered() {
    let stand = Stand::new(GUARDED);
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&initialize("wrong", json!({"hooks": []}))).unwrap();
    let refused = next(&mut run, |line| line["type"] == "control_response");
    assert_eq!(refused["response"]["error_code"], "invalid_request", "{refused}");
    assert_eq!(guarded(&stand, run, &[]), ("success".to_owned(), false));

    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&control("look", &json!({"subtype": "get_settings"}))).unwrap();
    let seen = next(&mut run, |line| line["response"]["request_id"] == "look");
    assert_eq!(seen["response"]["subtype"], "success", "{seen}");
    assert_eq!(guarded(&stand, run, &[]), ("initialize_too_late".to_owned(), false));
}

#[test]
fn a_session_that_is_resumed_has_the_guards_of_its_host() {
    const SESSION: &str = "33333333-3333-4333-8333-333333333333";
    let stand = Stand::new(
        "when first=\"hello\" turn=1\n  say \"hi\"\nwhen turn=2\n  call Write {\"file_path\": \"x\", \"content\": \"x\"}\nwhen\n  say \"done\"\n",
    );
    let before = stand.run(&["-p", "hello", "--session-id", SESSION]);
    assert_eq!(before.ending.code(), 0, "{before:?}");
    let program = stand.decurion().args(LED).args(["--permission-mode", "acceptEdits", "--resume", SESSION]);
    let run = program.start_talking().unwrap();
    assert_eq!(guarded(&stand, run, &[]), ("success".to_owned(), false));
}

/// A program that waits for an answer to its greeting is told why there is no session.
#[test]
fn a_session_that_cannot_be_opened_is_refused_with_the_reason() {
    let stand = Stand::new(PLAY);
    let nowhere = "00000000-0000-4000-8000-000000000000";
    let rows: [(&[&str], Value, &str); 6] = [
        (&["--permission-mode", "nope"], json!({}), "nope"),
        (&["--settings", "{"], json!({}), "--settings"),
        (&["--managed-settings", "{}"], json!({}), "--managed-settings"),
        (&["--model", "scripted:missing.script"], json!({}), "missing.script"),
        (&["--resume", nowhere, "--await-initialize"], json!({}), nowhere),
        (&[], json!({"jsonSchema": {"type": 5}}), "JSON Schema"),
    ];
    for (arguments, wanted, reason) in rows {
        let mut run = stand.decurion().args(LED).args(arguments).start_talking().unwrap();
        run.say(&initialize("one", wanted)).unwrap();
        let answer = next(&mut run, |line| line["type"] == "control_response");
        let response = &answer["response"];
        assert_eq!(
            (&response["subtype"], &response["request_id"]),
            (&json!("error"), &json!("one")),
            "{answer}"
        );
        assert!(response["error"].as_str().unwrap().contains(reason), "{answer}");
        let finished = run.finish(LIMIT).unwrap();
        assert_eq!(finished.ending.code(), 2, "{finished:?}");
    }
}

#[test]
fn a_flag_of_a_newer_program_is_passed_over_and_said() {
    let stand = Stand::new("when turn=1\n  say \"done\"\n");
    let newer = ["--moon", "full", "--tide=high", "--stars", "--task-budget", "5", "--system-prompt", ""];
    let mut run = stand.decurion().args(LED).args(newer).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    assert_eq!(next(&mut run, |line| line["type"] == "result")["result"], "done");
    run.hang_up();
    let ended = run.finish(LIMIT).unwrap();
    assert_eq!(
        ended.errors.lines().collect::<Vec<_>>(),
        [
            "decurion: --moon is unknown to this version; ignored",
            "decurion: --tide is unknown to this version; ignored",
            "decurion: --stars is unknown to this version; ignored",
            "decurion: --task-budget has no effect in this version",
        ]
    );
    // A person who mistypes is told instead.
    let person = stand.run(&["-p", "--moon", "full", "hi"]);
    assert_eq!(person.ending.code(), 2, "{person:?}");
    let asked = stand.run(&[
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--agent",
        "nobody",
    ]);
    assert_eq!(asked.ending.code(), 2, "{asked:?}");
}

#[test]
fn one_that_introduces_itself_is_asked_only_if_it_says_so() {
    for (flags, greets, expected) in [
        (&[][..], false, true),
        (&[][..], true, false),
        (&["--permission-prompt-tool", "stdio"][..], true, true),
        (&["--permission-prompts=host"][..], true, true),
        (&["--permission-prompts=none"][..], false, false),
    ] {
        let stand = Stand::new(
            "when turn=1\n  call Bash {\"command\": \"touch x\", \"description\": \"touch\"}\nwhen turn=2\n  say \"done\"\n",
        );
        let mut run = stand.decurion().args(LED).args(flags.iter().copied()).start_talking().unwrap();
        if greets {
            run.say(&initialize("one", json!({}))).unwrap();
        }
        run.say(&prompt("go")).unwrap();
        let told = next(&mut run, |line| {
            line["request"]["subtype"] == "can_use_tool" || line["subtype"] == "permission_denied"
        });
        assert_eq!(told["type"] == "control_request", expected, "{flags:?} {greets}: {told}");
        run.hang_up();
        run.finish(LIMIT).unwrap();
    }
}

#[test]
fn a_tool_that_is_forbidden_whole_is_not_told_of() {
    let stand = Stand::new("when turn=1\n  say \"done\"\n");
    let run = stand.run(&["-p", "go", "--disallowedTools", "Bash,Read(secret/*),WebFetch"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let body: Value = serde_json::from_slice(&stand.model.requests()[0].body).unwrap();
    let names: Vec<&str> =
        body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"Read") && !names.contains(&"Bash") && !names.contains(&"WebFetch"), "{names:?}");
}

#[test]
fn a_text_may_begin_with_a_dash_and_a_lock_is_never_passed_over() {
    let stand = Stand::new("when turn=1\n  say \"done\"\n");
    for text in ["- You are nice.", "---\nrules: none"] {
        let mut run = stand.decurion().args(LED).args(["--system-prompt", text]).start_talking().unwrap();
        run.say(&prompt("go")).unwrap();
        assert_eq!(next(&mut run, |line| line["type"] == "result")["result"], "done");
        run.hang_up();
        assert_eq!(run.finish(LIMIT).unwrap().errors, "");
    }
    let locked = stand.run(&["-p", "go", "--managed-settings", "{}"]);
    assert_eq!(locked.ending.code(), 2, "{locked:?}");
}

#[test]
fn a_guard_whose_matcher_is_no_pattern_here_is_called_for_everything() {
    let stand = Stand::new(
        "when turn=1\n  call Bash {\"command\": \"touch x\", \"description\": \"touch\"}\nwhen turn=2\n  say \"done\"\n",
    );
    let mut run = stand.decurion().args(LED).args(["--allowedTools", "Bash"]).start_talking().unwrap();
    let guard = json!([{"matcher": "^(?!Read$).*", "hookCallbackIds": ["h"], "onFailure": "block"}]);
    run.say(&initialize("one", json!({"hooks": {"PreToolUse": guard}}))).unwrap();
    run.say(&prompt("go")).unwrap();
    let asked = next(&mut run, |line| line["request"]["subtype"] == "hook_callback");
    assert_eq!(asked["request"]["callback_id"], "h", "{asked}");
    run.hang_up();
    let ended = run.finish(LIMIT).unwrap();
    assert!(ended.errors.contains("hooks.PreToolUse[0]: called for everything"), "{ended:?}");
    assert!(!stand.home.work().join("x").exists());
}

#[test]
fn programs_of_an_sdk_get_what_they_lock() {
    let stand = Stand::new(
        "when turn=1\n  call Bash {\"command\": \"touch dropped\", \"description\": \"d\"}\nwhen\n  say \"no, but fine\"\n",
    );
    // Nobody is asked, and what no rule allows is denied; being refused something is no failure of the session.
    let program = stand.decurion().env("CLAUDE_CODE_ENTRYPOINT", "sdk-py").args(LED);
    let mut run = program.args(["--permission-mode", "dontAsk"]).start_talking().unwrap();
    run.say(&initialize("one", json!({}))).unwrap();
    run.say(&prompt("go")).unwrap();
    let result = next(&mut run, |line| line["type"] == "result");
    assert_eq!((&result["subtype"], &result["is_error"]), (&json!("success"), &json!(false)), "{result}");
    assert_eq!(result["permission_denials"].as_array().map(Vec::len), Some(1), "{result}");
    run.hang_up();
    assert_eq!(run.finish(LIMIT).unwrap().ending.code(), 0);
    assert!(!stand.home.work().join("dropped").exists());
    // A sandbox that must be there, and is switched off by another setting.
    let sandbox = json!({"sandbox": {"enabled": false, "failIfUnavailable": true}}).to_string();
    let refused = stand.run(&["-p", "go", "--settings", &sandbox]);
    assert_eq!(refused.ending.code(), 2, "{refused:?}");
    assert!(refused.errors.contains("commands cannot be sandboxed"), "{refused:?}");
}

#[test]
fn half_a_character_in_a_prompt_is_no_reason_to_wait_for_ever() {
    let stand = Stand::new("when turn=1\n  say \"done\"\n");
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(r#"{"type":"user","message":{"role":"user","content":"hello \ud83d"}}"#).unwrap();
    assert_eq!(next(&mut run, |line| line["type"] == "result")["result"], "done");
    run.hang_up();
    run.finish(LIMIT).unwrap();
}

#[test]
fn a_prompt_that_cannot_be_worked_on_has_a_result_all_the_same() {
    let stand = Stand::new("when turn=1\n  say \"done\"\n");
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&prompt("")).unwrap();
    let refused = next(&mut run, |line| line["type"] == "result");
    assert_eq!((&refused["is_error"], &refused["subtype"]), (&json!(true), &json!("error_during_execution")));
    assert!(refused["errors"][0].as_str().unwrap().contains("`message.content` is empty"), "{refused}");
    run.say(&prompt("go")).unwrap();
    assert_eq!(next(&mut run, |line| line["type"] == "result")["result"], "done");
    run.hang_up();
    assert_eq!(run.finish(LIMIT).unwrap().ending.code(), 0);
}

/// Agents that cannot be used, or not as they are written, are said to be: whoever gave them sees no file of them.
#[test]
fn agents_that_are_given_and_wrong_are_said_to_be() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let whole = |more: Value| {
        let mut agent = json!({"description": "d", "prompt": "p"});
        agent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"x": agent})
    };
    let mut said = String::new();
    for agents in [
        json!({"x": 5}),
        json!({"x": {"description": "d"}}),
        whole(json!({"tools": 5})),
        whole(json!({"permissionMode": "nope"})),
        whole(json!({"maxTurns": -4})),
        whole(json!({"model": "inherit"})),
    ] {
        let mut run = stand.decurion().args(LED).start_talking().unwrap();
        run.say(&initialize("one", json!({"agents": agents}))).unwrap();
        let hello = next(&mut run, |line| line["type"] == "control_response");
        let known = hello["response"]["response"]["agents"].as_array().unwrap().clone();
        run.hang_up();
        let ended = run.finish(LIMIT).unwrap();
        let is_there = known.iter().any(|agent| agent["name"] == "x");
        said += &format!("{agents} {is_there}\n{}", ended.errors);
    }
    expect![[r#"
        {"x":5} false
        decurion: --agents:1: error: expected an object as the definition of "x"
        {"x":{"description":"d"}} false
        decurion: --agents:1: agent "x": error: missing `prompt`
        {"x":{"description":"d","prompt":"p","tools":5}} false
        decurion: --agents:1: agent "x": error: `tools` is neither a list of names nor a text
        {"x":{"description":"d","prompt":"p","permissionMode":"nope"}} true
        decurion: --agents:1: agent "x": warning: `permissionMode` is ignored: unknown permission mode (default, acceptEdits, plan, bypassPermissions, dontAsk, bubble): "nope"
        {"x":{"description":"d","prompt":"p","maxTurns":-4}} true
        decurion: --agents:1: agent "x": warning: `maxTurns` is ignored: expected a whole number above 0
        {"x":{"description":"d","prompt":"p","model":"inherit"}} true
    "#]].assert_eq(&said);
    for text in ["{", "5", "[]"] {
        let refused = stand.run(&["-p", "go", "--agents", text]);
        assert_eq!(refused.ending.code(), 2, "{refused:?}");
        assert!(refused.errors.starts_with("decurion: --agents: error: "), "{refused:?}");
    }
}

#[test]
fn a_secret_in_the_command_of_a_hook_is_not_listed() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let command = format!("curl -H 'x-api-key: {PROVIDER_KEY}' localhost");
    let hooks = json!({"Stop": [{"hooks": [{"type": "command", "command": command}]}]});
    let settings = json!({"hooks": hooks}).to_string();
    let mut run = stand.decurion().args(LED).args(["--settings", &settings]).start_talking().unwrap();
    run.say(&control("hooks", &json!({"subtype": "get_hooks_listing"}))).unwrap();
    let listed = next(&mut run, |line| line["response"]["request_id"] == "hooks");
    let hook = &listed["response"]["response"]["hooks"][0];
    assert_eq!(hook["commandText"], "curl -H 'x-api-key: [redacted]' localhost", "{listed}");
    run.hang_up();
    run.finish(LIMIT).unwrap();
}

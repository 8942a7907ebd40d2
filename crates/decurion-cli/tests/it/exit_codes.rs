//! How a run ends is its exit code, and the three formats tell the same story of it.

use std::time::Duration;

use decurion_testkit::proc::Running;
use rustix::process::Signal;

use crate::stand::{DECURION, LIMIT, Stand, finished, result, stream};

const TWO_TURNS: &str = "when turn=1
  say \"looking\"
  call Bash {\"command\": \"echo found it\", \"description\": \"look\"}
when turn=2
  say \"It is found.\"
";

#[test]
fn each_outcome_has_its_code() {
    #[rustfmt::skip]
    let rows: &[(&str, &str, &[&str], i32, &str)] = &[
        ("completed", "when\n say \"ok\"", &[], 0, "success"),
        ("failed by the request", "when\n fail 400 \"no\"", &[], 1, "error_during_execution"),
        ("failed by the key", "when\n fail 401 should-retry=false \"no\"", &[], 1, "error_during_execution"),
        ("failed by a script without an answer", "when turn=7\n say \"x\"", &[], 1, "error_during_execution"),
        ("denied", "when turn=1\n call Bash {\"command\": \"touch x\"}\nwhen\n say \"I may not.\"", &[], 3, "error_during_execution"),
        ("denied and then done otherwise", "when turn=1\n call Bash {\"command\": \"touch x\"}\nwhen turn=2\n call Bash {\"command\": \"echo other\"}\nwhen\n say \"Done.\"", &["--allowedTools", "Bash(echo:*)"], 0, "success"),
        ("out of turns", TWO_TURNS, &["--max-turns", "1", "--allowedTools", "Bash"], 4, "error_max_turns"),
        ("out of money", TWO_TURNS, &["--max-budget-usd", "0.000001", "--allowedTools", "Bash"], 4, "error_max_budget_usd"),
    ];
    for (name, script, more, code, subtype) in rows {
        let stand = Stand::new(script);
        let run = finished(stand.decurion().args(["-p", "go", "--output-format", "json"]).args(*more));
        assert_eq!(run.ending.code(), *code, "{name}: {run:?}");
        assert_eq!(result(&run)["subtype"], *subtype, "{name}");
        assert_eq!(result(&run)["is_error"], *code != 0, "{name}");
        let text = finished(stand.decurion().args(["-p", "go"]).args(*more));
        assert_eq!(text.ending.code(), *code, "{name} as text: {text:?}");
        assert_eq!(text.errors.is_empty(), *code == 0, "{name}: {}", text.errors);
        assert!(stand.home.processes().is_empty(), "{name}");
    }
}

/// A request that does not fit a budget is not sent, and a person reads by how much.
#[test]
fn a_request_over_the_budget_is_reported_with_its_amounts() {
    let stand = Stand::new(TWO_TURNS);
    let run = finished(stand.decurion().args(["-p", "go", "--max-budget-usd", "0.0125"]));
    assert_eq!(run.ending.code(), 4, "{run:?}");
    let words = ["the next request can cost up to $0.", ", and $0.0125 of $0.0125 is left; it was not sent"];
    assert!(words.iter().all(|words| run.errors.contains(words)), "{}", run.errors);
    assert_eq!(stand.model.requests().len(), 0);
}

/// A server that ignores `stream_options` says nothing of what its replies use.
#[test]
fn a_money_limit_holds_where_the_server_sends_no_usage() {
    let stand = Stand::new(
        "when turn=40\n say \"Done.\"\n usage\nwhen\n call Bash {\"command\": \"echo ${seen.turn}\"}\n usage\n",
    );
    let program = stand.decurion_openai().args(["-p", "go", "--model", "gpt-5.4", "--allowedTools", "Bash"]);
    let run = finished(program.args(["--max-budget-usd", "0.5", "--output-format", "json"]));
    assert_eq!(run.ending.code(), 4, "{run:?}");
    let result = result(&run);
    assert_eq!(result["subtype"], "error_max_budget_usd");
    let cost = result["total_cost_usd"].as_f64().unwrap();
    assert!(cost > 0.25 && cost <= 0.5, "{cost}");
    assert_eq!(result["usage"]["estimated"], true, "{result}");
}

#[test]
fn the_three_formats_tell_the_same_story() {
    let flags = ["-p", "go", "--allowedTools", "Bash"];
    let run = |format: &[&str]| {
        let stand = Stand::new(TWO_TURNS);
        let run = finished(stand.decurion().args(flags).args(format));
        assert_eq!((run.ending.code(), stand.model.problems().len()), (0, 0), "{run:?}");
        run
    };
    let text = run(&[]);
    let json = run(&["--output-format", "json"]);
    let lines = run(&["--output-format", "stream-json", "--verbose"]);
    assert_eq!((text.output().as_str(), text.errors.as_str()), ("It is found.", ""));
    assert_eq!(json.lines.len(), 1);
    assert_eq!(result(&json)["results"], serde_json::json!(["It is found."]));
    let plain = |run| {
        let mut result = result(run);
        result.as_object_mut().unwrap().remove("results");
        for changing in ["uuid", "session_id", "duration_ms", "duration_api_ms", "ttft_ms"] {
            assert!(!result[changing].is_null(), "{changing}");
            result[changing] = serde_json::Value::Null;
        }
        // A few bytes of each request differ (folder names), and with them the estimate of what they used.
        for estimated in ["usage", "modelUsage", "total_cost_usd"] {
            assert!(!result[estimated].is_null(), "{estimated}");
            result[estimated] = serde_json::Value::Null;
        }
        result
    };
    assert_eq!(plain(&json), plain(&lines));
    assert_eq!(plain(&json)["result"], text.output());
    let kinds: Vec<String> =
        stream(&lines).iter().map(|line| line["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["system", "assistant", "assistant", "user", "assistant", "result"]);
}

/// A main agent that answers, and is then notified of its background agent, which ends only after that answer is recorded.
fn answered_twice(format: &[&str]) -> decurion_testkit::proc::Finished {
    let home = decurion_testkit::proc::Home::new().unwrap();
    let recorded = format!("until grep -rqs run_ended '{}'; do sleep 0.02; done", home.state().display());
    let wait = serde_json::json!({"command": recorded, "description": "wait"});
    let script = format!(
        r#"
when agent=general-purpose turn=1
  call Bash {wait}
when agent=general-purpose
  say "looked"
when turn=1
  call Agent {{"description": "look", "prompt": "look", "subagent_type": "general-purpose", "run_in_background": true}}
when turn=2
  say "The answer is 42."
when turn=3
  say "noted"
"#
    );
    let stand = Stand::in_home(home, &script);
    // The state folder is hidden from commands.
    let readable =
        serde_json::json!({"sandbox": {"filesystem": {"allowRead": [stand.home.state()]}}}).to_string();
    let program = stand.decurion().args(["-p", "go", "--allowedTools", "Bash", "--settings", &readable]);
    let run = finished(program.args(format));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    run
}

#[test]
fn every_answer_is_printed_and_not_only_that_of_the_notification_turn() {
    assert_eq!(answered_twice(&[]).output(), "The answer is 42.\n\nnoted");
    let object = result(&answered_twice(&["--output-format", "json"]));
    assert_eq!(object["result"], "noted");
    assert_eq!(object["results"], serde_json::json!(["The answer is 42.", "noted"]));
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    for format in ["text", "json", "stream-json"] {
        let stand = Stand::new("when\n say \"ok\"");
        let shell = |text: &str| {
            let shell = stand.decurion().instead("/bin/sh").args(["-c", text]);
            finished(shell.args([DECURION, "-p", "go", "--verbose", "--output-format", format]))
        };
        let full = shell("exec \"$0\" \"$@\" > /dev/full");
        assert_eq!(full.ending.code(), 1, "{format}: {full:?}");
        let expected = "decurion: cannot write the answer to standard output: No space left on device";
        assert!(full.errors.contains(expected), "{format}: {full:?}");
        // A reader that has gone wants no more, and is told nothing.
        let gone = shell("\"$0\" \"$@\" | true");
        assert!(!gone.errors.contains("cannot write"), "{format}: {gone:?}");
    }
}

#[test]
fn a_provider_that_refuses_for_hours_ends_a_run_that_no_person_watches() {
    let stand = Stand::new("when\n fail 429 retry-after=7200 \"daily limit\"");
    let formats: [&[&str]; 3] =
        [&[], &["--output-format", "json"], &["--output-format", "stream-json", "--verbose"]];
    for format in formats {
        let run = finished(stand.decurion().args(["-p", "go"]).args(format));
        assert_eq!(run.ending.code(), 1, "{format:?}: {run:?}");
        let told = run.output() + &run.errors;
        for word in ["anthropic", "429", "daily limit", "2 h more", "timeouts.patienceMs"] {
            assert!(told.contains(word), "{format:?}: {word}: {told}");
        }
    }
    assert_eq!(stand.model.requests().len(), formats.len(), "one try each");
    // It waits where it is told to, and says so.
    let settings = r#"{"providers": {"anthropic": {"timeouts": {"patienceMs": 8000000}}}}"#;
    let patient = stand.decurion().args(["-p", "go", "--output-format", "stream-json", "--verbose"]);
    let mut running = patient.args(["--settings", settings]).start().unwrap();
    assert!(running.wait_for_line(LIMIT, |line| line.contains("api_retry")).is_some());
    running.signal(Signal::KILL).unwrap();
    running.finish(LIMIT).unwrap();
}

#[test]
fn verbose_text_shows_progress_apart_from_the_answer() {
    let stand = Stand::new(TWO_TURNS);
    let run = stand.run(&["-p", "go", "--allowedTools", "Bash", "--verbose"]);
    assert_eq!(run.output(), "It is found.");
    assert!(run.errors.contains("found it"), "{}", run.errors);
}

#[test]
fn the_prompt_is_what_is_piped_in_and_then_the_argument() {
    let stand = Stand::new(
        "when text=/^line one\\nline two\\n\\nreview this$/m\n say \"both\"\nwhen text=\"line one\"\n say \"piped\"\nwhen\n say \"argument\"",
    );
    let run = |piped: Option<&str>, argument: Option<&str>| {
        let mut program = stand.decurion().arg("-p").args(argument);
        if let Some(piped) = piped {
            program = program.input(piped);
        }
        finished(program).output()
    };
    assert_eq!(run(Some("line one\nline two\n"), Some("review this")), "both");
    assert_eq!(run(Some("line one\n"), None), "piped");
    assert_eq!(run(None, Some("review this")), "argument");
    assert_eq!(run(Some(""), Some("review this")), "argument");
}

fn started(stand: &Stand) -> Running {
    let program = stand.decurion().args(["-p", "go", "--output-format", "stream-json", "--verbose"]);
    let mut running = program.args(["--include-partial-messages", "--allowedTools", "Bash"]).start().unwrap();
    let begun = running.wait_for_line(LIMIT, |line| line.contains("text_delta"));
    assert!(begun.is_some(), "it did not begin");
    running
}

#[test]
fn signals_end_the_run_with_their_codes_and_leave_nothing_running() {
    for (script, what) in [
        ("when\n say chunk=1 \"wait\"\n stall", "in a reply"),
        ("when\n say \"wait\"\n call Bash {\"command\": \"sleep 600 & sleep 600\"}", "in a command"),
    ] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            let stand = Stand::new(script);
            let mut running = started(&stand);
            if what == "in a command" {
                let called = running
                    .wait_for_line(LIMIT, |line| line.contains("\"tool_use\"") && line.contains("assistant"));
                assert!(called.is_some());
            }
            running.signal(signal).unwrap();
            let run = running.finish(LIMIT).unwrap();
            assert_eq!((run.ending.code(), run.timed_out), (code, false), "{what}: {signal:?}: {run:?}");
            let left = decurion_testkit::proc::wait_until_gone(stand.home.marker(), Duration::from_secs(20));
            assert!(left.is_empty(), "{what}: {signal:?}: {left:?}");
            let again = stand.run(&["sessions", "list", "--json"]);
            assert_eq!(again.lines.len(), 1, "{what}: the session is not listed: {again:?}");
        }
    }
}

#[test]
fn a_run_that_waits_for_its_provider_shows_each_try_on_standard_error() {
    let script = "when try=1\n fail 429 retry-after-ms=30 \"slow down\"\nwhen try=2\n fail 529 \"Overloaded\"\nwhen\n say \"done\"";
    let stand = Stand::new(script);
    let run = stand.run(&["-p", "go"]);
    assert_eq!((run.ending.code(), run.output().trim()), (0, "done"), "{run:?}");
    let lines: Vec<&str> = run.errors.lines().collect();
    assert_eq!(lines.len(), 2, "{run:?}");
    assert!(lines[0].starts_with("decurion: try 2 in 1 s: ") && lines[0].contains("slow down"), "{run:?}");
    assert!(lines[1].starts_with("decurion: try 3 in ") && lines[1].contains("Overloaded"), "{run:?}");
    for format in ["json", "stream-json"] {
        let stand = Stand::new(script);
        let run = stand.run(&["-p", "go", "--verbose", "--output-format", format]);
        assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{format}: {run:?}");
    }
}

#[test]
fn a_run_whose_server_is_down_shows_that_it_waits() {
    let stand = Stand::new("when\n say \"x\"");
    let program = stand.decurion_through("sh").env("ANTHROPIC_BASE_URL", "http://127.0.0.1:1");
    let shell = ["-c", "exec \"$0\" \"$@\" 2>&1", DECURION, "-p", "go"];
    let mut running = program.args(shell).start().unwrap();
    running.wait_for_line(LIMIT, |line| line.starts_with("decurion: try 2 of ")).unwrap();
    running.signal(Signal::INT).unwrap();
    let run = running.finish(LIMIT).unwrap();
    assert_eq!((run.ending.code(), run.timed_out), (130, false), "{run:?}");
}

#[test]
fn an_interrupt_while_it_retries_ends_at_once() {
    let stand = Stand::new("when\n fail 429 retry-after=500");
    let program = stand.decurion().args(["-p", "go", "--output-format", "stream-json", "--verbose"]);
    let mut running = program.start().unwrap();
    let retry = running.wait_for_line(LIMIT, |line| line.contains("api_retry")).unwrap();
    decurion_testkit::stream_schema::check_line(&retry).unwrap();
    running.signal(Signal::INT).unwrap();
    let run = running.finish(LIMIT).unwrap();
    assert_eq!((run.ending.code(), run.timed_out), (130, false), "{run:?}");
    for line in &run.lines {
        decurion_testkit::stream_schema::check_line(line).unwrap();
    }
    assert_eq!(stand.model.requests().len(), 1);
}

#[test]
fn a_reply_that_makes_no_sense_is_in_the_debug_file_with_its_bytes() {
    use std::os::unix::fs::PermissionsExt as _;
    let stand = Stand::new("when\n malformed json");
    let file = stand.file("debug.jsonl");
    let run = finished(stand.decurion().args(["-p", "go", "--debug-file", &file]));
    assert_eq!(run.ending.code(), 1, "{run:?}");
    let log = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let raw = lines
        .iter()
        .filter_map(|line| line["raw"].as_str())
        .find(|raw| raw.contains("content_block_delta\",\n"));
    assert!(raw.is_some(), "{log}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

//! A program that leads the real binary over standard input, and a person at another terminal: work sent to the
//! background goes on where it was, and a question outlives the process that asked it.

use std::time::{Duration, Instant};

use decurion_testkit::proc::{Moment, Running, lines_of};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand, finished};
use crate::talk::{LED, answer, control, next, prompt};

/// Waits until a command has written to this file.
fn wait_for_lines(stand: &Stand, file: &str) {
    let began = Instant::now();
    while lines_of(&stand.home.work().join(file)).is_empty() {
        assert!(began.elapsed() < LIMIT, "the command that writes {file} never began");
        std::thread::yield_now();
    }
}

#[test]
fn work_sent_to_the_background_keeps_its_process_and_asks_nothing_again() {
    let stand = Stand::new(
        r#"
when agent=general-purpose turn=1
  call Bash {"command": "echo $$ >> pids; until [ -e go ]; do sleep 0.02; done; echo $$ >> pids", "description": "wait"}
when agent=general-purpose
  say "found it"
when agent=main turn=1
  call Agent as toolu_agent {"description": "look", "prompt": "look", "subagent_type": "general-purpose"}
when agent=main turn=2
  call Bash as toolu_shell {"command": "echo $$ >> shell; until [ -e go ]; do sleep 0.02; done; echo $$ >> shell", "description": "wait too"}
when agent=main
  say "going on"
"#,
    );
    let mut run = stand.decurion().args(LED).args(["--allowedTools", "Bash"]).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    for (call, file) in [("toolu_agent", "pids"), ("toolu_shell", "shell")] {
        wait_for_lines(&stand, file);
        run.say(&control(call, &json!({"subtype": "background_tasks", "tool_use_id": call}))).unwrap();
        let is_result =
            |line: &Value| line["type"] == "user" && line["message"]["content"][0]["tool_use_id"] == call;
        let result = next(&mut run, is_result);
        assert_eq!(result["tool_use_result"]["backgroundedByUser"], true, "{result}");
    }
    std::fs::write(stand.home.work().join("go"), "").unwrap();
    for _ in 0..2 {
        next(&mut run, |line| line["subtype"] == "task_notification");
    }
    run.hang_up();
    let ended = run.finish(LIMIT).unwrap();
    assert_eq!(ended.ending.code(), 0, "{ended:?}");
    for file in ["pids", "shell"] {
        let pids = lines_of(&stand.home.work().join(file));
        assert!(pids.len() == 2 && pids[0] == pids[1], "{file}: {pids:?}");
    }
    let requests = stand.model.requests();
    let of_agent = requests.iter().filter(|request| request.agent != "main").count();
    assert_eq!(of_agent, 2, "nothing was asked again");
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

/// A prompt that waits for its turn when the process is killed is worked on by the next one, without being sent again.
#[test]
fn a_queued_prompt_outlives_its_process() {
    const SESSION: &str = "12121212-1212-4121-8121-121212121212";
    let stand = Stand::new(
        "when match=\"second\"\n  say \"done two\"\nwhen turn=1\n  call Bash {\"command\": \"echo ran >> effects\", \"description\": \"d\"}\nwhen\n  say \"done one\"\n",
    );
    let mut first = stand.decurion().args(LED).args(["--session-id", SESSION]).start_talking().unwrap();
    first.say(&prompt("first")).unwrap();
    let is_question = |line: &Value| line["request"]["subtype"] == "can_use_tool";
    next(&mut first, is_question);
    first.say(&prompt("second")).unwrap();
    // Answered in order, so that the prompt is accepted by then.
    first.say(&control("usage", &json!({"subtype": "get_context_usage"}))).unwrap();
    next(&mut first, |line| line["response"]["request_id"] == "usage");
    first.kill_at(Moment::After(Duration::ZERO), LIMIT).unwrap();

    let mut second = stand.decurion().args(LED).args(["--resume", SESSION]).start_talking().unwrap();
    let asked = next(&mut second, is_question);
    let allow = json!({"behavior": "allow", "updatedInput": asked["request"]["input"]});
    second.say(&answer(&asked, &allow)).unwrap();
    let result = |run: &mut Running| next(run, |line| line["type"] == "result")["result"].clone();
    assert_eq!(result(&mut second), "done one");
    assert_eq!(result(&mut second), "done two");
    second.hang_up();
    assert_eq!(second.finish(LIMIT).unwrap().ending.code(), 0);
    assert_eq!(lines_of(&stand.home.work().join("effects")), ["ran"]);
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

/// Prompts that wait when a session is closed are worked on when it is opened again, before what is asked then; `-p`
/// prints their answers too.
#[test]
fn prompts_that_wait_when_a_session_is_closed_are_answered_when_it_is_continued() {
    const SESSION: &str = "13131313-1313-4131-8131-131313131313";
    let stand = Stand::new(
        "when match=\"second\"\n  say \"done two\"\nwhen match=\"third\"\n  say \"done three\"\nwhen turn=1\n  \
         call Bash {\"command\": \"echo $$ >> began; sleep 1000\", \"description\": \"d\"}\nwhen\n  say \"done one\"\n",
    );
    let args = ["--session-id", SESSION, "--allowedTools", "Bash"];
    let mut first = stand.decurion().args(LED).args(args).start_talking().unwrap();
    first.say(&prompt("first")).unwrap();
    wait_for_lines(&stand, "began");
    first.say(&prompt("second")).unwrap();
    // Answered in order, so that the prompt is accepted by then.
    first.say(&control("usage", &json!({"subtype": "get_context_usage"}))).unwrap();
    next(&mut first, |line| line["response"]["request_id"] == "usage");
    first.signal(Signal::TERM).unwrap();
    // Its input stays open until it has ended: a host that hangs up as well ends the session in another way.
    assert_eq!(first.wait_for_line(LIMIT, |line| line.contains("done two")), None);
    first.finish(LIMIT).unwrap();

    let second = finished(stand.decurion().args(["-p", "--continue", "third"]));
    assert_eq!(second.ending.code(), 0, "{second:?}");
    assert_eq!(second.output(), "done two\n\ndone three");
    let third = finished(stand.decurion().args(["-p", "--continue", "third"]));
    assert_eq!(third.output(), "done three", "each is worked on once");
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_question_outlives_its_process_and_its_call_runs_once() {
    const SESSION: &str = "11111111-1111-4111-8111-111111111111";
    let stand = Stand::new(
        r#"
when agent=general-purpose turn=1
  call Bash {"command": "echo ran >> effects", "description": "leave a mark"}
when agent=general-purpose
  say "marked"
when agent=main turn=1
  call Agent {"description": "mark", "prompt": "mark", "subagent_type": "general-purpose", "run_in_background": true}
when agent=main
  say "fine"
"#,
    );
    let mut first = stand.decurion().args(LED).args(["--session-id", SESSION]).start_talking().unwrap();
    first.say(&prompt("go")).unwrap();
    let is_question = |line: &Value| line["request"]["subtype"] == "can_use_tool";
    let asked = next(&mut first, is_question);
    first.kill_at(Moment::After(Duration::ZERO), LIMIT).unwrap();

    let mut second = stand.decurion().args(LED).args(["--resume", SESSION]).start_talking().unwrap();
    let again = next(&mut second, is_question);
    assert_eq!(asked["request_id"], again["request_id"], "the same question still");
    let question = again["request_id"].as_str().unwrap();
    let elsewhere =
        finished(stand.decurion().args(["tasks", "answer", question, "allow", "--session", SESSION]));
    assert_eq!(elsewhere.ending.code(), 0, "{elsewhere:?}");
    let told = next(&mut second, |line| line["subtype"] == "task_notification");
    assert_eq!(told["status"], "completed", "{told}");
    second.hang_up();
    assert_eq!(second.finish(LIMIT).unwrap().ending.code(), 0);
    assert_eq!(lines_of(&stand.home.work().join("effects")), ["ran"]);
}

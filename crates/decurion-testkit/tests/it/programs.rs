//! The kit's programs and its way of running programs, with the real processes.

use std::time::Duration;

use decurion_testkit::proc::{Home, Moment, lines_of, processes_marked, wait_until_gone};
use decurion_testkit::sys::Ending;
use serde_json::Value;

const FAKEMODEL: &str = env!("CARGO_BIN_EXE_fakemodel");
const FLOOR: &str = env!("CARGO_BIN_EXE_floor");
const MEASURE: &str = env!("CARGO_BIN_EXE_measure");
/// Far more than anything here takes; only a hang meets it.
const LIMIT: Duration = Duration::from_mins(1);

/// A model in a process of its own, and its address.
fn model(home: &Home, arguments: &[&str]) -> (decurion_testkit::proc::Running, String) {
    let program = home.program(FAKEMODEL).args(arguments).arg("--with-parent");
    let mut running = program.start().unwrap();
    let line = running.wait_for_line(LIMIT, |_| true).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["pid"], running.pid);
    (running, ready["url"].as_str().unwrap().to_owned())
}

fn figures(home: &Home, arguments: &[&str]) -> Value {
    let finished = home.program(FLOOR).args(arguments).run(LIMIT).unwrap();
    assert!(finished.ending.is_success(), "{}", finished.errors);
    serde_json::from_str(&finished.output()).unwrap()
}

#[test]
fn the_floor_takes_one_turn() {
    let home = Home::new().unwrap();
    let (_model, url) = model(&home, &["--rounds", "0"]);
    let transcript = home.path().join("t.jsonl");
    let path = transcript.to_str().unwrap();
    let figures = figures(&home, &["one-turn", "--url", &url, "--transcript", path, "--prompt", "hi"]);
    assert_eq!(figures["requests"], 1);
    assert!(figures["max_rss_kib"].as_u64().unwrap() > 0);
    let lines = lines_of(&transcript);
    assert_eq!(lines[0], r#"{"role":"user","content":[{"type":"text","text":"hi"}]}"#);
    assert!(lines[1].contains("all rounds are done"), "{lines:?}");
}

#[test]
fn the_floor_does_its_rounds_and_a_provider_would_take_its_requests() {
    let home = Home::new().unwrap();
    let log = home.path().join("log.jsonl");
    let command = "echo done >> $EFFECTS; echo seen";
    let options = ["--rounds", "3", "--command", command, "--log", log.to_str().unwrap()];
    let (_model, url) = model(&home, &options);
    let transcript = home.path().join("t.jsonl");
    let path = transcript.to_str().unwrap();
    let figures = figures(&home, &["rounds", "--url", &url, "--rounds", "10", "--transcript", path]);
    assert_eq!(figures["requests"], 4);
    assert_eq!(lines_of(&home.effects()).len(), 3);
    let lines = lines_of(&transcript);
    assert_eq!(lines.len(), 1 + 2 * 3 + 1);
    assert!(lines[2].contains(r#""content":"seen\n""#), "{lines:?}");
    let bytes: u64 = lines.iter().map(|line| line.len() as u64 + 1).sum();
    assert_eq!(figures["transcript_bytes"], bytes);
    let logged = lines_of(&log);
    assert_eq!(logged.len(), 4);
    assert!(logged.iter().all(|line| line.contains("\"problem\":null")), "{logged:?}");
}

#[test]
fn the_floor_runs_many_conversations_at_once_and_resumes_a_long_one() {
    let home = Home::new().unwrap();
    let (_model, url) = model(&home, &["--rounds", "2"]);
    let transcript = home.path().join("t.jsonl");
    let path = transcript.to_str().unwrap();
    let many = figures(&home, &["agents", "--url", &url, "--rounds", "9", "--agents", "5"]);
    assert_eq!(many["requests"], 5 * 3);
    figures(&home, &["rounds", "--url", &url, "--rounds", "9", "--transcript", path]);
    let resumed = figures(&home, &["resume", "--url", &url, "--transcript", path]);
    assert_eq!(resumed["requests"], 1);
    let transcript_bytes = std::fs::metadata(&transcript).unwrap().len();
    assert!(resumed["sent_bytes"].as_u64().unwrap() > transcript_bytes);
    // Reading does not write.
    assert_eq!(std::fs::metadata(&transcript).unwrap().len(), transcript_bytes);
}

#[test]
fn a_gate_holds_agents_until_all_of_them_wait_and_the_peak_can_be_read() {
    let home = Home::new().unwrap();
    let (_model, url) = model(&home, &["--rounds", "1", "--agents", "9", "--gate", "7"]);
    let many = figures(&home, &["agents", "--url", &url, "--rounds", "3", "--agents", "7"]);
    assert_eq!(many["requests"], 7 * 2);
    assert_eq!(figures(&home, &["agents", "--url", &url, "--rounds", "3", "--agents", "1"])["requests"], 2);
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let request = format!("GET /peak HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body, serde_json::json!({"active": 0, "peak": 7}));
}

#[test]
fn sizes_of_the_head_are_as_asked_for() {
    let home = Home::new().unwrap();
    let (_model, url) = model(&home, &["--rounds", "0"]);
    let sent = |system: &str, tools: &str| {
        let sizes = ["--system-bytes", system, "--tools-bytes", tools];
        let all = [&["one-turn", "--url", &url][..], &sizes].concat();
        figures(&home, &all)["sent_bytes"].as_u64().unwrap()
    };
    assert_eq!(sent("5000", "4000") - sent("2000", "4000"), 3000);
    assert_eq!(sent("2000", "9000") - sent("2000", "4000"), 5000);
}

#[test]
fn bad_arguments_are_named() {
    let home = Home::new().unwrap();
    for (program, arguments, words) in [
        (FLOOR, &["dance"][..], "no such mode: dance"),
        (FLOOR, &["resume", "--url", "http://x"], "resume needs --transcript"),
        (FAKEMODEL, &["--rounds", "x"], "not a number: x"),
        (FAKEMODEL, &[], "one of --script and --rounds is needed"),
        (FAKEMODEL, &["--script", "/nowhere"], "the script cannot be read"),
        (MEASURE, &["true"], "no such option: true"),
    ] {
        let finished = home.program(program).args(arguments).run(LIMIT).unwrap();
        assert!(!finished.ending.is_success());
        assert!(finished.errors.contains(words), "{}", finished.errors);
    }
}

#[test]
fn a_command_is_measured_with_what_it_leaves_behind() {
    let home = Home::new().unwrap();
    let out = home.path().join("figures");
    // The first shell ends at once; the one it leaves behind works, and tells when it is done.
    let command = "(for i in $(seq 20000); do :; done; echo late >> $EFFECTS) & exit 3";
    let program = home.program(MEASURE).arg("--out").arg(&out);
    let finished = program.args(["--quiet", "--", "bash", "-c", command]).run(LIMIT).unwrap();
    assert_eq!(finished.ending, Ending::Exited(3));
    assert_eq!(lines_of(&home.effects()), ["late"]);
    let figures: Value = serde_json::from_str(&lines_of(&out)[0]).unwrap();
    assert_eq!((&figures["code"], &figures["orphans"]), (&Value::from(3), &Value::from(1)));
    assert!(figures["cpu_ms"].as_f64() > figures["main_cpu_ms"].as_f64(), "{figures}");
}

#[test]
fn a_program_sees_a_fresh_home_and_nothing_of_ours() {
    let home = Home::new().unwrap();
    let finished = home.program("/usr/bin/env").run(LIMIT).unwrap();
    let mut names: Vec<_> = finished.lines.iter().map(|line| line.split('=').next().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["DECURION_HOME", "EFFECTS", "HOME", "LANG", "PATH", "TEST_RUN_MARKER", "TMPDIR"],);
    let finished = home.program("/bin/cat").input("one\ntwo\n").run(LIMIT).unwrap();
    assert_eq!(finished.lines, ["one", "two"]);
}

#[test]
fn a_conversation_over_pipes_can_be_held() {
    let home = Home::new().unwrap();
    let mut cat = home.program("/bin/cat").start_talking().unwrap();
    cat.say("hello").unwrap();
    assert_eq!(cat.wait_for_line(LIMIT, |line| line == "hello").as_deref(), Some("hello"));
    assert!(cat.io().unwrap().write_calls >= 1);
    cat.hang_up();
    let finished = cat.finish(LIMIT).unwrap();
    assert_eq!((finished.ending, finished.lines), (Ending::Exited(0), vec!["hello".to_owned()]));
}

#[test]
fn a_kill_comes_at_its_line_and_leaves_descendants_to_be_counted() {
    let home = Home::new().unwrap();
    let script = "sleep 1000 & echo one; echo two; sleep 1000";
    let running = home.program("/bin/bash").args(["-c", script]).start().unwrap();
    let finished = running.kill_at(Moment::Lines(2), LIMIT).unwrap();
    assert_eq!(finished.ending, Ending::Signalled(9));
    assert_eq!(finished.lines, ["one", "two"]);
    let left = home.processes();
    assert!(!left.is_empty(), "the sleeping child is still there");
    for pid in left {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    assert!(wait_until_gone(home.marker(), LIMIT).is_empty());
}

#[test]
fn a_program_that_hangs_is_killed_with_all_it_started() {
    let home = Home::new().unwrap();
    let script = "trap '' TERM; (setsid sleep 1000) & echo up; sleep 1000";
    let finished = home.program("/bin/bash").args(["-c", script]).run(Duration::from_millis(300)).unwrap();
    assert!(finished.timed_out);
    assert!(wait_until_gone(home.marker(), LIMIT).is_empty());
}

#[test]
fn a_kill_after_a_time_does_not_wait_for_output() {
    let home = Home::new().unwrap();
    let running = home.program("/bin/sleep").arg("1000").start().unwrap();
    let finished = running.kill_at(Moment::After(Duration::from_millis(5)), LIMIT).unwrap();
    assert_eq!(finished.ending, Ending::Signalled(9));
    // One that is quicker than its killer ends by itself.
    let quick = home.program("/bin/true").start().unwrap();
    let finished = quick.kill_at(Moment::After(LIMIT), LIMIT).unwrap();
    assert_eq!(finished.ending, Ending::Exited(0));
}

#[test]
fn nobody_carries_a_marker_that_was_never_given() {
    assert!(processes_marked("no-such-marker").is_empty());
}

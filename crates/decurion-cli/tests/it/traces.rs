//! `decurion trace`: the demo's trace and picture, where they are written, and what is refused.

use std::os::unix::fs::PermissionsExt as _;

use decurion_testkit::proc::Home;
use decurion_testkit::trace_events::{Shape, check};
use rustix::process::Signal;
use serde_json::Value;

use crate::stand::{DECURION, LIMIT, Stand, file_in, finished};

fn read(path: &str) -> Shape {
    let text = std::fs::read_to_string(path).unwrap();
    check(&serde_json::from_str(&text).unwrap()).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[test]
fn the_demo_is_a_good_trace_and_a_picture() {
    let home = Home::new().unwrap();
    let demo = finished(home.program(DECURION).arg("demo"));
    assert_eq!(demo.ending.code(), 0, "{demo:?}");
    let line = demo.lines.iter().find(|line| line.contains("decurion sessions show")).unwrap();
    let session = line.split(' ').next_back().unwrap();
    let (trace, picture) = (file_in(&home, "demo.json"), file_in(&home, "demo.svg"));
    let arguments = ["trace", session, "-o", &trace, "--svg", &picture, "--json"];
    let run = finished(home.program(DECURION).args(arguments));
    assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{run:?}");
    let said: Value = serde_json::from_str(&run.lines[0]).unwrap();
    let shape = read(&trace);
    assert_eq!((said["agents"].as_u64(), said["unfinished"].as_u64()), (Some(5), Some(0)));
    assert_eq!((shape.processes, shape.unfinished), (5, 0));
    // Three agents, one of them again, a fork, and a command: each begun by a call, each told of once.
    assert_eq!((shape.flows["spawn"], shape.flows["report"]), (6, 6));
    assert_eq!((shape.instants["selected"], shape.instants["completed"]), (7, 7));
    assert_eq!((shape.spans["run"], shape.spans["turn"], shape.spans["model"]), (7, 14, 14));
    assert_eq!((shape.spans["tool"], shape.spans["shell"]), (14, 1));
    for file in [&trace, &picture] {
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file} is for its owner alone");
    }
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("Look at the files"));
    // A file that is there is somebody's.
    let again = finished(home.program(DECURION).args(arguments));
    assert_eq!(again.ending.code(), 2, "{again:?}");
    assert!(again.errors.contains("demo.json") && again.errors.contains("--force"), "{}", again.errors);
    let forced = finished(home.program(DECURION).args(arguments).arg("--force"));
    assert_eq!(forced.ending.code(), 0, "{forced:?}");
    let printed = finished(home.program(DECURION).args(["trace", session, "-o", "-"]));
    assert_eq!(printed.lines.join("\n") + "\n", std::fs::read_to_string(&trace).unwrap());
    let left: Vec<String> = std::fs::read_dir(home.work())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "nothing is left beside them");
}

#[test]
fn the_latest_session_of_the_folder_with_its_waits() {
    let stand = Stand::new(
        "when turn=1 try=1\n fail 429 retry-after-ms=30\nwhen turn=1\n call Bash {\"command\": \"echo here\"}\nwhen try=1\n reset\nwhen\n say \"done\"",
    );
    let nothing = stand.run(&["trace"]);
    assert_eq!(nothing.ending.code(), 2, "{nothing:?}");
    assert!(nothing.errors.contains("no sessions in this folder"), "{}", nothing.errors);
    let run = stand.run(&["-p", "go", "--allowedTools", "Bash"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let traced = stand.run(&["trace"]);
    assert_eq!((traced.ending.code(), traced.errors.as_str()), (0, ""), "{traced:?}");
    let name = traced.lines[0].split(':').next().unwrap();
    assert!(name.strip_suffix(".json").is_some_and(|name| name.starts_with("trace-")), "{name}");
    let shape = read(&stand.file(name));
    assert_eq!((shape.spans["rate_limit"], shape.spans["retry"], shape.spans["model"]), (1, 1, 2));
    let only = stand.run(&["trace", "--svg", &stand.file("only.svg")]);
    assert_eq!((only.ending.code(), only.lines.len()), (0, 1), "{only:?}");
}

#[test]
fn a_session_that_runs_or_was_killed_is_traced_up_to_its_last_record() {
    let stand = Stand::new(
        "when agent=Explore turn=1\n call Bash {\"command\": \"sleep 600\"}\nwhen turn=1\n call Agent {\"description\": \"look\", \"prompt\": \"look\", \"subagent_type\": \"Explore\"}\nwhen\n say \"done\"",
    );
    let arguments = ["-p", "go", "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose"];
    let mut running = stand.decurion().args(arguments).start().unwrap();
    // What is printed is on record.
    running.wait_for_line(LIMIT, |line| line.contains("sleep 600")).unwrap();
    let trace = stand.file("trace.json");
    for ending in ["runs", "was killed"] {
        let traced = stand.run(&["trace", "-o", &trace, "--force"]);
        assert_eq!((traced.ending.code(), traced.errors.as_str()), (0, ""), "it {ending}: {traced:?}");
        assert!(traced.lines[0].contains("without an end on record"), "it {ending}: {traced:?}");
        let shape = read(&trace);
        assert_eq!((shape.processes, shape.spans["run"], shape.flows["spawn"]), (2, 2, 1), "it {ending}");
        assert!(shape.unfinished >= 3, "both runs and the call that waits: {shape:?}");
        if ending == "runs" {
            running.signal(Signal::KILL).unwrap();
            running.wait_for_line(LIMIT, |_| false);
        }
    }
    running.finish(LIMIT).unwrap();
}

#[test]
fn what_cannot_be_written_is_said_before_anything_is() {
    let stand = Stand::new("when\n say \"done\"");
    assert_eq!(stand.run(&["-p", "go"]).ending.code(), 0);
    let (file, missing) = (stand.file("x"), stand.file("no/such/folder/x"));
    #[rustfmt::skip]
    let rows: &[(&[&str], u8, &str)] = &[
        (&["trace", "-o", &file, "--svg", &file], 2, "the same place"),
        (&["trace", "-o", "-", "--json"], 2, "standard output"),
        (&["trace", "-o", &missing], 1, "cannot write"),
        (&["trace", "no-such-id"], 2, "session not found: no-such-id"),
        (&["trace", "11111111-2222-4333-8444-555555555555"], 2, "11111111-2222"),
    ];
    for (arguments, code, words) in rows {
        let run = stand.run(arguments);
        assert_eq!(run.ending.code(), i32::from(*code), "{arguments:?} {run:?}");
        assert!(run.errors.contains(words), "{arguments:?}: {}", run.errors);
    }
    assert!(!std::path::Path::new(&file).exists());
    // A device is written to, and stays one.
    assert_eq!(stand.run(&["trace", "-o", "/dev/null", "--force"]).ending.code(), 0);
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

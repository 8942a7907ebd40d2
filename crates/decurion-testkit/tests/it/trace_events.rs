//! The check of traces, checked: a good trace, and many that are wrong in one place.

use decurion_testkit::trace_events::check;
use serde_json::{Value, json};

fn good() -> Value {
    json!({"displayTimeUnit": "ms", "otherData": {"session": "x"}, "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "main"}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 0}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "main"}},
        {"ph": "M", "name": "process_name", "pid": 2, "tid": 1, "ts": 0, "args": {"name": "child"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "ts": 0, "args": {"name": "child"}},
        {"ph": "X", "name": "run", "cat": "run", "pid": 1, "tid": 1, "ts": 0, "dur": 100, "args": {}},
        {"ph": "X", "name": "call", "cat": "tool", "pid": 1, "tid": 1, "ts": 10, "dur": 50, "args": {}},
        {"ph": "X", "name": "next", "cat": "tool", "pid": 1, "tid": 1, "ts": 60, "dur": 0, "args": {"unfinished": true}},
        {"ph": "X", "name": "run", "cat": "run", "pid": 2, "tid": 1, "ts": 20, "dur": 20, "args": {}},
        {"ph": "i", "s": "t", "name": "selected", "cat": "event", "pid": 2, "tid": 1, "ts": 20, "args": {}},
        {"ph": "s", "id": 1, "name": "spawn", "cat": "flow", "pid": 1, "tid": 1, "ts": 20},
        {"ph": "f", "id": 1, "name": "spawn", "cat": "flow", "pid": 2, "tid": 1, "ts": 20, "bp": "e"},
        {"ph": "C", "name": "tokens", "cat": "usage", "pid": 1, "tid": 1, "ts": 5, "args": {"input": 1, "output": 2.5}},
    ]})
}

#[test]
fn a_good_trace_is_counted() {
    let shape = check(&good()).unwrap();
    assert_eq!((shape.processes, shape.threads, shape.unfinished, shape.counters), (2, 2, 1, 1));
    assert_eq!((shape.spans["tool"], shape.spans["run"], shape.flows["spawn"]), (2, 2, 1));
    assert_eq!(check(&json!({"traceEvents": []})).unwrap(), Default::default());
}

/// What is broken, how, and the words that say so.
type Row = (&'static str, fn(&mut Value), &'static str);

#[test]
fn every_broken_trace_is_refused_for_its_reason() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("no events", |t| { t.as_object_mut().unwrap().remove("traceEvents"); }, "no array"),
        ("a member of another format", |t| t["resourceSpans"] = json!([]), "`resourceSpans`"),
        ("a unit of its own", |t| t["displayTimeUnit"] = json!("s"), "`displayTimeUnit`"),
        ("an event that is a text", |t| t["traceEvents"][5] = json!("run"), "event 5: not an object"),
        ("an unknown phase", |t| t["traceEvents"][5]["ph"] = json!("Z"), "\"Z\" is not known"),
        ("no phase", |t| { t["traceEvents"][5].as_object_mut().unwrap().remove("ph"); }, "is not known"),
        ("no name", |t| { t["traceEvents"][5].as_object_mut().unwrap().remove("name"); }, "`name` is missing"),
        ("an empty name", |t| t["traceEvents"][5]["name"] = json!(""), "`name` is not of its type"),
        ("a name that is a number", |t| t["traceEvents"][5]["name"] = json!(5), "`name` is not of its type"),
        ("a time that is a text", |t| t["traceEvents"][5]["ts"] = json!("0"), "`ts` is not of its type"),
        ("a time before the beginning", |t| t["traceEvents"][5]["ts"] = json!(-1), "`ts` is not of its type"),
        ("no duration", |t| { t["traceEvents"][6].as_object_mut().unwrap().remove("dur"); }, "`dur` is missing"),
        ("a negative duration", |t| t["traceEvents"][6]["dur"] = json!(-0.5), "`dur` is not of its type"),
        ("a duration that is nothing", |t| t["traceEvents"][6]["dur"] = json!(null), "`dur` is not of its type"),
        ("an instant with a duration", |t| t["traceEvents"][9]["dur"] = json!(1), "does not belong to i"),
        ("an instant of no scope", |t| t["traceEvents"][9]["s"] = json!("x"), "`s` is not of its type"),
        ("arguments that are a list", |t| t["traceEvents"][5]["args"] = json!([]), "`args` is not of its type"),
        ("a process that is a text", |t| t["traceEvents"][5]["pid"] = json!("1"), "`pid` is not of its type"),
        ("a thread of number 0", |t| t["traceEvents"][5]["tid"] = json!(0), "`tid` is not of its type"),
        ("a process without a name", |t| t["traceEvents"][3]["pid"] = json!(3), "(2, 1) has no name"),
        ("a thread without a name", |t| t["traceEvents"][4]["tid"] = json!(2), "(2, 1) has no name"),
        ("a process with two names", |t| t["traceEvents"][3]["pid"] = json!(1), "process_name is given twice"),
        ("a place that is a text", |t| t["traceEvents"][1]["args"]["sort_index"] = json!("0"), "`sort_index`"),
        ("unknown metadata", |t| t["traceEvents"][1]["name"] = json!("colour"), "\"colour\" is not known"),
        ("spans that cross", |t| t["traceEvents"][6]["dur"] = json!(95), "cross on track"),
        ("a span that sticks out by a little", |t| t["traceEvents"][7]["dur"] = json!(40.5), "cross on track"),
        ("an arrow without an end", |t| { t["traceEvents"].as_array_mut().unwrap().remove(11); }, "1 starts and 0 ends"),
        ("an arrow without a start", |t| { t["traceEvents"].as_array_mut().unwrap().remove(10); }, "0 starts and 1 ends"),
        ("ends of two arrows", |t| t["traceEvents"][11]["id"] = json!(2), "0 ends"),
        ("ends of two kinds", |t| t["traceEvents"][11]["name"] = json!("report"), "0 ends"),
        ("ends of two categories", |t| t["traceEvents"][11]["cat"] = json!("other"), "0 ends"),
        ("two starts", |t| { let s = t["traceEvents"][10].clone(); t["traceEvents"].as_array_mut().unwrap().push(s); }, "2 starts"),
        ("an arrow back in time", |t| t["traceEvents"][10]["ts"] = json!(21), "runs backwards"),
        ("an arrow from nowhere", |t| t["traceEvents"][8]["ts"] = json!(21), "touches nothing"),
        ("an arrow without an id", |t| t["traceEvents"][10]["id"] = json!(null), "`id` is not of its type"),
        ("an arrow that binds to the next", |t| t["traceEvents"][11]["bp"] = json!("n"), "`bp` is not of its type"),
        ("a counter of words", |t| t["traceEvents"][12]["args"]["input"] = json!("1"), "counts in numbers"),
        ("a counter of nothing", |t| t["traceEvents"][12]["args"] = json!({}), "counts in numbers"),
        ("a text without bounds", |t| t["traceEvents"][5]["args"]["x"] = json!("x".repeat(301)), "too long"),
        ("an escape sequence", |t| t["traceEvents"][5]["name"] = json!("\u{1b}[31m"), "control characters"),
    ];
    for (what, spoil, words) in rows {
        let mut trace = good();
        spoil(&mut trace);
        let problems = check(&trace).err().unwrap_or_else(|| panic!("{what} is let through"));
        assert!(problems.iter().any(|problem| problem.contains(words)), "{what}: {problems:?}");
    }
}

//! The trace-event format. Takes a trace as Perfetto and Chrome read it, gives what is in it, or everything
//! that is wrong with it: types of every field by phase, tracks without names, spans that cross, arrows that
//! lack an end or touch nothing, and texts that nobody bounded.
//!
//! It is closed: what we never write is wrong, also where the format would allow it.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};

/// The longest text that a trace may hold.
const LONGEST: usize = 300;

/// What is in a good trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    pub processes: usize,
    pub threads: usize,
    /// How many spans of each category.
    pub spans: BTreeMap<String, usize>,
    /// How many instants of each name.
    pub instants: BTreeMap<String, usize>,
    /// How many arrows of each name.
    pub flows: BTreeMap<String, usize>,
    /// How many spans and arrows are marked as unfinished.
    pub unfinished: usize,
    /// How many counter samples.
    pub counters: usize,
}

/// Checks a whole trace.
pub fn check(trace: &Value) -> Result<Shape, Vec<String>> {
    let mut check = Check::default();
    check.whole(trace);
    if check.problems.is_empty() { Ok(check.shape) } else { Err(check.problems) }
}

type Track = (u64, u64);

#[derive(Default)]
struct Check {
    problems: Vec<String>,
    shape: Shape,
    process_names: HashSet<u64>,
    thread_names: HashSet<Track>,
    /// Metadata seen, so that none is given twice.
    named: HashSet<(String, Track)>,
    used: HashSet<Track>,
    slices: HashMap<Track, Vec<(f64, f64, String)>>,
    flows: BTreeMap<String, [Vec<FlowEnd>; 2]>,
}

struct FlowEnd {
    track: Track,
    ts: f64,
    unfinished: bool,
    place: usize,
}

impl Check {
    fn wrong(&mut self, place: usize, what: impl std::fmt::Display) {
        self.problems.push(format!("event {place}: {what}"));
    }

    fn whole(&mut self, trace: &Value) {
        let Some(members) = trace.as_object() else { return self.problems.push("not an object".to_owned()) };
        for (name, value) in members {
            let good = match name.as_str() {
                "traceEvents" => value.is_array(),
                "displayTimeUnit" => matches!(value.as_str(), Some("ms" | "ns")),
                "otherData" => value.is_object(),
                _ => false,
            };
            if !good {
                self.problems.push(format!("the member `{name}` is not known or not of its type"));
            }
        }
        let Some(events) = trace["traceEvents"].as_array() else {
            return self.problems.push("no array `traceEvents`".to_owned());
        };
        for (place, event) in events.iter().enumerate() {
            match event.as_object() {
                Some(event) => self.event(place, event),
                None => self.wrong(place, "not an object"),
            }
        }
        self.nesting();
        self.arrows();
        self.tracks();
        let mut long = Vec::new();
        texts(trace, &mut |text| {
            if text.chars().count() > LONGEST || text.chars().any(char::is_control) {
                long.push(format!("a text is too long or has control characters: {text:.40?}"));
            }
        });
        self.problems.extend(long);
    }

    fn event(&mut self, place: usize, event: &Map<String, Value>) {
        let phase = event.get("ph").and_then(Value::as_str).unwrap_or_default().to_owned();
        let (needs, may): (&[&str], &[&str]) = match phase.as_str() {
            "M" => (&["ph", "name", "pid", "tid", "args"], &["ts"]),
            "X" => (&["ph", "name", "cat", "pid", "tid", "ts", "dur", "args"], &[]),
            "i" => (&["ph", "name", "cat", "pid", "tid", "ts", "s", "args"], &[]),
            "C" => (&["ph", "name", "cat", "pid", "tid", "ts", "args"], &[]),
            "s" => (&["ph", "name", "cat", "pid", "tid", "ts", "id"], &["args"]),
            "f" => (&["ph", "name", "cat", "pid", "tid", "ts", "id", "bp"], &["args"]),
            other => return self.wrong(place, format!("the phase {other:?} is not known")),
        };
        for name in needs.iter().filter(|name| !event.contains_key(**name)) {
            self.wrong(place, format!("`{name}` is missing"));
        }
        for (name, value) in event {
            if !needs.contains(&name.as_str()) && !may.contains(&name.as_str()) {
                self.wrong(place, format!("`{name}` does not belong to {phase}"));
            } else if let Some(problem) = field(name, value) {
                self.wrong(place, format!("`{name}` {problem}"));
            }
        }
        let number = |name: &str| event.get(name).and_then(Value::as_u64).unwrap_or(0);
        let track = (number("pid"), number("tid"));
        let name = event.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.by_phase(place, &phase, event, track, name);
    }

    fn by_phase(
        &mut self,
        place: usize,
        phase: &str,
        event: &Map<String, Value>,
        track: Track,
        name: String,
    ) {
        let text = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let time = |name: &str| event.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let args = event.get("args").and_then(Value::as_object);
        let unfinished = args.is_some_and(|args| args.get("unfinished") == Some(&Value::Bool(true)));
        if phase != "M" {
            self.used.insert(track);
        }
        match phase {
            "M" => self.metadata(place, track, &name, args),
            "X" => {
                self.slices.entry(track).or_default().push((time("ts"), time("ts") + time("dur"), name));
                *self.shape.spans.entry(text("cat")).or_default() += 1;
                self.shape.unfinished += usize::from(unfinished);
            }
            "i" => *self.shape.instants.entry(name).or_default() += 1,
            "C" => {
                self.shape.counters += 1;
                let numbers =
                    args.is_some_and(|args| !args.is_empty() && args.values().all(Value::is_number));
                if !numbers {
                    self.wrong(place, "a counter counts in numbers");
                }
            }
            _ => {
                let id = event.get("id").map(Value::to_string).unwrap_or_default();
                let ends = self.flows.entry(format!("{}/{name}/{id}", text("cat"))).or_default();
                let end = FlowEnd { track, ts: time("ts"), unfinished, place };
                ends[usize::from(phase == "f")].push(end);
            }
        }
    }

    fn metadata(&mut self, place: usize, track: Track, name: &str, args: Option<&Map<String, Value>>) {
        let member = match name {
            "process_name" | "thread_name" => "name",
            "process_labels" => "labels",
            "process_sort_index" | "thread_sort_index" => "sort_index",
            other => return self.wrong(place, format!("the metadata {other:?} is not known")),
        };
        let value = args.and_then(|args| args.get(member)).unwrap_or(&Value::Null);
        let good = if member == "sort_index" {
            value.is_i64()
        } else {
            value.as_str().is_some_and(|text| !text.is_empty())
        };
        if !good {
            self.wrong(place, format!("{name} needs `{member}` of its type"));
        }
        let whose = if name.starts_with("process") { (track.0, 0) } else { track };
        if !self.named.insert((name.to_owned(), whose)) {
            self.wrong(place, format!("{name} is given twice"));
        }
        match name {
            "process_name" => drop(self.process_names.insert(track.0)),
            "thread_name" => drop(self.thread_names.insert(track)),
            _ => {}
        }
    }

    /// On one track a span is within another or beside it.
    fn nesting(&mut self) {
        for (track, slices) in &mut self.slices {
            slices.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
            let mut open: Vec<&(f64, f64, String)> = Vec::new();
            for slice in slices.iter() {
                while open.last().is_some_and(|outer| outer.1 <= slice.0) {
                    open.pop();
                }
                if let Some(outer) = open.last().filter(|outer| outer.1 < slice.1) {
                    let (one, other) = (&outer.2, &slice.2);
                    self.problems.push(format!("{one:?} and {other:?} cross on track {track:?}"));
                }
                open.push(slice);
            }
        }
    }

    fn touches(&self, end: &FlowEnd) -> bool {
        let slices = self.slices.get(&end.track);
        slices.is_some_and(|slices| slices.iter().any(|slice| slice.0 <= end.ts && end.ts <= slice.1))
    }

    /// Each arrow has one start and one end, not earlier, and both touch something.
    fn arrows(&mut self) {
        let mut problems = Vec::new();
        for (key, [starts, ends]) in &self.flows {
            let ([start], [end]) = (starts.as_slice(), ends.as_slice()) else {
                problems.push(format!("the arrow {key} has {} starts and {} ends", starts.len(), ends.len()));
                continue;
            };
            if end.ts < start.ts {
                problems
                    .push(format!("the arrow {key} runs backwards (events {}, {})", start.place, end.place));
            }
            if !self.touches(start) || (!end.unfinished && !self.touches(end)) {
                problems
                    .push(format!("the arrow {key} touches nothing (events {}, {})", start.place, end.place));
            }
            let name = key.split('/').nth(1).unwrap_or_default().to_owned();
            *self.shape.flows.entry(name).or_default() += 1;
            self.shape.unfinished += usize::from(end.unfinished);
        }
        self.problems.extend(problems);
    }

    fn tracks(&mut self) {
        for (pid, tid) in &self.used {
            if !self.process_names.contains(pid) || !self.thread_names.contains(&(*pid, *tid)) {
                self.problems.push(format!("the track ({pid}, {tid}) has no name"));
            }
        }
        self.shape.processes = self.process_names.len();
        self.shape.threads = self.thread_names.len();
    }
}

/// What is wrong with one field, if anything is.
fn field(name: &str, value: &Value) -> Option<&'static str> {
    let good = match name {
        "ph" => true,
        "name" | "cat" => value.as_str().is_some_and(|text| !text.is_empty()),
        "pid" | "tid" => value.as_u64().is_some_and(|number| number > 0),
        "ts" | "dur" => value.as_f64().is_some_and(|number| number.is_finite() && number >= 0.0),
        "args" => value.is_object(),
        "s" => matches!(value.as_str(), Some("g" | "p" | "t")),
        "bp" => value.as_str() == Some("e"),
        "id" => value.is_u64() || value.as_str().is_some_and(|text| !text.is_empty()),
        _ => return Some("is not known"),
    };
    (!good).then_some("is not of its type")
}

fn texts(value: &Value, each: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(values) => values.iter().for_each(|value| texts(value, each)),
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            each(name);
            texts(value, each);
        }),
        _ => {}
    }
}

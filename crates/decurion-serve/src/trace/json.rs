//! A timeline as trace events: the JSON that Perfetto and Chrome read. Takes a [`Timeline`], writes one event
//! per line. An agent is a process, its tracks are threads, in the order of the tree.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Instant, Lane, Moment, SpanFacts, TimeSpan, Timeline};

impl Timeline {
    /// Writes the whole as one JSON object.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let other = json!({
            "session": self.session,
            "began": self.began.to_string(),
            "agents": self.agents.len(),
        });
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[")?;
        let mut first = true;
        let mut each = |event: Value| -> io::Result<()> {
            out.write_all(if std::mem::take(&mut first) { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *out, &event).map_err(io::Error::from)
        };
        for (place, lane) in self.agents.iter().enumerate() {
            names(place, lane).into_iter().try_for_each(&mut each)?;
        }
        self.spans.iter().map(complete).try_for_each(&mut each)?;
        self.instants.iter().map(instant).try_for_each(&mut each)?;
        for (index, flow) in self.flows.iter().enumerate() {
            let mut start = flow_end("s", index, flow.kind.word(), flow.from);
            let mut end = flow_end("f", index, flow.kind.word(), flow.to);
            end["bp"] = json!("e");
            if flow.unfinished {
                start["args"] = json!({"unfinished": true});
                end["args"] = json!({"unfinished": true});
            }
            each(start)?;
            each(end)?;
        }
        for counter in &self.counters {
            let (pid, ts) = (pid(counter.lane), counter.at);
            each(
                json!({"ph": "C", "name": "tokens", "cat": "usage", "pid": pid, "tid": tid(0), "ts": ts, "args": {
                    "input": counter.input, "output": counter.output, "cache_read": counter.cache_read,
                    "cache_write": counter.cache_write,
                }}),
            )?;
            let cost = json!({"usd": counter.cost});
            each(
                json!({"ph": "C", "name": "cost", "cat": "usage", "pid": pid, "tid": tid(0), "ts": ts, "args": cost}),
            )?;
        }
        out.write_all(b"\n]}\n")
    }
}

/// Programs leave numbers of 0 to the idle process.
fn pid(lane: usize) -> usize {
    lane + 1
}

fn tid(track: usize) -> usize {
    track + 1
}

/// What an agent and its tracks are called, and where they stand.
fn names(place: usize, lane: &Lane) -> Vec<Value> {
    let pid = pid(place);
    let about = |name: &str, tid: usize, args: Value| json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args});
    let title = match lane.description.as_str() {
        "" => format!("{} ({})", lane.kind, lane.path),
        words => format!("{}: {words} ({})", lane.kind, lane.path),
    };
    let mut all = vec![
        about("process_name", 1, json!({"name": title})),
        about("process_labels", 1, json!({"labels": lane.outcome.unwrap_or("unfinished")})),
        about("process_sort_index", 1, json!({"sort_index": place})),
    ];
    for track in 0..lane.tracks + lane.shells {
        let name = match (track, track.checked_sub(lane.tracks)) {
            (_, Some(shell)) => format!("command {}", shell + 1),
            (0, _) => lane.kind.clone(),
            (more, _) => format!("calls {}", more + 1),
        };
        all.push(about("thread_name", tid(track), json!({"name": name})));
        all.push(about("thread_sort_index", tid(track), json!({"sort_index": track})));
    }
    all
}

fn complete(span: &TimeSpan) -> Value {
    let mut args = members(&span.facts);
    if span.unfinished {
        args.insert("unfinished".to_owned(), json!(true));
    }
    json!({
        "ph": "X", "name": span.name, "cat": span.kind.word(), "pid": pid(span.lane), "tid": tid(span.track),
        "ts": span.from, "dur": span.to - span.from, "args": args,
    })
}

fn instant(instant: &Instant) -> Value {
    json!({
        "ph": "i", "s": "t", "name": instant.name, "cat": "event", "pid": pid(instant.lane), "tid": tid(0),
        "ts": instant.at, "args": members(&instant.facts),
    })
}

fn flow_end(phase: &str, index: usize, name: &str, moment: Moment) -> Value {
    json!({
        "ph": phase, "id": index + 1, "name": name, "cat": "flow", "pid": pid(moment.lane),
        "tid": tid(moment.track), "ts": moment.at,
    })
}

fn members(facts: &SpanFacts) -> Map<String, Value> {
    facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

//! A headless front end on a stage. Takes a script for the model, gives the lines that were printed, each held
//! against the schema, and a short form of them that a person can read.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use decurion_protocol::link::Place as _;
use decurion_protocol::{Block, Command};
use decurion_serve::{
    Finish, Format, Headless, LineWriterQueue, ProgressOutput, StopSignal, StreamFacts, StreamJson,
};
use decurion_testkit::stage::Stage;
use decurion_testkit::stream_schema::check_value;
use serde_json::Value;
use tokio::sync::mpsc;

/// Where lines are kept.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What was printed, and how it ended.
pub struct Answered {
    pub out: String,
    pub progress: String,
    pub finish: Finish,
}

/// A stage whose root may start agents, which may start others.
pub fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings.max_depth = 2;
    stage
}

/// A headless front end on this stage that prints there.
pub async fn headless(stage: &Stage, format: Format, out: &Kept, progress: ProgressOutput) -> Headless {
    headless_with(stage, format, out, progress, StreamFacts { partial: true, ..StreamFacts::default() }).await
}

/// The same, told otherwise what to show.
pub async fn headless_with(
    stage: &Stage,
    format: Format,
    out: &Kept,
    progress: ProgressOutput,
    facts: StreamFacts,
) -> Headless {
    let link = stage.engine().open(stage.request.clone()).await.unwrap();
    let facts =
        StreamFacts { api_key_source: "none".into(), version: "0".into(), sandbox: "none".into(), ..facts };
    let stream = StreamJson::new(link.session, facts).with_agents(vec!["worker".into()]);
    Headless { link, format, stream, out: LineWriterQueue::to(out.clone()).unwrap(), progress }
}

/// Answers a prompt on this stage.
pub async fn answered(stage: &Stage, format: Format) -> Answered {
    answered_with(stage, format, &mut mpsc::channel::<StopSignal>(1).1).await
}

/// The same, with signals.
pub async fn answered_with(
    stage: &Stage,
    format: Format,
    signals: &mut mpsc::Receiver<StopSignal>,
) -> Answered {
    let (out, progress) = (Kept::default(), Kept::default());
    let apart = ProgressOutput::Apart(LineWriterQueue::to(progress.clone()).unwrap());
    let headless = headless(stage, format, &out, apart).await;
    let work = Command::Prompt { blocks: vec![Block::text("go")] };
    let finish = headless.answer(work, signals).await.unwrap();
    Answered { out: out.text(), progress: progress.text(), finish }
}

/// The lines as JSON, each as the schema says.
pub fn values(out: &str) -> Vec<Value> {
    let value = |line: &str| {
        let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        check_value(&value).unwrap_or_else(|reason| panic!("{reason}\n{line}"));
        value
    };
    out.lines().map(value).collect()
}

/// The lines in short, with ids numbered in the order they appear. Pieces of replies are left out.
pub fn short(out: &str) -> String {
    let values = values(out);
    let mut text: String = values.iter().filter_map(shorten).map(|line| line + "\n").collect();
    let members = [("task_id", "#"), ("run_id", "run"), ("runId", "run"), ("tool_use_id", "call")];
    for (member, name) in members {
        for (index, id) in ids(&values, member).iter().enumerate() {
            text = text.replace(id, &format!("{name}{}", index + 1));
        }
    }
    text
}

/// The values of a member anywhere in the lines, each once.
fn ids(values: &[Value], member: &str) -> Vec<String> {
    fn gather(value: &Value, member: &str, ids: &mut Vec<String>) {
        if let Some(id) = value.get(member).and_then(Value::as_str)
            && !ids.iter().any(|known| known == id)
        {
            ids.push(id.to_owned());
        }
        match value {
            Value::Object(members) => members.values().for_each(|value| gather(value, member, ids)),
            Value::Array(items) => items.iter().for_each(|value| gather(value, member, ids)),
            _ => {}
        }
    }
    let mut ids = Vec::new();
    for value in values {
        gather(value, member, &mut ids);
    }
    ids
}

fn shorten(line: &Value) -> Option<String> {
    let kind = line["type"].as_str().unwrap();
    Some(match kind {
        "stream_event" => return None,
        "assistant" | "user" => format!("{kind}{} {}", signature(line), content(&line["message"]["content"])),
        "system" => match line["subtype"].as_str().unwrap() {
            "init" => format!("init agents={}", line["agents"]),
            subtype => format!("{subtype} {}", rest(line, &["type", "subtype"])),
        },
        "result" => {
            let all = &line["modelUsage"]["scripted"];
            format!(
                "result {} {} origin={} turns={} of {} input tokens {} are new, cost {} stats {}",
                line["subtype"].as_str().unwrap(),
                line["result"],
                line["origin"],
                line["num_turns"],
                all["inputTokens"],
                line["usage"]["input_tokens"],
                line["total_cost_usd"] == all["costUSD"],
                line["subagent_stats"]
            )
        }
        _ => format!("{kind} {}", rest(line, &["type"])),
    })
}

/// Whose line it is.
fn signature(line: &Value) -> String {
    if line["parent_tool_use_id"].is_null() {
        assert!(line.get("agent_id").is_none(), "{line}");
        return String::new();
    }
    let word = |member: &str| line[member].as_str().unwrap();
    format!(
        " [{} {} {:?} of {}]",
        word("agent_id"),
        word("subagent_type"),
        word("task_description"),
        word("parent_tool_use_id")
    )
}

fn content(blocks: &Value) -> String {
    let block = |block: &Value| match block["type"].as_str().unwrap() {
        "text" => format!("{}", block["text"]),
        "tool_use" => format!("calls {} {} {}", block["name"].as_str().unwrap(), block["id"], block["input"]),
        "tool_result" => {
            let text = block["content"].to_string();
            format!("→ {} {}", block["tool_use_id"], text.chars().take(60).collect::<String>())
        }
        other => other.to_owned(),
    };
    blocks.as_array().unwrap().iter().map(block).collect::<Vec<_>>().join(", ")
}

/// The other members of a line, without what differs from run to run.
fn rest(line: &Value, without: &[&str]) -> Value {
    let mut line = line.clone();
    let members = line.as_object_mut().unwrap();
    for name in without.iter().chain(&["uuid", "session_id"]) {
        members.shift_remove(*name);
    }
    if let Some(file) = members.get_mut("output_file") {
        *file = Value::from(file.as_str().unwrap().rsplit('/').next().unwrap());
    }
    if let Some(patch) = members.get_mut("patch").and_then(Value::as_object_mut)
        && patch.contains_key("end_time")
    {
        patch.insert("end_time".into(), Value::from(0));
    }
    line
}

//! Row M6: replies that are valid streams of unusual shape. A table, each row played through the engine on a
//! stage; every request it makes is held against the provider's rules.

use decurion_model::Dialect;
use decurion_protocol::{Event, OpenSession, Outcome, Start};
use futures_util::FutureExt as _;

use super::history::headers;
use super::simulated;
use crate::faults::{Options, Report};
use crate::stage::{Played, Stage, render};
use crate::validate::{check_anthropic, check_openai};

/// One shape: its name, the first reply, and what must be in the log of the play.
struct Shape {
    name: &'static str,
    first: &'static str,
    told: &'static [&'static str],
    /// How many calls may start.
    starts: usize,
}

const fn shape(
    name: &'static str,
    first: &'static str,
    told: &'static [&'static str],
    starts: usize,
) -> Shape {
    Shape { name, first, told, starts }
}

/// A kind of block that is not ours to know, and how it stands in requests.
const UNKNOWN: &str = "hologram";
const UNKNOWN_SENT: &str = r#"{"type":"hologram","data":"x"}"#;

/// Every play ends with this after an ordinary second reply.
const END: &str = "end    completed \"the end\"";

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    // Ids.
    shape("two calls with one id", "call Echo as x {\"text\": \"a\"}\n call Echo as x {\"text\": \"b\"}", &["→      \"a\"", "→      \"b\"", END], 2),
    shape("three calls with one id", "call Poke as x {\"text\": \"a\"}\n call Poke as x {\"text\": \"b\"}\n call Echo as x {\"text\": \"c\"}", &["\"a\"", "\"b\"", "\"c\"", END], 3),
    shape("an id that is a path", "call Echo as \"../../etc/passwd\" {\"text\": \"a\"}", &["→      \"a\"", END], 1),
    shape("an id with every kind of character", "call Echo as \"é \\u0000/\\\\'\" {\"text\": \"a\"}", &["→      \"a\"", END], 1),
    // Tools.
    shape("a tool nobody has", "call Frobnicate {\"text\": \"a\"}", &["✗", "Frobnicate", "Echo", END], 0),
    shape("a tool that panics", "call Echo {\"text\": \"panic\"}\n call Poke {\"text\": \"b\"}", &["✗", "→      \"b\"", END], 2),
    shape("a tool by another case", "call echo {\"text\": \"a\"}", &[END], 0),
    shape("one known among unknown", "call Nope {}\n call Echo {\"text\": \"a\"}\n call Nope {}", &["✗", "→      \"a\"", END], 1),
    // Inputs.
    shape("no input", "call Echo {}", &["✗", "text", END], 0),
    shape("another type", "call Echo {\"text\": 5}", &["✗", "text", END], 0),
    shape("an input cut off", "call Poke raw \"{\\\"text\\\": \\\"a\"", &["✗", END], 0),
    shape("an input cut off at the output limit", "say \"so\"\n call Poke raw \"{\\\"text\\\": \\\"a\"\n stop max_tokens", &["✗", END], 0),
    shape("a whole input at the output limit", "call Echo {\"text\": \"a\"}\n stop max_tokens", &[END], 1),
    shape("an input that is a list", "call Echo raw \"[1]\"", &["✗", END], 0),
    shape("an input that is nothing", "call Echo raw \"\"", &["✗", END], 0),
    shape("an input that is null", "call Echo raw \"null\"", &["✗", END], 0),
    shape("an input with something behind it", "call Echo raw \"{\\\"text\\\": \\\"a\\\"} x\"", &["✗", END], 0),
    // Blocks.
    shape("a block nobody knows", "say \"so\"\n block {\"type\": \"hologram\", \"data\": \"x\"}\n call Echo {\"text\": \"a\"}", &["hologram", "→      \"a\"", END], 1),
    shape("redacted thinking", "block {\"type\": \"redacted_thinking\", \"data\": \"x\"}\n call Echo {\"text\": \"a\"}", &["→      \"a\"", END], 1),
    shape("thinking and a call", "think \"hm\"\n call Echo {\"text\": \"a\"}", &["thinks \"hm\"", "→      \"a\"", END], 1),
    shape("blank text beside a call", "say \" \\n\"\n call Echo {\"text\": \"a\"}", &["→      \"a\"", END], 1),
    shape("text after a call", "call Echo {\"text\": \"a\"}\n say \"and so\"", &["→      \"a\"", END], 1),
    shape("a call that fails", "call Echo {\"text\": \"fail\"}", &["✗      \"failed as asked\"", END], 1),
    // Why it stopped.
    shape("a stop nobody knows", "say \"the end\"\n stop gone_fishing", &[END], 0),
    shape("a pause", "say \"first, \"\n stop pause_turn", &["end    completed \"first, the end\""], 0),
    shape("the output limit in a text", "say \"half of\"\n stop max_tokens", &["Continue", "the end"], 0),
    shape("a refusal", "say \"no\"\n stop refusal", &["end "], 0),
    shape("a stop sequence", "say \"the end\"\n stop stop_sequence", &[END], 0),
    shape("a call that says it is no call", "call Echo {\"text\": \"a\"}\n stop end_turn", &["→      \"a\"", END], 1),
    shape("no call that says it is one", "say \"the end\"\n stop tool_use", &["the end"], 0),
    // Nothing.
    shape("nothing at all", "stop end_turn", &["end "], 0),
    shape("nothing but thinking", "think \"hm\"", &["end "], 0),
    shape("nothing but blank text", "say \"  \"", &["end "], 0),
    shape("another model", "model somebody-else\n say \"the end\"", &[END], 0),
];

pub(super) fn row(_: &Options) -> Report {
    // One of the shapes is a panic; its message would only hide what is found.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut report = Report::default();
    let mut played = 0;
    for shape in SHAPES {
        let dialects: &[Dialect] = if shape.first.contains("block {") {
            &[Dialect::Anthropic]
        } else {
            &[Dialect::Anthropic, Dialect::OpenAiChat]
        };
        let mut result = Ok(());
        for dialect in dialects {
            played += 1;
            let tried = play(shape, *dialect).map_err(|problem| format!("{dialect:?}: {problem}"));
            result = result.and(tried);
        }
        report.add(shape.name, result);
    }
    std::panic::set_hook(hook);
    let held = report.runs - report.failures.len() as u64;
    let rows = SHAPES.len();
    report.figure(format!(
        "{held}/{rows} shapes as they should be with valid requests, {played} plays in two dialects"
    ))
}

fn play(shape: &Shape, dialect: Dialect) -> Result<(), String> {
    let script = format!("when turn=1\n {}\nwhen\n say \"the end\"\n", shape.first);
    let mut stage = Stage::new(&script);
    stage.dialect = dialect;
    let playing = std::panic::AssertUnwindSafe(async {
        let played = stage.play("go").await;
        // The session lives on: another prompt is answered.
        let start = Start::Resume { id: played.session, at: None };
        let request = OpenSession { start, ..stage.request.clone() };
        let next = stage.play_all(request, &["and then"]).await.map_err(|error| error.to_string());
        (played, next)
    });
    let (played, next) = simulated(playing.catch_unwind())?.map_err(|_| "it panics".to_owned())?;
    match next?.outcome {
        Outcome::Completed { .. } => {}
        other => return Err(format!("the next prompt ends with {other:?}")),
    }
    check_played(shape, &played)?;
    if shape.first.contains(UNKNOWN) {
        // Who sends a block that we do not know takes it back as it was.
        let kept =
            stage.requests().iter().skip(1).all(|body| String::from_utf8_lossy(body).contains(UNKNOWN_SENT));
        return kept.then_some(()).ok_or("the block is not sent back".into());
    }
    stage.requests().iter().try_for_each(|body| check_request(dialect, body))
}

fn check_played(shape: &Shape, played: &Played) -> Result<(), String> {
    let log = render(&played.events);
    let starts = played.events.iter().filter(|it| matches!(it.event, Event::CallStarted { .. })).count();
    let missing: Vec<_> = shape.told.iter().filter(|part| !log.contains(**part)).collect();
    if starts != shape.starts || !missing.is_empty() {
        return Err(format!("{starts} calls started, {missing:?} not in:\n{log}"));
    }
    Ok(())
}

fn check_request(dialect: Dialect, body: &[u8]) -> Result<(), String> {
    let body = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
    let checked = match dialect {
        Dialect::Anthropic => check_anthropic(&headers(), &body),
        Dialect::OpenAiChat => check_openai(&headers(), &body),
    };
    checked.map_err(|error| format!("{}: {}", error.message, body["messages"]))
}

//! Replies as they come off the wire: whole, in every cut, and damaged in every way providers know.

use decurion_model::{Dialect, ModelError, ModelEvent};
use decurion_protocol::Block;
use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::stage::{decode, log};

const ANTHROPIC: Dialect = Dialect::Anthropic;
const CHAT: Dialect = Dialect::OpenAiChat;

/// An Anthropic stream of these events.
fn anthropic(events: &[Value]) -> String {
    let frame = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    events.iter().map(frame).collect()
}

fn start() -> Value {
    json!({"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m-1",
        "content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":null,
        "cache_creation_input_tokens":3,"output_tokens":1,"service_tier":"standard"}}})
}

fn text(index: u32, text: &str) -> Vec<Value> {
    vec![
        json!({"type":"content_block_start","index":index,"content_block":{"type":"text","text":""}}),
        json!({"type":"content_block_delta","index":index,"delta":{"type":"text_delta","text":text}}),
        json!({"type":"content_block_stop","index":index}),
    ]
}

fn call(index: u32, id: &str, pieces: &[&str]) -> Vec<Value> {
    let mut events = vec![json!({"type":"content_block_start","index":index,
        "content_block":{"type":"tool_use","id":id,"name":"Bash","input":{}}})];
    events.extend(pieces.iter().map(|piece| {
        json!({"type":"content_block_delta","index":index,
            "delta":{"type":"input_json_delta","partial_json":piece}})
    }));
    events.push(json!({"type":"content_block_stop","index":index}));
    events
}

fn end(reason: &str) -> Vec<Value> {
    vec![
        json!({"type":"message_delta","delta":{"stop_reason":reason,"stop_sequence":null},
            "usage":{"output_tokens":42}}),
        json!({"type":"message_stop"}),
    ]
}

fn message(middle: &[Vec<Value>], reason: &str) -> String {
    let mut events = vec![start(), json!({"type":"ping"})];
    events.extend(middle.concat());
    events.extend(end(reason));
    anthropic(&events)
}

/// Streams with everything in them, for cutting.
fn corpora() -> Vec<(Dialect, String)> {
    let thinking = vec![
        json!({"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"größer 🦀"}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB=="}}),
        json!({"type":"content_block_stop","index":0}),
    ];
    let redacted = vec![
        json!({"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"x🦀"}}),
        json!({"type":"content_block_stop","index":1}),
    ];
    let rich = message(
        &[
            thinking,
            redacted,
            text(2, "héllo\n\"wörld\" 🦀"),
            call(3, "toolu_1", &["{\"comm", "and\":\"ls \\u00e9\"}"]),
        ],
        "tool_use",
    );
    let windows = rich.replace('\n', "\r\n");
    let chat = concat!(
        ": comment\n\n",
        "data: {\"id\":\"c1\",\"model\":\"qwen\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hmm 🦀\"}}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"größer\"}}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"Bash\",\"arguments\":\"\"}}]}}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"b\",\"function\":{\"name\":\"Read\",\"arguments\":\"{\\\"p\\\":\"}}]}}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"command\\\":\\\"ls\\\"}\"}},{\"index\":1,\"function\":{\"arguments\":\"1}\"}}]}}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
        "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n"
    );
    vec![
        (ANTHROPIC, rich),
        (ANTHROPIC, windows),
        (CHAT, chat.to_owned()),
        (CHAT, chat.replace("\n\n", "\r\r")),
    ]
}

#[test]
fn a_cut_at_every_byte_changes_nothing() {
    for (dialect, stream) in corpora() {
        let bytes = stream.as_bytes();
        let whole = decode(dialect, [bytes]);
        assert_eq!(whole.1, None);
        assert!(matches!(whole.0.last(), Some(ModelEvent::Completed(_))));
        for at in 0..=bytes.len() {
            assert_eq!(decode(dialect, [&bytes[..at], &bytes[at..]]), whole, "{dialect:?} cut at {at}");
        }
        assert_eq!(decode(dialect, bytes.chunks(1)), whole, "{dialect:?} byte by byte");
    }
}

#[test]
fn a_stream_that_breaks_off_anywhere_is_never_taken_for_a_reply() {
    for (dialect, stream) in corpora() {
        let bytes = stream.as_bytes();
        let completes = |at: usize| decode(dialect, [&bytes[..at]]).1.is_none();
        let first = (0..=bytes.len()).find(|at| completes(*at)).unwrap();
        // Anthropic's ends with message_stop; chat may be closed once finish_reason was said.
        let last_words = if dialect == ANTHROPIC { "message_stop" } else { "finish_reason" };
        assert!(first > stream.rfind(last_words).unwrap(), "{dialect:?} completes at {first}");
        for at in 0..first {
            let (_, error) = decode(dialect, [&bytes[..at]]);
            assert!(matches!(error, Some(ModelError::Reset { .. })), "{dialect:?} {at}: {error:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_chunking_gives_the_same_events(which in 0_usize..4, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let (dialect, stream) = &corpora()[which];
        let bytes = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(decode(*dialect, chunks), decode(*dialect, [bytes]));
    }

    #[test]
    fn damage_is_an_error_or_a_reply_and_never_a_panic(
        which in 0_usize..4,
        at in any::<prop::sample::Index>(),
        length in 0_usize..40,
        junk in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let (dialect, stream) = &corpora()[which];
        let mut bytes = stream.clone().into_bytes();
        let at = at.index(bytes.len());
        let end = (at + length).min(bytes.len());
        bytes.splice(at..end, junk);
        let (events, error) = decode(*dialect, [bytes.as_slice()]);
        let completed = events.iter().filter(|event| matches!(event, ModelEvent::Completed(_))).count();
        prop_assert_eq!(completed, usize::from(error.is_none()));
    }

    #[test]
    fn lines_in_any_order_never_panic(which in 0_usize..4, order in prop::collection::vec(any::<prop::sample::Index>(), 0..30)) {
        let (dialect, stream) = &corpora()[which];
        let frames: Vec<&str> = stream.split_inclusive("\n\n").collect();
        let mixed: String = order.iter().map(|at| frames[at.index(frames.len())]).collect();
        let (events, error) = decode(*dialect, [mixed.as_bytes()]);
        let completed = events.iter().filter(|event| matches!(event, ModelEvent::Completed(_))).count();
        prop_assert!(completed <= 1);
        prop_assert!(completed == 1 || error.is_some());
    }
}

// ---- one row per oddity ----

/// Blocks and stop reason, or the error.
fn outcome(dialect: Dialect, stream: &str) -> String {
    let (events, error) = decode(dialect, [stream.as_bytes()]);
    if let Some(error) = error {
        return error.to_string();
    }
    let mut lines: Vec<String> = events
        .iter()
        .filter_map(|event| match event {
            ModelEvent::Block { index, block } => {
                Some(format!("{index} {}", serde_json::to_string(block).unwrap()))
            }
            _ => None,
        })
        .collect();
    if let Some(ModelEvent::Completed(reply)) = events.last() {
        lines.push(format!("stop {}", reply.stop_reason.as_deref().unwrap_or("none")));
    }
    lines.join("\n")
}

fn row(dialect: Dialect, stream: &str, expected: &Expect) {
    expected.assert_eq(&outcome(dialect, stream));
}

#[test]
fn oddities_of_anthropic_streams() {
    let a = ANTHROPIC;
    // 1 duplicate ids are renamed
    row(
        a,
        &message(&[call(0, "t", &["{}"]), call(1, "t", &["{}"])], "tool_use"),
        &expect![[r#"
        0 {"type":"tool_use","id":"t","name":"Bash","input":{}}
        1 {"type":"tool_use","id":"t_2","name":"Bash","input":{}}
        stop tool_use"#]],
    );
    // 2 an unknown block is kept whole
    let unknown = |kind: &str| {
        vec![
            json!({"type":"content_block_start","index":0,"content_block":{"type":kind,"z":1,"a":{"b":2}}}),
            json!({"type":"content_block_delta","index":0,"delta":{"type":"hologram_delta","hologram":1}}),
            json!({"type":"content_block_stop","index":0}),
        ]
    };
    row(
        a,
        &message(&[unknown("hologram")], "end_turn"),
        &expect![[r#"
        0 {"type":"hologram","z":1,"a":{"b":2}}
        stop end_turn"#]],
    );
    // 3 an unknown stop reason is passed on
    row(
        a,
        &message(&[text(0, "x")], "bored"),
        &expect![[r#"
        0 {"type":"text","text":"x"}
        stop bored"#]],
    );
    // 4 an empty message has no blocks
    row(a, &message(&[], "end_turn"), &expect!["stop end_turn"]);
    // 5 an empty text is no block
    row(a, &message(&[text(0, "")], "end_turn"), &expect!["stop end_turn"]);
    // 6 a call cut by max_tokens is kept as text, not as input
    row(
        a,
        &message(&[call(0, "t", &["{\"command\":\"rm -rf /tm"])], "max_tokens"),
        &expect![[r#"
        0 {"type":"tool_use","id":"t","name":"Bash","input":{"__unparsedToolInput":{"raw":"{\"command\":\"rm -rf /tm","len":22}}}
        stop max_tokens"#]],
    );
    // 7 input that is JSON but no object
    row(
        a,
        &message(&[call(0, "t", &["[1]"])], "tool_use"),
        &expect![[r#"
        0 {"type":"tool_use","id":"t","name":"Bash","input":{"__unparsedToolInput":{"raw":"[1]","len":3}}}
        stop tool_use"#]],
    );
    // 8 a call without input
    row(
        a,
        &message(&[call(0, "t", &[])], "tool_use"),
        &expect![[r#"
        0 {"type":"tool_use","id":"t","name":"Bash","input":{}}
        stop tool_use"#]],
    );
    // 9 a call whose input came at once
    let at_once = vec![
        json!({"type":"content_block_start","index":0,
            "content_block":{"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}}),
        json!({"type":"content_block_stop","index":0}),
    ];
    row(
        a,
        &message(&[at_once], "tool_use"),
        &expect![[r#"
        0 {"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}
        stop tool_use"#]],
    );
    // 10 a call without an id
    row(
        a,
        &message(&[call(0, "", &["{}"])], "tool_use"),
        &expect![[r#"
        0 {"type":"tool_use","id":"call_0000000000000007_0","name":"Bash","input":{}}
        stop tool_use"#]],
    );
    // 11 a server tool's input is put together too
    let server = vec![
        json!({"type":"content_block_start","index":0,
            "content_block":{"type":"server_tool_use","id":"s","name":"web_search","input":{}}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"q\":"}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"1}"}}),
        json!({"type":"content_block_stop","index":0}),
    ];
    row(
        a,
        &message(&[server], "pause_turn"),
        &expect![[r#"
        0 {"type":"server_tool_use","id":"s","name":"web_search","input":{"q":1}}
        stop pause_turn"#]],
    );
    // 12 blocks that are never ended
    let mut open = text(0, "x");
    open.pop();
    row(
        a,
        &message(&[open], "end_turn"),
        &expect![[r#"
        0 {"type":"text","text":"x"}
        stop end_turn"#]],
    );
    // 13 events nobody knows, and after the end
    let late = message(&[text(0, "x")], "end_turn")
        + "event: future\ndata: {\"type\":\"future\"}\n\ndata: garbage\n\n";
    row(
        a,
        &late,
        &expect![[r#"
        0 {"type":"text","text":"x"}
        stop end_turn"#]],
    );
    // 14 thinking keeps members we do not know
    let thinking = vec![
        json!({"type":"content_block_start","index":0,
            "content_block":{"type":"thinking","thinking":"","signature":"","later":{"z":1}}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"a"}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}),
        json!({"type":"content_block_stop","index":0}),
    ];
    row(
        a,
        &message(&[thinking], "end_turn"),
        &expect![[r#"
        0 {"type":"thinking","thinking":"a","signature":"s","later":{"z":1}}
        stop end_turn"#]],
    );
    // 15 citations do not disturb the text
    let mut cited = text(0, "x");
    cited.insert(
        1,
        json!({"type":"content_block_delta","index":0,
        "delta":{"type":"citations_delta","citation":{"type":"page"}}}),
    );
    row(
        a,
        &message(&[cited], "end_turn"),
        &expect![[r#"
        0 {"type":"text","text":"x"}
        stop end_turn"#]],
    );
}

#[test]
fn broken_anthropic_streams() {
    let a = ANTHROPIC;
    let wrong = |events: &[Value], expected: &Expect| row(a, &anthropic(events), expected);
    let delta = json!({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}});
    wrong(
        std::slice::from_ref(&delta),
        &expect!["malformed response from the provider: an event of a block that is not open, index Some(0)"],
    );
    wrong(
        &[start(), delta],
        &expect!["malformed response from the provider: an event of a block that is not open, index Some(0)"],
    );
    wrong(&[start(), start()], &expect!["malformed response from the provider: the message starts twice"]);
    wrong(
        &text(0, "x"),
        &expect!["malformed response from the provider: a block starts out of order, index 0"],
    );
    wrong(
        &[vec![start()], text(1, "x"), text(1, "y")].concat(),
        &expect!["malformed response from the provider: a block starts out of order, index 1"],
    );
    wrong(
        &end("end_turn"),
        &expect!["malformed response from the provider: the message changes before it starts"],
    );
    wrong(
        &[json!({"type":"message_stop"})],
        &expect!["malformed response from the provider: the message stops before it starts"],
    );
    let mut mixed = text(0, "x");
    mixed[1]["delta"] = json!({"type":"input_json_delta","partial_json":"{"});
    wrong(
        &[vec![start()], mixed].concat(),
        &expect!["malformed response from the provider: a input_json_delta in a block of another kind"],
    );
    wrong(
        &[start(), json!({"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}})],
        &expect!["the provider asked us to wait (status 529): Overloaded"],
    );
    wrong(
        &[start(), json!({"type":"error","error":{"type":"api_error","message":"Oh"}})],
        &expect!["the provider failed (status 500): Oh"],
    );
    wrong(
        &[
            json!({"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}),
        ],
        &expect!["the conversation is too long for the model: prompt is too long: 9 > 8"],
    );
    row(
        a,
        "data: {\"type\":\n\n",
        &expect![
            "malformed response from the provider: an event that cannot be read: EOF while parsing a value at line 1 column 8"
        ],
    );
    row(
        a,
        "",
        &expect!["the connection ended before the reply was complete: the stream ended without message_stop"],
    );
    let (_, error) = decode(a, [b"data: {\"type\":\"message_\xff\"}\n\n".as_slice()]);
    assert!(matches!(error, Some(ModelError::Malformed { .. })), "{error:?}");
}

#[test]
fn a_flood_is_cut_off() {
    let mut decoder = decurion_model::reply::StreamDecoder::new(ANTHROPIC, 0);
    let mut out = std::collections::VecDeque::new();
    let opening = anthropic(&[start(), text(0, "x")[0].clone()]);
    decoder.feed(opening.as_bytes(), &mut out).unwrap();
    let piece = anthropic(&[text(0, &"x".repeat(60_000))[1].clone()]);
    let mut fed = 0;
    let error = loop {
        out.clear();
        fed += piece.len();
        assert!(fed < 20 * 1024 * 1024, "no end to it");
        if let Err(error) = decoder.feed(piece.as_bytes(), &mut out) {
            break error;
        }
    };
    expect!["malformed response from the provider: the reply is longer than 8388608 bytes"]
        .assert_eq(&error.to_string());
    let mut decoder = decurion_model::reply::StreamDecoder::new(CHAT, 0);
    let pings = ": ping\n\n".repeat(100_000);
    let error = (0..200).find_map(|_| decoder.feed(pings.as_bytes(), &mut out).err()).unwrap();
    expect!["malformed response from the provider: the stream is longer than 67108864 bytes"]
        .assert_eq(&error.to_string());
}

/// A chat stream of these deltas, then the rest.
fn chat(deltas: &[Value], rest: &str) -> String {
    let chunk = |delta: &Value| {
        format!("data: {}\n\n", json!({"id":"c","model":"q","choices":[{"index":0,"delta":delta}]}))
    };
    deltas.iter().map(chunk).collect::<String>() + rest
}

fn finish(reason: &str) -> String {
    format!(
        "data: {}\n\ndata: [DONE]\n\n",
        json!({"choices":[{"index":0,"delta":{},"finish_reason":reason}]})
    )
}

fn piece(index: Option<u32>, id: Option<&str>, name: Option<&str>, arguments: &Value) -> Value {
    json!({"tool_calls":[{"index":index,"id":id,"function":{"name":name,"arguments":arguments}}]})
}

#[test]
fn oddities_of_chat_streams() {
    let c = CHAT;
    let hello = json!({"content":"hi"});
    let text_row = |stream: &str, stop: &str| {
        assert_eq!(outcome(c, stream), format!("0 {{\"type\":\"text\",\"text\":\"hi\"}}\nstop {stop}"));
    };
    // 16–22 reasons to stop
    for (reason, ours) in [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "end_turn"),
        ("", "end_turn"),
        ("weird", "weird"),
    ] {
        text_row(&chat(std::slice::from_ref(&hello), &finish(reason)), ours);
    }
    // 23 closed without [DONE]
    let closed = finish("stop").replace("data: [DONE]\n\n", "");
    text_row(&chat(std::slice::from_ref(&hello), &closed), "end_turn");
    // 24 [DONE] without a reason
    text_row(&chat(std::slice::from_ref(&hello), "data: [DONE]\n\n"), "end_turn");
    // 25 neither
    row(
        c,
        &chat(std::slice::from_ref(&hello), ""),
        &expect![
            "the connection ended before the reply was complete: the stream ended without a finish_reason"
        ],
    );
    // 26 content as parts, a refusal, a message in place of a delta
    text_row(&chat(&[json!({"content":[{"type":"text","text":"hi"}]})], &finish("stop")), "end_turn");
    text_row(&chat(&[json!({"refusal":"hi"})], &finish("stop")), "refusal");
    text_row(&chat(&[hello], &finish("stop")).replace("\"delta\"", "\"message\""), "end_turn");
    // 27 no ids
    let nameless =
        [piece(Some(0), None, Some("A"), &json!("{}")), piece(Some(1), None, Some("B"), &json!("{}"))];
    row(
        c,
        &chat(&nameless, &finish("tool_calls")),
        &expect![[r#"
        0 {"type":"tool_use","id":"call_0000000000000007_0","name":"A","input":{}}
        1 {"type":"tool_use","id":"call_0000000000000007_1","name":"B","input":{}}
        stop tool_use"#]],
    );
    // 28 no numbers, pieces after each other
    let unnumbered = [
        piece(None, Some("x"), Some("A"), &json!("{\"a\"")),
        piece(None, None, None, &json!(":1}")),
        piece(None, Some("y"), Some("B"), &json!("{}")),
        piece(None, Some("x"), None, &json!(" ")),
    ];
    let two = expect![[r#"
        0 {"type":"tool_use","id":"x","name":"A","input":{"a":1}}
        1 {"type":"tool_use","id":"y","name":"B","input":{}}
        stop tool_use"#]];
    row(c, &chat(&unnumbered, &finish("stop")), &two);
    // 29 every call has the number 0
    let zeros = [
        piece(Some(0), Some("x"), Some("A"), &json!("{\"a\":1}")),
        piece(Some(0), Some("y"), Some("B"), &json!({})),
    ];
    row(c, &chat(&zeros, &finish("stop")), &two);
    // 30 arguments as an object, a name repeated, an old-style call
    let object = [
        piece(Some(0), Some("x"), Some("A"), &json!({"a": 1})),
        piece(Some(0), Some("x"), Some("A"), &json!(null)),
    ];
    row(
        c,
        &chat(&object, &finish("function_call")),
        &expect![[r#"
        0 {"type":"tool_use","id":"x","name":"A","input":{"a":1}}
        stop tool_use"#]],
    );
    let old = [
        json!({"function_call":{"name":"A","arguments":"{\"a\""}}),
        json!({"function_call":{"arguments":":1}"}}),
    ];
    row(
        c,
        &chat(&old, &finish("function_call")),
        &expect![[r#"
        0 {"type":"tool_use","id":"call_0000000000000007_0","name":"A","input":{"a":1}}
        stop tool_use"#]],
    );
    // 31 reasoning under its other name, twice around text
    let reasoning =
        [json!({"reasoning":"a"}), json!({"content":"b"}), json!({"reasoning":"c","content":null})];
    row(
        c,
        &chat(&reasoning, &finish("stop")),
        &expect![[r#"
        0 {"type":"thinking","thinking":"a"}
        1 {"type":"text","text":"b"}
        2 {"type":"thinking","thinking":"c"}
        stop end_turn"#]],
    );
    // 32 errors in mid stream
    row(
        c,
        &chat(&[json!({"content":"x"})], "data: {\"error\":{\"message\":\"boom\",\"code\":502}}\n\n"),
        &expect!["the provider failed (status 502): boom"],
    );
    row(c, "data: {\"error\":\"flat\"}\n\n", &expect!["the provider failed (status 500): flat"]);
    row(
        c,
        "data: {\"error\":{\"message\":\"slow\",\"type\":\"rate_limit_error\"}}\n\n",
        &expect!["the provider asked us to wait (status 429): slow"],
    );
    // 33 nonsense
    row(
        c,
        "data: [DONE]\n\n",
        &expect!["malformed response from the provider: the stream is done before it starts"],
    );
    row(
        c,
        &chat(&[piece(Some(0), Some("x"), None, &json!("{}"))], ""),
        &expect!["malformed response from the provider: a call without a tool's name"],
    );
    row(
        c,
        "data: <html>\n\n",
        &expect![
            "malformed response from the provider: a chunk that cannot be read: expected value at line 1 column 1"
        ],
    );
}

#[test]
fn usage_is_merged_by_class() {
    let (events, _) = decode(ANTHROPIC, [message(&[text(0, "x")], "end_turn").as_bytes()]);
    let Some(ModelEvent::Completed(reply)) = events.last() else { panic!() };
    expect![[r#"{"input_tokens":25,"output_tokens":42,"cache_creation_input_tokens":3,"cache_read_input_tokens":0,"service_tier":"standard"}"#]]
        .assert_eq(&serde_json::to_string(&reply.usage).unwrap());
    let (events, _) = decode(CHAT, [corpora()[2].1.as_bytes()]);
    let Some(ModelEvent::Completed(reply)) = events.last() else { panic!() };
    assert_eq!((reply.usage.input_tokens, reply.usage.cache_read_input_tokens), (8, 4));
}

#[test]
fn what_came_goes_back_unchanged() {
    let (events, _) = decode(ANTHROPIC, [corpora()[0].1.as_bytes()]);
    let blocks: Vec<Block> = events
        .iter()
        .filter_map(|event| match event {
            ModelEvent::Block { block, .. } => Some(block.clone()),
            _ => None,
        })
        .collect();
    let message = ANTHROPIC.message(&decurion_protocol::Message::assistant(blocks));
    expect![[r#"{"role":"assistant","content":[{"type":"thinking","thinking":"größer 🦀","signature":"EqQB=="},{"type":"redacted_thinking","data":"x🦀"},{"type":"text","text":"héllo\n\"wörld\" 🦀"},{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"ls é"}}]}"#]]
        .assert_eq(std::str::from_utf8(&message.bytes).unwrap());
    assert!(log(&events).contains("0 signature EqQB=="));
}

/// What providers say where a conversation is too long.
const TOO_LONG: [(u16, &str, &str); 20] = [
    (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again",
    ),
    (413, "request_too_large", "Request exceeds the maximum size"),
    (413, "", "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    (400, "context_length_exceeded", "Your input exceeds the context window of this model."),
    (
        400,
        "",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    ),
    (400, "string_above_max_length", "Invalid 'messages[1].content': string too long."),
    (400, "", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    (400, "ValidationException", "Input is too long for requested model."),
    (400, "", "Please reduce the length of the messages or completion."),
    (400, "", "The decoder prompt (length 40000) is longer than the maximum model length of 32768."),
    (400, "exceed_context_size_error", "the request exceeds the available context size, try increasing it"),
    (500, "", "the request exceeds the available context size. try increasing the context size"),
    (400, "", "prompt too long; exceeded max context length by 712 tokens"),
    (400, "", "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (400, "", "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
    (
        422,
        "validation",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000",
    ),
    (400, "model_max_prompt_tokens_exceeded", "prompt token count of 140000 exceeds the limit of 128000"),
    (400, "", "Your request exceeded model token limit: 262144 (requested: 291351)"),
    (400, "1261", "Prompt exceeds max length"),
];

/// What they say where it is not, though the words are close.
const NOT_TOO_LONG: [(u16, &str, &str); 8] = [
    (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
    (400, "invalid_request_error", "The long context window beta is not available for this subscription."),
    (
        400,
        "invalid_request_error",
        "max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens",
    ),
    (
        400,
        "invalid_value",
        "max_tokens is too large: 64000. This model supports at most 16384 completion tokens.",
    ),
    (
        400,
        "BadRequestError",
        "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 8192 tokens and your request has 200 input tokens (32000 > 8192 - 200).",
    ),
    (
        400,
        "invalid_function_parameters",
        "Invalid schema for function 'f': string is too long in 'description'",
    ),
    (400, "unsupported_parameter", "Unsupported parameter: 'max_tokens' is not supported with this model."),
    (400, "content_filter", "The response was filtered due to the prompt triggering the content policy."),
];

#[test]
fn only_what_is_about_the_length_of_the_conversation_is_too_long() {
    let classify = |(status, kind, message): (u16, &str, &str)| {
        let body = match kind {
            "" if message.starts_with('<') => message.to_owned(),
            "" => json!({"error": {"message": message}}).to_string(),
            kind => json!({"type": "error", "error": {"type": kind, "message": message}}).to_string(),
        };
        decurion_model::reply::classify(status, &reqwest::header::HeaderMap::new(), body.as_bytes())
    };
    for row in TOO_LONG {
        let error = classify(row);
        assert!(matches!(error, ModelError::TooLong { .. }), "{row:?}: {error:?}");
    }
    for row in NOT_TOO_LONG {
        let error = classify(row);
        assert!(matches!(error, ModelError::Rejected { .. }), "{row:?}: {error:?}");
    }
}

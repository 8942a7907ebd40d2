//! A host that leads a session over its input and output: prompts, questions, control requests, mistakes.

use std::sync::{Arc, Mutex};

use decurion_protocol::{Elicitation, ElicitationAction, Elicited, Outcome, Rule, Wanted};
use decurion_serve::{
    Finish, Format, HostAgent, HostOutput, HostReader, LineWriterQueue, ProgressOutput, StreamFacts,
};
use decurion_testkit::asking::Asking;
use decurion_testkit::stage::Stage;
use expect_test::expect;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::mpsc;

use crate::leading::wanted;
use crate::playing::{Kept, headless_with, short, stage, values};

/// A host at its end of the conversation.
pub struct Talking {
    input: Option<DuplexStream>,
    pub out: Kept,
}

impl Talking {
    pub async fn say(&mut self, line: &Value) {
        self.write(format!("{line}\n").as_bytes()).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    pub async fn ask(&mut self, id: &str, request: Value) {
        self.say(&json!({"type": "control_request", "request_id": id, "request": request})).await;
    }

    pub async fn prompt(&mut self, text: &str) {
        self.say(&json!({"type": "user", "message": {"role": "user", "content": text}})).await;
    }

    pub async fn answer(&mut self, id: &Value, response: Value) {
        let response = json!({"subtype": "success", "request_id": id, "response": response});
        self.say(&json!({"type": "control_response", "response": response})).await;
    }

    /// Waits for a line that fits.
    pub async fn wait(&self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let text = self.out.text();
            let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            if let Some(line) = values(whole).into_iter().find(|line| fits(line)) {
                return line;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn question(&self) -> Value {
        self.wait(|line| line["type"] == "control_request").await
    }

    pub async fn result(&self, index: u64) -> Value {
        self.wait(|line| line["type"] == "result" && line["result_index"] == index).await
    }

    fn hang_up(&mut self) {
        self.input = None;
    }
}

/// What is left of a conversation.
pub struct Over {
    pub out: String,
    pub problems: String,
    pub finish: Finish,
}

/// Lets a host talk to the session of this stage until it hangs up.
pub async fn converse(stage: Stage, host: impl AsyncFnOnce(&mut Talking)) -> Over {
    converse_with(stage, StreamFacts { partial: true, ..StreamFacts::default() }, host).await
}

/// The same with one that is shown this.
pub async fn converse_with(
    mut stage: Stage,
    facts: StreamFacts,
    host: impl AsyncFnOnce(&mut Talking),
) -> Over {
    stage.request.answers = true;
    let (out, problems) = (Kept::default(), Kept::default());
    let mut headless = headless_with(&stage, Format::StreamJson, &out, ProgressOutput::Off, facts).await;
    headless.stream = headless.stream.with_replay(stage.request.entrypoint == ECHOED);
    let (input, ours) = tokio::io::duplex(1 << 16);
    let model = Some("scripted".to_owned());
    let agents = vec![HostAgent { name: "worker".into(), description: "works".into(), model }];
    let problems_out = LineWriterQueue::to(problems.clone()).unwrap();
    let known = Arc::new(decurion_serve::NothingKnown);
    let lines = HostOutput { agents, commands: Vec::new(), known, problems: problems_out, greeted: false };
    let mut talking = Talking { input: Some(input), out: out.clone() };
    let (_keep, mut signals) = mpsc::channel(1);
    let conversing = Box::pin(headless.converse(lines, HostReader::new(BufReader::new(ours)), &mut signals));
    let (finish, ()) = tokio::join!(conversing, async {
        host(&mut talking).await;
        talking.hang_up();
    });
    let finish = finish.unwrap();
    Over { out: out.text(), problems: problems.text(), finish }
}

/// The entrypoint of a host that wants its prompts given back.
const ECHOED: &str = "echoed";

const TWO_PROMPTS: &str = "when turn=1\n  say \"one\"\nwhen turn=2\n  say \"two\"\n";

#[tokio::test]
async fn each_prompt_has_its_result_at_once() {
    let over = converse(stage(TWO_PROMPTS), async |host: &mut Talking| {
        host.ask("i1", json!({"subtype": "initialize", "hooks": null})).await;
        host.prompt("first").await;
        host.result(0).await;
        let content = json!([{"type": "text", "text": "second"}]);
        host.say(&json!({"type": "user", "message": {"role": "user", "content": content}})).await;
        host.result(1).await;
    })
    .await;
    assert_eq!((over.problems.as_str(), over.finish.outcome.exit_code()), ("", 0));
    let kinds: Vec<String> =
        short(&over.out).lines().map(|line| line.split(" origin").next().unwrap().to_owned()).collect();
    expect![[r#"
        control_response {"response":{"subtype":"success","request_id":"i1","response":{"commands":[],"agents":[{"name":"worker","description":"works","model":"scripted"}],"output_style":"default","available_output_styles":["default"],"models":[],"account":{},"hook_on_failure_supported":true,"hooks_applied":true,"plugins_applied":true}}}
        init agents=["worker"]
        status {"status":"requesting"}
        assistant "one"
        result success "one"
        init agents=["worker"]
        status {"status":"requesting"}
        assistant "two"
        result success "two"
    "#]].assert_eq(&(kinds.join("\n") + "\n"));
}

/// What is said without asking for work begins the next prompt, and is no prompt by itself.
#[tokio::test]
async fn what_is_said_beforehand_is_read_with_the_next_prompt() {
    let script = "when text=\"and first this\"\n  say \"read both\"\nwhen\n  say \"missed\"\n";
    let beforehand = |text: &str, query: Value| json!({"type": "user", "message": {"role": "user", "content": text}, "shouldQuery": query});
    let stage = stage(script);
    let over = converse(stage, async |host: &mut Talking| {
        host.say(&beforehand("and first this", json!(false))).await;
        host.say(&beforehand("maybe", json!("no"))).await;
        host.prompt("then this").await;
        host.result(1).await;
        host.say(&beforehand("too late", json!(false))).await;
    })
    .await;
    let results: Vec<Value> = values(&over.out).into_iter().filter(|line| line["type"] == "result").collect();
    let said: Vec<(&Value, &Value)> =
        results.iter().map(|line| (&line["is_error"], &line["result"])).collect();
    assert_eq!(said.last(), Some(&(&json!(false), &json!("read both"))), "{said:?}");
    expect![["
        decurion: input line 2: `shouldQuery` is neither true nor false
        decurion: a message with `shouldQuery: false` has had no prompt after it, and is on no record
    "]]
    .assert_eq(&over.problems);
}

#[tokio::test]
async fn a_host_that_says_nothing_ends_well() {
    let over = converse(stage(TWO_PROMPTS), async |_: &mut Talking| {}).await;
    assert_eq!((over.out.as_str(), over.finish.outcome.exit_code()), ("", 0));
}

/// One call that must be asked about, in the root or in an agent.
fn asking(in_agent: bool) -> Stage {
    let script = if in_agent {
        r#"
when agent=worker turn=1
  call Poke {"text": "a", "description": "poke it"}
when agent=worker
  say "worked"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when
  say "done"
"#
    } else {
        "when turn=1\n  call Poke {\"text\": \"a\"}\nwhen turn=2\n  call Poke {\"text\": \"a\"}\nwhen\n  say \"done\"\n"
    };
    let mut stage = stage(script);
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    stage
}

#[tokio::test]
async fn the_host_is_asked_for_an_agent_and_its_input_is_taken() {
    let over = converse(asking(true), async |host: &mut Talking| {
        host.prompt("go").await;
        let question = host.question().await;
        let request = &question["request"];
        assert!(request["agent_id"].is_string(), "{question}");
        assert_eq!((&request["tool_name"], &request["description"]), (&json!("Poke"), &json!("poke it")));
        let allow = json!({"behavior": "allow", "updatedInput": {"text": "changed"}});
        host.answer(&question["request_id"], allow).await;
        host.result(0).await;
        // A second answer to the same question comes too late.
        host.answer(&question["request_id"], json!({"behavior": "deny", "message": "no"})).await;
    })
    .await;
    assert!(over.out.contains("\"content\":\"changed\""), "{}", over.out);
    assert!(
        over.problems.contains("an answer to a request that is not open was ignored"),
        "{}",
        over.problems
    );
    assert_eq!(over.finish.outcome.exit_code(), 0);
}

/// A host is told what made a call one that it is asked about.
#[tokio::test]
async fn a_question_says_what_made_it_one() {
    let play = async |change: fn(&mut Stage)| {
        let mut stage = asking(false);
        change(&mut stage);
        let mut seen = Value::Null;
        converse(stage, async |host: &mut Talking| {
            host.prompt("go").await;
            let is_asked = |line: &Value| line["request"]["subtype"] == "can_use_tool";
            seen = host.wait(is_asked).await["request"].clone();
            host.ask("i1", json!({"subtype": "interrupt"})).await;
            host.result(0).await;
        })
        .await;
        format!("{} {} {}\n", seen["tool_name"], seen["decision_reason_type"], seen["blocked_path"])
    };
    let hook = |stage: &mut Stage| {
        stage.rules.allow.push(Rule::parse("Poke", Default::default()).unwrap());
        // It cannot be run, and what cannot be asked leaves it to a person.
        let declared = json!({"event": "PreToolUse", "command": "true", "source": "test"});
        stage.hooks = vec![serde_json::from_value(declared).unwrap()];
    };
    let rule = |stage: &mut Stage| stage.rules.ask.push(Rule::parse("Poke", Default::default()).unwrap());
    let all = [play(|_| {}).await, play(rule).await, play(hook).await].concat();
    expect![[r#"
        "Poke" "other" null
        "Poke" "rule" null
        "Poke" "hook" null
    "#]]
    .assert_eq(&all);
}

#[tokio::test]
async fn a_rule_in_the_answer_holds_for_the_session() {
    let over = converse(asking(false), async |host: &mut Talking| {
        host.prompt("go").await;
        let question = host.question().await;
        let rules = json!([{"toolName": "Poke"}]);
        let updates = json!([
            {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"},
            {"type": "setMode", "mode": "acceptEdits", "destination": "userSettings"},
        ]);
        let allow = json!({"behavior": "allow", "updatedPermissions": updates});
        host.answer(&question["request_id"], allow).await;
        host.result(0).await;
    })
    .await;
    let questions = values(&over.out).iter().filter(|line| line["type"] == "control_request").count();
    assert_eq!((questions, over.finish.outcome.exit_code()), (1, 0));
    let said = "for this session only, not kept in your settings: the mode is acceptEdits";
    assert!(values(&over.out).iter().any(|line| line.to_string().contains(said)), "{:?}", over.out);
}

/// A session whose model calls a tool that asks a person for a name, or to go somewhere.
fn eliciting(wanted: Wanted) -> (Stage, Arc<Mutex<Vec<Elicited>>>) {
    let mut stage = stage("when turn=1\n  call mcp__clerk__ask {}\nwhen\n  say \"done\"\n");
    let (server, message) = ("clerk".to_owned(), "Who are you?".to_owned());
    let tool = Asking::new(Elicitation { server, message, calls: 1, wanted });
    let answers = tool.answers();
    stage.tools = vec![Arc::new(tool)];
    stage.rules.allow.push(Rule::parse("mcp__clerk", Default::default()).unwrap());
    (stage, answers)
}

fn name_form() -> Wanted {
    let name = json!({"type": "string", "minLength": 3});
    Wanted::Form { schema: json!({"type": "object", "properties": {"name": name}, "required": ["name"]}) }
}

#[tokio::test]
async fn what_a_server_asks_is_a_request_of_its_own_and_answered_like_one() {
    let mut asked = Vec::new();
    for (wanted, response, told) in [
        (name_form(), json!({"action": "accept", "content": {"name": "hunter2"}}), "accept"),
        (name_form(), json!({"action": "decline"}), "decline"),
        (
            Wanted::Url { url: "https://login.example/".into(), id: "v1".into() },
            json!({"action": "accept", "content": {}}),
            "accept",
        ),
    ] {
        let (stage, answers) = eliciting(wanted);
        let over = converse(stage, async |host: &mut Talking| {
            host.prompt("go").await;
            let question = host.question().await;
            host.answer(&question["request_id"], response.clone()).await;
            let mut request = question["request"].clone();
            assert!(request["tool_use_id"].is_string());
            request["tool_use_id"] = json!("call");
            asked.push(request.to_string());
            host.result(0).await;
        })
        .await;
        assert_eq!((over.problems.as_str(), over.finish.outcome.exit_code()), ("", 0));
        let answer = serde_json::to_value(&answers.lock().unwrap()[0]).unwrap();
        assert_eq!(answer["action"], told);
        assert!(!over.out.contains("hunter2"), "{}", over.out);
    }
    expect![[r#"
        {"subtype":"elicitation","mcp_server_name":"clerk","message":"Who are you?","tool_use_id":"call","mode":"form","requested_schema":{"type":"object","properties":{"name":{"type":"string","minLength":3}},"required":["name"]}}
        {"subtype":"elicitation","mcp_server_name":"clerk","message":"Who are you?","tool_use_id":"call","mode":"form","requested_schema":{"type":"object","properties":{"name":{"type":"string","minLength":3}},"required":["name"]}}
        {"subtype":"elicitation","mcp_server_name":"clerk","message":"Who are you?","tool_use_id":"call","mode":"url","url":"https://login.example/","elicitation_id":"v1"}"#]].assert_eq(&asked.join("\n"));
}

/// A server must not wait for a host that believes it has answered.
#[tokio::test]
async fn an_answer_to_a_server_that_cannot_be_used_is_none_and_is_reported() {
    #[rustfmt::skip]
    let rows = [
        (json!({"action": "perhaps"}), "`action` must be"),
        (json!({"action": "accept", "content": "hunter2"}), "`content` is not an object"),
        (json!({"action": "accept", "content": {"note": "hunter2", "name": 7}}), "/name: the value is not of type"),
        (json!({"action": "accept"}), "\"name\" is a required property"),
        (Value::Null, "`action` must be"),
    ];
    for (response, said) in rows {
        let (stage, answers) = eliciting(name_form());
        let over = converse(stage, async |host: &mut Talking| {
            host.prompt("go").await;
            let question = host.question().await;
            host.answer(&question["request_id"], response.clone()).await;
            host.result(0).await;
        })
        .await;
        assert_eq!(*answers.lock().unwrap(), [Elicited::plain(ElicitationAction::Cancel)], "{response}");
        assert!(over.problems.contains(said), "{response}: {}", over.problems);
        assert!(!over.problems.contains("hunter2"), "{}", over.problems);
    }
}

#[tokio::test]
async fn a_host_that_hangs_up_leaves_no_server_waiting() {
    let (stage, answers) = eliciting(name_form());
    let over = converse(stage, async |host: &mut Talking| {
        host.prompt("go").await;
        host.question().await;
    })
    .await;
    assert_eq!(over.finish.outcome.exit_code(), 0);
    assert_eq!(*answers.lock().unwrap(), [Elicited::plain(ElicitationAction::Decline)]);
}

#[tokio::test]
async fn an_interrupt_takes_a_servers_question_back_from_the_host() {
    let (stage, _) = eliciting(name_form());
    converse(stage, async |host: &mut Talking| {
        host.prompt("go").await;
        let question = host.question().await;
        host.ask("i1", json!({"subtype": "interrupt"})).await;
        let id = question["request_id"].clone();
        host.wait(|line| line["type"] == "control_cancel_request" && line["request_id"] == id).await;
    })
    .await;
}

#[tokio::test]
async fn refusals_of_every_kind_refuse() {
    #[rustfmt::skip]
    let rows = [
        (json!({"behavior": "deny", "message": "not now"}), "not now", "completed"),
        (json!({"behavior": "deny", "message": "stop", "interrupt": true}), "stop", "killed"),
        (json!({"behavior": "perhaps"}), "was not understood", "completed"),
        (json!({"behavior": "allow", "updatedInput": 7}), "was not understood", "completed"),
        (Value::Null, "was not understood", "completed"),
    ];
    for (response, said, outcome) in rows {
        let over = converse(asking(true), async |host: &mut Talking| {
            host.prompt("go").await;
            let question = host.question().await;
            host.answer(&question["request_id"], response.clone()).await;
            host.result(0).await;
        })
        .await;
        let denied = values(&over.out).into_iter().find(|line| line["subtype"] == "permission_denied");
        assert!(denied.is_some_and(|line| line["agent_id"].is_string()), "{response}");
        let notified = values(&over.out).into_iter().find(|line| line["subtype"] == "task_updated").unwrap();
        assert_eq!(notified["patch"]["status"], outcome, "{response}");
        assert!(over.out.contains(said), "{response}: {}", over.out);
    }
}

#[tokio::test]
async fn a_host_that_leaves_a_question_open_has_refused_it() {
    let over = converse(asking(false), async |host: &mut Talking| {
        host.prompt("go").await;
        host.question().await;
    })
    .await;
    assert!(over.out.contains("host disconnected"), "{}", over.out);
    assert!(matches!(over.finish.outcome, Outcome::Completed { .. } | Outcome::Denied { .. }));
}

#[tokio::test]
async fn control_requests_are_answered() {
    let over = converse(stage("when\n  stall\n"), async |host: &mut Talking| {
        host.ask("i", json!({"subtype": "initialize"})).await;
        host.ask("u", json!({"subtype": "set_color", "color": "red"})).await;
        host.ask("m", json!({"subtype": "set_permission_mode", "mode": "sideways"})).await;
        host.ask("p", json!({"subtype": "set_permission_mode", "mode": "plan"})).await;
        host.ask("s", json!({"subtype": "stop_task"})).await;
        host.ask("t", json!({"subtype": "stop_task", "task_id": "a0000000000000000"})).await;
        host.ask("b", json!({"subtype": "background_tasks"})).await;
        host.prompt("go").await;
        host.wait(|line| line["subtype"] == "init").await;
        host.ask("x", json!({"subtype": "interrupt"})).await;
        host.result(0).await;
    })
    .await;
    let answers: String = values(&over.out)
        .iter()
        .filter(|line| line["type"] == "control_response")
        .map(|line| format!("{}\n", line["response"]))
        .collect();
    expect![[r#"
        {"subtype":"success","request_id":"i","response":{"commands":[],"agents":[{"name":"worker","description":"works","model":"scripted"}],"output_style":"default","available_output_styles":["default"],"models":[],"account":{},"hook_on_failure_supported":true,"hooks_applied":true,"plugins_applied":true}}
        {"subtype":"error","request_id":"u","error":"a control request of this kind is not supported: set_color","error_code":"unsupported_request"}
        {"subtype":"error","request_id":"m","error":"unknown permission mode (default, acceptEdits, plan, bypassPermissions, dontAsk, bubble): \"sideways\"","error_code":"invalid_mode"}
        {"subtype":"error","request_id":"s","error":"input line 5: `request.task_id` is missing, which stop_task needs","error_code":"invalid_request"}
        {"subtype":"success","request_id":"p","response":{"mode":"plan"}}
        {"subtype":"error","request_id":"t","error":"no task with this id: a0000000000000000"}
        {"subtype":"error","request_id":"b","error":"nothing is waited for"}
        {"subtype":"success","request_id":"x","response":{"still_queued":[]}}
    "#]].assert_eq(&answers);
    assert_eq!(over.finish.outcome.exit_code(), 6);
}

#[tokio::test]
async fn bad_lines_are_named_and_change_nothing() {
    let over = converse(stage(TWO_PROMPTS), async |host: &mut Talking| {
        host.write(b"\n  \nnot json\n{\"type\": \"user\"}\n[1]\n\xff\xfe\n").await;
        for content in [json!(""), json!([]), json!(7), json!([{"type": "tool_result", "tool_use_id": "x"}])]
        {
            host.say(&json!({"type": "user", "message": {"role": "user", "content": content}})).await;
        }
        host.say(&json!({"type": "user", "message": {"role": "assistant", "content": "x"}})).await;
        host.say(&json!({"type": "surprise"})).await;
        host.say(&json!({"type": "keep_alive"})).await;
        host.say(&json!({"type": "control_request", "request_id": "r", "request": {}})).await;
        host.say(&json!({"type": "control_response", "response": {"request_id": "q", "subtype": "odd"}}))
            .await;
        host.answer(&json!("not-a-question"), json!({"behavior": "allow"})).await;
        let mut long = vec![b'x'; (16 << 20) + 1];
        long.push(b'\n');
        host.write(&long).await;
        host.prompt("go").await;
        host.result(0).await;
        host.write(b"{\"type\": \"user\", \"mess").await;
    })
    .await;
    expect![[r#"
        decurion: input line 3: not JSON: expected ident at line 1 column 2
        decurion: input line 4: `message` is missing
        decurion: input line 5: `type` is missing
        decurion: input line 6: not JSON: expected value at line 1 column 1
        decurion: input line 7: `message.content` is empty
        decurion: input line 8: `message.content` is empty
        decurion: input line 9: `message.content` is neither text nor a list of blocks
        decurion: input line 10: `message.content[0]`: neither text, image nor document
        decurion: input line 11: `message.role` is not `user`
        decurion: input line 12: not a kind of message that is known: "surprise"
        decurion: input line 14: `request.subtype` is missing
        decurion: input line 15: `response.subtype` is neither `success` nor `error`
        decurion: an answer to a request that is not open was ignored: q
        decurion: an answer to a request that is not open was ignored: not-a-question
        decurion: input line 17: longer than 16777216 bytes: 16777217
        decurion: input line 19: cut off before its end: EOF while parsing a string at line 1 column 22
    "#]]
    .assert_eq(&over.problems);
    assert_eq!(over.finish.outcome.exit_code(), 0);
    assert!(over.out.contains("\"error_code\":\"invalid_request\""), "{}", over.out);
}

/// Whoever sends a prompt waits for its result, whatever its id is like.
#[tokio::test]
async fn a_prompt_whose_id_is_none_is_taken_under_another() {
    let over = converse(stage(TWO_PROMPTS), async |host: &mut Talking| {
        for (index, id) in [json!("message-1"), json!(7)].into_iter().enumerate() {
            host.say(&json!({"type": "user", "uuid": id, "message": {"role": "user", "content": "go"}}))
                .await;
            host.result(index as u64).await;
        }
    })
    .await;
    expect![[r#"
        decurion: input line 1: `uuid`: not a valid line id (a UUID with hyphens): "message-1"; the message has another id
        decurion: input line 2: `uuid`: it is not a text; the message has another id
    "#]].assert_eq(&over.problems);
}

/// A question is not left open by an answer of which only the id can be read.
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_a_refusal() {
    let rows = [
        (r#""subtype": "odd"}}"#.to_owned(), "`response.subtype` is neither `success` nor `error`"),
        (r#""subtype": "success", "response": {"behavior": allow}}}"#.to_owned(), "not JSON"),
        (
            format!(r#""subtype": "success", "response": "{}"}}}}"#, "x".repeat(16 << 20)),
            "longer than 16777216 bytes",
        ),
    ];
    for (rest, said) in rows {
        let over = converse(asking(false), async |host: &mut Talking| {
            host.prompt("go").await;
            for number in 0..2 {
                let question = wanted(host, number).await;
                let id = &question["request_id"];
                let head = format!(r#"{{"type": "control_response", "response": {{"request_id": {id}, "#);
                host.write(format!("{head}{rest}\n").as_bytes()).await;
            }
            host.result(0).await;
        })
        .await;
        let told = format!("the host could not answer: its answer was not understood: input line 2: {said}");
        assert!(over.out.contains(&told), "{told}: {}", over.out);
        assert!(over.problems.contains(said), "{}", over.problems);
    }
}

/// The answers to control requests, one per line.
fn answers(out: &str) -> String {
    let answers = values(out).into_iter().filter(|line| line["type"] == "control_response");
    answers.map(|line| format!("{}\n", line["response"])).collect()
}

#[tokio::test]
async fn how_the_session_stands_is_told_in_the_shapes_that_hosts_read() {
    let mut stage = stage(TWO_PROMPTS);
    stage.hooks = vec![decurion_protocol::HookDeclaration::new(decurion_protocol::HookEvent::Stop, "true")];
    let over = converse(stage, async |host: &mut Talking| {
        host.ask("c0", json!({"subtype": "get_context_usage"})).await;
        host.prompt("first").await;
        host.result(0).await;
        host.ask("c1", json!({"subtype": "get_context_usage"})).await;
        host.ask("s", json!({"subtype": "mcp_status"})).await;
        host.ask("r", json!({"subtype": "list_permission_rules"})).await;
        host.ask("h", json!({"subtype": "get_hooks_listing"})).await;
        host.ask("m", json!({"subtype": "list_models"})).await;
        host.ask("g", json!({"subtype": "get_settings"})).await;
        host.ask("v", json!({"subtype": "get_binary_version"})).await;
        host.ask("$", json!({"subtype": "get_session_cost"})).await;
        host.ask("u", json!({"subtype": "get_usage"})).await;
        host.ask("o", json!({"subtype": "get_task_output", "task_id": "b00000000"})).await;
        host.wait(|line| line["response"]["request_id"] == "o").await;
    })
    .await;
    let mut told = answers(&over.out);
    for (start, end) in [("\"eventCatalog\":[", "],\"policy\""), ("\"originalCwd\":\"", "\",\"managedOnly\"")]
    {
        let from = told.find(start).unwrap() + start.len();
        let to = from + told[from..].find(end).unwrap();
        told.replace_range(from..to, "…");
    }
    expect![[r#"
        {"subtype":"success","request_id":"c0","response":{"categories":[{"id":"system_prompt","name":"System prompt","tokens":7,"color":"promptBorder","kind":"used"},{"id":"system_tools","name":"System tools","tokens":2155,"color":"inactive","kind":"used"},{"id":"autocompact_buffer","name":"Kept free for compaction","tokens":43200,"color":"inactive","kind":"buffer"},{"id":"free_space","name":"Free space","tokens":154638,"color":"inactive","kind":"free"}],"totalTokens":2162,"maxTokens":200000,"rawMaxTokens":200000,"percentage":1,"gridRows":[],"model":"scripted","memoryFiles":[],"mcpTools":[],"systemTools":[{"name":"Agent","tokens":819},{"name":"AskUserQuestion","tokens":538},{"name":"Echo","tokens":56},{"name":"EnterPlanMode","tokens":120},{"name":"ExitPlanMode","tokens":158},{"name":"Poke","tokens":56},{"name":"SendMessage","tokens":148},{"name":"TaskOutput","tokens":181},{"name":"TaskStop","tokens":79}],"agents":[],"isAutoCompactEnabled":true,"apiUsage":null,"estimated":true,"autoCompactThreshold":156800}}
        {"subtype":"success","request_id":"m","response":{"models":[]}}
        {"subtype":"success","request_id":"g","response":{"effective":{},"sources":[],"applied":{"model":"scripted"}}}
        {"subtype":"success","request_id":"v","response":{"version":"0"}}
        {"subtype":"success","request_id":"$","response":{"text":"Total cost: $0.0018\nTime at models: 0 s\n  scripted: 1822 input, 1 output, 0 cache read, 0 cache write ($0.0018)"}}
        {"subtype":"success","request_id":"u","response":{"session":{"total_cost_usd":0.001827,"total_api_duration_ms":7,"total_duration_ms":17,"total_lines_added":0,"total_lines_removed":0,"model_usage":{"scripted":{"inputTokens":1822,"outputTokens":1,"cacheReadInputTokens":0,"cacheCreationInputTokens":0,"webSearchRequests":0,"costUSD":0.001827,"contextWindow":200000,"maxOutputTokens":8000}}},"subscription_type":null,"rate_limits_available":false,"rate_limits":null,"behaviors":null}}
        {"subtype":"success","request_id":"c1","response":{"categories":[{"id":"system_prompt","name":"System prompt","tokens":5,"color":"promptBorder","kind":"used"},{"id":"system_tools","name":"System tools","tokens":1756,"color":"inactive","kind":"used"},{"id":"messages","name":"Messages","tokens":56,"color":"purple","kind":"used"},{"id":"autocompact_buffer","name":"Kept free for compaction","tokens":43200,"color":"inactive","kind":"buffer"},{"id":"free_space","name":"Free space","tokens":154977,"color":"inactive","kind":"free"}],"totalTokens":1823,"maxTokens":200000,"rawMaxTokens":200000,"percentage":0,"gridRows":[],"model":"scripted","memoryFiles":[],"mcpTools":[],"systemTools":[{"name":"Agent","tokens":669},{"name":"AskUserQuestion","tokens":439},{"name":"Echo","tokens":45},{"name":"EnterPlanMode","tokens":98},{"name":"ExitPlanMode","tokens":129},{"name":"Poke","tokens":45},{"name":"SendMessage","tokens":120},{"name":"TaskOutput","tokens":147},{"name":"TaskStop","tokens":64}],"agents":[],"isAutoCompactEnabled":true,"apiUsage":{"input_tokens":1822,"output_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":0},"estimated":true,"autoCompactThreshold":156800}}
        {"subtype":"success","request_id":"s","response":{"mcpServers":[]}}
        {"subtype":"success","request_id":"r","response":{"state":{"rules":[{"behavior":"allow","source":"cliArg","rule":"Echo","editability":"session"},{"behavior":"allow","source":"cliArg","rule":"Poke","editability":"session"}],"workspaceDirectories":[],"originalCwd":"…","managedOnly":false,"mode":"default"}}}
        {"subtype":"success","request_id":"h","response":{"events":[{"name":"Stop","summary":"","supportsMatcher":true,"hookCount":1}],"hooks":[{"event":"Stop","matcher":"","source":"settings","sourceLabel":"","type":"command","displayText":"true","commandText":"true","contentLabel":"Command"}],"eventCatalog":[…],"policy":{"disabledByPolicy":false,"managedOnly":false,"pluginOnly":false,"allDisabled":false,"policyHookCount":0}}}
        {"subtype":"error","request_id":"o","error":"no command of this session has this id: b00000000"}
    "#]].assert_eq(&told);
}

#[tokio::test]
async fn what_a_host_changes_while_it_runs_is_changed_or_refused_by_name() {
    let mut stage = stage(TWO_PROMPTS);
    stage.unknown_models = vec!["nope".to_owned()];
    let over = converse(stage, async |host: &mut Talking| {
        #[rustfmt::skip]
        let rows = [
            ("t1", json!({"subtype": "set_max_thinking_tokens", "max_thinking_tokens": 2000})),
            ("t2", json!({"subtype": "set_max_thinking_tokens", "max_thinking_tokens": 10})),
            ("t3", json!({"subtype": "set_max_thinking_tokens", "max_thinking_tokens": null})),
            ("t4", json!({"subtype": "set_max_thinking_tokens", "max_thinking_tokens": "much"})),
            ("t5", json!({"subtype": "set_max_thinking_tokens", "thinking_display": "omitted"})),
            ("d", json!({"subtype": "set_model", "model": null})),
            ("f0", json!({"subtype": "apply_flag_settings", "settings": {}})),
            ("f1", json!({"subtype": "apply_flag_settings", "settings": {"model": "other", "permissions": {
                "allow": ["Read"], "deny": ["Bash(rm *)"], "defaultMode": "acceptEdits", "additionalDirectories": ["/tmp"]}}})),
            ("f2", json!({"subtype": "apply_flag_settings", "settings": {"theme": "dark"}})),
            ("f3", json!({"subtype": "apply_flag_settings", "settings": {"permissions": {"allow": ["Read("]}}})),
            ("f4", json!({"subtype": "apply_flag_settings", "settings": {"permissions": {"additionalDirectories": ["tmp"]}}})),
            // What is refused changes nothing, in whatever order it is written.
            ("f5", json!({"subtype": "apply_flag_settings", "settings": {"permissions": {"additionalDirectories": ["/etc"], "allow": ["Bash"]}, "model": "nope"}})),
            ("f6", json!({"subtype": "apply_flag_settings", "settings": {"model": "nope", "permissions": {"defaultMode": "plan"}}})),
            ("r", json!({"subtype": "list_permission_rules"})),
            ("m", json!({"subtype": "mcp_set_servers", "servers": {"a": {"command": "x"}}})),
            ("n", json!({"subtype": "mcp_reconnect", "serverName": "a"})),
            ("o", json!({"subtype": "mcp_toggle", "serverName": "a"})),
        ];
        for (id, request) in rows {
            host.ask(id, request).await;
        }
        host.wait(|line| line["response"]["request_id"] == "n").await;
    })
    .await;
    let told = answers(&over.out);
    let from = told.find("\"originalCwd\":\"").unwrap();
    let to = from + told[from..].find(",\"managedOnly\"").unwrap();
    let told = format!("{}…{}", &told[..from], &told[to..]);
    expect![[r#"
        {"subtype":"error","request_id":"t4","error":"input line 4: `request.max_thinking_tokens` is neither a number nor null","error_code":"invalid_request"}
        {"subtype":"success","request_id":"t5","response":{}}
        {"subtype":"success","request_id":"f0","response":{}}
        {"subtype":"error","request_id":"f2","error":"this setting cannot be changed while a session runs (model, maxThinkingTokens and permissions can): theme","error_code":"invalid_request"}
        {"subtype":"error","request_id":"f3","error":"a rule's `(` is not closed: \"Read(\"","error_code":"invalid_request"}
        {"subtype":"error","request_id":"o","error":"input line 17: `request.enabled` is missing or not a truth value","error_code":"invalid_request"}
        {"subtype":"success","request_id":"t1","response":{}}
        {"subtype":"success","request_id":"t2","response":{}}
        {"subtype":"success","request_id":"t3","response":{}}
        {"subtype":"success","request_id":"d","response":{"model":"scripted"}}
        {"subtype":"success","request_id":"f1","response":{}}
        {"subtype":"error","request_id":"f4","error":"a directory is named by its whole path: tmp"}
        {"subtype":"error","request_id":"f5","error":"no provider knows this model: nope"}
        {"subtype":"error","request_id":"f6","error":"no provider knows this model: nope"}
        {"subtype":"success","request_id":"r","response":{"state":{"rules":[{"behavior":"allow","source":"cliArg","rule":"Echo","editability":"session"},{"behavior":"allow","source":"cliArg","rule":"Poke","editability":"session"},{"behavior":"allow","source":"flagSettings","rule":"Read","editability":"readonly"},{"behavior":"deny","source":"flagSettings","rule":"Bash(rm *)","editability":"readonly"}],"workspaceDirectories":[{"path":"/tmp","source":"session"}],…,"managedOnly":false,"mode":"acceptEdits"}}}
        {"subtype":"error","request_id":"m","error":"this session has no MCP servers"}
        {"subtype":"error","request_id":"n","error":"this session has no MCP servers"}
    "#]].assert_eq(&told);
}

/// Whoever counts results takes each for that of its own prompt.
#[tokio::test]
async fn results_come_in_the_order_of_prompts_also_of_those_that_cannot_be_worked_on() {
    let over = converse(stage("when\n  say \"done\"\n"), async |host: &mut Talking| {
        for text in ["", "one", "", "two", "", ""] {
            host.prompt(text).await;
        }
        host.result(5).await;
        host.prompt("").await;
        host.result(6).await;
    })
    .await;
    let lines = values(&over.out);
    let results: Vec<(&Value, bool)> = lines
        .iter()
        .filter(|line| line["type"] == "result")
        .map(|line| (&line["is_error"], line.get("ttft_ms").is_some()))
        .collect();
    let (wrong, right) = ((&json!(true), false), (&json!(false), true));
    assert_eq!(results, [wrong, right, wrong, right, wrong, wrong, wrong]);
}

/// A prompt that is taken back has no result, and nobody waits for it.
#[tokio::test]
async fn the_result_of_a_wrong_prompt_does_not_wait_for_one_that_was_taken_back() {
    let id = "11111111-0000-4000-8000-000000000009";
    converse(stage("when\n  stall\n"), async |host: &mut Talking| {
        host.prompt("one").await;
        host.wait(|line| line["subtype"] == "init").await;
        host.say(&json!({"type": "user", "uuid": id, "message": {"role": "user", "content": "two"}})).await;
        host.prompt("").await;
        host.ask("c", json!({"subtype": "cancel_async_message", "message_uuid": id})).await;
        host.ask("i", json!({"subtype": "interrupt"})).await;
        host.result(1).await;
    })
    .await;
}

/// A queued prompt can be taken back by its id, an interrupt tells what is left, and one that is sent twice is taken
/// once; each is given back under its id as it is taken.
#[tokio::test]
async fn prompts_have_ids_and_can_be_taken_back() {
    let (one, two, three) = (
        "11111111-0000-4000-8000-000000000001",
        "11111111-0000-4000-8000-000000000002",
        "11111111-0000-4000-8000-000000000003",
    );
    let script = "when match=/0001$/\n  stall\nwhen\n  say \"went on\"\n";
    let mut stage = stage(script);
    stage.request.entrypoint = ECHOED.to_owned();
    let over = converse(stage, async |host: &mut Talking| {
        let said = |id: &str| json!({"type": "user", "uuid": id, "message": {"role": "user", "content": id}});
        host.say(&said(one)).await;
        host.wait(|line| line["subtype"] == "init").await;
        for id in [two, three, three] {
            host.say(&said(id)).await;
        }
        host.ask("c", json!({"subtype": "cancel_async_message", "message_uuid": two})).await;
        host.ask("d", json!({"subtype": "cancel_async_message", "message_uuid": one})).await;
        host.ask("i", json!({"subtype": "interrupt"})).await;
        host.result(1).await;
        host.say(&said(two)).await;
        host.result(2).await;
        host.ask("j", json!({"subtype": "interrupt", "cancel_queued": true})).await;
        host.wait(|line| line["response"]["request_id"] == "j").await;
    })
    .await;
    expect![[r#"
        {"subtype":"success","request_id":"c","response":{"cancelled":true}}
        {"subtype":"success","request_id":"d","response":{"cancelled":false}}
        {"subtype":"success","request_id":"i","response":{"still_queued":["11111111-0000-4000-8000-000000000003"]}}
        {"subtype":"success","request_id":"j","response":{"cancelled":[],"still_queued":[]}}
    "#]].assert_eq(&answers(&over.out));
    let echoed: Vec<String> = values(&over.out)
        .iter()
        .filter(|line| line["isReplay"] == true)
        .map(|line| format!("{} {}", line["uuid"], line["message"]["content"][0]["text"]))
        .collect();
    expect![[r#"
        "11111111-0000-4000-8000-000000000001" "11111111-0000-4000-8000-000000000001"
        "11111111-0000-4000-8000-000000000003" "11111111-0000-4000-8000-000000000003"
        "11111111-0000-4000-8000-000000000002" "11111111-0000-4000-8000-000000000002""#]]
    .assert_eq(&echoed.join("\n"));
    expect![["
        decurion: a message was not taken: a message with this id was taken already: 11111111-0000-4000-8000-000000000003
    "]].assert_eq(&over.problems);
}

#[tokio::test]
async fn an_answer_that_was_cancelled_is_not_sent() {
    let over = converse(stage(TWO_PROMPTS), async |host: &mut Talking| {
        // Asked and taken back in one write, so that the answer cannot come between.
        let ask = json!({"type": "control_request", "request_id": "a", "request": {"subtype": "mcp_status"}});
        let cancel = json!({"type": "control_cancel_request", "request_id": "a"});
        host.write(format!("{ask}\n{cancel}\n").as_bytes()).await;
        host.ask("b", json!({"subtype": "mcp_status"})).await;
        host.wait(|line| line["response"]["request_id"] == "b").await;
    })
    .await;
    expect![[r#"
        {"subtype":"success","request_id":"b","response":{"mcpServers":[]}}
    "#]]
    .assert_eq(&answers(&over.out));
}

#[tokio::test]
async fn a_call_allowed_under_rules_that_are_not_understood_is_not_made() {
    let over = converse(asking(true), async |host: &mut Talking| {
        host.prompt("go").await;
        let question = host.question().await;
        let rules = json!([{"toolName": "Bash", "ruleContent": "x"}]);
        let deny =
            json!({"type": "addRules", "behavior": "deny", "destination": "elsewhere", "rules": rules});
        let allow = json!({"behavior": "allow", "updatedPermissions": [deny]});
        host.answer(&question["request_id"], allow).await;
        host.result(0).await;
    })
    .await;
    assert!(over.out.contains("which was not understood"), "{}", over.out);
    assert!(over.problems.contains("an unknown `destination`: elsewhere"), "{}", over.problems);
}

/// Everything that a host may change with an answer: obeyed for the session, and said where it is not obeyed.
#[tokio::test]
async fn what_an_answer_changes_is_obeyed_for_the_session() {
    #[rustfmt::skip]
    let rows = [
        json!({"type": "addRules", "behavior": "deny", "destination": "session", "rules": [{"toolName": "Poke"}]}),
        json!({"type": "addRules", "behavior": "ask", "destination": "cliArg", "rules": [{"toolName": "Poke", "ruleContent": "x"}]}),
        json!({"type": "replaceRules", "behavior": "allow", "destination": "cliArg", "rules": [{"toolName": "Poke"}]}),
        json!({"type": "addRules", "behavior": "allow", "destination": "localSettings", "rules": [{"toolName": "Poke"}]}),
        json!({"type": "removeRules", "behavior": "allow", "destination": "cliArg", "rules": [{"toolName": "Echo"}]}),
        json!({"type": "setMode", "mode": "plan", "destination": "session"}),
        json!({"type": "setMode", "mode": "bypassPermissions", "destination": "session"}),
        json!({"type": "setMode", "mode": "sideways", "destination": "session"}),
        json!({"type": "addDirectories", "directories": ["/tmp"], "destination": "session"}),
        json!({"type": "removeDirectories", "directories": ["/tmp"], "destination": "session"}),
        json!({"type": "addRules", "behavior": "deny", "destination": "userSettings", "rules": [{"toolName": "Poke"}]}),
        json!({"type": "addRules", "behavior": "deny", "destination": "policySettings", "rules": [{"toolName": "Poke"}]}),
        json!({"type": "dance", "destination": "session"}),
    ];
    let mut told = String::new();
    for update in rows {
        let mut stage = asking(false);
        stage.bypass = false;
        let over = converse(stage, async |host: &mut Talking| {
            host.prompt("go").await;
            let question = host.question().await;
            let allow = json!({"behavior": "allow", "updatedPermissions": [update]});
            host.answer(&question["request_id"], allow).await;
            host.ask("r", json!({"subtype": "list_permission_rules"})).await;
            host.wait(|line| line["response"]["request_id"] == "r").await;
        })
        .await;
        let state = values(&over.out).into_iter().find(|line| line["response"]["request_id"] == "r").unwrap();
        let state = &state["response"]["response"]["state"];
        let rule = |row: &Value| format!("{} {} ({})", row["behavior"], row["rule"], row["source"]);
        let rules: Vec<String> = state["rules"].as_array().unwrap().iter().map(rule).collect();
        let directories = state["workspaceDirectories"].to_string();
        let problem = over.problems.split(": ").skip(2).collect::<Vec<_>>().join(": ");
        told += &format!(
            "{} {} {}: {} {} {directories} {}\n",
            update["type"],
            update["behavior"],
            update["destination"],
            rules.join(", "),
            state["mode"],
            problem.trim()
        )
        .replace('"', "");
    }
    expect![["
        addRules deny session: allow Echo (cliArg), deny Poke (session) default [] 
        addRules ask cliArg: allow Echo (cliArg), ask Poke(x) (cliArg) default [] 
        replaceRules allow cliArg: allow Poke (session) default [] 
        addRules allow localSettings: allow Echo (cliArg), allow Poke (session) default [] 
        removeRules allow cliArg:  default [] 
        setMode null session: allow Echo (cliArg) plan [] 
        setMode null session: allow Echo (cliArg) default [] not obeyed: the mode bypassPermissions is switched off by `permissions.disableBypassPermissionsMode`
        setMode null session: allow Echo (cliArg) default [] not obeyed: setMode: unknown permission mode (default, acceptEdits, plan, bypassPermissions, dontAsk, bubble): sideways
        addDirectories null session: allow Echo (cliArg) default [{path:/tmp,source:session}] 
        removeDirectories null session: allow Echo (cliArg) default [] 
        addRules deny userSettings: allow Echo (cliArg), deny Poke (userSettings) default [] 
        addRules deny policySettings: allow Echo (cliArg) default [] not obeyed: addRules: an unknown `destination`: policySettings
        dance null session: allow Echo (cliArg) default [] not obeyed: an unknown kind of update: dance
    "]].assert_eq(&told);
}

/// Files are put back by the id that a prompt was given; what cannot be done is an answer that says why.
#[tokio::test]
async fn files_are_put_back_for_the_host() {
    const PROMPT: &str = "11e00000-0000-4000-8000-000000000001";
    let mut seen = String::new();
    for on in [true, false] {
        let script = "when turn=1\n  call Write {\"file_path\": \"new.txt\", \"content\": \"a\\nb\\n\"}\nwhen\n  say \"done\"\n";
        let mut stage = stage(script).with_files();
        stage.request.checkpoints = on;
        let cwd = stage.request.cwd.canonicalize_utf8().unwrap();
        let (file, kept) = (cwd.join("new.txt"), stage.request.clone());
        let requests = [
            ("bad", json!({"subtype": "rewind_files", "user_message_id": "no id"})),
            ("none", json!({"subtype": "rewind_files"})),
            (
                "other",
                json!({"subtype": "rewind_files", "user_message_id": "11e00000-0000-4000-8000-000000000009"}),
            ),
            ("dry", json!({"subtype": "rewind_files", "user_message_id": PROMPT, "dry_run": true})),
            ("real", json!({"subtype": "rewind_files", "user_message_id": PROMPT})),
        ];
        let over = converse(stage, async |host: &mut Talking| {
            let message = json!({"role": "user", "content": "go"});
            host.say(&json!({"type": "user", "uuid": PROMPT, "message": message})).await;
            host.result(0).await;
            for (id, request) in requests {
                host.ask(id, request).await;
                let answer = host
                    .wait(|line| line["type"] == "control_response" && line["response"]["request_id"] == id)
                    .await;
                seen.push_str(&format!("{on} {} {}\n", answer["response"], file.exists()));
            }
        })
        .await;
        assert_eq!(over.finish.outcome.exit_code(), 0, "{kept:?}");
        seen = seen.replace(cwd.as_str(), "~");
    }
    expect![[r#"
        true {"subtype":"success","request_id":"bad","response":{"canRewind":false,"filesChanged":[],"insertions":0,"deletions":0,"error":"`user_message_id`: not a valid line id (a UUID with hyphens): \"no id\""}} true
        true {"subtype":"error","request_id":"none","error":"input line 3: `request.user_message_id` is missing, which rewind_files needs","error_code":"invalid_request"} true
        true {"subtype":"success","request_id":"other","response":{"canRewind":false,"filesChanged":[],"insertions":0,"deletions":0,"error":"no prompt of this session has this id: 11e00000-0000-4000-8000-000000000009"}} true
        true {"subtype":"success","request_id":"dry","response":{"canRewind":true,"filesChanged":["~/new.txt"],"insertions":0,"deletions":2}} true
        true {"subtype":"success","request_id":"real","response":{"canRewind":true,"filesChanged":["~/new.txt"],"insertions":0,"deletions":2}} false
        false {"subtype":"success","request_id":"bad","response":{"canRewind":false,"filesChanged":[],"insertions":0,"deletions":0,"error":"`user_message_id`: not a valid line id (a UUID with hyphens): \"no id\""}} true
        false {"subtype":"error","request_id":"none","error":"input line 3: `request.user_message_id` is missing, which rewind_files needs","error_code":"invalid_request"} true
        false {"subtype":"success","request_id":"other","response":{"canRewind":false,"filesChanged":[],"insertions":0,"deletions":0,"error":"file checkpointing is off, so nothing was kept to go back to; switch it on with `enable_file_checkpointing` (Python), `enableFileCheckpointing` (TypeScript) or CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=true when the session starts"}} true
        false {"subtype":"success","request_id":"dry","response":{"canRewind":false,"filesChanged":[],"insertions":0,"deletions":0,"error":"file checkpointing is off, so nothing was kept to go back to; switch it on with `enable_file_checkpointing` (Python), `enableFileCheckpointing` (TypeScript) or CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=true when the session starts"}} true
        false {"subtype":"success","request_id":"real","response":{"canRewind":false,"filesChanged":[],"insertions":0,"deletions":0,"error":"file checkpointing is off, so nothing was kept to go back to; switch it on with `enable_file_checkpointing` (Python), `enableFileCheckpointing` (TypeScript) or CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=true when the session starts"}} true
    "#]].assert_eq(&seen);
}

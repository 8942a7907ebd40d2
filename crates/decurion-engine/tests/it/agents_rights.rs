//! What agents may do: answers that hold for some of them, models that cannot be paid for, forks switched off.

use std::sync::Arc;

use decurion_engine::permission::denied_type;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    AgentDefinition, AgentSource, Answer, Command, Event, Limits, Mode, Money, OpenSession, PermissionUpdate,
    Place as _, Reply, Rule, RuleSet, SessionId, Start, Verdict,
};
use decurion_testkit::stage::{Plain, Stage, UNPRICED, send};
use futures_util::StreamExt as _;

use crate::support::{Playing, prompt, stage};

/// Plays a script in which calls are asked about; each question is answered with a rule for all of them. Gives
/// who asked, in order.
async fn askers(stage: &Stage, everywhere: bool) -> Vec<String> {
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] }).await;
    send(&link, 2, Command::Finish).await;
    let mut askers = Vec::new();
    while let Some(envelope) = link.events.next().await {
        match &envelope.event {
            Event::Asked { question } => {
                askers.push(question.path.join("/").split('/').count().to_string());
                let rules = vec![Rule::parse("Skill", RuleSource::Session).unwrap()];
                let answer = Answer::Allow { input: None, rules, everywhere };
                let (question, by) = (question.id, "user".to_owned());
                send(&link, 3, Command::Answer { question, answer, updates: Vec::new(), by }).await;
            }
            Event::Replied { request, .. } if request.0 == 2 => break,
            _ => {}
        }
    }
    askers
}

/// An agent pokes twice and lets one of its own poke; then the root does.
fn pokes(behind: bool) -> Stage {
    let mut stage = stage(&format!(
        r#"
when agent=worker turn=1 first="outer"
  call Skill {{"text": "1"}}
when agent=worker turn=2 first="outer"
  call Skill {{"text": "2"}}
when agent=worker turn=3 first="outer"
  call Agent {{"description": "d", "prompt": "inner", "subagent_type": "worker"}}
when agent=worker turn=1 first="inner"
  call Skill {{"text": "3"}}
when agent=worker
  say "poked"
when agent=main turn=1
  call Agent {{"description": "d", "prompt": "outer", "subagent_type": "worker", "run_in_background": {behind}}}
when agent=main text=/task-notification/
  call Skill {{"text": "4"}}
when agent=main result=/poked/
  call Skill {{"text": "4"}}
when agent=main
  say "done"
"#
    ));
    stage.rules.allow = vec![Rule::parse("Agent", RuleSource::Session).unwrap()];
    // One of those that an agent in the background has.
    stage.tools.push(Arc::new(Plain::named("Skill")));
    stage.agent_settings.max_depth = 2;
    stage.request.answers = true;
    stage
}

#[tokio::test(start_paused = true)]
async fn a_rule_given_to_an_agent_in_the_background_is_its_own_and_that_of_those_below_it() {
    assert_eq!(askers(&pokes(true), false).await, ["2", "1"], "the agent, then the root");
    assert_eq!(askers(&pokes(true), true).await, ["2"], "the person chose the session");
    assert_eq!(askers(&pokes(false), false).await, ["2"], "someone waits for it: it speaks for the session");
}

#[tokio::test(start_paused = true)]
async fn what_narrows_holds_where_an_agent_in_the_background_is_refused_the_rest() {
    let stage = pokes(true);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] }).await;
    send(&link, 2, Command::Finish).await;
    let (mut told, mut modes) = (Vec::new(), 0);
    while let Some(envelope) = link.events.next().await {
        match &envelope.event {
            Event::Asked { question } => {
                let (question, by) = (question.id, "user".to_owned());
                let rules = vec![Rule::parse("Skill", RuleSource::Session).unwrap()];
                let updates = vec![
                    PermissionUpdate::SetMode { mode: Mode::AcceptEdits },
                    PermissionUpdate::AddRules { behavior: Verdict::Deny, rules },
                ];
                let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
                send(&link, 3, Command::Answer { question, answer, updates, by }).await;
            }
            Event::ModeChanged { .. } => modes += 1,
            Event::Replied { request, reply: Reply::Done { value } } if request.0 == 3 => {
                let reason = value["not_done"].as_str().unwrap();
                told.push(reason.split(';').next().unwrap().to_owned());
            }
            Event::CallStarted { tool, .. } if tool == "Skill" => told.push("begun".to_owned()),
            Event::CallRefused { decision, .. } => told.push(decision.reason.clone()),
            Event::Replied { request, .. } if request.0 == 2 => break,
            _ => {}
        }
    }
    let refused = "what an agent in the background asks gives no rights to the whole session";
    let denied = "denied by Skill";
    assert_eq!(told, [refused, "begun", denied, denied, denied], "the call that was answered is done");
    assert_eq!(modes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_price_is_not_used_below_a_money_budget() {
    let script = "when turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\", \"model\": \"unpriced\"}\nwhen\n  say \"done\"\n";
    let unpriced = || {
        let mut stage = stage(script);
        stage.models.push(UNPRICED.to_owned());
        stage
    };
    let mut limited = unpriced();
    limited.request.limits = Limits { money: Some(Money::from_dollars(1.0)), ..Limits::default() };
    let log = limited.log("go").await;
    assert!(log.contains("needs the price of the model, which is not known: unpriced"), "{log}");
    assert!(!unpriced().log("go").await.contains("needs the price"));
}

#[tokio::test(start_paused = true)]
async fn forks_can_be_switched_off() {
    let script = "when turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"fork\"}\nwhen\n  say \"done\"\n";
    let mut off = stage(script);
    off.agent_settings.forks = false;
    off.agent_settings.fork_by_default = true;
    let log = off.log("go").await;
    assert!(log.contains("Agent type 'fork' not found"), "{log}");
    let request = String::from_utf8(off.requests()[0].clone()).unwrap();
    assert!(!request.contains("- fork:"), "{request}");
    let on = stage(script);
    assert!(on.log("go").await.contains("begin  #1"));
    assert!(String::from_utf8(on.requests()[0].clone()).unwrap().contains("- fork:"));
}

fn defined(name: &str) -> Arc<AgentDefinition> {
    let (name, source) = (name.to_owned(), AgentSource::User);
    let (description, prompt) = (format!("is {name}"), "You do a part of the work.".to_owned());
    Arc::new(AgentDefinition { name, description, prompt, source, ..AgentDefinition::default() })
}

/// A stage with these types, on which this rule denies.
fn denying(script: &str, rule: &str) -> Stage {
    let mut stage = stage(script);
    stage.agents = ["general-purpose", "Explore", "guide", "plug:reviewer", "plugged"].map(defined).to_vec();
    stage.rules.deny.extend((!rule.is_empty()).then(|| Rule::parse(rule, RuleSource::UserSettings).unwrap()));
    stage
}

/// Which rules deny which names: each row a rule, what is called, and whether the rule denies it.
const DENIALS: &[(&str, &str, bool)] = &[
    ("Agent(guide)", "claude-code-guide", true),
    ("Agent(guide)", "Claude-Code-Guide", true),
    ("Agent(guide)", "GUIDE", true),
    ("Agent(claude-code-guide)", "guide", true),
    ("Agent(CLAUDE-CODE-GUIDE)", "Guide", true),
    ("Task(claude-code-guide)", "guide", true),
    ("Task(guide)", "claude-code-guide", true),
    ("Agent(Plan, claude-code-guide)", "guide", true),
    ("Agent(claude-*)", "guide", true),
    ("Agent(plug:*)", "plug:reviewer", true),
    ("Agent(plug:*)", "PLUG:reviewer", true),
    ("Agent(PLUG:*)", "plug:Reviewer", true),
    ("Task(Plug:*)", "plug:reviewer", true),
    ("Agent(plug:rev*)", "PLUG:REVIEWER", true),
    ("Agent(Explore)", "eXPLORE", true),
    ("Agent(fork)", "FORK", true),
    ("Agent(*)", "guide", true),
    ("Agent(plug:*)", "plugged", false),
    ("Agent(Explore)", "guide", false),
    ("Agent(general-purpose)", "Explore", false),
    ("Skill(guide)", "guide", false),
];

#[tokio::test(start_paused = true)]
async fn deny_rule_covers_every_name_of_an_agent_type() {
    for (rule, called, denied) in DENIALS {
        let script = format!(
            "when agent=main turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"{called}\"}}\nwhen\n  say \"done\"\n"
        );
        let log = denying(&script, rule).log("go").await;
        assert_eq!(log.contains("refuse Agent"), *denied, "{rule} {called}: {log}");
        assert_eq!(log.contains("begin  #1"), !*denied, "{rule} {called}: {log}");
        let rule = Rule::parse(rule, RuleSource::UserSettings).unwrap();
        let rules = RuleSet { deny: vec![rule.clone()], ..RuleSet::default() };
        assert_eq!(denied_type(&rules, called).is_some(), *denied, "{rule} {called}");
    }
}

/// What continues an earlier agent: by `resume`, also under the alias that it was started by, or by a message.
const CONTINUES: [&str; 5] = [
    r#"Agent {"description": "d", "prompt": "once more", "resume": "$1"}"#,
    r#"Agent {"description": "d", "prompt": "once more", "resume": "$1", "subagent_type": "claude-code-guide"}"#,
    r#"Agent {"description": "d", "prompt": "once more", "resume": "$1", "subagent_type": "GUIDE"}"#,
    r#"Task {"description": "d", "prompt": "once more", "resume": "$1"}"#,
    r#"SendMessage {"to": "$1", "message": "once more"}"#,
];

/// A session in which a guide was started by its alias and ended, and the prompt that has the model continue it by
/// this call.
async fn with_guide(call: &str) -> (Stage, SessionId, String) {
    let script = format!(
        r#"
when agent=guide text="once more"
  say "went on"
when agent=guide
  say "first"
when agent=main turn=1
  call Agent {{"description": "d", "prompt": "p", "subagent_type": "claude-code-guide"}}
when agent=main text=/again (\w+)/
  call {call}
when agent=main
  say "done"
"#
    );
    let stage = denying(&script, "");
    let first = stage.play("go").await;
    let id = first.events.iter().find_map(|envelope| match &envelope.event {
        Event::TaskOpened { record } => Some(record.task.clone()),
        _ => None,
    });
    (stage, first.session, format!("again {}", id.unwrap()))
}

/// Opens the session with the guide again under this rule, and continues the guide. Gives the log of that.
async fn continued_under(rule: &str, verdict: Verdict, call: &str) -> String {
    let (mut stage, session, prompt) = with_guide(call).await;
    let rule = Rule::parse(rule, RuleSource::UserSettings).unwrap();
    if verdict == Verdict::Deny { &mut stage.rules.deny } else { &mut stage.rules.ask }.push(rule);
    let request = OpenSession { start: Start::Resume { id: session, at: None }, ..stage.request.clone() };
    let played = stage.play_all(request, &[&prompt]).await.unwrap();
    decurion_testkit::stage::render(&played.events)
}

#[tokio::test(start_paused = true)]
async fn an_agent_goes_on_once_a_person_allows_it() {
    for call in CONTINUES {
        let (mut stage, session, text) = with_guide(call).await;
        stage.rules.ask.push(Rule::parse("Agent(guide)", RuleSource::UserSettings).unwrap());
        stage.request.answers = true;
        let mut playing = Playing::again(&stage, session).await;
        prompt(&playing.link, &text).await;
        let question = playing.question().await;
        playing.allow(question).await;
        let log = playing.finish().await;
        assert!(log.contains("went on") && !log.contains("refuse"), "{call}: {log}");
    }
}

#[tokio::test(start_paused = true)]
async fn continuing_an_agent_is_judged_by_its_own_type() {
    for call in CONTINUES {
        for rule in ["Agent(guide)", "Agent(claude-code-guide)", "Task(GUIDE)", "Agent(g*)"] {
            let log = continued_under(rule, Verdict::Deny, call).await;
            assert!(log.contains(&format!("denied by {rule}")), "{rule} {call}: {log}");
            assert!(!log.contains("went on"), "{rule} {call}: {log}");
            // Whoever is to be asked is not there.
            let log = continued_under(rule, Verdict::Ask, call).await;
            assert!(log.contains(&format!("{rule} asks")), "{rule} {call}: {log}");
            assert!(!log.contains("went on"), "{rule} {call}: {log}");
        }
        // The type that calls mean which name none is not the one that goes on.
        let log = continued_under("Agent(general-purpose)", Verdict::Deny, call).await;
        assert!(log.contains("went on"), "{call}: {log}");
    }
}

#[tokio::test(start_paused = true)]
async fn person_cannot_continue_an_agent_of_a_denied_type() {
    let script = "when agent=guide text=\"once more\"\n  say \"went on\"\nwhen agent=guide\n  say \"first\"\nwhen agent=main turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"guide\"}\nwhen agent=main\n  say \"done\"\n";
    let mut stage = denying(script, "");
    let first = stage.play("go").await;
    let id = first.events.iter().find_map(|envelope| envelope.agent.clone()).unwrap();
    stage.rules.deny.push(Rule::parse("Agent(claude-code-guide)", RuleSource::UserSettings).unwrap());
    let mut playing = Playing::again(&stage, first.session).await;
    send(&playing.link, 7, Command::Tell { agent: id, text: "once more".into() }).await;
    let reply = playing.until(|envelope| match &envelope.event {
        Event::Replied { request, reply } if request.0 == 7 => Some(format!("{reply:?}")),
        _ => None,
    });
    let reply = reply.await;
    assert!(reply.contains("denied by Agent(claude-code-guide)"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn denied_types_are_not_offered_to_the_model() {
    let script = "when agent=main turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"none\"}\nwhen\n  say \"done\"\n";
    for (rule, gone) in [
        ("Agent(claude-code-guide)", "guide"),
        ("Task(EXPLORE)", "Explore"),
        ("Agent(PLUG:*)", "plug:reviewer"),
        ("Agent(fork)", "fork"),
    ] {
        for of_call in [false, true] {
            let mut stage = denying(script, if of_call { "" } else { rule });
            let denied = of_call.then(|| Rule::parse(rule, RuleSource::Command).unwrap());
            stage.request.deny.extend(denied);
            stage.play("go").await;
            let [first, second] = [0, 1].map(|at| String::from_utf8(stage.requests()[at].clone()).unwrap());
            assert!(!first.contains(&format!("- {gone}: ")), "{rule}: {first}");
            assert!(first.contains("- general-purpose: ") && first.contains("- plugged: "), "{first}");
            let (_, known) = second.split_once("The types are: ").unwrap();
            let known = known.split('"').next().unwrap();
            assert!(!known.split(", ").any(|name| name == gone), "{rule}: {known}");
        }
    }
}

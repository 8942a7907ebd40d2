//! What agents may do: answers that hold for some of them, models that cannot be paid for, forks switched off.

use std::sync::Arc;

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Answer, Command, Event, Limits, Mode, Money, PermissionUpdate, Place as _, Reply, Rule, Verdict,
};
use decurion_testkit::stage::{Plain, Stage, UNPRICED, send};
use futures_util::StreamExt as _;

use crate::support::stage;

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

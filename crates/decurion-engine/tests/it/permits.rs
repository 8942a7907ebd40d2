//! What is changed with an answer: on record with it, taken up again with the session and its agents, and for the calls
//! after the one that was answered.

use std::sync::Arc;

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Answer, Command, Event, Inspected, Link, Mode, OpenSession, PermissionUpdate, Place as _, Reply, Rule,
    RulesInForce, Start, Verdict,
};
use decurion_testkit::stage::{Plain, Stage, send};
use expect_test::expect;
use serde_json::{Value, json};

use crate::support::{again, prompt, stage, until};

const POKES: &str = "when turn=1\n  call Poke {\"text\": \"1\"}\nwhen\n  say \"done\"\n";

fn rule(text: &str) -> Rule {
    Rule::parse(text, RuleSource::Session).unwrap()
}

fn allow(rules: &[&str]) -> Answer {
    Answer::Allow { input: None, rules: rules.iter().map(|text| rule(text)).collect(), everywhere: false }
}

fn asking(script: &str) -> Stage {
    let mut stage = stage(script);
    stage.request.answers = true;
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    stage
}

/// Answers the next question; gives what the session says to that.
async fn answer(link: &mut Link, answer: Answer, updates: Vec<PermissionUpdate>) -> Value {
    let question = until(link, |event, _| match event {
        Event::Asked { question } => Some(question.id),
        _ => None,
    })
    .await;
    send(link, 2, Command::Answer { question, answer, updates, by: "host".into() }).await;
    until(link, |event, _| match event {
        Event::Replied { request, reply: Reply::Done { value } } if request.0 == 2 => Some(value.clone()),
        _ => None,
    })
    .await
}

async fn root_ends(link: &mut Link) {
    until(link, |event, child| matches!(event, Event::RunEnded { .. } if !child).then_some(())).await;
}

/// What may be done, in one line.
async fn rights(link: &mut Link) -> String {
    send(link, 3, Command::Inspect { what: Inspected::Rules }).await;
    let value = until(link, |event, _| match event {
        Event::Replied { request, reply: Reply::Done { value } } if request.0 == 3 => Some(value.clone()),
        _ => None,
    })
    .await;
    let RulesInForce { mode, rules, directories, .. } = serde_json::from_value(value).unwrap();
    let all = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let directories: Vec<&str> = directories.iter().map(|path| path.as_str()).collect();
    format!(
        "{mode}; allow {}; ask {}; deny {}; in {}",
        all(&rules.allow),
        all(&rules.ask),
        all(&rules.deny),
        directories.join(" ")
    )
}

fn changes() -> Vec<(Answer, Vec<PermissionUpdate>)> {
    let (deny, ask) = (Verdict::Deny, Verdict::Ask);
    let add = |behavior, text| PermissionUpdate::AddRules { behavior, rules: vec![rule(text)] };
    let directories = || vec!["/tmp".into()];
    let given = Rule::parse("Echo", RuleSource::CliArg).unwrap();
    let (behavior, source) = (Verdict::Allow, RuleSource::CliArg);
    vec![
        (allow(&["Poke"]), Vec::new()),
        (allow(&[]), vec![add(deny, "Poke")]),
        (allow(&["Poke(x)"]), vec![add(ask, "Poke"), add(deny, "Write")]),
        (allow(&[]), vec![PermissionUpdate::SetMode { mode: Mode::AcceptEdits }]),
        (allow(&[]), vec![PermissionUpdate::AddDirectories { directories: directories() }]),
        (
            allow(&[]),
            vec![
                PermissionUpdate::AddDirectories { directories: directories() },
                PermissionUpdate::RemoveDirectories { directories: directories() },
            ],
        ),
        (allow(&[]), vec![PermissionUpdate::RemoveRules { behavior, rules: vec![given.clone()] }]),
        (allow(&[]), vec![PermissionUpdate::ReplaceRules { behavior, source, rules: vec![rule("Poke")] }]),
        (Answer::Deny { message: "no".into(), interrupt: false }, vec![add(deny, "Poke")]),
    ]
}

/// However early the process dies after the answer, and in a fork, the same may be done as before.
#[tokio::test(start_paused = true)]
async fn what_an_answer_changed_is_taken_up_again() {
    let mut seen = String::new();
    for (told, updates) in changes() {
        let stage = asking(POKES);
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        answer(&mut link, told, updates).await;
        root_ends(&mut link).await;
        let before = rights(&mut link).await;
        seen.push_str(&format!("{before}\n"));
        let record = stage.recorded(link.session);
        let answered =
            record.iter().find(|one| matches!(one.event, Event::Answered { .. })).map(|one| one.seq).unwrap();
        for crash in answered..=record.last().unwrap().seq {
            let stage = stage.after_crash_at(crash);
            let mut link = stage.engine().open(again(&stage, &link)).await.unwrap();
            assert_eq!(rights(&mut link).await, before, "after a crash at {crash}");
        }
        let after = stage.after_crash(POKES);
        let start = Start::Fork { from: link.session, id: None, at: None };
        let mut fork = after.engine().open(OpenSession { start, ..stage.request.clone() }).await.unwrap();
        assert_eq!(rights(&mut fork).await, before, "in a fork");
        // And in what goes on from the fork.
        let twice = after.after_crash(POKES);
        let mut link = twice.engine().open(again(&stage, &fork)).await.unwrap();
        assert_eq!(rights(&mut link).await, before, "in what goes on from a fork");
    }
    expect![[r"
        default; allow Echo Poke; ask ; deny ; in 
        default; allow Echo; ask ; deny Poke; in 
        default; allow Echo Poke(x); ask Poke; deny Write; in 
        acceptEdits; allow Echo; ask ; deny ; in 
        default; allow Echo; ask ; deny ; in /tmp
        default; allow Echo; ask ; deny ; in 
        default; allow ; ask ; deny ; in 
        default; allow Poke; ask ; deny ; in 
        default; allow Echo; ask ; deny Poke; in 
    "]]
    .assert_eq(&seen);
}

/// The mode that is asked for at a start is the last word, also for later ones; one that was switched off meanwhile is
/// not taken up, and that is said.
#[tokio::test(start_paused = true)]
async fn a_session_is_in_the_mode_that_was_asked_for_last() {
    let mut seen = Vec::new();
    for (asked, bypass) in [(None, true), (Some(Mode::Plan), true), (None, false)] {
        let mut stage = asking(POKES);
        stage.request.bypass = true;
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        answer(&mut link, allow(&[]), vec![PermissionUpdate::SetMode { mode: Mode::BypassPermissions }])
            .await;
        root_ends(&mut link).await;
        let mut stage = stage.after_crash(POKES);
        stage.bypass = bypass;
        let mut first =
            stage.engine().open(OpenSession { mode: asked, ..again(&stage, &link) }).await.unwrap();
        let mode = rights(&mut first).await.split(';').next().unwrap().to_owned();
        let mut later = stage.after_crash(POKES);
        later.bypass = bypass;
        let mut second = later.engine().open(again(&later, &link)).await.unwrap();
        let then = rights(&mut second).await.split(';').next().unwrap().to_owned();
        let record = later.recorded(link.session);
        let said = record.iter().filter_map(|one| match &one.event {
            Event::Notice { level, text } if level == "warning" => Some(text.as_str()),
            _ => None,
        });
        seen.push(format!(
            "{asked:?} {bypass}: {mode}, then {then}; {}",
            said.collect::<Vec<_>>().join(" / ")
        ));
    }
    expect![[r"
        None true: bypassPermissions, then bypassPermissions; 
        Some(Plan) true: plan, then plan; 
        None false: default, then default; the session continues in mode default: the mode bypassPermissions is switched off by `permissions.disableBypassPermissionsMode`"]].assert_eq(&seen.join("\n"));
}

/// What is on record, as others read it.
#[tokio::test(start_paused = true)]
async fn a_change_is_on_record_before_its_answer() {
    let stage = asking(POKES);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let updates = vec![
        PermissionUpdate::AddRules { behavior: Verdict::Deny, rules: vec![rule("Write(/etc/**)")] },
        PermissionUpdate::SetMode { mode: Mode::AcceptEdits },
        PermissionUpdate::AddDirectories { directories: vec!["relative".into()] },
    ];
    let reply = answer(&mut link, allow(&["Poke"]), updates).await;
    assert_eq!(reply, json!({"not_done": "a directory is named by its whole path: relative"}));
    let record = stage.recorded(link.session);
    let asked = record.iter().position(|one| matches!(one.event, Event::Asked { .. })).unwrap();
    let answered = record.iter().position(|one| matches!(one.event, Event::Answered { .. })).unwrap();
    let lines = record[asked + 1..answered].iter().map(|one| serde_json::to_string(&one.event).unwrap());
    expect![[r#"
        {"type":"notice","level":"info","text":"Permissions changed: Write(/etc/**) is now denied; the mode is acceptEdits"}
        {"type":"mode_changed","mode":"acceptEdits"}
        {"type":"rights_changed","updates":[{"type":"add_rules","behavior":"allow","rules":[{"tool":"Poke","source":"session"}]},{"type":"add_rules","behavior":"deny","rules":[{"tool":"Write","specifier":"/etc/**","source":"session"}]}]}"#]].assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}

/// A rule that an agent in the background was given is its own after a crash too, and a rule that denies is everyone's.
#[tokio::test(start_paused = true)]
async fn agents_that_are_taken_up_have_what_they_were_given() {
    let script = r#"
when agent=worker turn=1
  call Skill {"text": "1"}
when agent=worker turn=2
  stall
when agent=main turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker", "run_in_background": true}
when
  say "fine"
"#;
    let mut stage = asking(script);
    stage.tools.push(Arc::new(Plain::named("Skill")));
    stage.tools.push(Arc::new(Plain::named("WebFetch")));
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let deny = PermissionUpdate::AddRules { behavior: Verdict::Deny, rules: vec![rule("WebFetch")] };
    answer(&mut link, allow(&["Skill"]), vec![deny]).await;
    until(&mut link, |event, child| matches!(event, Event::CallEnded { .. } if child).then_some(())).await;
    let stage = stage.after_crash(
        r#"
when agent=worker turn=2
  call Skill {"text": "2"}
when agent=worker turn=3
  call WebFetch {"text": "3"}
when agent=worker
  say "over"
when text=/task-notification/
  call Skill {"text": "4"}
when
  say "fine"
"#,
    );
    let mut link = stage.engine().open(again(&stage, &link)).await.unwrap();
    let mut seen = String::new();
    loop {
        let (line, over) = until(&mut link, |event, child| {
            let who = if child { "agent" } else { "root" };
            let line = match event {
                Event::Asked { question } => format!("{who} asks about {}", question.tool),
                Event::CallStarted { tool, decision, .. } | Event::CallRefused { tool, decision, .. } => {
                    format!("{who} {tool}: {}", decision.reason)
                }
                Event::RunEnded { .. } => format!("{who} ends"),
                _ => return None,
            };
            let over = !child && matches!(event, Event::RunEnded { .. });
            Some((line, over || matches!(event, Event::Asked { .. })))
        })
        .await;
        seen.push_str(&format!("{line}\n"));
        if over {
            break;
        }
    }
    expect![[r"
        agent Skill: allowed by Skill
        agent WebFetch: denied by WebFetch
        agent ends
        root asks about Skill
    "]]
    .assert_eq(&seen);
}

/// The call that was let go on goes on, whatever is denied with that; the next one is not.
#[tokio::test(start_paused = true)]
async fn a_rule_that_comes_with_an_answer_is_for_the_calls_after_it() {
    let call = |text: &str| format!("  call Write {{\"file_path\": \"{text}.txt\", \"content\": \"x\"}}\n");
    let script =
        format!("when turn=1\n{}when turn=2\n{}when\n  say \"done\"\n", call("first"), call("second"));
    let mut seen = Vec::new();
    let deny = |text| PermissionUpdate::AddRules { behavior: Verdict::Deny, rules: vec![rule(text)] };
    let other = json!({"file_path": "other.txt", "content": "x"});
    for (update, input) in [
        (deny("Write"), None),
        (deny("Edit(*.txt)"), None),
        (deny("Write"), Some(other)),
        (PermissionUpdate::SetMode { mode: Mode::Plan }, None),
    ] {
        let mut stage = asking(&script).with_files();
        stage.rules.allow.clear();
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        let told = Answer::Allow { input, rules: Vec::new(), everywhere: false };
        answer(&mut link, told, vec![update.clone()]).await;
        let mut line = format!("{update:?}");
        for _ in 0..2 {
            line += &until(&mut link, |event, _| match event {
                Event::CallEnded { output, .. } => Some(format!("\n  {}", output.content.text())),
                Event::Asked { question } => Some(format!("\n  asked: {}", question.reason)),
                _ => None,
            })
            .await
            .replace(stage.request.cwd.as_str(), "~");
        }
        seen.push(line);
    }
    expect![[r#"
        AddRules { behavior: Deny, rules: [Rule { tool: "Write", specifier: None, source: Session }] }
          Created first.txt.
          Permission denied: denied by Write
        AddRules { behavior: Deny, rules: [Rule { tool: "Edit", specifier: Some("*.txt"), source: Session }] }
          Created first.txt.
          Permission denied: denied by Edit(*.txt)
        AddRules { behavior: Deny, rules: [Rule { tool: "Write", specifier: None, source: Session }] }
          Created other.txt.
          Permission denied: denied by Write
        SetMode { mode: Plan }
          Created first.txt.
          Permission denied: mode plan changes nothing"#]]
    .assert_eq(&seen.join("\n"));
}

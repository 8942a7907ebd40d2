//! The audit log as the engine fills it: every decision about a call, by whom, for which agent, without secrets.

use std::sync::{Arc, Mutex};

use decurion_engine::Audit;
use decurion_protocol::{
    Answer, AuditEntry, AuditKind, Event, HookDeclaration, HookEvent, Mode, Rule, Verdict,
};
use decurion_testkit::stage::Stage;
use expect_test::expect;
use serde_json::json;

use crate::support::{stage, with_processes};

const POKES: &str = "when turn=1\n  call Poke {\"text\": \"1\"}\nwhen\n  say \"done\"\n";

/// A log that remembers, and has something to say about its second entry.
#[derive(Default)]
struct Memory {
    entries: Mutex<Vec<AuditEntry>>,
    complains: bool,
}

impl Audit for Memory {
    fn record(&self, entry: AuditEntry) -> Option<String> {
        let mut entries = self.entries.lock().unwrap();
        entries.push(entry);
        (self.complains && entries.len() == 2).then(|| "the audit log cannot be written".to_owned())
    }
}

impl Memory {
    /// One line per entry.
    fn lines(&self) -> String {
        let entries = self.entries.lock().unwrap();
        let line = |entry: &AuditEntry| {
            let AuditKind::Permission(made) = &entry.kind else { panic!("{entry:?}") };
            let verdict = match made.decision {
                Verdict::Allow => "allow",
                Verdict::Ask => "ask",
                Verdict::Deny => "deny",
            };
            let agent = if entry.agent.is_some() { "agent" } else { "root" };
            let (rule, by) = (made.rule.as_deref().unwrap_or("-"), made.by.name());
            format!(
                "{agent} {} {} {verdict} by {by} {rule} {}: {}\n",
                made.tool, made.title, made.mode, made.reason
            )
        };
        entries.iter().map(line).collect()
    }
}

/// A stage where `Poke` needs leave, and its log.
fn asked(script: &str) -> (Stage, Arc<Memory>) {
    let mut stage = stage(script);
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    let memory = Arc::new(Memory::default());
    stage.audit = Arc::clone(&memory) as Arc<dyn Audit>;
    (stage, memory)
}

fn rule(text: &str) -> Rule {
    Rule::parse(text, Default::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn decisions_of_rules_modes_and_people_are_recorded_with_their_source() {
    let (mut stage, memory) = asked(POKES);
    stage.rules.allow.push(rule("Poke"));
    stage.play("go").await;
    stage.rules.allow.clear();
    stage.rules.deny.push(rule("Poke"));
    stage.play("go").await;
    stage.rules.deny.clear();
    stage.play("go").await;
    stage.request.answers = true;
    stage.answer = Some(Answer::Allow { input: None, rules: Vec::new(), everywhere: false });
    stage.play("go").await;
    stage.answer = Some(Answer::Deny { message: "not today".into(), interrupt: false });
    stage.play("go").await;
    stage.request.mode = Some(Mode::BypassPermissions);
    stage.play("go").await;
    expect![[r#"
        root Poke Poke "1" allow by rule Poke default: allowed by Poke
        root Poke Poke "1" deny by rule Poke default: denied by Poke
        root Poke Poke "1" deny by nobody - default: no rule allows this tool; permission cannot be requested in this non-interactive session
        root Poke Poke "1" ask by policy - default: no rule allows this tool
        root Poke Poke "1" allow by person - default: answered: allow
        root Poke Poke "1" ask by policy - default: no rule allows this tool
        root Poke Poke "1" deny by person - default: not today
        root Poke Poke "1" allow by policy - bypassPermissions: mode bypassPermissions skips all checks but deny rules
    "#]].assert_eq(&memory.lines());
}

#[tokio::test]
async fn decisions_of_hooks_are_recorded_as_theirs() {
    let (stage, memory) = asked(POKES);
    let mut stage = with_processes(stage);
    for decision in ["allow", "deny", "ask"] {
        let output = json!({"hookEventName": "PreToolUse", "permissionDecision": decision,
                            "permissionDecisionReason": "says the hook"});
        let command = format!("echo '{}'", json!({"hookSpecificOutput": output}));
        stage.hooks = vec![HookDeclaration::new(HookEvent::PreToolUse, command)];
        stage.play("go").await;
    }
    expect![[r#"
        root Poke Poke "1" allow by hook - default: says the hook
        root Poke Poke "1" deny by hook - default: PreToolUse:Poke hook error: says the hook
        root Poke Poke "1" deny by nobody - default: says the hook; permission cannot be requested in this non-interactive session
    "#]]
    .assert_eq(&memory.lines());
}

#[tokio::test(start_paused = true)]
async fn entry_names_the_agent_and_holds_no_secret() {
    let script = "when agent=worker turn=1\n  call Poke {\"text\": \"key-123\"}\nwhen agent=main turn=1\n  call Agent \
                  {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\nwhen\n  say \"done\"\n";
    let (mut stage, memory) = asked(script);
    stage.rules.allow.push(rule("Poke"));
    stage.redact = Arc::new(|text| text.contains("key-123").then(|| text.replace("key-123", "[redacted]")));
    let played = stage.play("go").await;
    expect![[r#"
        root Agent worker: d allow by policy - default: starting an agent is allowed; what it does is decided call by call
        agent Poke Poke "[redacted]" allow by rule Poke default: allowed by Poke
    "#]].assert_eq(&memory.lines());
    let entries = memory.entries.lock().unwrap();
    assert!(entries.iter().all(|entry| entry.session == Some(played.session)));
    assert!(entries[1].path.starts_with("main/"), "{:?}", entries[1].path);
}

#[tokio::test(start_paused = true)]
async fn log_that_cannot_be_written_is_reported_and_holds_no_call_up() {
    let script =
        "when turn=1\n  call Poke {\"text\": \"1\"}\n  call Poke {\"text\": \"2\"}\nwhen\n  say \"done\"\n";
    let mut stage = stage(script);
    let memory = Arc::new(Memory { complains: true, ..Memory::default() });
    stage.audit = Arc::clone(&memory) as Arc<dyn Audit>;
    let played = stage.play("go").await;
    let told = |event: &Event| matches!(event, Event::Notice { level, text } if level == "warning" && text.contains("audit log"));
    assert_eq!(played.events.iter().filter(|envelope| told(&envelope.event)).count(), 1);
    let ended = |event: &Event| matches!(event, Event::CallEnded { output, .. } if !output.is_error);
    assert_eq!(played.events.iter().filter(|envelope| ended(&envelope.event)).count(), 2);
}

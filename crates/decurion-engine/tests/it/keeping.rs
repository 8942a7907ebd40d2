//! What outlasts the session: whose word is written into settings, when, and what is said where it is not.

use std::sync::{Arc, Mutex};

use decurion_engine::{Kept, Settings};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Answer, Command, Event, HookDeclaration, HookEvent, Inspected, Link, Mode, PermissionUpdate, Place as _,
    Reply, Rule, RulesInForce, Verdict,
};
use decurion_testkit::stage::{Stage, send};
use expect_test::expect;
use serde_json::{Value, json};

use crate::support::{prompt, stage, until, with_processes};

const POKES: &str = "when turn=1\n  call Poke {\"text\": \"1\"}\nwhen\n  say \"done\"\n";

/// Settings that remember what was to be kept, or refuse it.
#[derive(Default)]
struct Notebook {
    kept: Mutex<Vec<String>>,
    refuses: bool,
}

impl Settings for Notebook {
    fn keep(&self, at: RuleSource, update: &PermissionUpdate) -> Result<Kept, String> {
        if self.refuses {
            return Err("the disk is full".to_owned());
        }
        self.kept.lock().unwrap().push(format!("{at:?} {}", json!(update)));
        Ok(Kept { file: "/settings".into(), remark: Some("once it is trusted".into()) })
    }
}

fn asking(refuses: bool) -> (Stage, Arc<Notebook>) {
    let notebook = Arc::new(Notebook { refuses, ..Notebook::default() });
    let mut stage = stage(POKES);
    stage.request.answers = true;
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    stage.settings = Arc::clone(&notebook) as Arc<dyn Settings>;
    (stage, notebook)
}

fn rules(text: &str, source: RuleSource) -> Vec<Rule> {
    vec![Rule::parse(text, source).unwrap()]
}

fn kept(at: RuleSource, update: PermissionUpdate) -> PermissionUpdate {
    PermissionUpdate::Kept { at, update: Box::new(update) }
}

async fn replied(link: &mut Link, id: u64) -> Reply {
    until(link, |event, _| match event {
        Event::Replied { request, reply } if request.0 == id => Some(reply.clone()),
        _ => None,
    })
    .await
}

async fn answer(link: &mut Link, answer: Answer, updates: Vec<PermissionUpdate>) -> Reply {
    let question = until(link, |event, _| match event {
        Event::Asked { question } => Some(question.id),
        _ => None,
    })
    .await;
    send(link, 2, Command::Answer { question, answer, updates, by: "a person".into() }).await;
    replied(link, 2).await
}

fn notices(stage: &Stage, link: &Link) -> Vec<String> {
    let record = stage.recorded(link.session);
    let said = record.iter().filter_map(|one| match &one.event {
        Event::Notice { level, text } => Some(format!("{level}: {text}")),
        _ => None,
    });
    said.collect()
}

/// An answer and a host's wish are written where they say; what is for the session alone is not.
#[tokio::test(start_paused = true)]
async fn a_persons_word_is_written_where_it_says() {
    let (stage, notebook) = asking(false);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let mut given = rules("Poke", RuleSource::LocalSettings);
    given.extend(rules("Echo(x)", RuleSource::Session));
    let told = Answer::Allow { input: None, rules: given, everywhere: false };
    let updates = vec![
        kept(RuleSource::UserSettings, PermissionUpdate::SetMode { mode: Mode::AcceptEdits }),
        PermissionUpdate::AddDirectories { directories: vec!["/tmp".into()] },
        kept(
            RuleSource::LocalSettings,
            PermissionUpdate::AddDirectories { directories: vec!["relative".into()] },
        ),
    ];
    let reply = answer(&mut link, told, updates).await;
    let (behavior, source) = (Verdict::Deny, RuleSource::ProjectSettings);
    let updates = vec![
        PermissionUpdate::ReplaceRules { behavior, source, rules: rules("WebFetch", source) },
        PermissionUpdate::RemoveRules { behavior, rules: rules("Write", RuleSource::UserSettings) },
    ];
    send(&link, 3, Command::Permit { updates }).await;
    let permitted = replied(&mut link, 3).await;
    expect![[r#"
        Done { value: Object {"not_done": String("a directory is named by its whole path: relative")} }
        Done { value: Null }
        LocalSettings {"type":"add_rules","behavior":"allow","rules":[{"tool":"Poke","source":"localSettings"}]}
        UserSettings {"type":"set_mode","mode":"acceptEdits"}
        ProjectSettings {"type":"replace_rules","behavior":"deny","source":"projectSettings","rules":[{"tool":"WebFetch","source":"projectSettings"}]}
        UserSettings {"type":"remove_rules","behavior":"deny","rules":[{"tool":"Write","source":"userSettings"}]}
        info: Permissions changed: the mode is acceptEdits; /tmp can be used
        info: kept in /settings: Poke is now allowed (once it is trusted)
        info: kept in /settings: the mode is acceptEdits (once it is trusted)
        info: Permissions changed: only WebFetch is now denied; Write is no longer denied
        info: kept in /settings: only WebFetch is now denied (once it is trusted)
        info: kept in /settings: Write is no longer denied (once it is trusted)
    "#]].assert_eq(&format!(
        "{reply:?}\n{permitted:?}\n{}\n{}\n",
        notebook.kept.lock().unwrap().join("\n"),
        notices(&stage, &link).join("\n")
    ));
}

/// Settings that cannot be written take nothing of the answer back.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_holds_for_the_session_and_is_said() {
    let (stage, _) = asking(true);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let told =
        Answer::Allow { input: None, rules: rules("Poke", RuleSource::UserSettings), everywhere: false };
    let Reply::Done { value } = answer(&mut link, told, Vec::new()).await else { panic!("refused") };
    let record = stage.recorded(link.session);
    assert!(record.iter().any(|one| matches!(&one.event, Event::RightsChanged { .. })));
    expect![[r#"
        {"not_kept":"for this session only, not kept in your settings: Poke is now allowed: the disk is full"}
        warning: for this session only, not kept in your settings: Poke is now allowed: the disk is full
    "#]]
    .assert_eq(&format!("{value}\n{}\n", notices(&stage, &link).join("\n")));
}

/// A hook answers for the session; it writes nothing that a later one begins with.
#[tokio::test]
async fn a_hook_writes_no_settings() {
    let (stage, notebook) = asking(false);
    let mut stage = with_processes(stage);
    let updates = json!([{"type": "addRules", "behavior": "allow", "destination": "userSettings",
                          "rules": [{"toolName": "Poke"}]}]);
    let decision = json!({"behavior": "allow", "updatedPermissions": updates});
    let output = json!({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}});
    stage.hooks = vec![HookDeclaration::new(HookEvent::PermissionRequest, format!("echo '{output}'"))];
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    until(&mut link, |event, _| matches!(event, Event::RunEnded { .. }).then_some(())).await;
    assert_eq!(*notebook.kept.lock().unwrap(), Vec::<String>::new());
    expect![[r"
        info: Permissions changed: Poke is now allowed
        warning: a PermissionRequest hook: not obeyed: it holds for this session and is written into no settings: only what a person or a host answers is"]].assert_eq(&notices(&stage, &link).join("\n"));
}

/// Of what is answered to an agent in the background only what is done is written.
#[tokio::test(start_paused = true)]
async fn what_is_not_done_is_not_written() {
    let (mut stage, notebook) = asking(false);
    let script = r#"
when agent=worker turn=1
  call Skill {"text": "1"}
when agent=main turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker", "run_in_background": true}
when
  say "fine"
"#;
    stage = stage.resuming(script);
    stage.tools.push(Arc::new(decurion_testkit::stage::Plain::named("Skill")));
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let told =
        Answer::Allow { input: None, rules: rules("Skill", RuleSource::LocalSettings), everywhere: false };
    let updates = vec![
        kept(RuleSource::UserSettings, PermissionUpdate::SetMode { mode: Mode::AcceptEdits }),
        PermissionUpdate::AddRules {
            behavior: Verdict::Deny,
            rules: rules("Poke", RuleSource::UserSettings),
        },
    ];
    let Reply::Done { value } = answer(&mut link, told, updates).await else { panic!("refused") };
    let value: Value = value;
    expect![[r#"
        {"not_done":"what an agent in the background asks gives no rights to the whole session; a rule that allows it something can be added with its answer"}
        LocalSettings {"type":"add_rules","behavior":"allow","rules":[{"tool":"Skill","source":"localSettings"}]}
        UserSettings {"type":"add_rules","behavior":"deny","rules":[{"tool":"Poke","source":"userSettings"}]}
    "#]].assert_eq(&format!("{value}\n{}\n", notebook.kept.lock().unwrap().join("\n")));
}

/// A session that ends waits until its settings are written.
#[tokio::test(start_paused = true)]
async fn a_session_that_ends_has_written_its_settings() {
    let (stage, notebook) = asking(false);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let updates = vec![kept(RuleSource::UserSettings, PermissionUpdate::SetMode { mode: Mode::Plan })];
    send(&link, 2, Command::Permit { updates }).await;
    send(&link, 3, Command::Close { reason: "over".into() }).await;
    replied(&mut link, 3).await;
    assert_eq!(notebook.kept.lock().unwrap().len(), 1);
}

/// Rules of managed settings stay, whoever wants them gone.
#[tokio::test(start_paused = true)]
async fn the_administrators_rules_are_nobodys_to_take_away() {
    let (mut stage, _) = asking(false);
    let managed = rules("Poke", RuleSource::PolicySettings);
    stage.rules.deny.clone_from(&managed);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let (behavior, source) = (Verdict::Deny, RuleSource::PolicySettings);
    let ways = [
        PermissionUpdate::RemoveRules { behavior, rules: managed.clone() },
        PermissionUpdate::ReplaceRules { behavior, source, rules: Vec::new() },
        kept(RuleSource::UserSettings, PermissionUpdate::RemoveRules { behavior, rules: managed.clone() }),
    ];
    for (id, update) in (2..).zip(ways) {
        send(&link, id, Command::Permit { updates: vec![update.clone()] }).await;
        let reply = replied(&mut link, id).await;
        assert!(
            format!("{reply:?}").contains("which only an administrator can change"),
            "{update:?}: {reply:?}"
        );
    }
    send(&link, 9, Command::Inspect { what: Inspected::Rules }).await;
    let Reply::Done { value } = replied(&mut link, 9).await else { panic!("no rules") };
    assert_eq!(serde_json::from_value::<RulesInForce>(value).unwrap().rules.deny, managed);
}

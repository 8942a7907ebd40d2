//! The session plans before it works: what holds meanwhile, who is asked, and what holds afterwards.

use std::os::unix::fs::PermissionsExt as _;

use decurion_protocol::{
    Answer, Command, Event, Inspected, Link, Mode, PermissionUpdate, Persistence, Place as _, Reply,
    RulesInForce, Subject,
};
use decurion_testkit::stage::{Stage, send};
use expect_test::expect;
use serde_json::{Value, json};

use crate::support::{again, prompt, stage, until};

const PLAN: &str = "# Move to SQLite\\n\\n1. change `db.rs`";
const WRITE: &str = "  call Write {\"file_path\": \"x.txt\", \"content\": \"x\"}\n";

fn enters() -> String {
    format!(
        "when turn=1\n  call EnterPlanMode {{}}\nwhen turn=2\n{WRITE}when turn=3\n  call ExitPlanMode {{\"plan\": \"{PLAN}\"}}\n\
         when turn=4\n{WRITE}when\n  say \"done\"\n"
    )
}

fn exits() -> String {
    format!("when turn=1\n  call ExitPlanMode {{\"plan\": \"{PLAN}\"}}\nwhen\n  say \"done\"\n")
}

fn planning(script: &str) -> Stage {
    let mut stage = stage(script).with_files();
    stage.request.answers = true;
    stage
}

fn agree() -> Answer {
    Answer::Allow { input: None, rules: Vec::new(), everywhere: false }
}

/// Answers the next question, which is a plan; gives that.
async fn decide(link: &mut Link, answer: Answer, updates: Vec<PermissionUpdate>) -> String {
    let (id, subject) = until(link, |event, _| match event {
        Event::Asked { question } => Some((question.id, question.subject())),
        _ => None,
    })
    .await;
    send(link, 2, Command::Answer { question: id, answer, updates, by: "a person".into() }).await;
    let Subject::Plan(plan) = subject else { panic!("{subject:?}") };
    plan
}

async fn mode(link: &mut Link) -> Mode {
    send(link, 3, Command::Inspect { what: Inspected::Rules }).await;
    let value: Value = until(link, |event, _| match event {
        Event::Replied { request, reply: Reply::Done { value } } if request.0 == 3 => Some(value.clone()),
        _ => None,
    })
    .await;
    serde_json::from_value::<RulesInForce>(value).unwrap().mode
}

/// What the model reads of the next call, and whether that failed.
async fn read(link: &mut Link) -> String {
    until(link, |event, _| match event {
        Event::Asked { question } => Some(format!("asked about {}", question.tool)),
        Event::CallEnded { output, .. } => {
            let mark = if output.is_error { "✗" } else { "→" };
            Some(format!("{mark} {}", output.content.text()))
        }
        _ => None,
    })
    .await
}

/// From the wish to plan to the work.
#[tokio::test(start_paused = true)]
async fn nothing_is_changed_before_the_plan_is_agreed_to() {
    let stage = planning(&enters());
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let mut seen = String::new();
    for _ in 0..2 {
        seen.push_str(&format!("{}\n", read(&mut link).await));
    }
    seen.push_str(&format!("asked to agree to: {:?}\n", decide(&mut link, agree(), Vec::new()).await));
    for _ in 0..2 {
        seen.push_str(&format!("{}\n", read(&mut link).await));
    }
    let modes: Vec<Mode> = stage
        .recorded(link.session)
        .iter()
        .filter_map(|one| if let Event::ModeChanged { mode } = one.event { Some(mode) } else { None })
        .collect();
    assert_eq!(modes, [Mode::Plan, Mode::Default]);
    let plans = stage.archive().layout().home().join("plans");
    let file = plans.read_dir_utf8().unwrap().next().unwrap().unwrap();
    let session = link.session.to_string();
    let seen = seen.replace(plans.as_str(), "PLANS").replace(&session[..8], "SESSION");
    expect![[r##"
        → The session is in plan mode: nothing may be changed until the user has agreed to a plan. Read what you need to, ask about what is not yours to decide, then call ExitPlanMode with the whole plan.
        ✗ Permission denied: mode plan changes nothing
        asked to agree to: "# Move to SQLite\n\n1. change `db.rs`"
        → The user agreed to the plan. The session has left plan mode (its mode is default): do the work now. The plan is kept in PLANS/move-to-sqlite-SESSION.md.

        The plan as agreed to:

        # Move to SQLite

        1. change `db.rs`
        → Created x.txt.
    "##]].assert_eq(&seen);
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "# Move to SQLite\n\n1. change `db.rs`");
    let modes =
        (file.metadata().unwrap().permissions().mode(), plans.metadata().unwrap().permissions().mode());
    assert_eq!((modes.0 & 0o777, modes.1 & 0o777), (0o600, 0o700));
}

/// Who agrees gives back the mode from before, or another with the answer; who does not leaves everything as it is.
#[tokio::test(start_paused = true)]
async fn the_mode_from_before_holds_again_or_the_one_that_was_chosen() {
    let deny = || Answer::Deny { message: "smaller steps".into(), interrupt: false };
    let edited = || {
        let input = Some(json!({"plan": "# Stay with files"}));
        Answer::Allow { input, rules: Vec::new(), everywhere: false }
    };
    let set = |mode| vec![PermissionUpdate::SetMode { mode }];
    let mut seen = String::new();
    for (before, answer, updates) in [
        (Mode::Default, agree(), Vec::new()),
        (Mode::AcceptEdits, agree(), Vec::new()),
        (Mode::BypassPermissions, agree(), Vec::new()),
        (Mode::Default, agree(), set(Mode::AcceptEdits)),
        (Mode::Default, edited(), Vec::new()),
        (Mode::AcceptEdits, deny(), Vec::new()),
        // It began in plan mode: what the settings say holds then.
        (Mode::Plan, agree(), Vec::new()),
    ] {
        let mut stage = planning(&exits());
        stage.request.mode = Some(before);
        stage.request.persistence = Persistence::Off;
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        if before != Mode::Plan {
            send(&link, 9, Command::SetMode { mode: Mode::Plan }).await;
        }
        prompt(&link, "go").await;
        decide(&mut link, answer, updates).await;
        let text = read(&mut link).await;
        let (first, plan) = text.split_once('\n').unwrap();
        let plan = plan.lines().last().unwrap_or_default();
        seen.push_str(&format!("{before}, then {}: {first} … {plan}\n", mode(&mut link).await));
    }
    expect![[r"
        default, then default: → The user agreed to the plan. The session has left plan mode (its mode is default): do the work now. … 1. change `db.rs`
        acceptEdits, then acceptEdits: → The user agreed to the plan. The session has left plan mode (its mode is acceptEdits): do the work now. … 1. change `db.rs`
        bypassPermissions, then bypassPermissions: → The user agreed to the plan. The session has left plan mode (its mode is bypassPermissions): do the work now. … 1. change `db.rs`
        default, then acceptEdits: → The user agreed to the plan. The session has left plan mode (its mode is acceptEdits): do the work now. … 1. change `db.rs`
        default, then default: → The user agreed to the plan. The session has left plan mode (its mode is default): do the work now. … # Stay with files
        acceptEdits, then plan: ✗ The plan was not agreed to, and the session stays in plan mode: smaller steps … Change the plan accordingly and call ExitPlanMode again, or ask if it is not clear what is wanted.
        plan, then default: → The user agreed to the plan. The session has left plan mode (its mode is default): do the work now. … 1. change `db.rs`
    "]].assert_eq(&seen);
}

/// Whoever goes on after a crash knows what held before, however early it came.
#[tokio::test(start_paused = true)]
async fn the_mode_from_before_outlives_the_process() {
    let mut first = planning(&enters());
    first.request.mode = Some(Mode::AcceptEdits);
    let mut link = first.engine().open(first.request.clone()).await.unwrap();
    // On record, unlike one that was given at the start.
    send(&link, 8, Command::SetMode { mode: Mode::Default }).await;
    send(&link, 9, Command::SetMode { mode: Mode::AcceptEdits }).await;
    prompt(&link, "go").await;
    until(&mut link, |event, _| matches!(event, Event::Asked { .. }).then_some(())).await;
    let mut stage = first.after_crash(&format!("when text=/go on/\n{}", &exits()["when turn=1\n".len()..]));
    stage.request.mode = None;
    let mut link = stage.engine().open(again(&stage, &link)).await.unwrap();
    assert_eq!(mode(&mut link).await, Mode::Plan);
    prompt(&link, "go on").await;
    decide(&mut link, agree(), Vec::new()).await;
    let told = read(&mut link).await;
    assert_eq!(mode(&mut link).await, Mode::AcceptEdits, "{told}");
}

/// Nobody is bothered with a plan that changes nothing.
#[tokio::test(start_paused = true)]
async fn there_is_no_way_out_of_a_mode_that_is_not_in_force() {
    let mut seen = String::new();
    for (mode, script) in [
        (Mode::Default, exits()),
        (Mode::Plan, "when turn=1\n  call EnterPlanMode {}\nwhen\n  say \"done\"\n".to_owned()),
        (Mode::Plan, "when turn=1\n  call ExitPlanMode {\"plan\": \" \"}\nwhen\n  say \"done\"\n".to_owned()),
        (Mode::Plan, "when turn=1\n  call ExitPlanMode {}\nwhen\n  say \"done\"\n".to_owned()),
    ] {
        let mut stage = planning(&script);
        stage.request.mode = Some(mode);
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        seen.push_str(&format!("{}\n", read(&mut link).await));
    }
    expect![[r"
        ✗ There is no plan to agree to: the session is not in plan mode (its mode is default). Go on with the work.
        ✗ The session is in plan mode already.
        ✗ <tool_use_error>InputValidationError: ExitPlanMode failed due to the following issue(s):
        `plan` must not be empty</tool_use_error>
        ✗ <tool_use_error>InputValidationError: ExitPlanMode failed due to the following issue(s):
        `plan` is missing</tool_use_error>
    "]].assert_eq(&seen);
}

/// The model is told that it plans, whoever wants that, and that it does no longer.
#[tokio::test(start_paused = true)]
async fn the_model_is_told_whether_it_plans() {
    let mut seen = String::new();
    for answers in [true, false] {
        let mut stage = planning("when\n  say \"fine\"\n");
        stage.request.answers = answers;
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        for mode in [Mode::Plan, Mode::Plan, Mode::Default, Mode::Default] {
            send(&link, 9, Command::SetMode { mode }).await;
            prompt(&link, "go").await;
            until(&mut link, |event, _| matches!(event, Event::RunEnded { .. }).then_some(())).await;
            let body: Value = serde_json::from_slice(stage.requests().last().unwrap()).unwrap();
            let last = body["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
            let told = last.find("The session is").map(|at| last[at..].split('"').next().unwrap());
            seen.push_str(&format!("{answers} {mode}: {told:?}\n"));
        }
    }
    expect![[r#"
        true plan: Some("The session is in plan mode: nothing may be changed until the user has agreed to a plan. Read what you need to, ask about what is not yours to decide, then call ExitPlanMode with the whole plan.")
        true plan: Some("The session is in plan mode: nothing may be changed until the user has agreed to a plan. Read what you need to, ask about what is not yours to decide, then call ExitPlanMode with the whole plan.")
        true default: Some("The session is no longer in plan mode: do the work that you are asked for.")
        true default: None
        false plan: Some("The session is in plan mode: nothing may be changed. Read what you need to, then answer with the plan of what you would do.")
        false plan: Some("The session is in plan mode: nothing may be changed. Read what you need to, then answer with the plan of what you would do.")
        false default: Some("The session is no longer in plan mode: do the work that you are asked for.")
        false default: None
    "#]].assert_eq(&seen);
}

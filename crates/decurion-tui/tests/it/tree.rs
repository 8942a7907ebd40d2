//! The tree of agents as lines: what each line says, in wide and narrow terminals, and what is left out where there are
//! too many.

use decurion_protocol::{Envelope, Event, Intent, RunId, SessionView};
use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::agents::Panel;
use expect_test::{Expect, expect};
use serde_json::{Value, json};

/// A session that has taken these events, one each second.
fn session(events: &[(Option<&str>, Value)]) -> SessionView {
    let mut view = SessionView::default();
    for (second, (agent, event)) in events.iter().enumerate() {
        let event: Event = serde_json::from_value(event.clone()).unwrap();
        assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
        let at = jiff::Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
        let agent = agent.map(|agent| agent.parse().unwrap());
        view.take(&Envelope { seq: second as u64, at, agent, run: RunId(uuid::Uuid::nil()), event });
    }
    view
}

fn opened(
    task: &str,
    parent: Option<&str>,
    kind: Option<&str>,
    description: &str,
) -> (Option<&'static str>, Value) {
    let work = if kind.is_some() { "local_agent" } else { "local_bash" };
    (
        None,
        json!({"type": "task_opened", "record": {
            "task": task, "kind": work, "description": description, "prompt": "p", "parent": parent,
            "depth": 1, "attention": "foreground", "output_file": "/x", "agent_type": kind,
        }}),
    )
}

fn state(task: &str, state: &Value) -> (Option<&'static str>, Value) {
    (None, json!({"type": "task_changed", "task": task, "state": state}))
}

fn runs(task: &str) -> (Option<&'static str>, Value) {
    state(task, &json!({"state": "running", "attention": "foreground"}))
}

fn check(view: &SessionView, columns: usize, most: usize, all: bool, expected: &Expect) {
    let theme = Theme::new(Shades::None);
    let now = jiff::Timestamp::from_second(100).unwrap();
    let panel = Panel { theme: &theme, columns, most, now, chosen: None, all };
    let lines = panel.lines(view);
    assert!(lines.len() <= most, "{}", lines.len());
    let shown: String = lines.iter().map(|line| format!("{line}\n")).collect();
    for line in shown.lines() {
        assert!(decurion_tui::text::width(line) <= columns, "{columns}: {line:?}");
    }
    expected.assert_eq(&shown);
}

fn busy() -> SessionView {
    let call = |call: &str, title: &str| {
        json!({"type": "call_started", "call": call, "tool": "Bash", "intent": Intent::titled(title),
            "decision": {"decision": "allow", "rule": null, "reason": "r"}})
    };
    let asked = json!({"type": "asked", "question": {
        "id": uuid::Uuid::nil(), "agent": "a4", "call": "c", "tool": "Bash", "input": {},
        "intent": Intent::titled("$ rm -rf target"), "reason": "no rule allows this",
    }});
    let retry = json!({"type": "waiting", "reason": {"reason": "retry", "attempt": 2, "of": 10, "delay_ms": 12_000,
        "status": 429, "error": "slow down", "rate_limited": true}});
    session(&[
        opened("a1", None, Some("Explore"), "find all callers of the old parser"),
        runs("a1"),
        (Some("a1"), call("c1", "Grep fn parse")),
        (Some("a1"), call("c2", "Read src/main.rs")),
        opened("a2", Some("a1"), Some("general-purpose"), "次の段落を調べる"),
        runs("a2"),
        (Some("a2"), retry),
        opened("b3", Some("a1"), None, "cargo test --workspace"),
        runs("b3"),
        opened("a4", None, Some("general-purpose"), "clean up"),
        runs("a4"),
        (Some("a4"), asked),
        opened("a5", None, Some("Plan"), "waits"),
        state("a5", &json!({"state": "queued", "attention": "background"})),
        opened("a6", None, Some("Plan"), "was quick"),
        state("a6", &json!({"state": "ended", "outcome": "completed", "report": "r"})),
        opened("a7", None, Some("Plan"), "went wrong\u{1b}[2J"),
        state("a7", &json!({"state": "ended", "outcome": "failed", "error": "e"})),
    ])
}

#[test]
fn everybody_has_a_line() {
    check(
        &busy(),
        100,
        20,
        false,
        &expect![[r#"
            ● Explore · find all callers of the old parser  Grep fn parse (and 1 more)          2 tools · 1m 40s
              ◌ general-purpose · 次の段落を調べる  rate limited, retry 2 of 10 in 12s                    1m 36s
              ● $ cargo test --workspace  running                                                         1m 33s
            ? general-purpose · clean up  waiting for you                                                 1m 31s
            ◌ Plan · waits  queued                                                                        1m 28s
              … 1 done, 1 failed
        "#]],
    );
    check(
        &busy(),
        60,
        20,
        true,
        &expect![[r#"
            ● Explore · find all c…  Grep fn parse (an… 2 tools · 1m 40s
              ◌ general-purpose · 次の段…  rate limited, retry 2… 1m 36s
              ● $ cargo test --workspace  running                 1m 33s
            ? general-purpose · clean up  waiting for you         1m 31s
            ◌ Plan · waits  queued                                1m 28s
            ✓ Plan · was quick  completed                             1s
            ✗ Plan · went wrong␛[2J  failed                           1s
        "#]],
    );
    check(
        &busy(),
        40,
        20,
        false,
        &expect![[r#"
            ● Explore · find all…  Grep fn parse (a…
              ◌ general-purpose…  rate limit… 1m 36s
              ● $ cargo test --work…  running 1m 33s
            ? general-purpose…  waiting for … 1m 31s
            ◌ Plan · waits  queued            1m 28s
              … 1 done, 1 failed
        "#]],
    );
    check(
        &busy(),
        12,
        20,
        false,
        &expect![[r#"
        ● Explore ·…
          ◌ general…
          ● $ cargo…
        ? general-p…
        ◌ Plan · wa…
          … 1 done,…
    "#]],
    );
}

#[test]
fn whoever_asks_is_in_sight_where_not_all_fit() {
    check(
        &busy(),
        80,
        3,
        false,
        &expect![[r#"
            ● Explore · find all callers of th…  Grep fn parse (and 1 more) 2 tools · 1m 40s
            ? general-purpose · clean up  waiting for you                             1m 31s
              … 3 more running, 1 done, 1 failed
        "#]],
    );
    check(
        &busy(),
        80,
        2,
        false,
        &expect![[r#"
            ? general-purpose · clean up  waiting for you                             1m 31s
              … 4 more running, 1 done, 1 failed
        "#]],
    );
}

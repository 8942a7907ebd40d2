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
            ● Explore · find all …  Grep fn parse (an…  2 tools · 1m 40s
              ◌ general-purpose · 次の…  rate limited, retry 2 …  1m 36s
              ● $ cargo test --workspace  running                 1m 33s
            ? general-purpose · clean up  waiting for you         1m 31s
            ◌ Plan · waits  queued                                1m 28s
            ✗ Plan · went wrong␛[2J  failed: e                        1s
            ✓ Plan · was quick  r                                     1s
        "#]],
    );
    check(
        &busy(),
        40,
        20,
        false,
        &expect![[r#"
            ● Explore · find all…  Grep fn parse (a…
              ◌ general-purpose…  rate limi…  1m 36s
              ● $ cargo test --wor…  running  1m 33s
            ? general-purpose…  waiting for…  1m 31s
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
            ? general-purpose · clean up  waiting for you                             1m 31s
            ✗ Plan · went wrong␛[2J  failed: e                                            1s
              … 4 more running, 1 done · 6 agents
        "#]],
    );
    check(
        &busy(),
        80,
        2,
        false,
        &expect![[r#"
            ? general-purpose · clean up  waiting for you                             1m 31s
              … 4 more running, 1 done, 1 failed · 6 agents
        "#]],
    );
}

/// Forty agents: one asks, two failed, three were stopped, ten are done.
fn forty() -> SessionView {
    let mut events = Vec::new();
    for number in 0..40 {
        let task = format!("a{number:02}");
        let task: &'static str = Box::leak(task.into_boxed_str());
        events.push(opened(task, None, Some("Explore"), &format!("look at part {}", number / 2)));
        events.push(runs(task));
        let ended = |outcome: &Value| {
            let mut outcome = outcome.clone();
            outcome["state"] = json!("ended");
            state(task, &outcome)
        };
        match number {
            5 => events.push((Some(task), json!({"type": "asked", "question": {
                "id": uuid::Uuid::nil(), "agent": task, "call": "c", "tool": "Bash", "input": {},
                "intent": Intent::titled("$ rm -rf target"), "reason": "no rule allows this",
            }}))),
            7 | 20 => events.push(ended(&json!({"outcome": "failed", "error": "no such file: x.rs"}))),
            10..13 => events.push(ended(&json!({"outcome": "killed", "by": "a person"}))),
            25..35 => events.push(ended(
                &json!({"outcome": "completed", "report": "## Findings\n\nTwo callers use it. Both are old."}),
            )),
            _ => events.push((None, json!({"type": "task_progressed", "task": task,
                "progress": {"tools": number, "tokens": 1_000 * number, "duration_ms": 0, "activities": []}}))),
        }
    }
    session(&events)
}

#[test]
fn forty_agents_fold_to_those_that_matter_and_a_sum() {
    check(
        &forty(),
        80,
        8,
        false,
        &expect![[r#"
        ? Explore #2 · look at part 2  waiting for you                            1m 25s
        ● Explore #1 · look at part 18  waiting for the model  36 tools · 36.0k tok · 0s
        ● Explore #2 · look at part 18  waiting for the model  37 tools · 37.0k tok · 0s
        ● Explore #1 · look at part 19  waiting for the model  38 tools · 38.0k tok · 0s
        ● Explore #2 · look at part 19  waiting for the model  39 tools · 39.0k tok · 0s
        ✗ Explore #1 · look at part 10  failed: no such file: x.rs                    2s
        ✗ Explore #2 · look at part 3  failed: no such file: x.rs                     2s
          … 20 more running, 10 done, 3 stopped · 40 agents · 420k tok
    "#]],
    );
}

/// The tree with all of them and this one chosen, on so many rows.
fn choose(view: &SessionView, chosen: &str, most: usize) -> Vec<ratatui_core::text::Line<'static>> {
    let (theme, now) = (Theme::new(Shades::None), jiff::Timestamp::from_second(100).unwrap());
    let chosen = chosen.parse().unwrap();
    Panel { theme: &theme, columns: 80, most, now, chosen: Some(&chosen), all: true }.lines(view)
}

fn shown(lines: &[ratatui_core::text::Line<'_>]) -> String {
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}

#[test]
fn those_that_ended_come_last_and_are_folded_until_one_is_chosen() {
    expect![[r#"
        ● Explore #2 · look at part 17  waiting for the model  35 tools · 35.0k tok · 0s
        ● Explore #1 · look at part 18  waiting for the model  36 tools · 36.0k tok · 0s
        ● Explore #2 · look at part 18  waiting for the model  37 tools · 37.0k tok · 0s
        ● Explore #1 · look at part 19  waiting for the model  38 tools · 38.0k tok · 0s
        ● Explore #2 · look at part 19  waiting for the model  39 tools · 39.0k tok · 0s
          … 20 more running, 10 done, 2 failed, 3 stopped · 40 agents · 420k tok
    "#]]
    .assert_eq(&shown(&choose(&forty(), "a39", 6)));
    expect![[r#"
        ● Explore #1 · look at part 19  waiting for the model  38 tools · 38.0k tok · 0s
        ● Explore #2 · look at part 19  waiting for the model  39 tools · 39.0k tok · 0s
        ✗ Explore #1 · look at part 10  failed: no such file: x.rs                    2s
        ✗ Explore #2 · look at part 3  failed: no such file: x.rs                     2s
        ✓ Explore #1 · look at part 17  Two callers use it.                           2s
          … 23 more running, 9 done, 3 stopped · 40 agents · 420k tok
    "#]]
    .assert_eq(&shown(&choose(&forty(), "a20", 6)));
    expect![[r#"
        ✓ Explore #1 · look at part 13  Two callers use it.                           2s
        ✓ Explore #2 · look at part 12  Two callers use it.                           2s
        ■ Explore #1 · look at part 6  stopped                                        2s
        ■ Explore #2 · look at part 5  stopped                                        2s
        ■ Explore #1 · look at part 5  stopped                                        2s
          … 25 more running, 8 done, 2 failed · 40 agents · 420k tok
    "#]]
    .assert_eq(&shown(&choose(&forty(), "a12", 6)));
}

#[test]
fn the_chosen_row_is_seen_from_edge_to_edge() {
    use ratatui_core::style::Modifier;
    let lines = choose(&forty(), "a39", 6);
    let reversed: Vec<bool> =
        lines.iter().map(|line| line.style.add_modifier.contains(Modifier::REVERSED)).collect();
    let chosen = reversed.iter().position(|is_chosen| *is_chosen).unwrap();
    assert_eq!(reversed.iter().filter(|is_chosen| **is_chosen).count(), 1);
    assert!(lines[chosen].to_string().contains("part 19") && lines[chosen].width() == 80);
}

#[test]
fn whoever_is_gone_leaves_no_gap_above_those_below() {
    let view = session(&[
        opened("a1", None, Some("Plan"), "outer"),
        opened("a2", Some("a1"), Some("Plan"), "inner"),
        opened("b3", Some("a2"), None, "make"),
        state("a1", &json!({"state": "ended", "outcome": "completed", "report": "r"})),
    ]);
    check(
        &view,
        60,
        8,
        false,
        &expect![[r#"
        ● Plan · inner  waiting for the model                 1m 39s
          ● $ make  running                                   1m 38s
          … 1 done
    "#]],
    );
}

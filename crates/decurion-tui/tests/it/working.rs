//! The live line: what it says while the model is silent, thinks and writes, while tools and agents work, and what gives
//! way in a narrow terminal.

use decurion_protocol::{Envelope, Event, Intent, RunId, SessionView};
use decurion_tui::text::width;
use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::working::Working;
use expect_test::{Expect, expect};
use serde_json::{Value, json};

/// A session that has taken these events, each at its millisecond.
fn session(events: &[(i64, Value)]) -> SessionView {
    let mut view = SessionView::default();
    for (seq, (ms, event)) in events.iter().enumerate() {
        let event: Event = serde_json::from_value(event.clone()).unwrap();
        assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
        let at = jiff::Timestamp::from_millisecond(*ms).unwrap();
        view.take(&Envelope { seq: seq as u64, at, agent: None, run: RunId(uuid::Uuid::nil()), event });
    }
    view.root.began = Some(jiff::Timestamp::UNIX_EPOCH);
    view.root.model = Some("anthropic/claude-sonnet-4-6".to_owned());
    view
}

fn delta(delta: &Value) -> Value {
    json!({"type": "delta", "delta": delta})
}

fn text(text: &str) -> Value {
    delta(&json!({"delta": "text", "index": 0, "text": text}))
}

fn call(id: &str) -> Value {
    json!({"type": "call_started", "call": id, "tool": "Bash", "intent": Intent::titled("$ make"),
        "decision": {"decision": "allow", "rule": null, "reason": "r"}})
}

/// The line at this millisecond, in terminals of these widths.
fn check(view: &SessionView, ms: i64, widths: &[usize], expected: &Expect) {
    let (theme, now) = (Theme::new(Shades::None), jiff::Timestamp::from_millisecond(ms).unwrap());
    let lines = widths.iter().map(|columns| {
        let line =
            Working { theme: &theme, columns: *columns, now, written: view.root.written(), is_still: false }
                .line(view)
                .to_string();
        assert!(width(&line) <= *columns, "{columns}: {line}");
        format!("{line}\n")
    });
    expected.assert_eq(&lines.collect::<String>());
}

#[test]
fn says_what_the_model_does_and_for_how_long() {
    check(
        &session(&[]),
        2_500,
        &[80],
        &expect![[r#"
        ⣻ Waiting for claude-sonnet-4-6… · 2s · esc to interrupt
    "#]],
    );
    check(
        &session(&[(1_000, text("12345678"))]),
        3_000,
        &[80],
        &expect![[r#"
        ⡿ Writing… · 3s · esc to interrupt
    "#]],
    );
    let thought = delta(&json!({"delta": "thinking", "index": 0, "text": "x".repeat(4_800)}));
    check(
        &session(&[(1_000, thought)]),
        3_250,
        &[80, 45, 30, 8],
        &expect![[r#"
        ⣟ Thinking… · 3s · ↓ 1.2k tok · esc to interrupt
        ⣟ Thinking… · 3s · esc to interrupt
        ⣟ Thinking… · 3s
        ⣟ Think…
    "#]],
    );
    let input = delta(&json!({"delta": "input", "index": 0, "json": "{"}));
    check(
        &session(&[(1_000, input)]),
        75_000 - 70_000,
        &[80],
        &expect![[r#"
        ⡿ Preparing a tool call… · 5s · esc to interrupt
    "#]],
    );
}

#[test]
fn a_silent_provider_looks_different_from_one_that_writes() {
    let writes = session(&[(1_000, text("so"))]);
    check(
        &writes,
        10_900,
        &[80],
        &expect![[r#"
        ⢿ Writing… · 10s · esc to interrupt
    "#]],
    );
    check(
        &writes,
        34_000,
        &[80],
        &expect![[r#"
        ⣾ Writing… · no answer for 33s · esc to interrupt
    "#]],
    );
    // Whoever came later has not heard that the request was sent.
    let said = json!({"type": "message", "message": {"role": "user", "content": "x"}, "lines": [], "parent": null,
        "meta": {"origin": "prompt"}});
    check(
        &session(&[(1_000, said)]),
        34_000,
        &[80],
        &expect![[r#"
        ⣾ Waiting for claude-sonnet-4-6… · no answer for 33s · esc to interrupt
    "#]],
    );
    // A tool may take as long as it needs.
    check(
        &session(&[(1_000, call("c1"))]),
        34_000,
        &[80],
        &expect![[r#"
        ⣾ Running 1 tool… · 34s · esc to interrupt
    "#]],
    );
}

#[test]
fn counts_tools_and_agents() {
    check(
        &session(&[(1_000, call("c1")), (1_000, call("c2"))]),
        5_000,
        &[80],
        &expect![[r#"
        ⡿ Running 2 tools… · 5s · esc to interrupt
    "#]],
    );
    let opened = |task: &str| {
        json!({"type": "task_opened", "record": {"task": task, "kind": "local_agent", "description": "d",
            "prompt": "p", "parent": null, "depth": 1, "attention": "foreground", "output_file": "/x",
            "agent_type": "Explore"}})
    };
    let agents = [(1_000, call("c1")), (1_000, call("c2")), (1_000, opened("a1")), (1_000, opened("a2"))];
    check(
        &session(&agents),
        5_000,
        &[80],
        &expect![[r#"
        ⡿ Waiting for 2 agents… · 5s · esc to interrupt
    "#]],
    );
    check(
        &session(&agents[..3]),
        5_000,
        &[80],
        &expect![[r#"
        ⡿ Running 2 tools… · 5s · esc to interrupt
    "#]],
    );
}

#[test]
fn says_why_a_request_is_not_answered_yet() {
    let retry = |status: u16, limited: bool| {
        json!({"type": "waiting", "reason": {"reason": "retry", "attempt": 2, "of": 10, "delay_ms": 12_000,
            "status": status, "error": "slow down", "rate_limited": limited}})
    };
    for (status, limited, expected) in [
        (
            429,
            true,
            expect![[r#"
            ⣾ rate limited, retry 2 of 10 in 12s · 40s · esc to interrupt
        "#]],
        ),
        (
            529,
            true,
            expect![[r#"
            ⣾ provider overloaded, retry 2 of 10 in 12s · 40s · esc to interrupt
        "#]],
        ),
        (
            503,
            false,
            expect![[r#"
            ⣾ retry 2 of 10 in 12s: slow down · 40s · esc to interrupt
        "#]],
        ),
    ] {
        check(&session(&[(1_000, retry(status, limited))]), 40_000, &[80], &expected);
    }
}

//! The gateway in simulated time: limits, faults, stalls, fairness, and that nothing is ever said twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decurion_model::{
    BoxStream, Dialect, Gateway, GatewayEvent, GatewaySettings, ModelError, ModelEvent, ModelProvider,
    ModelRequest, ReplyInfo,
};
use decurion_protocol::event::WaitReason;
use decurion_protocol::{Block, Delta, Message};
use expect_test::expect;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use crate::stage::{Player, kept, outline, request, request_in, shown, tagged, turn};

/// Asks for this many replies at once; each must come.
async fn complete_together(gateway: &Gateway, count: usize) {
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            let (gateway, request) = (gateway.clone(), tagged(&format!("main/a{number}"), "x"));
            tokio::spawn(async move { turn(&gateway, request).await.1 })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_passes_through() {
    let player = Player::new("when\n think \"a\"\n say \"b\"\n call Bash {\"command\":\"ls\"}");
    let (events, error) = turn(&player.gateway(), request("go")).await;
    assert_eq!(error, None);
    assert_eq!(kept(&events).len(), 3);
    assert!(!events.iter().any(|event| matches!(event, GatewayEvent::Model(ModelEvent::Accepted(_)))));
    assert_eq!((outline(&events).as_str(), player.requests()), ("(15 pieces)\ncompleted by claude-test", 1));
}

// ---- limits ----

/// Sends so many agents through at once; they must all get their reply.
async fn storm(script: &str, agents: usize) -> (usize, Duration) {
    let player = Player::new(script);
    let gateway = player.gateway();
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..agents {
        let gateway = gateway.clone();
        tasks.spawn(async move {
            let request = tagged(&format!("main/a{number}"), &format!("task {number}"));
            let (events, error) = turn(&gateway, request).await;
            assert_eq!(error, None);
            assert_eq!(kept(&events), [Block::text("done")]);
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    let load = &gateway.load()[0].1;
    assert_eq!((load.running, load.waiting), (0, 0));
    (player.requests(), started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_hundred_agents_come_through_a_minute_of_refusals() {
    for failure in [
        "fail 429",
        "fail 429 retry-after=1",
        "fail 429 retry-after=20",
        "fail 529",
        "error overloaded_error",
    ] {
        let script = format!("when within=60s\n {failure}\nwhen\n delay 3s\n say \"done\"");
        let (requests, time) = storm(&script, 100).await;
        assert!(requests <= 300, "{failure}: {requests} requests");
        assert!(time >= Duration::from_mins(1) && time < Duration::from_mins(4), "{failure}: {time:?}");
    }
}

/// A provider that bears only so many requests at a time.
struct Narrow {
    room: usize,
    inside: Arc<AtomicUsize>,
    requests: AtomicUsize,
    most: AtomicUsize,
}

struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ModelProvider for Narrow {
    fn dialect(&self) -> Dialect {
        Dialect::Anthropic
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let before = self.inside.fetch_add(1, Ordering::Relaxed);
        let guard = Inside(self.inside.clone());
        self.most.fetch_max(before + 1, Ordering::Relaxed);
        if before >= self.room {
            let after = Some(Duration::from_secs(1));
            let said = decurion_model::Said::new("too many");
            return stream::once(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(guard);
                Err(ModelError::Busy { after, status: 429, retry: true, said })
            })
            .boxed();
        }
        let first = ModelEvent::Accepted(decurion_model::Accepted::default());
        let reply = stream::once(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(guard);
            Ok(ModelEvent::Block { index: 0, block: Block::text("done") })
        });
        let last = stream::once(async { Ok(ModelEvent::Completed(ReplyInfo::default())) });
        stream::once(async move { Ok(first) }).chain(reply).chain(last).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn concurrency_settles_where_the_provider_can_bear_it() {
    let narrow = Arc::new(Narrow {
        room: 10,
        inside: Arc::default(),
        requests: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let gateway = Gateway::new(narrow.clone(), GatewaySettings::default());
    let started = Instant::now();
    let tasks = (0..200).map(|number| {
        let gateway = gateway.clone();
        tokio::spawn(async move { turn(&gateway, tagged(&format!("main/a{number}"), "x")).await.1 })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), None);
    }
    let requests = narrow.requests.load(Ordering::Relaxed);
    assert!(requests <= 3 * 200, "{requests} requests");
    // 200 requests of 5 s, 10 at a time, take 100 s at best.
    assert!(started.elapsed() < Duration::from_mins(5), "{:?}", started.elapsed());
    assert_eq!(narrow.most.load(Ordering::Relaxed), 200, "it starts unlimited");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_in_full_and_shown() {
    for (failure, seconds) in [
        ("fail 429 retry-after=7", 7),
        ("fail 429 retry-after-ms=2500", 2),
        ("fail 529 retry-after=4000", 4000),
        (
            "fail 429 header.date=\"Sun, 15 Nov 2026 10:00:00 GMT\" retry-after=\"Sun, 15 Nov 2026 10:05:00 GMT\"",
            300,
        ),
        ("fail 429 header.x-ratelimit-remaining-requests=0 header.x-ratelimit-reset-requests=1m30s", 90),
        ("fail 500 retry-after=40", 40),
    ] {
        let player = Player::new(&format!("when try=1\n {failure}\nwhen\n say \"ok\""));
        let started = Instant::now();
        let (events, error) = turn(&player.gateway(), request("x")).await;
        assert_eq!((error, started.elapsed().as_secs()), (None, seconds), "{failure}");
        let GatewayEvent::Waiting(WaitReason::Retry { delay_ms, attempt: 2, .. }) = &events[0] else {
            panic!("{events:?}")
        };
        assert_eq!(delay_ms / 1000, seconds, "{failure}");
        assert_eq!(events[1], GatewayEvent::Resumed);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_one_request_goes_ahead_of_all_others() {
    let player =
        Player::new("when within=30s\n delay 1s\n fail 429 retry-after=30\nwhen\n delay 5s\n say \"x\"");
    let gateway = player.gateway();
    let started = Instant::now();
    complete_together(&gateway, 10).await;
    let times = player.times.lock().unwrap();
    let at = |second: u64| times.iter().filter(|time| (**time - started).as_secs() == second).count();
    assert_eq!((at(0), at(31), times.len()), (10, 1, 20), "{times:?}");
    assert!(at(36) > 1, "the way is free for more than one: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn one_refusal_pauses_everyone_and_one_goes_first_afterwards() {
    let player = Player::new(
        "when agent=main/first try=1\n fail 429 retry-after=30\nwhen agent=main/first\n delay 5s\n say \"x\"\nwhen\n say \"x\"",
    );
    let gateway = player.gateway();
    let mut first = shown(&gateway, tagged("main/first", "x"));
    let waiting = first.next().await.unwrap().unwrap();
    assert!(
        matches!(waiting, GatewayEvent::Waiting(WaitReason::Retry { rate_limited: true, .. })),
        "{waiting:?}"
    );
    let started = Instant::now();
    let mut second = shown(&gateway, tagged("main/second", "x"));
    let told = second.next().await.unwrap().unwrap();
    assert!(
        matches!(
            &told,
            GatewayEvent::Waiting(WaitReason::Retry { delay_ms: 29_000..=30_000, attempt: 1, .. })
        ),
        "{told:?}"
    );
    let second = tokio::spawn(async move { second.collect::<Vec<_>>().await });
    let first = tokio::spawn(async move { first.collect::<Vec<_>>().await });
    assert!(first.await.unwrap().iter().all(Result::is_ok));
    assert_eq!(started.elapsed().as_secs(), 35);
    assert!(second.await.unwrap().iter().all(Result::is_ok));
    // Whoever went ahead, the other was not sent before the provider had answered.
    assert_eq!(player.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_for_those_who_are_left_when_others_leave() {
    let player = Player::new("when agent=main/first\n fail 429 retry-after=30\nwhen\n say \"x\"");
    let gateway = player.gateway();
    let mut first = shown(&gateway, tagged("main/first", "x"));
    first.next().await;
    let mut second = shown(&gateway, tagged("main/second", "x"));
    second.next().await;
    drop(first);
    let rest: Vec<_> = second.collect().await;
    assert!(matches!(rest.last(), Some(Ok(GatewayEvent::Model(ModelEvent::Completed(_))))), "{rest:?}");
    assert_eq!(gateway.load()[0].1.waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_line_learns_of_a_pause_that_begins_meanwhile() {
    let player = Player::new(
        r#"
        when agent=main/first try=1
          fail 429 retry-after=1
        when agent=main/first
          delay 10s
          error rate_limit_error
        when
          say "x"
        "#,
    );
    let gateway = player.gateway();
    let mut first = shown(&gateway, tagged("main/first", "x"));
    while !matches!(first.next().await, Some(Ok(GatewayEvent::Resumed))) {}
    // The first one is under way again, alone; the second stands behind it.
    assert!(first.next().now_or_never().is_none());
    let mut second = shown(&gateway, tagged("main/second", "x"));
    let told = second.next().await;
    assert!(matches!(&told, Some(Ok(GatewayEvent::Waiting(WaitReason::Turn { .. })))), "{told:?}");
    let second = tokio::spawn(async move { second.collect::<Vec<_>>().await });
    tokio::task::yield_now().await;
    while !matches!(first.next().await, Some(Ok(GatewayEvent::Waiting(_)))) {}
    drop(first);
    let rest = tokio::time::timeout(Duration::from_mins(5), second).await.unwrap().unwrap();
    assert!(matches!(&rest[0], Ok(GatewayEvent::Waiting(WaitReason::Retry { .. }))), "{rest:?}");
    assert!(matches!(rest.last(), Some(Ok(GatewayEvent::Model(ModelEvent::Completed(_))))), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn the_root_goes_first_and_subtrees_take_turns() {
    // One refusal with one under way sets the limit to one; then everyone queues behind a slow reply.
    let player = Player::new(
        "when agent=main/slow try=1\n fail 429 retry-after=1\nwhen agent=main/slow\n delay 50s\n say \"x\"\nwhen\n delay 1s\n say \"x\"",
    );
    let gateway = player.gateway();
    let mut slow = shown(&gateway, tagged("main/slow", "x"));
    slow.next().await;
    let slow = tokio::spawn(async move { slow.collect::<Vec<_>>().await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut tasks = Vec::new();
    for path in ["main/a", "main/a/1", "main/a/2", "main/a/3", "main/b", "main/b/1", "main/c", "main"] {
        let mut stream = shown(&gateway, tagged(path, path));
        let told = stream.next().await.unwrap().unwrap();
        assert!(matches!(told, GatewayEvent::Waiting(WaitReason::Turn { .. })), "{told:?}");
        tasks.push(tokio::spawn(async move { stream.collect::<Vec<_>>().await }));
    }
    assert_eq!(gateway.load()[0].1.limit, Some(1));
    slow.await.unwrap();
    for task in tasks {
        assert!(task.await.unwrap().iter().all(Result::is_ok));
    }
    let order = player.paths.lock().unwrap()[2..].join(" ");
    expect!["main main/a main/b main/c main/a/1 main/b/1 main/a/2 main/a/3"].assert_eq(&order);
}

#[tokio::test(start_paused = true)]
async fn used_up_limits_in_headers_pause_before_a_refusal() {
    struct Last(AtomicUsize);
    impl ModelProvider for Last {
        fn dialect(&self) -> Dialect {
            Dialect::Anthropic
        }
        fn stream(&self, _: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
            let first = self.0.fetch_add(1, Ordering::Relaxed) == 0;
            let limits = decurion_model::RateLimits {
                remaining: Some(u64::from(!first)),
                reset: Some(Duration::from_secs(20)),
            };
            let accepted = decurion_model::Accepted { request_id: None, limits };
            let events = [
                ModelEvent::Accepted(accepted),
                ModelEvent::Block { index: 0, block: Block::text("x") },
                ModelEvent::Completed(ReplyInfo::default()),
            ];
            stream::iter(events.map(Ok)).boxed()
        }
    }
    let gateway = Gateway::new(Arc::new(Last(AtomicUsize::new(0))), GatewaySettings::default());
    let started = Instant::now();
    turn(&gateway, request("1")).await;
    assert_eq!(started.elapsed().as_secs(), 0);
    turn(&gateway, request("2")).await;
    assert_eq!(started.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn overload_falls_back_after_three_and_says_so() {
    let script = "when model=claude-test\n fail 529\nwhen\n say \"x\"";
    let player = Player::new(script);
    let fallback = ModelRequest { fallback: Some("claude-other".into()), ..request("x") };
    let (events, error) = turn(&player.gateway(), fallback).await;
    assert_eq!(error, None);
    expect![[r"
        waiting to try 2 of None, status Some(529), limit true
        resumed
        waiting to try 3 of None, status Some(529), limit true
        resumed
        fell back from claude-test to claude-other
        (6 pieces)
        completed by claude-other"]]
    .assert_eq(&outline(&events));
    assert_eq!(player.models.lock().unwrap().join(" "), "claude-test claude-test claude-test claude-other");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_says_not_to_retry_is_believed() {
    for failure in
        ["fail 429 should-retry=false", "fail 529 should-retry=false", "fail 500 should-retry=false"]
    {
        let player = Player::new(&format!("when\n {failure}"));
        let (events, error) = turn(&player.gateway(), request("x")).await;
        assert!(events.is_empty() && error.is_some() && player.requests() == 1, "{failure}: {events:?}");
    }
}

// ---- faults ----

#[tokio::test(start_paused = true)]
async fn faults_are_tried_ten_times_and_then_reported_with_the_request_id() {
    for failure in ["fail 500 \"oh\"", "reset", "close", "error api_error"] {
        let player = Player::new(&format!("when\n {failure}"));
        let started = Instant::now();
        let (events, error) = turn(&player.gateway(), request("x")).await;
        let error = error.unwrap();
        assert_eq!(player.requests(), 10, "{failure}: {error}");
        assert!(started.elapsed() <= Duration::from_mins(10), "{failure}: {:?}", started.elapsed());
        let waits = events.iter().filter(|event| matches!(event, GatewayEvent::Waiting(_))).count();
        assert_eq!(waits, 9, "{failure}");
        assert!(failure == "reset" || error.request_id().is_some_and(|id| id.starts_with("req_")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_double_up_to_their_bound_and_are_repeatable() {
    let waits = |seed: u64| async move {
        let player = Player::new("when\n fail 503");
        let gateway = Gateway::new(player, GatewaySettings { seed, ..GatewaySettings::default() });
        let (events, _) = turn(&gateway, request("x")).await;
        let delays: Vec<u64> = events
            .iter()
            .filter_map(|event| match event {
                GatewayEvent::Waiting(WaitReason::Retry { delay_ms, .. }) => Some(*delay_ms),
                _ => None,
            })
            .collect();
        delays
    };
    let first = waits(1).await;
    assert_eq!(first, waits(1).await);
    assert_ne!(first, waits(2).await);
    for (place, delay) in first.iter().enumerate() {
        assert!(*delay <= (500 << place).min(32_000), "{first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_help_is_not_repeated() {
    for (failure, word) in [
        ("fail 400 \"bad\"", "invalid_request"),
        ("fail 400 \"prompt is too long: 200001 tokens > 200000 maximum\"", "invalid_request"),
        ("fail 401", "authentication_failed"),
        ("fail 402", "billing_error"),
        ("fail 404 \"model: claude-x\"", "model_not_found"),
        ("fail 413", "invalid_request"),
    ] {
        let player = Player::new(&format!("when\n {failure}"));
        let (events, error) = turn(&player.gateway(), request("x")).await;
        assert!(events.is_empty() && player.requests() == 1, "{failure}");
        assert_eq!(error.unwrap().word(), word, "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_tried_three_times() {
    for damage in [
        "malformed json",
        "malformed utf8",
        "malformed order",
        "malformed html",
        "malformed line 5000000",
        "status 200 content-type=text/html \"<html><title>Login</title>\"",
    ] {
        let player = Player::new(&format!("when\n {damage}"));
        let (_, error) = turn(&player.gateway(), request("x")).await;
        assert!(matches!(error, Some(ModelError::Malformed { .. })), "{damage}: {error:?}");
        assert_eq!(player.requests(), 3, "{damage}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_after_every_event_of_a_long_stream_is_recovered() {
    let calls = " call Bash {\"command\":\"ls\"}\n".repeat(8);
    let reply = format!(" think chunk=2 \"thinking\"\n say chunk=4 \"{}\"\n{calls}", "word ".repeat(20));
    let whole = Player::new(&format!("when\n{reply}"));
    let (expected, _) = turn(&whole.gateway(), request("go")).await;
    let expected = kept(&expected);
    assert_eq!(expected.len(), 10);
    let mut recovered = 0;
    for cut in 0..60 {
        for how in ["reset", "close", "stall"] {
            let player = Player::new(&format!("when try=1\n{reply} {how} after {cut} events\nwhen\n{reply}"));
            let (events, error) = turn(&player.gateway(), request("go")).await;
            assert_eq!(error, None, "{how} after {cut}");
            assert_eq!(kept(&events), expected, "{how} after {cut}");
            let shown = events.iter().position(|event| matches!(event, GatewayEvent::Model(_))).unwrap();
            let discarded =
                events.iter().any(|event| matches!(event, GatewayEvent::Discarded { shown: true, .. }));
            let waited = events.iter().position(|event| matches!(event, GatewayEvent::Waiting(_))).unwrap();
            assert_eq!(discarded, shown < waited, "{how} after {cut}: what was shown is taken back");
            assert_eq!(player.requests(), 2);
            recovered += 1;
        }
    }
    assert_eq!(recovered, 180);
}

// ---- patience ----

fn patient(player: &Arc<Player>, minutes: u64) -> Gateway {
    let patience = Some(Duration::from_mins(minutes));
    let settings =
        GatewaySettings { patience, provider: "anthropic".to_owned(), ..GatewaySettings::default() };
    Gateway::new(player.clone(), settings)
}

#[tokio::test(start_paused = true)]
async fn refusals_without_end_are_given_up_when_patience_ends() {
    for failure in
        ["fail 429 retry-after=60 \"slow down\"", "fail 529 \"slow down\"", "error overloaded_error"]
    {
        let player = Player::new(&format!("when\n {failure}"));
        let started = Instant::now();
        let (_, error) = turn(&patient(&player, 15), request("x")).await;
        let Some(ModelError::Impatient { wait, .. }) = &error else { panic!("{failure}: {error:?}") };
        assert_eq!(wait.waited, started.elapsed(), "{failure}");
        let time = started.elapsed();
        assert!(time > Duration::from_mins(13) && time <= Duration::from_mins(15), "{failure}: {time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_longer_than_patience_is_not_begun() {
    let player = Player::new(
        "when try=1\n fail 429 retry-after=300\nwhen\n fail 429 retry-after=7500 \"daily limit\"",
    );
    let started = Instant::now();
    let (events, error) = turn(&patient(&player, 15), request("x")).await;
    assert_eq!((started.elapsed().as_secs(), player.requests()), (300, 2), "{events:?}");
    let error = error.unwrap();
    assert_eq!((error.status(), error.word()), (Some(429), "rate_limit"));
    expect![[r#"the provider "anthropic" refuses requests (status 429), gave up after 5 min and it asks to wait 2 h 5 min more: daily limit (request id req_2083f43d8984046a31b02580). Try again later, choose another model, or wait longer with timeouts.patienceMs in the provider's settings"#]]
        .assert_eq(&error.to_string());
}

#[tokio::test(start_paused = true)]
async fn without_a_patience_a_day_is_waited() {
    let player = Player::new("when try=1\n fail 429 retry-after=86400\nwhen\n say \"x\"");
    let started = Instant::now();
    let (_, error) = turn(&player.gateway(), request("x")).await;
    assert_eq!((error, started.elapsed().as_secs()), (None, 86_400));
}

/// Answers one request in each minute, and refuses the others until the next.
#[derive(Default)]
struct OneAMinute {
    answered: Mutex<Option<Instant>>,
}

impl ModelProvider for OneAMinute {
    fn dialect(&self) -> Dialect {
        Dialect::Anthropic
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let mut answered = self.answered.lock().unwrap();
        let minute = Duration::from_mins(1);
        let left = answered.map_or(Duration::ZERO, |last| minute.saturating_sub(last.elapsed()));
        if !left.is_zero() {
            let said = decurion_model::Said::new("one a minute");
            let busy = ModelError::Busy { after: Some(left), status: 429, retry: true, said };
            return stream::once(async { Err(busy) }).boxed();
        }
        *answered = Some(Instant::now());
        let block = Ok(ModelEvent::Block { index: 0, block: Block::text("done") });
        stream::iter([block, Ok(ModelEvent::Completed(ReplyInfo::default()))]).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_line_that_moves_needs_no_patience() {
    let settings = GatewaySettings { patience: Some(Duration::from_mins(15)), ..GatewaySettings::default() };
    let gateway = Gateway::new(Arc::new(OneAMinute::default()), settings);
    let started = Instant::now();
    complete_together(&gateway, 60).await;
    assert!(started.elapsed() >= Duration::from_mins(59));
}

// ---- stalls ----

#[tokio::test(start_paused = true)]
async fn every_shape_of_silence_ends_at_its_limit() {
    for (script, limit) in [
        ("stall", 300),
        ("stall pings", 1_200),
        ("stall empty", 1_200),
        ("say \"a\"\n stall", 300),
        ("say \"a\"\n stall pings every=1s", 1_200),
        ("say \"a\"\n stall empty every=1s", 1_200),
    ] {
        let player = Player::new(&format!("when try=1\n {script}\nwhen\n say \"x\""));
        let started = Instant::now();
        let mut stream = player.gateway().stream(request("x"));
        let ended = loop {
            if let GatewayEvent::Waiting(reason) = stream.next().await.unwrap().unwrap() {
                break reason;
            }
        };
        let time = started.elapsed();
        assert!(
            time >= Duration::from_secs(limit) && time <= Duration::from_secs(limit + 1),
            "{script}: {time:?}"
        );
        assert!(matches!(ended, WaitReason::Retry { rate_limited: false, .. }), "{ended:?}");
        let rest: Vec<_> = stream.collect().await;
        assert!(matches!(rest.last(), Some(Ok(GatewayEvent::Model(ModelEvent::Completed(_))))), "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_for_ever_is_given_up_within_its_time() {
    for script in ["stall", "stall pings", "stall empty every=2s"] {
        let player = Player::new(&format!("when\n {script}"));
        let started = Instant::now();
        let (_, error) = turn(&player.gateway(), request("x")).await;
        assert!(matches!(error, Some(ModelError::Stalled { .. })), "{error:?}");
        // All tries together are under way for no longer than a turn may be.
        assert!(started.elapsed() <= Duration::from_mins(31), "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn time_before_a_request_is_sent_is_not_the_providers_silence() {
    let player = Player::new("when\n delay 299s\n say \"x\"");
    let mut stream = player.gateway().stream(request("x"));
    assert_eq!(stream.next().await, Some(Ok(GatewayEvent::Sending)));
    // What is put on record before it is sent can take long: the disk may refuse.
    tokio::time::sleep(Duration::from_hours(2)).await;
    let rest: Vec<_> = stream.collect().await;
    assert!(matches!(rest.last(), Some(Ok(GatewayEvent::Model(ModelEvent::Completed(_))))), "{rest:?}");
    assert_eq!(player.requests(), 1);
}

/// A scripted reply that takes its time; keep-alives may come meanwhile.
async fn thought(script: &str) -> (usize, Option<ModelError>) {
    let player = Player::new(script);
    let (_, error) = turn(&player.gateway(), request("x")).await;
    (player.requests(), error)
}

#[tokio::test(start_paused = true)]
async fn a_model_that_thinks_unseen_is_asked_once() {
    let ping = r#"raw "event: ping\ndata: {\"type\": \"ping\"}\n\n""#;
    let pings = format!("delay 15s\n {ping}\n ").repeat(40);
    for (script, what) in [
        (format!("when\n say \"a\"\n {pings}say \"b\""), "ten minutes of keep-alives within a reply"),
        (format!("when\n {pings}say \"b\""), "ten minutes of keep-alives before a reply"),
        ("when\n say \"a\"\n delay 4m\n say \"b\"".to_owned(), "four minutes of silence within a reply"),
        ("when\n delay 4m\n say \"a\"".to_owned(), "a server that reads for four minutes"),
    ] {
        assert_eq!(thought(&script).await, (1, None), "{what}");
    }
    // The other dialect keeps a stream alive with comments.
    let player = Player::speaking(Dialect::OpenAiChat, "when try=1\n stall pings\nwhen\n say \"x\"");
    let started = Instant::now();
    let (_, error) = turn(&player.gateway(), request_in(Dialect::OpenAiChat, &[Message::user("x")])).await;
    assert_eq!((error, started.elapsed().as_secs() / 60), (None, 20));
}

/// Content for ever, or nothing but white space for ever.
struct Endless(&'static str);

impl ModelProvider for Endless {
    fn dialect(&self) -> Dialect {
        Dialect::Anthropic
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let text = self.0;
        stream::repeat_with(move || async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(ModelEvent::Delta(Delta::Text { index: 0, text: text.to_owned() }))
        })
        .then(|item| item)
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_never_ends_is_ended() {
    let started = Instant::now();
    let gateway = Gateway::new(Arc::new(Endless("word ")), GatewaySettings::default());
    let (_, error) = turn(&gateway, request("x")).await;
    expect!["the reply did not end within 1800 s; if the model needs longer, raise timeouts.turnMs in the provider's settings"].assert_eq(&error.unwrap().to_string());
    assert_eq!(started.elapsed().as_secs(), 1800);
    let gateway = Gateway::new(Arc::new(Endless(" \n")), GatewaySettings::default());
    let (_, error) = turn(&gateway, request("x")).await;
    assert!(matches!(error, Some(ModelError::Stalled { .. })), "{error:?}");
}

// ---- the rest ----

#[tokio::test(start_paused = true)]
async fn an_empty_reply_is_asked_for_once_more() {
    let player = Player::new("when try=1\n say \"\"\nwhen\n say \"x\"");
    let (events, error) = turn(&player.gateway(), request("x")).await;
    assert_eq!((error, kept(&events).len(), player.requests()), (None, 1, 2));
    let player = Player::new("when\n say \"\"");
    let (events, error) = turn(&player.gateway(), request("x")).await;
    assert_eq!((error, kept(&events).len(), player.requests()), (None, 0, 2));
    let player = Player::new("when\n stop refusal");
    let (_, error) = turn(&player.gateway(), request("x")).await;
    assert_eq!((error, player.requests()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_frees_its_place_at_once() {
    for script in ["say \"a\"\n stall", "fail 429 retry-after=100", "fail 500", "stall"] {
        let player = Player::new(&format!("when\n {script}"));
        let gateway = player.gateway();
        let mut stream = gateway.stream(request("x"));
        assert_eq!(gateway.load().len(), 0, "nothing happens before the first poll");
        let _ = stream.next().now_or_never();
        drop(stream);
        let load = &gateway.load()[0].1;
        assert_eq!((load.running, load.waiting), (0, 0), "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_steps_aside_frees_its_place_and_stands_in_line_again() {
    let player = Player::new("when\n say \"x\"");
    let gateway = player.gateway();
    let mut turn = gateway.turn(request("x"));
    assert_eq!(turn.next().await, Some(Ok(GatewayEvent::Sending)));
    assert_eq!(gateway.load()[0].1.running, 1);
    turn.step_aside();
    assert_eq!(gateway.load()[0].1.running, 0);
    assert_eq!(turn.next().await, Some(Ok(GatewayEvent::Sending)));
    let mut last = None;
    while let Some(item) = turn.next().await {
        last = Some(item);
    }
    assert!(matches!(last, Some(Ok(GatewayEvent::Model(ModelEvent::Completed(_))))), "{last:?}");
    assert_eq!(player.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hole_in_a_script_is_shown_and_not_retried() {
    let player = Player::new("when turn=7\n say \"x\"");
    let (_, error) = turn(&player.gateway(), request("hello there")).await;
    expect![[r#"the provider rejected the request (status 400): no rule of the script fits agent "main" (path "main"), turn 1, try 1, whose last message is: "hello there""#]]
        .assert_eq(&error.unwrap().to_string());
    assert_eq!(player.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn both_dialects_go_through_the_same_gateway() {
    let player = Player::speaking(
        Dialect::OpenAiChat,
        "when try=1\n say \"half\"\n reset\nwhen\n say \"x\"\n call A {}",
    );
    let message = decurion_protocol::Message::user("x");
    let request = crate::stage::request_in(Dialect::OpenAiChat, &[message]);
    let (events, error) = turn(&player.gateway(), request).await;
    assert_eq!((error, kept(&events).len()), (None, 2));
}

//! Hooks as real processes under a real guard: what they are given, what they say, and every way in which
//! they do not end well.

use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use decurion_engine::hook::{HookCall, HookPermission, HookResult, HookSurroundings, Hooks};
use decurion_engine::journal::Who;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{HookDeclaration, HookEvent, RunId};
use expect_test::expect;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

/// Nothing here takes this long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

/// A guard, and a mark that every process started for a test carries in its environment.
struct House {
    guard: Guard,
    mark: String,
}

impl House {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let program = env!("CARGO_BIN_EXE_decurion-engine-guard").into();
        let mark = format!("hooks-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { guard: Guard::new(GuardProgram { program, args: Vec::new() }), mark }
    }

    fn hooks(&self, declarations: Vec<HookDeclaration>) -> Hooks {
        self.hooks_in("/usr", declarations)
    }

    /// Hooks that start in this directory.
    fn hooks_in(&self, cwd: &str, declarations: Vec<HookDeclaration>) -> Hooks {
        let environment = [("PATH", "/usr/bin:/bin"), ("DECURION_TEST_MARK", &self.mark)];
        let pair = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
        let around = HookSurroundings {
            processes: Some(self.guard.clone()),
            sandbox: None,
            environment: Arc::from(environment.map(pair)),
            cwd: cwd.into(),
            project: "/the project".into(),
            session: "018f3b1e-0000-7000-8000-000000000000".parse().unwrap(),
            host: Default::default(),
        };
        let (hooks, problems) = Hooks::new(declarations, around);
        assert_eq!(problems, Vec::<String>::new());
        hooks
    }

    async fn run(&self, declarations: Vec<HookDeclaration>, input: Map<String, Value>) -> HookResult {
        let event = declarations[0].event;
        let call = HookCall { subject: Some("Bash"), input, ..call(event) };
        tokio::time::timeout(HANG, self.hooks(declarations).run(call)).await.expect("hangs")
    }

    /// Two pipes with names, in the folder for such things.
    async fn fifos(&self) -> [String; 2] {
        let fifos = self.fifo_names();
        let command = format!("rm -f {0} {1}; mkfifo {0} {1}", fifos[0], fifos[1]);
        self.run(vec![hook(HookEvent::SessionStart, &command)], Map::new()).await;
        fifos
    }

    fn fifo_names(&self) -> [String; 2] {
        ["a", "b"].map(|name| format!("{}/{}-{name}", env!("CARGO_TARGET_TMPDIR"), self.mark))
    }

    /// Whether anything started for this test is still there.
    fn assert_empty(&self) {
        let wanted = format!("DECURION_TEST_MARK={}", self.mark);
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let marked = environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes());
            assert!(!marked, "left behind: {}", entry.path().display());
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for fifo in self.fifo_names() {
            let _ = std::fs::remove_file(fifo);
        }
    }
}

fn hook(event: HookEvent, command: &str) -> HookDeclaration {
    HookDeclaration::new(event, command)
}

fn call(event: HookEvent) -> HookCall<'static> {
    static WHO: std::sync::LazyLock<Who> =
        std::sync::LazyLock::new(|| Who { run: RunId(Default::default()), agent: None });
    let input = Map::new();
    HookCall { who: &WHO, event, subject: None, input, worktree: None, rule_matches: &|_| true }
}

/// What a result comes to, in a line.
fn shown(result: &HookResult) -> String {
    let permission = match &result.permission {
        None => "-",
        Some(HookPermission::Allow { .. }) => "allow",
        Some(HookPermission::Ask { .. }) => "ask",
        Some(HookPermission::Deny { .. }) => "deny",
    };
    let report = |report: &decurion_engine::hook::HookReport| {
        let code = report.exit_code.map_or("-".to_owned(), |code| code.to_string());
        let problem = report.problem.as_deref().unwrap_or("fine");
        let start = |text: &str| text.chars().take(12).collect::<String>();
        format!(
            "{:?} {code} {:?} {:?} {problem}",
            report.outcome,
            start(&report.stdout),
            start(&report.stderr)
        )
    };
    let reports: Vec<_> = result.reports.iter().map(report).collect();
    format!("{permission} {}", reports.join(" | "))
}

#[tokio::test]
async fn a_hook_reads_one_line_in_its_directory_with_its_variables() {
    let house = House::new();
    let command = "read -r line; echo \"$line\"; read -r more; echo \"then: $more\"; pwd; \
                   env | grep -v -e ^_= -e ^SHLVL= -e MARK | LC_ALL=C sort; echo quietly >&2";
    let Value::Object(input) = json!({"prompt": "one\ntwo"}) else { return };
    let result = house.run(vec![hook(HookEvent::UserPromptSubmit, command)], input).await;
    expect![[r#"
        {"prompt":"one\ntwo","hook_event_name":"UserPromptSubmit"}
        then: 
        /usr
        CLAUDE_PROJECT_DIR=/the project
        DECURION_PROJECT_DIR=/the project
        DECURION_SESSION_ID=018f3b1e-0000-7000-8000-000000000000
        PATH=/usr/bin:/bin
        PWD=/usr"#]]
    .assert_eq(&result.additional_context.join("\n"));
    assert_eq!(result.reports[0].stderr, "quietly\n");
    house.assert_empty();
}

#[tokio::test]
async fn arguments_reach_a_program_as_they_are() {
    let house = House::new();
    let args = ["%s|", "$HOME", "a  b", "${CLAUDE_PROJECT_DIR}/x"].map(str::to_owned).to_vec();
    let program = HookDeclaration { args: Some(args), ..hook(HookEvent::SessionStart, "printf") };
    let result = house.run(vec![program], Map::new()).await;
    assert_eq!(result.additional_context, ["$HOME|a  b|/the project/x|"]);
}

#[tokio::test]
async fn a_hook_of_a_plugin_is_told_where_that_is() {
    let house = House::new();
    let of_plugin = |root: &str, command: &str| HookDeclaration {
        plugin_root: Some(root.into()),
        ..hook(HookEvent::SessionStart, command)
    };
    let show = "echo \"$CLAUDE_PLUGIN_ROOT|$DECURION_PLUGIN_ROOT\"";
    let args = ["%s", "${CLAUDE_PLUGIN_ROOT}/x"].map(str::to_owned).to_vec();
    let program = HookDeclaration { args: Some(args), ..of_plugin("/a b", "printf") };
    // The same words of two plugins are two commands.
    let hooks =
        vec![of_plugin("/a b", show), of_plugin("/c", show), program, hook(HookEvent::SessionStart, show)];
    let result = house.run(hooks, Map::new()).await;
    assert_eq!(result.additional_context, ["/a b|/a b", "/c|/c", "/a b/x", "|"]);
}

#[tokio::test]
async fn hooks_run_side_by_side_and_speak_in_the_order_of_their_declaration() {
    let house = House::new();
    let [fifo, _] = house.fifos().await;
    let hears = hook(HookEvent::SessionStart, &format!("read x < {fifo}; echo \"heard $x\""));
    let says = hook(HookEvent::SessionStart, &format!("echo hello > {fifo}; echo said"));
    // Twice the same: it runs once, or one of them would wait for ever.
    let result = house.run(vec![hears.clone(), says, hears], Map::new()).await;
    assert_eq!(result.additional_context, ["heard hello", "said"]);
    assert_eq!(result.reports.len(), 2);
}

#[tokio::test]
async fn the_strictest_of_several_wins() {
    let house = House::new();
    let says = |decision: &str| {
        let output = json!({"hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": decision,
        }});
        hook(HookEvent::PreToolUse, &format!("echo '{output}'"))
    };
    let no = hook(HookEvent::PreToolUse, "echo never >&2; exit 2");
    let result = house.run(vec![says("allow"), says("ask")], Map::new()).await;
    assert_eq!(result.permission, Some(HookPermission::Ask { reason: Some("ask".into()) }));
    let result = house.run(vec![says("allow"), no, says("deny")], Map::new()).await;
    let reason = "[echo never >&2; exit 2]: never".to_owned();
    assert_eq!(result.permission, Some(HookPermission::Deny { reason: reason.clone() }));
    assert_eq!(result.block, Some(format!("{reason}\ndeny")));
}

/// Each with what it does wrong. A time limit where it would not end.
const BAD_HOOKS: &[(&str, Option<u64>, &str)] = &[
    ("hangs", Some(300), "sleep 1000"),
    ("ignores TERM", Some(300), "trap '' TERM; while :; do sleep 1000; done"),
    ("leaves a grandchild with its pipe", None, "setsid sleep 1000 & echo '{}'; exit 0"),
    ("leaves one and hangs", Some(300), "(trap '' TERM; setsid sleep 1000) & sleep 1000"),
    ("crashes", None, "echo '{\"decision\": \"approve\"}'; kill -SEGV $$"),
    ("its command crashes", None, "bash -c 'kill -KILL $$'; exit $?"),
    ("is missing", None, "/nonexistent/hook --check"),
    ("cannot be executed", None, "/etc/passwd"),
    ("prints 100 MB", None, "head -c 100000000 /dev/zero"),
    ("prints 100 MB of errors", None, "head -c 100000000 /dev/zero | tr '\\0' e >&2; exit 0"),
    ("prints for ever and ignores TERM", None, "trap '' TERM PIPE; while :; do echo '{}'; done 2>/dev/null"),
    ("prints NULs", None, "printf 'a\\0b'; printf 'c\\0d' >&2"),
    ("prints no UTF-8", None, "printf 'a\\377\\376b'"),
    ("prints half of its JSON", None, "printf '{\"decision\": \"approve\", \"rea'"),
    ("says no without a word", None, "exit 2"),
    ("fails", None, "echo '{\"decision\": \"approve\"}'; echo oops >&2; exit 1"),
    ("never reads", None, "exit 0"),
    ("closes its outputs and hangs", Some(300), "exec >&- 2>&-; sleep 1000"),
    ("closes its output early", None, "echo '{}'; exec >&-; cat >/dev/null; exit 2"),
    ("answers later", None, "echo '{\"async\": true}'; echo more"),
];

/// So much that no pipe holds it.
fn large_input() -> Map<String, Value> {
    let Value::Object(input) = json!({"tool_input": {"command": "x".repeat(300_000)}}) else {
        return Map::new();
    };
    input
}

#[tokio::test]
async fn bad_hooks_are_bounded_and_reported_and_never_approve() {
    let house = House::new();
    let runs = BAD_HOOKS.iter().map(|(name, limit, command)| {
        let timeout = limit.map(Duration::from_millis);
        let declaration = HookDeclaration { timeout, ..hook(HookEvent::PreToolUse, command) };
        let house = &house;
        async move { format!("{name}\n    {}\n", shown(&house.run(vec![declaration], large_input()).await)) }
    });
    let lines: String = join_all(runs).await.concat();
    expect![[r#"
        hangs
            ask Failed - "" "" it was stopped after 0.3 s
        ignores TERM
            ask Failed - "" "" it was stopped after 0.3 s
        leaves a grandchild with its pipe
            - Success 0 "{}\n" "" fine
        leaves one and hangs
            ask Failed - "" "" it was stopped after 0.3 s
        crashes
            ask Failed - "{\"decision\":" "" it was killed by signal 11
        its command crashes
            ask Failed - "" "bash: line 1" it was killed by signal 9
        is missing
            ask Failed 127 "" "bash: line 1" its command was not found (exit code 127)
        cannot be executed
            ask Failed 126 "" "bash: line 1" its command cannot be executed (exit code 126)
        prints 100 MB
            ask Failed - "␀␀␀␀␀␀␀␀␀␀␀␀" "" it was stopped after it had printed more than 1 MiB
        prints 100 MB of errors
            ask Failed - "" "eeeeeeeeeeee" it was stopped after it had printed more than 1 MiB
        prints for ever and ignores TERM
            ask Failed - "{}\n{}\n{}\n{}\n" "" it was stopped after it had printed more than 1 MiB
        prints NULs
            - Success 0 "a␀b" "c␀d" fine
        prints no UTF-8
            - Success 0 "a��b" "" fine
        prints half of its JSON
            - Success 0 "{\"decision\":" "" it printed what begins like JSON and is not, taken as text
        says no without a word
            deny Blocked 2 "" "" fine
        fails
            - Error 1 "{\"decision\":" "oops\n" it exited with 1: oops
        never reads
            - Success 0 "" "" fine
        closes its outputs and hangs
            ask Failed - "" "" it was stopped after 0.3 s
        closes its output early
            deny Blocked 2 "{}\n" "" fine
        answers later
            - Success 0 "{\"async\": tr" "" `async` is not available in this version
    "#]]
    .assert_eq(&lines);
    house.assert_empty();
}

#[tokio::test]
async fn a_hook_that_cannot_be_started_is_a_failure() {
    let house = House::new();
    let no_program = HookDeclaration { args: Some(vec![]), ..hook(HookEvent::PreToolUse, "no-such-program") };
    let nul = hook(HookEvent::PreToolUse, "echo \0");
    let gone = house.hooks_in("/nonexistent", vec![hook(HookEvent::PreToolUse, "true")]);
    let lines = [
        shown(&house.run(vec![no_program], Map::new()).await),
        shown(&house.run(vec![nul], Map::new()).await),
        shown(&gone.run(call(HookEvent::PreToolUse)).await),
    ];
    expect![[r#"
        ask Failed - "" "" it was not started: no such program: "no-such-program"
        ask Failed - "" "" it was not started: cannot be passed to a process: argument 5
        ask Failed - "" "" it was not started: working directory cannot be entered (No such file or directory (os error 2)): "/nonexistent""#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn a_pipe_that_somebody_else_holds_keeps_nobody_waiting() {
    let house = House::new();
    let [there, go] = house.fifos().await;
    let command = format!("echo $$ > {there}; read x < {go}; echo '{{\"decision\": \"approve\"}}'");
    // Somebody who is no process of the hook, and so does not end with it.
    let holding = tokio::task::spawn_blocking(move || {
        let pid = std::fs::read_to_string(there).unwrap();
        let held = std::fs::File::options().write(true).open(format!("/proc/{}/fd/1", pid.trim())).unwrap();
        std::fs::write(go, "go\n").unwrap();
        held
    });
    let result = house.run(vec![hook(HookEvent::PreToolUse, &command)], Map::new()).await;
    assert_eq!(result.permission, Some(HookPermission::Allow { reason: None }));
    drop(holding.await.unwrap());
}

#[tokio::test]
async fn dropping_a_run_ends_its_hooks() {
    let house = House::new();
    let [fifo, _] = house.fifos().await;
    let hooks =
        house.hooks(vec![hook(HookEvent::Stop, &format!("exec 3> {fifo}; echo here >&3; sleep 1000"))]);
    let (at_work, work_begins) = tokio::sync::oneshot::channel();
    let watching = tokio::task::spawn_blocking(move || {
        let mut reader = std::io::BufReader::new(std::fs::File::open(fifo).unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        at_work.send(line).unwrap();
        // The end comes when the last process that has the other side is gone.
        reader.read_to_end(&mut Vec::new()).unwrap();
    });
    tokio::select! {
        _ = hooks.run(call(HookEvent::Stop)) => panic!("it ends by itself"),
        line = work_begins => assert_eq!(line.unwrap(), "here\n"),
    }
    tokio::time::timeout(HANG, watching).await.expect("it goes on").unwrap();
}

#[test]
fn a_run_can_be_awaited_on_any_thread() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&House::new().hooks(vec![]).run(call(HookEvent::Stop)));
}

//! Permission decided on rows of data. Takes `permission_rows.jsonl`, each row a call with the decision it must
//! get; and texts made at random, none of which may slip through.

use std::collections::BTreeMap;

use decurion_engine::permission::rows::{Ground, RowError, answer};
use decurion_engine::permission::{
    Around, Checkouts, Confinement, Policy, Walls, decide, effective_mode, suggest,
};
use decurion_engine::symlinks::Symlinks;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Access, AgentSource, Decision, Intent, Mode, Profile, Rule, RuleSet, Verdict};
use decurion_tools::{Surroundings, bash};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::{Value, json};

const ROWS: &str = include_str!("permission_rows.jsonl");
const COMMON: &str = include_str!("common_commands.txt");

fn decided(row: &Value) -> Result<Decision, RowError> {
    let ground = Ground { trails: &Symlinks::default(), home: None, walls: Walls::Absent, here: None };
    answer(row.to_string().as_bytes(), &ground).map(|answered| answered.decision)
}

#[expect(clippy::expect_used, reason = "a helper of tests")]
fn shell(command: &str, allow: &[&str], deny: &[&str], mode: &str) -> Verdict {
    let row = json!({"mode": mode, "rules": {"allow": allow, "deny": deny}, "tool": "Bash", "input": {"command": command}});
    decided(&row).expect("the row is well-formed").verdict
}

/// A server's tool that is not what was approved: no rule for it and no mode that asks less lets it pass; only
/// the mode that skips every check does.
#[test]
fn what_is_not_what_was_approved_is_asked_about_whatever_allows_it() {
    let rule = |text: &str| Rule::parse(text, RuleSource::UserSettings).unwrap();
    let around = Around {
        cwd: "/w".into(),
        root: "/w".into(),
        directories: Vec::new(),
        home: None,
        checkout: None,
        user_files: std::sync::Arc::default(),
        checkouts: Checkouts::default(),
        trails: Symlinks::default(),
    };
    let mut intent = Intent::titled("MCP x echo");
    intent.doubt = Some("this tool has changed".to_owned());
    let tool = "mcp__x__echo";
    for (mode, allow, deny, expected) in [
        (Mode::Default, "mcp__x", None, Verdict::Ask),
        (Mode::Default, "mcp__x__*", None, Verdict::Ask),
        (Mode::Default, "mcp__x__echo", None, Verdict::Ask),
        (Mode::AcceptEdits, "mcp__x__echo", None, Verdict::Ask),
        (Mode::Default, "mcp__x", Some("mcp__x__echo"), Verdict::Deny),
        (Mode::DontAsk, "mcp__x", None, Verdict::Deny),
        (Mode::Plan, "mcp__x", None, Verdict::Deny),
        (Mode::BypassPermissions, "mcp__x", None, Verdict::Allow),
        (Mode::BypassPermissions, "mcp__x", Some("mcp__x"), Verdict::Deny),
    ] {
        let deny = deny.map(rule).into_iter().collect();
        let rules = RuleSet { allow: vec![rule(allow)], deny, ..RuleSet::default() };
        let policy = Policy::new(mode, std::sync::Arc::new(rules), around.clone());
        let decision = decide(&policy, tool, &json!({}), &intent);
        assert_eq!(decision.verdict, expected, "{mode} {allow}: {}", decision.reason);
        let plain = Intent { doubt: None, ..intent.clone() };
        if expected == Verdict::Ask {
            assert!(decision.reason.contains("has changed"), "{}", decision.reason);
            assert_eq!(decide(&policy, tool, &json!({}), &plain).verdict, Verdict::Allow);
        }
    }
}

#[test]
fn every_row_is_decided_as_it_says() {
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in ROWS.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        *counts.entry(row["class"].as_str().unwrap().to_owned()).or_default() += 1;
        let decision = decided(&row).unwrap();
        let found = serde_json::to_value(decision.verdict).unwrap();
        if found != row["want"] {
            wrong.push(format!("{found} ({}): {line}", decision.reason));
        }
        assert!(!decision.reason.is_empty(), "{line}");
    }
    assert!(wrong.is_empty(), "{} rows are decided otherwise:\n{}", wrong.len(), wrong.join("\n"));
    assert!(counts["harmless"] >= 120, "{counts:?}");
    assert!(counts.values().sum::<usize>() >= 400, "{counts:?}");
    assert!(counts.len() >= 13, "a class of bypass has no rows: {counts:?}");
}

/// How many of 300 common harmless commands need a question without any rule, by kind: whoever changes a number
/// changes how often people are asked.
#[test]
fn common_commands_need_exactly_this_many_questions() {
    expect![[r"
        listing: 3 of 35
        searching: 3 of 35
        reading: 3 of 35
        text pipelines: 1 of 35
        git questions: 2 of 35
        builds and tests: 25 of 25
        package managers: 25 of 30
        system questions: 5 of 35
        loops and variables: 26 of 35"]]
    .assert_eq(&questions(false));
}

/// The same where commands are sandboxed. What is left writes, uses the network or reads the home folder.
#[test]
fn common_commands_need_fewer_questions_in_a_sandbox() {
    expect![[r"
        listing: 2 of 35
        searching: 0 of 35
        reading: 1 of 35
        text pipelines: 0 of 35
        git questions: 0 of 35
        builds and tests: 24 of 25
        package managers: 2 of 30
        system questions: 1 of 35
        loops and variables: 0 of 35"]]
    .assert_eq(&questions(true));
}

fn questions(sandbox: bool) -> String {
    let (mut kind, mut table) = ("", Vec::<(&str, usize, usize)>::new());
    for line in COMMON.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            kind = name;
            table.push((kind, 0, 0));
            continue;
        }
        let row = json!({"tool": "Bash", "input": {"command": line}, "sandbox": sandbox});
        let asked = decided(&row).unwrap().verdict != Verdict::Allow;
        let counts = table.last_mut().unwrap();
        *counts = (kind, counts.1 + usize::from(asked), counts.2 + 1);
    }
    assert_eq!(table.iter().map(|(_, _, of)| of).sum::<usize>(), 300);
    let rows: Vec<String> =
        table.iter().map(|(kind, asked, of)| format!("{kind}: {asked} of {of}")).collect();
    rows.join("\n")
}

/// What the sandbox makes of a question. The profile tells what a command can do when it runs.
#[test]
fn reading_is_left_to_the_kernel_and_nothing_else() {
    let read = Some(Profile::ReadOnly);
    let rows = [
        ("default", "", "", "for f in *; do cat $f; done", (Verdict::Allow, read)),
        ("plan", "", "", "x=a; cat $x", (Verdict::Allow, read)),
        ("plan", "", "", "cat a", (Verdict::Allow, read)),
        ("default", "", "", "for f in *; do rm $f; done", (Verdict::Ask, None)),
        ("plan", "", "", "for f in *; do rm $f; done", (Verdict::Deny, None)),
        ("default", "", "", "x=$(cat a); echo $x > b", (Verdict::Ask, None)),
        ("default", "", "", "cat /home/user/other/x", (Verdict::Ask, None)),
        ("default", "", "", "$cmd a", (Verdict::Ask, None)),
        // Rules that deny: what is certain is denied, what is not the kernel hides.
        ("default", "", "Read(.env)", "cat .env", (Verdict::Deny, None)),
        ("default", "", "Read(.env)", "for f in .e*; do cat $f; done", (Verdict::Allow, read)),
        ("default", "Bash(cat:*)", "Read(.env)", "cat .e*", (Verdict::Allow, read)),
        ("bypassPermissions", "", "Read(.env)", "cat .e*", (Verdict::Allow, read)),
        ("default", "", "Read(.env)", "git log -p", (Verdict::Ask, None)),
        ("default", "", "Bash(cat:*)", "x=cat; $x a", (Verdict::Deny, None)),
        ("acceptEdits", "", "Edit(src/**)", "for f in s*; do rm -r $f; done", (Verdict::Ask, None)),
        // What a rule allows runs with the usual rights.
        ("default", "Bash(make:*)", "", "make", (Verdict::Allow, None)),
        ("acceptEdits", "", "", "touch a", (Verdict::Allow, None)),
        ("default", "", "", "cat a", (Verdict::Allow, read)),
    ];
    for (mode, allow, deny, command, expected) in rows {
        let list = |rule: &str| if rule.is_empty() { vec![] } else { vec![rule.to_owned()] };
        let rules = json!({"allow": list(allow), "deny": list(deny)});
        let row = json!({"mode": mode, "rules": rules, "tool": "Bash", "input": {"command": command}, "sandbox": true});
        let decision = decided(&row).unwrap();
        assert_eq!(
            (decision.verdict, decision.profile),
            expected,
            "{mode} {deny} {command}: {}",
            decision.reason
        );
    }
    let outside = json!({"tool": "Bash", "input": {"command": "ls", "dangerouslyDisableSandbox": true}, "sandbox": true});
    let decision = decided(&outside).unwrap();
    assert_eq!((decision.verdict, decision.profile), (Verdict::Ask, Some(Profile::Outside)));
}

#[test]
fn a_row_that_cannot_be_read_says_why() {
    for (row, why) in [
        (json!({"tool": "Bash", "input": {"command": "ls"}, "mode": "yolo"}), "yolo"),
        (json!({"tool": "Bash", "input": {"command": "ls"}, "rules": {"allow": ["Bash("]}}), "Bash("),
        (json!({"tool": "Bash", "input": {"command": "ls"}, "rules": {"deny": ["Bash()"]}}), "Bash()"),
        (json!({"tool": "Bash", "input": {"command": "ls"}, "rules": {"deny": "Bash"}}), "rules"),
        (json!({"input": {"command": "ls"}}), "tool"),
        (json!({"tool": 1}), "tool"),
        (json!({"tool": "Bash", "cwd": "relative"}), "relative"),
        (json!({"tool": "Bash", "agent": {"source": "nobody"}}), "nobody"),
        (json!({"tool": "Bash", "agent": {"source": "user", "permissionMode": "yolo"}}), "yolo"),
        (json!([]), ""),
    ] {
        let error = decided(&row).unwrap_err().to_string();
        let told = error.contains(why) || error.contains("not the JSON of a call");
        assert!(told, "{row}: {error}");
    }
}

#[test]
fn an_input_that_is_not_one_is_never_allowed() {
    for input in [json!({}), json!({"command": 1}), json!(null), json!("ls"), json!({"command": ["ls"]})] {
        for (tool, allow) in
            [("Bash", "Bash(ls:*)"), ("Read", "Edit"), ("Write", "Read"), ("WebFetch", "Read")]
        {
            let row = json!({"tool": tool, "input": input, "rules": {"allow": [allow]}});
            assert_ne!(decided(&row).unwrap().verdict, Verdict::Allow, "{row}");
        }
    }
}

#[test]
fn modes_go_down_by_one_table() {
    use AgentSource::{Builtin, Managed, Plugin, Project, User};
    use Mode::{AcceptEdits, Bubble, BypassPermissions, Default, DontAsk, Plan};
    let modes = [Default, AcceptEdits, Plan, BypassPermissions, DontAsk, Bubble];
    for parent in modes {
        for source in [Builtin, User, Project, Plugin, Managed] {
            for trusted in [false, true] {
                assert_eq!(effective_mode(parent, None, source, trusted).0, parent);
                assert_eq!(effective_mode(parent, Some(Plan), source, trusted).0, Plan);
                for wanted in modes {
                    let (found, why) = effective_mode(parent, Some(wanted), source, trusted);
                    assert!(!why.is_empty());
                    let controlled = !(source == Plugin || (source == Project && !trusted));
                    if matches!(found, BypassPermissions | AcceptEdits | DontAsk) {
                        assert!(found == parent || controlled, "{parent} {wanted} {source:?} became {found}");
                    }
                    if parent == Plan {
                        assert_eq!(found, Plan);
                    }
                    if matches!(parent, BypassPermissions | AcceptEdits) && wanted != Plan {
                        assert_eq!(found, parent);
                    }
                }
            }
        }
    }
    assert_eq!(effective_mode(Default, Some(Bubble), User, false).0, Bubble);
    assert_eq!(effective_mode(Default, Some(BypassPermissions), User, false).0, BypassPermissions);
    assert_eq!(effective_mode(Default, Some(BypassPermissions), Project, true).0, BypassPermissions);
}

#[test]
fn a_checkout_below_our_own_folder_is_not_protected_from_whoever_works_in_it() {
    let own = "/home/user/.decurion/worktrees/-w/a1";
    let around = Around {
        cwd: own.into(),
        root: own.into(),
        directories: Vec::new(),
        home: Some("/home/user".into()),
        checkout: Some(Confinement::new(own.into(), Vec::new())),
        user_files: std::sync::Arc::default(),
        checkouts: Checkouts::default(),
        trails: Symlinks::default(),
    };
    let bash = Rule::parse("Bash", Default::default()).unwrap();
    let set = RuleSet { allow: vec![bash], ..RuleSet::default() };
    let policy = Policy::new(Mode::AcceptEdits, set.into(), around);
    let surroundings = Surroundings { cwd: own.into(), home: None, directories: Vec::new() };
    let rows = [
        (format!("{own}/src/new.txt"), Verdict::Allow),
        (format!("{own}/.git/hooks/pre-commit"), Verdict::Ask),
        (format!("{own}/.decurion/settings.json"), Verdict::Ask),
        ("/home/user/.decurion/worktrees/-w/b2/new.txt".to_owned(), Verdict::Ask),
        ("/home/user/.decurion/settings.json".to_owned(), Verdict::Ask),
    ];
    for (path, verdict) in rows {
        let command = format!("echo x > {path}");
        let mut intent = Intent::titled("");
        intent.shell = Some(bash::analyse(&command, &surroundings));
        let decision = decide(&policy, "Bash", &json!({"command": command}), &intent);
        assert_eq!(decision.verdict, verdict, "{command}: {}", decision.reason);
        let intent = Intent::titled("").touching(path.as_str(), Access::Write);
        let decision = decide(&policy, "Write", &json!({}), &intent);
        assert_eq!(decision.verdict, verdict, "{path}: {}", decision.reason);
    }
}

#[test]
fn what_is_denied_in_one_checkout_is_denied_in_all_of_them() {
    let (own, origin) = ("/state/worktrees/a1", "/srv/p");
    let around = Around {
        cwd: format!("{own}/sub").into(),
        root: own.into(),
        checkout: Some(Confinement::new(own.into(), vec![origin.into()])),
        user_files: std::sync::Arc::default(),
        checkouts: vec![own.into(), origin.into()].into(),
        ..Around::default()
    };
    for (rule, path, denied) in [
        ("//srv/p/key", "a1/key", true),
        ("//srv/p/key", "a1/sub/key", false),
        ("//srv/*/key", "a1/key", true),
        ("//srv/**/x.pem", "a1/deep/x.pem", true),
        ("//**/p/key", "a1/key", true),
        ("//srv/**", "a1/key", true),
        ("//srv/q/key", "a1/key", false),
        ("./key", "/srv/p/sub/key", true),
        ("./KEY", "/srv/p/sub/key", true),
        ("/key", "/srv/p/key", true),
        ("//state/worktrees/a1/key", "/srv/p/key", true),
        ("//state/**", "/srv/p/key", false),
    ] {
        let rule = Rule::parse(&format!("Read({rule})"), Default::default()).unwrap();
        let set = RuleSet { deny: vec![rule.clone()], ..RuleSet::default() };
        let policy = Policy::new(Mode::BypassPermissions, set.into(), around.clone());
        let path = path.strip_prefix("a1/").map_or(path.to_owned(), |below| format!("{own}/{below}"));
        let intent = Intent::titled("").touching(path.as_str(), Access::Read);
        let decision = decide(&policy, "Read", &json!({}), &intent);
        assert_eq!(decision.verdict != Verdict::Allow, denied, "{rule} {path}");
    }
}

#[test]
fn whoever_starts_in_a_worktree_may_write_in_it_and_in_no_folder_of_ours_otherwise() {
    let rows = [
        ("/home/user/.decurion/worktrees/-w/a1", "/home/user/.decurion/worktrees/-w/a1/f", Verdict::Allow),
        ("/w/.claude/worktrees/a1", "/w/.claude/worktrees/a1/src/f", Verdict::Allow),
        ("/w/.claude/worktrees/a1", "/w/.claude/worktrees/a1/.git", Verdict::Ask),
        ("/home/user/.decurion", "/home/user/.decurion/settings.json", Verdict::Ask),
        ("/home/user/.decurion/worktrees", "/home/user/.decurion/worktrees/x", Verdict::Ask),
        ("/home/user/.ssh", "/home/user/.ssh/config", Verdict::Ask),
        ("/w/.git/worktrees/a1", "/w/.git/worktrees/a1/HEAD", Verdict::Ask),
    ];
    for (root, path, verdict) in rows {
        let (cwd, root) = (root.into(), root.into());
        let around = Around {
            cwd,
            root,
            directories: Vec::new(),
            home: None,
            checkout: None,
            user_files: std::sync::Arc::default(),
            checkouts: Checkouts::default(),
            trails: Symlinks::default(),
        };
        let policy = Policy::new(Mode::AcceptEdits, RuleSet::default().into(), around);
        let intent = Intent::titled("").touching(path, Access::Write);
        let decision = decide(&policy, "Write", &json!({}), &intent);
        assert_eq!(decision.verdict, verdict, "{path}: {}", decision.reason);
    }
}

#[test]
fn offered_rules_allow_the_call_and_never_an_interpreter() {
    let around = Around {
        cwd: "/w".into(),
        root: "/w".into(),
        directories: Vec::new(),
        home: Some("/home/user".into()),
        checkout: None,
        user_files: std::sync::Arc::default(),
        checkouts: Checkouts::default(),
        trails: Symlinks::default(),
    };
    let surroundings = Surroundings { cwd: "/w".into(), home: None, directories: Vec::new() };
    let offer = |command: &str| {
        let mut intent = Intent::titled("");
        intent.shell = Some(bash::analyse(command, &surroundings));
        let input = json!({"command": command});
        let rules = suggest("Bash", &input, &intent, &around);
        let texts: Vec<String> = rules.iter().map(ToString::to_string).collect();
        if !rules.is_empty() {
            let set = RuleSet { allow: rules, ..RuleSet::default() };
            let policy = Policy::new(Mode::Default, set.into(), around.clone());
            assert_eq!(
                decide(&policy, "Bash", &input, &intent).verdict,
                Verdict::Allow,
                "{command}: {texts:?}"
            );
        }
        texts
    };
    assert_eq!(offer("npm test -- --watch"), ["Bash(npm test *)"]);
    assert_eq!(offer("cargo build && ls && cargo test x"), ["Bash(cargo build *)", "Bash(cargo test *)"]);
    assert_eq!(offer("RUST_BACKTRACE=1 CI=1 cargo test x"), ["Bash(cargo test *)"]);
    assert_eq!(offer("FOO=1 cargo test x"), ["Bash(FOO=1 cargo test x)"]);
    assert_eq!(offer("python3 script.py 'a b'"), ["Bash(python3 script.py 'a b')"]);
    assert_eq!(offer("rm -rf build"), ["Bash(rm -rf build)"]);
    assert!(offer("eval \"$x\"").is_empty());
    assert!(offer("$x").is_empty());
    let web = suggest("WebFetch", &json!({"url": "https://Docs.rs/x"}), &Intent::titled(""), &around);
    assert_eq!(web, [Rule::parse("WebFetch(domain:docs.rs)", RuleSource::Session).unwrap()]);
}

/// Ways to run one command inside a text.
fn wrapped(inner: &str, way: u8) -> String {
    let quoted = bash::quote(inner);
    match way % 31 {
        0 => format!("ls; {inner}"),
        1 => format!("ls && {inner}"),
        2 => format!("ls || {inner}"),
        3 => format!("ls | {inner}"),
        4 => format!("({inner})"),
        5 => format!("{{ {inner}; }}"),
        6 => format!("if true; then {inner}; fi"),
        7 => format!("for i in 1 2; do {inner}; done"),
        8 => format!("while false; do {inner}; done"),
        9 => format!("case a in a) {inner};; esac"),
        10 => format!("echo $({inner})"),
        11 => format!("echo \"$({inner})\""),
        12 => format!("cat <({inner})"),
        13 => format!("bash -c {quoted}"),
        14 => format!("sh -c {quoted} && pwd"),
        15 => format!("eval {quoted}"),
        16 => format!("x=$({inner})"),
        17 => format!("! {inner}"),
        18 => format!("ls\n{inner}\npwd"),
        19 => format!("{inner} & ls"),
        20 => format!("watch {quoted}"),
        21 => format!("echo ${{y:-$({inner})}}"),
        22 => format!("[[ $({inner}) == a ]]"),
        23 => format!("trap {quoted} EXIT"),
        24 => format!("f() {{ {inner}; }}; f"),
        25 => format!("su -c {quoted}"),
        26 => format!("find . -exec sh -c {quoted} \\;"),
        27 => format!("ls # comment\n{inner}"),
        28 => format!("env bash -c {quoted}"),
        29 => format!("timeout 5 bash -c {quoted}"),
        _ => format!("until false; do {inner}; done > /dev/null"),
    }
}

/// Ways to spell one command.
fn spelled(way: u8) -> &'static str {
    const SPELLINGS: [&str; 18] = [
        "rm -rf /",
        "r\\m -rf /",
        "'rm' -rf /",
        "\"rm\" -rf /",
        "/bin/rm -rf /",
        "rm -fr /",
        "command rm -rf /",
        "env rm -rf /",
        "sudo rm -rf /",
        "nice -n 5 rm -rf /",
        "timeout 5 rm -rf /",
        "FOO=1 rm -rf /",
        "$'\\x72m' -rf /",
        "xargs rm -rf /",
        "find . -exec rm -rf {} +",
        "r\"\"m -rf /",
        "nohup rm -rf /",
        ">x rm -rf /",
    ];
    SPELLINGS[usize::from(way) % SPELLINGS.len()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_denied_command_is_found_however_it_is_wrapped(spelling: u8, ways in proptest::collection::vec(any::<u8>(), 0..5)) {
        let mut text = spelled(spelling).to_owned();
        for way in &ways {
            text = wrapped(&text, *way);
        }
        prop_assert_ne!(shell(&text, &[], &[], "default"), Verdict::Allow, "{}", text);
        prop_assert_ne!(shell(&text, &["Bash"], &["Bash(rm:*)"], "default"), Verdict::Allow, "{}", text);
        prop_assert_ne!(shell(&text, &[], &["Bash(rm:*)"], "bypassPermissions"), Verdict::Allow, "{}", text);
        prop_assert_ne!(shell(&text, &["Bash(ls:*)", "Bash(echo:*)", "Bash(bash:*)"], &[], "acceptEdits"), Verdict::Allow, "{}", text);
    }

    #[test]
    fn no_text_at_all_makes_it_panic(text in any::<String>()) {
        let _ = shell(&text, &["Bash(ls:*)"], &["Bash(rm:*)"], "default");
    }

    #[test]
    fn pieces_of_shell_in_any_order_never_hide_a_program(pieces in proptest::collection::vec(piece(), 0..24)) {
        // `evil` is on no list: where it is a word of its own outside of quotes and comments, or anywhere
        // that a shell would run it, the text must not pass. Texts without quotes have it in plain sight.
        let text = pieces.concat();
        let verdict = shell(&text, &[], &[], "default");
        // An assignment to a variable of that name runs nothing.
        let hides = text.contains(['\'', '"', '\\', '#', '=']) || text.contains("<<");
        let runs = text.split([';', '\n', '|', '&', '(', '`']).any(|part| part.trim_start_matches([' ', '\t']).starts_with("evil"));
        if runs && !hides && !text.contains("case") && !text.contains("[[") && !text.contains("${") {
            prop_assert_ne!(verdict, Verdict::Allow, "{}", text);
        }
    }
}

fn piece() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "ls",
        "evil",
        "echo",
        " ",
        " ",
        ";",
        "\n",
        "&&",
        "||",
        "|",
        "&",
        "(",
        ")",
        "{ ",
        "; }",
        "$(",
        "`",
        "\"",
        "'",
        "\\",
        "$x",
        "${x:-",
        "}",
        "<",
        ">",
        ">>",
        "<<E\n",
        "\nE\n",
        "<(",
        "if ",
        "; then ",
        "; fi",
        "for i in a; do ",
        "; done",
        "case a in a) ",
        ";; esac",
        "[[ ",
        " ]]",
        "((",
        "))",
        "!",
        "#",
        "a",
        "-l",
        "=",
        "x=1 ",
        "$'",
        "\\x65",
        "*",
        "[",
        "]",
        "{a,b}",
        "~",
        "time ",
    ])
    .prop_map(str::to_owned)
}

#[test]
fn a_rule_for_a_program_says_which_rule_is_missing_for_its_files() {
    let reason = |command: &str, allow: &[&str]| {
        let row =
            json!({"rules": {"allow": allow}, "cwd": "/w", "tool": "Bash", "input": {"command": command}});
        let decision = decided(&row).unwrap();
        format!("{:?}: {}", decision.verdict, decision.reason)
    };
    expect!["Ask: it modifies a file: /w/zz; `Bash(touch:*)` allows the program, not the file it writes: add `Edit`, or `Write(zz)`"].assert_eq(&reason("touch zz", &["Bash(touch:*)"]));
    expect!["Ask: it writes outside the working directory: /other/zz; `Bash(touch:*)` allows the program, not the file it writes: add `Write(//other/zz)`"].assert_eq(&reason("touch /other/zz", &["Bash(touch:*)"]));
    expect!["Ask: it writes to a protected path: /w/.git/hooks/b/a; `Bash(cp:*)` allows the program, not the file it writes: add `Write(.git/hooks/b/a)`"].assert_eq(&reason("cp a .git/hooks/b", &["Bash(cp:*)"]));
    // What it says to add is enough.
    for (command, rules) in [
        ("touch zz", ["Bash(touch:*)", "Edit"]),
        ("touch zz", ["Bash(touch:*)", "Write(zz)"]),
        ("touch /other/zz", ["Bash(touch:*)", "Write(//other/zz)"]),
        ("cp a .git/hooks/b", ["Bash(cp:*)", "Write(.git/hooks/b)"]),
    ] {
        assert!(reason(command, &rules).starts_with("Allow"), "{}", reason(command, &rules));
    }
    expect!["Ask: it changes files, and no rule allows it: touch zz"].assert_eq(&reason("touch zz", &[]));
}

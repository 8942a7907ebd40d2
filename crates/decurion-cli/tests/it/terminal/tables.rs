//! Lists of what a session has: agents, rules, hooks, servers, plugins, worktrees. What can be looked at, and what
//! changes when somebody wants it to.

use decurion_testkit::proc::MARKER;
use decurion_testkit::repo::Repo;

use super::{Terminal, USUAL, put, put_in, text_of};
use crate::stand::{DECURION, Stand};

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";
const GARDENER: &str =
    "---\nname: gardener\ndescription: Looks after trees\ntools: Read, Grep\n---\n\nYou prune.\n";

#[test]
fn agents_are_looked_at_explained_and_checked() {
    let stand = Stand::new(ANY);
    put_in(&stand.home.home(), ".claude/agents/gardener.md", GARDENER);
    put_in(
        &stand.home.home(),
        ".claude/agents/bad.md",
        "---\nname: bad\n---\nNothing says what it is for.\n",
    );
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("/agents");
    let list = terminal.wait_for("esc close");
    assert!(list.contains("gardener") && list.contains("Explore"), "{list}");
    choose(&terminal, "gardener");
    terminal.wait_for("Looks after trees");
    terminal.keys("Enter");
    terminal.wait_for("You prune.");
    terminal.keys("q");
    terminal.wait_for("❯ gardener");
    terminal.keys("e");
    let page = terminal.wait_for("what gardener would run with");
    assert!(page.contains("Grep") && page.contains("Bash – `tools` does not name it"), "{page}");
    terminal.keys("q");
    terminal.wait_for("❯ gardener");
    terminal.keys("l");
    let page = terminal.wait_for("agents: what is wrong with their files");
    assert!(page.contains("bad.md") && page.contains("description"), "{page}");
    terminal.keys("q Escape");
    terminal.wait_gone("❯ gardener");
}

#[test]
fn an_agent_is_written_in_an_editor_and_checked() {
    let stand = Stand::new(ANY);
    put(&stand, "editor.sh", "sed -i 's/^description: .*/description: Looks after vines/' \"$1\"\n");
    let terminal = Terminal::as_told(stand, USUAL, |program| program.env("EDITOR", "sh ./editor.sh")).ready();
    let file = terminal.stand.home.work().join(".decurion/agents/vintner.md");
    terminal.say("/agents");
    terminal.wait_for("esc close");
    terminal.keys("n");
    terminal.wait_for("name of the new agent:");
    terminal.write("vintner");
    terminal.keys("Enter");
    terminal.wait_that("the editor's work", || text_of(&file).contains("Looks after vines"));
    terminal.wait_for("No problems in 1 definition.");
    terminal.keys("Escape");
    terminal.wait_gone("esc close");
    terminal.say("/agents");
    terminal.wait_for("vintner  ");
}

/// Chooses the row of this name in a list that is open.
#[track_caller]
fn choose(terminal: &Terminal, name: &str) {
    let screen = terminal.wait_for("esc close");
    let rows: Vec<&str> = screen.lines().collect();
    let row = |lead: &str| rows.iter().rposition(|row| row.starts_with(lead));
    let from = row("❯ ").expect("no row is chosen");
    let to = row(&format!("  {name} ")).unwrap_or(from);
    let key = if to < from { "Up" } else { "Down" };
    (0..to.abs_diff(from)).for_each(|_| terminal.keys(key));
    terminal.wait_for(&format!("❯ {name} "));
}

#[test]
fn an_agent_of_ones_own_is_edited_where_it_is_and_one_without_a_file_is_not() {
    let stand = Stand::new(ANY);
    put_in(&stand.home.home(), ".claude/agents/gardener.md", GARDENER);
    put(
        &stand,
        "editor.sh",
        "echo \"$1\" >> $HOME/edited\nsed -i 's/^description: .*/description: Looks after vines/' \"$1\"\n",
    );
    let terminal = Terminal::as_told(stand, USUAL, |program| program.env("EDITOR", "sh ./editor.sh")).ready();
    let home = terminal.stand.home.home();
    terminal.say("/agents");
    terminal.wait_for("esc close");
    choose(&terminal, "Explore");
    terminal.keys("d");
    terminal.wait_for("Explore is built-in and has no file; n writes one that takes its place");
    assert_eq!(text_of(home.join("edited")), "", "an editor was opened for nothing");
    choose(&terminal, "gardener");
    terminal.keys("d");
    terminal.wait_for("No problems in 1 definition.");
    let file = home.join(".claude/agents/gardener.md");
    assert_eq!(text_of(home.join("edited")), format!("{}\n", file.display()));
    assert_eq!(text_of(&file), GARDENER.replace("trees", "vines"));
}

/// Calls a command that nobody allowed.
const CALLS: &str = "when text=/(.+)$/
  call Bash {\"command\": \"touch made-$1\", \"description\": \"Make a file\"}
when
  say \"It is over.\"
";

#[test]
fn rules_are_added_and_removed_and_count_at_once() {
    let terminal = Terminal::start(CALLS);
    let made = |name: &str| terminal.stand.home.work().join(name).exists();
    terminal.say("/permissions");
    terminal.wait_for("no rules: every call that may change something is asked about");
    terminal.keys("a");
    terminal.wait_for("allow (for example");
    terminal.write("Bash(touch made-a)");
    terminal.keys("Enter");
    let list = terminal.wait_for("❯ Bash(touch made-a)");
    assert!(list.contains("allowed"), "{list}");
    terminal.keys("Escape");
    terminal.wait_gone("Rules in force");
    terminal.say("a");
    terminal.wait_settled("It is over.");
    assert!(made("made-a"), "it was allowed");
    std::fs::remove_file(terminal.stand.home.work().join("made-a")).unwrap();
    terminal.say("/permissions");
    terminal.wait_for("❯ Bash(touch made-a)");
    terminal.keys("x");
    terminal.wait_for("remove this rule, also from its file? y, then enter");
    terminal.keys("n Enter");
    terminal.wait_for("no rule was removed");
    terminal.wait_for("❯ Bash(touch made-a)");
    terminal.keys("x");
    terminal.wait_for("remove this rule, also from its file? y, then enter");
    terminal.keys("y Enter");
    terminal.wait_for("no rules: every call");
    terminal.keys("Escape");
    terminal.wait_gone("Rules in force");
    terminal.say("a");
    terminal.wait_for("? Run");
    assert!(!made("made-a"), "it ran without being allowed");
    terminal.keys("Escape");
    terminal.wait_gone("? Run");
    terminal.say("/permissions");
    terminal.wait_for("Rules in force");
    terminal.keys("d");
    terminal.wait_for("never allow:");
    terminal.write("Bash");
    terminal.keys("Enter");
    terminal.wait_for("never · ");
    terminal.keys("Escape");
    terminal.wait_gone("Rules in force");
    terminal.say("b");
    terminal.wait_settled("It is over.");
    assert!(!made("made-b"), "it was denied");
}

#[test]
fn a_rule_that_is_none_is_said() {
    let terminal = Terminal::start(ANY);
    terminal.say("/permissions");
    terminal.wait_for("Rules in force");
    terminal.keys("a");
    terminal.write("Bash(");
    terminal.keys("Enter");
    terminal.wait_for("a rule's `(` is not closed");
}

#[test]
fn a_rule_that_names_no_tool_is_refused_with_the_likely_name() {
    let terminal = Terminal::start(ANY);
    terminal.say("/permissions");
    terminal.wait_for("Rules in force");
    terminal.keys("d");
    terminal.wait_for("never allow:");
    terminal.write("Bsh(rm:*)");
    terminal.keys("Enter");
    let screen = terminal.wait_for("no such tool: Bsh (did you mean Bash?)");
    assert!(!screen.contains("never · "), "{screen}");
}

#[test]
fn hooks_in_force_are_listed() {
    let stand = Stand::new(ANY);
    let hook = r#"{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "true # mine"}]}]}}"#;
    put_in(&stand.home.state(), "settings.json", hook);
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("/hooks");
    let list = terminal.wait_for("Hooks in force");
    assert!(list.contains("PreToolUse") && list.contains("Bash · true # mine"), "{list}");
}

#[test]
fn a_server_is_switched_off_and_on_and_connected_again() {
    let stand = Stand::new(ANY);
    let own = format!(
        r#"{{"mcpServers": {{"orchard": {{"command": "{DECURION}", "args": ["mcp", "serve"], "env": {{"ANTHROPIC_API_KEY": "none", "{MARKER}": "{}"}}}}}}}}"#,
        stand.home.marker()
    );
    put(&stand, "servers.json", &own);
    let terminal = Terminal::with(stand, &["--mcp-config", "servers.json"], USUAL);
    // What a list shows is what was so when it was asked for.
    let state = |word: &str| {
        for _ in 0..1000 {
            terminal.say("/mcp");
            let list = terminal.wait_for("❯ orchard");
            if list.contains(word) {
                return list;
            }
            terminal.keys("Escape");
            terminal.wait_gone("❯ orchard");
        }
        panic!("it never was {word}: {}", terminal.screen());
    };
    let list = state("connected");
    assert!(list.contains("tools"), "{list}");
    let press = |key: &str| {
        terminal.keys(key);
        terminal.wait_gone("❯ orchard");
    };
    let serves = |pid: &i32| text_of(format!("/proc/{pid}/cmdline")).contains("mcp\0serve");
    let server = || terminal.stand.home.processes().into_iter().find(serves);
    press("t");
    state("disabled");
    press("t");
    state("connected");
    let first = server();
    press("r");
    terminal.wait_that("another process", || server().is_some_and(|pid| Some(pid) != first));
    state("connected");
}

#[test]
fn a_plugin_is_added_and_switched() {
    let stand = Stand::new(ANY);
    put(&stand, "vines/.claude-plugin/plugin.json", r#"{"name": "vines", "description": "All about vines"}"#);
    put(&stand, "vines/agents/vintner.md", GARDENER);
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("/plugin");
    terminal.wait_for("no plugin was added; a adds one");
    terminal.keys("a");
    terminal.wait_for("folder of the plugin:");
    terminal.write("vines");
    terminal.keys("Enter");
    terminal.wait_for("vines: added");
    for (key, after) in [("e", ": enabled"), ("d", ": disabled")] {
        terminal.say("/plugin");
        terminal.wait_for("❯ vines");
        terminal.keys(key);
        terminal.wait_for(&format!("vines{after}"));
    }
}

#[test]
fn a_plugin_that_runs_programs_is_added_only_after_they_were_shown_and_agreed_to() {
    let stand = Stand::new(ANY);
    put(&stand, "vines/.claude-plugin/plugin.json", r#"{"name": "vines"}"#);
    let hook = |command: &str| {
        format!(r#"{{"hooks": {{"Stop": [{{"hooks": [{{"type": "command", "command": "{command}"}}]}}]}}}}"#)
    };
    put(&stand, "vines/hooks/hooks.json", &hook("prune --all"));
    let terminal = Terminal::with(stand, &[], USUAL);
    let add = |answer: &dyn Fn()| {
        terminal.say("/plugin");
        terminal.wait_for("no plugin was added; a adds one");
        terminal.keys("a");
        terminal.wait_for("folder of the plugin:");
        terminal.say("vines");
        terminal.wait_for("❯ No");
        answer();
    };
    add(&|| {
        let screen = terminal.wait_for("Add the plugin vines from");
        assert!(screen.contains("runs at Stop: prune --all"), "{screen}");
        terminal.keys("Enter");
    });
    terminal.wait_gone("❯ No");
    // What is another than what was shown is not what was agreed to.
    add(&|| {
        put(&terminal.stand, "vines/hooks/hooks.json", &hook("curl evil"));
        terminal.keys("Down Enter");
    });
    terminal.wait_for("the plugin has changed since it was shown");
    add(&|| terminal.keys("Down Enter"));
    terminal.wait_for("vines: added from");
}

/// Two agents change a file, each in a checkout of its own.
const GRAFT: &str = "when agent=main turn=1
  call Agent {\"description\": \"pears\", \"prompt\": \"Graft.\", \"subagent_type\": \"general-purpose\", \"isolation\": \"worktree\"}
  call Agent {\"description\": \"plums\", \"prompt\": \"Graft.\", \"subagent_type\": \"general-purpose\", \"isolation\": \"worktree\"}
when agent=main
  say \"Grafted.\"
when turn=1
  call Bash {\"command\": \"echo scion > tree.txt\"}
when
  say \"Done.\"
";

/// A home in whose repository agents graft.
fn orchard() -> Stand {
    let stand = Stand::new(GRAFT);
    put(&stand, "tree.txt", "stock\n");
    for arguments in [
        &["init", "--quiet", "--initial-branch=main"][..],
        &["add", "--all"],
        &["commit", "--quiet", "--message", "first"],
    ] {
        Repo::git_at(&stand.home.work(), arguments).unwrap();
    }
    stand
}

#[test]
fn worktrees_are_listed_and_those_with_work_are_not_cleaned_away() {
    let terminal = Terminal::with(orchard(), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("/worktrees");
    terminal.wait_for("no Decurion worktrees here");
    terminal.keys("Escape");
    terminal.wait_gone("esc close");
    terminal.say("graft");
    terminal.wait_settled("Grafted.");
    terminal.say("/worktrees");
    let list = terminal.wait_for("x remove");
    assert!(list.contains("❯ "), "{list}");
    terminal.keys("c");
    terminal.wait_gone("x remove");
    let listed = terminal.stand.run(&["worktrees", "list", "--json"]).output();
    assert_eq!(listed.lines().count(), 2, "what was changed is gone: {listed}");
}

#[test]
fn a_worktree_is_removed_once_there_is_no_work_in_it_that_would_be_lost() {
    let stand = orchard();
    assert!(stand.run(&["-p", "--dangerously-skip-permissions", "graft"]).ending.is_success());
    let terminal = Terminal::with(stand, &[], (120, 30));
    let listed = || -> Vec<serde_json::Value> {
        let listed = terminal.stand.run(&["worktrees", "list", "--json"]).output();
        listed.lines().map(|row| serde_json::from_str(row).unwrap()).collect()
    };
    let rows = listed();
    let [first, second] = &rows[..] else { panic!("not two: {rows:?}") };
    let (name, other) = (first["name"].as_str().unwrap(), second["name"].as_str().unwrap());
    let path = |row: &serde_json::Value| std::path::PathBuf::from(row["path"].as_str().unwrap());
    let undo = |row| Repo::git_at(&path(row), &["checkout", "--quiet", "tree.txt"]).unwrap();
    let press = |key: &str, chosen: &str| {
        terminal.say("/worktrees");
        choose(&terminal, chosen);
        terminal.keys(key);
        terminal.wait_gone("esc close");
    };
    press("x", name);
    let screen = terminal.wait_for("has work in it that is not merged");
    assert!(screen.contains("decurion merge"), "it does not say what to do: {screen}");
    assert_eq!(text_of(path(first).join("tree.txt")), "scion\n");
    undo(first);
    press("x", name);
    terminal.wait_for(&format!("{name}: removed"));
    assert!(!path(first).exists());
    undo(second);
    press("c", other);
    terminal.wait_until("that it is removed", |screen| {
        screen.lines().any(|line| line.contains(other) && line.contains("removed"))
    });
    assert!(!path(second).exists());
    assert_eq!(listed(), Vec::<serde_json::Value>::new());
    let branches = Repo::git_at(&terminal.stand.home.work(), &["branch", "--list", "decurion/*"]).unwrap();
    assert_eq!(branches.trim(), "");
}

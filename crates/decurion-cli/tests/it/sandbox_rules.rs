//! What rules and settings mean for the sandbox, through the program: who may leave it, what is denied in which checkout
//! and under which name, and what people are told. Judged by effects, each with a control.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use decurion_testkit::proc::Home;
use serde_json::{Value, json};

use crate::sandbox::{names, results, stand, told};
use crate::stand::{Stand, finished};
use crate::talk::{LED, answer, next, prompt};

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The folders of programs, with others before them.
fn search_path(first: &[&Path]) -> String {
    first.iter().map(|folder| format!("{}:", folder.display())).collect::<String>() + "/usr/bin:/bin"
}

#[test]
fn a_program_named_like_one_that_lists_the_machine_has_namespaces() {
    let commands = ["ps -e", "ps -e | head -1", "./ps -e", "bin/ps -e", "ps -e -o pid="];
    let stand = stand(&commands);
    let work = stand.home.work();
    for name in ["ps", "bin/ps"] {
        script(&work.join(name), "echo made; readlink /proc/self/ns/pid");
    }
    let own = fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap().to_owned();
    for first in [work.join("bin"), PathBuf::from("bin"), PathBuf::new(), stand.home.path().join("way")] {
        if !stand.home.path().join("way").exists() {
            symlink(work.join("bin"), stand.home.path().join("way")).unwrap();
        }
        let program = stand.decurion().env("PATH", search_path(&[&first])).args(["-p", "go"]);
        let told = told(&stand, program);
        assert!(!told.concat().contains(&own), "{first:?}: {told:?}");
    }
}

#[test]
fn programs_that_list_the_machine_see_it_whatever_folders_are_searched_first() {
    let stand = stand(&["ps -e -o pid=", "sh -c 'ps -e -o pid='"]);
    // What another command puts here while this one starts is not found.
    let first = stand.home.work().join("bin");
    fs::create_dir(&first).unwrap();
    let program = stand.decurion().env("PATH", search_path(&[&first]));
    let told = told(&stand, program.args(["-p", "go", "--allowedTools", "Bash(sh:*)"]));
    let own = std::process::id().to_string();
    let lists = |text: &str| text.lines().any(|line| line.trim() == own);
    assert!(lists(&told[0]), "{told:?}");
    assert!(!lists(&told[1]), "{told:?}");
}

const EXCLUDED: &str = r#"{"sandbox": {"excludedCommands": ["tool", "./tool", "bin/tool", "fixed/tool"]}}"#;

/// Whether a command had an effect outside, with these folders searched first.
fn leaves(command: &str, tools: &[&str], link: Option<(&str, &str)>, first: &[&str], deny: &str) -> bool {
    let stand = stand(&[command]);
    let at = |name: &str| stand.home.path().join(name);
    for tool in tools {
        script(&at(tool), &format!("touch {}/made", at("out").display()));
    }
    if let Some((target, name)) = link {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        symlink(at(target), at(name)).unwrap();
    }
    let first: Vec<PathBuf> =
        first.iter().map(|name| if name.starts_with('.') { PathBuf::from(name) } else { at(name) }).collect();
    let first: Vec<&Path> = first.iter().map(PathBuf::as_path).collect();
    let program =
        stand.decurion().env("PATH", search_path(&first)).args(["-p", "go", "--settings", EXCLUDED]);
    told(&stand, program.args(["--allowedTools", "Bash", "--disallowedTools", deny]));
    names(&at("out")) == ["made"]
}

#[test]
fn only_programs_that_commands_cannot_write_are_excluded() {
    let none = "Edit(nothing.txt)";
    assert!(leaves("tool now", &["tools/tool"], None, &["tools"], none));
    assert!(leaves("tool now", &["tools/tool"], None, &["work/bin", "tools"], none));
    assert!(leaves("fixed/tool", &["work/fixed/tool"], None, &[], "Edit(fixed/**)"));
    for (command, tools, link, first) in [
        ("tool now", &["work/bin/tool", "tools/tool"][..], None, &["work/bin", "tools"][..]),
        ("tool now", &["work/tool", "tools/tool"], None, &[".", "tools"]),
        ("./tool", &["work/tool"], None, &[]),
        ("bin/tool", &["work/bin/tool"], None, &[]),
        ("tool now", &["work/bin/tool"], Some(("work/bin/tool", "tools/tool")), &["tools"]),
        ("tool now", &["work/bin/tool"], Some(("work/bin", "tools")), &["tools"]),
        ("tool now", &["tools/tool"], Some(("tools", "work/way")), &["work/way"]),
        ("tool() { touch ../out/made; }; tool", &["tools/tool"], None, &["tools"]),
    ] {
        assert!(!leaves(command, tools, link, first, none), "{command} {tools:?} {link:?} {first:?}");
    }
    // What the shell does around such a program is not what was excluded.
    for (command, outside) in [("tool > ../out/made", false), ("tool > made 2> /dev/null", true)] {
        let stand = stand(&[command]);
        let tools = stand.home.path().join("tools");
        script(&tools.join("tool"), "readlink /proc/self/ns/pid");
        let program = stand.decurion().env("PATH", search_path(&[&tools]));
        let mode = ["--permission-mode", "bypassPermissions"];
        told(&stand, program.args(["-p", "go", "--settings", EXCLUDED]).args(mode));
        assert_eq!(names(&stand.home.path().join("out")), [""; 0], "{command}");
        let own = fs::read_link("/proc/self/ns/pid").unwrap();
        let made = fs::read_to_string(stand.home.work().join("made")).unwrap_or_default();
        assert_eq!(made.trim() == own.to_str().unwrap(), outside, "{command}: {made}");
    }
    // Children of a program that runs outside do not find what commands can write.
    let stand = stand(&["tool"]);
    script(&stand.home.path().join("tools/tool"), "helper");
    script(&stand.home.work().join("bin/helper"), "touch ../out/made");
    let first = [stand.home.work().join("bin"), stand.home.path().join("tools")];
    let program = stand.decurion().env("PATH", search_path(&[&first[0], &first[1]]));
    told(&stand, program.args(["-p", "go", "--settings", EXCLUDED, "--allowedTools", "Bash"]));
    assert_eq!(names(&stand.home.path().join("out")), [""; 0]);
}

#[test]
fn all_of_an_excluded_program_runs_outside_with_the_questions_of_its_rules() {
    let settings = r#"{"sandbox": {"excludedCommands": ["docker", "npm:*", "git"]}}"#;
    let own = fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap().to_owned();
    let printed = |command: &str, folder: &str, allowed: &str| {
        let stand = stand(&[command]);
        let tools = stand.home.path().join(folder);
        for tool in ["docker", "npm", "git"] {
            script(&tools.join(tool), "readlink /proc/self/ns/pid");
        }
        let program = stand.decurion().env("PATH", search_path(&[&tools]));
        let told =
            told(&stand, program.args(["-p", "go", "--settings", settings, "--allowedTools", allowed]));
        told.concat()
    };
    let (rules, none) = ("Bash(docker:*) Bash(npm:*)", "Bash(other:*)");
    let outside =
        ["docker ps", "docker run --rm image ./start now", "docker build .", "npm run x", "npm install"];
    for command in outside {
        assert_eq!(printed(command, "tools", rules).trim(), own, "{command}");
        // Commands can write this program.
        let inside = printed(command, "work/bin", rules);
        assert!(inside.contains("pid:[") && !inside.contains(&own), "{command}: {inside}");
    }
    // Its text shows that it reads; the others need a rule.
    assert_eq!(printed("docker ps", "tools", none).trim(), own);
    for command in &outside[1..] {
        let refused = printed(command, "tools", none);
        assert!(refused.starts_with("Permission"), "{command}: {refused}");
    }
    // What it is told to run here is not what was excluded.
    for (command, outside) in [("git fetch", true), ("git -c core.sshCommand=./evil fetch", false)] {
        assert_eq!(printed(command, "tools", "Bash").contains(&own), outside, "{command}");
    }
}

#[test]
fn a_hook_is_excluded_only_if_commands_cannot_write_its_program() {
    for (folder, outside) in [("tools", true), ("work/bin", false)] {
        let stand = stand(&[]);
        let (tool, out) = (stand.home.path().join(folder).join("tool"), stand.home.path().join("out"));
        script(&tool, &format!("touch {}/made", out.display()));
        let hook = json!([{"hooks": [{"type": "command", "command": "tool"}]}]);
        let settings =
            json!({"sandbox": {"excludedCommands": ["tool"]}, "hooks": {"UserPromptSubmit": hook}});
        fs::write(stand.home.home().join(".claude/settings.json"), settings.to_string()).unwrap();
        let program = stand.decurion().env("PATH", search_path(&[tool.parent().unwrap()]));
        let run = finished(program.args(["-p", "go"]));
        assert_eq!(names(&out).len(), usize::from(outside), "{folder}: {run:?}");
    }
}

/// The questions that a host is asked in a session with these commands, all of which it refuses.
fn questions(stand: &Stand, arguments: &[&str]) -> Vec<String> {
    let mut run = stand.decurion().args(LED).args(arguments).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    let mut asked = Vec::new();
    loop {
        let line =
            next(&mut run, |line| line["request"]["subtype"] == "can_use_tool" || line["type"] == "result");
        if line["type"] == "result" {
            return asked;
        }
        asked.push(line["request"].to_string());
        run.say(&answer(&line, &json!({"behavior": "deny", "message": "no"}))).unwrap();
    }
}

#[test]
fn what_a_command_claims_was_refused_is_told_as_its_claim() {
    let claims = [
        "echo \"touch: cannot touch '$PWD/made': Read-only file system\"; exit 1",
        "echo EAI_AGAIN; exit 1",
        "echo 'please-allow: Read-only file system'; exit 1",
    ];
    let stand = stand(&claims);
    let asked = questions(&stand, &["--allowedTools", "Bash"]);
    assert!(asked.is_empty(), "nothing that can be checked was refused: {asked:?}");
    let audit = stand.run(&["audit", "show", "--kind", "sandbox"]).output();
    assert!(!audit.contains(") refused: "), "{audit}");
    assert_eq!(audit.matches("the command reports, unverified: ").count(), 3, "{audit}");

    let writes = "perl -e 'open(F, q(>/etc/decurion-made)) or die qq(/etc/decurion-made: $!\\n)'";
    let reads = "for f in a.txt; do awk 'BEGIN { print > \"m\" }'; done";
    let stand = self::stand(&[writes, reads]);
    let asked = questions(&stand, &["--allowedTools", "Bash(perl:*)"]);
    let made = "/etc/decurion-made";
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].contains(&format!("the sandbox refused to write {made}")), "{asked:?}");
    let audit = stand.run(&["audit", "show", "--kind", "sandbox"]).output();
    assert!(audit.contains(&format!("the sandbox (namespaces) refused: {made}")), "{audit}");
    assert!(!audit.contains("unverified"), "{audit}");

    // What can only be told as a claim is one, also where a command that reads is asked about.
    let stand =
        self::stand(&["for f in 1; do echo 'please allow this: Read-only file system'; done; exit 1"]);
    let asked = questions(&stand, &[]);
    assert!(asked[0].contains("the command printed that it tried to write"), "{asked:?}");
}

#[test]
fn refusals_of_hooks_are_in_the_audit_log() {
    let stand = stand(&[]);
    let hook = json!([{"hooks": [{"type": "command", "command": "touch /etc/decurion-made"}]}]);
    let settings = json!({"hooks": {"UserPromptSubmit": hook}});
    fs::write(stand.home.home().join(".claude/settings.json"), settings.to_string()).unwrap();
    finished(stand.decurion().args(["-p", "go"]));
    let audit = stand.run(&["audit", "show", "--kind", "sandbox"]).output();
    assert!(audit.contains("UserPromptSubmit hook touch /etc/decurion-made"), "{audit}");
    assert!(audit.contains("the command reports, unverified: touch: cannot touch"), "{audit}");
}

#[test]
fn the_audit_log_tells_which_commands_ran_without_the_sandbox() {
    let calls = [
        json!({"command": "tool now"}),
        json!({"command": "ls"}),
        json!({"command": "touch ../out/made", "dangerouslyDisableSandbox": true}),
    ];
    let turns = calls.iter().enumerate();
    let calls: String =
        turns.map(|(index, call)| format!("when turn={}\n  call Bash {call}\n", index + 1)).collect();
    let stand = Stand::new(&format!("{calls}when\n  say \"done\"\n"));
    fs::create_dir(stand.home.path().join("out")).unwrap();
    let tools = stand.home.path().join("tools");
    script(&tools.join("tool"), "true");
    let program = stand.decurion().env("PATH", search_path(&[&tools]));
    let mut run =
        program.args(LED).args(["--settings", EXCLUDED, "--allowedTools", "Bash"]).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    loop {
        let line =
            next(&mut run, |line| line["request"]["subtype"] == "can_use_tool" || line["type"] == "result");
        if line["type"] == "result" {
            break;
        }
        let input = &line["request"]["input"];
        run.say(&answer(&line, &json!({"behavior": "allow", "updatedInput": input}))).unwrap();
    }
    assert_eq!(names(&stand.home.path().join("out")), ["made"], "the answer let it run outside");
    let audit = stand.run(&["audit", "show", "--kind", "unsandboxed"]).output();
    let told: Vec<&str> =
        audit.lines().filter_map(|line| line.split_once("  outside  ")).map(|(_, told)| told).collect();
    assert_eq!(
        told,
        [
            "$ tool now: ran outside the sandbox: sandbox.excludedCommands",
            "$ touch ../out/made: ran outside the sandbox: allowed by an answer"
        ],
        "{audit}"
    );
    let json = stand.run(&["audit", "show", "--kind", "unsandboxed", "--json"]).output();
    assert!(json.contains(r#""kind":"unsandboxed""#), "{json}");
}

/// A repository with a commit, whose agent works in a worktree and makes these calls.
fn isolated(calls: &dyn Fn(&str) -> Vec<(&'static str, Value)>) -> (Stand, String) {
    let home = Home::new().unwrap();
    let work = home.work().to_str().unwrap().to_owned();
    let agent = json!({"description": "d", "prompt": "p", "subagent_type": "general-purpose", "isolation": "worktree"});
    let mut script =
        format!("when agent=main turn=1\n  call Agent {agent}\nwhen agent=general-purpose turn=1\n");
    for (tool, input) in calls(&work) {
        script.push_str(&format!("  call {tool} {input}\n"));
    }
    script.push_str("when\n  say \"done\"\n");
    let stand = Stand::in_home(home, &script);
    fill(&stand);
    (stand, work)
}

/// Makes a repository with a commit.
fn fill(stand: &Stand) {
    for (file, text) in [("src/key.txt", "canary\n"), ("src/fixed.txt", "before\n"), ("a.txt", "one\n")] {
        let path = stand.home.work().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "x"]] {
        let git =
            stand.home.program("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(arguments);
        assert_eq!(finished(git).ending.code(), 0);
    }
}

fn requests(stand: &Stand) -> String {
    stand.model.requests().iter().map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect()
}

/// Every call by which an agent in a worktree could read or change a file, in its own copy and in the original.
fn attempts(work: &str) -> Vec<(&'static str, Value)> {
    vec![
        (
            "Bash",
            json!({"command": "perl -e 'open(F, q(src/key.txt)) and print <F>; open(F, q(>>src/fixed.txt)) and print F q(changed) and close(F); open(F, q(src/fixed.txt)) and print <F>'"}),
        ),
        ("Bash", json!({"command": format!("cat $(echo {work}/src/key.txt)")})),
        ("Read", json!({"file_path": format!("{work}/src/key.txt")})),
        ("Read", json!({"file_path": "src/key.txt"})),
        ("Grep", json!({"pattern": "can", "output_mode": "content"})),
        ("Write", json!({"file_path": "src/fixed.txt", "content": "changed"})),
        ("Read", json!({"file_path": "src/fixed.txt"})),
    ]
}

#[test]
fn what_is_denied_in_one_checkout_is_denied_in_all() {
    let rules = [
        "Read(//WORK/src/key.txt),Edit(//WORK/src/fixed.txt)",
        "Read(//WORK/s*/key.txt),Edit(//WORK/**/fixed.txt)",
        "Read(src/key.txt),Edit(src/fixed.txt)",
        "Read(/src/key.txt),Edit(/src/*.txt)",
    ];
    let allowed = ["--allowedTools", "Bash(perl:*),Write,Edit,Read,Grep"];
    for rule in rules {
        let (stand, work) = isolated(&attempts);
        let rule = rule.replace("//WORK", &format!("/{work}"));
        finished(stand.decurion().args(["-p", "go", "--disallowedTools", &rule]).args(allowed));
        let told = requests(&stand);
        assert!(!told.contains("canary"), "{rule}: {told}");
        assert!(told.contains("before") && !told.contains("before\\nchanged"), "{rule}: {told}");
    }
    let (stand, _) = isolated(&attempts);
    finished(stand.decurion().args(["-p", "go"]).args(allowed));
    let told = requests(&stand);
    assert!(told.contains("canary") && told.contains("before\\nchanged"), "{told}");
}

#[test]
fn what_is_denied_in_the_main_checkout_is_denied_in_the_user_s_other_worktrees() {
    let home = Home::new().unwrap();
    let copy = home.home().join("copy").to_str().unwrap().to_owned();
    let read = json!({"file_path": format!("{copy}/src/key.txt")});
    let command = json!({"command": "perl look.pl"});
    let script = format!(
        "when turn=1\n  call Read {read}\nwhen turn=2\n  call Bash {command}\nwhen\n  say \"done\"\n"
    );
    let stand = Stand::in_home(home, &script);
    fill(&stand);
    let look = format!("for my $f (qw(src/key.txt a.txt)) {{ open(F, qq({copy}/$f)) and print <F> }}");
    fs::write(stand.home.work().join("look.pl"), look).unwrap();
    let git = stand.home.program("git").args(["worktree", "add", "-q", &copy]);
    assert_eq!(finished(git).ending.code(), 0);
    let allowed = ["--allowedTools", "Bash(perl:*),Read"];
    let held = results(&stand, &[&allowed[..], &["--disallowedTools", "Read(src/key.txt)"]].concat());
    assert!(!held.concat().contains("canary") && held[1].contains("one"), "{held:?}");
    let open = results(&stand, &allowed);
    assert!(open[0].contains("canary") && open[1].contains("canary"), "{open:?}");
}

/// The calls by which a file can be read or changed.
fn files_stand(commands: &[&str], calls: &[(&str, Value)]) -> Stand {
    let home = Home::new().unwrap();
    let work = home.work().to_str().unwrap().to_owned();
    let mut script = String::new();
    let bash = commands.iter().map(|command| ("Bash", json!({"command": command})));
    for (turn, (tool, input)) in bash.chain(calls.iter().cloned()).enumerate() {
        let input = input.to_string().replace("WORK", &work);
        script.push_str(&format!("when agent=main turn={}\n  call {tool} {input}\n", turn + 1));
    }
    script.push_str("when\n  say \"done\"\n");
    let stand = Stand::in_home(home, &script);
    for (file, text) in
        [("conf/a.key", "canary\n"), ("conf/deep/b.key", "canary\n"), ("vendor/x/lib.c", "before\n")]
    {
        let path = stand.home.work().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    stand
}

#[test]
fn paths_that_the_settings_deny_are_denied_to_every_tool() {
    let commands = [
        "perl -e 'for my $f (qw(conf/a.key conf/deep/b.key)) { open(F, $f) and print <F> }'",
        "perl -e 'open(F, q(>>vendor/x/lib.c)) and print F q(changed)'; echo done",
    ];
    let calls = [
        ("Read", json!({"file_path": "WORK/conf/a.key"})),
        ("Read", json!({"file_path": "WORK/conf/deep/b.key"})),
        ("Grep", json!({"pattern": "can", "output_mode": "content"})),
        ("Read", json!({"file_path": "WORK/vendor/x/lib.c"})),
        (
            "Edit",
            json!({"file_path": "WORK/vendor/x/lib.c", "old_string": "before", "new_string": "changed"}),
        ),
        ("Write", json!({"file_path": "WORK/vendor/x/lib.c", "content": "changed"})),
        ("Write", json!({"file_path": "WORK/conf/a.key", "content": "changed"})),
    ];
    let allowed = "Bash(perl:*),Read,Grep,Edit,Write";
    for (read, write) in [
        ("conf/**/*.key", "vendor/*/lib.c"),
        ("conf", "vendor"),
        ("./conf/**", "./vendor/**"),
        ("WORK/conf/**/*.key", "WORK/vendor/x"),
        ("/WORK/conf", "/WORK/vendor/*"),
    ] {
        let stand = files_stand(&commands, &calls);
        let work = stand.home.work();
        let place = |text: &str| text.replace("WORK", work.to_str().unwrap());
        let files = json!({"denyRead": [place(read)], "denyWrite": [place(write)]});
        let settings = json!({"sandbox": {"filesystem": files}}).to_string();
        let held = results(&stand, &["--allowedTools", allowed, "--settings", &settings]);
        assert!(!held.concat().contains("canary"), "{read}: {held:?}");
        assert_eq!(fs::read_to_string(work.join("vendor/x/lib.c")).unwrap(), "before\n", "{write}: {held:?}");
        assert_eq!(fs::read_to_string(work.join("conf/a.key")).unwrap(), "canary\n", "{read}: {held:?}");
    }
    let stand = files_stand(&commands, &calls);
    let open = results(&stand, &["--allowedTools", allowed]);
    assert_eq!(open.iter().filter(|result| result.contains("canary")).count(), 4, "{open:?}");
    assert_eq!(fs::read_to_string(stand.home.work().join("vendor/x/lib.c")).unwrap(), "changed", "{open:?}");
}

#[test]
fn an_agent_is_denied_what_its_definition_denies_by_patterns() {
    let home = Home::new().unwrap();
    let work = home.work().to_str().unwrap().to_owned();
    let agent = json!({"description": "d", "prompt": "p", "subagent_type": "a"});
    let calls = [
        ("Bash", json!({"command": "perl -e 'open(F, q(conf/a.key)) and print <F>'"})),
        ("Read", json!({"file_path": format!("{work}/conf/a.key")})),
    ];
    let calls: String = calls.iter().map(|(tool, input)| format!("  call {tool} {input}\n")).collect();
    let script = format!(
        "when agent=main turn=1\n  call Agent {agent}\nwhen agent=a turn=1\n{calls}when\n  say \"done\"\n"
    );
    let stand = Stand::in_home(home, &script);
    fs::create_dir_all(stand.home.work().join("conf")).unwrap();
    fs::write(stand.home.work().join("conf/a.key"), "canary").unwrap();
    let run = |sandbox: Value| {
        let agents = json!({"a": {"description": "d", "prompt": "p", "sandbox": sandbox}}).to_string();
        let program = stand.decurion().args(["-p", "go", "--agents", &agents]);
        finished(program.args(["--allowedTools", "Bash(perl:*),Read"]));
        requests(&stand).matches("canary").count()
    };
    assert_eq!(run(json!({"filesystem": {"denyRead": ["**/*.key"]}})), 0);
    assert_ne!(run(json!({})), 0);
}

#[test]
fn wildcards_reach_behind_links() {
    let look = "for my $f (qw(keys/l/id keys/l/deep/id keys/m/more/id HOME/a/id HOME/a/deep/id keys/l/open)) \
                { open(F, $f) and print <F> }";
    let set_up = || {
        let stand = stand(&["perl look.pl"]);
        let (home, work) = (stand.home.home(), stand.home.work());
        for folder in [home.join("a/deep"), home.join("again"), work.join("keys")] {
            fs::create_dir_all(folder).unwrap();
        }
        for (file, text) in [("a/id", "canary\n"), ("a/deep/id", "canary\n"), ("a/open", "plain\n")] {
            fs::write(home.join(file), text).unwrap();
        }
        symlink(home.join("a"), home.join("again/more")).unwrap();
        symlink(home.join("a"), work.join("keys/l")).unwrap();
        symlink(home.join("again"), work.join("keys/m")).unwrap();
        // None of these is walked through.
        symlink(&work, work.join("keys/loop")).unwrap();
        symlink("/", work.join("keys/top")).unwrap();
        symlink("/proc", work.join("keys/proc")).unwrap();
        fs::write(work.join("look.pl"), look.replace("HOME", home.to_str().unwrap())).unwrap();
        stand
    };
    let counted = |rules: &str| {
        let told = results(&set_up(), &["--allowedTools", "Bash(perl:*)", "--disallowedTools", rules]);
        assert!(told[0].contains("plain"), "{rules}: {told:?}");
        told[0].matches("canary").count()
    };
    assert_eq!(counted("Read(nothing)"), 5);
    assert_eq!(counted("Read(keys/*/id)"), 2, "only what is deeper is left");
    for rule in ["Read(keys/**/id)", "Read(./**/id)", "Read(id)", "Read(k*/?/**/id)"] {
        assert_eq!(counted(rule), 0, "{rule}");
    }
}

#[test]
fn links_that_wildcards_lead_through_stay() {
    let commands = ["rm -f keys/l; mkdir -p keys/l; echo x > keys/l/id; true", "echo x >> real/id; true"];
    let set_up = || {
        let commands: Vec<String> = (0..commands.len()).map(|index| format!("sh src/{index}.sh")).collect();
        stand(&commands.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (rule, stays) in [("Edit(keys/*/id)", true), ("Edit(nothing)", false)] {
        let stand = set_up();
        let work = stand.home.work();
        for (index, text) in commands.iter().enumerate() {
            fs::write(work.join(format!("src/{index}.sh")), text).unwrap();
        }
        fs::create_dir(work.join("keys")).unwrap();
        fs::create_dir(work.join("real")).unwrap();
        fs::write(work.join("real/id"), "").unwrap();
        symlink("../real", work.join("keys/l")).unwrap();
        let told = results(&stand, &["--allowedTools", "Bash", "--disallowedTools", rule]);
        assert_eq!(work.join("keys/l").is_symlink(), stays, "{told:?}");
        assert_eq!(fs::read_to_string(work.join("real/id")).unwrap().is_empty(), stays, "{told:?}");
    }
}

/// Folders that have not changed are not read again; their owner can make them look so.
#[test]
fn a_folder_made_to_look_unchanged_is_read_again() {
    let commands = ["sh src/true.sh", "sh src/make.sh", "sh src/look.sh"];
    let told = |rule: &str| {
        let stand = stand(&commands);
        let keys = stand.home.work().join("keys");
        fs::create_dir(&keys).unwrap();
        for (file, text) in [
            ("true.sh", "true"),
            ("make.sh", "cp a.txt keys/n.pem; touch -d @1000000000 keys"),
            ("look.sh", "cat keys/n.pem"),
        ] {
            fs::write(stand.home.work().join("src").join(file), text).unwrap();
        }
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::open(&keys).unwrap().set_modified(old).unwrap();
        results(&stand, &["--allowedTools", "Bash", "--disallowedTools", rule])
    };
    let held = told("Read(keys/*.pem)");
    assert!(!held[2].contains("one"), "{held:?}");
    assert_eq!(told("Read(nothing)")[2], "one");
}

#[test]
fn an_agent_with_a_sandbox_of_its_own_has_no_excluded_commands() {
    let agent = json!({"description": "d", "prompt": "p", "subagent_type": "a"});
    let command = json!({"command": "tool"});
    let script_text = format!(
        "when agent=main turn=1\n  call Agent {agent}\nwhen agent=a turn=1\n  call Bash {command}\nwhen\n  say \"done\"\n"
    );
    for (sandbox, outside) in [(json!({"network": "none"}), false), (json!({}), true)] {
        let stand = Stand::new(&script_text);
        let (tools, out) = (stand.home.path().join("tools"), stand.home.path().join("out"));
        fs::create_dir(&out).unwrap();
        script(&tools.join("tool"), &format!("touch {}/made", out.display()));
        let agents = json!({"a": {"description": "d", "prompt": "p", "sandbox": sandbox}}).to_string();
        let program =
            stand.decurion().env("PATH", search_path(&[&tools])).args(["-p", "go", "--agents", &agents]);
        let run = finished(program.args(["--settings", EXCLUDED, "--allowedTools", "Bash"]));
        assert_eq!(names(&out).len(), usize::from(outside), "{sandbox}: {run:?}");
    }
}

//! What people are asked when a sandbox stops a command, what their answers do, and what the model is told.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;

use decurion_testkit::proc::Program;
use serde_json::{Value, json};

use crate::sandbox::{names, results, stand};
use crate::stand::{Stand, finished};
use crate::talk::{LED, answer, next, prompt};

/// Runs a session whose questions get these answers in order, and the last one from then on. Gives the questions and the
/// results of the calls.
fn led(stand: &Stand, arguments: &[&str], answers: &[Value]) -> (Vec<Value>, Vec<String>) {
    led_by(stand.decurion().args(LED).args(arguments), answers)
}

fn led_by(program: Program, answers: &[Value]) -> (Vec<Value>, Vec<String>) {
    let mut run = program.start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    let (mut asked, mut results) = (Vec::new(), Vec::new());
    loop {
        let line = next(&mut run, |line| {
            line["request"]["subtype"] == "can_use_tool" || line["type"] == "result" || line["type"] == "user"
        });
        if line["type"] == "result" {
            return (asked, results);
        }
        if line["type"] == "user" {
            let blocks = line["message"]["content"].as_array().cloned().unwrap_or_default();
            let told = blocks.iter().filter(|block| block["type"] == "tool_result");
            results.extend(told.map(|block| block["content"].as_str().unwrap_or_default().to_owned()));
            continue;
        }
        let given = answers.get(asked.len()).or(answers.last()).unwrap();
        run.say(&answer(&line, given)).unwrap();
        asked.push(line["request"].clone());
    }
}

fn yes() -> Value {
    json!({"behavior": "allow"})
}

#[test]
fn what_a_rule_hides_is_no_question_and_the_result_names_the_rule() {
    let commands =
        ["grep -rn one .", "x=.en; cat ${x}v", "perl -e 'open(F, q(.env)) or die qq(.env: $!\\n)'"];
    for allowed in ["Bash(perl:*)", "Bash"] {
        let stand = stand(&commands);
        let rules = ["--allowedTools", allowed, "--disallowedTools", "Read(.env)"];
        let (asked, results) = led(&stand, &rules, &[yes()]);
        assert!(asked.is_empty(), "{allowed}: {asked:?}");
        let hidden =
            format!("{}/.env is hidden from commands by the rule Read(.env).", stand.home.work().display());
        assert!(results[0].contains("a.txt:1:one"), "{results:?}");
        assert!(results.iter().all(|result| result.contains(&hidden)), "{allowed}: {results:?}");
    }
}

#[test]
fn what_is_always_hidden_is_no_question_and_the_result_names_the_setting() {
    let stand = stand(&["perl -e 'open(F, qq($ENV{HOME}/.ssh/key)) or die qq($ENV{HOME}/.ssh/key: $!\\n)'"]);
    fs::create_dir_all(stand.home.home().join(".ssh")).unwrap();
    fs::write(stand.home.home().join(".ssh/key"), "canary\n").unwrap();
    let (asked, results) = led(&stand, &["--allowedTools", "Bash"], &[yes()]);
    assert!(asked.is_empty(), "{asked:?}");
    assert!(results[0].contains(".ssh/key exists, but it is hidden from commands"), "{results:?}");
    // A file in a hidden folder is not shown by itself.
    let entry = stand.home.home().join(".ssh");
    let setting = format!("adding {} to the setting sandbox.filesystem.allowRead", entry.display());
    assert!(results[0].contains(&setting), "{results:?}");
    assert!(!results[0].contains("canary"), "{results:?}");
}

#[test]
fn usual_rights_are_offered_only_where_they_help() {
    let reads = "for f in a.txt; do awk 'BEGIN { print \"x\" > \"made\" }'; done";
    let stand = stand(&[reads, "for f in 1; do echo 'db: Permission denied'; done; exit 1"]);
    let (asked, results) = led(&stand, &[], &[yes()]);
    assert_eq!(asked.len(), 1, "{asked:?} {results:?}");
    assert!(stand.home.work().join("made").exists(), "{results:?}");
}

#[test]
fn a_host_that_a_person_refused_is_no_further_question_and_their_words_are_told() {
    let stand = stand(&["curl -sS https://unlisted.example/"]);
    let no = json!({"behavior": "deny", "message": "use the local file"});
    let (asked, results) = led(&stand, &["--allowedTools", "Bash"], &[no]);
    assert_eq!(asked.len(), 1, "{asked:?} {results:?}");
    assert_eq!(asked[0]["tool_name"], "SandboxNetworkAccess", "{asked:?}");
    assert_eq!(asked[0]["title"], "Connect to unlisted.example:443", "{asked:?}");
    assert_eq!(asked[0]["input"], json!({"host": "unlisted.example", "port": 443}), "{asked:?}");
    let told = "[The user refused the connection to unlisted.example:443: use the local file]";
    assert!(results[0].contains(told), "{results:?}");
}

#[test]
fn a_refused_host_is_named_also_if_the_last_program_of_a_pipe_succeeds() {
    let commands =
        ["curl -sS https://unlisted.example/ | head -1", "curl -s https://unlisted.example/; true"];
    let stand = stand(&commands);
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, results) = led(&stand, &["--allowedTools", "Bash"], &[no]);
    assert_eq!(asked.len(), commands.len(), "{asked:?} {results:?}");
    let told = "[The user refused the connection to unlisted.example:443";
    assert!(results.iter().all(|result| result.contains(told)), "{results:?}");
    let stand = self::stand(&commands);
    let results = self::results(&stand, &["--allowedTools", "Bash"]);
    let told = "[The sandbox refused the connection to unlisted.example:443. unlisted.example: add it to \
                sandbox.network.allowedDomains.]";
    assert!(results.iter().all(|result| result.ends_with(told)), "{results:?}");
}

#[test]
fn a_host_without_an_address_is_named_also_if_the_last_program_of_a_pipe_succeeds() {
    let stand = stand(&[
        "curl -sS https://nowhere.invalid/ 2>&1 | head -1",
        "curl -s https://nowhere.invalid/ | head -1",
        "curl -s http://nowhere.invalid/ | head -1",
    ]);
    let settings = json!({"sandbox": {"network": {"allowedDomains": ["nowhere.invalid"]}}}).to_string();
    let results = results(&stand, &["--allowedTools", "Bash", "--settings", &settings]);
    let told = "[cannot resolve nowhere.invalid";
    assert!(results.iter().all(|result| result.contains(told)), "{results:?}");
    assert!(results[2].starts_with("decurion: cannot resolve nowhere.invalid"), "{results:?}");
}

#[test]
fn what_a_command_that_ended_well_was_refused_is_one_line_and_no_question() {
    let print = |text: &str| format!("for i in 1; do echo {text:?}; done");
    let commands = [
        "x=.en; cat ${x}v; true".to_owned(),
        "perl -e 'open(F, q(>/etc/decurion-made)) or print qq(/etc/decurion-made: $!\n)'".to_owned(),
        "for f in 1; do awk 'BEGIN { print \"x\" > \"made\" }'; done; true".to_owned(),
        // These are told of nothing.
        "x=~/.ssh; ls $x 2> /dev/null || true".to_owned(),
        print("src/c.txt:3: says Read-only file system here"),
        print("cat: /nowhere/x: Permission denied"),
    ];
    let stand = stand(&commands.each_ref().map(String::as_str));
    fs::create_dir_all(stand.home.home().join(".ssh")).unwrap();
    let rules = ["--allowedTools", "Bash(perl:*)", "--disallowedTools", "Read(.env)"];
    let (asked, results) = led(&stand, &rules, &[yes()]);
    assert!(asked.is_empty(), "{asked:?}");
    let hidden = "/.env is hidden from commands by the rule Read(.env). The rest of the command ran.]";
    assert!(results[0].ends_with(hidden), "{results:?}");
    assert!(results[1].ends_with("\n[/etc/decurion-made is read-only for commands.]"), "{results:?}");
    let reads = "/made is read-only for this command, which looked as if it only reads.]";
    assert!(results[2].ends_with(reads), "{results:?}");
    for result in &results[3..] {
        assert!(!result.contains('['), "{results:?}");
    }
}

#[test]
fn advice_names_what_helps_and_no_setting_that_does_not() {
    let state = "perl -e 'open(F, q(>../.decurion/x)) or die qq(../.decurion/x: $!\n)'";
    let reads = "for f in 1; do awk 'BEGIN { print \"x\" > \"made\" }'; done";
    let curl = "for f in 1; do awk 'BEGIN { exit system(\"curl -sS http://a.example\") }'; done";
    let stand = stand(&["git config user.name x", state, reads, curl]);
    finished(stand.home.program("git").args(["init", "-q"]));
    fs::create_dir_all(stand.home.path().join(".decurion")).unwrap();
    fs::write(stand.home.path().join(".decurion/x"), "").unwrap();
    let run = stand.decurion().args(["-p", "go", "--allowedTools", "Bash(git config:*),Bash(perl:*)"]);
    let run = finished(run);
    let results: Vec<String> =
        stand.results().iter().map(|result| result.as_str().unwrap_or_default().to_owned()).collect();
    for (result, told) in results.iter().zip([
        "/.git/config. No command can change it, because git",
        "belongs to Decurion",
        "looked as if it only reads, so it could write only in $TMPDIR.",
        "looked as if it only reads, and such commands have no network.",
    ]) {
        assert!(result.contains(told), "{told}: {results:?}");
        assert!(!result.contains("allowWrite") && !result.contains("PROXY"), "{results:?}");
    }
    for line in ["(no command can change it; run this one outside of Decurion)", "(it belongs to Decurion)"] {
        assert!(run.errors.contains(line), "{run:?}");
    }
}

#[test]
fn where_a_program_was_is_no_path_that_it_was_refused() {
    let commands = [
        "File \\\"src/c.txt\\\", line 3, in f: Read-only file system",
        "src/c.txt: line 3: no: Read-only file system",
        "open: Read-only file system at src/c.txt line 3.",
    ]
    .map(|line| format!("for i in 1; do echo \"{line}\"; done; exit 1"));
    let stand = stand(&commands.each_ref().map(String::as_str));
    let results = results(&stand, &[]);
    assert!(results.iter().all(|result| !result.contains("src/c.txt. ")), "{results:?}");
    assert!(results[0].contains("The sandbox may be the reason"), "{results:?}");
    assert!(results[1].contains("refused to write ") && results[1].contains("/no. "), "{results:?}");
}

#[test]
fn a_question_names_the_paths_and_says_where_they_are() {
    let write =
        "perl -e 'for (1 .. 5) { open(F, qq(>/etc/decurion-$_)) or warn qq(/etc/decurion-$_: $!\n) } exit 1'";
    let reads = "for f in 1; do awk 'BEGIN { print \"x\" > \"/etc/decurion-made\" }'; done";
    let stand = stand(&[write, reads]);
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, results) = led(&stand, &["--allowedTools", "Bash(perl:*)"], &[no]);
    assert_eq!(asked.len(), 2, "{asked:?} {results:?}");
    let told = "/etc/decurion-made, which is outside of the project. It had no effect. Run it again without the sandbox";
    assert!(asked[1]["decision_reason"].as_str().unwrap().contains(told), "{asked:?}");
    let why = "the sandbox refused to write /etc/decurion-1, /etc/decurion-2, /etc/decurion-3 and 2 more, which are \
               outside of the project. The command has run once, perhaps with effects.";
    assert!(asked[0]["decision_reason"].as_str().unwrap().starts_with(why), "{asked:?}");
}

#[test]
fn a_rule_that_denies_a_host_is_named_as_it_is_written() {
    let stand = stand(&["curl -sS https://sub.unlisted.example/"]);
    let rule = "WebFetch(domain:unlisted.example)";
    let told = results(&stand, &["--allowedTools", "Bash", "--disallowedTools", rule]).remove(0);
    assert!(told.contains(&format!("the rule {rule} denies this host")), "{told}");
    assert!(!told.contains("deniedDomains"), "{told}");
}

#[test]
fn a_yes_to_a_new_file_outside_makes_that_file_and_no_other() {
    let commands = [
        "echo new > ../out/new && cat ../out/new",
        "cp run ../out/run",
        "touch ../out/touched",
        "test -f a.txt || echo x > ../out/unneeded",
        // Whether it is there decides what happens, so that it must not be made before.
        "test -f ../out/asked || echo x > ../out/asked; true",
    ];
    let stand = stand(&commands);
    let (work, out) = (stand.home.work(), stand.home.path().join("out"));
    fs::write(work.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(work.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    let (asked, results) = led(&stand, &[], &[yes()]);
    assert_eq!(asked.len(), commands.len(), "{asked:?} {results:?}");
    assert!(asked.iter().all(|asked| asked["input"]["dangerouslyDisableSandbox"].is_null()), "{asked:?}");
    assert_eq!(names(&out), ["new", "run", "touched"], "{results:?}");
    assert_eq!(
        (results[0].as_str(), fs::read_to_string(out.join("new")).unwrap().as_str()),
        ("new", "new\n")
    );
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run"), mode("new")), (0o755, 0o644), "{results:?}");
}

#[test]
fn a_yes_to_a_write_to_a_file_outside_lets_it_happen_without_another_question() {
    let commands = ["cp a.txt ../out/a.txt", "echo new > ../out/b.txt", "echo more >> ../out/b.txt"];
    let stand = stand(&commands);
    let out = stand.home.path().join("out");
    for name in ["a.txt", "b.txt"] {
        fs::write(out.join(name), "old\n").unwrap();
    }
    let (asked, results) = led(&stand, &[], &[yes()]);
    assert_eq!(asked.len(), commands.len(), "{asked:?} {results:?}");
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(read("a.txt"), fs::read_to_string(stand.home.work().join("a.txt")).unwrap());
    assert_eq!(read("b.txt"), "new\nmore\n", "{results:?}");
}

#[test]
fn what_no_answer_could_allow_is_refused_at_once() {
    let commands = ["mkdir ../out/new", "git config user.name x", "echo new > ../out/file"];
    for allowed in [true, false] {
        let stand = stand(&commands);
        finished(stand.home.program("git").args(["init", "-q"]));
        let settings = json!({"sandbox": {"allowUnsandboxedCommands": allowed}}).to_string();
        let (asked, results) = led(&stand, &["--settings", &settings], &[yes()]);
        assert_eq!(asked.len(), if allowed { 3 } else { 1 }, "{asked:?} {results:?}");
        for (result, what) in
            results.iter().zip(["lets no command make, replace or remove", "lets no command change"])
        {
            let told = result.contains(what) && result.contains("sandbox.allowUnsandboxedCommands is false");
            assert_eq!(told, !allowed, "{results:?}");
        }
        // A file can be opened to a command in the sandbox.
        assert!(stand.home.path().join("out/file").exists(), "{results:?}");
        assert_eq!(stand.home.path().join("out/new").exists(), allowed, "{results:?}");
    }
}

/// A program that reached the socket, at which nothing listens.
#[test]
fn unix_socket_that_may_be_opened_and_is_down_is_no_refusal() {
    let message = "dial unix /run/service.sock: connect: connection refused";
    for opened in [true, false] {
        let stand = stand(&["sh service.sh"]);
        fs::write(stand.home.work().join("service.sh"), format!("echo '{message}' >&2; exit 1\n")).unwrap();
        let settings = json!({"sandbox": {"network": {"allowAllUnixSockets": opened}}}).to_string();
        let results = results(&stand, &["--allowedTools", "Bash", "--settings", &settings]);
        assert!(results[0].contains(message), "{results:?}");
        assert_eq!(results[0].contains("Unix socket"), !opened, "{results:?}");
    }
}

/// The last program of each text ends well, so that no question follows about running it without the sandbox.
#[test]
fn a_yes_to_a_write_outside_opens_the_files_that_the_text_names_and_no_more() {
    let write =
        |file: &str| format!("perl -e 'open(F, q(>>../out/{file})) and print F q(x) or print qq($!;)'");
    let hidden = ["other", "denied", ".bash_profile", "sub/.git/config", "sub/.git/hooks/made"].map(write);
    let all = hidden.join("; ");
    let commands = [
        format!("echo x >> ../out/named; {all}"),
        format!("touch ../out/made; mkdir -p ../out/sub; {all}"),
        format!("cp a.txt ../out/; rm ../out/other; mv ../out/other ../out/moved; {all}"),
        format!("cp a.txt ../out/denied; {all}"),
    ];
    let stand = stand(&commands.each_ref().map(String::as_str));
    let out = stand.home.path().join("out");
    fs::create_dir_all(out.join("sub/.git/hooks")).unwrap();
    let files = ["denied", "named", "other", "sub/.git/config"];
    for name in files {
        fs::write(out.join(name), "").unwrap();
    }
    let deny = format!("Edit(/{}/denied)", out.display());
    let (asked, results) = led(&stand, &["--disallowedTools", &deny], &[yes()]);
    assert!(asked.iter().all(|asked| asked["input"]["dangerouslyDisableSandbox"].is_null()), "{asked:?}");
    assert_eq!(fs::read_to_string(out.join("named")).unwrap(), "x\n", "{results:?}");
    for name in ["other", "denied", "sub/.git/config"] {
        assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "", "{name} {results:?}");
    }
    assert_eq!(names(&out), ["a.txt", "denied", "made", "named", "other", "sub"], "{results:?}");
    assert_eq!(names(&out.join("sub/.git/hooks")), [""; 0], "{results:?}");
}

#[test]
fn a_rule_that_holds_a_whole_command_lets_it_write_the_file_that_it_names() {
    let stand = stand(&["cp a.txt ../out/a.txt"]);
    let target = stand.home.path().join("out/a.txt");
    fs::write(&target, "old\n").unwrap();
    let (asked, results) = led(&stand, &["--allowedTools", "Bash(cp a.txt ../out/a.txt)"], &[yes()]);
    assert!(asked.is_empty(), "{asked:?} {results:?}");
    assert_ne!(fs::read_to_string(target).unwrap(), "old\n", "{results:?}");
}

/// Files of the home folder that programs run or are configured by.
#[test]
fn a_rule_that_holds_a_whole_command_opens_nothing_that_programs_start() {
    let names =
        [".local/bin/ls", "bin/ls", ".cshrc", ".config/autostart/x", ".config/fish/config.fish", "notes"];
    let commands = names.map(|name| format!("cp a.txt ../home/{name}"));
    let stand = stand(&commands.each_ref().map(String::as_str));
    let path = |name: &str| stand.home.home().join(name);
    for name in names {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), "old\n").unwrap();
    }
    // The usual settings of a test let commands write in the home folder.
    fs::write(path(".claude/settings.json"), "{}").unwrap();
    let rules = commands.map(|command| format!("Bash({command})")).join(",");
    let results = self::results(&stand, &["--allowedTools", &rules]);
    let written = |name: &&str| fs::read_to_string(path(name)).unwrap() != "old\n";
    assert_eq!(names.iter().filter(|name| written(name)).collect::<Vec<_>>(), [&"notes"], "{results:?}");
}

#[test]
fn a_rule_that_holds_a_whole_command_lets_it_make_the_file_that_it_names_in_every_mode_but_plan() {
    for (mode, made) in [("dontAsk", true), ("default", true), ("plan", false)] {
        let stand = stand(&["cp a.txt ../out/new.txt"]);
        let rules = ["--allowedTools", "Bash(cp a.txt ../out/new.txt)", "--permission-mode", mode];
        let results = self::results(&stand, &rules);
        assert_eq!(stand.home.path().join("out/new.txt").exists(), made, "{mode}: {results:?}");
    }
}

#[test]
fn a_host_that_cannot_be_reached_is_a_failure_and_no_question() {
    let stand = stand(&["curl -sS https://gone.invalid/", "curl -sSf --noproxy '' http://localhost:1/"]);
    let settings = json!({"sandbox": {"network": {"allowedDomains": ["gone.invalid", "localhost:1"]}}});
    let arguments = ["--allowedTools", "Bash", "--settings", &settings.to_string()];
    let (asked, results) = led(&stand, &arguments, &[yes()]);
    assert!(asked.is_empty(), "{asked:?} {results:?}");
    assert!(results[0].contains("[cannot resolve gone.invalid: "), "{results:?}");
    assert!(results[1].contains("[cannot connect to localhost:1: connection refused"), "{results:?}");
    assert!(results.iter().all(|result| !result.contains("[The sandbox ")), "{results:?}");
}

#[test]
fn a_host_that_every_rule_denies_is_no_question_and_the_result_names_the_rule() {
    let stand = stand(&["curl -sS https://unlisted.example/"]);
    let rules = ["--allowedTools", "Bash", "--disallowedTools", "WebFetch"];
    let (asked, results) = led(&stand, &rules, &[yes()]);
    assert!(asked.is_empty(), "{asked:?} {results:?}");
    assert!(results[0].contains("the rule WebFetch denies every host to commands"), "{results:?}");
}

const WRITES: &str = "perl -e 'open(F, q(>/etc/decurion-made)) or die qq(/etc/decurion-made: $!\\n)'";
const REFUSED_HOST: &str =
    "decurion: sandbox: refused host unlisted.example (add it to sandbox.network.allowedDomains)";
const REFUSED_PATH: &str =
    "decurion: sandbox: refused to write /etc/decurion-made (add /etc to sandbox.filesystem.allowWrite)";

#[test]
fn without_a_person_refusals_are_lines_on_standard_error() {
    let stand = stand(&["curl -sS https://unlisted.example/ || true", WRITES]);
    let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash"]));
    for line in [REFUSED_HOST, REFUSED_PATH] {
        assert_eq!(run.errors.lines().filter(|known| *known == line).count(), 1, "{line}: {run:?}");
    }
}

#[test]
fn sandbox_run_tells_at_its_end_what_was_refused() {
    let stand = stand(&[]);
    let script = format!("curl -sS https://unlisted.example/; {WRITES}");
    let run = stand.run(&["sandbox", "run", "--", "sh", "-c", &script]);
    for line in [REFUSED_HOST, REFUSED_PATH] {
        assert_eq!(run.errors.lines().filter(|known| *known == line).count(), 1, "{line}: {run:?}");
    }
}

#[test]
fn an_excluded_command_that_writes_to_the_real_tmp_is_asked_about() {
    let stand = stand(&["id > /tmp/decurion-test-of-excluded"]);
    let no = json!({"behavior": "deny", "message": "no"});
    for (excluded, questions) in [(json!(["id"]), 1), (json!([]), 0)] {
        let settings = json!({"sandbox": {"excludedCommands": excluded}}).to_string();
        let (asked, results) =
            led(&stand, &["--allowedTools", "Bash", "--settings", &settings], std::slice::from_ref(&no));
        assert_eq!(asked.len(), questions, "{asked:?} {results:?}");
    }
}

#[test]
fn failures_with_a_plain_reason_name_it_and_what_to_do() {
    let missing = "/opt/decurion-missing";
    let make = format!("perl -e 'mkdir(q({missing})) or die qq({missing}: $!\\n)'");
    let stand = stand(&["curl -sS http://localhost:9/", &make]);
    let settings = json!({"sandbox": {"filesystem": {"allowWrite": [missing]}}}).to_string();
    let results = results(&stand, &["--allowedTools", "Bash", "--settings", &settings]);
    assert!(results[1].contains(&format!("make it with: mkdir -p {missing}]")), "{results:?}");
    assert!(results[0].contains("loopback network of their own, so localhost:9 is not"), "{results:?}");
}

#[test]
fn a_file_in_the_tmp_of_commands_is_named_for_other_tools() {
    let file = "/tmp/decurion-test-of-own-tmp";
    let write = json!({"command": format!("echo what-the-command-wrote > {file}")});
    let read = json!({"file_path": file});
    let stand = Stand::new(&format!(
        "when agent=main turn=1\n  call Bash {write}\nwhen agent=main turn=2\n  call Read {read}\n\
         when agent=main turn=3 result=/is (\\S+) for this tool/\n  call Read {{\"file_path\": \"$1\"}}\n\
         when\n  say \"done\"\n"
    ));
    let results = results(&stand, &["--allowedTools", "Bash,Read"]);
    assert!(results[1].contains(&format!("Commands have a /tmp of their own: what they call {file} is ")));
    assert!(results[2].contains("what-the-command-wrote"), "{results:?}");
}

/// `curl` gives up before anyone answers. The question is withdrawn, and its agent waits for no answer any more.
#[test]
fn an_agent_whose_command_gives_up_a_connection_no_longer_waits_for_an_answer() {
    let curl = "curl -sS --max-time 0.5 https://unlisted.example/; while [ ! -e go ]; do sleep 0.01; done";
    let wait = "while [ ! -e withdrawn ]; do sleep 0.01; done";
    let agent = json!({"description": "d", "prompt": "p", "subagent_type": "general-purpose", "run_in_background": true});
    let script = format!(
        "when agent=general-purpose turn=1\n  call Bash {}\nwhen agent=main turn=1\n  call Agent {agent}\n\
         when agent=main turn=2 result=/agentId: (\\w+)/\n  call Bash {}\n  call TaskOutput {{\"task_id\": \"$1\", \"block\": \
         false}}\n  call Bash {{\"command\": \"touch go\"}}\nwhen\n  say \"done\"\n",
        json!({"command": curl}),
        json!({"command": wait}),
    );
    let stand = Stand::new(&script);
    let mut run = stand.decurion().args(LED).args(["--allowedTools", "Bash"]).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    next(&mut run, |line| line["request"]["tool_name"] == "SandboxNetworkAccess");
    next(&mut run, |line| line["type"] == "control_cancel_request");
    fs::write(stand.home.work().join("withdrawn"), "").unwrap();
    let is_output = |line: &Value| line["message"]["content"].to_string().contains("retrieval_status");
    let told = next(&mut run, is_output).to_string();
    assert!(told.contains("running") && !told.contains("a person's answer"), "{told}");
    next(&mut run, |line| line["type"] == "result");
}

/// The first Yes could not help there, and a second question followed.
#[test]
fn one_yes_is_enough_for_what_plainly_has_to_leave_the_sandbox() {
    let commands = [
        "mkdir -p ../out/other && touch ../out/other/x",
        "mv b.txt ../out/",
        "git remote add origin https://example.com/x.git",
        "rm ../out/old",
    ];
    let stand = stand(&commands);
    let (work, out) = (stand.home.work(), stand.home.path().join("out"));
    finished(stand.home.program("git").args(["init", "-q"]));
    let settings = || fs::read_to_string(work.join(".git/config")).unwrap();
    fs::write(out.join("old"), "").unwrap();
    // The control: without a Yes nothing happens.
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, results) = led(&stand, &[], &[no]);
    assert_eq!(asked.len(), commands.len(), "{asked:?} {results:?}");
    assert!(names(&out) == ["old"] && !settings().contains("origin"), "{results:?}");
    let whole = "Run all of it without the sandbox, with all your rights?";
    for (question, path) in asked.iter().zip(["/out/other", "/out/b.txt", "/.git/config", "/out/old"]) {
        let reason = question["decision_reason"].as_str().unwrap();
        assert!(reason.contains(path) && reason.ends_with(whole), "{question}");
        assert_eq!(question["input"]["dangerouslyDisableSandbox"], true, "{question}");
        assert!(question["permission_suggestions"].as_array().is_none_or(Vec::is_empty), "{question}");
    }
    let (asked, results) = led(&stand, &[], &[yes()]);
    assert_eq!(asked.len(), commands.len(), "{asked:?} {results:?}");
    assert_eq!(names(&out), ["b.txt", "other"], "{results:?}");
    assert!(out.join("other/x").exists() && settings().contains("origin"), "{results:?}");
}

#[test]
fn what_does_more_than_change_files_or_is_denied_is_not_offered_to_leave_the_sandbox_at_once() {
    let commands = [
        "mkdir -p ../out/made && perl -e 1",
        "mkdir -p ../out/$HOME",
        "git -c core.pager=./x remote add origin https://example.com/x.git",
        "git remote add origin https://example.com/x.git",
        "mkdir ../out/denied/made",
    ];
    let stand = stand(&commands);
    finished(stand.home.program("git").args(["init", "-q"]));
    let denied = format!("Edit(/{}/out/denied/**)", stand.home.path().display());
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, results) = led(&stand, &["--disallowedTools", &format!("Edit(.git/config),{denied}")], &[no]);
    assert!(asked.iter().all(|asked| asked["input"]["dangerouslyDisableSandbox"].is_null()), "{asked:?}");
    assert!(results[4].contains(&denied), "{results:?}");
}

#[test]
fn settings_of_a_repository_that_commands_made_are_changed_in_the_sandbox() {
    let add = "git -C r remote add origin https://example.com/x.git";
    let stand = stand(&["git init -q r", add]);
    let (asked, results) = led(&stand, &[], &[yes()]);
    assert!(asked.iter().any(|asked| asked["input"]["command"] == add), "{asked:?}");
    assert!(asked.iter().all(|asked| asked["input"]["dangerouslyDisableSandbox"].is_null()), "{asked:?}");
    let settings = fs::read_to_string(stand.home.work().join("r/.git/config")).unwrap();
    assert!(settings.contains("origin"), "{results:?}");
}

/// Whatever commands can have made is not what its name says.
#[test]
fn what_commands_can_have_made_is_not_offered_to_leave_the_sandbox_at_once() {
    let commands = [
        "./rm ../out/old",
        "git config user.name x && git -C made branch -m other",
        "mkdir -p ../out/x && git -C made branch -m other",
        "mkdir ../out/y",
    ];
    let stand = stand(&commands);
    let work = stand.home.work();
    for arguments in [&["init", "-q"][..], &["init", "-q", "made"]] {
        finished(stand.home.program("git").args(arguments));
    }
    fs::create_dir(work.join("bin")).unwrap();
    for name in ["rm", "bin/mkdir"] {
        fs::write(work.join(name), "#!/bin/sh\ntouch ran\n").unwrap();
        fs::set_permissions(work.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let outside = |path: &str| {
        let led = led_by(
            stand.decurion().env("PATH", path).args(LED),
            &[json!({"behavior": "deny", "message": "no"})],
        );
        led.0
            .iter()
            .map(|question| question["input"]["dangerouslyDisableSandbox"] == true)
            .collect::<Vec<_>>()
    };
    // The third makes a folder outside with a program of the system, but calls git where commands can change settings.
    assert_eq!(outside("/usr/bin:/bin"), [false, false, false, true]);
    let own = format!("{}:/usr/bin:/bin", work.join("bin").display());
    assert_eq!(outside(&own), [false; 4]);
}

/// What git would run there, it would run without the sandbox.
#[test]
fn git_is_not_offered_to_leave_the_sandbox_where_it_could_run_a_program() {
    let stand = stand(&["git remote add origin https://example.com/x.git"]);
    finished(stand.home.program("git").args(["init", "-q"]));
    let settings = stand.home.work().join(".git/config");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, format!("{text}[core]\n\tfsmonitor = ./x\n")).unwrap();
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, _) = led(&stand, &[], &[no]);
    let [question] = asked.as_slice() else { panic!("{asked:?}") };
    assert!(question["decision_reason"].to_string().contains("core.fsmonitor"), "{question}");
    assert!(question["input"]["dangerouslyDisableSandbox"].is_null(), "{question}");
}

#[test]
fn with_landlock_alone_a_question_names_the_key_that_a_yes_shows() {
    let stand = stand(&["cat ~/.ssh/key"]);
    fs::create_dir_all(stand.home.home().join(".ssh")).unwrap();
    fs::write(stand.home.home().join(".ssh/key"), "first-file").unwrap();
    let program = stand.landlock_alone().args(LED);
    let (asked, results) = led_by(program, &[yes()]);
    let [question] = asked.as_slice() else { panic!("{asked:?} {results:?}") };
    let told = format!("private files are in {}/.ssh/key", stand.home.home().display());
    assert!(question["decision_reason"].as_str().unwrap().contains(&told), "{question}");
    assert_eq!(results, ["first-file"]);
}

#[test]
fn a_question_says_how_many_keys_it_does_not_name() {
    let stand = stand(&["cat ~/.ssh/k1 ~/.ssh/k2 ~/.ssh/k3 ~/.ssh/k4 ~/.ssh/k5"]);
    fs::create_dir_all(stand.home.home().join(".ssh")).unwrap();
    for name in ["k1", "k2", "k3", "k4", "k5"] {
        fs::write(stand.home.home().join(".ssh").join(name), name).unwrap();
    }
    let (asked, results) = led(&stand, &[], &[yes()]);
    let reason = asked[0]["decision_reason"].as_str().unwrap();
    assert!(reason.contains(".ssh/k3 and 2 more; commands see it only if you say Yes"), "{reason}");
    assert_eq!(results, ["k1k2k3k4k5"]);
}

#[test]
fn a_yes_to_a_command_that_names_a_key_shows_it_to_that_command_alone() {
    let read = "perl -e 'print -e qq($ENV{HOME}/.ssh/key) ? q(seen) : q(hidden)'";
    let commands =
        ["cat ~/.ssh/key", read, "cat ~/.netrc", "cat ~/.aws/*", "cat ../.decurion/x", "cat ~/.ssh/key"];
    let stand = stand(&commands);
    let home = stand.home.home();
    for (file, text) in [(".ssh/key", "first-file"), (".netrc", "second-file"), (".aws/config", "third-file")]
    {
        fs::create_dir_all(home.join(file).parent().unwrap()).unwrap();
        fs::write(home.join(file), text).unwrap();
    }
    fs::write(stand.home.state().join("x"), "own-file").unwrap();
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, results) = led(&stand, &["--allowedTools", "Bash(perl:*)"], &[yes(), yes(), yes(), no]);
    assert_eq!(asked.len(), 4, "{asked:?} {results:?}");
    for (question, file) in asked.iter().zip([".ssh/key", ".netrc", ".aws", ".ssh/key"]) {
        let told = format!("Keys or other private files are in {}", home.join(file).display());
        let reason = question["decision_reason"].as_str().unwrap();
        assert!(reason.contains(&told) && reason.contains("only if you say Yes"), "{question}");
        assert!(question["permission_suggestions"].as_array().is_none_or(Vec::is_empty), "{question}");
        assert!(question["input"]["dangerouslyDisableSandbox"].is_null(), "{question}");
    }
    assert_eq!(results[..4], ["first-file", "hidden", "second-file", "third-file"], "{results:?}");
    assert!(results[4].contains("belongs to Decurion and is hidden from every command"), "{results:?}");
    // What a rule denies is no question.
    let (asked, results) = led(&stand, &["--disallowedTools", "Read(~/.ssh/**),Read(~/.netrc)"], &[yes()]);
    assert!(results[0].contains("Read(~/.ssh/**)") && results[2].contains("Read(~/.netrc)"), "{results:?}");
    assert!(!asked.iter().any(|asked| asked["decision_reason"].to_string().contains("/.ssh")), "{asked:?}");
}

/// The key lies elsewhere, behind a link in `~/.ssh`, or one behind another.
#[test]
fn a_yes_to_a_key_behind_a_link_shows_it_under_that_name() {
    let commands = ["cat ~/.ssh/key", "cat ~/.ssh/deep/second", "cat ~/.ssh/other; cat ../keys/other"];
    let stand = stand(&commands);
    let (home, keys) = (stand.home.home(), stand.home.path().join("keys"));
    fs::create_dir_all(home.join(".ssh/deep")).unwrap();
    fs::create_dir(&keys).unwrap();
    for name in ["key", "second", "other"] {
        fs::write(keys.join(name), format!("{name}-file\n")).unwrap();
    }
    for (target, link) in
        [("../../keys/key", "key"), ("../../../keys/second", "deep/second"), ("../../keys/other", "other")]
    {
        symlink(target, home.join(".ssh").join(link)).unwrap();
    }
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, results) = led(&stand, &[], &[yes(), yes(), no]);
    assert_eq!(asked.len(), 3, "{asked:?} {results:?}");
    assert_eq!(results[..2], ["key-file", "second-file"], "{asked:?} {results:?}");
    assert!(
        asked[0]["decision_reason"].to_string().contains(keys.join("key").to_str().unwrap()),
        "{asked:?}"
    );
    // The rule names the link alone.
    let (_, results) = led(&stand, &["--disallowedTools", "Read(~/.ssh/key)"], &[yes(), yes(), yes()]);
    assert!(!results[0].contains("key-file"), "{results:?}");
}

#[test]
fn a_question_about_reading_a_key_says_that_it_is_one() {
    let stand =
        Stand::new("when turn=1\n  call Read {\"file_path\": \"~/.ssh/key\"}\nwhen\n  say \"done\"\n");
    fs::create_dir_all(stand.home.home().join(".ssh")).unwrap();
    fs::write(stand.home.home().join(".ssh/key"), "first-file\n").unwrap();
    let (asked, results) = led(&stand, &[], &[yes()]);
    assert_eq!(asked.len(), 1, "{asked:?} {results:?}");
    assert!(
        asked[0]["decision_reason"].to_string().contains("Keys or other private files are in"),
        "{asked:?}"
    );
    assert!(asked[0]["permission_suggestions"].as_array().is_none_or(Vec::is_empty), "{asked:?}");
    assert!(results[0].contains("first-file"), "{results:?}");
    // No hook made it a question.
    let audit = stand.run(&["audit", "show", "--kind", "permission"]).output();
    assert!(audit.contains("by policy") && !audit.contains("by hook"), "{audit}");
}

#[test]
fn a_question_about_a_loop_names_the_path_outside_that_it_writes() {
    let commands =
        ["for i in 1 2; do echo $i > /no-such-orchard/x; done", "for i in 1 2; do echo x > ../out/$i; done"];
    let stand = stand(&commands);
    let no = json!({"behavior": "deny", "message": "no"});
    let (asked, _) = led(&stand, &[], &[no]);
    let reasons: Vec<&str> = asked.iter().map(|asked| asked["decision_reason"].as_str().unwrap()).collect();
    let outside = "it writes outside the working directory";
    assert!(reasons[0].starts_with(&format!("{outside}: /no-such-orchard/x")), "{reasons:?}");
    assert!(reasons[1].starts_with("where it redirects to is not known, ../out/$i"), "{reasons:?}");
}

#[test]
fn results_name_what_was_refused_where_programs_report_it_vaguely() {
    let docker = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: \
                  dial unix /var/run/docker.sock: socket: operation not permitted";
    let commands =
        [format!("for i in 1; do echo '{docker}' >&2; done; exit 1"), "chmod u+s b.txt".to_owned()];
    let stand = stand(&commands.each_ref().map(String::as_str));
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert!(results[0].contains("docker is not reachable from the sandbox"), "{results:?}");
    assert!(results[0].contains("add \"docker\" to the setting sandbox.excludedCommands"), "{results:?}");
    assert!(results[1].contains("The sandbox refused chmod u+s: no command in it can set"), "{results:?}");
    assert!(!results[1].contains("may be the reason"), "{results:?}");
}

#[test]
fn a_script_that_renames_or_removes_what_a_rule_denies_to_edit_is_told_the_rule() {
    let scripts = [
        ("os.rename('fixed.txt', 'c.txt')", "fixed.txt"),
        ("os.rename('b.txt', 'fixed.txt')", "fixed.txt"),
        ("os.remove('fixed.txt')", "fixed.txt"),
        ("os.rename('fixed/x', 'y')", "fixed"),
        ("os.rename('b.txt', 'fixed/x')", "fixed"),
        ("os.rename('fixed', 'moved')", "fixed"),
        ("os.chmod('fixed.txt', 0o600)", "fixed.txt"),
    ];
    let commands: Vec<String> = (0..scripts.len()).map(|index| format!("python3 run{index}.py")).collect();
    let stand = stand(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let work = stand.home.work();
    fs::create_dir(work.join("fixed")).unwrap();
    for file in ["fixed.txt", "fixed/x"] {
        fs::write(work.join(file), "").unwrap();
    }
    for (index, (code, _)) in scripts.iter().enumerate() {
        fs::write(work.join(format!("run{index}.py")), format!("import os\n{code}\n")).unwrap();
    }
    let rules = ["--allowedTools", "Bash(python3:*)", "--disallowedTools", "Edit(fixed.txt),Edit(fixed/**)"];
    let results = results(&stand, &rules);
    for (result, (code, path)) in results.iter().zip(scripts) {
        let rule = if path == "fixed" { "Edit(fixed/**)" } else { "Edit(fixed.txt)" };
        let told = format!("read-only for commands by the rule {rule}");
        assert!(result.contains(&told), "{code}: {result}");
    }
}

/// The commands' own `/tmp` is removed at the end.
#[test]
fn what_commands_make_beside_a_project_below_tmp_is_told_once() {
    let commands = ["mkdir ../beside", "touch ../beside/x", "perl -e 'mkdir q(../another)'"];
    for (deep, opened, told) in [(true, false, 1), (false, false, 1), (true, true, 0)] {
        let stand = stand(&commands);
        let above = tempfile::tempdir_in("/tmp").unwrap();
        let project = if deep { above.path().join("project") } else { above.path().to_owned() };
        fs::create_dir_all(&project).unwrap();
        let writable: &[&str] = if opened { &[above.path().to_str().unwrap()] } else { &[] };
        let settings = json!({"sandbox": {"filesystem": {"allowWrite": writable}}}).to_string();
        let run = stand.decurion().cwd(&project).args([
            "-p",
            "go",
            "--allowedTools",
            "Bash",
            "--settings",
            &settings,
        ]);
        let results = crate::sandbox::told(&stand, run);
        let sentence = "is in the /tmp that commands have of their own";
        assert_eq!(results.concat().matches(sentence).count(), told, "{deep} {results:?}");
        assert_eq!(results[0].contains(sentence), told == 1, "{deep} {results:?}");
        assert_eq!(project.parent().unwrap().join("beside").exists(), opened, "{results:?}");
    }
}

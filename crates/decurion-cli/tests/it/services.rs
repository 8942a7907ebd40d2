//! Hooks and stdio MCP servers in the sandbox, through the program. Judged by effects: the same attempts have them where the
//! sandbox is off or the settings exempt the command.

use std::fs;
use std::net::TcpListener;

use decurion_testkit::proc::{Finished, Running};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stand::{Stand, finished};

/// A home with everything that must stay as it is, and a process that must live.
struct Scene {
    stand: Stand,
    /// A folder that is not among those for temporary files, which a private one covers.
    outside: TempDir,
    bystander: Running,
    listener: TcpListener,
    git_config: Vec<u8>,
}

/// Every effect there can be.
const ALL: [&str; 9] = [
    "ran",
    "connected",
    "wrote outside",
    "read a key",
    "read our folder",
    "read what a rule denies",
    "changed what a rule denies",
    "changed git's settings",
    "ended a process",
];
/// Those that a sandbox allows.
const ALLOWED: [&str; 2] = ["ran", "connected"];
const RULES: [&str; 2] = ["--disallowedTools", "Read(secret.txt),Edit(fixed.txt)"];

impl Scene {
    /// One with these `sandbox` settings and hooks, whose model plays this script.
    fn new(sandbox: &Value, hooks: &Value, script: &str) -> Self {
        let stand = Stand::new(script);
        let (home, work, state) = (stand.home.home(), stand.home.work(), stand.home.state());
        finished(stand.home.program("git").args(["init", "-q"]));
        for (file, text) in [
            (home.join(".ssh/key"), "canary-key\n"),
            (state.join("canary"), "canary-state\n"),
            (work.join("secret.txt"), "canary-rule\n"),
            (work.join("fixed.txt"), "before"),
            (home.join(".claude/settings.json"), &json!({"sandbox": sandbox, "hooks": hooks}).to_string()),
        ] {
            fs::write(file, text).unwrap();
        }
        let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bystander = stand.home.program("sleep").arg("600").start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let git_config = fs::read(work.join(".git/config")).unwrap();
        let scene = Self { stand, outside, bystander, listener, git_config };
        fs::write(work.join("attempt.sh"), scene.attempts()).unwrap();
        let server = SERVER.replace("OUTSIDE", scene.outside.path().to_str().unwrap());
        fs::write(work.join("server.sh"), format!("{}\n{server}", scene.attempts())).unwrap();
        scene
    }

    fn attempts(&self) -> String {
        let (home, outside) = (self.stand.home.path().display(), self.outside.path().display());
        let pid = self.bystander.pid;
        let port = self.listener.local_addr().unwrap().port();
        format!(
            "echo x > {outside}/made\n\
             cat {home}/home/.ssh/key {home}/.decurion/canary secret.txt >> seen\n\
             echo x >> fixed.txt\n\
             echo '[x]' >> .git/config\n\
             kill {pid}\n\
             (echo hello > /dev/tcp/127.0.0.1/{port})\n\
             echo x > $TMPDIR/t && cat $TMPDIR/t > ran\n"
        )
    }

    /// What came of the attempts.
    fn effects(&mut self) -> Vec<&'static str> {
        let work = self.stand.home.work();
        let seen = fs::read_to_string(work.join("seen")).unwrap_or_default();
        let happened = |effect: &&str| match *effect {
            "ran" => work.join("ran").exists(),
            "connected" => self.listener.accept().is_ok(),
            "wrote outside" => self.outside.path().join("made").exists(),
            "read a key" => seen.contains("canary-key"),
            "read our folder" => seen.contains("canary-state"),
            "read what a rule denies" => seen.contains("canary-rule"),
            "changed what a rule denies" => fs::read(work.join("fixed.txt")).unwrap() != b"before",
            "changed git's settings" => fs::read(work.join(".git/config")).unwrap() != self.git_config,
            _ => !is_alive(self.bystander.pid),
        };
        ALL.into_iter().filter(happened).collect()
    }

    fn go(&self, arguments: &[&str]) -> Finished {
        finished(self.stand.decurion().args(["-p", "go"]).args(RULES).args(arguments))
    }

    /// The declaration of the server, for the command line.
    fn server(&self) -> String {
        let server = json!({"command": "bash", "args": [self.stand.file("server.sh")]});
        json!({"mcpServers": {"s": server}}).to_string()
    }
}

/// Whether a process works; one that has ended and was not waited for does not.
fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A server with one tool, which writes outside.
const SERVER: &str = r#"
while read -r line; do
id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
case $line in
*'"initialize"'*) say '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
*'"tools/list"'*) say '{"tools":[{"name":"write","inputSchema":{"type":"object"}}]}' ;;
*'"tools/call"'*)
  if text=$( (echo x > OUTSIDE/late) 2>&1 ); then failed=false; else failed=true; fi
  say "{\"content\":[{\"type\":\"text\",\"text\":\"said: $text\"}],\"isError\":$failed}" ;;
esac
done
"#;

const CALL: &str = "when turn=1\n  call mcp__s__write {}\nwhen\n  say \"done\"\n";

fn hooks() -> Value {
    json!({"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "bash attempt.sh"}]}]})
}

fn last_result(stand: &Stand) -> String {
    let requests = stand.model.requests();
    let last: Value = serde_json::from_slice(&requests.last().unwrap().body).unwrap();
    last["messages"].as_array().unwrap().last().unwrap().to_string()
}

#[test]
fn a_hook_does_what_its_sandbox_allows_and_says_what_stopped_it() {
    let mut scene = Scene::new(&json!({}), &hooks(), "when\n  say \"done\"\n");
    let run = scene.go(&[]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    assert_eq!(scene.effects(), ALLOWED, "{run:?}");
    assert!(run.errors.contains("The sandbox may be the reason: it tried to write"), "{}", run.errors);
    assert!(run.errors.contains("sandbox.filesystem.allowWrite"), "{}", run.errors);
    for sandbox in [json!({"enabled": false}), json!({"excludedCommands": ["bash"]})] {
        let mut control = Scene::new(&sandbox, &hooks(), "when\n  say \"done\"\n");
        let run = control.go(&[]);
        assert_eq!(control.effects(), ALL, "{run:?}");
        assert!(!run.errors.contains("The sandbox may be"), "{}", run.errors);
    }
}

#[test]
fn a_server_does_what_its_sandbox_allows_and_says_what_stopped_it() {
    let allowed = ["--allowedTools", "mcp__s__write", "--mcp-config"];
    let mut scene = Scene::new(&json!({}), &json!({}), CALL);
    let run = scene.go(&[&allowed[..], &[&scene.server()]].concat());
    assert_eq!(scene.effects(), ALLOWED, "{run:?}");
    let result = last_result(&scene.stand);
    assert!(result.contains("Read-only file system"), "{result}");
    assert!(result.contains("The sandbox may be the reason: it tried to write"), "{result}");
    assert!(!scene.outside.path().join("late").exists());
    for sandbox in [json!({"enabled": false}), json!({"excludedCommands": ["bash"]})] {
        let mut control = Scene::new(&sandbox, &json!({}), CALL);
        let run = control.go(&[&allowed[..], &[&control.server()]].concat());
        assert_eq!(control.effects(), ALL, "{run:?}");
        assert!(control.outside.path().join("late").exists(), "{}", last_result(&control.stand));
    }
}

#[test]
fn a_server_that_is_tried_out_or_belongs_to_an_agent_is_sandboxed_too() {
    let mut scene = Scene::new(&json!({}), &json!({}), CALL);
    let file = scene.stand.file("server.sh");
    let settings = json!({
        "mcpServers": {"s": {"command": "bash", "args": [file]}},
        "permissions": {"deny": ["Read(//**/secret.txt)", "Edit(//**/fixed.txt)"]},
    });
    fs::write(scene.stand.home.state().join("settings.json"), settings.to_string()).unwrap();
    let elsewhere = scene.stand.home.work().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let caches = || fs::read_dir(scene.stand.home.state().join("mcp-caches")).map_or(0, Iterator::count);
    // A folder and its lock, the same one each time; in another project another program may have these words.
    for (folder, found) in [(scene.stand.home.work(), 2), (scene.stand.home.work(), 2), (elsewhere, 4)] {
        let run = finished(scene.stand.decurion().cwd(folder).args(["mcp", "test", "s"]));
        assert!(run.ending.is_success(), "{run:?}");
        assert_eq!(caches(), found);
    }
    assert_eq!(scene.effects(), ALLOWED);
    let script = "when agent=main turn=1\n  call Agent {\"subagent_type\": \"a\", \"description\": \"d\", \"prompt\": \"p\"}\nwhen agent=main\n  say \"done\"\nwhen\n  say \"below\"\n";
    let mut scene = Scene::new(&json!({}), &json!({}), script);
    let file = scene.stand.file("server.sh");
    let agents = json!({"a": {"description": "d", "prompt": "p", "mcpServers": [{"s": {"command": "bash", "args": [file]}}]}});
    let run = scene.go(&["--agents", &agents.to_string()]);
    assert_eq!(scene.effects(), ALLOWED, "{run:?}");
}

#[test]
fn a_hook_reads_its_script_and_the_transcript_of_our_folder_and_nothing_else() {
    let stop = "read -r line; path=$(printf '%s' \"$line\" | sed -n 's/.*\"transcript_path\":\"\\([^\"]*\\)\".*/\\1/p')\n\
                test -s \"$path\" && touch saw-transcript\n\
                ls -A \"$1\" \"$1\"/projects/* > names; cat \"$1\"/trust.json \"$1\"/projects/*/other.jsonl >> names\n";
    let command = "bash ../.decurion/hooks/stop.sh \"$(cd .. && pwd)/.decurion\"";
    let hooks = json!({"Stop": [{"hooks": [{"type": "command", "command": command}]}]});
    let scene = Scene::new(&json!({}), &hooks, "when\n  say \"done\"\n");
    let (state, work) = (scene.stand.home.state(), scene.stand.home.work());
    let (scripts, others) = (state.join("hooks"), state.join("projects/another"));
    fs::create_dir_all(&scripts).unwrap();
    fs::create_dir_all(&others).unwrap();
    fs::write(scripts.join("stop.sh"), stop).unwrap();
    fs::write(others.join("other.jsonl"), "canary-other").unwrap();
    let run = scene.go(&[]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    assert!(work.join("saw-transcript").exists(), "{run:?}");
    let names = fs::read_to_string(work.join("names")).unwrap();
    assert!(names.contains("hooks") && !names.contains("canary") && !names.contains("another"), "{names}");
}

#[test]
fn a_call_whose_hook_cannot_be_sandboxed_is_not_done() {
    let hooks = json!({"PreToolUse": [{"hooks": [{"type": "command", "command": "true"}]}]});
    let script =
        "when turn=1\n  call Write {\"file_path\": \"made\", \"content\": \"x\"}\nwhen\n  say \"done\"\n";
    for (temporary, is_done) in [("/proc", false), ("/tmp", true)] {
        let scene = Scene::new(&json!({}), &hooks, script);
        let run =
            scene.stand.decurion().env("TMPDIR", temporary).args(["-p", "go", "--allowedTools", "Write"]);
        let run = finished(run);
        assert_eq!(scene.stand.home.work().join("made").exists(), is_done, "{temporary}: {run:?}");
        assert_eq!(run.errors.contains("cannot make a private folder"), !is_done, "{}", run.errors);
    }
}

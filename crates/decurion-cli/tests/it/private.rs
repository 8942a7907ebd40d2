//! What the program was started with is out of reach of the commands that it runs: canaries in the environment and on
//! the command line of real sessions, looked for by a command that reads all that the system shows of every process
//! above it.

use decurion_testkit::proc::Program;
use serde_json::json;

use crate::stand::{DECURION, LIMIT, Stand, finished};
use crate::talk::{LED, next, prompt};
use crate::terminal::{Terminal, USUAL};

/// Gathers what can be seen of all processes above, and above nothing of this home; both ways that `ps` knows as well.
const LOOK: &str = r#"
p=$$
while [ "$p" -gt 1 ]; do
  cat /proc/$p/environ /proc/$p/cmdline /proc/$p/comm /proc/$p/task/*/environ 2>> "$SEEN.errors" >> "$SEEN"
  for f in /proc/$p/fd/*; do readlink "$f"; done >> "$SEEN" 2>> "$SEEN.errors"
  p=$(sed 's/.*) [A-Z] \([0-9]*\) .*/\1/' /proc/$p/stat)
done
ps axeww -o args >> "$SEEN"
env >> "$SEEN"
ps -ef | grep -c decurion >> "$SEEN.count"
"#;

/// The program with canaries in its environment, by which one test is told from another.
fn canaries(program: Program, test: &str) -> Program {
    let key = format!("canary-{test}-of-the-provider");
    program
        .env("ANTHROPIC_API_KEY", &key)
        .env("GITHUB_TOKEN", format!("canary-{test}-of-another-service"))
        .env("MY_PASSWORD", format!("canary-{test}-of-a-password"))
        .env("COPY_OF_IT", format!("has {key} inside"))
        .env("INDEX", format!("https://user:canary-{test}-of-an-address@index.example/simple"))
        .env("PIP_INDEX_URL", format!("https://canary-{test}-of-an-index@index.example/simple"))
}

const SCRIPT: &str = "when turn=1\n  call Bash {\"command\": \"sh ../look.sh\"}\nwhen\n  say \"looked\"\n";

/// A stand with the script that looks, and where that writes.
fn stand() -> (Stand, std::path::PathBuf) {
    // Where there is no sandbox, which would hide the processes altogether.
    let stand = Stand::new(SCRIPT).without_sandbox();
    let seen = stand.home.path().join("seen");
    std::fs::write(stand.home.work().join("../look.sh"), format!("SEEN={}\n{LOOK}", seen.display())).unwrap();
    (stand, seen)
}

/// A provider whose key is in a variable of no telling name.
fn settings(stand: &Stand, test: &str) -> String {
    let own = json!({"kind": "anthropic", "baseUrl": stand.model.url(), "apiKeyEnv": "PLAIN_NAME"});
    let env = json!({"SECRET_OF_SETTINGS": format!("canary-{test}-of-the-settings")});
    json!({"providers": {"own": own}, "env": env}).to_string()
}

fn assert_hidden(seen: &std::path::Path, test: &str) {
    let text = String::from_utf8_lossy(&std::fs::read(seen).unwrap()).into_owned();
    assert!(text.contains("decurion"), "nothing was looked at: {text}");
    for word in text.split('\0').flat_map(str::lines) {
        assert!(!word.contains(&format!("canary-{test}")), "{word}");
    }
}

#[test]
fn no_command_finds_a_key_in_the_processes_above_it() {
    let (stand, seen) = stand();
    let settings = settings(&stand, "print");
    let env = json!({"X": "canary-print-of-a-server"});
    let servers = json!({"mcpServers": {"none": {"command": "true", "env": env}}}).to_string();
    let words = ["-p", "go", "--allowedTools", "Bash", "--settings", &settings, "--mcp-config", &servers];
    let program = canaries(stand.decurion(), "print").env("PLAIN_NAME", "canary-print-of-a-custom-name");
    let run = finished(program.args(words));
    assert_eq!(run.output(), "looked", "{run:?}");
    assert_hidden(&seen, "print");
}

#[test]
fn no_command_finds_a_key_where_a_host_leads() {
    let (stand, seen) = stand();
    let program = canaries(stand.decurion(), "led").args(LED).args(["--allowedTools", "Bash"]);
    let mut run = program.start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    run.finish(LIMIT).unwrap();
    assert_hidden(&seen, "led");
}

#[test]
fn no_command_finds_a_key_behind_a_terminal() {
    let (stand, _) = stand();
    let told = |program| canaries(program, "tui").arg("--dangerously-skip-permissions");
    let terminal = Terminal::as_told(stand, USUAL, told).ready();
    terminal.say("go");
    terminal.wait_for("looked");
    // The one that waits at the terminal, the one that works, and those that it started.
    let mut processes = vec![terminal.keeper()];
    let mut seen = 0;
    while let Some(pid) = processes.pop() {
        let block = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&block).contains("canary"), "{pid}");
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        processes.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}

#[test]
fn another_process_of_the_same_user_reads_nothing_of_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // As a user whom the system does not let look everywhere.
    let (stand, seen) = stand();
    let attack = format!(
        "SEEN={}\np=$PPID\nwhile [ \"$p\" -gt 1 ]; do cat /proc/$p/comm; head -c 1 /proc/$p/environ > /dev/null && echo READ; \
         ls /proc/$p/fd > /dev/null && echo LISTED; head -c 0 /proc/$p/mem && echo OPENED; \
         p=$(sed 's/.*) [A-Z] \\([0-9]*\\) .*/\\1/' /proc/$p/stat); case $(cat /proc/$p/comm) in decurion*) ;; *) break;; esac; done > $SEEN 2>&1\n",
        seen.display()
    );
    std::fs::write(stand.home.work().join("../look.sh"), attack).unwrap();
    let owned = stand.home.program("chown").args(["-R", "65534:65534"]).arg(stand.home.path());
    assert_eq!(finished(owned).ending.code(), 0);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", DECURION];
    let program = stand.decurion().instead("/usr/bin/setpriv");
    let run = finished(program.args(user).args(["-p", "go", "--allowedTools", "Bash"]));
    assert_eq!(run.output(), "looked", "{run:?}");
    let text = std::fs::read_to_string(&seen).unwrap();
    assert!(text.contains("decurion"), "{text}");
    for word in ["READ", "LISTED", "OPENED"] {
        assert!(!text.contains(word), "{text}");
    }
}

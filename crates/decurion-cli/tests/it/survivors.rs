//! Commands that kill the processes which watch them, in real sessions. What counts is what still runs afterwards, what
//! the model is told, and that the session goes on.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::stand::{DECURION, Stand, finished};

/// Ways to leave something behind. `@` is the time that it sleeps, by which it is known.
const LEAVES: &[&str] = &[
    "setsid sleep @ &",
    "setsid -f sleep @",
    "nohup sleep @ > /dev/null 2>&1 &",
    "sleep @ & disown",
    "( ( sleep @ & ) & )",
    "env -i setsid sleep @ &",
    "setsid sleep @ <&- >&- 2>&- &",
    "perl -MPOSIX -e 'fork and exit; setsid; fork and exit; chdir q(/); exec qw(sleep @)'",
    "(trap '' TERM HUP INT; setsid sleep @ &)",
    "setsid sh -c 'sleep @ & kill -STOP $$' &",
    "for i in 1 2 3 4 5; do setsid sleep @ & done",
    "(exec -a decurion-guard sleep @ & exec -a decurion setsid -f sleep @)",
];

/// The command lines of the living processes that sleep for this time.
fn sleeping(time: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let lines = processes.filter_map(line).map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(time) && line.contains("sleep")).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a process that has nothing to do with the session")]
fn nothing_survives_a_command_that_kills_its_guard_and_its_reaper() {
    // Nothing else on this machine sleeps for this long.
    let time = format!("2000.{}", std::process::id());
    let mut bystander = Command::new("setsid");
    bystander.args(["sleep", "3000"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bystander = bystander.spawn().unwrap();
    let mut script = String::new();
    for (index, leave) in LEAVES.iter().enumerate() {
        // Stopped first, so that neither ends anything when the other is gone.
        let kill = "set -- $(ps -o ppid= -p $PPID) $PPID; kill -STOP $*; kill -9 $*";
        let command = format!("{leave}\n{kill}\nsleep @").replace('@', &time);
        script.push_str(&format!("when turn={}\n  call Bash {}\n", index + 1, json!({"command": command})));
    }
    let last = json!({"command": "echo goes on"});
    script.push_str(&format!("when turn={}\n  call Bash {last}\nwhen\n  say \"over\"\n", LEAVES.len() + 1));
    // In a sandbox they cannot be seen, so that this is about commands without one.
    let stand = Stand::new(&script).without_sandbox();
    let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash", "--max-turns", "50"]));
    assert_eq!(sleeping(&time), [""; 0]);
    assert!(run.output().contains("over"), "{run:?}");
    assert_eq!(bystander.try_wait().unwrap(), None, "a process of another program was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    let results: Vec<String> = stand.results().iter().map(Value::to_string).collect();
    for (leave, result) in LEAVES.iter().zip(&results) {
        for part in [
            "outcome unknown: the processes that watch commands were killed; ",
            "killed after that",
            "check before",
        ] {
            assert!(result.contains(part), "{leave}: {result}");
        }
    }
    assert!(results.last().unwrap().contains("goes on"), "{results:?}");
}

/// A shell that became the program left it children of its own, and theirs come to it as well. They live on, however the
/// session ends: by itself, and by a command that kills its guard.
#[test]
#[expect(clippy::disallowed_methods, reason = "ends what the test started")]
fn children_of_the_shell_that_became_the_program_live_on() {
    let kill = json!({"command": "kill -9 $(ps -o ppid= -p $PPID) $PPID"});
    let stand = Stand::new(&format!(
        "when turn=1\n  call Bash {{\"command\": \"true\"}}\nwhen turn=2\n  call Bash {kill}\nwhen\n  say \"over\"\n"
    ));
    let leaves = "setsid sleep 2001 > /dev/null 2>&1 & echo $!";
    let shell = format!("{leaves}; setsid sh -c '{leaves}'; exec {DECURION} -p go --allowedTools Bash");
    let shell = stand.decurion_through("sh").args(["-c", &shell]);
    let run = finished(shell);
    assert!(run.output().contains("over"), "{run:?}");
    let output = run.output();
    let children: Vec<&str> = output.lines().filter(|line| line.parse::<i32>().is_ok()).collect();
    assert_eq!(children.len(), 2, "{run:?}");
    let ended: Vec<String> = children
        .iter()
        .filter_map(|pid| {
            let status = Command::new("kill").arg(pid).stderr(Stdio::null()).status().unwrap();
            (!status.success()).then(|| (*pid).to_owned())
        })
        .collect();
    assert_eq!(ended, [""; 0], "killed with the session");
}

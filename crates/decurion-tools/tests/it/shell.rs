//! Bash, with real commands under a real guard.

use std::ffi::OsString;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{CallId, Overlap, ToolEffect, ToolOutput};
use decurion_tools::shell::Bash;
use decurion_tools::{Spill, SpillFile, Tool, ToolContext};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::stage::Stage;

/// A shell in the project, whose long outputs go to a folder outside of it.
struct Shell {
    stage: Stage,
    guard: Guard,
}

impl Shell {
    fn new() -> Self {
        let program = env!("CARGO_BIN_EXE_decurion-tools-guard").into();
        let stage = Stage::new();
        std::fs::create_dir(stage.outside.join("spill")).unwrap();
        Self { stage, guard: Guard::new(GuardProgram { program, args: Vec::new() }) }
    }

    fn context(&self) -> (ToolContext, mpsc::Receiver<String>) {
        let (mut context, lines) = self.stage.context();
        let environment: Vec<(OsString, OsString)> = vec![("PATH".into(), "/usr/bin:/bin".into())];
        context.environment = environment.into();
        context.processes = Some(self.guard.clone());
        context.spill = Arc::new(Folder(self.stage.outside.join("spill")));
        (context, lines)
    }

    async fn run(&self, input: Value) -> ToolOutput {
        let (context, _lines) = self.context();
        Bash::default().run(&context, input).await
    }

    async fn command(&self, command: &str) -> ToolOutput {
        self.run(json!({"command": command})).await
    }

    /// The text of an output, with the temporary folder named.
    fn text(&self, output: &ToolOutput) -> String {
        output.content.text().replace(self.stage.outside.as_str(), "OUTSIDE")
    }

    fn spilled(&self) -> Vec<Utf8PathBuf> {
        let folder = self.stage.outside.join("spill");
        folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().path().to_owned()).collect()
    }
}

struct Folder(Utf8PathBuf);

impl Spill for Folder {
    fn create(&self, call: &CallId, extension: &str) -> std::io::Result<SpillFile> {
        let path = self.0.join(format!("{call}.{extension}"));
        let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(SpillFile { path, file: Box::new(file) })
    }
}

#[tokio::test]
async fn outputs_and_failures_are_told_as_models_know_them() {
    let shell = Shell::new();
    for (command, text, is_error) in [
        ("echo hello", "hello", false),
        ("echo out; echo err >&2; echo end", "out\nerr\nend", false),
        ("true", "(no output)", false),
        ("printf 'a\\n\\n\\n'", "a", false),
        ("printf '  a\\0b  '", "  a\u{2400}b  ", false),
        ("exit 3", "Exit code 3", true),
        ("echo why >&2; false", "Exit code 1\nwhy", true),
        ("kill -9 $$", "Exit code 137", true),
        ("nonesuch", "Exit code 127\nbash: line 1: nonesuch: command not found", true),
        ("cat; echo \"stdin: $?\"", "stdin: 0", false),
        ("env | grep -v '^_=\\|^PWD=\\|^SHLVL='", "PATH=/usr/bin:/bin", false),
        ("sleep 1000 & echo started", "started", false),
    ] {
        let output = shell.command(command).await;
        assert_eq!((shell.text(&output).as_str(), output.is_error), (text, is_error), "{command}");
        assert!(output.effects.is_empty(), "{command}");
        if !is_error {
            let expected = if text == "(no output)" { "" } else { text };
            let structured = json!({
                "stdout": expected, "stderr": "", "interrupted": false, "isImage": false, "noOutputExpected": false
            });
            assert_eq!(output.structured, Some(structured), "{command}");
        }
    }
    assert!(shell.spilled().is_empty());
}

#[tokio::test]
async fn the_directory_moves_with_the_shell_inside_the_project_only() {
    let shell = Shell::new();
    shell.stage.file("sub/deep/file", "");
    shell.stage.link("sub", "link");
    shell.stage.file("go.sh", "cd sub/deep");
    let moved = |cwd: &str| vec![ToolEffect::Moved { cwd: shell.stage.project.join(cwd) }];
    for (command, text, effects) in [
        ("cd sub && pwd", "OUTSIDE/project/sub", moved("sub")),
        ("cd sub; exit 4", "Exit code 4", moved("sub")),
        ("cd link", "(no output)", moved("sub")),
        (". ./go.sh", "(no output)", moved("sub/deep")),
        ("eval 'cd sub'", "(no output)", moved("sub")),
        ("pushd sub/deep >/dev/null", "(no output)", moved("sub/deep")),
        ("c=cd; $c sub", "(no output)", moved("sub")),
        ("(cd sub); pwd", "OUTSIDE/project", vec![]),
        ("cd sub && cd ..", "(no output)", vec![]),
        ("cd sub && exec true", "(no output)", vec![]),
        ("cd nowhere", "Exit code 1\nbash: line 1: cd: nowhere: No such file or directory", vec![]),
        (
            "cd .. && echo x",
            "x\n[the shell is back in OUTSIDE/project: OUTSIDE is outside the directories of this run]",
            vec![],
        ),
    ] {
        let output = shell.command(command).await;
        assert_eq!(shell.text(&output), text, "{command}");
        assert_eq!(output.effects, effects, "{command}");
    }
}

/// The command's own shell can write to the descriptor on which its directory is told.
#[tokio::test]
async fn forged_directories_do_not_move_the_shell() {
    let shell = Shell::new();
    shell.stage.file("sub/file", "");
    shell.stage.link("..", "link");
    let project = &shell.stage.project;
    let forge = |path: &str| format!("cd sub; printf '\\0{path}\\n' >&10; set -n");
    for path in ["sub/../../elsewhere", "link", "nowhere", "sub/."] {
        let output = shell.command(&forge(project.join(path).as_str())).await;
        assert_eq!(output.effects, [], "{path}");
    }
    // What can be forged is only where the shell could go anyway.
    let output = shell.command(&forge(project.join("sub").as_str())).await;
    assert_eq!(output.effects, [ToolEffect::Moved { cwd: project.join("sub") }]);
}

#[tokio::test]
async fn a_project_reached_through_a_link_is_not_left_by_staying() {
    let mut shell = Shell::new();
    let (real, link) = (shell.stage.project.clone(), shell.stage.outside.join("link"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    std::fs::create_dir(real.join("sub")).unwrap();
    shell.stage.project = link;
    assert!(shell.command("cd .").await.effects.is_empty());
    let output = shell.command("cd sub").await;
    assert_eq!(output.effects, [ToolEffect::Moved { cwd: real.join("sub") }]);
}

#[tokio::test]
async fn a_directory_that_is_gone_is_left() {
    let shell = Shell::new();
    let (mut context, _lines) = shell.context();
    let gone = shell.stage.project.join("gone");
    context.around.cwd = gone.clone();
    let output = Bash::default().run(&context, json!({"command": "echo no"})).await;
    assert!(output.is_error);
    let text = shell.text(&output);
    assert!(text.starts_with("working directory is gone: OUTSIDE/project/gone\n"), "{text}");
    assert_eq!(output.effects, [ToolEffect::Moved { cwd: shell.stage.project.clone() }]);
    // Nowhere to go.
    context.around.directories = vec![gone];
    let output = Bash::default().run(&context, json!({"command": "echo no"})).await;
    assert!(output.is_error && output.effects.is_empty());
}

#[tokio::test]
async fn a_long_output_is_cut_and_kept_whole() {
    let shell = Shell::new();
    // Exactly what is shown whole, whatever the width of a character.
    for character in ["x", "€"] {
        let output = shell.command(&format!("printf '{character}%.0s' {{1..30000}}")).await;
        assert_eq!(output.content.text(), character.repeat(30_000));
    }
    assert!(shell.spilled().is_empty());
    // One character more, held in memory; and far more than memory holds.
    for (command, total) in [
        ("printf 'a%.0s' {1..10000}; printf '%s' '-'; printf 'b%.0s' {1..20000}; echo", 30_002),
        ("printf 'a%.0s' {1..10000}; head -c 3000000 /dev/zero; printf 'b%.0s' {1..19999}; echo", 3_030_000),
    ] {
        let output = shell.command(command).await;
        assert!(!output.is_error);
        let cut = total - 30_000;
        let note = format!("[{cut} bytes cut here; all of it ({total} bytes) is in OUTSIDE/spill/call.txt]");
        let text = shell.text(&output);
        let (head, tail) = text.split_once(&note).expect(&text[9_990..10_200]);
        assert_eq!(head, format!("{}\n\n", "a".repeat(10_000)));
        assert_eq!(tail, format!("\n\n{}", "b".repeat(19_999)));
        let file = shell.spilled().pop().unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), total);
        let structured = output.structured.unwrap();
        assert_eq!(structured["persistedOutputPath"], json!(file));
        assert_eq!(structured["persistedOutputSize"], json!(total));
        std::fs::remove_file(file).unwrap();
    }
}

#[tokio::test]
async fn the_file_of_a_flood_stops_at_its_bound() {
    let mut shell = Shell::new();
    shell.stage.limits.spill_bytes = 1 << 20;
    let text = shell.text(&shell.command("head -c 20000000 /dev/zero; exit 2").await);
    assert!(text.starts_with("Exit code 2\n"), "{}", &text[..20]);
    assert!(text.contains(
        "[19970000 bytes cut here; the first 1048576 of 20000000 bytes are in OUTSIDE/spill/call.txt]"
    ));
    assert_eq!(std::fs::metadata(&shell.spilled()[0]).unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn an_output_that_cannot_be_kept_is_shown_all_the_same() {
    let shell = Shell::new();
    std::fs::remove_dir(shell.stage.outside.join("spill")).unwrap();
    for count in [31_000, 1_000_000] {
        let output = shell.command(&format!("head -c {count} /dev/zero")).await;
        assert!(!output.is_error);
        assert!(output.content.text().contains("; it could not be kept in a file: No such file"));
    }
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_stopped() {
    let mut shell = Shell::new();
    let input = json!({"command": "echo begun; setsid sleep 1000 & sleep 1000", "timeout": 50});
    let output = shell.run(input).await;
    assert!(output.is_error);
    let text = shell.text(&output);
    assert!(text.starts_with("Exit code 143\nCommand timed out after 0.05 s and was stopped"), "{text}");
    // The most that may be asked for, and what is taken where nothing is asked.
    shell.stage.limits.bash_max_timeout = Duration::from_millis(30);
    shell.stage.limits.bash_default_timeout = Duration::from_millis(20);
    for (input, limit) in [
        (json!({"command": "sleep 1000", "timeout": 1_000_000}), "0.03 s"),
        (json!({"command": "sleep 1000", "timeout": 1e300}), "0.03 s"),
        (json!({"command": "sleep 1000"}), "0.02 s"),
    ] {
        assert!(shell.text(&shell.run(input).await).contains(&format!("timed out after {limit}")), "{limit}");
    }
}

#[tokio::test]
async fn a_cancelled_command_stops_and_shows_what_it_wrote() {
    let shell = Shell::new();
    let (context, _lines) = shell.context();
    let bash = Bash::default();
    // The command tells by a named pipe that it has written; opening the pipe waits for that.
    let pipe = shell.stage.project.join("pipe");
    make_pipe(&pipe);
    let running = bash.run(&context, json!({"command": "echo begun; echo > pipe; sleep 1000"}));
    let cancelling = async {
        tokio::task::spawn_blocking(move || std::fs::read(pipe)).await.unwrap().unwrap();
        context.cancel.cancel();
    };
    let (output, ()) = tokio::join!(running, cancelling);
    assert!(output.is_error);
    assert_eq!(shell.text(&output), "interrupted: the command was stopped; its output so far:\nbegun");
    assert_eq!(output.structured.unwrap()["interrupted"], json!(true));
    // And one that is cancelled before it begins does not begin.
    let output = bash.run(&context, json!({"command": "touch ran"})).await;
    assert!(output.is_error && !shell.stage.project.join("ran").exists());
}

#[expect(clippy::disallowed_methods, reason = "a tool the tests need")]
fn make_pipe(path: &Utf8PathBuf) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn a_lost_outcome_is_told_as_such() {
    let shell = Shell::new();
    let output = shell.command("echo part; kill -9 $PPID; sleep 1000").await;
    assert!(output.is_error);
    let text = shell.text(&output);
    assert!(text.starts_with("outcome unknown: ") && text.ends_with("\npart"), "{text}");
}

#[tokio::test]
async fn what_cannot_be_started_is_told() {
    let shell = Shell::new();
    let (mut context, _lines) = shell.context();
    let bash = Bash::default();
    let long = format!("echo {}", "x".repeat(200_000));
    let output = bash.run(&context, json!({ "command": long })).await;
    assert!(output.is_error && output.content.text().contains("too large"), "{:?}", output.content);
    context.processes = None;
    let output = bash.run(&context, json!({"command": "true"})).await;
    assert!(output.is_error && output.content.text().contains("cannot be started"));
}

#[tokio::test]
async fn malformed_inputs_are_refused_alike() {
    let shell = Shell::new();
    for (input, issue) in [
        (json!({}), "`command` is missing"),
        (json!({"command": ""}), "`command` must have at least 1 character(s)"),
        (json!({"command": "a\0b"}), "NUL"),
        (json!({"command": "a", "timeout": 0}), "`timeout` must be more than 0"),
        (json!({"command": "a", "timeout": "5"}), "`timeout` must be a number"),
        (json!({"command": "a", "shell": "zsh"}), "`shell` is not a field here"),
    ] {
        let error = Bash::default().intent(&input, &shell.stage.around()).unwrap_err().to_string();
        assert!(error.contains(issue), "{error}");
        let output = shell.run(input).await;
        assert!(output.is_error);
        assert_eq!(output.content.text(), format!("<tool_use_error>{error}</tool_use_error>"));
    }
    let harmless = json!({
        "command": "echo fine", "run_in_background": false, "dangerouslyDisableSandbox": true,
        "description": "says so", "timeout": 1000.5
    });
    assert_eq!(shell.text(&shell.run(harmless).await), "fine");
}

#[test]
fn the_intent_says_what_a_command_would_do() {
    let shell = Shell::new();
    let intent = |command: &str| {
        Bash::default().intent(&json!({ "command": command }), &shell.stage.around()).unwrap()
    };
    assert_eq!(intent("ls -la").title, "$ ls -la");
    assert_eq!(intent("ls -la").overlap, Overlap::Together);
    assert_eq!(intent("cat a | head -3").overlap, Overlap::Together);
    for alone in ["rm x", "cd sub", "cd sub && ls", "ls; rm x", "echo x > y", "$x", "if"] {
        assert_eq!(intent(alone).overlap, Overlap::Alone, "{alone}");
    }
    assert!(intent("cd sub").shell.unwrap().moves);
    let touched = intent("cat a a; cat a").touches;
    assert_eq!(touched.len(), 1);
    assert_eq!(touched[0].path, shell.stage.project.join("a"));
}

//! How commands start, fail to start, read, write and end.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use decurion_exec::{Capture, CaptureBounds, Exit, Guard, GuardProgram, Launch, LaunchError, Output, Stdin};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::house::{House, within};

#[tokio::test]
async fn exit_codes_and_signals_are_told_as_they_are() {
    let house = House::new();
    for (command, exit) in [
        ("true", Exit::Code(0)),
        ("false", Exit::Code(1)),
        ("exit 42", Exit::Code(42)),
        ("exit 255", Exit::Code(255)),
        ("exit 256", Exit::Code(0)),
        ("no-such-program-here", Exit::Code(127)),
        ("-n", Exit::Code(127)),
        ("-l; exit 3", Exit::Code(3)),
        ("/etc/passwd", Exit::Code(126)),
        ("if", Exit::Code(2)),
        ("kill -9 $$", Exit::Signal(9)),
        ("kill -TERM $$; read", Exit::Signal(15)),
        ("kill -SEGV $$", Exit::Signal(11)),
        ("ulimit -c unlimited 2>/dev/null; kill -ABRT $$", Exit::Signal(6)),
        ("exec sh -c 'exit 7'", Exit::Code(7)),
        ("set -e; false; exit 9", Exit::Code(1)),
    ] {
        let (output, got) = house.run(house.bash(command)).await;
        assert_eq!(got, exit, "{command}: {output}");
    }
    house.assert_empty();
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let house = House::new();
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "echo hi\n").unwrap();
    let no_format = folder.path().join("no-format");
    std::fs::write(&no_format, "\u{1}\u{2}").unwrap();
    std::fs::set_permissions(&no_format, std::fs::Permissions::from_mode(0o755)).unwrap();
    let start = async |launch: Launch| house.guard.start(launch.env(house.env())).await.unwrap_err();

    let error = start(Launch::new("/no/such/program", "/")).await;
    assert!(matches!(&error, LaunchError::NoProgram { program } if program == "/no/such/program"), "{error}");
    let error = start(Launch::new("no-such-program-here", "/")).await;
    assert!(matches!(error, LaunchError::NoProgram { .. }), "{error}");
    let error = start(Launch::new("", "/")).await;
    assert!(matches!(error, LaunchError::NoProgram { .. }), "{error}");
    let error = start(Launch::new(&plain, "/")).await;
    assert!(matches!(error, LaunchError::NotExecutable { .. }), "{error}");
    let error = start(Launch::new(&no_format, "/")).await;
    assert!(matches!(error, LaunchError::NotExecutable { .. }), "{error}");
    let error = start(Launch::new("true", "/no/such/folder")).await;
    assert!(matches!(&error, LaunchError::Directory { cwd, .. } if cwd.ends_with("folder")), "{error}");
    let error = start(Launch::new("true", &plain)).await;
    assert!(matches!(error, LaunchError::Directory { .. }), "{error}");
    // Larger than one argument may be, and larger than the control socket takes at once.
    let error = start(Launch::new("true", "/").args(["x".repeat(1 << 20)])).await;
    assert!(matches!(error, LaunchError::TooLarge { .. }), "{error}");
    let error = start(Launch::new("true", "/").args(["x".repeat(9 << 20)])).await;
    assert!(matches!(error, LaunchError::TooLarge { .. }), "{error}");
    let error = start(Launch::new("true", "/").args(["\0"])).await;
    assert!(matches!(error, LaunchError::Unpassable { .. }), "{error}");

    // None of that harmed the guard.
    assert_eq!(house.run(house.bash("echo fine")).await, ("fine\n".into(), Exit::Code(0)));
}

#[tokio::test]
async fn a_large_request_arrives_whole() {
    let house = House::new();
    let args: Vec<String> = (0..12).map(|at| (at % 10).to_string().repeat(100_000)).collect();
    let length: usize = args.iter().map(String::len).sum();
    let launch = house.bash("all=\"$*\"; echo $# ${#all}").args(args);
    assert_eq!(house.run(launch).await.0, format!("12 {}\n", length + 11));
}

#[tokio::test]
async fn a_guard_that_cannot_run_is_named() {
    for program in ["/no/such/guard", "/bin/true", "/bin/cat"] {
        let guard = Guard::new(GuardProgram { program: program.into(), args: vec!["/dev/null".into()] });
        let error = within(guard.start(Launch::new("true", "/"))).await.unwrap_err();
        assert!(matches!(error, LaunchError::NoGuard { .. }), "{error}");
        assert!(error.to_string().contains(program), "{error}");
    }
}

#[tokio::test]
async fn a_command_gets_its_environment_and_nothing_else() {
    let house = House::new();
    let launch = Launch::new("/usr/bin/env", "/").env([("ONLY".into(), "this".into())]);
    assert_eq!(house.run(launch).await.0, "ONLY=this\n");
    let fds = house.bash("cd /proc/self/fd; echo *").args([""]);
    // The shell's own descriptors and the one of the listing; nothing of ours.
    assert_eq!(house.run(fds).await.0, "0 1 2 3\n");
    let (state, _) = house.run(house.bash("grep -E 'Sig(Blk|Ign)' /proc/self/status")).await;
    assert!(state.lines().all(|line| line.ends_with("0000000000000000")), "{state}");
    let (limits, _) = house.run(house.bash("ulimit -c; pwd")).await;
    assert_eq!(limits, "0\n/\n");
}

#[tokio::test]
async fn input_is_what_was_asked_for() {
    let house = House::new();
    assert_eq!(house.run(house.bash("cat; echo end")).await.0, "end\n");
    assert_eq!(house.run(house.bash("read line; echo $?")).await.0, "1\n");
    for length in [0, 5, 65_536, 3_000_000] {
        let launch = Launch { stdin: Stdin::Bytes(vec![b'x'; length]), ..house.bash("wc -c") };
        assert_eq!(house.run(launch).await.0.trim(), length.to_string());
        // A command that does not read it ends all the same.
        let launch = Launch { stdin: Stdin::Bytes(vec![b'x'; length]), ..house.bash("echo no") };
        assert_eq!(house.run(launch).await, ("no\n".into(), Exit::Code(0)));
    }
    let launch = Launch { stdin: Stdin::Piped, ..house.bash("while read x; do echo got $x; done") };
    let mut process = house.guard.start(launch).await.unwrap();
    let (mut stdin, mut stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let mut buffer = [0; 64];
    for word in ["one", "two"] {
        stdin.write_all(format!("{word}\n").as_bytes()).await.unwrap();
        let length = within(stdout.read(&mut buffer)).await.unwrap();
        assert_eq!(&buffer[..length], format!("got {word}\n").as_bytes());
    }
    drop(stdin);
    assert_eq!(within(process.wait()).await, Exit::Code(0));
}

#[tokio::test]
async fn outputs_come_together_in_order_or_apart() {
    let house = House::new();
    let command = "for i in 1 2 3; do echo o$i; echo e$i >&2; done";
    assert_eq!(house.run(house.bash(command)).await.0, "o1\ne1\no2\ne2\no3\ne3\n");
    let launch = Launch { output: Output::Separate, ..house.bash(command) };
    let mut process = house.guard.start(launch).await.unwrap();
    let bounds = CaptureBounds { head: 100, tail: 0, file: 0 };
    let (mut output, mut errors) = (Capture::new(bounds), Capture::new(bounds));
    let mut seen = Vec::new();
    let exit =
        within(process.collect(&mut output, Some(&mut errors), |piece| seen.extend_from_slice(piece))).await;
    assert_eq!(exit, Exit::Code(0));
    assert_eq!(output.finish().head, b"o1\no2\no3\n");
    assert_eq!(errors.finish().head, b"e1\ne2\ne3\n");
    assert_eq!(seen, b"o1\no2\no3\n");
}

#[tokio::test]
async fn a_file_size_limit_is_enforced() {
    let house = House::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut launch = house.bash(&format!("head -c 100000 /dev/zero > {}", file.path().display()));
    launch.limits.file_bytes = Some(4096);
    let (_, exit) = house.run(launch).await;
    assert_ne!(exit, Exit::Code(0));
    assert_eq!(file.as_file().metadata().unwrap().len(), 4096);
}

#[tokio::test]
async fn many_commands_at_once_queue_and_all_end() {
    let mut house = House::new();
    house.guard = Guard::with_capacity(crate::house::program(), 8);
    let runs: Vec<_> = (0..100)
        .map(|number| {
            let (guard, launch) = (house.guard.clone(), house.bash(&format!("exit {number}")));
            tokio::spawn(async move { guard.start(launch).await.unwrap().wait().await })
        })
        .collect();
    for (number, run) in (0..).zip(runs) {
        assert_eq!(within(run).await.unwrap(), Exit::Code(number));
    }
    house.assert_empty();
}

#[tokio::test]
async fn commands_get_the_umask_and_the_file_limit_decurion_was_started_with() {
    // Where the limit is as high as can be already, there would be nothing to raise.
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit { current: hard.map_or(Some(4096), |hard| Some(hard.min(4096) - 1)), maximum: hard },
    )
    .unwrap();
    let house = House::new();
    let (before, _) = house.run(house.bash("umask; ulimit -Sn")).await;
    decurion_exec::set_umask_077();
    let raised = decurion_exec::raise_file_limit();
    assert_eq!(raised, hard);
    // Also under a guard that inherited the changed values.
    let changed = House::new();
    for house in [&house, &changed] {
        assert_eq!(house.run(house.bash("umask; ulimit -Sn")).await.0, before);
    }
}

#[tokio::test]
async fn an_order_to_end_is_heard_by_a_command_that_listens() {
    let house = House::new();
    let launch =
        house.bash("trap 'echo bye; exit 5' TERM; echo ready; while :; do read -t 0.05 <> <(:); done");
    let mut process = house.guard.start(launch).await.unwrap();
    let mut stdout = process.stdout.take().unwrap();
    let mut buffer = [0; 6];
    within(stdout.read_exact(&mut buffer)).await.unwrap();
    let exit = within(process.stop(Duration::from_secs(30))).await;
    assert_eq!(exit, Exit::Code(5));
    let mut rest = String::new();
    within(stdout.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "bye\n");
    house.assert_empty();
}

#[tokio::test]
async fn somebody_outside_who_holds_the_output_keeps_nobody_waiting() {
    let house = House::new();
    let launch = Launch { stdin: Stdin::Piped, ..house.bash("echo up; read; exit 4") };
    let mut process = house.guard.start(launch).await.unwrap();
    let pid = process.pid();
    let mut stdin = process.stdin.take();
    let mut held = None;
    let mut capture = Capture::new(CaptureBounds { head: 100, tail: 0, file: 0 });
    let exit = within(process.collect(&mut capture, None, |_| {
        held = std::fs::File::options().write(true).open(format!("/proc/{pid}/fd/1")).ok();
        stdin = None;
    }))
    .await;
    assert_eq!(exit, Exit::Code(4));
    assert!(held.is_some());
    assert_eq!(capture.finish().head, b"up\n");
}

#[tokio::test]
async fn an_output_that_the_command_closes_is_at_its_end() {
    let house = House::new();
    let launch = Launch { stdin: Stdin::Piped, ..house.bash("echo last; exec >&- 2>&-; read; exit 6") };
    let mut process = house.guard.start(launch).await.unwrap();
    let mut output = String::new();
    within(process.stdout.take().unwrap().read_to_string(&mut output)).await.unwrap();
    assert_eq!(output, "last\n");
    drop(process.stdin.take());
    assert_eq!(within(process.wait()).await, Exit::Code(6));
}

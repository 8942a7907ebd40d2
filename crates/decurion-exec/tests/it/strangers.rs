//! The end of Decurion itself: a stand-in for it, in a process of its own, is killed without warning.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use decurion_exec::{Guard, shell};
use tokio::io::AsyncReadExt;

use crate::house::{House, marked, program, wait_for_ends, watch, within};

const COMMANDS: &[&str] = &[
    "echo up; sleep 1000",
    "setsid sleep 1000 & echo up; sleep 1000",
    "trap '' TERM HUP; ( ( sleep 1000 & ) & ); echo up; while :; do sleep 1000; done",
    "for i in {1..200}; do sleep 1000 & done; echo up; wait",
    "perl -MPOSIX -e 'fork and exit; setsid; fork and exit; sleep 1000'; echo up; sleep 1000",
];

#[test]
fn nothing_outlives_decurion_killed_without_warning() {
    for _ in 0..3 {
        let mark = House::new().mark;
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "strangers::stand_in", "--ignored", "--nocapture"])
            .env("DECURION_TEST_OWNER", &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
        let guard = lines.find_map(|line| line.strip_prefix("ready ").map(str::to_owned)).unwrap();
        let mut alive = marked(&mark);
        assert!(alive.len() > COMMANDS.len() + 200, "{}", alive.len());
        alive.push(rustix::process::Pid::from_raw(guard.parse().unwrap()).unwrap());
        let watches = watch(&alive);
        owner.kill().unwrap();
        owner.wait().unwrap();
        wait_for_ends(&watches);
        assert!(marked(&mark).is_empty());
    }
}

/// Not a test: what the test above kills.
#[test]
#[ignore = "run by another test as a process of its own"]
fn stand_in() {
    let Ok(mark) = std::env::var("DECURION_TEST_OWNER") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let house = House { guard: Guard::new(program()), mark };
        let mut processes = Vec::new();
        for command in COMMANDS {
            let mut process =
                house.guard.start(shell::bash(command, "/", false).env(house.env())).await.unwrap();
            within(process.stdout.as_mut().unwrap().read_exact(&mut [0; 3])).await.unwrap();
            processes.push(process);
        }
        println!("\nready {}", house.guard.pid().unwrap());
        std::future::pending::<()>().await;
    });
}

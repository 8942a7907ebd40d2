//! Outputs without end: memory and files stay within their bounds, and the count is exact.

use std::sync::atomic::{AtomicUsize, Ordering};

use decurion_exec::{Capture, CaptureBounds, Exit};

use crate::house::{House, within};

const GIGABYTE: u64 = 1 << 30;

#[tokio::test]
async fn a_gigabyte_is_counted_in_bounded_memory_and_a_bounded_file() {
    let house = House::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let spill = file.reopen().unwrap();
    let bounds = CaptureBounds::for_chars(10_000, 20_000);
    let mut capture = Capture::with_spill(bounds, Box::new(move || Ok(Box::new(spill))));
    let flood = "dd if=/dev/zero bs=1M count=1024 status=none";
    let mut process = house.guard.start(house.bash(flood)).await.unwrap();
    let largest = AtomicUsize::new(0);
    let begun = std::time::Instant::now();
    let exit = within(process.collect(&mut capture, None, |piece| {
        largest.fetch_max(piece.len(), Ordering::Relaxed);
    }))
    .await;
    eprintln!("1 GiB captured at {:.0} MB/s", 1073.7 / begun.elapsed().as_secs_f64());
    assert_eq!(exit, Exit::Code(0));
    let memory = capture.memory() + largest.into_inner();
    assert!(memory <= 1 << 20, "{memory}");
    let captured = capture.finish();
    assert_eq!(captured.total, GIGABYTE);
    assert_eq!(captured.file_bytes, Some(64 << 20));
    assert_eq!(file.as_file().metadata().unwrap().len(), 64 << 20);
    let rendered = captured.render(30_000, 10_000, 20_000);
    assert_eq!((rendered.head.chars().count(), rendered.tail.chars().count()), (10_000, 20_000));
    assert_eq!(rendered.cut, GIGABYTE - 30_000);
    house.assert_empty();
}

#[tokio::test]
async fn an_endless_output_without_lines_ends_with_the_order_to_end() {
    let house = House::new();
    let mut process = house.guard.start(house.bash("cat /dev/zero")).await.unwrap();
    let stopper = process.stopper();
    let mut capture = Capture::new(CaptureBounds::for_chars(10, 20));
    let mut seen = 0;
    let exit = within(process.collect(&mut capture, None, |piece| {
        seen += piece.len();
        if seen > 10 << 20 {
            stopper.stop(std::time::Duration::from_secs(2));
        }
    }))
    .await;
    assert_eq!(exit, Exit::Signal(15));
    assert_eq!(capture.finish().render(30, 10, 20).head, "\u{2400}".repeat(10));
    house.assert_empty();
}

/// Not a test: prints what one command costs beside a plain child process.
#[tokio::test]
#[ignore = "a measurement"]
async fn the_cost_of_a_command() {
    let house = House::new();
    let begun = std::time::Instant::now();
    house.guard.warm().await.unwrap();
    println!("guard ready after {:?}", begun.elapsed());
    for (name, telling) in [("bash -c true", false), ("the same, telling its directory", true)] {
        let mut times = Vec::new();
        for _ in 0..300 {
            let begun = std::time::Instant::now();
            let launch = decurion_exec::shell::bash("true", "/", telling).env(house.env());
            assert_eq!(house.run(launch).await.1, Exit::Code(0));
            times.push(begun.elapsed());
        }
        times.sort();
        println!("{name}: p50 {:?} p99 {:?}", times[150], times[297]);
    }
    let mut times = Vec::new();
    for _ in 0..300 {
        let begun = std::time::Instant::now();
        let mut command = std::process::Command::new("/bin/bash");
        command.args(["--noprofile", "--norc", "-c", "true"]).env_clear().envs(house.env());
        assert!(command.stdin(std::process::Stdio::null()).output().unwrap().status.success());
        times.push(begun.elapsed());
    }
    times.sort();
    println!("plain child: p50 {:?} p99 {:?}", times[150], times[297]);
}

//! Large files: read as a stream, in one buffer.

use std::io::{BufWriter, Write};
use std::time::Duration;

use decurion_protocol::Block;
use decurion_store::{Journal, ReplayOptions, Scope, SessionWriter, replay};

use crate::samples::{
    Home, bash, bash_output, call_ended, call_started, date, envelope, info, opened, prompt, reply,
};

/// Writes a session of about this many bytes.
fn generate(home: &Home, bytes: usize) -> u64 {
    let mut writer = home.create(1);
    writer.append(&[envelope(1, opened(1))]).unwrap();
    let output = "a line of output, as tools write them, of some length\n".repeat(20);
    let mut seq = 1;
    let mut written = 0;
    while written < bytes {
        let id = u128::from(seq) * 10;
        let call = format!("toolu_{seq}");
        let batch = [
            envelope(seq + 1, prompt(id, "what does it say now?")),
            envelope(seq + 2, reply(id + 1, vec![Block::text("Let me look."), bash(&call, "cat file")])),
            envelope(seq + 3, call_started(&call, "cat file")),
            envelope(seq + 4, call_ended(&call, id + 3, bash_output(&output))),
        ];
        writer.append(&batch).unwrap();
        seq += 4;
        written += 2 * output.len() + 3200;
    }
    seq
}

/// Time this thread spent on a processor: what others do on the machine does not count.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0))
}

fn check(megabytes: usize) {
    let home = Home::new();
    let started = processor_time();
    let last = generate(&home, megabytes << 20);
    println!("{megabytes} MB written in {:?}", processor_time().saturating_sub(started));
    let paths = home.paths(1);
    for structured in [false, true] {
        let started = processor_time();
        let mut count = 0;
        let options = ReplayOptions { structured, ..ReplayOptions::default() };
        let report = replay(&paths, &options, &mut |_| count += 1).unwrap();
        println!(
            "{} bytes read in {:?}, structured: {structured}",
            report.bytes,
            processor_time().saturating_sub(started)
        );
        assert_eq!((count, report.last_seq), (last, last));
        assert!(report.is_clean());
    }
    let started = processor_time();
    let mut recent = 0;
    let options = ReplayOptions { scope: Scope::Everything, structured: true, after: last - 10 };
    replay(&paths, &options, &mut |_| recent += 1).unwrap();
    println!("the last ten found in {:?}", processor_time().saturating_sub(started));
    assert_eq!(recent, 10);
    let started = processor_time();
    let options = ReplayOptions { after: last, ..ReplayOptions::default() };
    let (writer, _) = SessionWriter::resume(&paths, &info(1), date(0), &options, &mut drop).unwrap();
    println!("taken up in {:?}", processor_time().saturating_sub(started));
    assert_eq!(writer.last_seq(), last);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
}

#[test]
fn a_file_of_some_megabytes() {
    check(if cfg!(debug_assertions) { 4 } else { 20 });
}

#[test]
#[ignore = "large; run it with --release --ignored --nocapture for the figures"]
fn a_file_of_a_hundred_megabytes() {
    check(100);
}

#[test]
#[ignore = "large; run it with --release --ignored --nocapture for the figures"]
fn a_file_of_a_gigabyte() {
    check(1000);
}

#[test]
fn a_line_of_ten_megabytes_is_read_and_passed() {
    let home = Home::new();
    home.create(1).append(&[envelope(1, opened(1)), envelope(2, prompt(1, "x"))]).unwrap();
    let path = home.paths(1).transcript();
    let mut file = BufWriter::new(std::fs::OpenOptions::new().append(true).open(path).unwrap());
    writeln!(file, "{{\"type\":\"big\",\"text\":\"{}\"}}", "x".repeat(10 << 20)).unwrap();
    writeln!(file, "{}", "garbage".repeat(1 << 20)).unwrap();
    drop(file);
    let mut writer = home.resume(1).0;
    writer.append(&[envelope(writer.last_seq() + 1, prompt(2, "y"))]).unwrap();
    let (events, report) = home.read(1);
    assert_eq!(events.len(), 4);
    assert_eq!((report.foreign, report.skipped, report.torn_bytes), (1, 1, 0));
}

//! What the sandbox costs. Takes the program as a guard, runs the same command in turns bare, through the guard without a
//! sandbox and with each form of it; prints the median of each beside the bare one.
//!
//! All of it counts: looking at the disk for what the rules protect, the sandbox itself, and looking afterwards for what the
//! command left.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use camino::Utf8PathBuf;
use decurion_engine::permission::{Around, Checkouts, Policy};
use decurion_engine::sandbox::{SandboxMaker, SandboxSettings};
use decurion_exec::{Capture, CaptureBounds, Form, Guard, GuardProgram, Launch};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Intent, Mode, Rule, RuleSet};
use decurion_testkit::proc::Home;
use decurion_testkit::sys;

use super::{Row, median};

/// So many times each command is run, in turns.
const TURNS: usize = 300;
/// So many turns are not counted: programs are read and guards started.
const FIRST: usize = 20;
/// What a sandbox may cost a command.
const MOST_MS: f64 = 1.5;

/// All of it; whether the goals are met.
pub fn run(programs: &Path) -> Result<bool> {
    let home = Home::new()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let forms = [None, Some(Form::Namespaces), Some(Form::Landlock), Some(Form::Bubblewrap)];
    let ways = forms.into_iter().map(|form| Way::new(programs, &home, form)).collect::<Result<Vec<_>>>()?;
    let mut bare = Vec::new();
    let mut times = vec![Vec::new(); ways.len()];
    for turn in 0..FIRST + TURNS {
        let time = run_bare()?;
        if turn >= FIRST {
            bare.push(milliseconds(time));
        }
        for (way, times) in ways.iter().zip(&mut times) {
            let begun = Instant::now();
            runtime.block_on(way.run())?;
            if turn >= FIRST {
                times.push(milliseconds(begun.elapsed()));
            }
        }
    }
    drop(ways);
    let floor = median(bare);
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    println!("median of {TURNS} `bash -c true` in turns {:>14} {:>10}", "ours", "bare");
    let row = |what, ours, goal| Row { what, unit: "ms", ours, floor, goal };
    let [outside, namespaces, landlock, bubblewrap] = medians[..] else { anyhow::bail!("four ways") };
    let goals = [
        row("with namespaces, Landlock and seccomp", namespaces, 1.5),
        row("with Landlock and seccomp alone", landlock, 1.1),
    ];
    println!("{:<46} {outside:>10.2} {floor:>10.2} ms    {:>6.2}×", "without a sandbox", outside / floor);
    goals.iter().for_each(Row::print);
    println!("{:<46} {bubblewrap:>10.2} {floor:>10.2} ms    {:>6.2}×", "with bubblewrap", bubblewrap / floor);
    let cost = namespaces - floor;
    let met = cost <= MOST_MS;
    let verdict = if met { "met" } else { "MISSED" };
    println!(
        "{:<46} {cost:>10.2} {:>10} ms             goal ≤ {MOST_MS} ms  {verdict}",
        "namespaces cost a command", ""
    );
    Ok(met && goals.iter().all(Row::met))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The command without anything of ours.
fn run_bare() -> Result<Duration> {
    let begun = Instant::now();
    let shell = sys::start_shell("true")?;
    let mut output = Vec::new();
    fs::File::from(shell.output).read_to_end(&mut output)?;
    let (_, ending, _) = sys::wait_for(Some(shell.pid))?;
    ensure!(ending.is_success() && output.is_empty(), "bash failed: {ending:?}");
    Ok(begun.elapsed())
}

/// A guard and what commands may do.
struct Way {
    guard: Guard,
    sandbox: Option<(SandboxMaker, Policy)>,
    work: Utf8PathBuf,
}

impl Way {
    /// A project with rules, as a session has it.
    fn new(programs: &Path, home: &Home, form: Option<Form>) -> Result<Self> {
        let guard =
            Guard::new(GuardProgram { program: programs.join("decurion"), args: vec!["__guard".into()] });
        let path = |path: &Path| Utf8PathBuf::from_path_buf(path.canonicalize()?).ok().context("not UTF-8");
        let name = form.map_or("outside", Form::name);
        let work = home.work().join(name);
        fs::create_dir_all(work.join("src/secret"))?;
        fs::write(work.join(".env"), "")?;
        let git = home.program("git").cwd(&work).args(["init", "-q"]).run(Duration::from_secs(60))?;
        ensure!(git.ending.is_success(), "git failed: {}", git.errors);
        let (work, person) = (path(&work)?, path(&home.home())?);
        let sandbox = form.map(|form| -> Result<_> {
            guard.force_form(form);
            let maker = SandboxMaker::new(SandboxSettings {
                form,
                asks_less: false,
                allows_outside: true,
                excluded: Vec::new(),
                writable: Vec::new(),
                hidden: vec![person.join(".ssh"), path(&home.state())?],
                personal: vec![person.clone()],
                visible: Vec::new(),
                temporary: path(&home.path().join("tmp"))?,
                network_open: false,
                unix_sockets: false,
                own: None,
                report: |_| {},
            });
            let around = Around {
                cwd: work.clone(),
                root: work.clone(),
                home: Some(person.clone()),
                checkouts: Checkouts::of(&work, std::iter::empty()),
                ..Around::default()
            };
            let deny =
                ["Read(.env)", "Edit(src/secret/**)"].map(|rule| Rule::parse(rule, RuleSource::UserSettings));
            let deny = deny.into_iter().collect::<Result<Vec<_>, _>>()?;
            let rules = RuleSet { deny, ..RuleSet::default() };
            Ok((maker, Policy::new(Mode::Default, Arc::new(rules), around)))
        });
        Ok(Self { guard, sandbox: sandbox.transpose()?, work })
    }

    async fn run(&self) -> Result<()> {
        let mut launch = Launch::new("/bin/bash", self.work.as_std_path()).args(["-c", "true"]);
        if let Some((maker, policy)) = &self.sandbox {
            let sandbox = maker.compile(policy, None, &Intent::titled("true"), None)?.sandbox;
            launch.env = decurion_tools::shell::environment(Vec::new(), sandbox.as_ref());
            launch.sandbox = sandbox.map(Arc::new);
        }
        let mut process = self.guard.start(launch).await?;
        let mut capture = Capture::new(CaptureBounds { head: 1 << 10, tail: 0, file: 0 });
        let exit = process.collect(&mut capture, None, |_| {}).await;
        let output = capture.finish().head;
        ensure!(exit.success(), "bash failed: {exit:?} {}", String::from_utf8_lossy(&output));
        if let Some((maker, policy)) = &self.sandbox {
            maker.tidy(&policy.around, &Intent::titled("true"));
        }
        Ok(())
    }
}

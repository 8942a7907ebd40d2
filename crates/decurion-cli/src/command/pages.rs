//! `decurion completions` and `decurion man`: what shells and `man` know of the command line. Takes a shell or a folder,
//! prints or writes what is generated from the same definitions that parse the command line.

use std::io::Write as _;

use camino::Utf8Path;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::report::Failure;
use crate::screen;

/// Prints a completion script.
pub fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&Args::command()), "decurion", &mut script);
    print(&script)
}

/// A command with what it shows: flags for programs and tests are not offered to people.
fn shown(command: &Command) -> Command {
    // Names are those of the program's own definitions, which are made once.
    let name: &'static str = command.get_name().to_owned().leak();
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(shown);
    let plain = Command::new(name).args(arguments).subcommands(below);
    match command.get_about() {
        Some(about) => plain.about(about.clone()),
        None => plain,
    }
}

/// Prints the page of the program, or writes one for each command.
pub fn man(dir: Option<&Utf8Path>) -> Result<u8, Failure> {
    let mut command = Args::command();
    command.build();
    let Some(dir) = dir else { return print(&page(command)?) };
    let failed = |error: std::io::Error| Failure::failed(format!("cannot write into {dir}: {error}"));
    std::fs::create_dir_all(dir).map_err(failed)?;
    let mut count = 0;
    let mut waiting = vec![("decurion".to_owned(), command)];
    while let Some((name, command)) = waiting.pop() {
        let shown =
            command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
        waiting.extend(shown.map(|inner| (format!("{name}-{}", inner.get_name()), inner.clone())));
        std::fs::write(dir.join(format!("{name}.1")), page(command)?).map_err(failed)?;
        count += 1;
    }
    say!("Wrote {count} pages to {dir}.");
    Ok(0)
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::failed(format!("cannot make the page: {error}")))?;
    Ok(page)
}

fn print(bytes: &[u8]) -> Result<u8, Failure> {
    let mut out = screen::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot print: {error}")))
        }
        _ => Ok(0),
    }
}

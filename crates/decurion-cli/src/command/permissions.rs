//! `permissions check` and `permissions explain`. Takes rows, one JSON object a line, each a call with the
//! rules and the mode it is made under, else those of this folder; gives the decision about each, for programs or for
//! people. `explain` also takes a command line, and explains it like `sandbox explain`.
//!
//! A row that cannot be read gets an error in its place, and the others are still answered.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::LoadRequest;
use decurion_engine::permission::rows::{self, Answered, answer};
use decurion_engine::permission::{Policy, Walls, explain};
use decurion_engine::symlinks::Symlinks;
use decurion_protocol::{Access, Profile, Verdict};
use decurion_tools::bash;
use serde_json::json;

use crate::args::PermissionsCommand;
use crate::report::{Failure, note};
use crate::{screen, wire};

/// What is written for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStyle {
    Json,
    /// The parts of the call and what is thought of each.
    Prose,
}

/// What rows are answered on.
pub struct CheckContext<'a> {
    pub trails: &'a dyn Fn() -> Symlinks,
    /// What `~` stands for.
    pub home: Option<&'a Utf8Path>,
    /// What the kernel enforces.
    pub walls: Walls,
    /// The policy of a session in this folder, and the folder that is trusted.
    pub here: Option<(&'a Policy, Option<&'a Utf8Path>)>,
}

/// Answers the rows of a file or of standard input; the exit code is 2 if a row could not be read.
pub fn run(command: PermissionsCommand) -> Result<u8, Failure> {
    let (file, style) = match command {
        PermissionsCommand::Check { file } => (file, RowStyle::Json),
        PermissionsCommand::Explain { call: Some(call), allowed, json } if !Path::new(&call).is_file() => {
            return super::sandbox::explain_command(&call, allowed, json);
        }
        PermissionsCommand::Explain { call, .. } => (call.map(Utf8PathBuf::from), RowStyle::Prose),
    };
    let (cwd, environment) = wire::surroundings()?;
    // As a session would: where it does not start, there is nothing to test.
    let loaded = decurion_config::load(&LoadRequest::new(cwd, environment.clone()))?;
    for warning in super::doctor::warnings(&loaded) {
        note(warning);
    }
    let maker = wire::sandbox(&loaded, &environment);
    let policy = super::sandbox::policy(&loaded, maker.as_deref());
    let trusted = Some(loaded.paths.root.as_path()).filter(|_| loaded.trust.is_trusted());
    let home = loaded.paths.home.as_deref();
    let walls = match decurion_exec::sandbox::probe() {
        Ok(form) if form.keeps_readers_from_changes() => Walls::Standing,
        Ok(_) | Err(_) => Walls::Absent,
    };
    let around = CheckContext { trails: &Symlinks::on_disk, home, walls, here: Some((&policy, trusted)) };
    let output = BufWriter::new(screen::stdout());
    let result = match file {
        None => check(io::stdin().lock(), output, style, &around),
        Some(path) => {
            let file =
                File::open(&path).map_err(|error| Failure::usage(format!("cannot read {path}: {error}")))?;
            check(BufReader::new(file), output, style, &around)
        }
    };
    match result {
        // The reader may stop reading.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        result => result.map_err(|error| Failure::failed(format!("cannot read or answer the rows: {error}"))),
    }
}

/// Answers every row of `input` on `output`. The result is the exit code: 0, or 2 if a row could not be read.
pub fn check(
    input: impl BufRead,
    mut output: impl Write,
    style: RowStyle,
    ground: &CheckContext<'_>,
) -> io::Result<u8> {
    let mut code = 0;
    for (index, line) in input.split(b'\n').enumerate() {
        let line = line?;
        let number = index + 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let trails = (ground.trails)();
        let by = rows::Ground { trails: &trails, home: ground.home, walls: ground.walls, here: ground.here };
        match answer(&line, &by) {
            Ok(answered) => match style {
                RowStyle::Json => writeln!(output, "{}", serde_json::to_string(&answered.decision)?)?,
                RowStyle::Prose => prose(&mut output, number, &answered)?,
            },
            Err(error) => {
                code = 2;
                match style {
                    RowStyle::Json => {
                        writeln!(output, "{}", json!({ "error": format!("line {number}: {error}") }))?;
                    }
                    RowStyle::Prose => writeln!(output, "line {number}: {error}\n")?,
                }
            }
        }
    }
    output.flush()?;
    Ok(code)
}

fn prose(output: &mut impl Write, number: usize, answered: &Answered) -> io::Result<()> {
    let decision = &answered.decision;
    let verdict = match decision.verdict {
        Verdict::Allow => "allow",
        Verdict::Ask => "ask",
        Verdict::Deny => "deny",
    };
    writeln!(output, "line {number}: {} → {verdict}", answered.tool)?;
    writeln!(output, "  because {}", bash::visible(&decision.reason))?;
    writeln!(output, "  mode {}", answered.policy.mode)?;
    if let Some(because) = &answered.mode_because {
        writeln!(output, "    {because}")?;
    }
    if decision.verdict == Verdict::Allow && answered.intent.shell.is_some() {
        let profile = match decision.profile {
            Some(Profile::ReadOnly) => "can change nothing, reach no network, and read no personal files",
            Some(Profile::Outside) => "runs without a sandbox",
            None if answered.policy.walls == Walls::Absent => "is not kept from anything by the system",
            None => "can write in the working directories only",
        };
        writeln!(output, "  {profile}")?;
    }
    for touch in &answered.intent.touches {
        let access = if touch.access == Access::Write { "writes" } else { "reads" };
        writeln!(output, "  {access} {}", bash::visible(touch.path.as_str()))?;
    }
    if let Some(doubt) = answered.intent.shell.as_ref().and_then(|shell| shell.doubt.as_ref()) {
        writeln!(output, "  not understood: {doubt}")?;
    }
    for part in explain(&answered.policy, &answered.tool, &answered.input, &answered.intent) {
        let mark = if part.fine { "ok " } else { "ask" };
        writeln!(output, "  {mark} {}\n      {}", part.text, bash::visible(&part.why))?;
    }
    writeln!(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(rows: &str, style: RowStyle) -> (String, u8) {
        let mut output = Vec::new();
        let ground =
            CheckContext { trails: &Symlinks::default, home: None, walls: Walls::Absent, here: None };
        let code = check(rows.as_bytes(), &mut output, style, &ground).unwrap();
        (String::from_utf8(output).unwrap(), code)
    }

    #[test]
    fn a_bad_row_is_named_and_the_others_are_answered() {
        let rows = "{\"tool\":\"Bash\",\"input\":{\"command\":\"ls\"}}\n{oops\n\n{\"tool\":\"Bash\",\"input\":{\"command\":\"rm x\"}}\n";
        let (output, code) = checked(rows, RowStyle::Json);
        let lines: Vec<serde_json::Value> =
            output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(code, 2);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["decision"], "allow");
        assert!(lines[0]["rule"].is_null());
        assert!(lines[1]["error"].as_str().unwrap().contains("line 2"));
        assert_eq!(lines[2]["decision"], "ask");
    }

    #[test]
    fn an_explanation_names_every_part() {
        let (output, code) =
            checked("{\"tool\":\"Bash\",\"input\":{\"command\":\"ls && rm x\"}}", RowStyle::Prose);
        assert_eq!(code, 0);
        assert!(output.contains("ask") && output.contains("rm x") && output.contains("ls"), "{output}");
    }
}

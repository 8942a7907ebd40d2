//! A bash command line as a [`Launch`], optionally with the shell's directory reported at its end.
//!
//! The directory is reported on descriptor 3 by an EXIT trap and, for a command that sets its own trap, once more after
//! the command. While the command runs, descriptor 3 is closed: bash moves it away and closes it in programs, so the
//! command's own programs never see it.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::launch::Launch;

/// The shell commands are written for.
pub const BASH: &str = "/bin/bash";

/// `bash -c command`, with no start-up files. With `report_cwd`, [`crate::Process::cwd`] tells where the
/// shell was at its end; it stays silent after `exec` and when the shell was killed. A command that begins with a dash
/// is a command and no option of bash.
pub fn bash(command: &str, cwd: impl Into<PathBuf>, report_cwd: bool) -> Launch {
    let text = if report_cwd { telling(command) } else { command.to_owned() };
    let args = ["--noprofile", "--norc", "-c", "--"].map(OsString::from);
    let mut launch = Launch::new(BASH, cwd).args(args).args([OsString::from(text), "bash".into()]);
    launch.report_cwd = report_cwd;
    launch
}

/// All before the command is on its first line, so that bash's messages name the right lines.
fn telling(command: &str) -> String {
    const TELL: &str = r#"builtin printf "\0" >&3; builtin pwd -P >&3"#;
    let quoted = command.replace('\'', r"'\''");
    format!(
        "builtin trap '{{ {TELL}; }} >/dev/null 2>&1' EXIT; {{ builtin eval -- '{quoted}'; }} 3>&-; \
         {{ builtin set +v -- \"$?\"; {TELL}; builtin exit \"$1\"; }} >/dev/null 2>&1"
    )
}

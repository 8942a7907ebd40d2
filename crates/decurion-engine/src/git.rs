//! What git says about a working directory, for the note that opens a conversation. Takes the directory, gives
//! the branch, what changed and the last commits, bounded in size and time; nothing where that takes longer
//! than a moment.
//!
//! A repository's own configuration can make git run programs, even for a status. So a folder whose
//! configuration could is only asked about if it is trusted, and in a sandbox where there is one.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::{Exit, Guard, Launch, Output, Sandbox};
use decurion_protocol::WorkingChanges;

/// How long all of it may take.
const MOMENT: Duration = Duration::from_millis(500);
/// How long git may take to end once it must.
const GRACE: Duration = Duration::from_millis(100);
/// How much is shown of what changed.
const MOST_LINES: usize = 40;
const MOST_CHARS: usize = 200;
/// How much is read of what git prints, and of its configuration.
const MOST_BYTES: usize = 256 << 10;

/// Marks of one that makes git run programs when it fills, compares or merges checkouts.
const RUNS_FOR_FILES: [&str; 5] = ["[filter", "[include", "promisor", "partialclone", "driver"];
/// How many folders of submodules are looked through.
const MOST_FOLDERS: usize = 1000;

const CHANGED: [&str; 5] =
    ["status", "--porcelain=v1", "--branch", "--ignore-submodules=all", "--untracked-files=normal"];
const COMMITS: [&str; 5] = ["log", "-5", "--format=%h %s", "--no-show-signature", "--no-decorate"];
/// What is changed since the last commit, by git alone: no program of the repository's configuration makes the text.
const DIFF: [&str; 7] =
    ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "--relative", "HEAD"];
/// The same where nothing was committed yet.
const STAGED: [&str; 7] = [
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--ignore-submodules=all",
    "--relative",
    "--cached",
];
const UNTRACKED: [&str; 3] = ["ls-files", "--others", "--exclude-standard"];
/// How long a person waits for what is changed.
const PATIENCE: Duration = Duration::from_secs(20);
const MAIN: [&str; 3] = ["symbolic-ref", "--short", "refs/remotes/origin/HEAD"];

/// The branch, the branch that work is usually merged into, what changed, and the last commits.
pub async fn status(
    guard: &Guard,
    environment: &[(OsString, OsString)],
    cwd: &Utf8Path,
    sandbox: Option<Arc<Sandbox>>,
) -> Option<String> {
    let ask = |args| ask(guard, environment, cwd, args, sandbox.clone());
    let all = async { tokio::join!(ask(&CHANGED), ask(&COMMITS), ask(&MAIN)) };
    let (changed, commits, main) = tokio::time::timeout(MOMENT, all).await.ok()?;
    Some(words(&whole(changed)?, whole(commits).as_deref(), whole(main).as_deref()))
}

/// What is changed in a working tree, as far as that fits; the error says why git is not asked, or does not answer.
pub async fn changes(
    guard: &Guard,
    environment: &[(OsString, OsString)],
    cwd: &Utf8Path,
    sandbox: Option<Arc<Sandbox>>,
) -> Result<WorkingChanges, String> {
    let ask = |args| ask(guard, environment, cwd, args, sandbox.clone());
    let all = async {
        let (diff, untracked) = tokio::join!(ask(&DIFF), ask(&UNTRACKED));
        let diff = match diff {
            Some(diff) => Some(diff),
            None => ask(&STAGED).await,
        };
        (diff, untracked)
    };
    let (diff, untracked) = tokio::time::timeout(PATIENCE, all)
        .await
        .map_err(|_| format!("git took more than {} seconds", PATIENCE.as_secs()))?;
    let diff = diff.ok_or("git says nothing: is this folder in a git repository?")?;
    let untracked = untracked.unwrap_or_default();
    let names = untracked.text.lines().take(MOST_LINES).map(cut);
    let is_cut = diff.is_cut || untracked.is_cut || untracked.text.lines().count() > MOST_LINES;
    Ok(WorkingChanges { untracked: names.collect(), is_cut, diff: diff.text })
}

/// What was printed, where all of it was read.
fn whole(said: Option<Said>) -> Option<String> {
    said.filter(|said| !said.is_cut).map(|said| said.text)
}

#[derive(Default)]
struct Said {
    text: String,
    /// Whether it was too much to be read to its end.
    is_cut: bool,
}

/// What was said, in our words.
fn words(changed: &str, commits: Option<&str>, main: Option<&str>) -> String {
    let mut lines = changed.lines();
    let branch = lines.next().unwrap_or_default().trim_start_matches("## ");
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "Branch: {}", cut(branch));
    if let Some(main) = main.map(str::trim).filter(|main| !main.is_empty()) {
        let _ = writeln!(text, "Main branch: {}", cut(main.trim_start_matches("origin/")));
    }
    let all: Vec<&str> = lines.collect();
    if all.is_empty() {
        text.push_str("Nothing is changed\n");
    } else {
        text.push_str("Changed:\n");
        for line in all.iter().take(MOST_LINES) {
            let _ = writeln!(text, "{}", cut(line));
        }
        if all.len() > MOST_LINES {
            let _ = writeln!(text, "[… and {} more]", all.len() - MOST_LINES);
        }
    }
    if let Some(commits) = commits.filter(|commits| !commits.trim().is_empty()) {
        text.push_str("Last commits:\n");
        for line in commits.lines().take(5) {
            let _ = writeln!(text, "{}", cut(line));
        }
    }
    text
}

/// Names of files and commits are other people's words: one line each, and not long.
fn cut(line: &str) -> String {
    line.chars().filter(|letter| !letter.is_control()).take(MOST_CHARS).collect()
}

/// Asks git one thing; none if it does not answer, or fails.
async fn ask(
    guard: &Guard,
    environment: &[(OsString, OsString)],
    cwd: &Utf8Path,
    args: &[&str],
    sandbox: Option<Arc<Sandbox>>,
) -> Option<Said> {
    let always = [
        "--no-optional-locks",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "log.showSignature=false",
        "-c",
        "diff.noprefix=false",
        "-c",
        "diff.mnemonicPrefix=false",
        "-c",
        "core.quotePath=false",
    ];
    let mut launch = Launch::new("git", cwd.as_std_path())
        .args(always.iter().chain(args))
        .env(environment.iter().cloned());
    launch.output = Output::Separate;
    launch.sandbox = sandbox;
    let mut process = guard.start(launch).await.ok()?;
    let output = read(process.stdout.take()?).await;
    if output.as_ref().is_none_or(|said| said.is_cut) {
        process.stop(GRACE).await;
        return output;
    }
    (process.wait().await == Exit::Code(0)).then_some(output?)
}

/// What is printed, up to a bound; none if it cannot be read.
async fn read(pipe: tokio::net::unix::pipe::Receiver) -> Option<Said> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 16 << 10];
    loop {
        pipe.readable().await.ok()?;
        match pipe.try_read(&mut piece) {
            Ok(0) => return Some(Said { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut: false }),
            Ok(length) if bytes.len() + length > MOST_BYTES => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                return Some(Said { text, is_cut: true });
            }
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Whether git would run programs of a repository's own configuration, or of its checkouts' and submodules', when
/// it fills, compares or merges checkouts. What cannot be read might.
pub(crate) fn runs_for_files(common: &Utf8Path) -> bool {
    settings_files(common).is_none_or(|files| files.iter().any(|file| has_mark(file, &RUNS_FOR_FILES)))
}

/// What tells whether the settings that [`runs_for_files`] looks at are still the same.
pub(crate) fn settings_mark(common: &Utf8Path) -> Option<u64> {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    // Worktrees come and go with our own agents, and their settings are read-only for commands.
    let worktrees = common.join("worktrees");
    for file in settings_files(common)?.iter().filter(|file| !file.starts_with(&worktrees)) {
        if file.symlink_metadata().is_ok() {
            (file, crate::small_file::small(file)).hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

/// The files of settings of a repository, its checkouts and its submodules; none where there are too many.
fn settings_files(common: &Utf8Path) -> Option<Vec<Utf8PathBuf>> {
    let mut waiting = vec![common.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = waiting.pop() {
        let files = [folder.join("config"), folder.join("config.worktree")];
        // A submodule's name may have slashes: what is no repository holds some.
        let below = if files[0].exists() { vec!["modules", "worktrees"] } else { vec!["."] };
        found.extend(files);
        if found.len() > 2 * MOST_FOLDERS {
            return None;
        }
        for found in below.iter().flat_map(|name| folder.join(name).read_dir_utf8()).flatten().flatten() {
            if found.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(found.into_path());
            }
        }
    }
    Some(found)
}

/// The folder that all checkouts of a folder's repository share, without asking git.
pub(crate) fn common(cwd: &Utf8Path) -> Option<Utf8PathBuf> {
    folders(cwd)?.1.canonicalize_utf8().ok()
}

/// The folder git keeps for the checkout, and the one for the repository, which may be the same.
fn folders(cwd: &Utf8Path) -> Option<(Utf8PathBuf, Utf8PathBuf)> {
    let git = cwd.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    // A linked checkout names the folder, whose configuration may be in the one it belongs to.
    let own = match crate::small_file::small(&git) {
        Some(link) => git.parent().unwrap_or(&git).join(link.trim().strip_prefix("gitdir: ")?),
        None => git,
    };
    let common = crate::small_file::small(&own.join("commondir")).map(|path| own.join(path.trim()));
    let common = common.unwrap_or_else(|| own.clone());
    Some((own, common))
}

/// Whether a file of configuration has one of these marks. What cannot be read might.
fn has_mark(file: &Utf8Path, marks: &[&str]) -> bool {
    if !file.exists() {
        return false;
    }
    crate::small_file::small(file).is_none_or(|text| {
        let text = text.to_lowercase();
        marks.iter().any(|mark| text.contains(mark))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn what_git_says_is_bounded() {
        let changed: String = (0..50).map(|number| format!(" M file{number}\n")).collect();
        let said = words(
            &format!("## main...origin/main [ahead 1]\n{changed}"),
            Some("abc one\n"),
            Some("origin/main\n"),
        );
        assert_eq!(said.lines().count(), 2 + 1 + 40 + 1 + 2, "{said}");
        expect![[r"
            Branch: No commits yet on main
            Changed:
            ?? a\u{1b}b
        "]]
        .assert_eq(&words("## No commits yet on main\n?? a\\u{1b}b\u{1b}\n", None, None));
        assert_eq!(words("## main", Some(""), None), "Branch: main\nNothing is changed\n");
    }

    #[test]
    fn a_configuration_that_runs_programs_for_files_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let top = Utf8Path::from_path(folder.path()).unwrap();
        std::fs::create_dir_all(top.join(".git")).unwrap();
        let git = top.join(".git");
        let filter = "[filter \"x\"]\n\tsmudge = ./run\n";
        for (file, config, expected) in [
            ("config", "[core]\n\tfsmonitor = ./run\n[commit]\n\tgpgsign = true\n", false),
            ("config", "[merge \"x\"]\n\tdriver = ./run\n", true),
            ("config", filter, true),
            ("config.worktree", filter, true),
            ("worktrees/a/config.worktree", filter, true),
            ("modules/one/two/config", filter, true),
        ] {
            std::fs::write(git.join("config"), "[core]\n").unwrap();
            std::fs::create_dir_all(git.join(file).parent().unwrap()).unwrap();
            std::fs::write(git.join(file), config).unwrap();
            assert_eq!(runs_for_files(&git), expected, "{file}: {config}");
            std::fs::remove_file(git.join(file)).unwrap();
        }
    }
}

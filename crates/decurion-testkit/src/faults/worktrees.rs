//! W1 and B4: agents in checkouts of their own, through the binary. Takes runs in which many agents change one
//! repository at once, merges their branches, kills both at random moments and takes checkouts away under their
//! agents; gives whether a commit was lost, anything was left that the next start does not clear, or the person's
//! own checkout was touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::stand::{GONE, Stand, ended_well};
use super::{Dice, Options, Report, Row, has_program, in_parallel};
use crate::proc::{Finished, Moment};
use crate::repo::Repo;

/// A run of fifty agents on two cores takes a while.
const LONG: Duration = Duration::from_secs(300);
/// So many agents change one file each, so many of them what the gate refuses, and so many the same file.
const AGENTS: Crew = Crew { apart: 40, bad: 4, contested: 10 };
/// The same for the runs that are killed.
const FEW: Crew = Crew { apart: 6, bad: 1, contested: 3 };
const SESSION: &str = "7a3f0c52-0d43-4b0e-9c4c-5d0f8a1b2c3d";
/// Refuses what some agents make.
const GATE: &str = "! ls bad-* 2>/dev/null";

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "B4", what: "an agent's checkout is deleted or removed under it", run: deleted },
        Row { id: "W2", what: "a disk that is full when an agent's checkout is made", run: full },
        Row { id: "W1", what: "agents in worktrees of one repository, merged, both killed", run: merged },
    ]
}

/// Who works on the repository.
#[derive(Clone, Copy)]
struct Crew {
    apart: usize,
    bad: usize,
    contested: usize,
}

impl Crew {
    fn all(self) -> usize {
        self.apart + self.contested
    }
}

// ---- W1 ----

fn merged(options: &Options) -> Report {
    let mut report = Report::default();
    let whole = undisturbed(options);
    let words = whole.clone().unwrap_or_default();
    report.add("undisturbed", whole.map(drop));
    // Each try is killed two to five times.
    let tries: Vec<u64> =
        (0..options.kills.map_or_else(|| options.count(4, 80), |kills| kills.div_ceil(3))).collect();
    let results = in_parallel(options.width, &tries, |nth| killed(options, *nth));
    let (mut commits, mut kills) = (0, 0);
    for (nth, result) in results.into_iter().enumerate() {
        if let Ok((made, struck)) = &result {
            commits += made;
            kills += struck;
        }
        report.add(format_args!("killed, try {nth}"), result.map(drop));
    }
    if commits == 0 {
        report.add("killed", Err("no agent made a commit in any try".to_owned()));
    }
    report.figure(format!("{words}; {kills} kills of runs and merges: {commits} commits made, 0 lost"))
}

/// All agents work, all that can be merged is.
fn undisturbed(options: &Options) -> Result<String, String> {
    let field = Field::new(options, script(AGENTS))?;
    let before = field.checkout()?;
    let run = field.stand.run_as(SESSION, "go").run(LONG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    let dry = field.merge(&["--dry-run"])?;
    Field::count(&dry, "merged", AGENTS.apart + 1)?;
    let done = field.merge(&["--gate", GATE])?;
    Field::count(&done, "merged", AGENTS.apart - AGENTS.bad + 1)?;
    Field::count(&done, "refused", AGENTS.bad)?;
    Field::count(&done, "conflicts", AGENTS.contested - 1)?;
    let left = AGENTS.bad + AGENTS.contested - 1;
    let trees = field.worktrees()?;
    if trees.len() != left {
        return Err(format!("{} worktrees are kept, not the {left} that are not merged", trees.len()));
    }
    field.audit(&before)?;
    Ok(format!(
        "{} agents in as many worktrees: {} merged, {} conflicts told, {} refused by the gate",
        AGENTS.all(),
        AGENTS.apart - AGENTS.bad + 1,
        AGENTS.contested - 1,
        AGENTS.bad
    ))
}

/// The run is killed, taken up, perhaps killed again; the merge too. Gives how many commits were made and how
/// often something was killed.
fn killed(options: &Options, nth: u64) -> Result<(usize, u64), String> {
    let mut dice = Dice::new(options.seed, nth);
    let field = Field::new(options, script(FEW))?;
    let before = field.checkout()?;
    let first = field.stand.run_as(SESSION, "go");
    field.kill(first.start(), &mut dice, Duration::from_millis(2500))?;
    if !field.stand.transcript(SESSION).exists() {
        // It died before it had begun.
        let run = field.stand.run_as(SESSION, "go").run(LONG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
    }
    let (again, merges) = (dice.below(3), 1 + dice.below(2));
    for _ in 0..again {
        field.kill(field.stand.resume(SESSION, "go on").start(), &mut dice, Duration::from_millis(2500))?;
    }
    let run = field.stand.resume(SESSION, "go on").run(LONG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    for _ in 0..merges {
        let merge = field.stand.program(field.stand.binary()).args(["merge", "--gate", GATE]);
        field.kill(merge.start(), &mut dice, Duration::from_millis(2000))?;
        field.whole_target()?;
    }
    let done = field.merge(&["--gate", GATE])?;
    if let Some(row) = rows_of(&done).iter().find(|row| row["outcome"] == "skipped") {
        return Err(format!("left out of the merge: {row}"));
    }
    Ok((field.audit(&before)?, 1 + again + merges))
}

/// A repository, and a stand that works in it.
struct Field {
    stand: Stand,
}

impl Field {
    fn new(options: &Options, script: String) -> Result<Self, String> {
        let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
        let field = Self { stand };
        field.git(&["init", "--quiet", "--initial-branch=main"])?;
        let work = field.stand.home.work();
        for (name, text) in [("a.txt", "a\n"), ("contested.txt", "nobody's\n"), (".gitignore", "*.tmp\n")] {
            fs::write(work.join(name), text).map_err(|error| error.to_string())?;
        }
        field.git(&["add", "--all"])?;
        field.git(&["commit", "--quiet", "--message", "first"])?;
        // Something the person has not committed.
        fs::write(work.join("a.txt"), "the person's own change\n").map_err(|error| error.to_string())?;
        Ok(field)
    }

    fn git(&self, arguments: &[&str]) -> Result<String, String> {
        Repo::git_at(&self.stand.home.work(), arguments).map_err(|error| error.to_string())
    }

    /// Files, index and HEAD of the person's checkout, as one hash.
    fn checkout(&self) -> Result<String, String> {
        let work = self.stand.home.work();
        let mut hash = Sha256::new();
        for path in
            ["a.txt", "contested.txt", ".gitignore", ".git/index", ".git/HEAD", ".git/refs/heads/main"]
        {
            let bytes = fs::read(work.join(path)).map_err(|error| format!("{path}: {error}"))?;
            hash.update(path.as_bytes());
            hash.update(bytes);
        }
        let entries = fs::read_dir(&work).map_err(|error| error.to_string())?;
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        hash.update(format!("{names:?}").as_bytes());
        Ok(format!("{:x?}", hash.finalize()))
    }

    /// Kills what was started, at a random moment, and sees to it that nothing of it is left.
    fn kill(
        &self,
        running: std::io::Result<crate::proc::Running>,
        dice: &mut Dice,
        within: Duration,
    ) -> Result<Finished, String> {
        let running = running.map_err(|error| error.to_string())?;
        let moment = Moment::After(dice.time(within));
        let killed = running.kill_at(moment, LONG).map_err(|error| error.to_string())?;
        self.stand.wait_until_gone(GONE)?;
        Ok(killed)
    }

    fn merge(&self, arguments: &[&str]) -> Result<Value, String> {
        let program = self.stand.program(self.stand.binary()).args(["merge", "--json"]).args(arguments);
        let done = program.run(LONG).map_err(|error| error.to_string())?;
        let line = done.lines.last().cloned().unwrap_or_default();
        serde_json::from_str(&line).map_err(|error| format!("merge: {error}: {line} {}", done.errors.trim()))
    }

    fn count(merged: &Value, outcome: &str, wanted: usize) -> Result<(), String> {
        let found = rows_of(merged).iter().filter(|row| row["outcome"] == outcome).count();
        if found == wanted { Ok(()) } else { Err(format!("{found} are {outcome}, not {wanted}: {merged}")) }
    }

    /// The worktrees besides the person's own.
    fn worktrees(&self) -> Result<Vec<PathBuf>, String> {
        let listed = self.git(&["worktree", "list", "--porcelain"])?;
        Ok(listed
            .lines()
            .filter_map(|line| line.strip_prefix("worktree "))
            .skip(1)
            .map(PathBuf::from)
            .collect())
    }

    /// The target is at a whole merge: its history holds, and every step of it has two parents.
    fn whole_target(&self) -> Result<(), String> {
        let Ok(tip) = self.git(&["rev-parse", "--quiet", "--verify", "refs/heads/decurion/merged"]) else {
            return Ok(());
        };
        self.git(&["rev-list", "--objects", tip.trim()])?;
        let log = self.git(&["log", "--first-parent", "--format=%P", "main..decurion/merged"])?;
        match log.lines().find(|parents| parents.split(' ').count() != 2) {
            None => Ok(()),
            Some(odd) => Err(format!("a commit of the target is no merge: {odd}")),
        }
    }

    /// Everything that must hold in the end; gives how many commits were made.
    fn audit(&self, before: &str) -> Result<usize, String> {
        let clean = self.stand.program(self.stand.binary()).args(["worktrees", "clean", "--json"]);
        let clean = clean.run(LONG).map_err(|error| error.to_string())?;
        if !clean.ending.is_success() {
            return Err(format!("worktrees clean: {:?} {}", clean.lines, clean.errors.trim()));
        }
        if self.checkout()? != before {
            return Err(format!("the person's checkout was touched: {}", self.git(&["status", "--short"])?));
        }
        let made = self.commits();
        for commit in &made {
            let holders = self.git(&["branch", "--all", "--contains", commit])?;
            if holders.trim().is_empty() {
                return Err(format!("commit {commit} was made and is on no branch"));
            }
        }
        self.no_leftovers(&clean.lines)?;
        self.stand.check_left()?;
        Ok(made.len())
    }

    /// The commits that agents say they made, from outside the state folder.
    fn commits(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.stand.home.effects()).unwrap_or_default();
        text.lines().map(str::trim).filter(|line| line.len() == 40).map(str::to_owned).collect()
    }

    /// No lock of git's or ours, no half-made checkout, and every worktree is one that holds work.
    fn no_leftovers(&self, listed: &[String]) -> Result<(), String> {
        let locks = files_below(&self.stand.home.work().join(".git"), |name| {
            name.strip_suffix(".lock").is_some() || name == "packed-refs.new"
        });
        let ours = self.stand.home.state().join("worktrees");
        let ours = files_below(&ours, |name| {
            name.strip_suffix(".mark").is_some()
                || name.strip_suffix(".tmp").is_some()
                || name.strip_suffix(".index").is_some()
                || name == "merging.json"
        });
        if let Some(left) = locks.iter().chain(&ours).next() {
            return Err(format!("left behind: {}", left.display()));
        }
        let known: Vec<Value> = listed.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if let Some(odd) = known.iter().find(|row| row["found"] != "work" || row["state"] == "making") {
            return Err(format!("not settled: {odd}"));
        }
        for tree in self.worktrees()? {
            if !known.iter().any(|row| row["path"].as_str() == tree.to_str()) {
                return Err(format!("nobody knows the worktree {}", tree.display()));
            }
        }
        Ok(())
    }
}

fn rows_of(merged: &Value) -> &[Value] {
    merged["rows"].as_array().map_or(&[], Vec::as_slice)
}

fn files_below(folder: &Path, fits: impl Fn(&str) -> bool + Copy) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // What agents have checked out is theirs.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && !entry.path().join(".git").exists() {
                folders.push(entry.path());
            } else if !is_folder && entry.file_name().to_str().is_some_and(fits) {
                found.push(entry.path());
            }
        }
    }
    found
}

/// One message begins all; each changes its own file or the one that others change too, and tells its commit.
fn script(crew: Crew) -> String {
    let call = |prompt: &str| {
        format!(
            "  call Agent {{\"description\": \"{prompt}\", \"prompt\": \"{prompt}\", \"subagent_type\": \
             \"general-purpose\", \"isolation\": \"worktree\"}}\n"
        )
    };
    let prompt = |number: usize| match number {
        number if number < crew.bad => format!("do bad-{number}.txt"),
        number if number < crew.apart => format!("do file-{number}.txt"),
        number => format!("do contested.txt {number}"),
    };
    let calls: String = (0..crew.all()).map(|number| call(&prompt(number))).collect();
    let git = "git add --all && git -c user.name=A -c user.email=a@example.com commit -qm work && git rev-parse HEAD >> $EFFECTS";
    format!(
        "when agent=main turn=1\n{calls}when agent=main\n  say \"over\"\n\
         when turn=1 text=/do (\\S+)( \\d+)?$/\n  call Bash {{\"command\": \"echo '$0' > $1 && {git}\"}}\n\
         when turn=2\n  call Bash {{\"command\": \"echo not committed > rest.tmp; echo $${{PWD##*/}} > last-$${{PWD##*/}}\"}}\n\
         when\n  say \"done\"\n"
    )
}

// ---- B4 ----

fn deleted(options: &Options) -> Report {
    let mut report = Report::default();
    let tries = options.count(2, 20);
    for nth in 0..tries {
        report.add(format_args!("deleted by its agent, try {nth}"), deleted_by_agent(options));
        report.add(format_args!("removed before a resume, try {nth}"), removed_before_resume(options));
    }
    let held = report.runs - report.failures.len() as u64;
    report.figure(format!("{held}/{} told that it is gone, 0 writes elsewhere", tries * 2))
}

fn one(steps: &str) -> String {
    format!(
        "when agent=main turn=1\n  call Agent {{\"description\": \"one\", \"prompt\": \"one\", \"subagent_type\": \
         \"general-purpose\", \"isolation\": \"worktree\"}}\n{steps}"
    )
}

/// Its next command is told so and runs nowhere; the session goes on to its end.
fn deleted_by_agent(options: &Options) -> Result<(), String> {
    let steps = "when agent=main\n  say \"over\"\nwhen turn=1\n  call Bash {\"command\": \"rm -rf \\\"$PWD\\\"\"}\n\
        when turn=2\n  call Bash {\"command\": \"touch stray.txt\"}\n\
        when result=\"working directory is gone\"\n  say \"told\"\nwhen\n  say \"not told\"\n";
    let field = Field::new(options, one(steps))?;
    // In a sandbox an agent can empty its checkout and not remove it.
    field.stand.home.switch_sandbox_off().map_err(|error| error.to_string())?;
    let before = field.checkout()?;
    let run = field.stand.run_as(SESSION, "go").run(LONG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    if !run.lines.iter().any(|line| line.contains("\"told")) {
        return Err("the agent was not told that its directory is gone".to_owned());
    }
    if !files_below(field.stand.home.path(), |name| name == "stray.txt").is_empty() {
        return Err("the command ran somewhere else".to_owned());
    }
    field.audit(&before).map(drop)
}

/// The agent ends; its checkout is removed by hand; going on with it is refused, and the session goes on.
fn removed_before_resume(options: &Options) -> Result<(), String> {
    let steps = "when agent=main turn=2 result=/agentId: (a[0-9a-f]{16})/\n  say \"it is $1\"\n\
        when agent=main text=/resume (a[0-9a-f]{16})/\n  call Agent {\"description\": \"more\", \"prompt\": \"more\", \
        \"resume\": \"$1\"}\nwhen agent=main result=\"working directory is gone\"\n  say \"told\"\n\
        when agent=main\n  say \"not told\"\nwhen turn=1\n  call Bash {\"command\": \"echo x > new.txt\"}\n\
        when\n  say \"done\"\n";
    let field = Field::new(options, one(steps))?;
    let before = field.checkout()?;
    let run = field.stand.run_as(SESSION, "go").run(LONG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    let tree = field.worktrees()?.pop().ok_or("the worktree was not kept")?;
    let agent = tree.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    field.git(&["worktree", "remove", "--force", &tree.to_string_lossy()])?;
    let prompt = format!("resume {agent}");
    let run = field.stand.resume(SESSION, &prompt).run(LONG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    if !run.lines.iter().any(|line| line.contains("\"told")) {
        return Err(format!("it was not told that the directory is gone: {:?}", run.lines.last()));
    }
    if field.checkout()? != before {
        return Err("the person's checkout was touched".to_owned());
    }
    field.stand.check_left()
}

// ---- W2 ----

/// Which disk is full: that of the checkouts, or that of the repository.
#[derive(Clone, Copy, Debug)]
enum Full {
    Checkouts,
    Repository,
}

fn full(options: &Options) -> Report {
    if !has_program("unshare") {
        return Report::broken("unshare is not installed");
    }
    let mut report = Report::default();
    for which in [Full::Checkouts, Full::Repository] {
        report.add(format_args!("{which:?}"), full_disk(options, which));
    }
    let (runs, failed) = (report.runs, report.failures.len() as u64);
    report.figure(format!("{}/{runs} refused with the reason, nothing half-made left", runs - failed))
}

/// The agent is not begun, its parent is told why and goes on, and nothing of the checkout is there afterwards.
fn full_disk(options: &Options, which: Full) -> Result<(), String> {
    let steps = "when agent=main turn=2 result=/there may be no space left on the disk of/\n  say \"told\"\n\
        when agent=main\n  say \"not told\"\nwhen\n  say \"begun\"\n";
    let field = Field::new(options, one(steps))?;
    let work = field.stand.home.work();
    // More than there is room for, and more than git packs into a few bytes.
    let noise: Vec<u8> = (0_u32..12_500).flat_map(|number| Sha256::digest(number.to_le_bytes())).collect();
    fs::write(work.join("large.bin"), &noise).map_err(|error| error.to_string())?;
    field.git(&["add", "--all"])?;
    field.git(&["commit", "--quiet", "--message", "large"])?;
    let place = field.stand.home.path().join("place");
    fs::create_dir(&place).map_err(|error| error.to_string())?;
    let settings = match which {
        Full::Checkouts => format!("{{\"worktree\": {{\"location\": \"{}\"}}}}", place.display()),
        Full::Repository => "{}".to_owned(),
    };
    // A folder of its own file system, into which the repository is copied where that is the one that is full.
    let script = match which {
        Full::Checkouts => "mount -t tmpfs -o size=256k,mode=700 none \"$PLACE\" && cd \"$WORK\"",
        Full::Repository => {
            "mount -t tmpfs -o size=2m,mode=700 none \"$PLACE\" && cp -r \"$WORK/.\" \"$PLACE\" && \
            cd \"$PLACE\" && { head -c 2m /dev/zero > .git/ballast; true; } 2>/dev/null"
        }
    };
    let script = format!(
        "{script} && \"$@\"; code=$?; echo \"LEFT $(git worktree list --porcelain | grep -c '^worktree ') \
         $(git branch --list 'decurion/*' | wc -l) $(find \"$PLACE\" -name 'a????????????????' | wc -l) \
         $(find . -name '*.lock' | wc -l) $(find \"$DECURION_HOME/worktrees\" -name '*.json' | wc -l)\"; exit $code"
    );
    let program = field
        .stand
        .program("unshare")
        .env("PLACE", &place)
        .env("WORK", &work)
        .args(["-Urm", "sh", "-c", &script, "sh"])
        .arg(field.stand.binary())
        .args(super::stand::RUN)
        .args(["--settings", &settings, "--session-id", SESSION, "go"]);
    let run = program.run(LONG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    if !run.lines.iter().any(|line| line.contains("\"told")) {
        return Err(format!(
            "the reason was not told: {:?}",
            run.lines.iter().find(|line| line.contains("tool_result"))
        ));
    }
    let left = run.lines.iter().find_map(|line| line.strip_prefix("LEFT ")).unwrap_or_default();
    if left.split_whitespace().collect::<Vec<_>>() != ["1", "0", "0", "0", "0"] {
        return Err(format!("worktrees, branches, folders, locks and leases left: {left}"));
    }
    field.stand.check_left()
}

//! Where a text is run. Takes a text; gives what bash traced and how the programs were called.
//!
//! The only programs to be found are stubs that note their words. A text that could reach anything else, or write
//! outside of its folder, is not run: see [`refused`]. As root the shell runs as nobody, who owns only that folder.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use camino::Utf8Path;
use tempfile::TempDir;

const BASH: &str = "/bin/bash";
/// A text that runs longer is ended; what it did until then counts.
const LONGEST: Duration = Duration::from_secs(10);
const NOBODY: u32 = 65534;
/// Stands before each line of the trace. Bash repeats the first character for each level.
pub const MARK: char = '\u{1}';

/// Programs that texts call. All but the first few stand for well-known ones.
const STUBS: &str = "p q r s t awk base64 basename bash cargo cat chmod chown cp curl cut date dd df diff dirname docker \
    dash du env fgrep egrep expr file find git go grep gzip head id jq kill less ln ls make md5sum mkdir mktemp mv nc nice node \
    nohup npm npx perl pip pip3 printenv ps python python3 readlink realpath rev rg rm rmdir ruby rustc sed seq setsid \
    sh sleep sort ssh stat stdbuf strings sudo tac tail tar tee timeout touch tput tr tree uname uniq unzip uptime \
    watch wc wget which who whoami xargs xxd yes yarn zip evil nmap top jobs-of vi vim su chroot";

/// A folder with stubs, in which one text runs at a time.
pub struct Stand {
    folder: TempDir,
}

/// What a text did.
#[derive(Debug, Default)]
pub struct Done {
    /// The trace of bash, with its marks.
    pub trace: String,
    /// The words of each stub that ran.
    pub stubs: Vec<Vec<String>>,
    /// Files that are there and were not before, absolute.
    pub files: Vec<String>,
    pub errors: String,
}

impl Stand {
    pub fn new() -> Self {
        let stand = Self { folder: tempfile::tempdir().unwrap() };
        let bin = stand.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(stand.folder.path().join("prelude"), stand.prelude()).unwrap();
        let noting = "#!/bin/sh\nset +x\nprintf '%s\\0' \"$#\" \"${0##*/}\" \"$@\" >>\"${0%/bin/*}/calls\"\necho out\n";
        // A nested bash is bash too, traced like the first.
        let nested = format!(
            "#!/bin/sh\nset +x\nprintf '%s\\0' \"$#\" \"${{0##*/}}\" \"$@\" >>\"${{0%/bin/*}}/calls\"\n\
             export PATH=\"${{0%/*}}\" BASH_ENV=\"${{0%/bin/*}}/prelude\"\nexec {BASH} \"$@\"\n"
        );
        for name in STUBS.split_whitespace() {
            let text = if name == "bash" { nested.as_str() } else { noting };
            let file = bin.join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(bin.join("no"), noting.replace("echo out", "exit 1")).unwrap();
        fs::set_permissions(bin.join("no"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(stand.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        stand
    }

    /// What each bash does first: limits, no way to a signal, and the trace.
    fn prelude(&self) -> String {
        let folder = self.folder.path().display();
        format!(
            "PATH={folder}/bin; enable -n kill; ulimit -t 5 -f 64 -u 400 2>/dev/null; unset BASH_ENV; FUNCNEST=10\n\
             exec 19>>{folder}/trace 20>&2; PS4=$'\\x01> '; BASH_XTRACEFD=19; set -x\n"
        )
    }

    /// Some folders above where texts run, so that `..` stays inside.
    pub fn home(&self) -> PathBuf {
        self.folder.path().join("1/2/3/home")
    }

    pub fn cwd(&self) -> PathBuf {
        self.home().join("work")
    }

    /// Runs a text in a folder with a few files.
    pub fn run(&self, text: &str) -> Done {
        let root = self.folder.path();
        let _ = fs::remove_dir_all(root.join("1"));
        fs::create_dir_all(self.cwd().join("src")).unwrap();
        for file in ["a.txt", "f", "-n", "src/main.rs"] {
            fs::write(self.cwd().join(file), "# one\n").unwrap();
        }
        for file in ["trace", "calls"] {
            fs::write(root.join(file), "").unwrap();
            fs::set_permissions(root.join(file), fs::Permissions::from_mode(0o666)).unwrap();
        }
        let before = files(&root.join("1"));
        let errors = self.bash(text, &before);
        let calls = fs::read(root.join("calls")).unwrap();
        let made = files(&root.join("1")).into_iter().filter(|file| !before.contains(file));
        Done {
            trace: String::from_utf8_lossy(&fs::read(root.join("trace")).unwrap()).into_owned(),
            stubs: calls_of(&calls),
            files: made.map(|file| file.display().to_string()).collect(),
            errors,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "bash is what our grammar is compared with")]
    fn bash(&self, text: &str, owned: &[PathBuf]) -> String {
        let root = self.folder.path();
        let mut command = Command::new(BASH);
        command.args(["--noprofile", "--norc", "-c", "--", text, "bash"]).env_clear().current_dir(self.cwd());
        command.env("HOME", self.home()).env("BASH_ENV", root.join("prelude")).env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        if rustix::process::geteuid().is_root() {
            for path in owned.iter().chain([&root.join("1")]) {
                std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        finished(command.spawn().unwrap())
    }
}

/// Waits until the process and all that it left running have ended, or the time is over; gives its errors.
fn finished(mut child: Child) -> String {
    let group = rustix::process::Pid::from_child(&child);
    let stderr = child.stderr.take().unwrap();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut errors = Vec::new();
        // All hold this pipe, through a descriptor that texts do not know.
        let _ = stderr.take(1 << 20).read_to_end(&mut errors);
        let _ = sender.send(errors);
    });
    let errors = ended.recv_timeout(LONGEST).unwrap_or_default();
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let _ = child.wait();
    String::from_utf8_lossy(&errors).into_owned()
}

/// Every file and folder below this one.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries.filter_map(Result::ok) {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files(&entry.path()));
        }
    }
    found
}

/// A call is noted as the number of its arguments, its name and those, each with a zero byte behind it.
fn calls_of(bytes: &[u8]) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(bytes);
    let mut words = text.split('\0');
    let mut calls = Vec::new();
    while let Some(count) = words.next().and_then(|count| count.parse::<usize>().ok()) {
        calls.push(words.by_ref().take(count + 1).map(str::to_owned).collect());
    }
    calls
}

/// A text without absolute paths but those of streams.
pub fn tamed(text: &str) -> String {
    const STREAMS: [&str; 6] =
        ["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"];
    let mut tame = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let stream = STREAMS.iter().find(|stream| {
            let after = rest.strip_prefix(**stream).and_then(|rest| rest.chars().next());
            rest.starts_with(**stream) && !after.is_some_and(|c| c.is_alphanumeric() || c == '/')
        });
        let follows = tame.chars().last().is_some_and(|c| c.is_ascii_alphanumeric() || "._*~".contains(c));
        if let Some(stream) = stream.filter(|_| !follows) {
            tame.push_str(stream);
            rest = &rest[stream.len()..];
            continue;
        }
        if c == '/' && !follows {
            tame.push('r');
        }
        tame.push(c);
        rest = &rest[c.len_utf8()..];
    }
    tame
}

/// Whether a text is not run: it could leave its folder, or reach what is no stub.
pub fn refused(text: &str) -> bool {
    // Ways to a slash, to other programs, to signals, and to endless work.
    const NEVER: &str =
        "57 2f 2F PATH BASH SHELL DIRSTACK $_ ${_ enable kill ulimit suspend dev/tcp dev/udp :|: monitor";
    let after = |mark: char| text.match_indices(mark).filter_map(|(at, _)| text[at + 1..].chars().next());
    let user = after('~').any(|c| c.is_alphanumeric() || "\\'\"$`_".contains(c));
    // `command -p` looks where the real programs are.
    let standard = text.contains("command") && after('-').any(|c| !"vV -ncle019".contains(c));
    let parts_of_paths = text.contains("${") && (text.contains("PWD") || text.contains("HOME"));
    // More than this would leave the folders above.
    let climbs = text.matches("..").count() > 2 || (text.contains("..") && text.contains("while"));
    // A login shell runs what the machine's own settings say.
    let login = text.contains("bash")
        && text.split('-').skip(1).any(|option| {
            option
                .split(|c: char| !c.is_ascii_alphabetic())
                .next()
                .is_some_and(|letters| letters.contains('l'))
        });
    let never = NEVER.split(' ').any(|never| text.contains(never)) || text.contains("set -m");
    user || standard
        || login
        || parts_of_paths
        || climbs
        || never
        || text.len() > 3_000
        || text.contains('\0')
}

/// The path as our analysis has it.
pub fn utf8(path: &Path) -> &Utf8Path {
    Utf8Path::from_path(path).unwrap()
}

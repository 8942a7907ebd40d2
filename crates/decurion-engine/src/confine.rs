//! What a run in a checkout of its own may change: that checkout. Takes what a call would touch, as named and as
//! what it leads to, gives the reason why it is refused, if it is. Pure.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::{ShellCommand, WideTouch};
use decurion_protocol::{Access, Intent, RunSpec, Touch};

/// Files that anyone may write to: nothing is kept in them.
const NOWHERE: &[&str] = &["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"];

/// Programs that change what they are given, and those that change only the last of it.
const CHANGING: &[&str] = &[
    "chgrp", "chmod", "chown", "dd", "ln", "mkdir", "mkfifo", "mv", "rm", "rmdir", "shred", "tee", "touch",
    "truncate", "unlink",
];
const COPYING: &[&str] = &["cp", "install", "rsync", "scp"];
/// Programs that change what they are given if a flag or a script says so.
const EDITING: &[&str] = &[
    "awk", "curl", "ed", "ex", "find", "gawk", "git", "patch", "perl", "sed", "sort", "tar", "unzip", "vi",
    "vim", "wget", "zip",
];
/// Where the system's own programs and libraries are, which other programs are given to read.
const SYSTEM: &[&str] = &["/bin", "/lib", "/lib64", "/sbin", "/usr"];

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Without links, as far as it exists.
    pub path: Utf8PathBuf,
    /// Whether it is there, or could be made in a folder that is.
    pub there: bool,
}

/// The bounds of a run that works in a checkout of its own; those below it have the same, or narrower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    tree: Utf8PathBuf,
    /// The checkout that it was made from, and those that one was made from.
    origins: Vec<Utf8PathBuf>,
    /// The folder of its memory, which outlasts it and is its own to write.
    memory: Option<Utf8PathBuf>,
}

impl Confinement {
    /// The bounds of a run; none where it works in the shared folder.
    pub fn of(spec: &RunSpec) -> Option<Self> {
        let worktree = spec.worktree.as_ref()?;
        let memory = spec.definition.equipment.memory.as_ref().and_then(|_| memory(spec));
        let origins = worktree.origins().cloned().collect();
        Some(Self { memory, ..Self::new(worktree.path.clone(), origins) })
    }

    /// The bounds of this checkout, which was made from those.
    pub fn new(tree: Utf8PathBuf, origins: Vec<Utf8PathBuf>) -> Self {
        Self { tree, origins, memory: None }
    }

    pub fn tree(&self) -> &Utf8PathBuf {
        &self.tree
    }

    /// This checkout and those that it was made from.
    pub fn checkouts(&self) -> impl Iterator<Item = &Utf8Path> {
        [&self.tree].into_iter().chain(&self.origins).map(Utf8PathBuf::as_path)
    }

    /// Why a call is refused; `place` tells where a path leads.
    pub fn refuses(&self, intent: &Intent, place: impl Fn(&Utf8Path) -> Place) -> Option<String> {
        let commands = intent.shell.iter().flat_map(|shell| &shell.commands);
        let touches = intent.touches.iter().find_map(|touch| self.refuses_touch(touch));
        touches.or_else(|| commands.into_iter().find_map(|command| self.refuses_command(command, &place)))
    }

    /// Why a file may not be written.
    pub fn refuses_write(&self, path: &Utf8Path) -> Option<String> {
        if self.memory.as_ref().is_some_and(|memory| path.starts_with(memory)) {
            return None;
        }
        if path.starts_with(&self.tree) || NOWHERE.contains(&path.as_str()) || path.starts_with("/dev/fd") {
            return None;
        }
        let instead = self.translated(path).map(|own| format!(" Use {own} instead.")).unwrap_or_default();
        Some(format!(
            "{path} is outside of the checkout that this agent works in, and nothing outside of {} may be changed.\
             {instead}",
            self.tree
        ))
    }

    /// What a path of another checkout is called here.
    pub fn translated(&self, path: &Utf8Path) -> Option<Utf8PathBuf> {
        self.inside(path).map(|inside| below(&self.tree, inside))
    }

    /// Where in another checkout a path is.
    fn inside<'a>(&self, path: &'a Utf8Path) -> Option<&'a Utf8Path> {
        self.origins.iter().find_map(|origin| path.strip_prefix(origin).ok())
    }

    fn refuses_touch(&self, touch: &Touch) -> Option<String> {
        if touch.access == Access::Write { self.refuses_write(&touch.path) } else { None }
    }

    fn refuses_command(&self, command: &ShellCommand, place: &dyn Fn(&Utf8Path) -> Place) -> Option<String> {
        let written = command.touches.iter().find_map(|touch| self.refuses_touch(touch));
        let widely = || command.wide.iter().find_map(|wide| self.refuses_wide(wide));
        let mentioned =
            || command.mentions.iter().find_map(|path| self.refuses_mention(command, path, place));
        written.or_else(widely).or_else(mentioned).or_else(|| self.refuses_leaving(command))
    }

    /// Why a program may not be given a path: it may change what it is given, unless it is known only to read
    /// that. Of a program that is not known, words that lead nowhere are no paths.
    fn refuses_mention(
        &self,
        command: &ShellCommand,
        path: &Utf8Path,
        place: &dyn Fn(&Utf8Path) -> Place,
    ) -> Option<String> {
        let words = command.words.get(command.assigned..).unwrap_or_default();
        let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
        let found = place(path);
        let theirs = |path: &Utf8Path| self.inside(path).is_some() && !path.starts_with(&self.tree);
        let of_system = |path: &Utf8Path| {
            SYSTEM.iter().any(|folder| path.starts_with(folder)) && !path.starts_with("/usr/local")
        };
        let checked = match program {
            name if CHANGING.contains(&name) => true,
            name if COPYING.contains(&name) => !is_source(words, path),
            name if EDITING.contains(&name) => found.there,
            _ => found.there && !(of_system(path) && of_system(&found.path)),
        };
        if !checked && !theirs(path) && !theirs(&found.path) {
            return None;
        }
        self.refuses_write(path).or_else(|| self.refuses_write(&found.path))
    }

    fn refuses_wide(&self, wide: &WideTouch) -> Option<String> {
        if wide.access == Access::Read {
            return None;
        }
        let fixed = wide.pattern.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        // A pattern that goes on after the last whole name says nothing about that name.
        let whole = if fixed.len() == wide.pattern.len() {
            fixed
        } else {
            fixed.rsplit_once('/').map_or("/", |(folder, _)| folder)
        };
        // Where nothing is known of the path the text does not name one: that is for the rules to decide.
        if whole.is_empty() || whole == "/" {
            return None;
        }
        self.refuses_write(Utf8Path::new(whole))
    }

    /// Whether a command takes the shell out of the checkout.
    fn refuses_leaving(&self, command: &ShellCommand) -> Option<String> {
        let program = command.words.get(command.assigned)?;
        if !matches!(program.as_str(), "cd" | "pushd") {
            return None;
        }
        let target = command.touches.iter().find(|touch| !touch.path.starts_with(&self.tree))?;
        let instead = self.translated(&target.path).map(|own| format!(" Use {own} instead."));
        Some(format!(
            "{} is outside of the checkout that this agent works in ({}), which the shell does not leave.{}",
            target.path,
            self.tree,
            instead.unwrap_or_default()
        ))
    }
}

/// Whether a path is what a copying program reads: an operand that is not the last, where the last is what it
/// writes to.
fn is_source(words: &[String], path: &Utf8Path) -> bool {
    let targeted = words.iter().any(|word| word.starts_with("--t") || word.starts_with("-t"));
    let sources = words.get(1..words.len().saturating_sub(1)).unwrap_or_default();
    !targeted
        && words.last().is_none_or(|last| last != path.as_str())
        && sources.iter().any(|word| word == path.as_str())
}

/// A path in a checkout; a path joined with nothing would end with a slash.
fn below(top: &Utf8Path, inside: &Utf8Path) -> Utf8PathBuf {
    if inside.as_str().is_empty() { top.to_owned() } else { top.join(inside) }
}

/// The folder of an agent's memory, by the rule that lets it write there.
fn memory(spec: &RunSpec) -> Option<Utf8PathBuf> {
    let folder = |specifier: &str| {
        let folder = Utf8PathBuf::from(specifier.strip_prefix('/')?.strip_suffix("/**")?);
        let kind = folder.parent()?.file_name()?;
        (folder.is_absolute() && kind.starts_with("agent-memory")).then_some(folder)
    };
    spec.own_rules.allow.iter().find_map(|rule| rule.specifier.as_deref().and_then(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_tools::{Surroundings, Tool};
    use serde_json::json;

    fn bounds() -> Confinement {
        Confinement {
            tree: "/state/worktrees/p/a1".into(),
            origins: vec!["/state/worktrees/p/a0".into(), "/srv/p".into()],
            memory: Some("/home/ann/m".into()),
        }
    }

    fn bash(command: &str) -> Intent {
        let around = Surroundings {
            cwd: "/state/worktrees/p/a1/sub".into(),
            home: Some("/home/ann".into()),
            directories: vec!["/state/worktrees/p/a1".into()],
        };
        let tools = decurion_tools::builtin_with(true);
        let tool = tools.iter().find(|tool| tool.spec().name == "Bash").unwrap();
        let mut intent = Tool::intent(&**tool, &json!({"command": command}), &around).unwrap();
        crate::permission::add_real_paths(
            &mut intent,
            &crate::symlinks::Symlinks::over(std::sync::Arc::new(Picture)),
        );
        intent
    }

    /// A link leads out of the checkout.
    struct Picture;

    impl crate::symlinks::Ground for Picture {
        fn link(&self, path: &std::path::Path) -> Option<std::path::PathBuf> {
            (path == std::path::Path::new("/state/worktrees/p/a1/sub/link")).then(|| "/outside".into())
        }

        fn entries(&self, _folder: &std::path::Path, _most: usize) -> Vec<crate::symlinks::Entry> {
            Vec::new()
        }

        fn is_shared(&self, _folder: &std::path::Path) -> bool {
            false
        }
    }

    /// The same, and few folders are there.
    fn place(path: &Utf8Path) -> Place {
        let folders = ["/srv", "/tmp", "/etc", "/home", "/usr", "/outside", "/state"];
        let there = folders.iter().any(|folder| path.starts_with(folder));
        let path = match path.strip_prefix("/state/worktrees/p/a1/sub/link") {
            Ok(inside) => Utf8Path::new("/outside").join(inside),
            Err(_) => path.to_owned(),
        };
        Place { path, there }
    }

    #[test]
    fn only_its_own_checkout_may_be_changed() {
        #[rustfmt::skip]
        let rows = [
            ("echo x > here.txt", true), ("echo x > ../top.txt", true), ("mkdir -p a/b", true),
            ("cargo build 2>/dev/null", true), ("cat /srv/p/src/main.rs", true), ("cd .. && ls", true),
            ("git commit -am work", true), ("rm -rf *", true), ("ls /etc", true),
            ("echo x > /srv/p/here.txt", false), ("echo x > /tmp/out", false), ("rm -rf ../../*", false),
            ("rm -rf /srv/p/*.rs", false), ("cd /srv/p && make", false), ("cd ../../../.. && ls", false),
            ("cp a /srv/p/b", false), ("touch ~/x", false), ("sometool /srv/p/src", false),
            ("bash -c 'echo x > /srv/p/y'", false), ("cd /srv/p; echo x > y", false), ("pushd /srv/p", false),
            ("rm -rf /home/ann/x", false), ("mv ../a /var/x", false), ("cp /etc/hosts .", true),
            ("chmod +x ./run.sh", true), ("python3 /usr/lib/tool.py", true), ("tee /opt/x < a", false),
            ("echo x >> $OUT", true), ("rm -rf /*", false), ("touch /srv/*.x", false),
            ("/state/worktrees/p/a1/run.sh", true), ("echo $(touch /srv/p/z)", false),
            ("cp -t /outside a", false), ("cp --target-directory=/outside a", false), ("cp /outside/a .", true),
            ("install -t/outside a", false), ("cp a /outside/a", false), ("cp -t . /tmp/a", false),
            ("sed -i s/a/b/ /outside/h", false), ("sed -i /foo/d here", true), ("sed -i s/a/b/ /usr/x", false),
            ("find /outside -name g -delete", false), ("find . -name g -delete", true),
            ("rm link/f", false), ("tee link/new", false), ("mkdir -p link/a/b", false), ("cp a link", false),
            ("sed -i s/a/b/ link/f", false), ("sometool link/x", false), ("sometool here", true),
            ("sometool /outside/x", false), ("sometool --log=/outside/x", false), ("sometool -o/tmp/x", false),
            ("curl https://example.com/a", true), ("awk '/foo/ {print}' a", true), ("npm i @scope/pkg", true),
            ("gcc -I/usr/include a.c", true), ("cargo build --target-dir /tmp/t", false),
            ("sometool /state/worktrees/p/a0/x", false),
        ];
        for (command, allowed) in rows {
            let refusal = bounds().refuses(&bash(command), place);
            assert_eq!(refusal.is_none(), allowed, "{command}: {refusal:?}");
        }
    }

    #[test]
    fn a_refusal_tells_the_path_to_use() {
        let intent = Intent::titled("").touching("/srv/p/src/a.rs", Access::Write);
        let reason = bounds().refuses(&intent, place).unwrap();
        assert!(reason.ends_with("Use /state/worktrees/p/a1/src/a.rs instead."), "{reason}");
        let read = Intent::titled("").touching("/srv/p/src/a.rs", Access::Read);
        assert_eq!(bounds().refuses(&read, place), None);
        let memory = Intent::titled("").touching("/home/ann/m/MEMORY.md", Access::Write);
        assert_eq!(bounds().refuses(&memory, place), None, "its memory is its own");
        let near = Intent::titled("").touching("/state/worktrees/p/a10/x", Access::Write);
        assert!(bounds().refuses(&near, place).is_some(), "a name that begins the same is another");
    }
}

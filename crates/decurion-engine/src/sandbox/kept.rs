//! The sandboxes of the latest commands. Takes what the next command's depends on, gives one that was made of the same, if
//! the disk is as it was then. To look again at what was looked at costs a fifth of making it.

use std::sync::{Arc, Mutex, PoisonError};

use camino::Utf8PathBuf;
use decurion_exec::Sandbox;
use decurion_protocol::{Intent, Mode, RuleSet};

use crate::confine::Confinement;
use crate::footprint::Footprint;
use crate::permission::{Checkouts, Policy};

/// As many are kept: those of an agent that reads and writes, and of another one.
const MOST_KEPT: usize = 4;

#[derive(Debug, Default)]
pub(super) struct KeptSandboxes(Mutex<Vec<(Basis, Arc<Footprint>, Sandbox)>>);

/// What a sandbox depends on besides the disk and the settings.
#[derive(Debug)]
pub(super) struct Basis {
    rules: Arc<RuleSet>,
    mode: Mode,
    /// The directories of the run, and the home folder.
    directories: Vec<Utf8PathBuf>,
    home: Option<Utf8PathBuf>,
    checkout: Option<Confinement>,
    checkouts: Checkouts,
    /// What kind of a command it is, and which private folders there are.
    flags: (bool, bool, bool),
    /// What it would touch.
    touched: Vec<Utf8PathBuf>,
}

impl Basis {
    pub fn new(policy: &Policy, flags: (bool, bool, bool), seen: &Intent) -> Self {
        let around = &policy.around;
        Self {
            rules: Arc::clone(&policy.rules),
            mode: policy.mode,
            directories: around.places().map(ToOwned::to_owned).collect(),
            home: around.home.clone(),
            checkout: around.checkout.clone(),
            checkouts: around.checkouts.anew(),
            flags,
            touched: seen.touches.iter().map(|touch| touch.path.clone()).collect(),
        }
    }
}

impl PartialEq for Basis {
    fn eq(&self, other: &Self) -> bool {
        let Self { rules, mode, directories, home, checkout, checkouts, flags, touched } = self;
        (mode, flags, home) == (&other.mode, &other.flags, &other.home)
            && (directories, touched) == (&other.directories, &other.touched)
            && (Arc::ptr_eq(rules, &other.rules) || rules == &other.rules)
            && *checkout == other.checkout
            && checkouts.is_like(&other.checkouts)
    }
}

impl KeptSandboxes {
    /// The one that was made of this, if it would be made the same now. Looks at the disk.
    pub fn find(&self, basis: &Basis) -> Option<Sandbox> {
        let footprint = {
            let all = self.all();
            let (_, footprint, _) = all.iter().find(|(kept, ..)| kept == basis)?;
            Arc::clone(footprint)
        };
        let holds = footprint.holds();
        let mut all = self.all();
        let at = all.iter().position(|(_, kept, _)| Arc::ptr_eq(kept, &footprint))?;
        let kept = all.remove(at);
        if !holds {
            return None;
        }
        let sandbox = kept.2.clone();
        all.push(kept);
        Some(sandbox)
    }

    pub fn keep(&self, basis: Basis, footprint: Footprint, sandbox: &Sandbox) {
        let mut all = self.all();
        all.retain(|(kept, ..)| *kept != basis);
        if all.len() >= MOST_KEPT {
            all.remove(0);
        }
        all.push((basis, Arc::new(footprint), sandbox.clone()));
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<(Basis, Arc<Footprint>, Sandbox)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use camino::Utf8Path;
    use decurion_exec::Form;
    use decurion_protocol::permission::RuleSource;
    use decurion_protocol::{Rule, RuleSet};

    use super::super::{Holding, SandboxMaker, SandboxSettings, Wanted};
    use super::*;
    use crate::footprint::tests::{LATER, touch};
    use crate::permission::Around;

    /// Gives the folders and files that have another time of change then.
    type Change = fn(&Utf8Path) -> Vec<Utf8PathBuf>;

    fn paths(root: &Utf8Path, names: &[&str]) -> Vec<Utf8PathBuf> {
        names.iter().map(|name| root.join(name)).collect()
    }

    fn write(root: &Utf8Path, name: &str, text: &str) -> Vec<Utf8PathBuf> {
        let path = root.join(name);
        let above = path.parent().unwrap();
        let is_new = above.ancestors().find(|above| above.exists()).unwrap().to_owned();
        fs::create_dir_all(above).unwrap();
        fs::write(&path, text).unwrap();
        vec![path, is_new]
    }

    fn link(root: &Utf8Path, target: &str, name: &str) -> Vec<Utf8PathBuf> {
        symlink(target, root.join(name)).unwrap();
        vec![root.join(name).parent().unwrap().to_owned()]
    }

    /// What changes on the disk, and whether the sandbox is another one then.
    const CHANGES: [(&str, Change, bool); 27] = [
        ("a file", |root| write(root, "work/src/new.rs", ""), false),
        ("a file at the top", |root| write(root, "work/new.txt", ""), false),
        ("content", |root| write(root, "work/src/a.rs", "new"), false),
        ("a hook", |root| write(root, "work/.git/hooks/pre-commit", "x"), false),
        (
            "hooks elsewhere",
            |root| write(root, "work/.git/config", "[core]\n\thooksPath = src/hooks\n"),
            true,
        ),
        ("hooks of the user", |root| write(root, "home/.gitconfig", "[core]\n\thooksPath = src/h\n"), true),
        ("an include", |root| write(root, "work/.git/config", "[include]\n\tpath = ../src/more\n"), true),
        ("what is included", |root| write(root, "work/inc", "[core]\n\thooksPath = src/deep\n"), true),
        ("a worktree", |root| write(root, "work/.git/worktrees/w/gitdir", "/elsewhere/.git\n"), true),
        ("a submodule", |root| write(root, "work/.git/modules/m/HEAD", "ref: x\n"), true),
        ("settings", |root| write(root, "work/.claude/settings.json", "{}"), false),
        ("a link among settings", |root| link(root, "../src", "work/.vscode/out"), true),
        ("a link to a folder with a denied file", |root| link(root, "../secrets", "work/open"), true),
        ("a denied name", |root| write(root, "work/src/.env", ""), true),
        ("a denied name behind a link that led nowhere", |root| write(root, "later/.env", ""), true),
        ("a denied name behind a link", |root| write(root, "other/.env", ""), true),
        (
            "a folder in place of a file behind a link",
            |root| {
                fs::remove_file(root.join("second/file")).unwrap();
                write(root, "second/file/.env", "")
            },
            true,
        ),
        (
            "a link on the way of another",
            |root| {
                fs::remove_file(root.join("middle")).unwrap();
                link(root, "second", "middle")
            },
            true,
        ),
        ("a secret", |root| write(root, "home/.ssh/id", ""), true),
        ("a denied folder", |root| write(root, "denied/file", ""), true),
        (
            "another denied folder",
            |root| {
                fs::rename(root.join("keys"), root.join("moved")).unwrap();
                link(root, "moved", "keys")
            },
            true,
        ),
        (
            "no repository",
            |root| {
                fs::rename(root.join("work/.git"), root.join("work/was")).unwrap();
                paths(root, &["work"])
            },
            true,
        ),
        (
            "a repository elsewhere",
            |root| {
                fs::rename(root.join("work/.git"), root.join("git")).unwrap();
                fs::write(root.join("git/config"), format!("[core]\n\tworktree = {root}/work\n")).unwrap();
                fs::write(root.join("work/.git"), format!("gitdir: {root}/git\n")).unwrap();
                paths(root, &["work", "git/config"])
            },
            true,
        ),
        (
            "no placeholder",
            |root| {
                let _ = fs::remove_dir(root.join("work/.idea"));
                paths(root, &["work"])
            },
            false,
        ),
        (
            "a folder in place of a placeholder",
            |root| {
                let _ = fs::remove_dir(root.join("work/.idea"));
                fs::create_dir(root.join("work/.idea")).unwrap();
                paths(root, &["work"])
            },
            false,
        ),
        ("a writable folder", |root| write(root, "cache/x", ""), true),
        (
            "a writable folder as a link",
            |root| {
                fs::remove_dir(root.join("linked")).unwrap();
                link(root, "other", "linked")
            },
            true,
        ),
    ];

    /// A project with rules, as a session has it.
    fn project(root: &Utf8Path) -> (SandboxMaker, Policy) {
        for folder in ["work/src", "work/.git/objects", "work/.git/refs", "work/.git/hooks", "work/.vscode"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for folder in ["home", "other", "keys", "linked", "secrets", "tmp"] {
            fs::create_dir(root.join(folder)).unwrap();
        }
        fs::write(root.join("work/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(root.join("work/.git/config"), "[include]\n\tpath = ../inc\n").unwrap();
        fs::write(root.join("work/src/a.rs"), "").unwrap();
        fs::write(root.join("secrets/.env"), "").unwrap();
        symlink("../other", root.join("work/behind")).unwrap();
        symlink("../middle/in", root.join("work/through")).unwrap();
        symlink("../later", root.join("work/later")).unwrap();
        symlink("first", root.join("middle")).unwrap();
        fs::create_dir_all(root.join("first/in")).unwrap();
        fs::create_dir_all(root.join("second/in")).unwrap();
        fs::write(root.join("second/in/.env"), "").unwrap();
        fs::write(root.join("second/file"), "").unwrap();
        symlink("../second/file", root.join("work/to-file")).unwrap();
        let maker = SandboxMaker::new(SandboxSettings {
            form: Form::Namespaces,
            asks_less: false,
            allows_outside: true,
            excluded: Vec::new(),
            writable: paths(root, &["cache", "linked"]),
            hidden: paths(root, &["home/.ssh", "state"]),
            personal: paths(root, &["home"]),
            visible: Vec::new(),
            temporary: root.join("tmp"),
            network_open: false,
            unix_sockets: false,
            own: None,
            report: |_| {},
        });
        let work = root.join("work");
        let around = Around {
            cwd: work.clone(),
            root: work.clone(),
            home: Some(root.join("home")),
            checkouts: Checkouts::of(&work, std::iter::empty()),
            ..Around::default()
        };
        let rules =
            ["Read(.env)".to_owned(), format!("Read(/{root}/keys/**)"), format!("Read(/{root}/denied)")];
        let deny = rules.iter().map(|rule| Rule::parse(rule, RuleSource::UserSettings).unwrap()).collect();
        let rules = RuleSet { deny, ..RuleSet::default() };
        (maker, Policy::new(Mode::Default, Arc::new(rules), around))
    }

    #[test]
    fn sandbox_is_used_again_only_while_it_would_be_made_the_same() {
        for reads in [false, true] {
            for (name, change, differs) in CHANGES {
                let folder = tempfile::tempdir().unwrap();
                let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
                let (maker, policy) = project(&root);
                let seen = Intent::titled("");
                let wanted = || Wanted { seen: &seen, opens: &[], shows: &[] };
                let made = || maker.confine(&policy, reads, wanted(), Holding::Done).unwrap().0;
                let basis = || Basis::new(&policy, (reads, reads, maker.reader_tmp.get().is_some()), &seen);
                // The first makes placeholders and private folders.
                made();
                LATER.set(Duration::from_secs(3600));
                // What the ground remembers now is not looked at again for what is kept.
                maker.confine_anew(&policy, reads, reads, wanted(), Holding::Done).unwrap();
                // Other programs change the folder for temporary files, in which this one is.
                let kept = (0..10_000).find_map(|_| {
                    let before = made();
                    maker.kept.find(&basis()).map(|kept| (kept, before))
                });
                let (kept, before) = kept.expect("a sandbox that is kept");
                assert_eq!(kept, before, "kept before {name}");
                change(&root).iter().filter(|path| path.exists()).for_each(|path| touch(path));
                let used = made();
                let anew = maker.confine_anew(&policy, reads, reads, wanted(), Holding::Done).unwrap().0;
                assert_eq!(used, anew, "{name}");
                assert_eq!(
                    used != before,
                    differs && !(reads && is_about_writing(name)),
                    "{name}, reads: {reads}"
                );
                for held in [".idea", ".decurion"] {
                    assert!(root.join("work").join(held).exists() || reads, "{name}");
                }
                LATER.set(Duration::ZERO);
            }
        }
    }

    /// Changes that make no difference to a command that writes nothing.
    fn is_about_writing(name: &str) -> bool {
        ["hooks", "include", "worktree", "submodule", "settings", "writable"]
            .iter()
            .any(|word| name.contains(word))
    }

    #[test]
    fn other_rules_directories_and_kinds_have_other_sandboxes() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let (_maker, policy) = project(&root);
        let seen = Intent::titled("");
        let flags = (true, false, true);
        let basis = Basis::new(&policy, flags, &seen);
        assert_eq!(basis, Basis::new(&policy.clone(), flags, &seen));
        let rules = Arc::new(RuleSet::clone(&policy.rules));
        assert_eq!(basis, Basis::new(&Policy { rules, ..policy.clone() }, flags, &seen));
        let mut touching = Intent::titled("");
        touching.touches.push(decurion_protocol::Touch {
            path: root.join("x"),
            access: decurion_protocol::Access::Write,
        });
        let around = policy.around.clone();
        for (name, other) in [
            ("flags", Basis::new(&policy, (false, false, true), &seen)),
            ("touched", Basis::new(&policy, flags, &touching)),
            ("rules", Basis::new(&Policy { rules: Arc::default(), ..policy.clone() }, flags, &seen)),
            ("mode", Basis::new(&Policy { mode: Mode::Plan, ..policy.clone() }, flags, &seen)),
            (
                "cwd",
                Basis::new(
                    &Policy { around: Around { cwd: root.clone(), ..around.clone() }, ..policy.clone() },
                    flags,
                    &seen,
                ),
            ),
            (
                "home",
                Basis::new(
                    &Policy { around: Around { home: None, ..around.clone() }, ..policy.clone() },
                    flags,
                    &seen,
                ),
            ),
            (
                "checkout",
                Basis::new(
                    &Policy {
                        around: Around {
                            checkout: Some(Confinement::new(root.clone(), Vec::new())),
                            ..around.clone()
                        },
                        ..policy.clone()
                    },
                    flags,
                    &seen,
                ),
            ),
            (
                "checkouts",
                Basis::new(
                    &Policy {
                        around: Around { checkouts: vec![root.clone()].into(), ..around },
                        ..policy.clone()
                    },
                    flags,
                    &seen,
                ),
            ),
        ] {
            assert_ne!(basis, other, "{name}");
        }
    }
}

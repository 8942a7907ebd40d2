//! Rules about paths. Takes a rule's pattern and where it counts from; says whether it covers a path or may
//! cover one of a set, and which paths are never written to without a question.

use std::borrow::Cow;
use std::ops::Range;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::WideTouch;

use super::Around;
use super::glob::{component_matches, path_matches, paths_meet};

/// What a rule is used for: one that forbids is read as widely as it can be, one that allows as narrowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Narrow,
    Wide,
}

/// The absolute patterns a rule's specifier stands for, under all names that count. For one that forbids those are the
/// names its fixed part has on the way to where that leads; for one that allows it is the name that its owner gave it.
pub(crate) fn patterns(specifier: &str, around: &Around, reading: Reading) -> Vec<String> {
    let written =
        spellings(specifier, reading).into_iter().flat_map(|specifier| written(&specifier, around, reading));
    if reading == Reading::Narrow {
        return written
            .flat_map(|pattern| renamed(&pattern, |fixed| vec![around.own_name(fixed).into_owned()]))
            .collect();
    }
    let mut found: Vec<String> = Vec::new();
    let mut add = |pattern: String| {
        for name in renamed(&pattern, |fixed| around.other_names(fixed)).into_iter().chain([pattern]) {
            if !found.contains(&name) {
                found.push(name);
            }
        }
    };
    written.for_each(&mut add);
    if let Some(name) = bare(specifier) {
        // What is meant by a name in every folder is first of all the one at hand, and that may be a link.
        for folder in [&around.cwd, &around.root] {
            for name in spellings(name, reading) {
                let pattern = format!("{}/{name}", escaped(folder));
                renamed(&pattern, |fixed| around.other_names(fixed)).into_iter().for_each(&mut add);
            }
        }
    }
    let copies: Vec<String> = found.iter().flat_map(|pattern| in_copies(pattern, around)).collect();
    let mut add = |pattern: String| {
        found.extend(renamed(&pattern, |fixed| around.other_names(fixed)));
        found.push(pattern);
    };
    copies.into_iter().for_each(&mut add);
    found
}

/// What a pattern about one checkout of a repository is in the others: what is denied in one is denied in all.
fn in_copies(pattern: &str, around: &Around) -> Vec<String> {
    let own = around.checkout.as_ref().map(super::Confinement::tree);
    let parts = components(pattern);
    // Such a pattern is about all folders already.
    let everywhere = parts.first() == Some(&"**");
    let mut found = Vec::new();
    for checkout in around.checkouts.all() {
        // Whoever denies a folder in which worktrees are made does not mean what they are made from.
        let wide = own != Some(checkout);
        let rests = rests(&parts, &components(checkout.as_str()), wide);
        for rest in rests.iter().filter(|rest| !(everywhere && rest.first().is_none_or(|part| *part == "**")))
        {
            let others = around.checkouts.all().iter().filter(|other| *other != checkout);
            found.extend(others.map(|other| format!("{}/{}", escaped(other), rest.join("/"))));
        }
    }
    found
}

/// What is left of a pattern behind a folder: for each way in which it leads there, its parts below. If it is not read
/// `wide`, it has to name the folder part by part.
fn rests<'p>(pattern: &[&'p str], folder: &[&str], wide: bool) -> Vec<Vec<&'p str>> {
    match (pattern.split_first(), folder.split_first()) {
        (_, None) => vec![pattern.to_vec()],
        // It covers a folder above, and with it all of this one.
        (None, Some(_)) => wide.then(Vec::new).into_iter().collect(),
        (Some((&"**", rest)), Some((_, below))) if wide => {
            let mut found = rests(rest, folder, wide);
            found.extend(rests(pattern, below, wide));
            found
        }
        (Some((first, rest)), Some((name, below))) if *first != "**" && component_matches(first, name) => {
            rests(rest, below, wide)
        }
        (Some(_), Some(_)) => Vec::new(),
    }
}

/// A pattern with other names in place of its fixed part.
fn renamed(pattern: &str, names: impl FnOnce(&Utf8Path) -> Vec<Utf8PathBuf>) -> Vec<String> {
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    let fixed = parts.iter().take_while(|part| plain(part).is_some()).count();
    let mut place = Utf8PathBuf::from("/");
    place.extend(parts[..fixed].iter().filter_map(|part| plain(part)));
    let rest: String = parts[fixed..].iter().map(|part| format!("/{part}")).collect();
    names(&place).iter().map(|name| format!("{}{rest}", escaped(name))).collect()
}

/// The name alone that a specifier is about, if it is: it is meant in every folder.
fn bare(specifier: &str) -> Option<&str> {
    let rooted = specifier.starts_with(['/', '~']) || specifier.starts_with("./");
    (!rooted && !specifier.trim_end_matches('/').contains('/')).then_some(specifier)
}

/// The absolute patterns that a specifier says by its text.
fn written(specifier: &str, around: &Around, reading: Reading) -> Vec<String> {
    let (cwd, root) = (escaped(&around.cwd), escaped(&around.root));
    let wide = reading == Reading::Wide;
    let mut found = Vec::new();
    if let Some(rest) = specifier.strip_prefix("//") {
        found.push(format!("/{rest}"));
    } else if specifier == "~" || specifier.starts_with("~/") {
        let rest = specifier[1..].trim_start_matches('/');
        found.extend(around.home.as_ref().map(|home| format!("{}/{rest}", escaped(home))));
        if wide {
            found.extend(["/home/*/", "/Users/*/", "/root/"].map(|home| format!("{home}{rest}")));
        }
    } else if let Some(rest) = specifier.strip_prefix('/') {
        found.push(format!("{root}/{rest}"));
        if wide {
            // Whoever forbids `/etc/passwd` means that one as well.
            found.push(format!("/{rest}"));
        }
    } else if let Some(name) = bare(specifier) {
        found.push(if wide { format!("/**/{name}") } else { format!("{cwd}/**/{name}") });
    } else {
        let rest = specifier.strip_prefix("./").unwrap_or(specifier);
        found.push(format!("{cwd}/{rest}"));
        if wide {
            found.push(format!("{root}/{rest}"));
        }
    }
    found
}

/// The patterns without braces that a specifier stands for. One that forbids also covers files that have its braces or
/// brackets in their names, as the folders of some web frameworks do (`app/[slug]`).
fn spellings(specifier: &str, reading: Reading) -> Vec<String> {
    let mut found = braces(specifier, reading);
    if reading == Reading::Wide {
        if specifier.contains('{') {
            // `a{b}c` is `abc` to some programs.
            found.extend([specifier.to_owned(), specifier.replace(['{', '}'], "")]);
        }
        let literal: Vec<String> =
            found.iter().filter(|text| text.contains('[')).map(|text| text.replace('[', r"\[")).collect();
        found.extend(literal);
    }
    found
}

/// `a{b,c}d` as `abd` and `acd`, also with groups in groups. Of too many, a rule that allows covers some; one that forbids
/// covers everything in the folder above the first group.
fn braces(pattern: &str, reading: Reading) -> Vec<String> {
    const MOST: usize = 1_000;
    let (mut found, mut left) = (Vec::new(), vec![pattern.to_owned()]);
    while let Some(next) = left.pop() {
        match first_group(&next) {
            None => found.push(next),
            Some((group, choices)) => left.extend(
                choices
                    .iter()
                    .rev()
                    .map(|choice| format!("{}{choice}{}", &next[..group.start], &next[group.end..])),
            ),
        }
        if found.len() + left.len() > MOST {
            if reading == Reading::Narrow {
                return found;
            }
            let fixed = pattern.split('{').next().unwrap_or_default();
            return vec![format!("{}**", &fixed[..fixed.rfind('/').map_or(0, |slash| slash + 1)])];
        }
    }
    found
}

/// The first group of choices in a pattern, and the choices. Braces around a text without a comma are part of the name.
fn first_group(pattern: &str) -> Option<(Range<usize>, Vec<&str>)> {
    let opens = pattern.match_indices('{').map(|(at, _)| at);
    opens.filter(|at| !pattern[..*at].ends_with('\\')).find_map(|open| {
        let (mut depth, mut begin, mut choices, mut escaped) = (0, open + 1, Vec::new(), false);
        for (at, c) in pattern.char_indices().skip_while(|(at, _)| *at < open) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '{' => depth += 1,
                '}' if depth > 1 => depth -= 1,
                ',' if depth == 1 => {
                    choices.push(&pattern[begin..at]);
                    begin = at + 1;
                }
                '}' => {
                    choices.push(&pattern[begin..at]);
                    return (choices.len() > 1).then_some((open..at + 1, choices));
                }
                _ => {}
            }
        }
        None
    })
}

fn components(path: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                found.pop();
            }
            name => found.push(name),
        }
    }
    found
}

/// Whether a rule's specifier covers a path.
pub(crate) fn covers(specifier: &str, path: &Utf8Path, around: &Around, reading: Reading) -> bool {
    // The other names of what is forbidden are in the list of what is touched; what is allowed has one that counts.
    let path = if reading == Reading::Narrow { around.own_name(path) } else { Cow::Borrowed(path) };
    let names = components(path.as_str());
    patterns(specifier, around, reading).iter().any(|pattern| {
        let pattern_names = components(pattern);
        // `src/*` allows what is in `src`, and not what is further down.
        let last_is_plain = pattern_names.last().is_some_and(|last| !last.contains(['*', '?', '[']));
        path_matches(&pattern_names, &names, reading == Reading::Wide || last_is_plain)
    })
}

/// Whether a rule that forbids covers a path, whatever the case of its letters. Takes the rule apart once, for many
/// paths.
pub(crate) fn covering(specifier: &str, around: &Around) -> impl Fn(&Utf8Path) -> bool {
    let patterns: Vec<String> =
        patterns(specifier, around, Reading::Wide).iter().map(|pattern| pattern.to_lowercase()).collect();
    move |path| {
        let path = path.as_str().to_lowercase();
        let names = components(&path);
        patterns.iter().any(|pattern| path_matches(&components(pattern), &names, true))
    }
}

/// Whether a rule that forbids could cover something a command may touch.
pub(crate) fn may_cover(specifier: &str, wide: &WideTouch, around: &Around) -> bool {
    let shell = components(&wide.pattern);
    patterns(specifier, around, Reading::Wide)
        .iter()
        .any(|pattern| paths_meet(&components(pattern), &shell, wide.below, wide.visible))
}

/// Whether a path is in the directories of the run.
pub(crate) fn is_inside(path: &Utf8Path, around: &Around) -> bool {
    let path = around.own_name(path);
    around.places().any(|place| path.starts_with(&*around.own_name(place)))
}

/// Whether everything a command may touch is in the directories of the run.
pub(crate) fn stays_inside(wide: &WideTouch, around: &Around) -> bool {
    is_inside(&fixed_part(&wide.pattern), around)
}

/// The leading directories of a glob that are plain names.
pub(crate) fn fixed_part(pattern: &str) -> Utf8PathBuf {
    let mut fixed = Utf8PathBuf::from("/");
    let parts = pattern.split('/').filter(|part| !part.is_empty());
    fixed.extend(parts.map_while(plain));
    fixed
}

/// The parts of a glob from its first that is no plain name.
pub(crate) fn special_parts(pattern: &str) -> Vec<&str> {
    pattern.split('/').filter(|part| !part.is_empty()).skip_while(|part| plain(part).is_some()).collect()
}

/// The name that a part of a glob stands for; none where it stands for several.
pub(crate) fn plain(part: &str) -> Option<String> {
    let mut escaped = false;
    let mut name = String::new();
    for c in part.chars() {
        match c {
            _ if escaped => {
                escaped = false;
                name.push(c);
            }
            '\\' => escaped = true,
            '*' | '?' | '[' => return None,
            c => name.push(c),
        }
    }
    Some(name)
}

/// A path as the pattern that stands for it alone, without a slash at its end.
pub(crate) fn escaped(path: &Utf8Path) -> String {
    let mut pattern = String::with_capacity(path.as_str().len());
    for c in path.as_str().trim_end_matches('/').chars() {
        if matches!(c, '*' | '?' | '[' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

const PROTECTED_FOLDERS: [&str; 14] = [
    ".git",
    ".decurion",
    ".claude",
    ".vscode",
    ".idea",
    ".husky",
    ".devcontainer",
    ".cargo",
    ".githooks",
    ".ssh",
    ".gnupg",
    ".aws",
    ".emacs.d",
    ".vim",
];
/// What is protected in a folder that is not.
const PROTECTED_PAIRS: [[&str; 2]; 4] =
    [[".config", "git"], [".docker", "config.json"], [".bundle", "config"], [".yarn", "releases"]];
/// Files in a home folder that shells, git and desktops read and run, and of which an empty one changes nothing. Those of
/// login shells that hide another one are among them.
pub(crate) const STARTUP_FILES: [&str; 16] = [
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".xprofile",
    ".xsessionrc",
    ".pam_environment",
    ".gitconfig",
    ".npmrc",
];
/// Other files that are protected.
const PROTECTED_FILES: [&str; 25] = [
    ".mcp.json",
    ".claude.json",
    ".gitmodules",
    ".kshrc",
    ".inputrc",
    ".envrc",
    ".ripgreprc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    ".pnp.cjs",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "bunfig.toml",
    ".vimrc",
    ".netrc",
    ".pypirc",
    ".tool-versions",
    "mise.toml",
    ".mise.toml",
    ".gdbinit",
    ".tmux.conf",
    ".emacs",
    ".bash_functions",
    // With this file a folder may be a repository, whose other files are settings of git.
    "head",
];

/// What is protected in the home folder alone, because programs of the user run it or are configured by it: with all
/// that is below it. Elsewhere these names mean nothing.
const PROTECTED_IN_HOME: &[&str] = &[
    // What desktops, service managers and login shells start.
    ".config/autostart",
    ".config/environment.d",
    ".config/hypr",
    ".config/i3",
    ".config/plasma-workspace",
    ".config/sway",
    ".config/systemd",
    ".local/share/applications",
    ".local/share/dbus-1",
    ".local/share/systemd",
    ".login",
    ".logout",
    ".xinitrc",
    ".xsession",
    "library/launchagents",
    // Programs, and what languages load into every program.
    ".asdf",
    ".bun",
    ".deno",
    ".local/bin",
    ".local/lib",
    ".local/share/mise",
    ".npm-global",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".volta",
    "bin",
    "go/bin",
    // Shells and terminals.
    ".bash_completion",
    ".config/alacritty",
    ".config/direnv",
    ".config/elvish",
    ".config/fish",
    ".config/kitty",
    ".config/nushell",
    ".config/powershell",
    ".config/starship.toml",
    ".config/tmux",
    ".config/wezterm",
    ".config/xonsh",
    ".config/zsh",
    ".cshrc",
    ".oh-my-zsh",
    ".p10k.zsh",
    ".screenrc",
    ".tcshrc",
    ".wezterm.lua",
    ".xonshrc",
    ".zsh",
    // Editors, pagers, debuggers and the prompts of languages.
    ".config/gdb",
    ".config/helix",
    ".config/lldb",
    ".config/nvim",
    ".exrc",
    ".gdbearlyinit",
    ".ghci",
    ".gvimrc",
    ".ipython",
    ".irbrc",
    ".jupyter",
    ".lessfilter",
    ".lesskey",
    ".lldbinit",
    ".nanorc",
    ".ocamlinit",
    ".pryrc",
    ".psqlrc",
    ".pythonrc",
    ".pythonrc.py",
    ".renviron",
    ".rprofile",
    ".sqliterc",
    // Package managers and what fetches.
    ".bazelrc",
    ".condarc",
    ".config/hg",
    ".config/npm",
    ".config/pip",
    ".config/yarn",
    ".curlrc",
    ".gemrc",
    ".gradle",
    ".hgrc",
    ".m2",
    ".mailcap",
    ".pip",
    ".wgetrc",
];

/// The part of a path that makes writing to it a way to run something later or to change our own settings.
pub(crate) fn protected(path: &Utf8Path, around: &Around) -> Option<String> {
    if let Some(name) = dot_name_of_home(path, around).or_else(|| started_from_home(path, around)) {
        return Some(name);
    }
    let own = around
        .checkout
        .as_ref()
        .map(super::Confinement::tree)
        .or(Some(&around.root).filter(|root| is_worktree(root)));
    let path = own.and_then(|own| path.strip_prefix(own).ok()).unwrap_or(path);
    let names: Vec<String> = components(path.as_str()).iter().map(|name| name.to_lowercase()).collect();
    let bare = |name: &String| name.trim_end_matches(['.', ' ']).to_owned();
    if let Some(folder) = names.iter().map(bare).find(|name| PROTECTED_FOLDERS.contains(&name.as_str())) {
        return Some(folder);
    }
    let pair = |pair: &&[String]| {
        PROTECTED_PAIRS.iter().any(|known| pair.iter().map(bare).eq(known.iter().map(ToString::to_string)))
    };
    if let Some([folder, ..]) = names.windows(2).find(pair) {
        return Some(bare(folder));
    }
    let last = names.last().map(bare)?;
    if STARTUP_FILES.iter().chain(&PROTECTED_FILES).any(|name| *name == last) || last.starts_with("git~") {
        return Some(last);
    }
    None
}

/// The name in the home folder that a path begins with, if it begins with a dot and the run is in the home folder or
/// above it: programs of the user read such files, and many run what they say.
fn dot_name_of_home(path: &Utf8Path, around: &Around) -> Option<String> {
    let home = around.own_name(around.home.as_deref()?);
    let path = around.own_name(path);
    let name = path.strip_prefix(&*home).ok()?.components().next()?.as_str();
    let above = around.places().any(|place| home.starts_with(&*around.own_name(place)));
    let inside = around.places().any(|place| around.own_name(place).starts_with(home.join(name)));
    (name.starts_with('.') && above && !inside).then(|| name.to_lowercase())
}

/// What in the home folder a path begins with, if programs of the user run that or are configured by it, unless the run
/// works in it.
fn started_from_home(path: &Utf8Path, around: &Around) -> Option<String> {
    let home = around.own_name(around.home.as_deref()?);
    let path = around.own_name(path);
    let below = path.strip_prefix(&*home).ok()?.as_str().to_lowercase();
    let begins = |known: &&&str| Utf8Path::new(&below).starts_with(known);
    let known = PROTECTED_IN_HOME.iter().find(begins)?;
    let folder: Utf8PathBuf =
        path.components().take(components(home.as_str()).len() + components(known).len() + 1).collect();
    let is_worked_in = around.places().any(|place| around.own_name(place).starts_with(&folder));
    (!is_worked_in).then(|| (*known).to_owned())
}

/// Whether a path is below a name in the home folder that begins with a dot: where programs keep their settings.
pub(super) fn is_setting_of_user(path: &Utf8Path, around: &Around) -> bool {
    let Some(home) = around.home.as_deref() else { return false };
    let (home, path) = (around.own_name(home), around.own_name(path));
    let below = path.strip_prefix(&*home).ok();
    below.is_some_and(|below| below.as_str().starts_with('.') && !below.starts_with(".cache"))
}

/// Whether a folder is where worktrees are made, here or by other tools: whoever works in one means that one.
fn is_worktree(folder: &Utf8Path) -> bool {
    let names = components(folder.as_str());
    names.windows(3).any(|names| [".decurion", ".claude"].contains(&names[0]) && names[1] == "worktrees")
}

/// Places of the system and of the user where a rule without a path of its own does not reach.
pub(crate) fn is_system(path: &Utf8Path) -> bool {
    ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/dev", "/proc", "/sys", "/root", "/opt"]
        .iter()
        .any(|place| path.starts_with(place))
}

/// Whether a path is one of the system's own files: programs and their settings, which hold nothing of a person. What
/// is secret among them the sandbox hides.
pub(crate) fn is_of_system(path: &Utf8Path) -> bool {
    const FOLDERS: [&str; 14] = [
        "/etc",
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/opt",
        "/nix",
        "/sys/block",
        "/sys/class",
        "/sys/devices",
        "/sys/fs/cgroup",
        "/proc/sys/kernel",
    ];
    // What the kernel tells everybody about the machine, and a process about itself.
    const KERNEL: [&str; 12] = [
        "cpuinfo",
        "devices",
        "diskstats",
        "filesystems",
        "loadavg",
        "meminfo",
        "mounts",
        "partitions",
        "stat",
        "uptime",
        "version",
        "vmstat",
    ];
    const PROCESS: [&str; 8] = ["cgroup", "io", "limits", "mountinfo", "mounts", "stat", "statm", "status"];
    const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/stdin", "/dev/urandom", "/dev/random"];
    let in_proc = path.strip_prefix("/proc").is_ok_and(|rest| {
        let rest = rest.as_str();
        let is_process = |name: &str| name == "self" || name.bytes().all(|byte| byte.is_ascii_digit());
        let about = |(process, name): (&str, &str)| is_process(process) && PROCESS.contains(&name);
        KERNEL.contains(&rest) || is_process(rest) || rest.split_once('/').is_some_and(about)
    });
    FOLDERS.iter().any(|folder| path.starts_with(folder)) || in_proc || DEVICES.contains(&path.as_str())
}

/// Whether a path leads through a link that a process has for itself. The streams themselves are none: what they are
/// was opened under its own name.
pub(crate) fn is_of_process(path: &Utf8Path) -> bool {
    let names: Vec<&str> = path.components().skip(1).map(|component| component.as_str()).collect();
    let opened = |rest: &[&str]| rest.len() > 1;
    match names.as_slice() {
        ["proc", rest @ ..] => rest.iter().enumerate().any(|(at, name)| match *name {
            "cwd" | "root" | "map_files" => true,
            "fd" => opened(&rest[at + 1..]),
            _ => false,
        }),
        ["dev", "fd", rest @ ..] => opened(rest) || rest.contains(&".."),
        ["dev", "stdin" | "stdout" | "stderr", rest @ ..] => !rest.is_empty(),
        _ => false,
    }
}

/// Whether a rule names the protected part itself, so that whoever wrote it meant it.
pub(crate) fn names_protected(specifier: &str, part: &str) -> bool {
    let (named, part) = (components(specifier), components(part));
    named
        .windows(part.len())
        .any(|names| names.iter().map(|name| name.to_lowercase()).eq(part.iter().copied()))
}

//! What git may be told to run. Takes the arguments of `git`; gives the texts that it would run, as far as its words
//! tell, and why they are a doubt.
//!
//! Git takes long options shortened, so an option is dangerous if it may be the beginning of a dangerous one.

use super::subcommand;
use crate::bash::expand::Field;
use crate::bash::runner::{Inner, Runs, tails};

/// Long options whose value git runs, or takes settings and programs from.
const RUN: &str = "--upload-pack --receive-pack --exec-path --exec --extcmd --ext-diff --textconv --open-files-in-pager \
    --config --config-env --template --tool";
/// Other options that these begin with.
const PLAIN: [&str; 2] = ["--text", "--to"];

/// Letters of subcommands whose value git runs, and letters that take another value.
struct Letters {
    subcommands: &'static str,
    run: &'static str,
    valued: &'static str,
}

const LETTERS: &[Letters] = &[
    Letters { subcommands: "grep", run: "O", valued: "efABCm" },
    Letters { subcommands: "clone", run: "uc", valued: "obj" },
    Letters { subcommands: "rebase", run: "x", valued: "sXSC" },
    Letters { subcommands: "difftool", run: "xt", valued: "USGOl" },
    Letters { subcommands: "mergetool", run: "t", valued: "O" },
];

/// Settings whose value git runs, or takes programs from: names, or their beginning and end.
const SETTINGS: [(&str, &str); 42] = [
    ("alias.", ""),
    ("core.", "fsmonitor"),
    ("core.", "pager"),
    ("core.", "editor"),
    ("core.", "sshcommand"),
    ("core.", "hookspath"),
    ("core.", "askpass"),
    ("core.", "gitproxy"),
    ("core.", "alternaterefscommand"),
    ("core.", "worktree"),
    ("core.", "attributesfile"),
    ("sequence.", "editor"),
    ("pager.", ""),
    ("diff.", "external"),
    ("diff.", ".command"),
    ("diff.", ".textconv"),
    ("diff", "tool"),
    ("merge", "tool"),
    ("difftool.", ""),
    ("mergetool.", ""),
    ("merge.", ".driver"),
    ("filter.", ""),
    ("gpg.", ""),
    ("credential", "helper"),
    ("include", ".path"),
    ("includeif.", ""),
    ("remote.", ".uploadpack"),
    ("remote.", ".receivepack"),
    ("remote.", ".vcs"),
    ("remote.", "proxy"),
    ("uploadpack.", "hook"),
    ("hook.", ""),
    ("init.", "templatedir"),
    ("protocol.", "allow"),
    ("url.", "insteadof"),
    ("sendemail.", ""),
    ("browser.", ""),
    ("man.", ""),
    ("web.", "browser"),
    ("trailer.", ""),
    ("interactive.", "difffilter"),
    ("submodule.", ".update"),
];

/// What a call of git may run; none where nothing of the kind is there.
pub(crate) fn runs(arguments: &[Field]) -> Option<Runs> {
    let mut found = Found::default();
    let (name, rest) = subcommand(arguments).unwrap_or(("", arguments));
    let global = &arguments[..arguments.len() - rest.len()];
    found.global(global);
    found.options(global, "");
    found.options(rest, name);
    match name {
        "submodule" => found.after(rest, |text| text == "foreach"),
        "bisect" => found.after(rest, |text| text == "run"),
        "merge-index" | "filter-branch" | "for-each-repo" | "shell" | "send-email" | "instaweb" => {
            found.tail("git runs what follows", rest);
        }
        "config" => found.setting(rest),
        _ => {}
    }
    // An address may name a program that makes the connection.
    for text in arguments.iter().filter_map(Field::known) {
        if let Some((_, program)) = text.split_once("ext::") {
            found.text("an address with ext:: runs a program", program);
        }
    }
    found.0.doubt.is_some().then_some(found.0)
}

#[derive(Default)]
struct Found(Runs);

impl Found {
    fn text(&mut self, why: impl Into<String>, text: &str) {
        self.0.doubt.get_or_insert_with(|| why.into());
        self.0.inner.push(Inner::Text { text: text.to_owned(), elsewhere: true });
    }

    /// Every tail of these words may be run, as words or as texts for a shell.
    fn tail(&mut self, why: &str, words: &[Field]) {
        self.0.doubt.get_or_insert_with(|| why.to_owned());
        for inner in tails(words) {
            let text = match inner {
                Inner::Words { words, .. } => {
                    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
                }
                Inner::Text { text, .. } => text,
            };
            self.0.inner.push(Inner::Text { text, elsewhere: true });
        }
    }

    fn after(&mut self, words: &[Field], is: impl Fn(&str) -> bool) {
        if let Some(at) = words.iter().position(|word| word.known().is_some_and(&is)) {
            self.tail("git runs what follows", &words[at + 1..]);
        }
    }

    /// Settings before the subcommand.
    fn global(&mut self, arguments: &[Field]) {
        let after = |pair: &[Field]| pair[0].known() == Some("-c");
        let settings = arguments.windows(2).filter(|pair| after(pair)).filter_map(|pair| pair[1].known());
        settings.for_each(|setting| self.assigned(setting));
    }

    fn options(&mut self, arguments: &[Field], name: &str) {
        let letters = LETTERS.iter().find(|row| row.subcommands.split(' ').any(|known| known == name));
        for (index, argument) in arguments.iter().enumerate() {
            let Some(text) = argument.known() else { continue };
            if text == "--" {
                break;
            }
            let next = arguments.get(index + 1).and_then(Field::known);
            if let Some((option, value)) = dangerous(text, letters) {
                match (option, value.or(next)) {
                    ("-c" | "--config" | "--config-env", Some(setting)) => self.assigned(setting),
                    (option, value) => self.text(format!("{option} may run something"), value.unwrap_or("")),
                }
            } else if within_nested(text) {
                self.text(format!("git calls itself in nested repositories for {text}"), "");
            } else if name.starts_with("filter-") && text.contains("-callback") {
                self.text("git runs what follows", text);
            }
        }
    }

    /// `key=value` for this call.
    fn assigned(&mut self, setting: &str) {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        if !harmless(key) {
            let value = value.strip_prefix('!').unwrap_or(value);
            self.text(format!("it sets {key}, which may run something"), value);
        }
    }

    /// `git config key value`.
    fn setting(&mut self, words: &[Field]) {
        let texts: Vec<&str> = words.iter().filter_map(Field::known).collect();
        if super::asks_config(words) {
            return;
        }
        let renames = |text: &&str| text.trim_start_matches('-').starts_with("rename");
        if texts.iter().any(renames) {
            return self.text("it renames settings, so that others may be run", "");
        }
        let operands: Vec<&str> = texts.into_iter().filter(|text| !text.starts_with('-')).collect();
        for pair in operands.windows(2) {
            let [key, value] = pair else { continue };
            let lower = key.to_ascii_lowercase();
            let runs = SETTINGS.iter().any(|(begin, end)| lower.starts_with(begin) && lower.ends_with(end));
            if runs || value.starts_with('!') {
                let text = value.strip_prefix('!').unwrap_or(value);
                self.text(format!("it sets {key}, which may run something"), text);
            }
        }
    }
}

/// The dangerous option that a word is, and its value if that is in the same word.
fn dangerous<'t>(text: &'t str, letters: Option<&Letters>) -> Option<(&'t str, Option<&'t str>)> {
    if text.starts_with("--") {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let begins = name.len() > 2 && RUN.split_whitespace().any(|option| option.starts_with(name));
        let whole = if "--config".starts_with(name) { "--config" } else { name };
        return (begins && !PLAIN.contains(&name)).then_some((whole, value));
    }
    let row = letters?;
    let cluster = text.strip_prefix('-')?;
    let at = cluster.find(|letter| row.run.contains(letter))?;
    if cluster[..at].contains(|letter| row.valued.contains(letter)) {
        return None;
    }
    let value = Some(&cluster[at + 1..]).filter(|value| !value.is_empty());
    Some((if cluster[at..].starts_with('c') { "-c" } else { text }, value))
}

/// Whether a word makes git call itself in repositories that were nested in some commit: those that are in the index
/// no longer are not looked at.
fn within_nested(text: &str) -> bool {
    let Some((name, value)) = text.split_once('=') else { return false };
    name.len() > 3 && "--submodule".starts_with(name) && !matches!(value, "short" | "log")
}

fn harmless(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    changes_looks(&key)
        || matches!(key.as_str(), "user.name" | "user.email" | "init.defaultbranch" | "commit.gpgsign")
}

/// Whether `key=value` for one call only changes how what it shows looks.
pub(crate) fn only_shows(setting: &str) -> bool {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    let plain = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
    plain(key, ".-") && plain(value, " #%:_-") && changes_looks(&key.to_ascii_lowercase())
}

fn changes_looks(key: &str) -> bool {
    const KEYS: &str = "core.quotepath core.abbrev log.date log.decorate diff.algorithm diff.mnemonicprefix diff.noprefix \
        diff.renames";
    key.starts_with("color.") || key.starts_with("advice.") || crate::bash::lists(KEYS, key)
}

//! What is dangerous about a call that is asked about. Takes the question; gives a few words for each danger, so that
//! `rm -rf` does not look as harmless as `ls`. An aid for the eye: what may be done is decided elsewhere.

use std::collections::BTreeSet;

use decurion_protocol::Question;
use decurion_protocol::intent::ShellCommand;

/// Programs that run what they read.
const INTERPRETERS: [&str; 10] =
    ["bash", "dash", "fish", "ksh", "node", "perl", "python", "python3", "ruby", "sh"];
/// Programs that fetch from the network.
const DOWNLOADERS: [&str; 3] = ["curl", "fetch", "wget"];
/// Programs that act as another user.
const ROOT: [&str; 4] = ["doas", "pkexec", "su", "sudo"];
/// Parts of paths that hold keys and credentials.
const SECRETS: [&str; 10] =
    [".ssh", ".aws", ".gnupg", ".netrc", ".env", ".kube", ".npmrc", ".pypirc", "credentials", ".pgpass"];

/// How names of such files begin.
const SECRET_STARTS: [&str; 2] = [".env.", "id_"];

/// The dangers, each once.
pub fn dangers(question: &Question) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let commands = question.intent.shell.iter().flat_map(|shell| &shell.commands);
    let commands: Vec<&ShellCommand> = commands.collect();
    found.extend(commands.iter().filter_map(|command| danger(command)).map(str::to_owned));
    if runs_download(&commands) {
        found.insert("runs code that it downloads".to_owned());
    }
    let touches = question.intent.touches.iter().chain(commands.iter().flat_map(|command| &command.touches));
    let is_secret = |path: &str| {
        path.split('/')
            .any(|part| SECRETS.contains(&part) || SECRET_STARTS.iter().any(|start| part.starts_with(start)))
    };
    if touches.into_iter().any(|touch| is_secret(touch.path.as_str())) {
        found.insert("touches a file that may hold keys or credentials".to_owned());
    }
    if let Some(outside) = &question.blocked {
        found.insert(format!("outside of the project: {outside}"));
    }
    found
}

/// The words of a command from its program on.
fn words(command: &ShellCommand) -> Vec<&str> {
    command.words.iter().skip(command.assigned).map(String::as_str).collect()
}

/// The name of a program without its folder.
fn name(words: &[&str]) -> String {
    words.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default().to_owned()
}

fn danger(command: &ShellCommand) -> Option<&'static str> {
    let words = words(command);
    let has = |option: &str| words.contains(&option);
    // `-rf`, `-r -f` and `-fr` alike.
    let has_letter = |letter| {
        words.iter().any(|word| word.starts_with('-') && !word.starts_with("--") && word.contains(letter))
    };
    let program = name(&words);
    Some(match (program.as_str(), git_command(&words)) {
        ("rm", _) if has_letter('r') || has_letter('R') || has("--recursive") => "deletes whole folders",
        ("git", "push") if has_letter('f') || words.iter().any(|word| overwrites(word)) => {
            "force push: overwrites or deletes what is on the remote"
        }
        ("git", "reset") if has("--hard") => "discards uncommitted changes",
        ("git", "clean") if has_letter('f') || has("--force") => "deletes files that git does not track",
        ("chmod", _) if has("777") || has("-R") => "changes who may access many files",
        ("dd" | "shred" | "fdisk", _) => "overwrites devices or files",
        (program, _) if program == "mkfs" || program.starts_with("mkfs.") => "overwrites devices or files",
        (program, _) if ROOT.contains(&program) => "runs as another user",
        _ => return None,
    })
}

/// The subcommand of git, behind the options that stand before it.
fn git_command<'a>(words: &[&'a str]) -> &'a str {
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match *word {
            "-C" | "-c" | "--git-dir" | "--work-tree" | "--namespace" => drop(rest.next()),
            word if word.starts_with('-') => {}
            word => return word,
        }
    }
    ""
}

/// Whether a word of a push overwrites or deletes branches of the remote.
fn overwrites(word: &str) -> bool {
    word.starts_with("--force")
        || word.starts_with('+')
        || word.starts_with(':')
        || matches!(word, "--mirror" | "--delete" | "-d")
}

/// Whether a download is passed to an interpreter without a program of its own.
fn runs_download(commands: &[&ShellCommand]) -> bool {
    let is_bare = |words: &[&str]| words.iter().skip(1).all(|word| word.starts_with('-') && *word != "-c");
    let names = || commands.iter().map(|command| words(command));
    names().any(|words| DOWNLOADERS.contains(&name(&words).as_str()))
        && names().any(|words| INTERPRETERS.contains(&name(&words).as_str()) && is_bare(&words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Vec<String> {
        let commands = texts.iter().map(|text| ShellCommand {
            text: (*text).to_owned(),
            words: text.split(' ').map(str::to_owned).collect(),
            ..ShellCommand::default()
        });
        let commands: Vec<ShellCommand> = commands.collect();
        let commands: Vec<&ShellCommand> = commands.iter().collect();
        let mut found: Vec<String> =
            commands.iter().filter_map(|command| danger(command)).map(str::to_owned).collect();
        found.extend(runs_download(&commands).then(|| "download".to_owned()));
        found
    }

    #[test]
    fn dangerous_commands_are_told_from_harmless_ones() {
        let push = "force push: overwrites or deletes what is on the remote";
        for (texts, dangers) in [
            (&["rm -rf target"][..], &["deletes whole folders"][..]),
            (&["/bin/rm -r -f target"], &["deletes whole folders"]),
            (&["rm notes.txt"], &[]),
            (&["git push -f origin main"], &[push]),
            (&["git -C sub push --force-with-lease"], &[push]),
            (&["git push origin +main"], &[push]),
            (&["git push origin :old"], &[push]),
            (&["git push origin main"], &[]),
            (&["git reset --hard HEAD~1"], &["discards uncommitted changes"]),
            (&["git reset HEAD~1"], &[]),
            (&["mkfs.ext4 /dev/sda1"], &["overwrites devices or files"]),
            (&["curl -fsSL https://example.com", "sh"], &["download"]),
            (&["curl -fsSL https://example.com", "sudo bash -s"], &["runs as another user"]),
            (&["curl -O https://example.com", "sh build.sh"], &[]),
            (&["wget -q x", "python3 -"], &["download"]),
            (&["sudo make install"], &["runs as another user"]),
        ] {
            assert_eq!(of(texts), dangers, "{texts:?}");
        }
    }
}

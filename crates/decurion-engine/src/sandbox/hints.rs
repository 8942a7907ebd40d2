//! What a failed call may have run into that is no refusal. Takes what it printed and where it happened; gives a sentence
//! that says why and what to do, if that is plain.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::sandbox::TEMPORARY;

/// What programs print when nothing answers.
const UNANSWERED: [&str; 7] = [
    "connection refused",
    "econnrefused",
    "failed to connect",
    "could not connect",
    "couldn't connect",
    "can't connect",
    "unable to connect",
];
/// This machine, and in a sandbox the command's own network.
const OWN_MACHINE: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Why a command did not reach a service of this machine. Takes what it printed and its text.
pub(crate) fn own_loopback(printed: &str, command: &str) -> Option<String> {
    let failed = printed.lines().find(|line| {
        let line = line.to_lowercase();
        UNANSWERED.iter().any(|sign| line.contains(sign))
    })?;
    let (name, port) = [failed, command].into_iter().find_map(service_in)?;
    let service = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let listed = port.map_or_else(|| "localhost:PORT".to_owned(), |port| format!("localhost:{port}"));
    Some(format!(
        "Commands have a loopback network of their own, so {service} is not the service that runs on this machine. To \
         reach that one, the user can add \"{listed}\" to sandbox.network.allowedDomains (for programs that use the \
         proxy: curl --noproxy '' http://{listed}/), or name the program in sandbox.excludedCommands."
    ))
}

/// This machine as a text names it, and the port behind that.
fn service_in(text: &str) -> Option<(&'static str, Option<u16>)> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let (name, at) = OWN_MACHINE.iter().find_map(|name| {
        let whole = |at: &usize| {
            let (before, behind) = (&text[..*at], &text[at + name.len()..]);
            !before.ends_with(is_part) && !behind.starts_with(is_part)
        };
        let at = text.match_indices(name).map(|(at, _)| at).find(whole)?;
        Some((*name, at))
    })?;
    let rest = &text[at + name.len()..];
    let digits = |text: &str| -> Option<u16> {
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let behind = rest.trim_start_matches(']').strip_prefix(':').and_then(digits);
    let named = || text.split_once("port ").and_then(|(_, rest)| digits(rest.trim_start()));
    Some((name, behind.or_else(named)))
}

/// Which folders that the settings make writable do not exist, where a command failed for one of them.
pub(crate) fn missing_folder(printed: &str, writable: &[Utf8PathBuf]) -> Option<String> {
    let missing = writable.iter().find(|folder| printed.contains(folder.as_str()) && !folder.exists())?;
    Some(format!(
        "sandbox.filesystem.allowWrite names {missing}, which does not exist, so commands cannot write it. The user can \
         make it with: mkdir -p {missing}"
    ))
}

/// Why a command could not change the mode of a file. Takes what it printed and its text.
pub(crate) fn set_id_bit(printed: &str, command: &str) -> Option<String> {
    const REFUSED: [&str; 2] = ["operation not permitted", "eperm"];
    let mode = command.split([';', '&', '|', '(', ')', '\n']).find_map(|part| {
        let words = part.split(|letter: char| letter.is_whitespace() || "'\"".contains(letter));
        let mut words = words.filter(|word| !word.is_empty());
        words.find(|word| word.rsplit('/').next() == Some("chmod"))?;
        // Of what looks like an option, `-x` is a mode, and none that sets these bits.
        words.find(|word| !word.starts_with('-')).filter(|mode| sets_id(mode))
    })?;
    let refused = printed.to_lowercase();
    REFUSED.iter().any(|sign| refused.contains(sign)).then(|| {
        format!(
            "The sandbox refused chmod {mode}: no command in it can set the set-user-id or set-group-id bit. The user can \
             run it in a terminal, or add \"chmod\" to the setting sandbox.excludedCommands."
        )
    })
}

/// Whether a mode has one of these bits: `u+s`, `g=rws`, `4755`.
fn sets_id(mode: &str) -> bool {
    let is_number = mode.len() >= 4 && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    if is_number {
        let special = mode.as_bytes()[mode.len() - 4];
        return special.saturating_sub(b'0') & 6 != 0;
    }
    mode.split(',').any(|change| {
        let parts = change.split_once(['+', '=']);
        parts.is_some_and(|(who, what)| {
            who.bytes().all(|byte| b"ugoa".contains(&byte))
                && what.contains('s')
                && what.bytes().all(|byte| b"rwxXst".contains(&byte))
        })
    })
}

/// Whether a path is one that commands have a folder of their own for.
pub(crate) fn is_temporary(path: &Utf8Path) -> bool {
    TEMPORARY.iter().any(|folder| path != *folder && path.starts_with(folder))
}

/// What a tool that runs outside of the sandbox should know of a path for temporary files: commands have their own folder
/// in its place. Takes the path, and that folder; gives where the file is that commands know by this path, if there is one
/// and no other.
pub(crate) fn own_temporary(path: &Utf8Path, private: &Utf8Path) -> Option<Utf8PathBuf> {
    let below = TEMPORARY.iter().find_map(|folder| path.strip_prefix(folder).ok())?;
    let file = private.join(below);
    (!path.exists() && file.exists()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_of_this_machine_is_named_with_its_port() {
        for (printed, command, service) in [
            ("curl: (7) Failed to connect to localhost port 5432 after 0 ms", "x", "localhost:5432"),
            ("curl: (7) Could not connect to server", "curl http://127.0.0.1:80/", "127.0.0.1:80"),
            ("Error: connect ECONNREFUSED ::1:3000", "node a.js", "::1:3000"),
            (
                "connection to server at \"localhost\" (::1), port 5432 failed: Connection refused",
                "psql",
                "localhost:5432",
            ),
        ] {
            let told = own_loopback(printed, command).unwrap_or_default();
            assert!(told.contains(&format!("so {service} is not")), "{printed}: {told}");
        }
        for (printed, command) in [
            ("Connection refused", "curl http://a.org/"),
            ("all fine on localhost", "x"),
            ("", "curl localhost"),
            ("Failed to connect to localhost.example.com port 80: Connection refused", "x"),
            ("Failed to connect to 127.0.0.10 port 80: Connection refused", "x"),
        ] {
            assert_eq!(own_loopback(printed, command), None, "{printed}");
        }
    }

    #[test]
    fn modes_with_a_bit_that_the_sandbox_refuses_are_known() {
        for mode in ["u+s", "g+s", "u=rws", "a+x,u+s", "4755", "02775", "06755", "+s"] {
            assert!(sets_id(mode), "{mode}");
        }
        for mode in ["u+x", "755", "0755", "1777", "o-s", "src", "notes", "u+q", "s", "8080", "4999"] {
            assert!(!sets_id(mode), "{mode}");
        }
        assert_eq!(set_id_bit("chmod: f: Operation not permitted", "chmod 755 f"), None);
        assert_eq!(set_id_bit("fine", "chmod u+s f"), None);
        for command in [
            "chmod +x run && ./run --port 4000",
            "chmod +x run\n./run 4000",
            "chmod +x 4000",
            "chmod 755 4755",
        ] {
            assert_eq!(set_id_bit("f: Operation not permitted", command), None, "{command}");
        }
        for command in ["true; sudo chmod -R u+s f", "chmod 644 a && chmod '4755' b", "sh -c 'chmod u+s f'"] {
            assert!(set_id_bit("f: Operation not permitted", command).is_some(), "{command}");
        }
    }

    #[test]
    fn a_file_that_only_commands_have_is_found_in_their_folder() {
        let private = tempfile::tempdir().unwrap();
        let private = Utf8Path::from_path(private.path()).unwrap();
        let name = "decurion-test-of-own-temporary";
        std::fs::write(private.join(name), "").unwrap();
        assert_eq!(own_temporary(&Utf8Path::new("/tmp").join(name), private), Some(private.join(name)));
        for path in ["/tmp/decurion-test-of-nothing", "/etc/hosts", "/tmp"] {
            assert_eq!(own_temporary(path.into(), private), None, "{path}");
        }
    }
}

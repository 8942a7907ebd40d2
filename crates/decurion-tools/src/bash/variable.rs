//! Variables that change what a command does. Takes a variable's name, or an assignment; says whether setting it is
//! harmless, dangerous, or neither.

/// Whether a word is an assignment, written out, that only changes how output looks: a variable of that list with a
/// value that names no file and cannot be anything but text.
pub fn is_harmless_assignment(word: &str) -> bool {
    let Some((name, value)) = word.split_once('=').filter(|(name, _)| is_harmless(name)) else {
        return false;
    };
    // Programs make the names of files from these values.
    let plain = |mark: char| {
        let listed = |c: char| c.is_ascii_alphanumeric() || "_-.,:=+".contains(c) || c == mark;
        value.chars().all(listed) && !value.contains("..")
    };
    match name {
        // In other character sets half of a character may be a sign of the shell's.
        "LANG" | "LANGUAGE" => is_plain_locale(value),
        _ if name.starts_with("LC_") => is_plain_locale(value),
        "TZ" => plain('/') && !value.starts_with('/') && !value.contains(":/"),
        _ => plain('_'),
    }
}

fn is_plain_locale(value: &str) -> bool {
    let language = value.strip_suffix(".UTF-8").or_else(|| value.strip_suffix(".utf8"));
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    matches!(value, "C" | "POSIX" | "en") || language.is_some_and(plain)
}

/// Variables that only change how output looks or how much of it there is.
fn is_harmless(name: &str) -> bool {
    name.starts_with("LC_")
        || matches!(
            name,
            "LANG"
                | "LANGUAGE"
                | "TZ"
                | "NO_COLOR"
                | "FORCE_COLOR"
                | "CLICOLOR"
                | "CLICOLOR_FORCE"
                | "TERM"
                | "COLORTERM"
                | "COLUMNS"
                | "LINES"
                | "CI"
                | "RUST_BACKTRACE"
                | "RUST_LOG"
                | "CARGO_TERM_COLOR"
        )
}

/// Variables that change which program runs, or make a program run another.
pub(crate) fn is_dangerous(name: &str) -> bool {
    const PREFIXES: [&str; 24] = [
        "LD_", "DYLD_", "GIT_", "BASH", "PYTHON", "PERL", "RUBY", "NPM_", "YARN_", "PS", "LESS", "MAN",
        "SSH_", "RIPGREP_", "CARGO_", "RUSTC", "JAVA_", "_JAVA", "JDK_", "MAKE", "GCC_", "GO", "DOCKER_",
        "SUDO_",
    ];
    const SUFFIXES: [&str; 9] =
        ["PAGER", "EDITOR", "BROWSER", "_OPTIONS", "_PROXY", "_PATH", "_HOME", "_COMMAND", "PRELOAD"];
    const NAMES: [&str; 41] = [
        "PATH",
        "IFS",
        "ENV",
        "SHELL",
        "SHELLOPTS",
        "CDPATH",
        "GLOBIGNORE",
        "HOME",
        "PWD",
        "OLDPWD",
        "TMPDIR",
        "TMP",
        "TEMP",
        "VISUAL",
        "HISTFILE",
        "NODE_OPTIONS",
        "NODE_PATH",
        "TERMINFO",
        "TERMCAP",
        "FPATH",
        "ZDOTDIR",
        "OPTIND",
        "OPTARG",
        "FUNCNEST",
        "EXECIGNORE",
        "INPUTRC",
        "CC",
        "CXX",
        "LOCPATH",
        "NLSPATH",
        "POSIXLY_CORRECT",
        "COMP_WORDBREAKS",
        // Bash evaluates what is assigned to these as arithmetic.
        "RANDOM",
        "SRANDOM",
        "SECONDS",
        "LINENO",
        "HISTCMD",
        "UID",
        "EUID",
        "PPID",
        "EPOCHSECONDS",
    ];
    let upper = name.to_ascii_uppercase();
    if is_harmless(name) {
        return false;
    }
    // A short name in small letters is a script's own variable, whatever it begins with.
    if name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !["npm_", "http_", "https_", "all_", "no_proxy", "ld_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    {
        return matches!(name, "path" | "fpath" | "cdpath");
    }
    NAMES.contains(&upper.as_str())
        || PREFIXES.iter().any(|prefix| upper.starts_with(prefix))
        || SUFFIXES.iter().any(|suffix| upper.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_values_of_listed_variables_are_harmless() {
        for word in [
            "RUST_BACKTRACE=1",
            "CI=1",
            "CI=",
            "NO_COLOR=1",
            "LC_ALL=C",
            "LC_CTYPE=en_US.UTF-8",
            "LANG=C.UTF-8",
            "TZ=Europe/Berlin",
            "RUST_LOG=my_crate::net=debug,info",
            "CARGO_TERM_COLOR=never",
            "COLUMNS=200",
        ] {
            assert!(is_harmless_assignment(word), "{word}");
        }
        for word in [
            "PATH=.",
            "LD_PRELOAD=x",
            "GIT_PAGER=x",
            "NODE_OPTIONS=--require=x",
            "RUSTC_WRAPPER=x",
            "CARGO_HOME=x",
            "CARGO_TARGET_X_RUNNER=x",
            "FOO=1",
            "CI+=1",
            "CI",
            "=1",
            "ci=1",
            "CI=$(touch x)",
            "CI=`touch x`",
            "CI=$HOME",
            "CI=a b",
            "CI=a;b",
            "CI=/dev/fd/63",
            "NODE_ENV=test",
            "LC_ALL=ja_JP.SJIS",
            "LC_ALL=../x.UTF-8",
            "LANGUAGE=../../x",
            "TZ=/etc/passwd",
            "TZ=:/etc/passwd",
            "TZ=../../x",
            "TERM=../x",
        ] {
            assert!(!is_harmless_assignment(word), "{word}");
        }
    }
}

//! Variables that change what a command does. Takes a variable's name; says whether setting it is harmless,
//! dangerous, or neither.

/// Variables that only change how output looks or how much of it there is.
pub(crate) fn is_harmless(name: &str) -> bool {
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
                | "NODE_ENV"
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

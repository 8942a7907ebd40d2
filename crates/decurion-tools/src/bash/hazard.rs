//! Options that make a well-known program do more than its name says: run another program, write a file, work in
//! another folder. Takes a program's name and arguments; gives the words that do so.
//!
//! A rule for the program alone (`Bash(sort:*)`) does not allow these: a word that runs something must be named by the
//! rule itself, and a path must be allowed like that of a redirection.

use decurion_protocol::intent::Hazard;

use super::expand::Field;
use super::text;

/// The options of some programs. Letters stand for `-x`, words with dashes for themselves.
struct Options {
    names: &'static str,
    /// Those that run a program, or take options from elsewhere.
    runs: &'static str,
    /// Those whose value is a path that is written.
    writes: &'static str,
    /// Those whose value is a path that is read, or a folder to work in.
    reads: &'static str,
    /// Letters whose value may follow in the same word, so that none of its letters is an option.
    valued: &'static str,
}

impl Options {
    const fn valued(mut self, letters: &'static str) -> Self {
        self.valued = letters;
        self
    }
}

const fn options(
    names: &'static str,
    runs: &'static str,
    writes: &'static str,
    reads: &'static str,
) -> Options {
    Options { names, runs, writes, reads, valued: "" }
}

static TABLE: &[Options] = &[
    options("sort", "--compress-program", "o T --output --temporary-directory", "--files0-from"),
    options(
        "find",
        "-exec -execdir -ok -okdir -delete",
        "-fprint -fprint0 -fprintf -fls",
        "-files0-from -newer -anewer -cnewer -samefile",
    ),
    options("fd fdfind", "x X --exec --exec-batch", "", "--base-directory --search-path --ignore-file"),
    options("rg", "--pre --hostname-bin", "", "f --file --ignore-file"),
    options("grep egrep fgrep", "", "", "f --file --exclude-from"),
    options("wc du", "", "", "--files0-from X --exclude-from"),
    options("date", "s --set", "", "f --file r --reference"),
    options("file", "C --compile", "", "f --files-from m --magic-file"),
    options("tree", "", "o", "--fromfile"),
    options("iconv", "", "o --output", ""),
    options("diff", "", "", "--from-file --to-file X --exclude-from"),
    options("sed gsed", "", "", "f --file"),
    options("xargs", "", "", "a --arg-file"),
    options("jq", "", "", "f --from-file L --slurpfile --rawfile"),
    options(
        "tar gtar bsdtar",
        "I F --use-compress-program --checkpoint-action --to-command --info-script --new-volume-script --rsh-command \
            --rmt-command",
        "C --directory",
        "T --files-from X --exclude-from",
    ),
    options("zip", "T TT --unzip-command", "", ""),
    options("man", "P H --pager --html --browser", "", "C --config-file M --manpath"),
    options("less more", "k --lesskey-file --lesskey-src", "o O --log-file --LOG-FILE", ""),
    options(
        "curl",
        "K O J --config --remote-name --remote-name-all --remote-header-name",
        "o D c --output --output-dir --dump-header --cookie-jar --trace --trace-ascii --stderr --libcurl --etag-save \
            --hsts --alt-svc",
        "T --upload-file",
    )
    .valued("XHdAbueFmxUQrtzCEPY"),
    options(
        "wget",
        "e --execute --use-askpass --config --input-file i",
        "O P o a --output-document --directory-prefix --output-file --append-output --save-cookies",
        "",
    ),
    options(
        "rsync",
        "e M --rsh --rsync-path --remote-option",
        "T --temp-dir --log-file --backup-dir",
        "--files-from",
    ),
    options("scp sftp", "S o D --program", "", "F"),
    options("dd", "", "of=", "if="),
    options(
        "npm",
        "c --script-shell --shell --node-options --git --editor --viewer --browser --init-module --call",
        "",
        "C w --prefix --local-prefix --userconfig --globalconfig --dir --workspace",
    ),
    options(
        "pnpm yarn bun",
        "r c --script-shell --shell --node-options --preload --require --config --use-yarnrc",
        "--modules-folder --cache-folder",
        "C F w --dir --prefix --cwd --filter --env-file",
    ),
    options("cargo", "Z --config", "--target-dir --out-dir", "C --manifest-path --path"),
    options("make gmake", "E --eval", "", "C f I --directory --file --makefile --include-dir"),
    options("go", "-exec -toolexec -vettool", "-o", "-C -modfile -overlay"),
    options("pytest py.test", "p", "--junitxml --junit-xml", "c --rootdir --confcutdir --config-file")
        .valued("knmrWo"),
    options(
        "gradle",
        "",
        "",
        "p I b c --project-dir --init-script --build-file --settings-file --include-build",
    ),
    options("mvn", "", "", "-f -s -gs --file --settings --global-settings"),
    options("tsc", "", "--outDir --outFile", "p --project"),
    options(
        "eslint",
        "",
        "o --output-file",
        "c f --config --rulesdir --resolve-plugins-relative-to --format --parser",
    ),
    options("prettier", "", "", "--config --plugin --plugin-search-dir"),
    options("jest", "", "", "c --config --rootDir --globalSetup --testRunner"),
    options("mypy ruff black", "--python-executable", "", "--config --config-file"),
    options("composer", "", "", "d --working-dir"),
    options("terraform", "", "", "-chdir"),
    options("poetry uv", "", "", "C P --directory --project --config-file"),
    options("bundle rake", "", "", "f --gemfile --rakefile"),
    options("vim vi nvim ex view emacs ed", "c S --cmd --eval --batch --load l", "w W", "u i"),
    options("sqlite3", "--cmd --init", "", ""),
];

/// What options of a call do besides.
#[derive(Default)]
pub(crate) struct Hazards {
    /// Words that run something. Their index is that of the argument.
    pub found: Vec<Hazard>,
    /// Paths that options name, to be read.
    pub reads: Vec<Field>,
    /// Paths that options name, to be written.
    pub writes: Vec<Field>,
}

/// Whether a program has an option that runs something or writes a file.
pub(crate) fn has_any(name: &str) -> bool {
    name == "git"
        || row(name).is_some_and(|row| !row.runs.is_empty() || !row.writes.is_empty())
        || writes_second(name)
        || name == "sed"
}

fn row(name: &str) -> Option<&'static Options> {
    TABLE.iter().find(|row| row.names.split(' ').any(|known| known == name))
}

fn writes_second(name: &str) -> bool {
    matches!(name, "uniq" | "xxd")
}

/// Looks at the arguments of a call.
pub(crate) fn hazards(name: &str, arguments: &[Field]) -> Hazards {
    let mut hazards = Hazards::default();
    if let Some(row) = row(name) {
        look(row, name, arguments, &mut hazards);
    }
    if matches!(name, "make" | "gmake") {
        // A variable that is set on the command line is expanded at once.
        for (index, text) in
            arguments.iter().enumerate().filter_map(|(index, word)| Some((index, word.known()?)))
        {
            let sets = ["SHELL", "MAKE", ".SHELL"].iter().any(|name| text.starts_with(name));
            if !text.starts_with('-') && text.contains('=') && (sets || text.contains('$')) {
                let why = format!("{text} may run a program");
                hazards.found.push(Hazard { word: index, why });
            }
        }
    }
    if name == "git" {
        git(arguments, &mut hazards);
    }
    if writes_second(name) {
        let operands = arguments.iter().filter(|argument| !argument.may_be_flag());
        hazards.writes.extend(operands.skip(1).cloned());
    }
    if matches!(name, "sed" | "gsed") {
        sed(arguments, &mut hazards);
    }
    hazards
}

/// The files that options of git write, in whichever folder it works.
fn git(arguments: &[Field], hazards: &mut Hazards) {
    const WRITES: &str =
        "--output --output-directory --index-output --export-marks --export-pack-edges --separate-git-dir";
    let Some((subcommand, rest)) = super::git::subcommand(arguments) else { return };
    let letters = matches!(subcommand, "archive" | "format-patch" | "bugreport" | "diagnose");
    let row = options("git", "", if letters { "o" } else { "" }, "");
    let mut written: Vec<(usize, Option<Field>)> = Vec::new();
    for (index, text) in rest.iter().enumerate().map_while(|(index, word)| {
        word.known().map_or(Some((index, "")), |text| (text != "--").then_some((index, text)))
    }) {
        let next = rest.get(index + 1);
        let value = row.matches(WRITES, text).or_else(|| row.matches(row.writes, text));
        written.extend(value.map(|value| (index, value.field(next))));
    }
    if subcommand == "bundle" && rest.first().and_then(Field::known) == Some("create") {
        let file = rest.iter().enumerate().skip(1).find(|(_, word)| !word.may_be_flag());
        written.extend(file.map(|(index, word)| (index, Some(word.clone()))));
    }
    let elsewhere = arguments.iter().any(|word| word.known() == Some("-C"));
    for (index, file) in written {
        match file {
            Some(file) if !elsewhere => hazards.writes.push(file),
            _ => {
                let word = arguments.len() - rest.len() + index;
                let why = "it writes a file in a folder that is not told".to_owned();
                hazards.found.push(Hazard { word, why });
            }
        }
    }
}

fn look(row: &Options, name: &str, arguments: &[Field], hazards: &mut Hazards) {
    for (index, argument) in arguments.iter().enumerate() {
        let Some(text) = argument.known() else {
            if argument.may_be_flag() && !(row.runs.is_empty() && row.reads.is_empty()) {
                let why = format!("it may be given options that are not known, by {}", argument.text);
                hazards.found.push(Hazard { word: index, why });
            }
            continue;
        };
        if text == "--" && name != "find" {
            break;
        }
        let next = arguments.get(index + 1);
        if row.matches(row.runs, text).is_some() {
            let why = format!("{text} may run a program or change what is run");
            hazards.found.push(Hazard { word: index, why });
        }
        hazards.writes.extend(row.matches(row.writes, text).and_then(|value| value.field(next)));
        hazards.reads.extend(row.matches(row.reads, text).and_then(|value| value.field(next)));
    }
}

/// Where the value of an option is.
enum OptionValue<'t> {
    /// In the same word.
    Here(&'t str),
    /// In the next word, if it has one.
    Next,
}

impl<'t> OptionValue<'t> {
    fn new(value: Option<&'t str>) -> Self {
        value.map_or(Self::Next, Self::Here)
    }

    fn field(self, next: Option<&Field>) -> Option<Field> {
        match self {
            Self::Here(value) => Some(Field::literal(value)),
            Self::Next => next.cloned(),
        }
    }
}

impl Options {
    /// Whether a word is one of these options. Long ones may be shortened.
    fn matches<'t>(&self, list: &str, text: &'t str) -> Option<OptionValue<'t>> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        for option in list.split_whitespace() {
            if option.ends_with('=') {
                if let Some(value) = text.strip_prefix(option) {
                    return Some(OptionValue::Here(value));
                }
            } else if option.starts_with("--") {
                if name.len() > 2 && name.starts_with("--") && option.starts_with(name) {
                    return Some(OptionValue::new(value));
                }
            } else if option.starts_with('-') {
                // Programs with long words behind one dash mostly take them behind two as well.
                if name == option || name.strip_prefix('-') == Some(option) {
                    return Some(OptionValue::new(value));
                }
            } else if let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.starts_with('-'))
                && let Some(at) = letters.find(option)
                && !letters[..at].contains(|letter| self.valued.contains(letter))
            {
                let value = letters[at + option.len()..].trim_start_matches('=');
                return Some(OptionValue::new(Some(value).filter(|value| !value.is_empty())));
            }
        }
        None
    }
}

/// `sed -i` writes what it reads, and a script may write and run.
fn sed(arguments: &[Field], hazards: &mut Hazards) {
    let in_place = |argument: &&Field| {
        argument.known().is_some_and(|text| {
            let short =
                text.strip_prefix('-').is_some_and(|rest| !rest.starts_with('-') && rest.contains('i'));
            let long =
                text.split('=').next().is_some_and(|name| name.len() > 2 && "--in-place".starts_with(name));
            short || long
        })
    };
    let plain: Vec<Field> = arguments.iter().filter(|argument| !in_place(argument)).cloned().collect();
    let call = text::sed(&plain);
    if call.kind != super::program::Kind::Reads {
        let why = call.because.unwrap_or_else(|| "its script is not known to be harmless".to_owned());
        hazards.found.push(Hazard { word: arguments.len().saturating_sub(1), why });
    }
    if plain.len() < arguments.len() {
        hazards.writes.extend(call.reads);
    }
}

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
    options("jq", "", "", "f --from-file L"),
    options("ln", "", "t --target-directory", "").valued("tS"),
    options(
        "tar gtar bsdtar",
        "I F P --use-compress-program --checkpoint-action --to-command --info-script --new-volume-script --rsh-command \
            --rmt-command --absolute-names",
        "C g --directory --listed-incremental --index-file --one-top-level --volno-file",
        "T --files-from X --exclude-from",
    ),
    options(
        "zip",
        "T TT @ --unzip-command --names-stdin",
        "b O lf --temp-path --output-file --logfile-path",
        "",
    ),
    options("man", "P H --pager --html --browser", "", "C --config-file M --manpath"),
    options("less more", "k --lesskey-file --lesskey-src", "o O --log-file --LOG-FILE", ""),
    options(
        "curl",
        "K O J --config --remote-name --remote-name-all --remote-header-name --proto-default --proto-redir --variable \
            --engine --cert-type --key-type --proxy-cert-type --proxy-key-type",
        "o D c --output --output-dir --dump-header --cookie-jar --trace --trace-ascii --stderr --libcurl --etag-save \
            --hsts --alt-svc --ssl-sessions --knownhosts",
        "T E --upload-file --cert --key --cacert --capath --crlfile --netrc-file --etag-compare --unix-socket \
            --proxy-cert --proxy-key --proxy-cacert --pubkey --random-file --egd-file",
    )
    .valued("XHdAbueFmxUQrtzCEPY"),
    options(
        "wget",
        "e --execute --use-askpass --config --input-file i",
        "O P o a --output-document --directory-prefix --output-file --append-output --save-cookies --hsts-file \
            --warc-file --warc-tempdir --rejected-log",
        "--post-file --body-file --load-cookies --certificate --private-key --ca-certificate --ca-directory",
    ),
    options("unzip", "", "d", ""),
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
        "--logs-dir --cache",
        "C w --prefix --local-prefix --userconfig --globalconfig --dir --workspace --cafile",
    ),
    options(
        "pnpm yarn bun",
        "r c --script-shell --shell --node-options --preload --require --config --use-yarnrc",
        "--modules-folder --cache-folder",
        "C F w --dir --prefix --cwd --filter --env-file",
    ),
    options("cargo", "Z --config", "--target-dir --out-dir", "C --manifest-path --path"),
    options("make gmake", "E --eval", "", "C f I --directory --file --makefile --include-dir")
        .valued("CEfIoW"),
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
    options(
        "vim vi nvim ex view vimdiff emacs ed",
        "c S --cmd --eval --batch --load l --funcall --execute --script",
        "w W --startuptime",
        "u i",
    ),
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
        if row.names.starts_with("tar ") {
            tar(row, arguments, &mut hazards);
        } else {
            look(row, name, arguments, &mut hazards);
        }
    }
    commands_of_editors(name, arguments, &mut hazards);
    if name == "git" {
        git(arguments, &mut hazards);
    }
    match name {
        "make" | "gmake" => make(arguments, &mut hazards),
        "jq" => jq(arguments, &mut hazards),
        _ => changed(name, arguments, &mut hazards),
    }
    if writes_second(name) {
        let operands = arguments.iter().filter(|argument| !argument.may_be_flag());
        hazards.writes.extend(operands.skip(1).cloned());
    }
    if name == "curl" {
        curl(arguments, &mut hazards);
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
        let long = long_of_npm(name, text);
        let text = long.as_deref().unwrap_or(text);
        if row.matches(row.runs, text).is_some() {
            let why = format!("{text} may run a program or change what is run");
            hazards.found.push(Hazard { word: index, why });
        }
        hazards.writes.extend(row.matches(row.writes, text).and_then(|value| value.field(next)));
        hazards.reads.extend(row.matches(row.reads, text).and_then(|value| value.field(next)));
    }
}

/// A long option as npm and its likes read it: behind any number of dashes.
fn long_of_npm(program: &str, text: &str) -> Option<String> {
    let name = text.trim_start_matches('-');
    let dashes = text.len() - name.len();
    let long = dashes > 0 && dashes != 2 && name.split('=').next().is_some_and(|name| name.len() > 1);
    (long && matches!(program, "npm" | "pnpm" | "yarn" | "bun")).then(|| format!("--{name}"))
}

/// The words that are no options.
fn operands(arguments: &[Field]) -> Vec<&Field> {
    let end = arguments.iter().position(|word| word.known() == Some("--")).unwrap_or(arguments.len());
    let (before, after) = arguments.split_at(end);
    before.iter().filter(|word| !word.may_be_flag()).chain(after.iter().skip(1)).collect()
}

/// The operands of programs that change the files they are given.
fn changed(name: &str, arguments: &[Field], hazards: &mut Hazards) {
    let has = |letters: &[char], long: &[&str]| {
        arguments.iter().filter_map(Field::known).any(|text| {
            long.contains(&text)
                || (text.starts_with('-') && !text.starts_with("--") && text.contains(letters))
        })
    };
    let operands = operands(arguments).into_iter().cloned();
    match name {
        "gzip" | "gunzip" | "bzip2" | "bunzip2" | "xz" | "unxz"
            if has(&['c', 't', 'l'], &["--stdout", "--to-stdout", "--test", "--list"]) =>
        {
            hazards.reads.extend(operands);
        }
        "gzip" | "gunzip" | "bzip2" | "bunzip2" | "xz" | "unxz" | "ln" => hazards.writes.extend(operands),
        "zip" if has(&['m'], &["--move"]) => hazards.writes.extend(operands),
        "zip" => {
            let mut operands = operands;
            hazards.writes.extend(operands.next());
            hazards.reads.extend(operands);
        }
        "chmod" => {
            let mode = |word: &Field| {
                let text = word.known().unwrap_or("/");
                text.contains(|c: char| "01234567+=-".contains(c))
                    && text.chars().all(|c| "01234567+=-,augorwxXst".contains(c))
            };
            // A mode that takes away begins like an option: then no operand is one.
            let given = has(&['r', 'w', 'x', 'X', 's', 't', '='], &[])
                || arguments.iter().any(|word| word.text.starts_with("--r"));
            let mut operands = operands.peekable();
            if !given {
                operands.next_if(mode);
            }
            hazards.writes.extend(operands);
        }
        _ => {}
    }
}

/// `make`: variables that are set on the command line take the place of those of its file, programs included, and
/// a file may come from its input.
fn make(arguments: &[Field], hazards: &mut Hazards) {
    let row = row("make");
    for (index, argument) in arguments.iter().enumerate() {
        let text = argument.known();
        let sets = text.is_none_or(|text| !text.starts_with('-') && text.contains('='));
        let file = text.zip(row).and_then(|(text, row)| row.matches("f --file --makefile", text));
        let streams = |text: &str| text == "-" || text.contains("dev/") || text.contains("proc/");
        let streamed = file.is_some_and(|value| {
            value.field(arguments.get(index + 1)).as_ref().and_then(Field::known).is_none_or(streams)
        });
        if sets || streamed {
            let why = format!("{} may change which programs run", argument.text);
            hazards.found.push(Hazard { word: index, why });
        }
    }
}

/// The files of `jq`: operands after its program, and those that options give a name to.
fn jq(arguments: &[Field], hazards: &mut Hazards) {
    let (mut files, mut from_file, mut words) = (Vec::new(), false, arguments.iter());
    while let Some(argument) = words.next() {
        match argument.known() {
            Some("--arg" | "--argjson") => {
                words.nth(1);
            }
            Some("--rawfile" | "--slurpfile" | "--argfile") => hazards.reads.extend(words.nth(1).cloned()),
            Some("--indent" | "-L" | "--library-path") => {
                words.next();
            }
            Some("--args" | "--jsonargs") => break,
            Some("--") => files.extend(words.by_ref().cloned()),
            Some(text) if text.starts_with('-') => {
                from_file |= text == "--from-file" || (!text.starts_with("--") && text.contains('f'));
            }
            _ => files.push(argument.clone()),
        }
    }
    hazards.reads.extend(files.into_iter().skip(usize::from(!from_file)));
}

/// `tar`, whose first word may be letters without a dash: their values are the words after it, in their order.
fn tar(row: &Options, arguments: &[Field], hazards: &mut Hazards) {
    const VALUED: &str = "bCfFgHIKLNTVX";
    let (mut words, mut origins) = (Vec::new(), Vec::new());
    let mut from = 0;
    match arguments.first().map(|word| (word, word.known())) {
        Some((_, Some(letters))) if !letters.starts_with('-') => {
            from = 1;
            for letter in letters.chars() {
                words.push(Field::literal(&format!("-{letter}")));
                origins.push(0);
                if VALUED.contains(letter)
                    && let Some(value) = arguments.get(from)
                {
                    words.push(value.clone());
                    origins.push(from);
                    from += 1;
                }
            }
        }
        Some((word, None)) => {
            let why = format!("it may be given options that are not known, by {}", word.text);
            hazards.found.push(Hazard { word: 0, why });
        }
        _ => {}
    }
    words.extend_from_slice(&arguments[from..]);
    origins.extend(from..arguments.len());
    let before = hazards.found.len();
    look(row, "tar", &words, hazards);
    archives(&words, hazards);
    for hazard in &mut hazards.found[before..] {
        hazard.word = origins[hazard.word];
    }
}

/// The archives that `tar` writes, or reaches by running a program that connects to another machine.
fn archives(words: &[Field], hazards: &mut Hazards) {
    const CHANGES: &str = "c r u A --create --append --update --catenate --concatenate --delete";
    let row = options("tar", "", "", "").valued("bCfFgHIKLNTVX");
    let texts = || words.iter().enumerate().filter_map(|(index, word)| Some((index, word.known()?)));
    let changes = texts().any(|(_, text)| row.matches(CHANGES, text).is_some());
    let row = options("tar", "", "", "").valued("bCFgHIKLNTVX");
    for (index, text) in texts() {
        let Some(value) = row.matches("f --file", text) else { continue };
        let Some(archive) = value.field(words.get(index + 1)) else { continue };
        if archive.known().is_none_or(|name| name.contains(':')) {
            let why = format!("{} may be on another machine, reached by a program", archive.text);
            hazards.found.push(Hazard { word: index, why });
        }
        if changes && archive.known() != Some("-") {
            hazards.writes.push(archive);
        }
    }
}

/// Words that some programs take as commands to begin with: `vim +cmd`, `ed !cmd`, and `vim -s keys`.
fn commands_of_editors(name: &str, arguments: &[Field], hazards: &mut Hazards) {
    let runs = |text: &str| match name {
        "ed" => text.starts_with('!'),
        "vim" | "vi" | "nvim" | "ex" | "view" | "vimdiff" | "less" | "more" => {
            let command = text.strip_prefix('+').unwrap_or("");
            let letters = text.strip_prefix('-').unwrap_or("");
            !command.is_empty() && !command.bytes().all(|byte| byte.is_ascii_digit())
                || (letters.contains(['s', 'u', 'S', 'c', 'W', 'w']) && !matches!(name, "less" | "more"))
        }
        "sqlite3" => {
            let command = |line: &str| line.trim_start().starts_with('.');
            text.lines().any(command) || ["-init", "-cmd", "--init", "--cmd"].contains(&text)
        }
        _ => false,
    };
    for (index, argument) in arguments.iter().enumerate() {
        if let Some(text) = argument.known().filter(|text| runs(text)) {
            let why = format!("{text} may run a program or change what is run");
            hazards.found.push(Hazard { word: index, why });
        }
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

/// Values and addresses of `curl` that are files of this machine, or may be.
fn curl(arguments: &[Field], hazards: &mut Hazards) {
    let row = options("curl", "", "", "").valued("AbcCdDeEFHKmoPQrtTuUwxXyYz");
    for (index, argument) in arguments.iter().enumerate() {
        let Some(text) = argument.known() else { continue };
        let next = arguments.get(index + 1);
        let mut files = curl_values(&row, text, next);
        let body = index.checked_sub(1).is_some_and(|before| is_curl_body(&arguments[..=before]));
        files.extend(curl_address(text, body));
        for file in files {
            match file {
                Ok(file) => hazards.reads.push(file),
                Err(why) => hazards.found.push(Hazard { word: index, why }),
            }
        }
    }
}

/// The files that values of an option of `curl` name, or why they are not known.
fn curl_values(row: &Options, text: &str, next: Option<&Field>) -> Vec<Result<Field, String>> {
    type Cut = fn(&str) -> Result<Option<&str>, &'static str>;
    let cuts: [(&str, Cut); 6] = [
        ("d H --data --data-ascii --data-binary --json --header --proxy-header --url", |value| {
            Ok(value.strip_prefix('@'))
        }),
        ("--data-urlencode --url-query", |value| {
            Ok(value.split_once('@').filter(|(name, _)| !name.contains('=')).map(|(_, file)| file))
        }),
        ("b --cookie", |value| Ok(Some(value).filter(|value| !value.is_empty() && !value.contains('=')))),
        ("F --form", |value| {
            let given = |mark: &str| value.split_once(mark).map(|(_, file)| file);
            match given("=@").or_else(|| given("=<")) {
                Some(file) if file.contains(['=', ';', ',', '"', '\\']) => Err("it may send several files"),
                file => Ok(file),
            }
        }),
        ("T --upload-file", |value| {
            if value.contains(['{', '[']) { Err("it may send several files") } else { Ok(None) }
        }),
        ("w --write-out", |value| {
            let plain = !value.contains("%output") && !value.starts_with('@');
            if plain { Ok(None) } else { Err("its format may write a file") }
        }),
    ];
    let mut found = Vec::new();
    for (list, cut) in cuts {
        let Some(value) = row.matches(list, text).and_then(|value| value.field(next)) else { continue };
        match value.known().map(cut) {
            Some(Ok(None)) => {}
            Some(Ok(Some(file))) => found.push(Ok(Field::literal(file))),
            Some(Err(why)) => found.push(Err(why.to_owned())),
            None => found.push(Err(format!("which file {} names is not known", value.text))),
        }
    }
    found
}

/// The file that an address names, or why it may name one.
fn curl_address(text: &str, body: bool) -> Option<Result<Field, String>> {
    if let Some(path) = text.strip_prefix("file://").filter(|path| path.starts_with('/'))
        && !path.contains(['%', '{', '}', '[', ']', '?', '#', '\\'])
    {
        return Some(Ok(Field::literal(path)));
    }
    let special = text.find(['{', '[']);
    let scheme = text.find("://").unwrap_or(text.len());
    let doubted = text.to_lowercase().contains("file:")
        || text.starts_with("--expand-")
        || (!body && text.contains(':') && special.is_some_and(|special| special < scheme));
    doubted.then(|| Err(format!("{text} may name a file of this machine")))
}

/// Whether what follows these words of `curl` is certainly sent and no address.
fn is_curl_body(before: &[Field]) -> bool {
    const PLAIN: &str = "--silent --show-error --fail --location --insecure --verbose --compressed --include";
    let texts: Vec<&str> = before.iter().rev().take(2).map(|word| word.known().unwrap_or("-")).collect();
    let sends = |text: &str| {
        text.starts_with("--data")
            || matches!(text, "-d" | "-sd" | "--json" | "-H" | "--header" | "-F" | "--form")
    };
    let valueless = |text: &str| {
        let letters = text.strip_prefix('-').unwrap_or("s");
        letters.chars().all(|letter| "sSfLkivgGIN".contains(letter)) || super::lists(PLAIN, text)
    };
    // The option may itself be the value of one that stands before it.
    texts.first().is_some_and(|text| sends(text))
        && texts.get(1).is_none_or(|text| !text.starts_with('-') || valueless(text))
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

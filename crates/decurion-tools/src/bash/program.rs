//! Programs known to change nothing. Takes a program's name and arguments; says whether this call of it
//! only reads, which paths it would read, and if not, why.
//!
//! The list is by program *and by flag*: a flag that is not listed makes the call an ordinary one, about
//! which rules or people decide. So a flag that writes or runs something need not be known to be refused.

use camino::Utf8Path;

use super::expand::Field;
use super::{git, text};

/// What is known about one call of a program.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may go with any")]
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    /// What kind of call it is.
    pub kind: Kind,
    /// Why it is not read-only.
    pub because: Option<String>,
    /// Why nothing can be said about it.
    pub doubt: Option<String>,
    /// Operands that are read.
    pub reads: Vec<Field>,
    /// Operands that are written.
    pub writes: Vec<Field>,
    /// Whether it only prints its words, however many.
    pub prints: bool,
    /// Whether what is read includes all that lies below.
    pub below: bool,
    /// Whether it reads the directory it runs in, with all that lies below.
    pub here: bool,
    /// Whether names that start with a dot are left out when going down.
    pub visible: bool,
    /// Whether it follows links that it meets when going down.
    pub follows: bool,
    /// Whether it uses the names of what it is given, and not what is behind them.
    pub names: bool,
    /// Whether its paths cannot be told.
    pub anywhere: bool,
}

/// The kinds of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing is known about it.
    #[default]
    Other,
    Reads,
    /// It changes the paths it names and nothing else.
    Edits,
}

impl Call {
    /// A call that changes nothing and names no path.
    pub fn harmless() -> Self {
        Self { kind: Kind::Reads, ..Self::default() }
    }

    /// A call that reads these.
    pub fn reading(reads: Vec<Field>) -> Self {
        Self { kind: Kind::Reads, reads, ..Self::default() }
    }

    /// A call that is not known to be harmless.
    pub fn other(because: impl Into<String>) -> Self {
        Self { because: Some(because.into()), ..Self::default() }
    }

    /// A call about which nothing can be said.
    pub fn doubtful(doubt: impl Into<String>) -> Self {
        Self { doubt: Some(doubt.into()), ..Self::default() }
    }
}

/// What operands of a program are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operands {
    Paths,
    /// A pattern, unless a flag gave one, then paths.
    PatternPaths,
    /// Text that names nothing.
    Text,
    /// At most one path: a second one would be written to.
    OnePath,
    /// None may be there.
    Absent,
}

/// One row of the table.
struct Program {
    names: &'static str,
    /// Flags without a value: letters and `--words`.
    flags: &'static str,
    /// Flags with a value that is not a path.
    values: &'static str,
    /// Flags with a value that is a path to read.
    paths: &'static str,
    operands: Operands,
    /// Whether `-5` is a flag.
    numbers: bool,
    spelling: Spelling,
}

/// How letters may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Several in one word, the last with its value.
    #[default]
    Together,
    /// One in a word, with its value: the program looks at the first letter only.
    First,
    /// One in a word, without its value, exactly as listed: the program reads letters in its own way.
    Exact,
}

const fn row(names: &'static str, flags: &'static str, operands: Operands) -> Program {
    Program { names, flags, values: "", paths: "", operands, numbers: false, spelling: Spelling::Together }
}

impl Program {
    const fn values(mut self, values: &'static str) -> Self {
        self.values = values;
        self
    }
    const fn paths(mut self, paths: &'static str) -> Self {
        self.paths = paths;
        self
    }
    const fn numbers(mut self) -> Self {
        self.numbers = true;
        self
    }
    const fn single(mut self) -> Self {
        self.spelling = Spelling::First;
        self
    }
    const fn exact(mut self) -> Self {
        self.spelling = Spelling::Exact;
        self
    }
}

use Operands::{Absent, OnePath, Paths, PatternPaths, Text};

/// A flag stands in `values` or `paths` only if its program always takes the next word for its value. Where the value is
/// optional it must be in the same word, and the next word is a file: such long flags stand in `flags`, which may all have
/// a value after `=`, and such letters nowhere.
static PROGRAMS: &[Program] = &[
    row("true false : exit", "", Text),
    row("pwd", "L P --logical --physical", Absent),
    row("whoami tty logname nproc arch groups hostid", "s --silent --quiet --all", Text).values("--ignore"),
    row("users", "", Absent),
    row("id", "a g G n r u z --group --groups --name --real --user --zero --context", Text),
    row("uname", "a s n r v m p i o --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor --hardware-platform --operating-system", Absent),
    row("hostname", "f s d i I A --fqdn --short --domain --ip-address --all-ip-addresses --long", Absent),
    row("uptime", "p s --pretty --since", Absent),
    row("free", "b k m g h t w l --bytes --kilo --mega --giga --kibi --mebi --gibi --human --total --wide --lohi --si", Absent),
    row("lscpu", "a b c e J p x y --all --online --offline --json --extended --parse --hex", Absent),
    row("lsblk", "a b d f i J l m n p P r S t --all --bytes --fs --json --list --perms --noheadings --paths --pairs --raw --topology", Absent).values("o --output"),
    row("locale", "a m k c --all-locales --charmaps", Text),
    row("cal ncal", "1 3 y j m s --monday --sunday --julian --year", Text),
    row("getconf", "a", Text),
    row("df", "a h H i k l m P T --all --human-readable --si --inodes --local --portability --print-type --total", Text).values("B t x --block-size --type --exclude-type --output"),
    row("echo", "", Text),
    row("basename", "a z --multiple --zero", Text).values("s --suffix"),
    row("dirname", "z --zero", Text),
    row("seq", "w --equal-width", Text).values("f s --format --separator"),
    row("sleep yes expr factor", "", Text),
    row("umask", "S p", Absent),
    row("ulimit", "a S H c d f i l m n p q s t u v x", Absent),
    row("which", "a --all", Text),
    row("type", "a t p P f", Text),
    row("printenv", "0 --null", Text),
    row("tr", "c C d s t --complement --delete --squeeze-repeats --truncate-set1", Text),
    row("cat", "A b e E n s t T u v --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting", Paths),
    row("tac", "b r --before --regex", Paths).values("s --separator"),
    row("rev", "", Paths),
    row("head", "q v z --quiet --silent --verbose --zero-terminated", Paths).values("n c --lines --bytes").numbers(),
    row("tail", "q v z f F r --quiet --silent --verbose --zero-terminated --follow --retry", Paths).values("n c s --lines --bytes --pid --sleep-interval").numbers(),
    row("wc", "c m l L w --bytes --chars --lines --max-line-length --words", Paths).values("--total").paths("--files0-from"),
    row("ls dir vdir", "a A b B c C d D f F g G h H i k l L m n N o p q Q r R s S t u U v x X Z 1 --all --almost-all --author --escape --ignore-backups --directory --dired --classify --file-type --full-time --group-directories-first --no-group --human-readable --si --dereference-command-line --dereference-command-line-symlink-to-dir --inode --kibibytes --dereference --literal --hide-control-chars --show-control-chars --quote-name --reverse --recursive --size --context --zero --color --hyperlink", Paths).values("I T w --hide --ignore --indicator-style --format --sort --time --time-style --block-size --quoting-style --tabsize --width"),
    row("stat", "L f t --dereference --file-system --terse", Paths).values("c --format --printf --cached"),
    row("file", "b i k L h N r s v 0 --brief --mime --mime-type --mime-encoding --keep-going --dereference --no-dereference --no-pad --raw --special-files --extension --print0", Paths).values("F e P --separator --exclude --parameter"),
    row("du", "a b c h H k l L m P s S x 0 --all --apparent-size --bytes --total --human-readable --si --count-links --dereference --no-dereference --summarize --separate-dirs --one-file-system --null --inodes --time", Paths).values("d t B --max-depth --threshold --block-size --exclude --time-style").paths("X --exclude-from --files0-from"),
    row("readlink", "f e m n q s v z --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent --verbose --zero", Paths),
    row("realpath", "e m L P q s z --canonicalize-existing --canonicalize-missing --logical --physical --quiet --strip --no-symlinks --zero", Paths).values("--relative-to --relative-base"),
    row("cut", "n s z --complement --only-delimited --zero-terminated", Paths).values("b c d f --bytes --characters --delimiter --fields --output-delimiter"),
    row("paste", "s z --serial --zero-terminated", Paths).values("d --delimiters"),
    row("join", "i z --ignore-case --check-order --nocheck-order --header", Paths).values("a e o t v 1 2 j"),
    row("nl", "p", Paths).values("b d f h i l n s v w --body-numbering --number-format --number-separator --number-width --starting-line-number --line-increment"),
    row("fold", "b s --bytes --spaces", Paths).values("w --width").numbers(),
    row("fmt", "c s t u --crown-margin --split-only --tagged-paragraph --uniform-spacing", Paths).values("w p g --width --prefix --goal").numbers(),
    row("pr", "a d F f J m r t T", Paths).values("l w o h N"),
    row("expand unexpand", "i a --initial --all --first-only", Paths).values("t --tabs"),
    row("column", "t x J --table --json", Paths).values("s o c N R H").single(),
    row("comm", "1 2 3 z --check-order --nocheck-order --total --zero-terminated", Paths).values("--output-delimiter"),
    row("cmp", "b l s --print-bytes --verbose --quiet --silent", Paths).values("i n --ignore-initial --bytes"),
    row("diff", "a b B c d E e i n N p q r s t T u w y Z --text --ignore-space-change --ignore-blank-lines --brief --ed --ignore-case --new-file --unidirectional-new-file --show-c-function --recursive --report-identical-files --expand-tabs --initial-tab --ignore-all-space --ignore-trailing-space --ignore-tab-expansion --side-by-side --minimal --no-dereference --speed-large-files --suppress-common-lines --left-column --strip-trailing-cr --color --unified --context --normal", Paths).values("U C W I x L --width --ignore-matching-lines --exclude --label --horizon-lines --tabsize").numbers(),
    row("sort", "b d f g i h M n R r V c C m s u z --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort --ignore-nonprinting --human-numeric-sort --month-sort --numeric-sort --random-sort --reverse --version-sort --check --merge --stable --unique --zero-terminated --debug", Paths).values("k t S --key --field-separator --buffer-size --sort --parallel"),
    row("uniq", "c d D i u z --count --repeated --ignore-case --unique --zero-terminated --all-repeated --group", OnePath).values("f s w --skip-fields --skip-chars --check-chars"),
    row("tsort numfmt sum", "r s z --debug --grouping --header", Paths).values("d --from --to --field --format --padding --suffix"),
    row("md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum shasum", "b t z --binary --tag --text --zero --quiet", Paths).values("a l --algorithm --length"),
    row("od", "a b c d f h i l o s v x An Ax Ad Ao tx1 tx2 tx4 tc tu1 td1 w16 w32", Paths).values("A j N t").exact(),
    row("hexdump hd", "b c C d o v x", Paths).values("n s").exact(),
    row("xxd", "a b e i p ps u", OnePath).values("c g l s o").exact(),
    row("strings", "a d f w --all --data --print-file-name --include-all-whitespace", Paths).values("n t e s").exact(),
    row("base64 base32", "d i D --decode --ignore-garbage", Paths).values("w --wrap --break"),
    row("iconv", "c l s --list --silent", Paths).paths("f t --from-code --to-code"),
    row("grep egrep fgrep", "a b c E F G h H i I l L n o P q r R s T U v w x y z Z --text --byte-offset --count --extended-regexp --fixed-strings --basic-regexp --no-filename --with-filename --ignore-case --no-ignore-case --files-with-matches --files-without-match --line-number --only-matching --perl-regexp --quiet --silent --recursive --dereference-recursive --no-messages --initial-tab --binary --invert-match --word-regexp --line-regexp --null-data --null --color --colour --line-buffered", PatternPaths).values("e m A B C D d --regexp --max-count --after-context --before-context --context --binary-files --devices --directories --include --exclude --exclude-dir --label --group-separator").paths("f --file --exclude-from").numbers(),
    row("rg", "a b c F H h i I l L n N o P q s S u U v w x 0 p . --text --byte-offset --count --count-matches --fixed-strings --with-filename --no-filename --ignore-case --files-with-matches --files-without-match --files --follow --line-number --no-line-number --only-matching --pcre2 --quiet --case-sensitive --smart-case --unrestricted --multiline --multiline-dotall --invert-match --word-regexp --line-regexp --null --pretty --hidden --no-hidden --no-ignore --no-ignore-vcs --no-ignore-parent --no-ignore-global --no-heading --heading --column --no-column --json --stats --trim --vimgrep --crlf --no-messages --no-config --no-unicode --type-list --block-buffered --line-buffered --one-file-system --passthru --glob-case-insensitive --max-columns-preview --null-data --version", PatternPaths).values("A B C d e E g j m M r t T --after-context --before-context --context --max-depth --maxdepth --regexp --encoding --glob --iglob --threads --max-count --max-columns --replace --type --type-not --color --colors --sort --sortr --max-filesize --engine --context-separator --field-match-separator").paths("f --file --ignore-file"),
    row("fd fdfind", "H I u s i g F a L p 0 1 q --hidden --no-ignore --unrestricted --case-sensitive --ignore-case --glob --regex --fixed-strings --absolute-path --follow --full-path --print0 --quiet --no-ignore-vcs --show-errors --prune --one-file-system", PatternPaths).values("d t e E S c j --max-depth --min-depth --exact-depth --type --extension --exclude --size --changed-within --changed-before --owner --color --threads --max-results"),
    row("tree", "a d f i l x p s h u g D F q N Q n C r t c U v J --dirsfirst --noreport --prune --du --si --inodes --device", Paths).values("L P I").exact(),
    row("zcat gzcat", "", Paths),
];

/// Programs of which only the question for their version is known to be harmless. Not here: those whose launcher
/// looks into the project first and runs what it finds there (`yarn` its `yarnPath`, `cargo` the toolchain of a
/// `rust-toolchain.toml`, `mvn` and `sbt` with options of the project's, `bazel` its `tools/bazel`, `tox` its `toxfile.py`,
/// `go` the toolchain of a `go.mod`).
const VERSIONED: &str = "node npm python python2 python3 pip pip3 ruby gem perl php java javac gcc g++ cc clang \
    clang++ make cmake ninja meson docker podman kubectl helm aws gh git bash zsh fish sh curl wget ssh tar gzip zip \
    unzip sqlite3 psql mysql redis-cli jq yq sed awk gawk grep rg fd find ls cat vim nvim emacs tmux ghc lua luajit \
    ocaml apt dpkg systemctl openssl gpg ffmpeg ld as objdump gdb lldb strace svn nasm protoc";

/// Programs that change the paths they name and nothing else, with the flags that keep it so.
const EDITING: &[(&str, &str, &str)] = &[
    ("mkdir", "p v --parents --verbose", "m --mode"),
    ("tee", "a --append", ""),
    ("rmdir", "p v --parents --verbose --ignore-fail-on-non-empty", ""),
    ("touch", "a c m h --no-create --no-dereference", "t d --time --date"),
    (
        "cp",
        "a d f i n p r R T u v x --archive --force --interactive --no-clobber --recursive --no-target-directory --update --verbose --one-file-system --preserve --no-dereference",
        "t --target-directory",
    ),
    (
        "mv",
        "f i n u v T --force --interactive --no-clobber --update --verbose --no-target-directory",
        "t --target-directory",
    ),
];

/// Whether a program removes each of its operands.
pub fn removes_operands(program: &str) -> bool {
    matches!(program, "rm" | "rmdir" | "unlink" | "shred")
}

/// Whether a program puts another file in the place of its last operand.
pub fn replaces_target(program: &str) -> bool {
    matches!(program, "mv" | "ln")
}

/// Judges one call.
///
/// A word that may become several words, or none, is known to be harmless only as an operand of which the program takes
/// any number: anywhere else it moves the words after it to other places. So that no program's own code can forget
/// this, every such word must be among what the call reads, writes or prints.
pub(crate) fn judge(name: &str, arguments: &[Field]) -> Call {
    let call = judge_words(name, arguments);
    let mut operands: Vec<&Field> = call.reads.iter().chain(&call.writes).collect();
    let mut is_operand = |word: &Field| {
        let at = operands.iter().position(|operand| *operand == word);
        at.map(|at| operands.swap_remove(at)).is_some()
    };
    let moves = arguments.iter().find(|word| !word.is_one_word() && !is_operand(word));
    match moves {
        Some(word) if call.kind != Kind::Other && !call.prints => {
            let because = several_words(word);
            Call { reads: possible_paths(arguments), writes: call.writes, ..Call::other(because) }
        }
        _ => call,
    }
}

/// Why a word that may become several words, or none, cannot stand where exactly one is taken.
fn several_words(word: &Field) -> String {
    format!("{} may become several words, which moves those after it to other places", word.text)
}

fn judge_words(name: &str, arguments: &[Field]) -> Call {
    if let [only] = arguments
        && asks_version(name, only)
    {
        return Call::harmless();
    }
    match name {
        "git" => git::judge(arguments),
        "find" => find(arguments),
        "sed" => text::sed(arguments),
        "awk" | "gawk" | "mawk" => text::awk(arguments),
        "jq" => text::jq(arguments),
        "printf" => printf(arguments),
        "tput" => tput(arguments),
        // `-x` runs what follows, and `-p` evaluates the subscript of a name.
        "jobs" | "wait" if arguments.iter().any(Field::may_be_flag) => {
            Call::doubtful("it may run something or set a variable")
        }
        "date" => date(arguments),
        "ps" => ps(arguments),
        "tar" => tar(arguments),
        "unzip" | "zipinfo" => archive_list(name, arguments),
        "env" if arguments.is_empty() => Call::harmless(),
        "set" => set(arguments),
        "shopt" => Call::doubtful("it changes which files globs find"),
        "command" => command_lookup(arguments),
        "test" | "[" => test(arguments),
        "docker" | "podman" => docker(arguments),
        "printenv" => printenv(arguments),
        "mkdir" | "rmdir" | "touch" | "cp" | "mv" | "tee" => edit(name, arguments),
        _ => listed(name, arguments),
    }
}

/// Whether some calls of a program are known to change nothing.
pub(crate) fn is_known(name: &str) -> bool {
    find_row(name).is_some()
}

fn find_row(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|row| row.names.split(' ').any(|known| known == name))
}

fn has(list: &str, wanted: &str) -> bool {
    list.split(' ').any(|known| known == wanted)
}

fn asks_version(name: &str, argument: &Field) -> bool {
    let asked = match argument.known() {
        Some("--version") => true,
        // The shells and some others would open a pager or do more.
        Some("--help") => !has("bash sh zsh fish man aws npm git", name),
        Some("-v") => has("node npm ruby php", name),
        Some("-V") => has("python python3 perl make sed", name),
        Some("-version") => name == "java",
        _ => false,
    };
    asked && (find_row(name).is_some() || super::lists(VERSIONED, name))
}

/// Arguments taken apart by one of the lists.
#[derive(Default)]
pub(crate) struct Parsed {
    /// Flags seen, with their values.
    pub flags: Vec<(String, Option<Field>)>,
    pub operands: Vec<Field>,
}

impl Parsed {
    /// Whether one of these flags was seen.
    pub fn saw(&self, flags: &[&str]) -> bool {
        self.flags.iter().any(|(seen, _)| flags.contains(&seen.as_str()))
    }
}

/// The flags a program is known by.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags<'a> {
    pub plain: &'a str,
    pub values: &'a str,
    /// With a path to read as value.
    pub paths: &'a str,
    /// Letters whose value, if they have one, is in the same word.
    pub glued: &'a str,
    /// Whether `-5` is a flag.
    pub numbers: bool,
    /// Whether flags end at the first operand.
    pub leading: bool,
    /// How letters may be written.
    pub spelling: Spelling,
}

/// Takes arguments apart; an error says which argument is not known.
pub(crate) fn parse(arguments: &[Field], known: Flags<'_>) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.known() else {
            if argument.may_be_flag() {
                return Err(format!("it may be given flags that are not known, by {}", argument.text));
            }
            // The first operand is a command or a script.
            if known.leading {
                return Err(several_words(argument));
            }
            parsed.operands.push(argument.clone());
            continue;
        };
        if text == "--" {
            parsed.operands.extend(rest.cloned());
            break;
        }
        if !text.starts_with('-') || text == "-" {
            if known.leading {
                parsed.operands.push(argument.clone());
                parsed.operands.extend(rest.cloned());
                break;
            }
            parsed.operands.push(argument.clone());
            continue;
        }
        let unknown = || format!("it has a flag that is not known to be harmless, {text}");
        if text.starts_with("--") {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(Field::literal(value))),
                None => (text, None),
            };
            if has(known.plain, name) {
                parsed.flags.push((name.to_owned(), value));
            } else if has(known.values, name) || has(known.paths, name) {
                let value = match value {
                    Some(value) => value,
                    None => rest.next().cloned().ok_or_else(unknown)?,
                };
                check_value(&value)?;
                parsed.flags.push((name.to_owned(), Some(value)));
            } else {
                return Err(unknown());
            }
            continue;
        }
        short(text, known, &mut rest, &mut parsed).ok_or_else(unknown)?;
        if let Some((_, Some(value))) = parsed.flags.last() {
            check_value(value)?;
        }
    }
    Ok(parsed)
}

/// The value of a flag must be exactly one word.
fn check_value(value: &Field) -> Result<(), String> {
    if !value.is_one_word() {
        return Err(several_words(value));
    }
    Ok(())
}

fn short<'f>(
    text: &str,
    known: Flags<'_>,
    rest: &mut impl Iterator<Item = &'f Field>,
    parsed: &mut Parsed,
) -> Option<()> {
    let letters = &text[1..];
    if known.numbers && letters.bytes().all(|byte| byte.is_ascii_digit()) {
        parsed.flags.push((letters.to_owned(), None));
        return Some(());
    }
    // A few programs have words behind one dash.
    if letters.len() > 1 && has(known.plain, letters) {
        parsed.flags.push((letters.to_owned(), None));
        return Some(());
    }
    if known.spelling == Spelling::Exact && letters.chars().count() > 1 {
        return None;
    }
    for (index, letter) in letters.char_indices() {
        let name = letter.to_string();
        if known.spelling == Spelling::First && index > 0 {
            return None;
        }
        if has(known.glued, &name) {
            let tail = &letters[index + letter.len_utf8()..];
            parsed.flags.push((name, (!tail.is_empty()).then(|| Field::literal(tail))));
            return Some(());
        }
        if has(known.values, &name) || has(known.paths, &name) {
            let tail = &letters[index + letter.len_utf8()..];
            let value = if tail.is_empty() { rest.next()?.clone() } else { Field::literal(tail) };
            parsed.flags.push((name, Some(value)));
            return Some(());
        }
        if !has(known.plain, &name) {
            return None;
        }
        parsed.flags.push((name, None));
    }
    Some(())
}

fn listed(name: &str, arguments: &[Field]) -> Call {
    let Some(row) = find_row(name) else {
        return Call::other("it may change things");
    };
    // These take everything as text.
    if matches!(name, "echo" | "yes" | "expr" | ":" | "true" | "false") {
        return Call { prints: name == "echo", ..Call::harmless() };
    }
    let flags = Flags {
        plain: row.flags,
        values: row.values,
        paths: row.paths,
        glued: "",
        numbers: row.numbers,
        leading: false,
        spelling: row.spelling,
    };
    let mut parsed = match parse(arguments, flags) {
        Ok(parsed) => parsed,
        // Any of its words may be a path that it reads.
        Err(because) => {
            let anywhere = arguments.iter().any(|argument| argument.pattern.is_none());
            return Call { reads: possible_paths(arguments), anywhere, ..Call::other(because) };
        }
    };
    let recursive = match name {
        "grep" | "egrep" | "fgrep" => {
            parsed.saw(&["r", "R", "--recursive", "--dereference-recursive"])
                || parsed.flags.iter().any(|(flag, value)| {
                    matches!(flag.as_str(), "d" | "--directories")
                        && value.as_ref().and_then(Field::known) != Some("skip")
                })
        }
        // Given folders, `diff` compares what is in them, also without a flag.
        "rg" | "fd" | "fdfind" | "diff" => true,
        _ => false,
    };
    let mut call = Call { kind: Kind::Reads, below: recursive, ..Call::default() };
    if matches!(name, "rg" | "fd" | "fdfind") {
        // Hidden files are left out, but for those that a glob names or that an ignore file says to search.
        let hidden = [".", "u", "H", "--hidden", "--unrestricted", "g", "--glob", "--iglob", "--ignore-file"];
        call.visible = parsed.saw(&["--no-ignore"]) && !parsed.saw(&hidden);
    }
    call.follows = follows(name, &parsed);
    call.names = matches!(name, "ls" | "dir" | "vdir") && parsed.saw(&["d", "--directory"]);
    // These go down by themselves, and by that flag also where a link leads.
    call.below |= call.follows;
    for (flag, value) in &parsed.flags {
        if has(row.paths, flag) {
            call.reads.extend(value.clone());
            if flag.contains("files0-from") {
                call.anywhere = true;
            }
        }
    }
    // It takes more options from a file that any of its words names so, also one that is a value.
    if name == "strings" && arguments.iter().any(may_name_options) {
        return Call::other("it may take options from a file");
    }
    // It takes a name that is not there with another ending.
    let ends = |word: &Field| {
        word.pattern.as_ref().is_none_or(|name| Utf8Path::new(&name.text).extension() == Some("gz"))
    };
    if matches!(name, "zcat" | "gzcat") && !parsed.operands.iter().all(ends) {
        return Call { reads: parsed.operands, ..Call::other("it may read a file of another name") };
    }
    match row.operands {
        Operands::Text => {}
        Absent if parsed.operands.is_empty() => {}
        Absent => return Call::other("it is given an operand"),
        OnePath
            if parsed.operands.len() > 1
                || parsed.operands.iter().any(|operand| operand.splits || operand.is_glob()) =>
        {
            return Call::other("its second operand would be written to");
        }
        PatternPaths => {
            let given = parsed.saw(&["e", "f", "--regexp", "--file", "--files", "--type-list"]);
            if !given && !parsed.operands.is_empty() {
                parsed.operands.remove(0);
            }
            call.here = recursive && parsed.operands.is_empty();
            call.reads.append(&mut parsed.operands);
        }
        Paths | OnePath => call.reads.append(&mut parsed.operands),
    }
    call
}

/// Whether a word is `@file`, or a glob that may find such a name.
fn may_name_options(word: &Field) -> bool {
    word.pattern.as_ref().is_some_and(|pattern| {
        pattern.text.starts_with('@')
            || (pattern.glob && !pattern.text.starts_with(|c: char| c.is_alphanumeric() || c == '.'))
    })
}

/// Whether a program goes where links lead that it meets below what it is given.
fn follows(name: &str, parsed: &Parsed) -> bool {
    match name {
        "grep" | "egrep" | "fgrep" => parsed.saw(&["R", "--dereference-recursive"]),
        "rg" | "fd" | "fdfind" => parsed.saw(&["L", "--follow"]),
        "diff" => !parsed.saw(&["--no-dereference"]),
        "ls" | "dir" | "vdir" => parsed.saw(&["R", "--recursive"]) && parsed.saw(&["L", "--dereference"]),
        "tree" => parsed.saw(&["l"]),
        "du" => parsed.saw(&["L", "--dereference"]),
        _ => false,
    }
}

fn edit(name: &str, arguments: &[Field]) -> Call {
    let Some((_, flags, values)) = EDITING.iter().find(|(known, _, _)| *known == name) else {
        return Call::other("it changes files");
    };
    let parsed = match parse(arguments, Flags { plain: flags, values, ..Flags::default() }) {
        Ok(parsed) => parsed,
        // Any of its words may be a path that it changes.
        Err(because) => return Call { writes: possible_paths(arguments), ..Call::other(because) },
    };
    let mut call =
        Call { kind: Kind::Edits, because: Some("it changes files".to_owned()), ..Call::default() };
    call.below = parsed.saw(&["r", "R", "a", "--recursive", "--archive"]) && name == "cp";
    call.writes = parsed.operands;
    if matches!(name, "cp" | "mv") {
        let folder =
            parsed.flags.into_iter().find(|(flag, _)| matches!(flag.as_str(), "t" | "--target-directory"));
        let target = folder.map_or_else(|| call.writes.pop(), |(_, folder)| folder);
        let Some(target) = target else { return Call::other("it changes files") };
        let sources = std::mem::take(&mut call.writes);
        // The target may be a directory: then it is the name inside it that is written.
        for source in &sources {
            let (Some(place), Some(source)) = (target.known(), source.known()) else {
                let writes = sources.iter().chain([&target]).cloned().collect();
                return Call { writes, ..Call::other("which files it changes is not known") };
            };
            let source = source.trim_end_matches('/');
            let last = source.rsplit('/').next().unwrap_or(source);
            call.writes.push(Field::literal(&format!("{place}/{last}")));
        }
        if name == "mv" {
            call.writes.extend(sources);
        } else {
            call.reads = sources;
        }
        call.writes.push(target);
    }
    if name == "tee" {
        call.kind = Kind::Other;
    }
    let streams = |field: &Field| matches!(field.known(), Some("/dev/null" | "/dev/stdout" | "/dev/stderr"));
    if name == "tee" && call.writes.iter().all(streams) {
        return Call::harmless();
    }
    if call.writes.is_empty() {
        return Call::other("it changes files");
    }
    call
}

/// Every word that could be a path, or have one behind a `=` or a flag's letter.
pub(crate) fn possible_paths(arguments: &[Field]) -> Vec<Field> {
    let mut found = Vec::new();
    for argument in arguments {
        let Some(text) = argument.known().filter(|text| text.starts_with('-')) else {
            found.push(argument.clone());
            continue;
        };
        let value = text.split_once('=').map(|(_, value)| value);
        let glued = text.get(2..).filter(|_| !text.starts_with("--"));
        let values = value.or(glued).filter(|value| !value.is_empty());
        found.extend(values.map(Field::literal));
    }
    found
}

fn printf(arguments: &[Field]) -> Call {
    let format = match arguments.first().map(Field::known) {
        Some(Some("--")) => arguments.get(1).and_then(Field::known),
        Some(Some(text)) if text.starts_with('-') => None,
        Some(format) => format,
        None => return Call::harmless(),
    };
    // `-v` and `%n` assign, and evaluate the subscript of the name they assign to.
    match format {
        Some(format) if prints_only(format) => Call { prints: true, ..Call::harmless() },
        _ => Call::doubtful("it may set a variable"),
    }
}

/// Whether every conversion of a format is one that prints.
fn prints_only(format: &str) -> bool {
    format.split('%').skip(1).all(|rest| {
        let conversion = rest.trim_start_matches(|c: char| c.is_ascii_digit() || "-+ #'*.hlLjzt".contains(c));
        // An empty one is the first half of `%%`, or the end of the text.
        conversion.chars().next().is_none_or(|c| "diouxXeEfFgGaAcsbqQ".contains(c))
    })
}

fn tput(arguments: &[Field]) -> Call {
    match arguments {
        [only] if matches!(only.known(), Some("cols" | "lines" | "colors")) => Call::harmless(),
        _ => Call::other("it may run a program that sets up the terminal"),
    }
}

fn printenv(arguments: &[Field]) -> Call {
    if arguments
        .iter()
        .all(|argument| argument.known().is_some_and(|text| !text.starts_with('-') || text == "-0"))
    {
        Call::harmless()
    } else {
        Call::other("its words are not known")
    }
}

fn date(arguments: &[Field]) -> Call {
    let known = Flags {
        plain: "u R I --utc --universal --rfc-email --iso-8601 --rfc-3339 --debug",
        values: "d --date",
        paths: "r f --reference --file",
        ..Flags::default()
    };
    // `-Iseconds` carries its value inside.
    let kept: Vec<Field> = arguments
        .iter()
        .filter(|argument| {
            !argument
                .known()
                .is_some_and(|text| matches!(text, "-Idate" | "-Ihours" | "-Iminutes" | "-Iseconds" | "-Ins"))
        })
        .cloned()
        .collect();
    let parsed = match parse(&kept, known) {
        Ok(parsed) => parsed,
        Err(because) => return Call::other(because),
    };
    let shows = |operand: &Field| {
        operand.pattern.as_ref().is_some_and(|pattern| pattern.text.starts_with('+'))
            || (operand.text.starts_with('+') || operand.text.starts_with("\"+"))
    };
    if !parsed.operands.iter().all(shows) {
        return Call::other("it may set the clock");
    }
    let reads = parsed
        .flags
        .into_iter()
        .filter(|(flag, _)| has(known.paths, flag))
        .filter_map(|(_, value)| value)
        .collect();
    Call::reading(reads)
}

/// `ps`, by whole words: the letter `e` without a dash shows the environment of processes, and which letters take
/// the next word as a value is easily misread.
fn ps(arguments: &[Field]) -> Call {
    const FLAGS: &str = "a x u ax au aux auxw auxww auxf axf axu xu f -A -a -d -e -f -F -l -ef -eF -el -efl -eH -efww -T -L \
        -eLf -w -ww w ww --forest --headers --no-headers --noheaders -H";
    const COLUMNS: &str = "pid ppid pgid sid tty tt stat state s user uid ruser euser gid group comm ucmd cmd args command \
        pcpu %cpu c pmem %mem rss rsz vsz sz size time cputime etime etimes start lstart bsdstart ni nice pri psr nlwp";
    let columns = |list: &str| {
        list.split([',', ' ']).all(|column| {
            let name = column.split(['=', ':']).next().unwrap_or(column);
            name.is_empty() || has(COLUMNS, name)
        })
    };
    let sorts = |list: &str| list.split(',').all(|key| has(COLUMNS, key.trim_start_matches(['-', '+'])));
    let plain = |value: &str| {
        !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b",._".contains(&byte))
    };
    let mut words = arguments.iter();
    while let Some(argument) = words.next() {
        let Some(text) = argument.known() else { return Call::other("its words are not known") };
        let known = match text {
            "-o" | "-eo" | "-Ao" | "-axo" | "-efo" | "axo" | "ao" | "--format" => {
                words.next().and_then(Field::known).is_some_and(columns)
            }
            "-p" | "-u" | "-U" | "-C" | "-g" | "-t" | "p" | "--pid" | "--ppid" | "--user" => {
                words.next().and_then(Field::known).is_some_and(plain)
            }
            "--sort" => words.next().and_then(Field::known).is_some_and(sorts),
            _ => match text.split_once('=') {
                Some(("--sort", keys)) => sorts(keys),
                Some(("--format", list)) => columns(list),
                Some(("--pid" | "--ppid" | "--user", value)) => plain(value),
                Some(_) => false,
                None => has(FLAGS, text),
            },
        };
        if !known {
            return Call::other(format!("it has a flag that is not known to be harmless, {text}"));
        }
    }
    Call::harmless()
}

fn tar(arguments: &[Field]) -> Call {
    let [mode, archive] = arguments else { return Call::other("it may unpack or run something") };
    let lists = mode.known().is_some_and(|text| {
        let letters = text.strip_prefix('-').unwrap_or(text);
        letters.starts_with('t')
            && letters.ends_with('f')
            && letters.chars().all(|letter| "tvzjJf".contains(letter))
    });
    // A name with a colon is a remote machine, reached by running a program.
    let is_local = |name: &str| !name.starts_with('-') && !name.contains(':');
    if lists && archive.known().is_some_and(is_local) {
        return Call::reading(vec![archive.clone()]);
    }
    Call::other("it may unpack or run something")
}

/// `unzip -l archive.zip`. It takes wildcards in the name itself, and a name that is not there with another ending.
fn archive_list(name: &str, arguments: &[Field]) -> Call {
    let plain = |archive: &Field| {
        archive.known().is_some_and(|name| {
            Utf8Path::new(name).extension() == Some("zip")
                && !name.starts_with('-')
                && !name.contains(['*', '?', '[', '\\'])
        })
    };
    match arguments {
        [flag, archive] if matches!(flag.known(), Some("-l" | "-v" | "-Z" | "-Z1")) && plain(archive) => {
            Call::reading(vec![archive.clone()])
        }
        [archive] if name == "zipinfo" && plain(archive) => Call::reading(vec![archive.clone()]),
        _ => Call::other("it may unpack something, or read an archive of another name"),
    }
}

/// Whether an option of `set` may change what the words after it mean: `-k` takes assignments out of them, `+B` leaves
/// braces as they are.
fn set_changes_reading(arguments: &[Field]) -> bool {
    const NAMES: &str = "allexport errexit errtrace functrace hashall ignoreeof monitor noclobber noglob notify nounset \
        pipefail verbose xtrace";
    let mut options = arguments.iter().take_while(|argument| !matches!(argument.known(), Some("-" | "--")));
    while let Some(option) = options.next() {
        let Some(word) = option.known() else { return true };
        let Some(letters) = word.strip_prefix(['-', '+']) else { return false };
        if letters.contains(|letter| !"abefhmuvxCETo".contains(letter)) {
            return true;
        }
        let named = letters.contains('o').then(|| options.next()).flatten();
        if named.is_some_and(|name| name.known().is_none_or(|name| !super::lists(NAMES, name))) {
            return true;
        }
    }
    false
}

fn set(arguments: &[Field]) -> Call {
    let harmless = !arguments.is_empty()
        && arguments.iter().all(|argument| {
            argument.known().is_some_and(|text| {
                matches!(
                    text,
                    "-e" | "-u"
                        | "-eu"
                        | "-ue"
                        | "-o"
                        | "+o"
                        | "pipefail"
                        | "errexit"
                        | "nounset"
                        | "-euo"
                        | "-eo"
                        | "-uo"
                        | "+e"
                        | "+u"
                        | "-x"
                        | "+x"
                        | "-ex"
                        | "-eux"
                        | "-euxo"
                )
            })
        });
    if harmless {
        Call::harmless()
    } else if set_changes_reading(arguments) {
        Call::doubtful("it changes how the shell reads what follows")
    } else {
        Call::other("it changes how the shell works")
    }
}

fn command_lookup(arguments: &[Field]) -> Call {
    match arguments.first().and_then(Field::known) {
        Some("-v" | "-V") => Call::harmless(),
        _ => Call::other("it runs another program"),
    }
}

/// `test` and `[`. `-v` evaluates the subscript of what it is given, so a word that may be one is a doubt.
fn test(arguments: &[Field]) -> Call {
    const BINARY: &str = "= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef";
    let words: Vec<Option<&str>> = arguments.iter().map(Field::known).collect();
    let inner = match words.as_slice() {
        [inner @ .., Some("]")] => inner,
        words => words,
    };
    if inner.iter().any(|word| matches!(word, Some("-v" | "-R"))) {
        return Call::doubtful("it may evaluate a name");
    }
    if inner.iter().all(Option::is_some) {
        return Call::harmless();
    }
    let counted = arguments.iter().all(Field::is_one_word);
    match inner.strip_prefix(&[Some("!")]).unwrap_or(inner) {
        [_] | [Some(_), None] if counted => Call::harmless(),
        [_, Some(operator), _] if counted && has(BINARY, operator) => Call::harmless(),
        _ => Call::doubtful("it may evaluate a name"),
    }
}

fn docker(arguments: &[Field]) -> Call {
    let Some(first) = arguments.first().and_then(Field::known) else {
        return Call::other("it may change things");
    };
    let known = Flags {
        plain: "a q s l --all --quiet --no-trunc --size --latest --digests",
        values: "n f --format --filter --last",
        ..Flags::default()
    };
    if matches!(first, "ps" | "images" | "version" | "info")
        && parse(&arguments[1..], known).is_ok_and(|parsed| parsed.operands.len() <= 1)
    {
        return Call::harmless();
    }
    Call::other("it may start or change something")
}

/// `find` without anything that writes or runs. What `-exec` runs is looked at before this is asked.
fn find(arguments: &[Field]) -> Call {
    let mut call = Call { kind: Kind::Reads, below: true, ..Call::default() };
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.peek() {
        match argument.known() {
            Some("-L") => call.follows = true,
            Some("-H" | "-P") => {}
            Some(text) if text.starts_with('-') || matches!(text, "(" | "!" | ")" | ",") => break,
            None if argument.may_be_flag() => {
                return Call::other(format!(
                    "it may be given flags that are not known, by {}",
                    argument.text
                ));
            }
            _ => call.reads.push((*argument).clone()),
        }
        rest.next();
    }
    call.here = call.reads.is_empty();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.known() else {
            return Call::other(format!("it may be given flags that are not known, by {}", argument.text));
        };
        if has(FIND_TESTS, text) {
            call.follows |= text == "-follow";
            continue;
        }
        if has(FIND_VALUES, text) || (text.starts_with("-newer") && text.len() == 8) {
            match rest.next() {
                None => return Call::other("it is not complete"),
                Some(value) if value.splits || value.is_glob() => {
                    return Call::other(format!(
                        "it may be given flags that are not known, by {}",
                        value.text
                    ));
                }
                Some(value)
                    if matches!(text, "-anewer" | "-cnewer" | "-samefile")
                        || (text.starts_with("-newer") && !text.ends_with('t')) =>
                {
                    call.reads.push(value.clone());
                }
                Some(_) => {}
            }
            continue;
        }
        return Call::other(format!("it has a flag that is not known to be harmless, {text}"));
    }
    call
}

const FIND_TESTS: &str = "-a -and -o -or -not ! ( ) , -print -print0 -ls -prune -quit -true -false -empty -readable \
-writable -executable -nouser -nogroup -daystart -depth -d -follow -mount -xdev -noleaf -ignore_readdir_race \
-noignore_readdir_race -warn -nowarn";
const FIND_VALUES: &str = "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname \
-type -xtype -size -mtime -atime -ctime -mmin -amin -cmin -newer -anewer -cnewer -samefile -perm -user -group -uid \
-gid -links -inum -maxdepth -mindepth -fstype -used -printf";

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the real programs are run
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    const CANARY: &str = "canary";

    /// The flag as it is written in a call.
    fn written(flag: &str) -> String {
        if flag.starts_with('-') { flag.to_owned() } else { format!("-{flag}") }
    }

    /// Whether a real program reads its last argument, by what it prints. None where it is not installed.
    fn reads(name: &str, arguments: &[&str], folder: &Path) -> Option<bool> {
        let output = Command::new(name)
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let spaceless: String = shown.split_whitespace().collect();
        Some(spaceless.contains(CANARY) || shown.contains("No such file or directory"))
    }

    /// Every flag of the table against the installed program: one with a value takes the next word, so that a file
    /// named there is not read; one without a value leaves the next word alone, so that it is the following flag
    /// that takes the file's name.
    #[test]
    fn flags_take_the_next_word_exactly_as_the_table_says() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), format!("{CANARY}\n")).unwrap();
        let (mut missing, mut wrong) = (Vec::new(), Vec::new());
        for row in PROGRAMS.iter().filter(|row| !matches!(row.operands, Text | Absent)) {
            for name in row.names.split(' ') {
                if reads(name, &["--version"], folder.path()).is_none() {
                    missing.push(name);
                    continue;
                }
                let mut check = |arguments: &[&str]| {
                    if reads(name, arguments, folder.path()) == Some(true) {
                        wrong.push(format!("{name} {}", arguments.join(" ")));
                    }
                };
                let valued: Vec<String> = row.values.split_whitespace().map(written).collect();
                for flag in &valued {
                    for file in ["file", "missing"] {
                        check(&[flag, file]);
                    }
                }
                let Some(valued) = valued.first() else { continue };
                // These wait for more of their input.
                let plain =
                    row.flags.split(' ').filter(|flag| name != "tail" || !"f F --follow".contains(flag));
                for flag in plain.filter(|flag| !flag.is_empty()) {
                    for file in ["file", "missing"] {
                        check(&[&written(flag), valued, file]);
                    }
                }
            }
        }
        // `cargo xtask test --install` installs what Debian has; there these two have no such names.
        missing.retain(|name| !matches!(*name, "gzcat" | "fd"));
        assert_eq!(missing, Vec::<&str>::new(), "not installed: run `cargo xtask test --install`");
        assert_eq!(wrong, Vec::<String>::new());
    }

    /// The same for what git shows of files that need not be of a repository.
    #[test]
    fn flags_of_git_take_the_next_word_exactly_as_the_table_says() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), format!("{CANARY}\n")).unwrap();
        let (plain, values) = git::diff_flags();
        let mut wrong = Vec::new();
        let calls = values.split_whitespace().map(|flag| vec![written(flag)]).chain(
            plain.split_whitespace().chain(["U", "X"]).map(|flag| vec![written(flag), "-S".to_owned()]),
        );
        for flags in calls {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let arguments = [&["diff", "--no-index"], flags.as_slice(), &["file", "/dev/null"]].concat();
            if reads("git", &arguments, folder.path()) == Some(true) {
                wrong.push(arguments.join(" "));
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}

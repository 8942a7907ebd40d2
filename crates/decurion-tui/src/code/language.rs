//! What is known of each language, as a table. Takes a name, or a file's name; gives the row of the language.

use super::TokenClass;

/// How a language is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LexerKind {
    /// Words, texts, numbers and comments.
    Program,
    /// Text with tags in it.
    Markup,
    /// Lines that were added and removed.
    Diff,
    Page,
}

/// What makes a word or a text the name of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyStyle {
    None,
    /// A colon, and a space or the end of the line behind it.
    Colon,
    Equals,
}

impl KeyStyle {
    /// Whether what stands behind a word makes it a key.
    pub(super) fn follow(self, after: &str) -> bool {
        match self {
            Self::None => false,
            Self::Colon => after.strip_prefix(':').is_some_and(|rest| {
                !rest.starts_with(|letter: char| letter != '=' && !letter.is_whitespace())
            }),
            Self::Equals => after.trim_start_matches([' ', '\t']).starts_with('='),
        }
    }

    /// Whether what stands behind a text makes it a key: a colon needs no space then.
    pub(super) fn follow_text(self, after: &str) -> bool {
        let after = after.trim_start_matches([' ', '\t']);
        match self {
            Self::Colon => after.starts_with(':'),
            Self::None | Self::Equals => self.follow(after),
        }
    }
}

/// A kind of text.
#[derive(Debug)]
pub(super) struct Quote {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// Whether a backslash takes the next character's meaning.
    pub(super) escapes: bool,
    /// Whether it may go over several lines.
    pub(super) lines: bool,
    /// What begins code inside of it, which ends with `}`.
    pub(super) hole: Option<&'static str>,
}

const fn quote(mark: &'static str, escapes: bool, lines: bool, hole: Option<&'static str>) -> Quote {
    Quote { open: mark, close: mark, escapes, lines, hole }
}

const DOUBLE: Quote = quote("\"", true, false, None);
const SINGLE: Quote = quote("'", true, false, None);
const LONG: Quote = quote("\"", true, true, None);
const LITERAL: Quote = quote("'", false, true, None);
const TRIPLE: Quote = quote("\"\"\"", true, true, None);
const TRIPLE_SINGLE: Quote = quote("'''", true, true, None);
const TEMPLATE: Quote = quote("`", true, true, Some("${"));
/// A text in which a backslash is one; how many `#` it ends with is up to the one who reads it.
pub(super) static RAW: Quote = quote("\"", false, true, None);

#[expect(clippy::struct_excessive_bools, reason = "a row of a table: each says yes or no to one question")]
#[derive(Debug)]
pub(super) struct Language {
    pub(super) kind: LexerKind,
    /// What it is called, and how its files' names end.
    names: &'static [&'static str],
    /// What begins a comment that ends with its line.
    pub(super) comments: &'static [&'static str],
    /// What begins and ends one that goes over several.
    pub(super) block: Option<(&'static str, &'static str)>,
    /// Whether those stand inside of each other.
    pub(super) nested: bool,
    /// Whether a comment begins only after a space.
    pub(super) apart: bool,
    pub(super) quotes: &'static [Quote],
    /// What may stand right before a quote.
    pub(super) prefixes: &'static [&'static str],
    keywords: &'static [&'static str],
    /// Whether those may be written in any case.
    any_case: bool,
    pub(super) types: &'static [&'static str],
    /// Whether types begin with a capital.
    pub(super) capitals: bool,
    /// What belongs to a word besides letters, digits and `_`.
    pub(super) word: &'static str,
    /// Signs that make the word behind them something.
    pub(super) sigils: &'static [(char, TokenClass)],
    pub(super) keys: KeyStyle,
    /// Whether `name!` is a macro and `#[…]` an attribute.
    pub(super) macros: bool,
    /// Whether `'name` is a lifetime, and `r#"…"#` a text.
    pub(super) lifetimes: bool,
    /// Whether `<name` is a tag.
    pub(super) tags: bool,
    /// Whether `<<NAME` begins a text.
    pub(super) here: bool,
    /// Whether a line `[name]` begins a section.
    pub(super) sections: bool,
}

impl Language {
    /// The language of this name, as it stands behind a fence.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        let name = name.trim().trim_start_matches(['{', '.']);
        let name = name.split([' ', ',', ':', '{', '}']).next().unwrap_or_default();
        let name = name.strip_prefix("language-").unwrap_or(name).to_ascii_lowercase();
        LANGUAGES.iter().find(|language| language.names.contains(&name.as_str()))
    }

    /// The language of a file, by its name.
    pub(super) fn of_file(path: &str) -> Option<&'static Self> {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        // `Dockerfile.dev` is one too.
        let stem = name.split('.').next().unwrap_or(name);
        Self::named(name).or_else(|| ending.and_then(Self::named)).or_else(|| {
            ["Dockerfile", "Containerfile", "Makefile"].contains(&stem).then(|| Self::named(stem)).flatten()
        })
    }

    pub(super) fn is_word(&self, letter: char) -> bool {
        letter.is_alphanumeric() || letter == '_' || self.word.contains(letter)
    }

    pub(super) fn is_keyword(&self, word: &str) -> bool {
        self.keywords
            .iter()
            .any(|keyword| *keyword == word || self.any_case && keyword.eq_ignore_ascii_case(word))
    }
}

/// A language of which nothing is known but that it has words.
const PLAIN: Language = Language {
    kind: LexerKind::Program,
    names: &[],
    comments: &[],
    block: None,
    nested: false,
    apart: false,
    quotes: &[DOUBLE, SINGLE],
    prefixes: &[],
    keywords: &[],
    any_case: false,
    types: &[],
    capitals: false,
    word: "",
    sigils: &[],
    keys: KeyStyle::None,
    macros: false,
    lifetimes: false,
    tags: false,
    here: false,
    sections: false,
};

/// One whose comments and texts are those of C.
const BRACES: Language = Language { comments: &["//"], block: Some(("/*", "*/")), capitals: true, ..PLAIN };

/// One whose comments begin with `#`.
const HASHES: Language = Language { comments: &["#"], apart: true, ..PLAIN };

// A table of words, several to a line.
#[rustfmt::skip]
static LANGUAGES: &[Language] = &[
    Language {
        names: &["rust", "rs"],
        nested: true,
        quotes: &[LONG, SINGLE],
        prefixes: &["b", "c"],
        keywords: &[
            "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum", "extern",
            "false", "fn", "for", "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub",
            "ref", "return", "self", "Self", "static", "struct", "super", "trait", "true", "type", "unsafe",
            "use", "where", "while", "yield",
        ],
        types: &[
            "bool", "char", "f32", "f64", "i128", "i16", "i32", "i64", "i8", "isize", "str", "u128", "u16",
            "u32", "u64", "u8", "usize",
        ],
        macros: true,
        lifetimes: true,
        ..BRACES
    },
    Language {
        names: &["python", "py", "python3", "pyi", "pyw"],
        comments: &["#"],
        quotes: &[TRIPLE, TRIPLE_SINGLE, DOUBLE, SINGLE],
        prefixes: &["b", "B", "br", "f", "F", "fr", "r", "R", "rb", "rf", "u"],
        keywords: &[
            "and", "as", "assert", "async", "await", "break", "case", "class", "continue", "def", "del",
            "elif", "else", "except", "False", "finally", "for", "from", "global", "if", "import", "in",
            "is", "lambda", "match", "None", "nonlocal", "not", "or", "pass", "raise", "return", "self",
            "True", "try", "while", "with", "yield",
        ],
        types: &["bool", "bytes", "dict", "float", "int", "list", "object", "set", "str", "tuple"],
        capitals: true,
        sigils: &[('@', TokenClass::Attribute)],
        ..PLAIN
    },
    Language {
        names: &[
            "javascript", "js", "jsx", "mjs", "cjs", "typescript", "ts", "tsx", "mts", "cts", "node", "vue",
            "svelte",
        ],
        quotes: &[DOUBLE, SINGLE, TEMPLATE],
        keywords: &[
            "abstract", "as", "async", "await", "break", "case", "catch", "class", "const", "continue",
            "debugger", "declare", "default", "delete", "do", "else", "enum", "export", "extends", "false",
            "finally", "for", "from", "function", "if", "implements", "import", "in", "infer", "instanceof",
            "interface", "keyof", "let", "namespace", "new", "null", "of", "private", "protected", "public",
            "readonly", "return", "satisfies", "static", "super", "switch", "this", "throw", "true", "try",
            "type", "typeof", "undefined", "var", "void", "while", "with", "yield",
        ],
        types: &["any", "bigint", "boolean", "never", "number", "object", "string", "symbol", "unknown"],
        word: "$",
        sigils: &[('@', TokenClass::Attribute)],
        tags: true,
        ..BRACES
    },
    Language {
        names: &["go", "golang"],
        quotes: &[DOUBLE, SINGLE, quote("`", false, true, None)],
        keywords: &[
            "break", "case", "chan", "const", "continue", "default", "defer", "else", "fallthrough", "false",
            "for", "func", "go", "goto", "if", "import", "interface", "iota", "map", "nil", "package",
            "range", "return", "select", "struct", "switch", "true", "type", "var",
        ],
        types: &[
            "any", "bool", "byte", "complex128", "complex64", "error", "float32", "float64", "int", "int16",
            "int32", "int64", "int8", "rune", "string", "uint", "uint16", "uint32", "uint64", "uint8",
            "uintptr",
        ],
        ..BRACES
    },
    Language {
        names: &["c", "h", "cpp", "c++", "cc", "cxx", "hpp", "hh", "objc", "objective-c", "m", "cuda", "cu"],
        prefixes: &["L", "u8", "u", "U"],
        keywords: &[
            "alignas", "auto", "bool", "break", "case", "catch", "class", "concept", "const", "constexpr",
            "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete", "do", "else",
            "enum", "explicit", "extern", "false", "final", "for", "friend", "goto", "if", "inline",
            "mutable", "namespace", "new", "noexcept", "nullptr", "NULL", "operator", "override", "private",
            "protected", "public", "register", "requires", "restrict", "return", "sizeof", "static",
            "static_assert", "struct", "switch", "template", "this", "throw", "true", "try", "typedef",
            "typename", "union", "using", "virtual", "volatile", "while",
        ],
        types: &[
            "char", "double", "float", "int", "int16_t", "int32_t", "int64_t", "int8_t", "long", "short",
            "signed", "size_t", "ssize_t", "uint16_t", "uint32_t", "uint64_t", "uint8_t", "unsigned", "void",
        ],
        sigils: &[('#', TokenClass::Attribute)],
        ..BRACES
    },
    Language {
        names: &["java", "kotlin", "kt", "kts", "scala", "groovy", "gradle", "dart"],
        quotes: &[quote("\"\"\"", true, true, Some("${")), quote("\"", true, false, Some("${")), SINGLE],
        keywords: &[
            "abstract", "as", "assert", "break", "case", "catch", "class", "companion", "const", "continue",
            "def", "default", "do", "else", "enum", "extends", "false", "final", "finally", "for", "fun",
            "if", "implements", "import", "in", "instanceof", "interface", "internal", "is", "lateinit",
            "match", "native", "new", "null", "object", "operator", "override", "package", "private",
            "protected", "public", "record", "return", "sealed", "static", "super", "suspend", "switch",
            "synchronized", "this", "throw", "throws", "trait", "transient", "true", "try", "typealias",
            "val", "var", "volatile", "when", "while", "yield",
        ],
        types: &["boolean", "byte", "char", "double", "float", "int", "long", "short", "void"],
        sigils: &[('@', TokenClass::Attribute)],
        nested: false,
        ..BRACES
    },
    Language {
        names: &["csharp", "cs", "c#"],
        quotes: &[
            TRIPLE,
            Quote { open: "@\"", close: "\"", escapes: false, lines: true, hole: None },
            Quote { open: "$\"", close: "\"", escapes: true, lines: false, hole: Some("{") },
            DOUBLE,
            SINGLE,
        ],
        keywords: &[
            "abstract", "as", "async", "await", "base", "break", "case", "catch", "checked", "class", "const",
            "continue", "default", "delegate", "do", "else", "enum", "event", "explicit", "extern", "false",
            "finally", "fixed", "for", "foreach", "get", "goto", "if", "implicit", "in", "init", "interface",
            "internal", "is", "lock", "namespace", "new", "null", "operator", "out", "override", "params",
            "partial", "private", "protected", "public", "readonly", "record", "ref", "required", "return",
            "sealed", "set", "sizeof", "static", "struct", "switch", "this", "throw", "true", "try", "typeof",
            "unsafe", "using", "var", "virtual", "volatile", "when", "where", "while", "yield",
        ],
        types: &[
            "bool", "byte", "char", "decimal", "double", "dynamic", "float", "int", "long", "object",
            "sbyte", "short", "string", "uint", "ulong", "ushort", "void",
        ],
        sigils: &[('#', TokenClass::Attribute)],
        ..BRACES
    },
    Language {
        names: &["swift"],
        nested: true,
        quotes: &[TRIPLE, DOUBLE],
        keywords: &[
            "actor", "any", "as", "async", "await", "break", "case", "catch", "class", "continue", "default",
            "defer", "deinit", "do", "else", "enum", "extension", "fallthrough", "false", "fileprivate",
            "final", "for", "func", "guard", "if", "import", "in", "init", "inout", "internal", "is", "lazy",
            "let", "mutating", "nil", "open", "override", "private", "protocol", "public", "repeat", "return",
            "self", "Self", "some", "static", "struct", "subscript", "super", "switch", "throw", "throws",
            "true", "try", "typealias", "unowned", "var", "weak", "where", "while",
        ],
        sigils: &[('@', TokenClass::Attribute), ('#', TokenClass::Attribute)],
        ..BRACES
    },
    Language {
        names: &["zig", "zon"],
        keywords: &[
            "and", "break", "catch", "comptime", "const", "continue", "defer", "else", "enum", "errdefer",
            "error", "export", "extern", "false", "fn", "for", "if", "inline", "null", "or", "orelse",
            "packed", "pub", "return", "struct", "switch", "test", "true", "try", "undefined", "union",
            "unreachable", "var", "while",
        ],
        types: &["bool", "f32", "f64", "i32", "i64", "u16", "u32", "u64", "u8", "usize", "void"],
        sigils: &[('@', TokenClass::Function)],
        block: None,
        ..BRACES
    },
    Language {
        names: &["ruby", "rb", "gemfile", "rakefile", "rake", "elixir", "ex", "exs", "crystal", "cr"],
        quotes: &[TRIPLE, quote("\"", true, true, Some("#{")), SINGLE],
        keywords: &[
            "alias", "and", "begin", "break", "case", "class", "def", "defmodule", "defp", "do", "else",
            "elsif", "end", "ensure", "extend", "false", "fn", "for", "if", "in", "include", "module", "next",
            "nil", "not", "or", "private", "protected", "raise", "redo", "require", "require_relative",
            "rescue", "retry", "return", "self", "super", "then", "true", "undef", "unless", "until", "use",
            "when", "while", "with", "yield",
        ],
        capitals: true,
        word: "?!",
        sigils: &[('@', TokenClass::Key), (':', TokenClass::Text), ('$', TokenClass::Key)],
        here: true,
        ..HASHES
    },
    Language {
        names: &["php"],
        comments: &["//", "#"],
        quotes: &[quote("\"", true, true, None), quote("'", true, true, None)],
        keywords: &[
            "abstract", "and", "array", "as", "break", "callable", "case", "catch", "class", "clone", "const",
            "continue", "declare", "default", "do", "echo", "else", "elseif", "enum", "extends", "false",
            "final", "finally", "fn", "for", "foreach", "function", "global", "if", "implements", "include",
            "instanceof", "interface", "isset", "match", "namespace", "new", "null", "or", "parent",
            "private", "protected", "public", "readonly", "require", "require_once", "return", "self",
            "static", "switch", "this", "throw", "trait", "true", "try", "unset", "use", "var", "while",
            "yield",
        ],
        types: &["bool", "float", "int", "iterable", "mixed", "never", "object", "string", "void"],
        word: "$",
        sigils: &[('$', TokenClass::Key)],
        here: true,
        ..BRACES
    },
    Language {
        names: &[
            "sh", "bash", "shell", "zsh", "fish", "ksh", "console", "shellscript", "shell-session", "bashrc",
            "zshrc", "profile", "env",
        ],
        quotes: &[quote("\"", true, true, None), LITERAL],
        keywords: &[
            "alias", "break", "case", "continue", "declare", "do", "done", "elif", "else", "esac", "eval",
            "exec", "exit", "export", "fi", "for", "function", "if", "in", "local", "readonly", "return",
            "select", "set", "shift", "source", "then", "trap", "unset", "until", "while",
        ],
        word: "-",
        sigils: &[('$', TokenClass::Key)],
        here: true,
        ..HASHES
    },
    Language {
        names: &["sql", "mysql", "postgresql", "postgres", "sqlite", "plpgsql", "psql"],
        comments: &["--"],
        block: Some(("/*", "*/")),
        quotes: &[
            quote("'", false, true, None),
            quote("\"", false, false, None),
            quote("`", false, false, None),
        ],
        keywords: &[
            "add", "all", "alter", "and", "as", "asc", "begin", "between", "by", "cascade", "case", "check",
            "column", "commit", "conflict", "constraint", "create", "cross", "default", "delete", "desc",
            "distinct", "do", "drop", "else", "end", "exists", "false", "for", "foreign", "from", "full",
            "function", "group", "having", "if", "in", "index", "inner", "insert", "into", "is", "join",
            "key", "left", "like", "limit", "not", "null", "offset", "on", "or", "order", "outer", "over",
            "partition", "primary", "references", "replace", "return", "returning", "right", "rollback",
            "select", "set", "table", "then", "transaction", "trigger", "true", "union", "unique", "update",
            "using", "values", "view", "when", "where", "with",
        ],
        any_case: true,
        types: &[
            "bigint", "boolean", "date", "decimal", "integer", "int", "json", "jsonb", "numeric", "real",
            "serial", "text", "timestamp", "uuid", "varchar", "BIGINT", "BOOLEAN", "DATE", "DECIMAL",
            "INTEGER", "INT", "JSON", "JSONB", "NUMERIC", "REAL", "SERIAL", "TEXT", "TIMESTAMP", "UUID",
            "VARCHAR",
        ],
        ..PLAIN
    },
    Language {
        names: &["json", "jsonc", "json5", "jsonl", "ndjson", "geojson", "webmanifest"],
        comments: &["//"],
        block: Some(("/*", "*/")),
        keywords: &["true", "false", "null"],
        keys: KeyStyle::Colon,
        ..PLAIN
    },
    Language {
        names: &["yaml", "yml"],
        quotes: &[DOUBLE, quote("'", false, false, None)],
        keywords: &["true", "false", "null", "yes", "no", "on", "off"],
        word: "-./",
        sigils: &[('&', TokenClass::Attribute), ('*', TokenClass::Attribute), ('!', TokenClass::Attribute)],
        keys: KeyStyle::Colon,
        ..HASHES
    },
    Language {
        names: &["toml", "ini", "cfg", "conf", "properties", "editorconfig", "lock"],
        comments: &["#", ";"],
        quotes: &[TRIPLE, quote("'''", false, true, None), DOUBLE, quote("'", false, false, None)],
        keywords: &["true", "false", "inf", "nan"],
        word: "-.",
        keys: KeyStyle::Equals,
        sections: true,
        ..HASHES
    },
    Language {
        kind: LexerKind::Markup,
        names: &["html", "htm", "xml", "xhtml", "svg", "xsl", "xsd", "plist", "rss"],
        block: Some(("<!--", "-->")),
        quotes: &[quote("\"", false, true, None), LITERAL],
        ..PLAIN
    },
    Language {
        names: &["css", "scss", "sass", "less"],
        comments: &[],
        block: Some(("/*", "*/")),
        word: "-",
        sigils: &[
            ('.', TokenClass::Type),
            ('#', TokenClass::Number),
            ('@', TokenClass::Keyword),
            ('$', TokenClass::Key),
            ('!', TokenClass::Keyword),
        ],
        keys: KeyStyle::Colon,
        ..PLAIN
    },
    Language { kind: LexerKind::Page, names: &["markdown", "md", "mdx", "mdown"], ..PLAIN },
    Language { kind: LexerKind::Diff, names: &["diff", "patch", "udiff"], ..PLAIN },
    Language {
        names: &["dockerfile", "docker", "containerfile"],
        keywords: &[
            "ADD", "ARG", "AS", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
            "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
        ],
        word: "-./",
        sigils: &[('$', TokenClass::Key)],
        here: true,
        ..HASHES
    },
    Language {
        names: &["makefile", "make", "mk", "gnumakefile", "just", "justfile"],
        keywords: &[
            "define", "else", "endef", "endif", "export", "ifdef", "ifeq", "ifndef", "ifneq", "include",
            "override", "unexport",
        ],
        word: "-./%",
        sigils: &[('$', TokenClass::Key), ('.', TokenClass::Attribute)],
        keys: KeyStyle::Colon,
        ..HASHES
    },
    Language {
        names: &["lua", "luau"],
        comments: &["--"],
        block: Some(("--[[", "]]")),
        quotes: &[Quote { open: "[[", close: "]]", escapes: false, lines: true, hole: None }, DOUBLE, SINGLE],
        keywords: &[
            "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
            "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
        ],
        ..PLAIN
    },
    Language {
        names: &["haskell", "hs", "elm", "purescript"],
        comments: &["--"],
        block: Some(("{-", "-}")),
        nested: true,
        quotes: &[DOUBLE, SINGLE],
        keywords: &[
            "case", "class", "data", "deriving", "do", "else", "forall", "if", "import", "in", "infixl",
            "infixr", "instance", "let", "module", "newtype", "of", "qualified", "then", "type", "where",
        ],
        capitals: true,
        word: "'",
        ..PLAIN
    },
    Language {
        names: &["hcl", "tf", "terraform", "nix"],
        comments: &["#", "//"],
        quotes: &[quote("\"", true, false, Some("${"))],
        keywords: &[
            "data", "else", "false", "for", "if", "in", "inherit", "let", "locals", "module", "null",
            "output", "provider", "rec", "resource", "terraform", "then", "true", "variable", "with",
        ],
        word: "-",
        keys: KeyStyle::Equals,
        here: true,
        ..BRACES
    },
];

#[cfg(test)]
pub(super) fn count() -> usize {
    LANGUAGES.len()
}

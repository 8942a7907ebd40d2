//! Texts made from a seed: by the rules of the grammar, out of pieces in any order, and out of collected ones that are
//! cut, joined and changed.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;

use super::stand::tamed;

/// A text with the bodies of its here-documents, which stand behind the line.
#[derive(Clone, Debug)]
struct Line {
    text: String,
    bodies: String,
}

impl Line {
    fn around(self, before: &str, after: &str) -> Self {
        Self { text: format!("{before}{}{after}", self.text), ..self }
    }

    fn then(self, between: &str, next: &Self) -> Self {
        // A new line is where the bodies stand.
        match between.split_once('\n') {
            Some((before, after)) => Self {
                text: format!("{}{before}\n{}{after}{}", self.text, self.bodies, next.text),
                bodies: next.bodies.clone(),
            },
            None => Self {
                text: format!("{}{between}{}", self.text, next.text),
                bodies: self.bodies + &next.bodies,
            },
        }
    }

    fn whole(self) -> String {
        if self.bodies.is_empty() { self.text } else { format!("{}\n{}", self.text, self.bodies) }
    }
}

/// Any text that the stand may be given.
pub fn text(collected: Vec<String>) -> BoxedStrategy<String> {
    prop_oneof![
        8 => list().prop_map(Line::whole),
        1 => proptest::collection::vec(piece(), 1..16).prop_map(|pieces| pieces.concat()),
        4 => changed(collected),
    ]
    .prop_map(|text| tamed(&text))
    .boxed()
}

fn word() -> BoxedStrategy<String> {
    let plain = select(vec![
        "a",
        "b",
        "-n",
        "-c",
        "a=b",
        "f",
        "a.txt",
        "src/main.rs",
        "--",
        "-",
        "é",
        "a#b",
        "%",
        "@",
        "+x",
        "a:b",
        "in",
        "do",
        "x=1",
        "if",
        "}",
        "{",
        "!",
        "esac",
        "1",
        "2",
        "a,b",
        "a~",
        "./f",
        "^",
        "[",
        "]",
        "then",
        "a=~",
        "{a",
        "b}",
        "[[",
        "]]",
    ]);
    let quoted = select(vec![
        "'a b'",
        "\"a b\"",
        "''",
        "\"\"",
        "'a'\\''b'",
        "\"a\\\"b\"",
        "a\\ b",
        "\\a",
        "\\$x",
        "$'a\\tb'",
        "$'\\x61'",
        "\"\\a\"",
        "'#'",
        "\"'\"",
        "'\"'",
        "a'b'\"c\"",
        "\\;",
        "';'",
        "\"a\nb\"",
        "'$(q)'",
        "\"\\$(q)\"",
        "\"\\`\"",
        "$'\\''",
        "\"$\"",
        "\\\\",
        "a\\\nb",
        "\"a\\\nb\"",
        "$\"a\"",
        "'\\'",
        "\"#\"",
        "\\#",
        "\"\\\\\"",
        "'a\\\nb'",
        "\"!\"",
        "$'a\\\nb'",
    ]);
    let expanded = select(vec![
        "$x",
        "\"$x\"",
        "${x}",
        "${x:-a}",
        "\"${x:-$(q)}\"",
        "${x:+$(q)}",
        "$(q)",
        "\"$(q a)\"",
        "`q`",
        "\"`q`\"",
        "$(q; r)",
        "$(q | r)",
        "<(q)",
        ">(q)",
        "$((1+2))",
        "{a,b}",
        "{1..3}",
        "a{b,c}d",
        "*.txt",
        "?",
        "[a-z]*",
        "~",
        "$?",
        "$#",
        "$@",
        "\"$@\"",
        "$*",
        "$1",
        "${#x}",
        "${x#a}",
        "${x%%b}",
        "${x/a/b}",
        "${x:0:1}",
        "`q \\`r\\``",
        "$(q $(r))",
        "\"$(q \"a b\")\"",
        "$(q <f)",
        "$(<f)",
        "${x:-'a}'}",
        "${x-\"a b\"}",
        "$( (q) )",
        "$(q\n)",
        "$(q # c\n)",
        "$(case a in (a) q;; esac)",
        "{a,{b,c}}",
        "{a}",
        "{,a}",
        "{a,}{,b}",
        "a$x",
        "$x$x",
        "$(q)$(r)",
        "${x:-`q`}",
        "${x:-\\}}",
        "$(( (1) ))",
        "~+",
        "a:~",
        "x=~",
        "$'a\\'b'",
        "$(q <<<a)",
        "$(q \"$(r)\")",
        "${x^^}",
        "${x,}",
        "${x//a/$(q)}",
        "\"${x}\"\"$(q)\"",
        "${x:?}",
        "<(q; r)",
    ]);
    let odd = select(vec![
        "$((x))",
        "${x[0]}",
        "${!x}",
        "${x@Q}",
        "${x:=y}",
        "$[1]",
        "\"${x:-'a'}\"",
        "$((1)",
        "$(case a in a) q;; esac)",
        "{a,b",
        "a,b}",
        "!(a)",
        "@(a|b)",
        "${x:-{a}}",
        "$((1 + $(q)))",
        "$\"a\"",
        "<()",
        "$()",
        "${x:$(q)}",
    ]);
    prop_oneof![8 => plain, 6 => quoted, 7 => expanded, 1 => odd].prop_map(str::to_owned).boxed()
}

fn name() -> impl Strategy<Value = &'static str> {
    let stubs = select(vec!["p", "q", "r", "s", "t", "no", "ls", "cat", "git", "sort"]);
    let builtins = select(vec![
        "echo",
        "echo",
        "true",
        "false",
        ":",
        "test",
        "[",
        "printf",
        "cd",
        "eval",
        "exec",
        "command",
        "builtin",
        "read",
        "export",
        "set",
        "unset",
        "local",
        "declare",
        "let",
        "trap",
        "shift",
        "wait",
        "jobs",
        "type",
        "hash",
        "getopts",
        "mapfile",
        "pushd",
        "popd",
        "return",
        "exit",
        "break",
        "continue",
        "alias",
        "unalias",
        "shopt",
        "source",
        ".",
        "readonly",
        "typeset",
        "times",
        "umask",
        "compgen",
        "complete",
        "caller",
        "dirs",
        "bg",
        "fg",
        "disown",
        "fc",
        "history",
        "bind",
        "help",
        "readarray",
        "compopt",
        "pwd",
    ]);
    let runners = select(vec![
        "bash -c",
        "timeout 5",
        "env",
        "xargs",
        "nice",
        "nohup",
        "time",
        "sudo",
        "find . -exec",
        "sh -c",
    ]);
    prop_oneof![10 => stubs, 4 => builtins, 1 => runners]
}

fn redirect() -> impl Strategy<Value = Line> {
    let plain = select(vec![
        ">w",
        "> w",
        ">>w",
        ">|w",
        "2>w",
        "2>&1",
        ">&2",
        "&>w",
        "&>>w",
        ">&w",
        "<f",
        "< f",
        "<&-",
        "2>&-",
        "<>w",
        ">/dev/null",
        "2>/dev/null",
        "<<<a",
        "<<< \"$(q)\"",
        "<<<$x",
        "{v}>w",
        "1>w",
        ">\"w x\"",
        ">$x",
        "> >(q)",
        "< <(q)",
        "3>&1",
        ">&1-",
        "<&0",
        ">w2",
    ])
    .prop_map(|text| Line { text: text.to_owned(), bodies: String::new() });
    let documents = select(vec![
        ("<<E", "a\nE\n"),
        ("<<E", "$(q)\nE\n"),
        ("<<'E'", "$(q)\nE\n"),
        ("<<-E", "\ta\n\tE\n"),
        ("<<\"E\"", "`q`\nE\n"),
        ("<<E", "a \\\nb\nE\n"),
        ("<<E", "${x:-$(q)}\nE\n"),
        ("<<\\E", "$(q)\nE\n"),
        ("<< E", "E \nE\n"),
        ("<<E", "\"$(q)\"\n'$(r)'\nE\n"),
        ("<<E", "\\$(q)\nE\n"),
        ("<<E", "E"),
        ("<<E", ""),
        ("<<E", "a\n"),
        ("<<'E F'", "$(q)\nE F\n"),
        ("<<E", "$(q <<F\nb\nF\n)\nE\n"),
        ("2<<E", "a\nE\n"),
        ("<<E", "E\\\nE\n"),
        ("<<$x", "a\n$x\n"),
        ("<<E", "((\nE\n"),
        ("<<E", "`q\nE\n"),
    ])
    .prop_map(|(text, bodies)| Line { text: text.to_owned(), bodies: bodies.to_owned() });
    prop_oneof![4 => plain, 1 => documents]
}

fn simple() -> BoxedStrategy<Line> {
    let assign = select(vec![
        "x=1 ",
        "x= ",
        "x=$(q) ",
        "x='a b' ",
        "x+=a ",
        "x=(a b) ",
        "x[0]=1 ",
        "x=~ ",
        "x={a,b} ",
        "y=$x ",
        "x=`q` ",
        "x=\"$(q)\" ",
        "x=([0]=$(q)) ",
        "x=a\\\nb ",
        "x=<(q) ",
        "x=* ",
        "IFS=, ",
        "x=( $(q) ) ",
        "x=$'a' ",
    ]);
    let assigns = proptest::option::weighted(0.2, assign);
    let words = proptest::collection::vec(word(), 0..4);
    let redirects = proptest::collection::vec(redirect(), 0..2);
    let blank = select(vec![" ", " ", " ", "  ", "\t", " \\\n"]);
    let place = 0..4_usize;
    (assigns, proptest::option::weighted(0.93, name()), words, redirects, blank, place)
        .prop_map(|(assigns, name, words, redirects, blank, place)| {
            let mut found = Line { text: assigns.unwrap_or_default().to_owned(), bodies: String::new() };
            let mut parts: Vec<Line> = name.into_iter().map(str::to_owned).chain(words).map(bare).collect();
            for redirect in redirects {
                parts.insert(place.min(parts.len()), redirect);
            }
            for (index, part) in parts.iter().enumerate() {
                found = found.then(if index == 0 { "" } else { blank }, part);
            }
            found
        })
        .boxed()
}

fn bare(text: String) -> Line {
    Line { text, bodies: String::new() }
}

/// Commands joined and nested.
fn list() -> BoxedStrategy<Line> {
    simple()
        .prop_recursive(3, 12, 3, |inner| {
            let ends = select(vec!["; ", ";", "\n", " ; ", "\n\n"]);
            let joins = select(vec![
                "; ", " && ", " || ", " | ", " & ", "\n", ";", "&&", "|", " |& ", " # c\n", "\n# 'c\n",
                " &&\n", " |\n", "&", " ||", "; ! ", " | ! ", ";;", " ; ; ", "; time ", "\\\n; ",
            ]);
            let joined = (inner.clone(), joins, inner.clone())
                .prop_map(|(first, join, second)| first.then(join, &second));
            let wrapped = (inner.clone(), select(WRAPS.to_vec()), ends.clone()).prop_map(
                |(inner, (before, after), end)| {
                    inner.around(before, "").then(&after.replacen("; ", end, 1), &bare(String::new()))
                },
            );
            let redirected = (inner.clone(), redirect())
                .prop_map(|(inner, redirect)| inner.around("{ ", "; } ").then("", &redirect));
            let nested = (
                simple(),
                inner.clone(),
                select(vec![
                    ("$(", ")"),
                    ("\"$(", ")\""),
                    ("`", "`"),
                    ("<(", ")"),
                    ("${x:-$(", ")}"),
                    ("$( ", "\n)"),
                ]),
            )
                .prop_map(|(outer, inner, (before, after))| {
                    outer.then(" ", &bare(format!("{before}{}{after}", inner.whole())))
                });
            let texts = (select(vec!["eval", "bash -c", "trap", "eval --"]), inner.clone(), any::<bool>())
                .prop_map(|(runner, inner, single)| {
                    let text = inner.whole();
                    let quoted = if single {
                        format!("'{}'", text.replace('\'', "'\\''"))
                    } else {
                        decurion_tools::bash::quote(&text)
                    };
                    bare(format!("{runner} {quoted}{}", if runner == "trap" { " EXIT" } else { "" }))
                });
            prop_oneof![5 => joined, 4 => wrapped, 1 => redirected, 2 => nested, 1 => texts]
        })
        .boxed()
}

/// What stands around commands. The first `; ` may also be a new line.
#[rustfmt::skip]
const WRAPS: &[(&str, &str)] = &[
    ("(", ")"), ("( ", " )"), ("((", "))"), ("( (", ") )"), ("{ ", "; }"), ("{\n", "\n}"),
    ("if ", "; then p; fi"), ("if p; then ", "; else q; fi"), ("if no; then p; elif q; then ", "; fi"),
    ("while ", "; do break; done"), ("until p; do ", "; done"), ("while no; do ", "; done"),
    ("for x in a b; do ", "; done"), ("for x in $(q) {a,b}; do ", "; done"), ("for x; do ", "; done"),
    ("for x do ", "; done"), ("for x in a b\ndo ", "; done"), ("for ((;;)); do ", "; break; done"),
    ("for ((i=0;i<2;i++)); do ", "; done"), ("for x in a b; { ", "; }"), ("case a in a) ", "; ;; esac"),
    ("case a in a) ", " ;; b) q;; esac"), ("case $x in (a|b) p;; *) ", "; ;; esac"),
    ("case a in a) ", " ;& b) q ;; esac"), ("case a in a) ", " ;;& *) q; esac"), ("case a in\na) ", " esac"),
    ("case a in esac; ", "; "), ("case esac in (esac) ", "; esac"), ("case \"a b\" in a\\ b) ", ";; esac"),
    ("[[ a == a ]] && ", "; "), ("[[ a && -n $(q) ]]; ", "; "), ("[[ a < b || ( a ) ]] && ", "; "),
    ("[[ a =~ ^a$ ]] && ", "; "), ("[[ a =~ (a|b) ]]; ", "; "), ("((1)) && ", "; "), ("((x=1)); ", "; "),
    ("(( 1 < 2 )); ", "; "), ("f() { ", "; }; f"), ("f () ( ", " ); f a"), ("function f { ", "; }; f"),
    ("function f() { ", "; }; f"), ("f() ", "; f"), ("coproc ", "; wait"), ("coproc X { ", "; }; wait"),
    ("select x in a; do ", "; done"), ("! ", "; p"), ("time ", "; p"), ("time -p ", "; p"), ("! ! ", "; p"),
    ("exec 3>w; ", "; "), ("shopt -s expand_aliases\nalias p='q r'\n", "; "), ("set -f; ", "; "),
    ("x=p; ", "; $x"), ("cd src; ", "; cd ..; p"), ("{ ", "; } & wait"), ("(", ") & wait"), ("p | { ", "; }"),
    ("p <(", ")"), ("p > >(", ")"), ("x=$(", "; )"), ("if { ", "; }; then p; fi"), ("p &&\n\n# c\n", "; "),
    ("'p' ", "; "), ("if p\nthen\n", "\nfi"), ("while read -r x; do ", "; done < f"),
    ("echo a | while read -r x; do ", "; done"), ("p; } ", "; "), ("set -- a b; ", "; "),
    ("shopt -s extglob\n", "; "), ("set -o posix; ", "; "), ("if p; then q; fi | ", "; "),
    ("for x in a; do p; done > w; ", "; "),
];

/// Pieces of the grammar in any order.
fn piece() -> impl Strategy<Value = String> {
    let marks = select(vec![
        "p",
        "q a",
        "r",
        "evil",
        "echo",
        " ",
        " ",
        ";",
        "\n",
        "&&",
        "||",
        "|",
        "&",
        "(",
        ")",
        "{ ",
        "; }",
        "$(",
        "`",
        "\"",
        "'",
        "\\",
        "$x",
        "${x:-",
        "}",
        "<",
        ">",
        ">>",
        "<<E\n",
        "\nE\n",
        "<(",
        "if ",
        "; then ",
        "; fi",
        "for i in a; do ",
        "; done",
        "case a in a) ",
        ";; esac",
        "[[ ",
        " ]]",
        "((",
        "))",
        "!",
        "#",
        "a",
        "-l",
        "=",
        "x=1 ",
        "$'",
        "\\x65",
        "*",
        "[",
        "]",
        "{a,b}",
        "~",
        "time ",
        "\\\n",
        "$((",
        "<<'E'\n",
        "esac",
        "in",
        ";;",
        "do ",
        "done",
        "{",
        "f() ",
        "<<<",
        "2>&1",
        "&>",
        "$\"",
        "\\\\",
        "\\\"",
        "\\'",
        "!(",
        "=~",
    ]);
    prop_oneof![8 => marks.prop_map(str::to_owned), 1 => word()]
}

/// Collected texts, joined, cut and with pieces put in.
fn changed(collected: Vec<String>) -> BoxedStrategy<String> {
    let count = collected.len();
    let one = (0..count).prop_map(move |index| collected[index].clone());
    let edit = (any::<prop::sample::Index>(), 0..4_usize, proptest::option::weighted(0.8, piece()));
    (one.clone(), proptest::option::weighted(0.3, one), proptest::collection::vec(edit, 0..3))
        .prop_map(|(mut text, other, edits)| {
            if let Some(other) = other {
                text = format!("{text}; {other}");
            }
            for (at, cut, piece) in edits {
                let chars: Vec<char> = text.chars().collect();
                let at = at.index(chars.len() + 1);
                let rest = (at + cut).min(chars.len());
                let kept: String = chars[..at].iter().collect();
                text = kept + &piece.unwrap_or_default() + &chars[rest..].iter().collect::<String>();
            }
            text
        })
        .boxed()
}

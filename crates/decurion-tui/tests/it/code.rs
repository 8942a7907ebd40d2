//! Code in colours: what each part of a piece of code is, language by language.

use decurion_tui::code::{Highlight, Lexer, TokenClass};
use decurion_tui::theme::{Shades, Theme};
use expect_test::{Expect, expect};

/// The code with what is not plain between `‹` and `›`, a letter for what it is in front.
fn check(language: &str, code: &str, expected: &Expect) {
    let mut lexer = Lexer::new(language).unwrap();
    expected.assert_eq(&marked(&mut lexer, code));
}

fn marked(lexer: &mut Lexer, code: &str) -> String {
    let mut shown = String::new();
    for line in code.lines() {
        for (class, range) in lexer.line(line) {
            let text = &line[range];
            match letter(class) {
                None => shown.push_str(text),
                Some(letter) => shown.push_str(&format!("‹{letter} {text}›")),
            }
        }
        shown.push('\n');
    }
    shown
}

fn letter(class: TokenClass) -> Option<char> {
    Some(match class {
        TokenClass::Plain => return None,
        TokenClass::Comment => '#',
        TokenClass::Text => 's',
        TokenClass::Number => 'n',
        TokenClass::Keyword => 'k',
        TokenClass::Type => 't',
        TokenClass::Function => 'f',
        TokenClass::Attribute => 'a',
        TokenClass::Key => 'y',
        TokenClass::Added => '+',
        TokenClass::Removed => '-',
        TokenClass::Place => '@',
        TokenClass::Heading => 'h',
    })
}

#[test]
fn rust() {
    check(
        "rust,ignore",
        r###"#[derive(Debug, Clone)] // why
pub fn parse<'a>(text: &'a str) -> Result<Vec<u8>, Error> {
    /* a /* nested */ one
    over lines */ let c = 'x'; let e = '\''; let q = '"';
    let raw = r#"a "quoted" \ thing"#; let bytes = b"\x00";
    println!("{} \" {}", 0xff_u8, 1.5e-3); if a != b { x.type_of(1..2) }
    let s = "over
two lines"; MAX_SIZE.await
}"###,
        &expect![[r##"
            ‹a #[derive(Debug, Clone)]› ‹# // why›
            ‹k pub› ‹k fn› ‹f parse›<‹a 'a›>(text: &‹a 'a› ‹t str›) -> ‹t Result›<‹t Vec›<‹t u8›>, ‹t Error›> {
                ‹# /* a /* nested */ one›
            ‹#     over lines */› ‹k let› c = ‹s 'x'›; ‹k let› e = ‹s '\''›; ‹k let› q = ‹s '"'›;
                ‹k let› raw = ‹s r#"a "quoted" \ thing"#›; ‹k let› bytes = ‹s b"\x00"›;
                ‹a println!›(‹s "{} \" {}"›, ‹n 0xff_u8›, ‹n 1.5e-3›); ‹k if› a != b { x.‹f type_of›(‹n 1›..‹n 2›) }
                ‹k let› s = ‹s "over›
            ‹s two lines"›; MAX_SIZE.‹k await›
            }
        "##]],
    );
}

#[test]
fn python() {
    check(
        "py",
        r#"@decorator.here
async def greet(self, name: str = "x") -> Optional[int]:
    """A doc
    it's long"""  # and a comment
    return f'hello {name}\'s' + r"\d" if None else 10_000
"#,
        &expect![[r#"
            ‹a @decorator›.here
            ‹k async› ‹k def› ‹f greet›(‹k self›, name: ‹t str› = ‹s "x"›) -> ‹t Optional›[‹t int›]:
                ‹s """A doc›
            ‹s     it's long"""›  ‹# # and a comment›
                ‹k return› ‹s f'hello {name}\'s'› + ‹s r"\d"› ‹k if› ‹k None› ‹k else› ‹n 10_000›
        "#]],
    );
}

#[test]
fn typescript() {
    check(
        "tsx",
        r#"import { useState } from 'react'; // hooks
export const App = ({ name }: Props): JSX.Element => {
  const text = `over ${name.map((x) => `${x}!`)} and
    ${ {a: 1}.a } done`;
  /* block */ return a < b ? <div className="x">{text}</div> : null;
};
const broken = "no end
const next = 1n;"#,
        &expect![[r#"
            ‹k import› { useState } ‹k from› ‹s 'react'›; ‹# // hooks›
            ‹k export› ‹k const› ‹t App› = ({ name }: ‹t Props›): JSX.‹t Element› => {
              ‹k const› text = ‹s `over ›‹a ${›name.‹f map›((x) => ‹s `›‹a ${›x‹a }›‹s !`›)‹a }›‹s  and›
            ‹s     ›‹a ${› {a: ‹n 1›}.a ‹a }›‹s  done`›;
              ‹# /* block */› ‹k return› a < b ? <‹k div› className=‹s "x"›>{text}</‹k div›> : ‹k null›;
            };
            ‹k const› broken = ‹s "no end›
            ‹k const› next = ‹n 1n›;
        "#]],
    );
}

#[test]
fn languages_with_braces() {
    check(
        "go",
        "func (s *Server) Run(ctx context.Context) error {\n\traw := `a\nb` // c\n\treturn nil\n}",
        &expect![[r#"
            ‹k func› (s *‹t Server›) ‹f Run›(ctx context.‹t Context›) ‹t error› {
            	raw := ‹s `a›
            ‹s b`› ‹# // c›
            	‹k return› ‹k nil›
            }
        "#]],
    );
    check(
        "cpp",
        "#include <vector>\nstd::vector<Thing> f(int x) { return {1'000, 'c', \"a\\\"b\"}; } /* x\ny */",
        &expect![[r#"
            ‹a #include› <vector>
            std::vector<‹t Thing›> ‹f f›(‹t int› x) { ‹k return› {‹n 1'000›, ‹s 'c'›, ‹s "a\"b"›}; } ‹# /* x›
            ‹# y */›
        "#]],
    );
    check(
        "java",
        "@Override public void run(String a) { var s = \"\"\"\n  text \"x\"\n  \"\"\"; }",
        &expect![[r#"
            ‹a @Override› ‹k public› ‹t void› ‹f run›(‹t String› a) { ‹k var› s = ‹s """›
            ‹s   text "x"›
            ‹s   """›; }
        "#]],
    );
    check(
        "kt",
        "fun main() = println(\"a ${b.c()} d\") // e",
        &expect![[r#"
        ‹k fun› ‹f main›() = ‹f println›(‹s "a ›‹a ${›b.‹f c›()‹a }›‹s  d"›) ‹# // e›
    "#]],
    );
    check(
        "cs",
        "var p = @\"c:\\dir\"; var s = $\"{a} b\"; #region x\nawait Task.Delay(5);",
        &expect![[r#"
        ‹k var› p = ‹s @"c:\dir"›; ‹k var› s = ‹s $"›‹a {›a‹a }›‹s  b"›; ‹a #region› x
        ‹k await› ‹t Task›.‹f Delay›(‹n 5›);
    "#]],
    );
    check(
        "swift",
        "@main struct App { let x: Int? = nil /* a /* b */ c */ }",
        &expect![[r#"
        ‹a @main› ‹k struct› ‹t App› { ‹k let› x: ‹t Int›? = ‹k nil› ‹# /* a /* b */ c */› }
    "#]],
    );
    check(
        "zig",
        "const std = @import(\"std\"); // x",
        &expect![[r#"
        ‹k const› std = ‹f @import›(‹s "std"›); ‹# // x›
    "#]],
    );
    check(
        "php",
        "<?php $x = <<<EOT\nhello $y\nEOT;\necho strlen($x); # c",
        &expect![[r#"
        <?php ‹y $x› = ‹s <<<EOT›
        ‹s hello $y›
        ‹s EOT;›
        ‹k echo› ‹f strlen›(‹y $x›); ‹# # c›
    "#]],
    );
    check(
        "hcl",
        "resource \"a\" \"b\" {\n  name = \"x-${var.y}\" # c\n}",
        &expect![[r#"
        ‹k resource› ‹s "a"› ‹s "b"› {
          ‹y name› = ‹s "x-›‹a ${›var.y‹a }›‹s "› ‹# # c›
        }
    "#]],
    );
}

#[test]
fn languages_with_words() {
    check(
        "ruby",
        "class A < B\n  def go?(x) = puts \"a #{x + 1} b\", :sym, @y # c\n  text = <<~SQL\n    select 1\n  SQL\n  a << b\nend",
        &expect![[r#"
            ‹k class› ‹t A› < ‹t B›
              ‹k def› ‹f go?›(x) = puts ‹s "a ›‹a #{›x + ‹n 1›‹a }›‹s  b"›, ‹s :sym›, ‹y @y› ‹# # c›
              text = ‹s <<~SQL›
            ‹s     select 1›
            ‹s   SQL›
              a << b
            ‹k end›
        "#]],
    );
    check(
        "bash",
        "#!/bin/bash\nif [ \"$HOME\" = '/x#y' ]; then # c\n  cat <<'EOF' | sed s#a#b#\n$not here\nEOF\n  echo ${x#y} $((1<<2)) it\\'s\nfi",
        &expect![[r#"
            ‹# #!/bin/bash›
            ‹k if› [ ‹s "$HOME"› = ‹s '/x#y'› ]; ‹k then› ‹# # c›
              cat ‹s <<'EOF'› | sed s#a#b#
            ‹s $not here›
            ‹s EOF›
              echo ${x#y} $((‹n 1›<<‹n 2›)) it\'s
            ‹k fi›
        "#]],
    );
    check(
        "sql",
        "SELECT count(*) FROM users u -- all\nwhere name = 'it''s' AND id IN (1, 2); /* x */",
        &expect![[r#"
            ‹k SELECT› ‹f count›(*) ‹k FROM› users u ‹# -- all›
            ‹k where› name = ‹s 'it''s'› ‹k AND› id ‹k IN› (‹n 1›, ‹n 2›); ‹# /* x */›
        "#]],
    );
    check(
        "lua",
        "local x = [[a\nb]] --[[ c\nd ]] return f(x) -- e",
        &expect![[r#"
        ‹k local› x = ‹s [[a›
        ‹s b]]› ‹# --[[ c›
        ‹# d ]]› ‹k return› ‹f f›(x) ‹# -- e›
    "#]],
    );
    check(
        "haskell",
        "f' :: Int -> Maybe a -- c\nf' x = Just {- n {- m -} -} 'c'",
        &expect![[r#"
        f' :: ‹t Int› -> ‹t Maybe› a ‹# -- c›
        f' x = ‹t Just› ‹# {- n {- m -} -}› ‹s 'c'›
    "#]],
    );
    check(
        "dockerfile",
        "FROM rust:1.95 AS build\nRUN cargo build --release # c\nENV A=$B\nCOPY --from=build /a /b",
        &expect![[r#"
            ‹k FROM› rust:‹n 1.95› ‹k AS› build
            ‹k RUN› cargo build --release ‹# # c›
            ‹k ENV› A=‹y $B›
            ‹k COPY› --from=build /a /b
        "#]],
    );
    check(
        "Makefile",
        ".PHONY: all\nall: main.o util.o\n\t$(CC) -o $@ $^ # c\nX := 1\nifeq ($(X),1)",
        &expect![[r#"
            ‹a .PHONY›: all
            ‹y all›: main.o util.o
            	$(CC) -o $@ $^ ‹# # c›
            X := ‹n 1›
            ‹k ifeq› ($(X),‹n 1›)
        "#]],
    );
}

#[test]
fn data() {
    check(
        "json",
        r#"{"a": "b", "c" : [1, -2.5e3, true], "d":{"e":null,"f":"g"}}"#,
        &expect![[r#"
            {‹y "a"›: ‹s "b"›, ‹y "c"› : [‹n 1›, -‹n 2.5e3›, ‹k true›], ‹y "d"›:{‹y "e"›:‹k null›,‹y "f"›:‹s "g"›}}
        "#]],
    );
    check(
        "yaml",
        "# top\nname: it's a test\n- key-two: \"a: b\" # c\n  \"q\": {a: 1, b: yes}\n  url: http://x/#y\nref: *base",
        &expect![[r#"
            ‹# # top›
            ‹y name›: it's a test
            - ‹y key-two›: ‹s "a: b"› ‹# # c›
              ‹y "q"›: {‹y a›: ‹n 1›, ‹y b›: ‹k yes›}
              ‹y url›: http://x/#y
            ‹y ref›: ‹a *base›
        "#]],
    );
    check(
        "toml",
        "[package.metadata] # c\nname = \"x\"\na.b = [1, true]\ns = '''\nraw \\ '''\nd = { path = '../x' }",
        &expect![[r#"
            ‹a [package.metadata]› ‹# # c›
            ‹y name› = ‹s "x"›
            ‹y a.b› = [‹n 1›, ‹k true›]
            ‹y s› = ‹s '''›
            ‹s raw \ '''›
            ‹y d› = { ‹y path› = ‹s '../x'› }
        "#]],
    );
}

#[test]
fn pages() {
    check(
        "html",
        "<!-- a\nb --><!DOCTYPE html>\n<a href=\"x\n y\" data-z='1' hidden>one &amp; two < 日本</a><br/>",
        &expect![[r#"
            ‹# <!-- a›
            ‹# b -->›<!‹k DOCTYPE› ‹y html›>
            <‹k a› ‹y href›=‹s "x›
            ‹s  y"› ‹y data-z›=‹s '1'› ‹y hidden›>one ‹n &amp;› two < 日本</‹k a›><‹k br›/>
        "#]],
    );
    check(
        "css",
        "@media (max-width: 10px) {\n  .a-b:hover, #id { color: #fff; width: 50%; margin: 0 !important } /* c */\n}",
        &expect![[r#"
            ‹k @media› (‹y max-width›: ‹n 10px›) {
              ‹t .a-b›:hover, ‹n #id› { ‹y color›: ‹n #fff›; ‹y width›: ‹n 50%›; ‹y margin›: ‹n 0› ‹k !important› } ‹# /* c */›
            }
        "#]],
    );
    check(
        "md",
        "# Title\n> quote\n- item with `code` and ` no end\n2. two\n```rust\nfn x() {}\n```\n#hashtag",
        &expect![[r#"
            ‹h # Title›
            ‹k >› quote
            ‹k -› item with ‹s `code`› and ` no end
            ‹k 2.› two
            ‹# ```rust›
            ‹s fn x() {}›
            ‹# ```›
            #hashtag
        "#]],
    );
}

#[test]
fn a_diff_is_read_by_its_counts() {
    check(
        "diff",
        "diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1,3 +1,2 @@ fn x\n same\n--- not a head\n-gone\n+new\n--- a/y\n\\ No newline\n@@ broken\n-a\n+b",
        &expect![[r#"
            ‹h diff --git a/x b/x›
            ‹h index 1..2›
            ‹h --- a/x›
            ‹h +++ b/x›
            ‹@ @@ -1,3 +1,2 @@ fn x›
             same
            ‹- --- not a head›
            ‹- -gone›
            ‹+ +new›
            ‹h --- a/y›
            ‹# \ No newline›
            ‹@ @@ broken›
            ‹- -a›
            ‹+ +b›
        "#]],
    );
}

#[test]
fn a_language_is_found_by_any_of_its_names() {
    for (name, code) in [
        ("Rust", "fn"),
        ("rs", "fn"),
        ("{.python}", "def"),
        ("language-go", "func"),
        ("ts:src/a.ts", "const"),
        ("YAML", "true"),
        ("C++", "class"),
        ("c#", "class"),
    ] {
        let parts = Lexer::new(name).unwrap().line(code);
        assert_eq!(parts, [(TokenClass::Keyword, 0..code.len())], "{name}");
    }
    for (path, code) in [
        ("src/main.rs", "fn"),
        ("C:\\x\\a.py", "def"),
        ("deploy/Dockerfile", "FROM"),
        ("Dockerfile.dev", "FROM"),
        ("Makefile", "include"),
        ("a.test.tsx", "const"),
        (".bashrc", "if"),
        ("Gemfile", "end"),
    ] {
        let parts = Lexer::of_file(path).unwrap().line(code);
        assert_eq!(parts, [(TokenClass::Keyword, 0..code.len())], "{path}");
    }
    for unknown in ["", "brainfuck", "text", " "] {
        assert!(Lexer::new(unknown).is_none(), "{unknown}");
        assert!(Lexer::of_file(unknown).is_none(), "{unknown}");
    }
}

#[test]
fn colours_are_those_of_the_terminal() {
    let spans = |language: &str, shades| {
        let line = Highlight::new(language, &Theme::new(shades)).line("fn Main() // x");
        line.iter().map(|span| format!("{:?} {:?}", span.content, span.style)).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        "fn" Style::new().light_magenta()
        " " Style::new()
        "Main" Style::new().light_blue()
        "() " Style::new()
        "// x" Style::new().dim().italic()"#]]
    .assert_eq(&spans("rust", Shades::Dark));
    expect![[r#"
        "fn" Style::new().bold()
        " " Style::new()
        "Main" Style::new()
        "() " Style::new()
        "// x" Style::new().dim().italic()"#]]
    .assert_eq(&spans("rust", Shades::None));
    expect![[r#""fn Main() // x" Style::new().cyan()"#]].assert_eq(&spans("unheard of", Shades::Dark));
}

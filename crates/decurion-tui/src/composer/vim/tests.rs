//! The keys of vi, as a prompt, keys and the prompt that comes of them.

use proptest::prelude::*;
use unicode_segmentation::UnicodeSegmentation as _;

use super::super::{ComposerEdit, CursorMotion as QuestionStep};
use super::*;

fn normal() -> Vim {
    Vim { mode: VimMode::Normal, ..Vim::default() }
}

/// The keys of a notation: letters, and names between `<` and `>` where those are one of these.
fn keys(notation: &str) -> Vec<KeyEvent> {
    let named = [
        ("<esc>", KeyEvent::from(KeyCode::Esc)),
        ("<cr>", KeyEvent::from(KeyCode::Enter)),
        ("<bs>", KeyEvent::from(KeyCode::Backspace)),
        ("<left>", KeyEvent::from(KeyCode::Left)),
        ("<c-r>", KeyEvent::new(KeyCode::Char('r'), KeyModifiers::CONTROL)),
    ];
    let mut keys = Vec::new();
    let mut rest = notation;
    while let Some(letter) = rest.chars().next() {
        let key = named.iter().find(|(name, _)| rest.starts_with(name));
        keys.push(key.map_or_else(|| KeyEvent::from(KeyCode::Char(letter)), |(_, key)| *key));
        rest = &rest[key.map_or(letter.len_utf8(), |(name, _)| name.len())..];
    }
    keys
}

/// Presses a key as the screen does: what is not taken is an edit.
fn press(vim: &mut Vim, composer: &mut Composer, key: &KeyEvent) -> Took {
    let took = vim.key(composer, key);
    if took == Took::No {
        match key.code {
            KeyCode::Char(letter) => composer.edit(ComposerEdit::Type(letter)),
            KeyCode::Backspace => composer.edit(ComposerEdit::Delete(QuestionStep::Left)),
            KeyCode::Left => composer.edit(ComposerEdit::Move(QuestionStep::Left)),
            KeyCode::Enter => composer.insert("\n"),
            _ => {}
        }
    }
    took
}

fn at(start: &str) -> Composer {
    let (before, after) = start.split_once('|').unwrap();
    let mut composer = Composer::with(&format!("{before}{after}"));
    composer.cursor = before.len();
    composer.done.clear();
    composer
}

fn shown(composer: &Composer) -> String {
    let (before, after) = composer.text.split_at(composer.cursor);
    format!("{before}|{after}")
}

fn check(table: &[(&str, &str, &str)]) {
    for (start, notation, expected) in table {
        let mut composer = at(start);
        let mut vim = normal();
        for key in keys(notation) {
            press(&mut vim, &mut composer, &key);
        }
        assert_eq!(shown(&composer), *expected, "{start:?} {notation}");
    }
}

#[test]
fn motions() {
    check(&[
        ("|one two", "l", "o|ne two"),
        ("one tw|o", "l", "one tw|o"),
        ("|one", "h", "|one"),
        ("one|\ntwo", "x", "o|n\ntwo"),
        ("a|b\ncd", "h", "|ab\ncd"),
        ("ab\n|cd", "h", "ab\n|cd"),
        ("|one two", "3l", "one| two"),
        ("|one two, three", "w", "one |two, three"),
        ("|one two, three", "2w", "one two|, three"),
        ("|one two, three", "2W", "one two, |three"),
        ("|one", "w", "on|e"),
        ("|one\n\ntwo", "w", "one\n|\ntwo"),
        ("|one\n\ntwo", "2w", "one\n\n|two"),
        ("one two, thr|ee", "b", "one two, |three"),
        ("one two, |three", "b", "one two|, three"),
        ("one two, |three", "2B", "|one two, three"),
        ("one\n\n|two", "b", "one\n|\ntwo"),
        ("|one two", "e", "on|e two"),
        ("on|e two", "e", "one tw|o"),
        ("|one, two", "2e", "one|, two"),
        ("|one, two", "E", "one|, two"),
        ("  one |two", "0", "|  one two"),
        ("  one |two", "^", "  |one two"),
        ("|one two", "$", "one tw|o"),
        ("|a\nbc\nd", "2$", "a\nb|c\nd"),
        ("a\n  b|c\nd", "gg", "|a\n  bc\nd"),
        ("|a\n  bc\n d", "G", "a\n  bc\n |d"),
        ("|a\n  bc\nd", "2G", "a\n  |bc\nd"),
        ("a\nb\n|c", "2gg", "a\n|b\nc"),
        ("|a\nb", "9G", "a\n|b"),
        ("ab|c\nd\nefg", "jj", "abc\nd\nef|g"),
        ("abc\nd\nef|g", "2k", "ab|c\nd\nefg"),
        ("|abc\nd\nefgh", "$jj", "abc\nd\nefg|h"),
        ("日|本\nabcd", "j", "日本\nab|cd"),
        ("|a (b) (c)", "f(", "a |(b) (c)"),
        ("|a (b) (c)", "2f(", "a (b) |(c)"),
        ("|a (b) (c)", "f(;", "a (b) |(c)"),
        ("|a (b) (c)", "f(;,", "a |(b) (c)"),
        ("|a (b) (c)", "t(", "a| (b) (c)"),
        ("|a (b) (c)", "t(;", "a (b)| (c)"),
        ("a (b) (c|)", "F(", "a (b) |(c)"),
        ("a (b) (c|)", "T(;", "a (|b) (c)"),
        ("|abc\nx", "fx", "|abc\nx"),
        ("|a👨‍👩‍👧e\u{301}b", "3l", "a👨‍👩‍👧e\u{301}|b"),
        ("a|b", "<bs>", "|ab"),
        ("a|b", "<left>", "|ab"),
        ("|", "hjklwbe0^$ggGfx;", "|"),
    ]);
}

#[test]
fn operators() {
    check(&[
        ("o|ne", "x", "o|e"),
        ("o|ne", "5x", "|o"),
        ("on|e", "X", "o|e"),
        ("on|e", "9X", "|e"),
        ("|one two three", "dw", "|two three"),
        ("|one two three", "d2w", "|three"),
        ("|one two three four five", "2d2w", "|five"),
        ("one |two\nthree", "dw", "one| \nthree"),
        ("|one\n\ntwo", "dw", "|\n\ntwo"),
        ("one tw|o", "db", "one |o"),
        ("|one two", "de", "| two"),
        ("on|e two", "d$", "o|n"),
        ("one |two", "d0", "|two"),
        ("  one |two", "d^", "  |two"),
        ("|a (b) c", "df)", "| c"),
        ("|a (b) c", "dt)", "|) c"),
        ("a (b) |c", "dF(", "a |c"),
        ("|a b", "dfz", "|a b"),
        ("a\n|b\nc", "dd", "a\n|c"),
        ("a\n|b", "dd", "|a"),
        ("|a", "dd", "|"),
        ("|a\nb\nc\nd", "2dd", "|c\nd"),
        ("|a\nb\n  c", "dj", "  |c"),
        ("a\nb\n|c", "dk", "|a"),
        ("a\n|b", "dj", "a\n|b"),
        ("a\n|b\nc", "dG", "|a"),
        ("a\n|b\nc", "dgg", "|c"),
        ("one t|wo", "D", "one |t"),
        ("one |two", "Cx<esc>", "one |x"),
        ("|one two", "cwx<esc>", "|x two"),
        ("on|e two", "cwx<esc>", "on|x two"),
        ("|one two three", "c2wx<esc>", "|x three"),
        ("one| two", "cwx<esc>", "one|xtwo"),
        ("|one two", "cex<esc>", "|x two"),
        ("a\n|bc\nd", "ccx<esc>", "a\n|x\nd"),
        ("a\n|bc\nd", "Sx<esc>", "a\n|x\nd"),
        ("|a\nb\nc", "2ccx<esc>", "|x\nc"),
        ("a|bc", "sxy<esc>", "ax|yc"),
        ("a|bcd", "2sx<esc>", "a|xd"),
        ("|", "sx<esc>", "|x"),
        ("|", "ddxdwDcwp<esc>", "|p"),
    ]);
}

#[test]
fn copies() {
    check(&[
        ("|one two", "ywP", "one| one two"),
        ("|one two", "yw$p", "one twoone| "),
        ("|ab", "xp", "b|a"),
        ("|ab", "x3p", "baa|a"),
        ("a|b\nc", "yyp", "ab\n|ab\nc"),
        ("a\nb|c", "yyP", "a\n|bc\nbc"),
        ("|a\nb", "ddp", "b\n|a"),
        ("|a\nb", "yy2p", "a\n|a\na\nb"),
        ("|a\n b\nc", "2Yjjp", "a\n b\nc\n|a\n b"),
        ("a|b c", "yiwP", "a|bab c"),
        ("one tw|o", "ybP", "one t|wtwo"),
        ("|a", "p", "|a"),
        ("|", "p", "|"),
        ("|a b", "y$P", "a |ba b"),
    ]);
}

#[test]
fn objects() {
    check(&[
        ("one t|wo three", "diw", "one | three"),
        ("one t|wo three", "daw", "one |three"),
        ("one t|wo", "daw", "on|e"),
        ("one  |  two", "diw", "one|two"),
        ("one t|wo, x", "ciwz<esc>", "one |z, x"),
        ("a.b|.c d", "diW", "| d"),
        ("say \"a |b\" c", "di\"", "say \"|\" c"),
        ("say \"a |b\" c", "da\"", "say |c"),
        ("|say \"a\" c", "ci\"x<esc>", "say \"|x\" c"),
        ("say \"|\" c", "ci\"x<esc>", "say \"|x\" c"),
        ("'a\\'|b'", "di'", "'|'"),
        ("f(a, (b)|, c)", "di(", "f(|)"),
        ("f(a, (|b), c)", "da(", "f(a, |, c)"),
        ("f|(a)", "dib", "f(|)"),
        ("f(a|)", "cibx<esc>", "f(|x)"),
        ("{\n a|b\n}", "diB", "{|}"),
        ("[a|]", "di]", "[|]"),
        ("<a|b>", "da<", "|"),
        ("no |brackets", "di(", "no |brackets"),
        ("a) |b (c", "di(", "a) |b (c"),
    ]);
}

#[test]
fn writing() {
    check(&[
        ("a|b", "ix<esc>", "a|xb"),
        ("a|b", "ax<esc>", "ab|x"),
        ("  a|b", "Ix<esc>", "  |xab"),
        ("|ab\nc", "Ax<esc>", "ab|x\nc"),
        ("a|b\nc", "ox<esc>", "ab\n|x\nc"),
        ("a\n|b", "Ox<esc>", "a\n|x\nb"),
        ("|", "ahello<bs><esc>", "hel|l"),
        ("|b", "3ixy<esc>", "xyxyx|yb"),
        ("|a", "2ox<esc>", "a\nx\n|x"),
        ("a|bc", "rx", "a|xc"),
        ("a|bc", "2rx", "ax|x"),
        ("a|bc", "3rx", "a|bc"),
        ("a|bc", "r<cr>", "a\n|c"),
        ("a|bC", "2~", "aB|c"),
        ("|straße", "9~", "STRASS|E"),
        ("a|\n  b\nc", "J", "a| b\nc"),
        ("|a\nb\nc", "3J", "a b| c"),
        ("|f(\n)", "J", "f(|)"),
        ("|a", "J", "|a"),
    ]);
}

#[test]
fn one_command_is_one_change() {
    check(&[
        ("|one two", "dwu", "|one two"),
        ("|one two", "dwu<c-r>", "|two"),
        ("|one two", "cwa b c<esc>u", "|one two"),
        ("|one two", "dwcwa b c<esc>uu", "|one two"),
        ("|one two", "cwa b c<esc>u<c-r>", "a b |c two"),
        ("|a b c d", "dwdwdw2u", "|b c d"),
        ("|a b c d", "dwdw9u", "|a b c d"),
        ("|x", "yyu", "|x"),
        ("|one two three", "dw.", "|three"),
        ("|a b c d e", "dw2.", "|d e"),
        ("|a b c", "cwx<esc>w.w.", "x x |x"),
        ("|a\nb", "A;<esc>j.", "a;\nb|;"),
        ("|a\nb\nc", "dd.u", "|b\nc"),
        ("|abc", "rxl.", "x|xc"),
        ("|a", "ox<esc>.", "a\nx\n|x"),
        ("|ab", ".", "|ab"),
        ("|ab\ncd", "xj.", "b\n|d"),
        ("|a b", "dwix<esc>u.", "|xb"),
    ]);
}

#[test]
fn keys_that_are_not_its_own() {
    use Took::{Above, Below, No, Yes};
    let mut composer = at("a|b");
    let mut vim = Vim::default();
    let took = |vim: &mut Vim, composer: &mut Composer, notation: &str| {
        keys(notation).iter().map(|key| vim.key(composer, key)).collect::<Vec<_>>()
    };
    assert_eq!(vim.label(), "insert");
    assert_eq!(took(&mut vim, &mut composer, "x<cr><esc>"), [No, No, Yes]);
    assert_eq!(vim.label(), "normal");
    // Nothing pending: the key interrupts, as ever. Something pending: it is dropped.
    assert_eq!(took(&mut vim, &mut composer, "<esc>2d<esc><esc>"), [No, Yes, Yes, Yes, No]);
    assert_eq!(took(&mut vim, &mut composer, "2d<cr>"), [Yes, Yes, No]);
    assert_eq!(vim.label(), "normal");
    assert_eq!(took(&mut vim, &mut composer, "2d"), [Yes, Yes]);
    assert_eq!(vim.label(), "normal 2d");
    assert_eq!(took(&mut vim, &mut composer, "z"), [Yes]);
    assert_eq!(took(&mut vim, &mut composer, "kj?"), [Above, Below, Yes]);
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(vim.key(&mut composer, &control), No);
    assert_eq!(vim.key(&mut composer, &KeyEvent::from(KeyCode::Up)), No);
    assert_eq!(shown(&composer), "|ab");
    let mut empty = Composer::default();
    assert_eq!(took(&mut vim, &mut empty, "?"), [No]);
    assert_eq!(took(&mut vim, &mut empty, "i"), [Yes]);
    assert_eq!(took(&mut Vim::default(), &mut empty, "<esc>"), [No]);
}

#[test]
fn what_was_sent_is_not_written_any_more() {
    let mut composer = at("|one two");
    let mut vim = normal();
    for key in keys("cwx") {
        press(&mut vim, &mut composer, &key);
    }
    assert_eq!(composer.take(), "x two");
    let escape = KeyEvent::from(KeyCode::Esc);
    assert_eq!(vim.key(&mut composer, &escape), Took::No);
    for key in keys("new<esc>u") {
        press(&mut vim, &mut composer, &key);
    }
    assert_eq!(shown(&composer), "|");
    assert!(composer.done.len() > 1);
}

#[test]
fn a_paste_is_one_character_and_means_nothing_elsewhere() {
    let mut composer = Composer::with("a ");
    composer.paste_text(&"line\n".repeat(20));
    composer.insert(" b");
    let mut vim = normal();
    for key in keys("0wywP") {
        press(&mut vim, &mut composer, &key);
    }
    assert_eq!(composer.text(), format!("a {0} {0} b", "line\n".repeat(20)));
    let mut other = Composer::with("x");
    for key in keys("p") {
        press(&mut vim, &mut other, &key);
    }
    assert_eq!(other.text(), "x ");
}

#[test]
fn a_large_count_costs_little() {
    let mut composer = at("|word ");
    let mut vim = normal();
    for key in keys("y$9999p0y$99999999999999999999p9999J9999~9999x9999u") {
        press(&mut vim, &mut composer, &key);
        assert!(composer.text.len() < 4 << 20);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever is pressed, the cursor stands between characters, and everything can be taken back.
    #[test]
    fn any_keys_on_any_text(
        text in "[a-c (\"\n日é👩]{0,20}",
        pressed in prop::collection::vec(prop::sample::select(
            "hjklwbeWBE0^$gGfFtT;,xXrsSdcypPYDCJ~.uiaIAoO23\"(w".chars().map(|letter| letter.to_string())
                .chain(["<esc>", "<c-r>", "<cr>", "<bs>", "<left>"].map(str::to_owned)).collect::<Vec<_>>()
        ), 0..40),
    ) {
        let mut composer = Composer::with(&text);
        composer.done.clear();
        let mut vim = normal();
        for key in keys(&pressed.concat()) {
            press(&mut vim, &mut composer, &key);
            let boundaries: Vec<usize> = composer.text.grapheme_indices(true).map(|(at, _)| at).collect();
            let at = composer.cursor;
            prop_assert!(at == composer.text.len() || boundaries.contains(&at), "{:?} {at}", composer.text);
            if vim.is_normal() && vim.pending.is_empty() && composer.cursor > 0 {
                let here = line(&composer.text, composer.cursor);
                prop_assert!(here.is_empty() || composer.cursor < here.end, "{}", shown(&composer));
            }
        }
        press(&mut vim, &mut composer, &KeyEvent::from(KeyCode::Esc));
        while !composer.done.is_empty() {
            composer.undo();
        }
        prop_assert_eq!(&composer.text, &text);
    }
}

//! Markdown as lines: what each form looks like in wide and narrow terminals, and that a text that grows keeps what it
//! has shown.

use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::markdown::{lines, settled, tail};
use expect_test::{Expect, expect};

const PAGE: &str = "\
# The plan

Read `src/main.rs` *first*, then **all** of [the guide](https://example.org/guide); see <https://example.org> too.

1. One thing that is longer than a narrow line can hold
2. Another
   - nested, with `code`
   - [x] done
   - [ ] open

   A second paragraph of it.

> A quote that goes on for longer than one line,
> > and one inside it.

```rust
fn main() {
    println!(\"a line of code that is much too long for a narrow terminal to show at once\");
}
```

| name | what it is | size |
|:--|:--|--:|
| first | a short one | 1 |
| 二番目 | a rather long description of the second one, which wraps | 20,000 |

---

Last ~~words~~.\\
After a break <b>html</b>.
";

fn shown(text: &str, columns: usize) -> String {
    let theme = Theme::new(Shades::None);
    lines(text, &theme, columns).iter().map(|line| format!("{line}\n")).collect()
}

fn check(text: &str, columns: usize, expected: &Expect) {
    let shown = shown(text, columns);
    for line in shown.lines() {
        assert!(decurion_tui::text::width(line) <= columns, "{columns}: {line:?}");
    }
    expected.assert_eq(&shown);
}

#[test]
fn a_page_in_a_usual_terminal() {
    check(
        PAGE,
        80,
        &expect![[r#"
        The plan

        Read src/main.rs first, then all of the guide (https://example.org/guide); see
        https://example.org too.

        1. One thing that is longer than a narrow line can hold
        2. Another
           • nested, with code
           • ☒ done
           • ☐ open

           A second paragraph of it.

        │ A quote that goes on for longer than one line,
        │
        │ │ and one inside it.

          fn main() {
              println!("a line of code that is much too long for a narrow terminal to
            show at once");
          }

        name   │ what it is                                               │   size
        ───────┼──────────────────────────────────────────────────────────┼───────
        first  │ a short one                                              │      1
        二番目 │ a rather long description of the second one, which wraps │ 20,000

        ────────────────────────────────────────

        Last words.
        After a break <b>html</b>.
    "#]],
    );
}

#[test]
fn a_page_in_a_narrow_terminal() {
    check(
        PAGE,
        30,
        &expect![[r#"
            The plan

            Read src/main.rs first, then
            all of the guide
            (https://example.org/guide);
            see https://example.org too.

            1. One thing that is longer
               than a narrow line can hold
            2. Another
               • nested, with code
               • ☒ done
               • ☐ open

               A second paragraph of it.

            │ A quote that goes on for
            │ longer than one line,
            │
            │ │ and one inside it.

              fn main() {
                  println!("a line of code
                that is much too long for
                a narrow terminal to show
                at once");
              }

            name   │ what it is   │   size
            ───────┼──────────────┼───────
            first  │ a short one  │      1
            二番目 │ a rather     │ 20,000
                   │ long         │ 
                   │ description  │ 
                   │ of the       │ 
                   │ second one,  │ 
                   │ which wraps  │ 

            ──────────────────────────────

            Last words.
            After a break <b>html</b>.
        "#]],
    );
}

#[test]
fn no_terminal_is_too_narrow() {
    for columns in 1..12 {
        let shown = shown(PAGE, columns);
        let widest = shown.lines().map(decurion_tui::text::width).max();
        assert!(widest <= Some(columns.max(2)), "{columns}: {shown}");
    }
}

#[test]
fn what_a_model_writes_does_not_command_the_terminal() {
    check(
        "\u{1b}]0;title\u{7}*a*\u{1b}[2J `\u{1b}[31m` [x\u{9b}1m](http://a\u{1b}b)\n\n```\n\u{1b}[5m\u{8}\n```\n",
        80,
        &expect![[r"
            a `` x (http://a)

              ␈
        "]],
    );
}

#[test]
fn a_text_that_grows_keeps_what_is_settled() {
    let whole = shown(PAGE, 60);
    let mut steps = 0;
    for end in (0..=PAGE.len()).filter(|end| PAGE.is_char_boundary(*end)) {
        let kept = settled(&PAGE[..end]);
        let above = shown(&PAGE[..kept], 60);
        assert!(whole.starts_with(&above), "{:?}\n{above}", &PAGE[..end]);
        steps += usize::from(kept > 0);
    }
    assert!(steps > PAGE.len() / 2, "{steps}");
    assert_eq!(settled("one\n\ntwo\n"), 5);
    assert_eq!(settled("one\ntwo"), 0);
    assert_eq!(settled("```\na\n\nb\n"), 0);
    assert_eq!(settled("- a\n\n- b"), 0);
}

#[test]
fn the_end_of_a_text_is_that_of_the_whole() {
    let theme = Theme::new(Shades::Dark);
    let page = format!(
        "{PAGE}\n- in a list\n\n  ```rust\n  /* one\n  two\n  three */ fn x() {{}}\n  four\n  ```\n- ```\n  a\n  b\n  c\n"
    );
    for end in (0..=page.len()).filter(|end| page.is_char_boundary(*end)) {
        let whole = lines(&page[..end], &theme, 30);
        for most in [0, 1, 2, 3, 7, 100] {
            let from = whole.len().saturating_sub(most);
            assert_eq!(tail(&page[..end], &theme, 30, most), whole[from..], "{most} of {:?}", &page[..end]);
        }
    }
}

#[test]
fn a_line_that_a_model_breaks_stays_broken() {
    check(
        "CJK: 二番目\nEmoji: 🍐\nRTL: שלום\n\nA new paragraph.",
        40,
        &expect![[r#"
            CJK: 二番目
            Emoji: 🍐
            RTL: שלום

            A new paragraph.
        "#]],
    );
}

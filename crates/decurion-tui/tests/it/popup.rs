//! Choices as rows: those around the chosen one, cut to any width.

use decurion_tui::completion::Completion;
use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::popup::Popup;
use expect_test::{Expect, expect};

const COMMANDS: &[(&str, &str)] = &[
    ("agents", "what agents there are, and what is wrong with them"),
    ("compact", "shorten the conversation"),
    ("cost", ""),
    ("a-command-of-the-users-own-with-a-long-name", "does something\u{1b}[2J\nover lines"),
    ("日本語", "全角の説明がここにあります、とても長いので切られます、とても長いので切られます"),
    ("help", "these words"),
];

fn check(columns: usize, most: usize, chosen: usize, expected: &Expect) {
    let theme = Theme::new(Shades::None);
    let choice = |(text, words): &(&str, &str)| Completion {
        text: (*text).to_owned(),
        description: (*words).to_owned(),
    };
    let choices: Vec<Completion> = COMMANDS.iter().map(choice).collect();
    let lines =
        Popup { theme: &theme, columns, most, sign: "/", chosen }.lines(&choices.iter().collect::<Vec<_>>());
    assert!(lines.len() <= most, "{}", lines.len());
    assert!(lines.iter().all(|line| line.width() <= columns), "{lines:?}");
    expected.assert_eq(&lines.iter().map(|line| format!("|{line}\n")).collect::<String>());
}

#[test]
fn the_chosen_one_is_marked_and_in_sight() {
    check(
        80,
        8,
        1,
        &expect![[r#"
        |  /agents                                  what agents there are, and what is w…
        |❯ /compact                                 shorten the conversation
        |  /cost
        |  /a-command-of-the-users-own-with-a-lon…  does something␛[2J over lines
        |  /日本語                                  全角の説明がここにあります、とても長…
        |  /help                                    these words
    "#]],
    );
    check(
        40,
        8,
        0,
        &expect![[r#"
        |❯ /agents              what agents ther…
        |  /compact             shorten the conv…
        |  /cost
        |  /a-command-of-the-…  does something␛[…
        |  /日本語              全角の説明がここ…
        |  /help                these words
    "#]],
    );
    check(
        20,
        4,
        5,
        &expect![[r#"
        |  /a-command-of-the…
        |  /日本語
        |❯ /help
        |  … 3 more
    "#]],
    );
    check(
        20,
        4,
        0,
        &expect![[r#"
        |❯ /agents
        |  /compact
        |  /cost
        |  … 3 more
    "#]],
    );
    check(
        80,
        1,
        3,
        &expect![[r#"
        |❯ /a-command-of-the-users-own-with-a-lon…  does something␛[2J over lines
    "#]],
    );
    check(
        3,
        8,
        99,
        &expect![[r#"
        |  …
        |  …
        |  …
        |  …
        |  …
        |❯ …
    "#]],
    );
}

#[test]
fn nothing_to_choose_has_no_row() {
    let theme = Theme::new(Shades::None);
    assert!(Popup { theme: &theme, columns: 0, most: 0, sign: "@", chosen: 3 }.lines(&[]).is_empty());
}

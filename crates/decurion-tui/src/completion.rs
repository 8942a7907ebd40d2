//! Completion of what is being written. Takes the prompt with its cursor, and what there is to choose from; gives what
//! is being named there, and the choices that fit, the best first.

use std::collections::BinaryHeap;
use std::ops::Range;

use decurion_protocol::mention::{begins, written};

/// What is being named at the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A command: `/name` at the beginning.
    Command,
    /// A file or an agent: `@name`, or `@"a name"`.
    Mention,
}

/// A name that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    pub what: CompletionKind,
    /// Where it stands, with its sign; all of it, also what is behind the cursor.
    pub range: Range<usize>,
    /// The name as far as the cursor, without its sign.
    pub word: String,
}

impl Naming {
    /// What is named where the cursor is, if anything.
    pub fn at(text: &str, cursor: usize) -> Option<Self> {
        let (before, after) = text.split_at_checked(cursor)?;
        if let Some(word) = before.strip_prefix('/') {
            let end = cursor + word_length(after);
            return (!word.contains(char::is_whitespace)).then(|| Self {
                what: CompletionKind::Command,
                range: 0..end,
                word: word.to_owned(),
            });
        }
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        let quoted = before[line..].rfind("@\"").map(|at| line + at);
        if let Some(start) = quoted.filter(|at| begins(before, *at) && !before[at + 2..].contains('"')) {
            let rest = after.find(['"', '\n']).filter(|at| after[*at..].starts_with('"'));
            let end = cursor + rest.map_or(0, |at| at + 1);
            return Some(Self {
                what: CompletionKind::Mention,
                range: start..end,
                word: before[start + 2..].to_owned(),
            });
        }
        let start = before
            .rfind(char::is_whitespace)
            .map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8));
        let mut signs = before[start..].match_indices('@').map(|(at, _)| start + at);
        let sign = signs.find(|at| begins(before, *at))?;
        let range = sign..cursor + word_length(after);
        Some(Self { what: CompletionKind::Mention, range, word: before[sign + 1..].to_owned() })
    }

    /// The text for a choice, with a space after it unless there is one. After a folder the person can continue.
    pub fn replacement(&self, text: &str, choice: &str) -> String {
        let name = match self.what {
            CompletionKind::Command => format!("/{choice}"),
            CompletionKind::Mention => written(choice),
        };
        let is_apart = text.get(self.range.end..).is_some_and(|rest| rest.starts_with(char::is_whitespace));
        if is_apart || self.what == CompletionKind::Mention && name.ends_with('/') {
            name
        } else {
            format!("{name} ")
        }
    }
}

fn word_length(text: &str) -> usize {
    text.find(char::is_whitespace).unwrap_or(text.len())
}

/// One that can be chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What is written for it, without the sign.
    pub text: String,
    /// A few words about it.
    pub description: String,
}

/// All that can be chosen, made ready to be searched at every key.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    all: Vec<Completion>,
    /// Their texts in small letters, one after the other, and where each ends.
    small: String,
    ends: Vec<usize>,
    /// Where the last part of the path begins in each.
    names: Vec<usize>,
    /// The letters of each, so that most are skipped without a search.
    letters: Vec<u64>,
}

/// How well a choice fits: less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    grade: Grade,
    /// How many characters stand between those that were written.
    gaps: usize,
    length: usize,
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Whole,
    /// It begins with the word.
    Begins,
    /// The last part of its path does.
    NameBegins,
    /// A word in it does.
    WordBegins,
    Contains,
    /// It has the letters in this order.
    Scattered,
}

impl Choices {
    /// These, which stay in this order where they fit equally well.
    pub fn new(all: Vec<Completion>) -> Self {
        let mut choices = Self { all, ..Self::default() };
        for choice in &choices.all {
            let start = choices.small.len();
            choices.small.extend(choice.text.chars().flat_map(char::to_lowercase));
            choices.ends.push(choices.small.len());
            let text = &choices.small.as_bytes()[start..];
            let path = text.strip_suffix(b"/").unwrap_or(text);
            choices.names.push(path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1));
            choices.letters.push(letters(text));
        }
        choices
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&Completion> {
        self.all.get(index)
    }

    /// Those that fit a word, the best first, so many at most.
    pub fn find(&self, word: &str, most: usize) -> Vec<&Completion> {
        let mut work = 0;
        self.search(word, most, &mut work).into_iter().filter_map(|index| self.all.get(index)).collect()
    }

    /// The same by their place, with a count of the bytes that were looked at.
    fn search(&self, word: &str, most: usize, work: &mut usize) -> Vec<usize> {
        let word: String = word.chars().flat_map(char::to_lowercase).collect();
        if word.is_empty() || most == 0 {
            return (0..self.all.len().min(most)).collect();
        }
        let wanted = letters(word.as_bytes());
        let mut best: BinaryHeap<Fit> = BinaryHeap::with_capacity(most + 1);
        let mut start = 0;
        for (index, end) in self.ends.iter().enumerate() {
            let text = &self.small.as_bytes()[start..*end];
            start = *end;
            if self.letters[index] & wanted != wanted || text.len() < word.len() {
                continue;
            }
            // Where enough fit well already, only what fits as well is looked for.
            let worst = best.peek().filter(|_| best.len() == most).map_or(Grade::Scattered, |fit| fit.grade);
            let Some((grade, gaps)) = grade(text, self.names[index], word.as_bytes(), worst, work) else {
                continue;
            };
            best.push(Fit { grade, gaps, length: text.len(), index });
            if best.len() > most {
                best.pop();
            }
        }
        best.into_sorted_vec().into_iter().map(|fit| fit.index).collect()
    }
}

/// A bit for each letter, digit and the rest.
fn letters(text: &[u8]) -> u64 {
    text.iter().fold(0, |all, byte| {
        all | 1
            << match byte {
                b'a'..=b'z' => byte - b'a',
                b'0'..=b'9' => byte - b'0' + 26,
                _ => 36 + byte % 28,
            }
    })
}

/// How well a text fits a word; none if it does not, or not as well as asked.
fn grade(text: &[u8], name: usize, word: &[u8], worst: Grade, work: &mut usize) -> Option<(Grade, usize)> {
    *work += 2 * word.len();
    if text.starts_with(word) {
        return Some((if text.len() == word.len() { Grade::Whole } else { Grade::Begins }, 0));
    }
    if worst < Grade::NameBegins {
        return None;
    }
    if text[name..].starts_with(word) {
        return Some((Grade::NameBegins, 0));
    }
    if worst < Grade::WordBegins {
        return None;
    }
    // What does not have the letters in their order does not contain them together either.
    let gaps = scattered(text, word, work)?;
    let mut contains = false;
    for at in 0..=text.len() - word.len() {
        *work += 1;
        if text[at] == word[0] && text[at..].starts_with(word) {
            contains = true;
            if at == 0 || !text[at - 1].is_ascii_alphanumeric() {
                return Some((Grade::WordBegins, 0));
            }
        }
    }
    let (grade, gaps) = if contains { (Grade::Contains, 0) } else { (Grade::Scattered, gaps) };
    (grade <= worst).then_some((grade, gaps))
}

/// How many bytes are between the letters of a word that are scattered over a text, at the narrowest first match; none
/// if they are not all there.
fn scattered(text: &[u8], word: &[u8], work: &mut usize) -> Option<usize> {
    let last = passed(text.iter(), word.iter(), work)?;
    let back = passed(text[..=last].iter().rev(), word.iter().rev(), work)?;
    Some(back + 1 - word.len())
}

/// How far one must go to pass all the letters of a word in their order.
fn passed<'a>(
    text: impl Iterator<Item = &'a u8>,
    mut word: impl Iterator<Item = &'a u8>,
    work: &mut usize,
) -> Option<usize> {
    let mut wanted = word.next()?;
    for (at, byte) in text.enumerate() {
        *work += 1;
        if byte == wanted {
            match word.next() {
                Some(next) => wanted = next,
                None => return Some(at),
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(written: &str) -> Option<(CompletionKind, String, String)> {
        let (before, after) = written.split_once('|').unwrap();
        let text = format!("{before}{after}");
        let naming = Naming::at(&text, before.len())?;
        Some((naming.what, text[naming.range].to_owned(), naming.word))
    }

    #[test]
    fn what_is_named_at_the_cursor() {
        use CompletionKind::{Command, Mention};
        let table = [
            ("/|", Some((Command, "/", ""))),
            ("/he|", Some((Command, "/he", "he"))),
            ("/he|lp me", Some((Command, "/help", "he"))),
            ("/help |me", None),
            ("/help @sr|", None),
            ("|/help", None),
            ("say /he|", None),
            (" /he|", None),
            ("see @|", Some((Mention, "@", ""))),
            ("@src/ma|in.rs and", Some((Mention, "@src/main.rs", "src/ma"))),
            ("see\n@a|", Some((Mention, "@a", "a"))),
            ("(@a|", Some((Mention, "@a", "a"))),
            ("me@example.org|", None),
            ("me@\"x y|", None),
            ("a @b |c", None),
            ("日本語 @日|本", Some((Mention, "@日本", "日"))),
            ("全角　@x|", Some((Mention, "@x", "x"))),
            ("see @\"my f|ile\" x", Some((Mention, "@\"my file\"", "my f"))),
            ("see @\"my f|", Some((Mention, "@\"my f", "my f"))),
            ("see @\"my\" f|", None),
            ("@\"a\nb|", None),
            ("@node_modules/@types/x|", Some((Mention, "@node_modules/@types/x", "node_modules/@types/x"))),
            ("|", None),
        ];
        for (written, expected) in table {
            let expected = expected.map(|(what, all, word)| (what, all.to_owned(), word.to_owned()));
            assert_eq!(named(written), expected, "{written:?}");
        }
        assert_eq!(Naming::at("日", 1), None);
        assert_eq!(Naming::at("a", 7), None);
    }

    #[test]
    fn what_is_written_for_a_choice() {
        for (written, choice, expected) in [
            ("/he|", "help", "/help "),
            ("/he| x", "help", "/help x"),
            ("see @s|", "src/main.rs", "see @src/main.rs "),
            ("see @s|", "src/", "see @src/"),
            ("see @s|, please", "src/a b.rs", "see @\"src/a b.rs\" please"),
            ("see @\"a |b\" c", "a b c", "see @\"a b c\" c"),
        ] {
            let (before, after) = written.split_once('|').unwrap();
            let text = format!("{before}{after}");
            let naming = Naming::at(&text, before.len()).unwrap();
            let mut done = text.clone();
            done.replace_range(naming.range.clone(), &naming.replacement(&text, choice));
            assert_eq!(done, expected, "{written:?} {choice}");
        }
    }

    fn choices<'a>(texts: impl IntoIterator<Item = &'a str>) -> Choices {
        let choice = |text: &str| Completion { text: text.to_owned(), description: String::new() };
        Choices::new(texts.into_iter().map(choice).collect())
    }

    #[test]
    fn the_best_comes_first() {
        let all = choices([
            "docs/domain.md",
            "src/main.rs",
            "src/domain/mod.rs",
            "main",
            "maintain.sh",
            "src/my/admin.rs",
            "README.md",
            "crates/a/src/main_loop.rs",
            "x/remains/",
            "m_a_i_n",
            "Über.md",
            "最初.md",
        ]);
        let found = |word: &str| {
            all.find(word, 20).into_iter().map(|choice| choice.text.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(
            found("main"),
            [
                "main",
                "maintain.sh",
                "src/main.rs",
                "crates/a/src/main_loop.rs",
                "x/remains/",
                "docs/domain.md",
                "src/domain/mod.rs",
                "m_a_i_n",
                "src/my/admin.rs",
            ]
        );
        assert_eq!(found("MAIN")[0], "main");
        assert_eq!(found("readme"), ["README.md"]);
        assert_eq!(found("über"), ["Über.md"]);
        assert_eq!(found("最"), ["最初.md"]);
        assert_eq!(
            found("src/m"),
            ["src/main.rs", "src/my/admin.rs", "crates/a/src/main_loop.rs", "src/domain/mod.rs"]
        );
        assert_eq!(found("zzz"), Vec::<&str>::new());
        assert_eq!(found("").len(), 12);
        assert_eq!(all.find("main", 2).len(), 2);
        assert_eq!(all.find("main", 0).len(), 0);
        assert_eq!(choices([]).find("a", 5).len(), 0);
    }

    /// Paths as a large repository has them.
    fn paths(count: usize) -> Choices {
        let folders = ["engine", "store", "protocol", "tools", "config", "terminal", "server", "examples"];
        let names =
            ["session", "journal", "permission", "message", "context", "worktree", "question", "main"];
        let path = |at: usize| {
            let (folder, name) = (folders[at % 8], names[at / 8 % 8]);
            format!("crates/{folder}/src/part_{}/{name}_{}.rs", at / 64 % 100, at)
        };
        let all = (0..count).map(path).collect::<Vec<_>>();
        choices(all.iter().map(String::as_str))
    }

    #[test]
    fn fifty_thousand_paths_are_searched_by_looking_at_few_of_their_letters() {
        let all = paths(50_000);
        let bytes = all.small.len();
        for word in [
            "s",
            "se",
            "ses",
            "session",
            "cr",
            "main",
            "main_49",
            "engine/main",
            "crates/store/src/part_7",
            "q",
            "zz",
            "xyz",
        ] {
            let mut work = 0;
            all.search(word, 50, &mut work);
            assert!(work <= bytes / 2, "{word}: {work} of {bytes}");
        }
        // The worst: letters that all have, in an order that none has together.
        let mut work = 0;
        all.search("ssrc", 50, &mut work);
        assert!(work <= 3 * bytes, "{work} of {bytes}");
    }

    proptest! {
        #[test]
        fn looking_at_less_finds_the_same(
            texts in prop::collection::vec("[ab/_é]{0,8}", 0..40),
            word in "[abAé/]{1,4}",
            most in 1..8usize,
        ) {
            let all = choices(texts.iter().map(String::as_str));
            let mut work = 0;
            let whole = all.search(&word, 1_000, &mut work);
            prop_assert_eq!(&all.search(&word, most, &mut work)[..], &whole[..most.min(whole.len())]);
            let small = word.to_lowercase();
            let fits = |text: &str| {
                let (text, mut work) = (text.to_lowercase(), 0);
                passed(text.as_bytes().iter(), small.as_bytes().iter(), &mut work).is_some()
            };
            prop_assert_eq!(whole.len(), texts.iter().filter(|text| fits(text)).count());
        }

        #[test]
        fn any_text_has_a_name_or_none(text in "[/@\"a \n日(]{0,12}", cursor in 0..20usize) {
            if let Some(naming) = Naming::at(&text, cursor) {
                prop_assert!(text.get(naming.range.clone()).is_some());
                prop_assert!(naming.range.start < cursor && cursor <= naming.range.end);
                naming.replacement(&text, "x");
            }
        }
    }
}

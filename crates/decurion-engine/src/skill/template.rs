//! The text of a skill with places to fill. Takes the text, gives its pieces: words, and commands to run, with
//! arguments and folders in their places. Pure.
//!
//! Commands are found before anything is filled in, so that an argument can change what a command says, which
//! the rules then decide about, and can never become one.

/// A text told apart.
pub struct Template<'a>(Vec<Part<'a>>);

enum Part<'a> {
    Text(&'a str),
    Command(&'a str),
}

/// A piece of a text that was filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// A command whose output stands in its place.
    Command(String),
}

/// What is filled in.
pub struct Values {
    whole: String,
    words: Vec<String>,
    names: Vec<String>,
    folder: String,
    session: String,
}

impl Values {
    /// The arguments as written, the names of the first of them, the skill's folder and the session.
    pub fn new(args: &str, names: &[String], folder: &str, session: &str) -> Self {
        Self {
            whole: args.trim().to_owned(),
            words: split(args),
            names: names.to_vec(),
            folder: folder.to_owned(),
            session: session.to_owned(),
        }
    }
}

impl<'a> Template<'a> {
    /// Finds the commands: `` !`cmd` `` on one line.
    pub fn parse(text: &'a str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut from = 0;
        while let Some(at) = rest[from..].find("!`").map(|at| from + at) {
            let inside = &rest[at + 2..];
            let end = inside.find(['`', '\n']).filter(|end| inside[*end..].starts_with('`'));
            let Some(end) = end.filter(|end| !inside[..*end].trim().is_empty()) else {
                from = at + 2;
                continue;
            };
            parts.push(Part::Text(&rest[..at]));
            parts.push(Part::Command(&inside[..end]));
            rest = &inside[end + 1..];
            from = 0;
        }
        parts.push(Part::Text(rest));
        Self(parts)
    }

    /// The pieces with everything in its place. Arguments that no place asks for stand at the end.
    pub fn fill(&self, values: &Values) -> Vec<Piece> {
        let mut used = false;
        let mut pieces: Vec<Piece> = self
            .0
            .iter()
            .map(|part| match part {
                Part::Text(text) => Piece::Text(values.filled(text, &mut used)),
                Part::Command(text) => Piece::Command(values.filled(text, &mut used)),
            })
            .collect();
        if !used && !values.whole.is_empty() {
            pieces.push(Piece::Text(format!("\n\nARGUMENTS: {}", values.whole)));
        }
        pieces
    }
}

impl Values {
    fn filled(&self, text: &str, used: &mut bool) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            let (length, value, is_argument) = self.place(after).unwrap_or((0, "$", false));
            *used |= is_argument;
            filled.push_str(value);
            rest = &after[length..];
        }
        filled.push_str(rest);
        filled
    }

    /// What stands behind a dollar sign: how long it is, its value, and whether it is an argument. What means
    /// nothing is left as it is.
    fn place(&self, after: &str) -> Option<(usize, &str, bool)> {
        if let Some(inner) = after.strip_prefix('{') {
            let name = inner.split('}').next().filter(|name| inner.len() > name.len())?;
            let value = match name {
                "CLAUDE_SKILL_DIR" | "DECURION_SKILL_DIR" => &self.folder,
                "CLAUDE_SESSION_ID" | "DECURION_SESSION_ID" => &self.session,
                _ => return None,
            };
            return Some((name.len() + 2, value, false));
        }
        if let Some(behind) = after.strip_prefix("ARGUMENTS") {
            if let Some((index, length)) = bracketed(behind) {
                return Some((9 + length, self.words.get(index).map_or("", String::as_str), true));
            }
            let goes_on = behind.starts_with(|next: char| next.is_alphanumeric() || next == '_');
            return (!goes_on).then_some((9, self.whole.as_str(), true));
        }
        let digits = after.len() - after.trim_start_matches(|next: char| next.is_ascii_digit()).len();
        if digits > 0 {
            let word = self.words.get(after[..digits].parse::<usize>().ok()?)?;
            return Some((digits, word, true));
        }
        let word = |next: char| next.is_alphanumeric() || next == '_';
        let length = after.len() - after.trim_start_matches(word).len();
        let index = self.names.iter().position(|name| *name == after[..length] && length > 0)?;
        Some((length, self.words.get(index).map_or("", String::as_str), true))
    }
}

/// `[n]` and its length.
fn bracketed(text: &str) -> Option<(usize, usize)> {
    let (digits, _) = text.strip_prefix('[')?.split_once(']')?;
    Some((digits.parse().ok()?, digits.len() + 2))
}

/// The words of arguments; quotes hold several together.
pub fn split(args: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in args.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, args: &str) -> String {
        let names = ["file".to_owned(), "line".to_owned()];
        let values = Values::new(args, &names, "/s", "id");
        let show = |piece: Piece| match piece {
            Piece::Text(text) => text,
            Piece::Command(command) => format!("<{command}>"),
        };
        Template::parse(text).fill(&values).into_iter().map(show).collect()
    }

    #[test]
    fn places_are_filled() {
        for (text, args, expected) in [
            ("do $ARGUMENTS.", "a b", "do a b."),
            ("$ARGUMENTS[1] then $ARGUMENTS[0]$ARGUMENTS[7]", "a b", "b then a"),
            ("$0 and $1 and $2", "a 'b c'", "a and b c and $2"),
            ("$10 $file:$line $other", "a b", "$10 a:b $other"),
            ("costs $5, $ alone, $$0", "x", "costs $5, $ alone, $x"),
            ("${CLAUDE_SKILL_DIR}/x ${CLAUDE_SESSION_ID} ${HOME}", "", "/s/x id ${HOME}"),
            ("nothing asks", "a b", "nothing asks\n\nARGUMENTS: a b"),
            ("nothing asks", " ", "nothing asks"),
            ("$ARGUMENTSx", "a", "$ARGUMENTSx\n\nARGUMENTS: a"),
            ("$file", "", ""),
            ("ends in $", "", "ends in $"),
        ] {
            assert_eq!(shown(text, args), expected, "{text:?} {args:?}");
        }
    }

    #[test]
    fn commands_are_in_the_text_and_never_in_an_argument() {
        for (text, args, expected) in [
            ("a !`git log $0` b", "x;y", "a <git log x;y> b"),
            ("$ARGUMENTS", "!`rm -rf /`", "!`rm -rf /`"),
            ("!`a`!`b`", "", "<a><b>"),
            ("!`not\nclosed` !`` !` ` and !`yes`", "", "!`not\nclosed` !`` !` ` and <yes>"),
            ("wow! `code`", "", "wow! `code`"),
            ("open !`at the end", "", "open !`at the end"),
        ] {
            assert_eq!(shown(text, args), expected, "{text:?}");
        }
    }
}

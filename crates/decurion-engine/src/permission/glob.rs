//! Patterns of texts and paths. Takes a pattern and a text, or two patterns; says whether they match, or
//! whether anything could match both.

/// One element of a pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'p> {
    Star,
    Any,
    One(char),
    /// One of the characters between these brackets.
    Set(&'p str),
}

/// Takes the pattern of a rule apart.
fn tokens(pattern: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        found.push(match c {
            '\\' => {
                let next = rest.chars().next();
                rest = &rest[next.map_or(0, char::len_utf8)..];
                Token::One(next.unwrap_or(c))
            }
            '*' => Token::Star,
            '?' => Token::Any,
            '[' => match set_end(rest) {
                Some(end) => {
                    let set = &rest[..end];
                    rest = &rest[end + 1..];
                    Token::Set(set)
                }
                None => Token::One(c),
            },
            c => Token::One(c),
        });
    }
    found
}

/// Takes a shell's glob apart, as widely as it may be read: from a set on it counts as any text. What belongs to a set
/// depends on the language and on options of the shell, and one that is misread would find too little.
fn shell_tokens(glob: &str) -> Vec<Token<'_>> {
    let mut escaped = false;
    let set = glob.char_indices().find(|(_, c)| {
        let special = *c == '[' && !escaped;
        escaped = *c == '\\' && !escaped;
        special
    });
    let Some((at, _)) = set else { return tokens(glob) };
    let mut found = tokens(&glob[..at]);
    found.push(Token::Star);
    found
}

/// Where the set that begins here ends, without its closing bracket.
fn set_end(text: &str) -> Option<usize> {
    let negated = usize::from(text.starts_with(['!', '^']));
    // Directly at the beginning a bracket is one of its characters.
    let mut at = negated + usize::from(text[negated..].starts_with(']'));
    loop {
        let rest = &text[at..];
        match rest.chars().next()? {
            ']' => return Some(at),
            '[' => at += class(rest).map_or(1, str::len),
            _ => at = text.len() - member(rest)?.1.len(),
        }
    }
}

/// The first character of a text, which may have a backslash before it, and what follows.
fn member(text: &str) -> Option<(char, &str)> {
    let text = text.strip_prefix('\\').filter(|rest| !rest.is_empty()).unwrap_or(text);
    let c = text.chars().next()?;
    Some((c, &text[c.len_utf8()..]))
}

/// `[:alpha:]`, `[.x.]` or `[=x=]` at the beginning of a text.
fn class(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('[')?;
    let mark = rest.chars().next().filter(|mark| ":.=".contains(*mark))?;
    let end = rest[1..].find(&format!("{mark}]"))?;
    Some(&text[..end + 4])
}

/// Whether a character is in a set.
fn is_in(set: &str, wanted: char) -> bool {
    let negated = set.starts_with(['!', '^']);
    let mut rest = &set[usize::from(negated)..];
    let mut found = false;
    while let Some((first, after)) = member(rest) {
        if let Some(class) = class(rest) {
            found |= is_of_class(&class[1..class.len() - 1], wanted);
            rest = &rest[class.len()..];
            continue;
        }
        let range = after.strip_prefix('-').and_then(member);
        let (last, after) = range.unwrap_or((first, after));
        found |= (first..=last).contains(&wanted);
        rest = after;
    }
    found != negated
}

/// Whether a character is one of `:alpha:`, `.x.` or `=x=`.
fn is_of_class(class: &str, wanted: char) -> bool {
    match class {
        ":alpha:" => wanted.is_alphabetic(),
        ":digit:" => wanted.is_ascii_digit(),
        ":alnum:" | ":word:" => wanted.is_alphanumeric() || (wanted == '_' && class == ":word:"),
        ":upper:" => wanted.is_uppercase(),
        ":lower:" => wanted.is_lowercase(),
        ":space:" | ":blank:" => wanted.is_whitespace(),
        ":punct:" => wanted.is_ascii_punctuation(),
        ":xdigit:" => wanted.is_ascii_hexdigit(),
        class => class.trim_matches(['.', '=']).chars().eq([wanted]),
    }
}

/// Whether `pattern`, in which `*` stands for any text and nothing else is special, matches `text`.
pub(crate) fn text_matches(pattern: &str, text: &str) -> bool {
    let pieces: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = pieces.as_slice() else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

/// Whether a path's component matches a rule's pattern of one.
pub(crate) fn component_matches(pattern: &str, name: &str) -> bool {
    meet(&tokens(pattern), &characters(name))
}

/// Whether a component of a shell's glob may find a name.
pub(crate) fn shell_finds(glob: &str, name: &str) -> bool {
    meet(&shell_tokens(glob), &characters(name))
}

fn characters(name: &str) -> Vec<Token<'_>> {
    name.chars().map(Token::One).collect()
}

/// Whether some name could match both patterns. A shell's wildcard never finds a name that starts with a
/// dot unless the dot is written.
pub(crate) fn components_meet(rule: &str, shell: &str) -> bool {
    if rule.starts_with('.') && shell.starts_with(['*', '?', '[']) {
        return false;
    }
    meet(&tokens(rule), &shell_tokens(shell))
}

/// Whether some text matches both sequences: reachability in the product of two small automata.
fn meet(left: &[Token<'_>], right: &[Token<'_>]) -> bool {
    let width = right.len() + 1;
    let mut reached = vec![false; (left.len() + 1) * width];
    reached[0] = true;
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            if !reached[i * width + j] {
                continue;
            }
            let (a, b) = (left.get(i), right.get(j));
            if a == Some(&Token::Star) {
                reached[(i + 1) * width + j] = true;
                if j < right.len() {
                    reached[i * width + j + 1] = true;
                }
            }
            if b == Some(&Token::Star) {
                reached[i * width + j + 1] = true;
                if i < left.len() {
                    reached[(i + 1) * width + j] = true;
                }
            }
            let same = match (a, b) {
                (Some(Token::One(x)), Some(Token::One(y))) => x == y,
                (Some(Token::Set(set)), Some(Token::One(c))) => is_in(set, *c),
                (Some(Token::Star) | None, _) | (_, Some(Token::Star) | None) => false,
                _ => true,
            };
            if same {
                reached[(i + 1) * width + j + 1] = true;
            }
        }
    }
    reached[left.len() * width + right.len()]
}

/// Whether a path matches a pattern of components, where `**` stands for any number of them. With `below`,
/// what matches covers everything under it.
pub(crate) fn path_matches(pattern: &[&str], path: &[&str], below: bool) -> bool {
    match pattern.split_first() {
        None => path.is_empty() || below,
        Some((&"**", [])) => !path.is_empty() || below,
        Some((&"**", rest)) => (0..=path.len()).any(|skipped| path_matches(rest, &path[skipped..], below)),
        Some((first, rest)) => path
            .split_first()
            .is_some_and(|(name, tail)| component_matches(first, name) && path_matches(rest, tail, below)),
    }
}

/// Whether anything a shell's glob may touch could match a rule's pattern, which covers what is under it.
pub(crate) fn paths_meet(rule: &[&str], shell: &[&str], below: bool, visible: bool) -> bool {
    match (rule.split_first(), shell.split_first()) {
        (None, _) => true,
        (Some((&"**", rest)), Some((_, tail))) => {
            paths_meet(rest, shell, below, visible) || paths_meet(rule, tail, below, visible)
        }
        // The shell's pattern is used up: what is left of the rule lies under it.
        (Some(_), None) => {
            let hidden = rule.iter().any(|component| component.starts_with('.'));
            let rest_is_stars = rule.iter().all(|component| *component == "**");
            rest_is_stars || (below && !(visible && hidden))
        }
        (Some((first, rest)), Some((other, tail))) => {
            components_meet(first, other) && paths_meet(rest, tail, below, visible)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(path: &str) -> Vec<&str> {
        path.split('/').filter(|part| !part.is_empty()).collect()
    }

    #[test]
    fn paths_match_by_component() {
        for (pattern, path, below, wanted) in [
            ("/a/**", "/a/b/c", false, true),
            ("/a/**", "/a", false, false),
            ("/a/**", "/a", true, true),
            ("/a/*.txt", "/a/b.txt", false, true),
            ("/a/*.txt", "/a/b/c.txt", false, false),
            ("/a/**/c", "/a/c", false, true),
            ("/a/**/c", "/a/x/y/c", false, true),
            ("/a", "/a/b", true, true),
            ("/a", "/ab", true, false),
            ("/**/.env", "/x/.env", false, true),
        ] {
            assert_eq!(path_matches(&split(pattern), &split(path), below), wanted, "{pattern} {path}");
        }
    }

    #[test]
    fn sets_of_rules_are_read_as_bash_reads_them() {
        for (pattern, names, others) in [
            ("[ab]x", "ax bx", "cx x abx"),
            ("[!ab]", "c ]", "a b"),
            ("[^]a]", "b", "] a"),
            ("[]a]", "] a", "b"),
            ("[a-c]", "a b c", "d -"),
            ("[a-]", "a -", "b"),
            ("[[:digit:]x]*", "1 x2", "y"),
            ("[[.-.]]", "-", "."),
            ("[[=v=]]", "v", "="),
            ("[\\]-]", "] -", "\\"),
            ("[a", "[a", "a"),
        ] {
            for name in names.split(' ') {
                assert!(component_matches(pattern, name), "{pattern} {name}");
            }
            for name in others.split(' ') {
                assert!(!component_matches(pattern, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn a_set_of_the_shell_may_find_anything() {
        for glob in ["secret[[:lower:]]", "[]s]ecrets", "[!]]ecrets", "[\\]-]x", "secrets[[.-.]]"] {
            assert!(components_meet("secrets", glob), "{glob}");
            assert!(shell_finds(glob, "secrets"), "{glob}");
        }
        assert!(!shell_finds("src[a-z]", "secrets"));
        assert!(!components_meet("secrets", "s\\[*"));
    }

    #[test]
    fn patterns_meet_where_a_path_could_match_both() {
        for (rule, shell, below, visible, wanted) in [
            ("/w/.env", "/w/*", false, false, false),
            ("/w/.env", "/w/.e*", false, false, true),
            ("/w/secrets/**", "/w/*/key", false, false, true),
            ("/w/secrets/**", "/w", true, false, true),
            ("/w/.ssh/**", "/w", true, true, false),
            ("/w/secrets", "/w/src", true, false, false),
            ("/**/id_rsa", "/w/src", true, false, true),
        ] {
            assert_eq!(paths_meet(&split(rule), &split(shell), below, visible), wanted, "{rule} {shell}");
        }
    }

    #[test]
    fn stars_in_texts_match_anything() {
        assert!(text_matches("git * main", "git push origin main"));
        assert!(!text_matches("git * main", "git push main2"));
        assert!(text_matches("a*b*c", "a1b2c"));
        assert!(!text_matches("ab*ba", "aba"));
        assert!(text_matches("x", "x"));
    }
}

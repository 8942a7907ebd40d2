//! Patterns of texts and paths. Takes a pattern and a text, or two patterns; says whether they match, or
//! whether anything could match both.

/// One element of a pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    /// Any text.
    Star,
    /// Any one character.
    Any,
    /// This character.
    One(char),
}

/// Takes a pattern apart. A set of characters counts as any character: it is only used where matching too
/// much is the safe side, or where [`matches`] looks at sets itself.
fn tokens(pattern: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut characters = pattern.chars().peekable();
    while let Some(c) = characters.next() {
        found.push(match c {
            '\\' => Token::One(characters.next().unwrap_or('\\')),
            '*' => Token::Star,
            '?' => Token::Any,
            '[' if characters.clone().any(|c| c == ']') => {
                for c in characters.by_ref() {
                    if c == ']' {
                        break;
                    }
                }
                Token::Any
            }
            c => Token::One(c),
        });
    }
    found
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

/// Whether a path's component matches a pattern of one.
pub(crate) fn component_matches(pattern: &str, name: &str) -> bool {
    let pattern = tokens(pattern);
    let name: Vec<Token> = name.chars().map(Token::One).collect();
    meet(&pattern, &name)
}

/// Whether some name could match both patterns. A shell's wildcard never finds a name that starts with a
/// dot unless the dot is written.
pub(crate) fn components_meet(rule: &str, shell: &str) -> bool {
    if rule.starts_with('.') && shell.starts_with(['*', '?', '[']) {
        return false;
    }
    meet(&tokens(rule), &tokens(shell))
}

/// Whether some text matches both sequences: reachability in the product of two small automata.
fn meet(left: &[Token], right: &[Token]) -> bool {
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
                (Some(Token::Any | Token::One(_)), Some(Token::Any | Token::One(_))) => true,
                _ => false,
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

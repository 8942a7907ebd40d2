//! What a misspelt name may mean. Takes the name and those that exist; gives the ones that are spelled like it.

/// Names that may be meant, nearest first, at most three.
pub fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let lower = wanted.to_lowercase();
    let mut near: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let own = name.to_lowercase();
            // The last part of a name is what people remember.
            let last = own.rsplit(':').next().unwrap_or_default().to_owned();
            let far = distance(&lower, &own).min(distance(&lower, &last));
            let begins = lower.len() >= 3 && (own.starts_with(&lower) || last.starts_with(&lower));
            let most = if lower.chars().count() < 4 { 1 } else { 2 };
            (far <= most || begins).then_some((if begins { far.min(most) } else { far }, name))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Whether one letter more, less or other makes a name of a word.
pub fn is_one_slip(word: &str, name: &str) -> bool {
    distance(word, name) == 1
}

/// How many letters must be changed, added or taken away.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().take(128).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, candidate) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *candidate);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_near() {
        let names = ["review", "release", "git:push", "x"];
        for (wanted, expected) in [
            ("reviw", "review"),
            ("REVIEW", "review"),
            ("rel", "release"),
            ("push", "git:push"),
            ("pusk", "git:push"),
            ("y", "x"),
            ("deploy", ""),
        ] {
            assert_eq!(nearest(wanted, names.into_iter()).join(" "), expected, "{wanted}");
        }
    }
}

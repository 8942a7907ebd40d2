//! Whether anything would be lost. Takes what was found of a worktree, gives the one verdict that decides
//! between removing and keeping it. Pure.

#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is found out on its own")]
pub struct Facts {
    /// The commit it began with.
    pub base: String,
    /// Where its branch is; none if there is none.
    pub tip: Option<String>,
    /// Whether there is something at its path.
    pub on_disk: bool,
    /// Whether that is a checkout of the repository.
    pub known: bool,
    /// What is checked out there.
    pub head: Option<String>,
    /// Whether nothing differs from what it was given, untracked files included.
    pub clean: bool,
    /// Whether there are commits that would go with it, as in a submodule.
    pub hidden: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing would be lost.
    Unchanged,
    /// There is something, or it cannot be told.
    Changed,
}

pub fn decide(facts: &Facts) -> Verdict {
    let branch_moved = facts.tip.as_ref().is_some_and(|tip| *tip != facts.base);
    let unchanged = match (facts.on_disk, facts.known) {
        (false, _) => !branch_moved,
        // Files that git cannot speak for are somebody's.
        (true, false) => false,
        (true, true) => {
            !branch_moved && facts.clean && !facts.hidden && facts.head.as_ref() == Some(&facts.base)
        }
    };
    if unchanged { Verdict::Unchanged } else { Verdict::Changed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wholly_as_it_began_is_unchanged() {
        use Verdict::{Changed, Unchanged};
        #[rustfmt::skip]
        let rows = [
            // tip, on disk, known, head, clean, hidden
            (Some("b"), true, true, Some("b"), true, false, Unchanged),
            (None, true, true, Some("b"), true, false, Unchanged),
            (Some("b"), false, false, None, true, false, Unchanged),
            (None, false, false, None, true, false, Unchanged),
            (Some("c"), true, true, Some("c"), true, false, Changed),
            (Some("c"), true, true, Some("b"), true, false, Changed),
            (Some("b"), true, true, Some("c"), true, false, Changed),
            (Some("b"), true, true, None, true, false, Changed),
            (Some("b"), true, true, Some("b"), false, false, Changed),
            (Some("b"), true, true, Some("b"), true, true, Changed),
            (Some("b"), true, false, None, true, false, Changed),
            (Some("c"), false, false, None, true, false, Changed),
        ];
        for (tip, on_disk, known, head, clean, hidden, expected) in rows {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            let (tip, head) = (owned(tip), owned(head));
            let facts = Facts { base: "b".to_owned(), tip, on_disk, known, head, clean, hidden };
            assert_eq!(decide(&facts), expected, "{facts:?}");
        }
    }
}

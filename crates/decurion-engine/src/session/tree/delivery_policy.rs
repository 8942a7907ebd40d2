//! Who hears of an ending. Takes what ended and how whoever is to hear of it stands, gives how that is told and
//! whether anyone is woken for it.
//!
//! The end of a task and the end of the run that waits for it come in any order. So it is decided when the task ends,
//! and again when the hearer's run ends without having put it on record: what holds then is the same in both orders.

/// What ended, as far as that decides who hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether a call was to wait for it.
    pub foreground: bool,
    /// Whether whoever is to hear of it was stopped with it, by the same stop.
    pub with_hearer: bool,
    /// Whether it was stopped, rather than that it ended by itself.
    pub killed: bool,
}

/// How whoever is to hear of an ending stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearer {
    /// The call that waits for the task is under way.
    Waits,
    /// It has a run, or will have one, and no call that waits for the task.
    Works,
    /// The root between its turns.
    Rests,
    /// An agent that has said its last word.
    Over,
}

/// How an ending is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// By the result of the call that waits.
    ByCall,
    /// By a note at the next step.
    ByNote,
    /// By a note that begins a turn.
    Waking,
    /// By a note that begins nothing: it is read when someone goes on.
    AtRest,
    Nobody {
        /// Whether it is one of the endings that nobody dealt with.
        counts: bool,
    },
}

/// How an ending is told to this hearer.
pub fn told(ended: Ended, hearer: Hearer) -> Told {
    match hearer {
        Hearer::Waits if ended.foreground => Told::ByCall,
        Hearer::Waits | Hearer::Works => Told::ByNote,
        // Whoever stopped the turn wants no other one for what was stopped with it.
        Hearer::Rests if ended.foreground && ended.with_hearer => Told::AtRest,
        Hearer::Rests => Told::Waking,
        // Whoever stopped them both knows of it.
        Hearer::Over => Told::Nobody { counts: !(ended.with_hearer && ended.killed) },
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const HEARERS: [Hearer; 4] = [Hearer::Waits, Hearer::Works, Hearer::Rests, Hearer::Over];

    fn all() -> impl Iterator<Item = Ended> {
        let both = [true, false];
        both.into_iter().flat_map(move |foreground| {
            both.into_iter().flat_map(move |with_hearer| {
                both.into_iter().map(move |killed| Ended { foreground, with_hearer, killed })
            })
        })
    }

    fn row(ended: Ended) -> String {
        let words = [
            if ended.foreground { "foreground" } else { "background" },
            if ended.with_hearer { "with its hearer" } else { "-" },
            if ended.killed { "killed" } else { "by itself" },
        ];
        let short = |told: Told| match told {
            Told::Nobody { counts: true } => "counts".to_owned(),
            Told::Nobody { counts: false } => "nobody".to_owned(),
            told => format!("{told:?}"),
        };
        let told = HEARERS.map(|hearer| short(told(ended, hearer)));
        let [attention, stopped, ending] = words;
        let [waits, works, rests, over] = told;
        format!("{attention} {stopped:15} {ending:9} | {waits:6} {works:6} {rests:6} {over}\n")
    }

    #[test]
    fn who_is_told_how() {
        expect![[r"
            foreground with its hearer killed    | ByCall ByNote AtRest nobody
            foreground with its hearer by itself | ByCall ByNote AtRest counts
            foreground -               killed    | ByCall ByNote Waking counts
            foreground -               by itself | ByCall ByNote Waking counts
            background with its hearer killed    | ByNote ByNote Waking nobody
            background with its hearer by itself | ByNote ByNote Waking counts
            background -               killed    | ByNote ByNote Waking counts
            background -               by itself | ByNote ByNote Waking counts
        "]]
        .assert_eq(&all().map(row).collect::<String>());
    }

    /// A run that waits may end before or after the task. What it was given and did not put on record is decided again.
    #[test]
    fn the_order_of_two_endings_decides_nothing() {
        for ended in all() {
            for gone in [Hearer::Rests, Hearer::Over] {
                let task_first = match told(ended, Hearer::Waits) {
                    Told::ByCall | Told::ByNote => told(ended, gone),
                    settled => settled,
                };
                assert_eq!(task_first, told(ended, gone), "{ended:?} {gone:?}");
            }
        }
    }
}

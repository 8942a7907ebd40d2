//! How a run ends: a closed set, so that no ending can be reported as something it was not.

use serde::{Deserialize, Serialize};

use crate::Limits;

/// The ending of a run or task. `Completed` cannot be built without its report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The work was done, or stopped at a limit that counts as an answer (`limit`).
    Completed {
        report: String,
        /// Which limit ended it early, if one did: `"turns"`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<String>,
    },
    /// It could not continue.
    Failed {
        /// Why, in words for a person.
        error: String,
    },
    Killed {
        by: String,
    },
    /// No progress within its limit.
    Stalled {
        /// What it was waiting for.
        waiting_for: String,
    },
    /// A budget was used up; the partial result is kept.
    OutOfBudget {
        /// Which: `"money"`, `"tokens"`, `"turns"`, `"time"`, `"spawns"`.
        budget: String,
        /// What was there when it ended.
        partial: String,
    },
    /// Its last turn was stopped by a refusal, and there was no person to ask.
    Denied {
        /// What was refused and why.
        reason: String,
        /// What was there when it ended.
        partial: String,
    },
    /// The process or machine it ran in is gone and its end was not seen.
    Lost,
}

impl Outcome {
    /// What stops a run whose session closes while a question of it is open.
    pub const BY_END_ASKING: &str = "the end of the session, with a question open";

    /// Whether the session closed while a question of this run was open. Calls that were not begun have no result then,
    /// and a resumed session continues the run as after a crash.
    pub fn leaves_question(&self) -> bool {
        matches!(self, Self::Killed { by } if by == Self::BY_END_ASKING)
    }

    /// The exit code of a headless run that ends so.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Completed { .. } => 0,
            Self::Failed { .. } => 1,
            Self::Denied { .. } => 3,
            Self::OutOfBudget { .. } => 4,
            Self::Stalled { .. } => 5,
            Self::Killed { .. } => 6,
            Self::Lost => 7,
        }
    }

    /// How bad it is, worst highest: the order in which endings of a tree decide its exit code.
    pub fn badness(&self) -> u8 {
        match self {
            Self::Completed { .. } => 0,
            Self::Killed { .. } => 1,
            Self::Denied { .. } => 2,
            Self::OutOfBudget { .. } => 3,
            Self::Stalled { .. } => 4,
            Self::Failed { .. } => 5,
            Self::Lost => 6,
        }
    }

    /// The one word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Killed { .. } => "killed",
            Self::Stalled { .. } => "stalled",
            Self::OutOfBudget { .. } => "out_of_budget",
            Self::Denied { .. } => "denied",
            Self::Lost => "lost",
        }
    }

    /// The word that ecosystem-shaped `status` fields use for it.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Killed { .. } => "killed",
            _ => "failed",
        }
    }
}

/// Which limit stopped a run, for people; with the amount where that is known.
pub fn limit_reached(budget: &str, limits: &Limits) -> String {
    let (what, amount) = match budget {
        "turns" => ("turn limit reached", limits.turns.map(|turns| turns.to_string())),
        "money" => (
            "budget exhausted",
            Some(limits.money.map_or("money".to_owned(), |money| format!("${}", money.dollars()))),
        ),
        "tokens" => ("token budget exhausted", limits.tokens.map(|tokens| tokens.to_string())),
        "time" => ("time limit reached", limits.seconds.map(|seconds| format!("{seconds} s"))),
        "spawns" => ("limit of sub-agents reached", limits.spawns.map(|spawns| spawns.to_string())),
        other => ("budget exhausted", Some(other.to_owned())),
    };
    amount.map_or_else(|| what.to_owned(), |amount| format!("{what} ({amount})"))
}

//! A budget as a person writes it: `10 turns, $2, 100k tokens, 5m`. Takes the text; gives the limits, or the part of it that
//! is none.

use decurion_protocol::{Limits, Money};

/// The limits that a text names; each part is a number with what it counts.
pub fn parse(text: &str) -> Result<Limits, String> {
    let mut limits = Limits::default();
    let parts = text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty());
    let mut is_empty = true;
    for part in parts {
        part_of(part, &mut limits).ok_or_else(|| {
            format!("not a budget: {part:?}; write for example 10 turns, $2, 100k tokens, 5m, 3 agents")
        })?;
        is_empty = false;
    }
    if is_empty { Err("no budget was written".to_owned()) } else { Ok(limits) }
}

fn part_of(part: &str, limits: &mut Limits) -> Option<()> {
    if let Some(dollars) = part.strip_prefix('$') {
        let dollars: f64 = dollars.trim().parse().ok()?;
        limits.money = Some(Money::from_dollars(dollars)).filter(|_| dollars.is_finite() && dollars >= 0.0);
        return limits.money.map(drop);
    }
    let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
    let number: u64 = part[..end].parse().ok()?;
    let unit = part[end..].trim();
    match unit {
        "" | "t" | "turn" | "turns" => limits.turns = Some(u32::try_from(number).ok()?),
        "tok" | "token" | "tokens" => limits.tokens = Some(number),
        "k" | "k tok" | "k tokens" => limits.tokens = Some(number.checked_mul(1_000)?),
        "M" | "M tok" | "M tokens" => limits.tokens = Some(number.checked_mul(1_000_000)?),
        "s" | "second" | "seconds" => limits.seconds = Some(number),
        "m" | "min" | "minutes" => limits.seconds = Some(number.checked_mul(60)?),
        "h" | "hour" | "hours" => limits.seconds = Some(number.checked_mul(3_600)?),
        "agent" | "agents" => limits.spawns = Some(u32::try_from(number).ok()?),
        _ => return None,
    }
    Some(())
}

pub fn words(limits: &Limits) -> String {
    let mut words = Vec::new();
    words.extend(limits.turns.map(|turns| format!("{turns} turns")));
    words.extend(limits.money.map(|money| crate::view::agents::money(money, false)));
    words.extend(limits.tokens.map(crate::view::agents::tokens));
    words.extend(limits.seconds.map(|seconds| crate::view::agents::duration(seconds.saturating_mul(1_000))));
    words.extend(limits.spawns.map(|spawns| format!("{spawns} agents")));
    if words.is_empty() { "no limits".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_part_by_part() {
        for (text, expected) in [
            ("10 turns", "10 turns"),
            ("7", "7 turns"),
            ("$2, 100k tokens, 5m", "$2.00, 100k tok, 5m 00s"),
            ("2M tokens; 90s; 3 agents", "2.0M tok, 1m 30s, 3 agents"),
            ("$0.5", "$0.50"),
        ] {
            assert_eq!(parse(text).map(|limits| words(&limits)).as_deref(), Ok(expected), "{text}");
        }
        for wrong in ["", " , ", "many turns", "$x", "$-1", "10 bananas", "99999999999 turns", "$inf"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}

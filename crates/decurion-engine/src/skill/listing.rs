//! The list of skills that a model is told, within a budget: names are kept longest, descriptions are cut. Takes
//! the skills, gives lines.

use decurion_protocol::Skill;

/// The shortest description worth showing.
const LEAST_DESCRIPTION: usize = 20;

/// One line for each skill, together at most so many characters: first whole, then with descriptions cut alike,
/// then names alone, and last as many names as fit.
pub fn list(skills: &[&Skill], budget: usize) -> String {
    let whole: Vec<String> = skills.iter().map(|skill| line(skill, usize::MAX)).collect();
    if length(&whole) <= budget {
        return whole.join("\n");
    }
    let names: Vec<String> = skills.iter().map(|skill| line(skill, 0)).collect();
    let bare = length(&names);
    if let Some(left) = budget.checked_sub(bare).filter(|_| !skills.is_empty()) {
        // Short ones leave their part to the others.
        let mut most = left / skills.len();
        let fits =
            |most: usize| length(&skills.iter().map(|skill| line(skill, most)).collect::<Vec<_>>()) <= budget;
        while most >= LEAST_DESCRIPTION && fits(most + most / 4) {
            most += most / 4;
        }
        if most >= LEAST_DESCRIPTION {
            return skills.iter().map(|skill| line(skill, most)).collect::<Vec<_>>().join("\n");
        }
        return names.join("\n");
    }
    let mut shown = Vec::new();
    let mut used = 0;
    for name in &names {
        used += name.chars().count() + 1;
        if used > budget {
            break;
        }
        shown.push(name.clone());
    }
    shown.push(format!("[{} more are not listed]", names.len() - shown.len()));
    shown.join("\n")
}

fn length(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count() + 1).sum::<usize>().saturating_sub(1)
}

fn line(skill: &Skill, most: usize) -> String {
    let mut about = skill.description.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(when) = &skill.when_to_use {
        about = format!("{about} Use it: {}", when.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if most == 0 || about.is_empty() {
        return format!("- {}", skill.name);
    }
    if about.chars().count() > most {
        about = about.chars().take(most.saturating_sub(3)).collect();
        about.push('…');
    }
    format!("- {}: {about}", skill.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn skill(name: &str, description: &str) -> Skill {
        Skill { name: name.to_owned(), description: description.to_owned(), ..Skill::default() }
    }

    #[test]
    fn names_are_kept_longest() {
        let all = [
            skill("alpha", "does one thing\nvery well, and says so at length"),
            skill("b", "short"),
            skill("gamma", "does another thing, and that at least as well as the first one"),
        ];
        let all: Vec<&Skill> = all.iter().collect();
        let mut shown = String::new();
        for budget in [1000, 100, 60, 24, 10, 0] {
            let list = list(&all, budget);
            assert!(budget < 24 || list.chars().count() <= budget, "{list}");
            shown += &format!("{budget}:\n{list}\n");
        }
        expect![[r"
            1000:
            - alpha: does one thing very well, and says so at length
            - b: short
            - gamma: does another thing, and that at least as well as the first one
            100:
            - alpha: does one thing very well, and …
            - b: short
            - gamma: does another thing, and that a…
            60:
            - alpha
            - b
            - gamma
            24:
            - alpha
            - b
            - gamma
            10:
            - alpha
            [2 more are not listed]
            0:
            [3 more are not listed]
        "]]
        .assert_eq(&shown);
    }
}

//! Questions of a model to a person, and plans that it wants approved. Takes the input of a call, gives what a front
//! end shows; takes the choice, gives the input that the call continues with. Both travel like every question: an
//! [`Answer::Allow`](crate::Answer::Allow) with the answered input holds the choice, a denial holds the reason why
//! there is none.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::Question;

/// The tool by which a model asks.
pub const ASK: &str = "AskUserQuestion";
/// The tool by which a model wants its plan agreed to.
pub const EXIT_PLAN: &str = "ExitPlanMode";

/// Questions in one call at most.
pub const MOST_QUESTIONS: usize = 4;
/// Options of a question at least and at most.
pub const OPTIONS: std::ops::RangeInclusive<usize> = 2..=4;

/// What a question to a person is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Whether the call may run.
    Call,
    /// What the person wants: each of these is answered by its options or by other words.
    Choices(Vec<Choice>),
    /// Whether this plan, as Markdown, is agreed to.
    Plan(String),
    /// What an MCP server asks for; see [`Question::elicitation`].
    Elicitation,
}

/// One question with the answers that are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The question; its answer is found by this text.
    pub question: String,
    /// A word or two for a narrow place.
    pub header: String,
    /// The answers that are offered. A person may always say something else.
    pub options: Vec<ChoiceOption>,
    /// Whether several may be chosen.
    pub several: bool,
}

/// One answer that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceOption {
    pub label: String,
    pub description: String,
    /// What it would look like, as Markdown.
    pub preview: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    pub question: String,
    /// The labels, or a person's own words.
    pub answers: Vec<String>,
    /// What the person adds to that.
    pub notes: Option<String>,
}

impl Question {
    /// What it is about. Choices that cannot be read are shown as any call is.
    pub fn subject(&self) -> Subject {
        if self.elicitation.is_some() {
            return Subject::Elicitation;
        }
        match self.tool.as_str() {
            ASK => Choice::read(&self.input).map_or(Subject::Call, Subject::Choices),
            EXIT_PLAN => plan(&self.input).map_or(Subject::Call, |plan| Subject::Plan(plan.to_owned())),
            _ => Subject::Call,
        }
    }
}

impl Choice {
    /// The questions of a call's input. The error names the member that is wrong.
    pub fn read(input: &Value) -> Result<Vec<Self>, String> {
        let questions = list(input, "questions", "questions")?;
        if questions.is_empty() || questions.len() > MOST_QUESTIONS {
            return Err(format!("`questions` holds 1 to {MOST_QUESTIONS}, got {}", questions.len()));
        }
        let mut seen = HashSet::new();
        let mut choices = Vec::new();
        for (index, question) in questions.iter().enumerate() {
            let at = format!("questions[{index}]");
            let choice = Self::read_one(question, &at)?;
            if !seen.insert(choice.question.clone()) {
                return Err(format!(
                    "`{at}.question` is asked twice; an answer is found by its question's text"
                ));
            }
            choices.push(choice);
        }
        Ok(choices)
    }

    fn read_one(question: &Value, at: &str) -> Result<Self, String> {
        let options = list(question, "options", &format!("{at}.options"))?;
        if !OPTIONS.contains(&options.len()) {
            let (least, most) = (OPTIONS.start(), OPTIONS.end());
            return Err(format!("`{at}.options` holds {least} to {most}, got {}", options.len()));
        }
        let mut labels = HashSet::new();
        let mut read = Vec::new();
        for (index, option) in options.iter().enumerate() {
            let at = format!("{at}.options[{index}]");
            let option = ChoiceOption {
                label: text(option, "label", &at)?,
                description: words(option, "description").to_owned(),
                preview: Some(words(option, "preview")).filter(|text| !text.is_empty()).map(str::to_owned),
            };
            if !labels.insert(option.label.clone()) {
                return Err(format!("`{at}.label` is offered twice"));
            }
            read.push(option);
        }
        Ok(Self {
            question: text(question, "question", at)?,
            header: words(question, "header").to_owned(),
            options: read,
            several: question.get("multiSelect").and_then(Value::as_bool).unwrap_or_default(),
        })
    }
}

/// The input of a call that asks, with what was chosen: what an [`Answer::Allow`](crate::Answer::Allow) carries. Several
/// answers to one question are one text, joined by commas.
pub fn answered(input: &Value, chosen: &[Chosen]) -> Value {
    let mut input = unanswered(input);
    let answers = chosen.iter().map(|one| (one.question.clone(), json!(one.answers.join(", "))));
    input["answers"] = Value::Object(answers.collect());
    let noted =
        chosen.iter().filter_map(|one| Some((one.question.clone(), json!({"notes": one.notes.as_ref()?}))));
    let noted: Map<String, Value> = noted.collect();
    if !noted.is_empty() {
        input["annotations"] = Value::Object(noted);
    }
    input
}

/// The input of a call that asks, without answers: a model must not answer for a person.
pub fn unanswered(input: &Value) -> Value {
    let mut input = input.clone();
    if let Value::Object(members) = &mut input {
        members.shift_remove("answers");
        members.shift_remove("annotations");
    }
    input
}

/// What was chosen, for each question that has an answer, in the order they were asked. A host may write several
/// answers as a list.
pub fn chosen(input: &Value) -> Vec<Chosen> {
    let questions = input.get("questions").and_then(Value::as_array).into_iter().flatten();
    let read = |question: &Value| {
        let question = words(question, "question").to_owned();
        let answers: Vec<String> = match input.get("answers")?.get(&question)? {
            Value::String(text) => vec![text.clone()],
            Value::Array(several) => several.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => return None,
        };
        let notes =
            input.get("annotations").and_then(|all| all.get(&question)).map(|one| words(one, "notes"));
        let notes = notes.filter(|notes| !notes.is_empty()).map(str::to_owned);
        let answers: Vec<String> = answers.into_iter().filter(|text| !text.trim().is_empty()).collect();
        (!answers.is_empty() || notes.is_some()).then_some(Chosen { question, answers, notes })
    };
    questions.filter_map(read).collect()
}

/// The plan of a call that wants it agreed to.
pub fn plan(input: &Value) -> Option<&str> {
    Some(words(input, "plan")).filter(|plan| !plan.trim().is_empty())
}

fn list<'a>(value: &'a Value, member: &str, at: &str) -> Result<&'a Vec<Value>, String> {
    value.get(member).and_then(Value::as_array).ok_or_else(|| format!("`{at}` is not a list"))
}

fn text(value: &Value, member: &str, at: &str) -> Result<String, String> {
    match value.get(member).and_then(Value::as_str).map(str::trim) {
        Some(text) if !text.is_empty() => Ok(words(value, member).to_owned()),
        _ => Err(format!("`{at}.{member}` is no text, or an empty one")),
    }
}

fn words<'a>(value: &'a Value, member: &str) -> &'a str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn asked(questions: &[(&str, &[&str])]) -> Value {
        let option = |label: &&str| json!({"label": label, "description": "d"});
        let question = |(text, labels): &(&str, &[&str])| {
            let options: Vec<Value> = labels.iter().map(option).collect();
            json!({"question": text, "header": "h", "options": options, "multiSelect": false})
        };
        json!({"questions": questions.iter().map(question).collect::<Vec<_>>()})
    }

    #[test]
    fn questions_are_read_or_it_is_said_which_member_is_wrong() {
        let two: &[&str] = &["a", "b"];
        let rows = [
            asked(&[("which?", two)]),
            asked(&[]),
            asked(&[("1", two), ("2", two), ("3", two), ("4", two), ("5", two)]),
            asked(&[("which?", two), ("which?", two)]),
            asked(&[("which?", &["a"])]),
            asked(&[("which?", &["a", "b", "c", "d", "e"])]),
            asked(&[("which?", &["a", "a"])]),
            asked(&[("which?", &["a", " "])]),
            asked(&[("", two)]),
            json!({"questions": "which?"}),
            json!({"questions": [{"question": "which?"}]}),
            json!([]),
        ];
        let line = |row: &Value| match Choice::read(row) {
            Ok(choices) => format!("{choices:?}\n"),
            Err(error) => format!("{error}\n"),
        };
        expect![[r#"
            [Choice { question: "which?", header: "h", options: [ChoiceOption { label: "a", description: "d", preview: None }, ChoiceOption { label: "b", description: "d", preview: None }], several: false }]
            `questions` holds 1 to 4, got 0
            `questions` holds 1 to 4, got 5
            `questions[1].question` is asked twice; an answer is found by its question's text
            `questions[0].options` holds 2 to 4, got 1
            `questions[0].options` holds 2 to 4, got 5
            `questions[0].options[1].label` is offered twice
            `questions[0].options[1].label` is no text, or an empty one
            `questions[0].question` is no text, or an empty one
            `questions` is not a list
            `questions[0].options` is not a list
            `questions` is not a list
        "#]].assert_eq(&rows.iter().map(line).collect::<String>());
    }

    #[test]
    fn what_was_chosen_is_read_as_it_was_written() {
        let input = asked(&[("which?", &["a", "b"]), ("and?", &["c", "d"]), ("so?", &["e", "f"])]);
        let one = |question: &str, answers: &[&str], notes: Option<&str>| Chosen {
            question: question.into(),
            answers: answers.iter().map(|&text| text.to_owned()).collect(),
            notes: notes.map(str::to_owned),
        };
        let given = [one("which?", &["a", "b"], None), one("and?", &["my own"], Some("soon"))];
        let whole = answered(&input, &given);
        assert_eq!(chosen(&whole), [one("which?", &["a, b"], None), one("and?", &["my own"], Some("soon"))]);
        assert_eq!(unanswered(&whole), input);
        // A host may give a list; what it says of a question that was not asked is nothing.
        let mut listed = input.clone();
        listed["answers"] = json!({"which?": ["a", "b"], "and?": "  ", "other?": "x", "so?": 3});
        assert_eq!(chosen(&listed), [one("which?", &["a", "b"], None)]);
        assert!(chosen(&input).is_empty());
    }
}

//! A question as steps. Takes what is asked; gives, one after the other, what a person chooses among or writes, and in the
//! end the one answer that all of it comes to. A call that waits for leave is one step, a form has one for each field.

use decurion_protocol::choice::{Choice, ChoiceOption, Chosen, Subject, answered};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Answer, ElicitationAction, Elicited, Mode, PermissionUpdate, Private, Question, Rule, Wanted,
};
use serde_json::{Map, Value};

use crate::text::one_line;

/// What is asked at once.
#[derive(Clone, Debug, PartialEq)]
pub struct QuestionStep {
    /// The question, where it is not the call itself.
    pub title: String,
    /// What can be chosen; none where something is to be written.
    pub offers: Vec<Offered>,
    /// Whether several can be.
    pub several: bool,
    /// A word or two for it, where it is one of the model's questions.
    pub header: String,
    /// Whether it only shows what was chosen, before that is sent.
    pub is_review: bool,
}

impl QuestionStep {
    /// A step in which one of these is chosen.
    fn new(title: impl Into<String>, offers: Vec<Offered>) -> Self {
        Self { title: title.into(), offers, several: false, header: String::new(), is_review: false }
    }
}

/// One of several answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    pub words: String,
    /// What it means, below it.
    pub details: String,
    /// Its effect.
    pub what: ChoiceEffect,
}

/// The effect of a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum ChoiceEffect {
    /// This is the answer, and this changes with it.
    Answer(Answer, Vec<PermissionUpdate>),
    /// A message is written first, which the model gets with a refusal.
    Refuse,
    /// It is refused, and the turn ends.
    Stop,
    /// This was chosen of the step's question.
    Label(String),
    /// Other words are written in its place.
    Other,
    /// This is the value of the step's field.
    Value(Value),
    Next,
    Back,
}

/// What was chosen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepChoice {
    pub step: usize,
    chosen: Vec<Chosen>,
    fields: Map<String, Value>,
}

fn offered(words: impl Into<String>, what: ChoiceEffect) -> Offered {
    Offered { words: words.into(), details: String::new(), what }
}

/// Leave for the call, and rules to remember: for everybody, or for the asker and those below it.
fn allow(rules: Vec<Rule>, everywhere: bool) -> ChoiceEffect {
    ChoiceEffect::Answer(Answer::Allow { input: None, rules, everywhere }, Vec::new())
}

/// The steps of a question.
pub fn steps(question: &Question) -> Vec<QuestionStep> {
    let only = |offers| vec![QuestionStep::new("", offers)];
    match question.subject() {
        Subject::Call => only(leave(question)),
        Subject::Plan(_) => only(plan()),
        Subject::Choices(choices) => {
            let mut steps: Vec<QuestionStep> = choices.into_iter().map(asked).collect();
            // What several questions come to is looked at before it is sent.
            if steps.len() > 1 {
                let offers = vec![
                    offered("Send", ChoiceEffect::Next),
                    offered("Change an answer", ChoiceEffect::Back),
                ];
                steps.push(QuestionStep {
                    is_review: true,
                    ..QuestionStep::new("Send these answers?", offers)
                });
            }
            steps
        }
        Subject::Elicitation => elicited(question),
    }
}

/// One of the model's questions.
fn asked(choice: Choice) -> QuestionStep {
    let option = |option: ChoiceOption| Offered {
        words: option.label.clone(),
        details: option.description,
        what: ChoiceEffect::Label(option.label),
    };
    let mut offers: Vec<Offered> = choice.options.into_iter().map(option).collect();
    offers.push(offered("Other…", ChoiceEffect::Other));
    QuestionStep {
        several: choice.several,
        header: choice.header,
        ..QuestionStep::new(choice.question, offers)
    }
}

/// Tools that change files.
const EDITORS: [&str; 4] = ["Edit", "MultiEdit", "NotebookEdit", "Write"];

/// The choices for a refusal: with a message, or the key that ends the turn.
fn declined(words: &str) -> [Offered; 2] {
    [offered(words, ChoiceEffect::Refuse), offered("No, and stop (esc)", ChoiceEffect::Stop)]
}

/// Whether a call may run, the safest answer last.
fn leave(question: &Question) -> Vec<Offered> {
    let yes = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
    let words = if question.leaves_sandbox() { "Yes, without the sandbox" } else { "Yes, this once" };
    let mut offers = vec![offered(words, ChoiceEffect::Answer(yes.clone(), Vec::new()))];
    // The mode is the session's, so an agent's question does not offer it; nor does it hold outside of the project.
    if EDITORS.contains(&question.tool.as_str()) && question.agent.is_none() && question.blocked.is_none() {
        let edits = vec![PermissionUpdate::SetMode { mode: Mode::AcceptEdits }];
        offers.push(offered("Yes, and all edits in this session", ChoiceEffect::Answer(yes, edits)));
    }
    // Only all of them together would have let it go ahead.
    let rules = &question.suggestions;
    if !rules.is_empty() {
        let names: Vec<String> = rules.iter().map(|rule| one_line(&rule.to_string())).collect();
        let names = names.join(", ");
        let kept = rules.iter().map(|rule| Rule { source: RuleSource::LocalSettings, ..rule.clone() });
        if question.behind {
            let words = format!("Yes, for this agent and its sub-agents: {names}");
            offers.push(offered(words, allow(rules.clone(), false)));
        }
        let words = format!("Yes, for the rest of this session: {names}");
        offers.push(offered(words, allow(rules.clone(), true)));
        let words = format!("Yes, always in this project: {names}");
        offers.push(offered(words, allow(kept.collect(), true)));
    }
    offers.extend(declined("No, and tell it what to do instead"));
    offers
}

fn plan() -> Vec<Offered> {
    let yes = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
    let mode = |mode| ChoiceEffect::Answer(yes.clone(), vec![PermissionUpdate::SetMode { mode }]);
    let mut offers = vec![
        offered("Yes, and auto-accept edits", mode(Mode::AcceptEdits)),
        offered("Yes, and ask before each change", mode(Mode::Default)),
    ];
    offers.extend(declined("No, keep planning: tell it what to change"));
    offers
}

fn elicited(question: &Question) -> Vec<QuestionStep> {
    let Some(elicitation) = &question.elicitation else { return Vec::new() };
    let plain = |action| ChoiceEffect::Answer(Answer::Elicited(Elicited::plain(action)), Vec::new());
    let (yes, what) = match &elicitation.wanted {
        Wanted::Form { .. } => ("Answer it", ChoiceEffect::Next),
        Wanted::Url { .. } => ("I have opened it", plain(ElicitationAction::Accept)),
    };
    let offers = vec![
        offered(yes, what),
        offered("Decline", plain(ElicitationAction::Decline)),
        offered("Neither (esc)", plain(ElicitationAction::Cancel)),
    ];
    let mut steps = vec![QuestionStep::new(elicitation.message.clone(), offers)];
    steps.extend(fields(question).map(|(name, schema)| field(name, schema)));
    steps
}

fn fields(question: &Question) -> impl Iterator<Item = (&String, &Value)> {
    let wanted = question.elicitation.as_ref().map(|elicitation| &elicitation.wanted);
    let schema = match wanted {
        Some(Wanted::Form { schema }) => schema["properties"].as_object(),
        _ => None,
    };
    schema.into_iter().flatten()
}

fn field(name: &str, schema: &Value) -> QuestionStep {
    let words = schema["title"].as_str().or(schema["description"].as_str()).unwrap_or(name);
    let value = |value: &Value| {
        let words = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        offered(words, ChoiceEffect::Value(value.clone()))
    };
    let offers = match (schema["enum"].as_array(), schema["type"].as_str()) {
        (Some(values), _) => values.iter().map(value).collect(),
        (None, Some("boolean")) => {
            vec![
                offered("yes", ChoiceEffect::Value(Value::Bool(true))),
                offered("no", ChoiceEffect::Value(Value::Bool(false))),
            ]
        }
        _ => Vec::new(),
    };
    QuestionStep::new(words, offers)
}

/// What a step has come to.
#[derive(Clone, Debug, PartialEq)]
pub enum StepResult {
    Next,
    Answer(Answer),
}

impl StepChoice {
    /// The same from its first step on, with what was written into fields.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { fields: self.fields.clone(), ..Self::default() }
    }

    /// What was chosen of the model's questions so far.
    pub fn chosen(&self) -> &[Chosen] {
        &self.chosen
    }

    /// Goes back to the step before; gives what was chosen there, or none where there is no step before.
    pub fn back(&mut self) -> Option<Vec<String>> {
        self.step = self.step.checked_sub(1)?;
        let before = self.chosen.get(self.step).map(|chosen| chosen.answers.clone());
        self.chosen.truncate(self.step);
        Some(before.unwrap_or_default())
    }

    /// What was written before into the field of this step.
    pub fn written(&self, question: &Question) -> Option<String> {
        let (name, _) = fields(question).nth(self.step.checked_sub(1)?)?;
        self.fields.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Takes what was chosen or written at a step.
    pub fn take(
        &mut self,
        question: &Question,
        step: &QuestionStep,
        answers: Vec<String>,
        value: Option<Value>,
    ) -> StepResult {
        match question.subject() {
            Subject::Choices(_) if step.is_review => {}
            Subject::Choices(_) => {
                self.chosen.push(Chosen { question: step.title.clone(), answers, notes: None });
            }
            Subject::Elicitation if self.step > 0 => {
                if let Some((name, schema)) = fields(question).nth(self.step - 1) {
                    let text = answers.into_iter().next().unwrap_or_default();
                    let value = value.unwrap_or_else(|| typed(&text, schema));
                    // What was left out is not there: the server says what it cannot do without.
                    if value == Value::String(String::new()) {
                        self.fields.remove(name);
                    } else {
                        self.fields.insert(name.clone(), value);
                    }
                }
            }
            _ => {}
        }
        self.step += 1;
        if self.step < steps(question).len() {
            return StepResult::Next;
        }
        if question.subject() == Subject::Elicitation {
            let content = Some(Private(Value::Object(self.fields.clone())));
            return StepResult::Answer(Answer::Elicited(Elicited {
                action: ElicitationAction::Accept,
                content,
            }));
        }
        let input = Some(answered(&question.input, &self.chosen));
        StepResult::Answer(Answer::Allow { input, rules: Vec::new(), everywhere: false })
    }
}

/// What was written, as the kind of value that is wanted.
fn typed(text: &str, schema: &Value) -> Value {
    let number = || serde_json::from_str::<Value>(text.trim()).ok().filter(Value::is_number);
    match schema["type"].as_str() {
        Some("number" | "integer") => number().unwrap_or_else(|| Value::String(text.to_owned())),
        _ => Value::String(text.to_owned()),
    }
}

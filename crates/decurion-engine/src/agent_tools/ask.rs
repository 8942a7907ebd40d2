//! AskUserQuestion: the model asks a person what they want. Takes questions with the answers that are offered, gives
//! what was chosen. The question itself goes the way of every question about a call; the answer comes as the input
//! that the call runs with. For the root alone, and only where somebody can answer.

use decurion_protocol::choice::{self, ASK, Choice, Chosen};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Intent, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde_json::{Value, json};

const DESCRIPTION: &str = "Asks the user up to four questions, each with two to four answers to choose from, and waits \
     for what they choose. Use it when you cannot go on well without a decision that is the user's: what they want, \
     which of several ways to go. Do not ask what you can find out yourself. The user can always answer in other words, \
     so offer no option for that. If you recommend an option, put it first and say so in its label.";

pub struct AskUserQuestion {
    spec: ToolSpec,
}

impl Default for AskUserQuestion {
    fn default() -> Self {
        Self { spec: ToolSpec::new(ASK, DESCRIPTION, schema()) }
    }
}

fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "minLength": 1, "description": description});
    let option = json!({
        "type": "object",
        "properties": {
            "label": text("one to five words; what is chosen"),
            "description": {"type": "string", "description": "what choosing it means"},
            "preview": {"type": "string", "description": "Markdown shown beside it, such as a sketch or some code"}
        },
        "required": ["label", "description"],
        "additionalProperties": false
    });
    let (least, most) = (choice::OPTIONS.start(), choice::OPTIONS.end());
    let question = json!({
        "type": "object",
        "properties": {
            "question": text("the whole question, asked once only"),
            "header": {"type": "string", "description": "one or two words for it, such as `Database`"},
            "options": {"type": "array", "minItems": least, "maxItems": most, "items": option},
            "multiSelect": {"type": "boolean", "default": false, "description": "whether several can be chosen"}
        },
        "required": ["question", "header", "options"],
        "additionalProperties": false
    });
    let filled = |description: &str| json!({"type": "object", "description": description});
    json!({
        "type": "object",
        "properties": {
            "questions": {"type": "array", "minItems": 1, "maxItems": choice::MOST_QUESTIONS, "items": question},
            "answers": filled("left out: it is filled in by whoever answers"),
            "annotations": filled("left out: it is filled in by whoever answers"),
            "metadata": filled("left out")
        },
        "required": ["questions"],
        "additionalProperties": false
    })
}

impl Tool for AskUserQuestion {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        typed::check(&self.spec, input)?;
        let choices = Choice::read(input).map_err(|issue| InputError::new(ASK, issue))?;
        let all: Vec<&str> = choices.iter().map(|choice| choice.question.as_str()).collect();
        Ok(Intent::titled(all.join(" ")))
    }

    fn run<'a>(&'a self, _cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move { answered(&input) })
    }
}

/// What the model is told was chosen.
fn answered(input: &Value) -> ToolOutput {
    let choices = match Choice::read(input) {
        Ok(choices) => choices,
        Err(issue) => return InputError::new(ASK, issue).into(),
    };
    let chosen = choice::chosen(input);
    if chosen.is_empty() {
        return ToolOutput::error(
            "Nothing was chosen: the user let the question pass without an answer. Go on with what you think best, and \
             say so, or ask in other words.",
        );
    }
    let line = |choice: &Choice| match chosen.iter().find(|one| one.question == choice.question) {
        Some(Chosen { answers, notes, .. }) => {
            let answer = if answers.is_empty() { "nothing".to_owned() } else { answers.join(", ") };
            let notes = notes.as_ref().map(|notes| format!("\n  They add: {notes}"));
            format!("- {}\n  {answer}{}", choice.question, notes.unwrap_or_default())
        }
        None => format!("- {}\n  (not answered)", choice.question),
    };
    let lines: Vec<String> = choices.iter().map(line).collect();
    let answers = chosen.iter().map(|one| (one.question.clone(), Value::from(one.answers.join(", "))));
    let mut value = json!({
        "questions": input.get("questions"),
        "answers": answers.collect::<serde_json::Map<_, _>>(),
    });
    if let Some(annotations) = input.get("annotations") {
        value["annotations"] = annotations.clone();
    }
    ToolOutput::text(format!("What the user chose:\n{}", lines.join("\n"))).with_structured(value)
}

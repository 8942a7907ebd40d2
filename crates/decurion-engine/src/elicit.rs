//! What an MCP server asks a person while a call of its tools runs. Takes its words from the connection, gives
//! the answer of whoever is attached to the session; in a non-interactive session it is declined, and a notice says so.
//!
//! The question goes the way of every question. Dropping the wait takes it back: the session's task sees that
//! nobody waits and says so to whoever was shown it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    Answer, AskedBy, CallId, Elicitation, ElicitationAction, Elicited, Event, Intent, Mode, Private,
    Question, QuestionId, Wanted,
};
use decurion_tools::mcp::Elicit;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::approval::Ask;
use crate::approval::Rights;
use crate::bench::{Bench, Call};
use crate::child;
use crate::journal::Journal;
use crate::ports::Redact;
use crate::run_handle::RunHandle;
use crate::run_hooks::{Bell, RunHooks};

/// How many faults of a form are named.
const MOST_FAULTS: usize = 8;

/// Asks in the name of one call.
pub struct Elicitor {
    run: RunHandle,
    journal: Journal,
    rights: watch::Receiver<Rights>,
    redact: Redact,
    call: CallId,
    tool: String,
    /// What calls a person who is elsewhere.
    bell: Option<Bell>,
    /// Whether it was said that nobody can be asked: once for a call is enough.
    said: AtomicBool,
}

impl Elicitor {
    pub fn new(bench: &Bench<'_>, call: &Call) -> Self {
        let run = bench.run;
        Self {
            run: run.clone(),
            journal: run.journal.clone(),
            rights: run.rights.clone(),
            redact: Arc::clone(&run.equipment.redact),
            call: call.id.clone(),
            tool: call.name.clone(),
            bell: RunHooks { run }.bell(),
            said: AtomicBool::new(false),
        }
    }

    /// Why nobody is asked, if so: the same rule as for permission.
    fn unanswerable(&self) -> Option<&'static str> {
        let rights = self.rights.borrow();
        let mode =
            child::mode((rights.mode, rights.undecided), &self.run.lineage.modes, rights.trusted).value;
        match mode {
            _ if !rights.answers => Some("this session is non-interactive"),
            Mode::DontAsk => Some("its agent runs in mode dontAsk, which never asks"),
            _ => None,
        }
    }

    async fn decline(&self, server: &str, why: &str) -> Elicited {
        if !self.said.swap(true, Ordering::Relaxed) {
            let text = format!("MCP server {server:?} asked a person for something and was declined: {why}");
            let event = Event::Notice { level: "warning".to_owned(), text };
            // A journal that is lost is found lost by the call itself.
            let _ = self.journal.write(&self.run.who, vec![event]).await;
        }
        Elicited::plain(ElicitationAction::Decline)
    }

    fn question(&self, mut elicitation: Elicitation) -> Question {
        if let Some(clean) = (self.redact)(&elicitation.message) {
            elicitation.message = clean;
        }
        if let Wanted::Form { schema } = &mut elicitation.wanted {
            clean_texts(&self.redact, schema);
        }
        let server = &elicitation.server;
        let others = match elicitation.calls {
            0 | 1 => String::new(),
            calls => format!(" (it works on {calls} calls, and this may be for another of them)"),
        };
        let what = match &elicitation.wanted {
            Wanted::Form { .. } => "asks",
            Wanted::Url { .. } => "wants an address to be visited",
        };
        Question {
            asked_by: AskedBy::Other,
            blocked: None,
            id: QuestionId(uuid::Uuid::new_v4()),
            agent: self.run.who.agent.clone(),
            path: self.run.lineage.path.split('/').map(str::to_owned).collect(),
            call: self.call.clone(),
            tool: self.tool.clone(),
            input: Value::Null,
            intent: Intent::titled(format!("MCP server {server} {what}")),
            reason: format!("MCP server {server:?} {what}{others}: {}", elicitation.message),
            suggestions: Vec::new(),
            behind: false,
            patch: None,
            elicitation: Some(Box::new(elicitation)),
        }
    }
}

/// Takes secrets out of every text of a form.
fn clean_texts(redact: &Redact, value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(clean) = redact(text) {
                *text = clean;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clean_texts(redact, item)),
        Value::Object(members) => members.values_mut().for_each(|member| clean_texts(redact, member)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Elicit for Elicitor {
    fn ask(&self, elicitation: Elicitation) -> BoxFuture<'_, Elicited> {
        Box::pin(async move {
            if let Some(why) = self.unanswerable() {
                return self.decline(&elicitation.server, why).await;
            }
            let question = self.question(elicitation);
            let _waiting = self.run.show_question(question.id);
            let (answer, answered) = oneshot::channel();
            let asked = Ask { who: self.run.who.clone(), question, answer, rights_changed: Arc::default() };
            let message = asked.question.intent.title.clone();
            let sent = self.run.session.ask(Box::new(asked)).await;
            if let Some(bell) = &self.bell {
                bell.ring("elicitation_dialog", &message);
            }
            match (sent, answered.await.map(|heard| heard.answer)) {
                (Some(()), Ok(Answer::Elicited(elicited))) => elicited,
                // Its time was up, or the session is over.
                _ => Elicited::plain(ElicitationAction::Cancel),
            }
        })
    }
}

/// The answer in the words of its question; the error is why it is none. What is wrong with a form is said
/// without what was written into it.
pub fn fitting(question: &Question, answer: Answer) -> Result<Answer, String> {
    let Some(elicitation) = &question.elicitation else {
        return match answer {
            Answer::Elicited(_) => Err("this question is about a call: allow or deny it".to_owned()),
            answer => Ok(answer),
        };
    };
    let elicited = match answer {
        Answer::Elicited(elicited) => elicited,
        Answer::Allow { input, .. } => {
            Elicited { action: ElicitationAction::Accept, content: input.map(Private) }
        }
        Answer::Deny { .. } => Elicited::plain(ElicitationAction::Decline),
    };
    if elicited.action != ElicitationAction::Accept {
        return Ok(Answer::Elicited(elicited.on_record()));
    }
    match &elicitation.wanted {
        // Agreeing to go there is all that there is to say.
        Wanted::Url { .. } => Ok(Answer::Elicited(elicited.on_record())),
        Wanted::Form { schema } => {
            let content = elicited.content.map_or_else(|| json!({}), |content| content.0);
            check(schema, &content)?;
            let content = Some(Private(content));
            Ok(Answer::Elicited(Elicited { action: ElicitationAction::Accept, content }))
        }
    }
}

fn check(schema: &Value, content: &Value) -> Result<(), String> {
    if !content.is_object() {
        return Err("the content of the answer is not a JSON object".to_owned());
    }
    let check = jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .map_err(|_| "the server's form is not a usable JSON Schema: decline it".to_owned())?;
    let fault = |error: jsonschema::ValidationError<'_>| {
        let at = error.instance_path().to_string();
        let what = error.masked_with("the value").to_string();
        if at.is_empty() { what } else { format!("{at}: {what}") }
    };
    let faults: Vec<String> = check.iter_errors(content).take(MOST_FAULTS).map(fault).collect();
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("the answer does not fit the server's form: {}", faults.join("; ")))
}

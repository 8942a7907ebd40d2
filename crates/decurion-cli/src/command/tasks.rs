//! `decurion tasks`: the agents and commands of a session, from another terminal. Takes a subcommand, talks to the
//! session's owner through its socket if there is one, else reads the journal; prints lists, one task or its output, or
//! the result of a request.

mod follow;
mod overview;
mod print;
mod session;

use std::io::Read as _;

use decurion_protocol::{
    Answer, Command, ElicitationAction, Elicited, Limits, Money, Private, QuestionId, Reply, SessionId,
    TaskId,
};
use serde_json::{Value, json};

use crate::args::{TasksArgs, TasksCommand, Verdict};
use crate::command::run::block_on;
use crate::report::Failure;
use crate::wire;

use overview::{Overview, text};
use session::{ChosenSession, choose};

/// The message for an agent that is resumed without a prompt.
const GO_ON: &str = "Continue with your work.";
/// The message for a model whose call was denied without one.
const DENIED: &str = "A person looked at this call and denied it.";

/// The longest form that is read.
const MOST_CONTENT: u64 = 1 << 20;

/// What becomes of the questions of a session that is not live.
const AGAIN: &str = "open questions are asked again then";

/// Looks at tasks, or does something about one.
pub fn run(args: &TasksArgs) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let paths = decurion_config::Paths::discover(&cwd, &environment)?;
    let home = wire::state(&paths)?;
    block_on(async {
        let chosen = choose(&home, &paths.cwd, args.session.as_deref()).await?;
        act(chosen, args).await
    })?
}

async fn act(mut chosen: ChosenSession, args: &TasksArgs) -> Result<u8, Failure> {
    let json = args.json;
    let command = args.command.as_ref().unwrap_or(&TasksCommand::List);
    if let TasksCommand::Follow { id } = command {
        return follow::follow(chosen, id, json).await;
    }
    let overview = Overview::of(&mut chosen).await?;
    match command {
        TasksCommand::List => print::list(&overview, json),
        TasksCommand::Show { id } => print::show(&overview, overview.find(id)?, json),
        TasksCommand::Stop { id } => {
            let task = task_id(overview.find(id)?)?;
            stop(&mut chosen, &overview, &task, json).await
        }
        TasksCommand::Pause { id, tree } => {
            let task = task_id(overview.find(id)?)?;
            pause(&mut chosen, task, *tree, json).await
        }
        TasksCommand::Continue { id, tree } => {
            let task = task_id(overview.find(id)?)?;
            go_on(&mut chosen, task, *tree, json).await
        }
        TasksCommand::Budget { id, turns, usd, tokens, seconds, spawns } => {
            let (turns, tokens, seconds, spawns) = (*turns, *tokens, *seconds, *spawns);
            let money = usd.map(dollars).transpose()?;
            let limits = Limits { turns, money, tokens, seconds, spawns };
            budget(&mut chosen, overview.find(id)?, limits, json).await
        }
        TasksCommand::Resume { id, prompt } => {
            let row = overview.find(id)?;
            resume(&mut chosen, row, prompt.as_deref().unwrap_or(GO_ON), json).await
        }
        TasksCommand::Answer { target, verdict, message, content } => {
            let answer = answer(*verdict, message.as_deref(), content.as_deref())?;
            must_be_live(&chosen, AGAIN)?;
            give_answer(&mut chosen, &overview, target, answer, json).await
        }
        TasksCommand::Follow { .. } => Ok(()),
    }?;
    Ok(0)
}

async fn stop(
    chosen: &mut ChosenSession,
    overview: &Overview,
    task: &TaskId,
    json: bool,
) -> Result<(), Failure> {
    let row = overview.find(task.as_str())?;
    if let Some(outcome) = row["outcome"].as_str() {
        return print::done(json, &json!({"id": task, "outcome": outcome}), || {
            format!("{task} has already ended: {outcome}")
        });
    }
    ask(chosen, Command::Stop { task: task.clone() }, "nothing of it runs until then").await?;
    print::done(json, &json!({"id": task, "stopped": true}), || format!("{task} is being stopped"))
}

async fn pause(chosen: &mut ChosenSession, task: TaskId, tree: bool, json: bool) -> Result<(), Failure> {
    let command = Command::Pause { task: task.clone(), tree };
    let count = count(&ask(chosen, command, "nothing of it runs until then").await?);
    print::done(json, &json!({"id": task, "paused": count}), || match (count, tree) {
        (0, _) => format!("{task} is already paused"),
        (_, false) => format!("{task} is paused; `decurion tasks continue {task}` resumes it"),
        (_, true) => {
            format!(
                "{task} and its sub-agents are paused ({count}); `decurion tasks continue {task} --tree` resumes them"
            )
        }
    })
}

async fn go_on(chosen: &mut ChosenSession, task: TaskId, tree: bool, json: bool) -> Result<(), Failure> {
    let command = Command::Continue { task: task.clone(), tree };
    let then = "what is paused stays paused until then";
    let count = count(&ask(chosen, command, then).await?);
    print::done(json, &json!({"id": task, "continued": count}), || match (count, tree) {
        (0, _) => format!("{task} was not paused"),
        (_, false) => format!("{task} is resumed"),
        (_, true) => format!("{task} and its sub-agents are resumed ({count})"),
    })
}

async fn budget(chosen: &mut ChosenSession, row: &Value, limits: Limits, json: bool) -> Result<(), Failure> {
    let task = task_id(row)?;
    let now = if limits == Limits::default() {
        row["limits"].clone()
    } else {
        let command = Command::Rebudget { task: task.clone(), limits };
        ask(chosen, command, "its budget stays as it is until then").await?
    };
    print::done(json, &json!({"id": task, "limits": now}), || {
        format!(
            "{task}: {}",
            print::limits(&now).map_or_else(
                || "no separate budget (uses the session's)".to_owned(),
                |limits| format!("may use {limits}")
            )
        )
    })
}

fn dollars(usd: f64) -> Result<Money, Failure> {
    if usd.is_finite() && usd > 0.0 {
        return Ok(Money::from_dollars(usd));
    }
    Err(Failure::usage(format!("--usd must be a number of dollars above 0: {usd}")))
}

/// How many agents a wish was granted for.
fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

async fn resume(chosen: &mut ChosenSession, row: &Value, prompt: &str, json: bool) -> Result<(), Failure> {
    let task = task_id(row)?;
    let agent = task.as_str().parse().map_err(|_| Failure::usage(format!("not an agent: {task}")));
    if text(row, "type") == "local_bash" {
        return Err(Failure::usage(format!("{task} is a command, which cannot be resumed"))
            .hint("only agents can be resumed"));
    }
    let command = Command::Tell { agent: agent?, text: prompt.to_owned() };
    ask(chosen, command, "the prompt can say what this agent should do").await?;
    print::done(json, &json!({"id": task, "told": prompt}), || format!("sent to {task}: {prompt}"))
}

fn answer(verdict: Verdict, message: Option<&str>, content: Option<&str>) -> Result<Answer, Failure> {
    if let Some(content) = content {
        return filled_in(verdict, content);
    }
    match (verdict, message) {
        (Verdict::Allow, None) => Ok(Answer::Allow { input: None, rules: Vec::new(), everywhere: false }),
        (Verdict::Allow, Some(_)) => Err(Failure::usage("--message is only for deny")
            .hint("`decurion tasks resume ID TEXT` sends an agent a message")),
        (Verdict::Deny, message) => {
            let message = message.unwrap_or(DENIED).to_owned();
            Ok(Answer::Deny { message, interrupt: false })
        }
    }
}

/// A form that a server asked for.
fn filled_in(verdict: Verdict, content: &str) -> Result<Answer, Failure> {
    if verdict == Verdict::Deny {
        return Err(Failure::usage("--content is only for allow"));
    }
    let read = || {
        let mut bytes = String::new();
        std::io::stdin().take(MOST_CONTENT).read_to_string(&mut bytes).map(|_| bytes)
    };
    let content = match content {
        "-" => read().map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?,
        content => content.to_owned(),
    };
    // The error does not repeat the input.
    let value = serde_json::from_str::<Value>(&content).ok().filter(Value::is_object);
    let content = value.ok_or_else(|| {
        Failure::usage("--content is not a JSON object").hint("for example '{\"name\": \"…\"}'")
    })?;
    let action = ElicitationAction::Accept;
    Ok(Answer::Elicited(Elicited { action, content: Some(Private(content)) }))
}

async fn give_answer(
    chosen: &mut ChosenSession,
    overview: &Overview,
    target: &str,
    answer: Answer,
    json: bool,
) -> Result<(), Failure> {
    let question = match overview.question(target) {
        Ok(question) => question.id,
        // Without a record its questions are not known here, but its owner knows them.
        Err(failure) if chosen.record.is_none() => target.parse::<QuestionId>().map_err(|_| failure)?,
        Err(failure) => return Err(failure),
    };
    let word = match answer {
        Answer::Deny { .. } => "denied",
        Answer::Allow { .. } => "allowed",
        Answer::Elicited(_) => "answered",
    };
    let command = Command::Answer { question, answer, updates: Vec::new(), by: "user".to_owned() };
    ask(chosen, command, AGAIN).await?;
    print::done(json, &json!({"question": question, "answer": word}), || format!("{word}: {question}"))
}

/// Asks the owner of a live session for something; `then` is what can be done about one that is not live.
async fn ask(chosen: &mut ChosenSession, command: Command, then: &str) -> Result<Value, Failure> {
    let id = chosen.id;
    let Some(live) = &mut chosen.live else { return Err(not_live(id, then)) };
    match live.ask(command).await {
        Some(Reply::Done { value }) => Ok(value),
        Some(Reply::Refused { reason }) => Err(Failure::failed(format!("session {id} refused: {reason}"))),
        None => Err(Failure::failed(format!("session {id} ended before replying"))),
    }
}

fn must_be_live(chosen: &ChosenSession, then: &str) -> Result<(), Failure> {
    if chosen.live.is_some() { Ok(()) } else { Err(not_live(chosen.id, then)) }
}

fn not_live(id: SessionId, then: &str) -> Failure {
    Failure::usage(format!("session {id} is not running"))
        .hint(format!("resume it with: decurion -p --resume {id} \"…\" ({then})"))
}

fn task_id(row: &Value) -> Result<TaskId, Failure> {
    text(row, "id")
        .parse()
        .map_err(|error| Failure::failed(format!("the session's list is damaged: {error}")))
}

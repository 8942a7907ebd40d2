//! The session that the flags ask for. Takes arguments, settings, the main agent's definition and what a host wants; gives
//! the request with which the session is opened, or what is wrong with a flag.

use camino::Utf8Path;
use decurion_config::{Loaded, rules};
use decurion_protocol::{
    AgentDefinition, Limits, LineId, Money, OpenSession, Persistence, ResumeAt, SessionId, Start, Thinking,
    ToolSelection,
};
use decurion_serve::Initialize;
use serde_json::Value;

use super::super::sessions::{id_length, named};
use super::{main_definition, permission_mode};
use crate::args::{InputFormat, PermissionPrompts, RunArgs};
use crate::definitions;
use crate::report::Failure;
use crate::table::ago;

/// What session the flags ask for.
pub fn session_request(
    args: &RunArgs,
    loaded: &Loaded,
    main: Option<&AgentDefinition>,
    wanted: Option<&Initialize>,
    entrypoint: &str,
) -> Result<OpenSession, Failure> {
    let cwd = loaded.paths.cwd.clone();
    let wish = |text: fn(&Initialize) -> &Option<String>| wanted.and_then(|wanted| text(wanted).clone());
    Ok(OpenSession {
        start: start(args, loaded)?,
        worktree: args.worktree.clone(),
        directories: Vec::new(),
        definition: main.cloned().unwrap_or_else(main_definition),
        system: match wish(|wanted| &wanted.system) {
            Some(system) => Some(system),
            None => text_or_file(args.system_prompt.as_ref(), args.system_prompt_file.as_deref())?,
        },
        append_system: match wish(|wanted| &wanted.append_system) {
            Some(more) => Some(more),
            None => {
                text_or_file(args.append_system_prompt.as_ref(), args.append_system_prompt_file.as_deref())?
            }
        },
        model: args.model.clone().or_else(|| main.and_then(own_model)),
        fallback_model: args
            .fallback_model
            .clone()
            .or_else(|| loaded.settings.fallback_model.first().cloned()),
        thinking: thinking(args)?,
        effort: effort(args)?,
        // A mode that is requested now, in the settings' word for it, also holds for a resumed session.
        mode: match permission_mode(args)? {
            Some(_) => Some(loaded.settings.permissions.default_mode),
            None => main.and_then(|main| definitions::mode(main, loaded)),
        },
        allow: Vec::new(),
        deny: Vec::new(),
        tools: match (args.tools.as_deref(), main) {
            (None, Some(main)) => main.tools.clone(),
            (given, _) => tools(given),
        }
        .without(bare_names(&args.disallowed_tools)),
        limits: limits(args, loaded)?,
        output_schema: match (wanted.and_then(|wanted| wanted.json_schema.clone()), &args.json_schema) {
            (Some(wanted), _) => Some(wanted),
            (None, Some(given)) => Some(schema(given)?),
            (None, None) => main.and_then(|main| main.equipment.output_schema.clone()),
        },
        answers: answers(args, wanted.is_some()),
        permission_tool: args.permission_prompt_tool.clone().filter(|tool| tool != "stdio"),
        checkpoints: false,
        bypass: args.sdk.allow_dangerously_skip_permissions,
        persistence: match (args.no_session_persistence, args.require_persistence) {
            (true, _) => Persistence::Off,
            (false, true) => Persistence::Required,
            (false, false) => Persistence::Usual,
        },
        entrypoint: entrypoint.to_owned(),
        cwd,
    })
}

/// Whether the model thinks, as the flags say.
fn thinking(args: &RunArgs) -> Result<Option<Thinking>, Failure> {
    let display = args.thinking_display.clone();
    if let Some(word) = display.as_deref().filter(|word| !matches!(*word, "summarized" | "omitted")) {
        return Err(Failure::usage(format!(
            "invalid --thinking-display {word:?} (expected summarized or omitted)"
        )));
    }
    let enabled = |tokens: u32| match tokens {
        0 => Thinking::Disabled,
        tokens => Thinking::Enabled { budget_tokens: u64::from(tokens), display: display.clone() },
    };
    Ok(match (args.thinking.as_deref(), args.max_thinking_tokens) {
        (Some("disabled"), _) => Some(Thinking::Disabled),
        (None | Some("enabled"), Some(tokens)) => Some(enabled(tokens)),
        (Some("adaptive" | "enabled"), _) => Some(Thinking::Adaptive { display }),
        (None, None) => display.map(|display| Thinking::Adaptive { display: Some(display) }),
        (Some(word), _) => {
            let what = format!("invalid --thinking {word:?} (expected adaptive, enabled or disabled)");
            return Err(Failure::usage(what));
        }
    })
}

/// How hard the model tries, as the flag says.
fn effort(args: &RunArgs) -> Result<Option<String>, Failure> {
    match args.effort.as_deref() {
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(args.effort.clone()),
        Some(word) => Err(Failure::usage(format!(
            "invalid --effort {word:?} (expected low, medium, high, xhigh or max)"
        ))),
    }
}

/// Whether the program that leads us answers questions. One that introduces itself says so by a flag, as the Agent SDKs
/// do; any other is asked.
fn answers(args: &RunArgs, greeted: bool) -> bool {
    let is_led = args.input_format == InputFormat::StreamJson;
    let at_terminal = !args.print && !is_led;
    at_terminal
        || is_led
            && match (args.permission_prompts, args.permission_prompt_tool.as_deref()) {
                (Some(PermissionPrompts::Host), _) | (None, Some("stdio")) => true,
                (Some(PermissionPrompts::None), _) | (None, Some(_)) => false,
                (None, None) => !greeted,
            }
}

/// The model that a definition names for itself.
fn own_model(definition: &AgentDefinition) -> Option<String> {
    definition.model.clone().filter(|name| name != "inherit")
}

fn start(args: &RunArgs, loaded: &Loaded) -> Result<Start, Failure> {
    let parse = |text: &str| {
        text.parse::<SessionId>().map_err(|error| {
            Failure::usage(error.to_string()).hint("a session id is a UUID; see `decurion sessions list`")
        })
    };
    let id = args.session_id.as_deref().map(parse).transpose()?;
    let from = match (&args.resume, args.r#continue) {
        (Some(resume), _) => Some(match &loaded.paths.state {
            Some(state) => named(&decurion_store::Archive::new(state.clone()), resume)?,
            None => parse(resume)?,
        }),
        (None, true) => Some(latest(loaded)?),
        (None, false) => None,
    };
    let at = resume_at(args)?;
    match (from, args.fork_session) {
        (None, _) if at.is_some() => {
            Err(Failure::usage("--resume-session-at goes with --continue or --resume"))
        }
        (None, true) => Err(Failure::usage("--fork-session goes with --continue or --resume")),
        (None, false) => Ok(Start::New { id }),
        (Some(from), true) => Ok(Start::Fork { from, id, at }),
        (Some(_), false) if id.is_some() => {
            Err(Failure::usage("--session-id goes with a new session or with --fork-session"))
        }
        (Some(id), false) => Ok(Start::Resume { id, at }),
    }
}

/// `--resume` without an id: the last sessions of this folder have one.
pub fn no_id(loaded: &Loaded) -> Failure {
    const SHOWN: usize = 5;
    let failure = Failure::usage("--resume needs the id of a session");
    let state = loaded.paths.state.clone();
    let all = state.and_then(|state| decurion_store::Archive::new(state).list(None).ok()).unwrap_or_default();
    let length = id_length(&all);
    let here = all.iter().filter(|session| session.cwd == loaded.paths.cwd).take(SHOWN);
    let listed = here.fold(failure, |failure, session| {
        let id: String = session.session.to_string().chars().take(length).collect();
        let title = decurion_serve::progress::one_line(&session.title);
        failure.hint(format!("--resume {id}  {}, {title}", ago(session.modified)))
    });
    listed.hint("--continue takes the last session of this folder; `decurion sessions list` lists them")
}

/// The message that a session resumes at, and its guard.
fn resume_at(args: &RunArgs) -> Result<Option<ResumeAt>, Failure> {
    let parse = |flag: &str, text: &Option<String>| -> Result<Option<LineId>, Failure> {
        let hint = "it is the `uuid` of a message, as --output-format stream-json and the transcript show it";
        let bad = |error| Failure::usage(format!("{flag}: {error}")).hint(hint);
        text.as_deref().map(|text| text.parse().map_err(bad)).transpose()
    };
    let drops = parse("--resume-drops-turn", &args.resume_drops_turn)?;
    let line = parse("--resume-session-at", &args.resume_session_at)?;
    Ok(line.map(|line| ResumeAt { line, drops }))
}

fn latest(loaded: &Loaded) -> Result<SessionId, Failure> {
    let none = || Failure::usage("no sessions in this folder").hint("leave --continue out");
    let state = loaded.paths.state.clone().ok_or_else(none)?;
    let archive = decurion_store::Archive::new(state);
    let latest = archive
        .latest(&loaded.paths.cwd)
        .map_err(|error| Failure::failed(format!("cannot read the state folder: {error}")))?;
    latest.map(|summary| summary.session).ok_or_else(none)
}

/// The tools that these rules forbid completely: models need not see them.
fn bare_names(rules: &[String]) -> Vec<String> {
    let rules = rules.iter().flat_map(|list| rules::split_rules(list));
    rules.filter(|rule| !rule.contains(['(', '*'])).collect()
}

/// `--tools`: all, none, or these.
fn tools(list: Option<&str>) -> ToolSelection {
    let only = match list {
        None | Some("default") => None,
        Some(list) => Some(rules::split_rules(list)),
    };
    ToolSelection { only, except: Vec::new() }
}

/// The limits of the session.
pub fn limits(args: &RunArgs, loaded: &Loaded) -> Result<Limits, Failure> {
    let money = match args.max_budget_usd {
        Some(dollars) if !(dollars.is_finite() && dollars > 0.0) => {
            return Err(Failure::usage(format!("--max-budget-usd must be more than 0: {dollars}")));
        }
        dollars => dollars.map(Money::from_dollars),
    };
    if args.max_turns == Some(0) {
        return Err(Failure::usage("--max-turns must be at least 1"));
    }
    let usual = &loaded.settings.budget;
    Ok(Limits { turns: args.max_turns.or(usual.turns), money: money.or(usual.money), ..usual.clone() })
}

fn text_or_file(text: Option<&String>, file: Option<&Utf8Path>) -> Result<Option<String>, Failure> {
    match (text, file) {
        (Some(text), _) => Ok(Some(text.clone())),
        (None, Some(file)) => std::fs::read_to_string(file)
            .map(Some)
            .map_err(|error| Failure::usage(format!("cannot read {file}: {error}"))),
        (None, None) => Ok(None),
    }
}

/// `--json-schema`: JSON itself, or a file of it.
fn schema(given: &str) -> Result<Value, Failure> {
    let text = if given.trim_start().starts_with('{') {
        given.to_owned()
    } else {
        std::fs::read_to_string(given)
            .map_err(|error| Failure::usage(format!("cannot read the schema {given}: {error}")))?
    };
    serde_json::from_str(&text).map_err(|error| Failure::usage(format!("--json-schema is not JSON: {error}")))
}

//! A conversation at the terminal. Takes what was decided from arguments and settings; gives the exit code of how it ended.
//! Where a person sets up another provider in its middle (`/login`), all is decided anew and the conversation continues.

use std::sync::Arc;

use decurion_config::{Environment, Loaded};
use decurion_exec::keeper::Leash;
use decurion_tui::form::Tone;
use decurion_tui::plain::StdinLines;

use super::super::interact::first_start::{self, Begin, Set, SetupReason};
use super::super::interact::form::TypedAnswers;
use super::super::interact::{self, After, Left, LogIn, Surroundings, form, is_dumb};
use super::{Decided, Prepared, block_on, load};
use crate::args::RunArgs;
use crate::report::{Failure, visible};

/// Holds a conversation. Where a provider is set up in its middle, all is decided anew for what comes then.
pub fn hold(
    args: &RunArgs,
    mut prompt: Option<String>,
    (mut loaded, mut ignored): Decided,
    environment: &Environment,
    leash: Option<Leash>,
) -> Result<u8, Failure> {
    let plain = args.plain || is_dumb(environment);
    let (mut args, mut left) = (args.clone(), Left::default());
    loop {
        let after = block_on(async {
            let session = Prepared { args: &args, loaded: &loaded, environment, wanted: None };
            let (answer, engine) = Box::pin(session.prepare(prompt.take(), None)).await?;
            let around = Surroundings { loaded: &loaded, environment, plain, leash };
            let left = std::mem::take(&mut left);
            Box::pin(interact::run(answer, Arc::new(engine), around, left)).await
        })??;
        let mut wished = match after {
            After::End(code) => return Ok(code),
            After::LogIn(wished) => *wished,
        };
        let lines = wished.lines.take();
        let (set, lines) = log_in(&loaded, environment, lines, leash.is_some())?;
        left.lines = lines;
        if let Some(set) = &set {
            ignored = decurion_config::overriding(environment, &set.provider);
        }
        left.words = Some(match &set {
            Some(set) => format!("{} answers from here on", visible(&set.model)),
            None => "nothing was changed".to_owned(),
        });
        left.is_above = wished.session.is_some();
        args = following_login(&args, &wished, set);
        left.draft = wished.next.draft;
        loaded = load(&args, loaded.paths.cwd.clone(), environment, &mut ignored)?;
    }
}

/// Asks for another provider, in the middle of a conversation; none if nothing was changed. Gives back the lines that a
/// person types.
fn log_in(
    loaded: &Loaded,
    environment: &Environment,
    lines: Option<StdinLines>,
    kept: bool,
) -> Result<(Option<Set>, Option<StdinLines>), Failure> {
    let around = (&loaded.paths, environment);
    let (begin, lines) = block_on(async {
        let signals =
            interact::signals(kept).map_err(|error| Failure::failed(format!("no signals: {error}")))?;
        let mut form = match lines {
            Some(lines) => form::Questions::Lines(TypedAnswers::new(lines, Some(signals))),
            None => form::Questions::take(environment, false, Some(signals))?,
        };
        form.say(Tone::Plain, "")?;
        let why = SetupReason::Wished(loaded.settings.model.as_deref());
        let asked = first_start::choose(&mut form, around, loaded.providers.candidates(), why).await;
        let lines = form.end().await?;
        Ok::<_, Failure>((asked?, lines))
    })??;
    let set = match begin {
        Begin::Use(set) => Some(set),
        _ => None,
    };
    Ok((set, lines))
}

/// The arguments with which a conversation begins anew after that.
fn following_login(before: &RunArgs, wished: &LogIn, set: Option<Set>) -> RunArgs {
    let mut args = before.clone();
    args.model = match (set, wished.session) {
        (Some(set), _) => Some(set.model),
        // It has its model on record.
        (None, Some(_)) => None,
        (None, None) => wished.next.model.clone().or(args.model),
    };
    args.resume = wished.session.map(|session| session.to_string());
    (args.r#continue, args.fork_session) = (false, false);
    (args.session_id, args.worktree) = (None, None);
    (args.resume_session_at, args.resume_drops_turn) = (None, None);
    // If the program was started without checks, that mode can be chosen later too.
    args.sdk.allow_dangerously_skip_permissions |= args.dangerously_skip_permissions;
    args.dangerously_skip_permissions = false;
    args.permission_mode = Some(wished.next.mode.name().to_owned());
    args
}

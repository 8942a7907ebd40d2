//! The demo in the real interface. Takes a terminal; a first process makes a folder, waits, and removes it however the second
//! one ends, which plays.
//!
//! Nothing of a person's own is used or changed but the theme: settings, sessions and the audit log of the demo are in its
//! folder.

use std::ffi::OsString;
use std::fs;
use std::sync::{Arc, Mutex};

use camino::Utf8Path;
use decurion_config::{Environment, LoadRequest, Paths};
use decurion_exec::keeper::{self, Leash};
use decurion_model::pace::Pace;
use decurion_protocol::{Place, SessionId};
use decurion_store::{Archive, Found};
use decurion_tui::terminal::OwnedTerminal;
use decurion_tui::theme::Shades;
use decurion_tui::view::status::Windows;
use decurion_tui::{FrontEndEnd, OutsideSignal};
use serde_json::json;
use tokio::sync::mpsc;

use super::ending::{self, PlayedSession};
use super::player::{Played, Player};
use super::stage::{self, DemoStage};
use super::temporary;
use crate::command::interact::leave::{Exits, open};
use crate::command::interact::{self, Owner, Screening, Surroundings, library, look, show, signals};
use crate::command::run::block_on;
use crate::crash;
use crate::report::{FAILED, Failure, note};

/// The exit code where the terminal is gone.
const HANGUP: u8 = 129;

/// Makes the folder, has it played in, and removes it.
pub fn keep(keep: bool) -> Result<u8, Failure> {
    let (folder, path) = temporary()?;
    let keeper = keeper::own_id().to_string();
    let mut arguments: Vec<OsString> =
        ["demo", "--kept-by", &keeper, "--folder", path.as_str()].map(OsString::from).into();
    arguments.extend(keep.then(|| "--keep".into()));
    let code = match interact::keep_with(&arguments)? {
        keeper::ChildEnding::Exited(code) => code,
        keeper::ChildEnding::WentOn => 0,
        keeper::ChildEnding::Killed { signal, held } => {
            interact::give_back_terminal(held);
            note(format!("the demo was killed by signal {signal}"));
            u8::try_from(128 + signal).unwrap_or(FAILED)
        }
    };
    if keep {
        let kept = folder.keep();
        say!("\nKept: {}", kept.display());
        say!(
            "  its timeline: cd {0}/repository && DECURION_HOME={0}/state decurion trace --svg demo.svg",
            kept.display()
        );
        return Ok(code);
    }
    match folder.close() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            note(format!("cannot remove the demo's folder {path}: {error}"));
        }
        _ => {}
    }
    Ok(code)
}

/// Plays in this folder.
pub fn run(keeper: i32, folder: &Utf8Path, keep: bool) -> Result<u8, Failure> {
    let played = run_in(keeper, folder);
    // The process that would remove it may be gone with the terminal, and so is the reader of an error.
    if matches!(played, Ok(HANGUP)) && !keep {
        let _ = fs::remove_dir_all(folder);
    }
    played
}

fn run_in(keeper: i32, folder: &Utf8Path) -> Result<u8, Failure> {
    let leash = Leash::to(keeper).map_err(|error| {
        Failure::failed(format!("the process that keeps the terminal, {keeper}: {error}"))
    })?;
    let own = Environment::capture();
    let cwd = decurion_config::current_directory()?;
    crash::watch(Paths::discover(&cwd, &own).ok().and_then(|paths| paths.state).as_deref());
    let state = folder.join("state");
    keep_theme(&cwd, &own, &state)?;
    let (shared, temporary) = (folder.join("shared"), folder.join("tmp"));
    fs::create_dir(&temporary).map_err(super::no_folder)?;
    let environment = own.with([
        ("DECURION_HOME", state.as_str()),
        ("CLAUDE_CONFIG_DIR", shared.as_str()),
        ("TMPDIR", temporary.as_str()),
    ]);
    let stage = DemoStage::new(folder, environment)?;
    block_on(async {
        let mut signals = signals(true).map_err(|error| Failure::failed(format!("no signals: {error}")))?;
        // Keys of a person at the terminal go to the player, and may ask for an end too.
        let (wishes, mut wished) = mpsc::channel(4);
        let outside = wishes.clone();
        tokio::spawn(async move {
            while let Some(signal) = signals.recv().await {
                if outside.send(signal).await.is_err() {
                    return;
                }
            }
        });
        let shown = Box::pin(play(&stage, leash, wishes, &mut wished)).await?;
        conclude(&stage, shown, (&cwd, &mut wished)).await
    })?
}

/// What of a person's own settings the demo has: how things look.
fn keep_theme(cwd: &Utf8Path, own: &Environment, state: &Utf8Path) -> Result<(), Failure> {
    // Settings that cannot be read are no reason not to see a demo.
    let Ok(loaded) = decurion_config::load(&LoadRequest::new(cwd.to_owned(), own.clone())) else {
        return Ok(());
    };
    let mut settings = json!({"prefersReducedMotion": loaded.settings.reduced_motion});
    if let Some(theme) = &loaded.settings.theme {
        settings["theme"] = json!(theme);
    }
    fs::create_dir_all(state)
        .and_then(|()| fs::write(state.join("settings.json"), settings.to_string()))
        .map_err(super::no_folder)
}

/// What was shown, and how that ended.
struct ShownDemo {
    ended: FrontEndEnd,
    played: Option<Played>,
    session: SessionId,
    shades: Shades,
}

async fn play(
    stage: &DemoStage,
    leash: Leash,
    wishes: mpsc::Sender<OutsideSignal>,
    wished: &mut mpsc::Receiver<OutsideSignal>,
) -> Result<ShownDemo, Failure> {
    stage.make_repository().await?;
    let pace = Pace::default();
    let (engine, agents) = stage.engine(stage::WATCHED, pace.clone());
    let place: Arc<dyn Place> = Arc::new(engine);
    let request = stage.session(&[stage::RUN_TEST], true)?;
    let link = open(&*place, request.clone()).await?;
    let session = link.session;
    let state = stage.loaded.paths.state.clone();
    let (loaded, environment) = (&stage.loaded, &stage.environment);
    let around = Surroundings { loaded, environment, plain: false, leash: Some(leash) };
    let (shades, _) = look(&around);
    let screen = Screening {
        around: &around,
        state: state.as_deref(),
        library: library(&[], &agents),
        model: Some(stage::MODEL.to_owned()),
        windows: Windows::default(),
        provider: "scripted".to_owned(),
        shades,
    };
    let listen = link.again.clone().ok_or_else(|| Failure::failed("the session cannot be listened to"))?;
    let (player, between) = Player::new(listen(), wishes, pace);
    let next = Mutex::default();
    let exits = Exits { place, request, session, state: state.clone(), door: None, next };
    let mut showing = screen.showing(link, &stage.repository, true, Owner::Ours(Arc::new(exits)))?;
    showing.between = Some(between);
    let playing = tokio::spawn(player.play());
    let ended = show(showing, None, wished).await;
    crash::tell();
    let ended = ended.map_err(|error| Failure::failed(format!("the terminal: {error}")))?;
    // If a signal ended it, the player still plays.
    let played = if playing.is_finished() { playing.await.ok() } else { None };
    Ok(ShownDemo { ended, played, session, shades })
}

/// Says how it ended, and gives the exit code.
async fn conclude(
    stage: &DemoStage,
    shown: ShownDemo,
    (cwd, wished): (&Utf8Path, &mut mpsc::Receiver<OutsideSignal>),
) -> Result<u8, Failure> {
    match (&shown.ended, shown.played) {
        (FrontEndEnd::By(OutsideSignal::Hangup), _) => return Ok(HANGUP),
        (FrontEndEnd::By(_), Some(Played::Left)) => {
            ending::invite();
            return Ok(0);
        }
        (FrontEndEnd::By(OutsideSignal::Interrupt), _) => return Ok(130),
        (FrontEndEnd::By(_), _) => return Ok(143),
        (FrontEndEnd::Over, _) => return Err(Failure::failed("the demo's session ended by itself")),
        (FrontEndEnd::Left | FrontEndEnd::Kept(..) | FrontEndEnd::Next(_), _) => {}
    }
    let passed = stage.test_passes().await?;
    let archive = stage.loaded.paths.state.clone().map(Archive::new);
    let found = archive.and_then(|archive| archive.find(shown.session, &[]));
    if let Some(Found::Ours(paths)) = found {
        let ending =
            PlayedSession { paths: &paths, shades: shown.shades, columns: OwnedTerminal::size().0, cwd };
        ending.show(wished).await?;
    }
    if !passed {
        return Err(Failure::failed("the demo did not end as it should: its test still fails"));
    }
    ending::invite();
    Ok(0)
}

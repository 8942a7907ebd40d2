//! Commands that a person runs himself. Takes what was typed; the command is on record before it begins and its end
//! before anyone is told. What it printed joins the root's conversation without beginning a turn: at once while the root
//! rests, else at its next step.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use decurion_protocol::{CallId, Event, ShellEnding, ShellLine};
use decurion_tools::shell::{self, Typed};
use decurion_tools::{FilesSeen, NoRules, Surroundings, ToolContext};
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::call;
use crate::ports::new_line;
use crate::session::actor::SessionActor;

use super::requests::SessionRequest;

/// How many run at the same time.
const MOST_TYPED: usize = 16;
/// What is said of a command whose process died with ours.
const UNSEEN: &str =
    "outcome unknown: Decurion was killed while this command ran. It may have done part of its work";

impl SessionActor {
    /// Begins a command; gives the id that it is known by.
    pub async fn run_typed(&mut self, command: String) -> Result<CallId, String> {
        if command.trim().is_empty() || command.contains('\0') {
            return Err("this is no command: it is empty, or has a NUL character".to_owned());
        }
        if self.core.equipment.processes.is_none() {
            return Err("commands cannot be started in this session".to_owned());
        }
        if self.tasks.typed.len() >= MOST_TYPED {
            return Err(format!(
                "{MOST_TYPED} commands run already: wait for one of them, or interrupt them"
            ));
        }
        let call = CallId(format!("shell_{}", new_line().0.simple()));
        let line = ShellLine { call: call.clone(), command, cwd: self.place.cwd.clone(), ending: None };
        let who = self.core.who.clone();
        self.record(&who, Event::ShellBegun { shell: Box::new(line.clone()) }).await?;
        let cancel = self.core.cancel.child_token();
        self.tasks.typed.insert(call.clone(), cancel.clone());
        self.begin_typed(line, cancel);
        Ok(call)
    }

    fn begin_typed(&self, line: ShellLine, cancel: CancellationToken) {
        let (progress, mut said) = mpsc::channel(16);
        let cx = self.typed_context(&line, cancel, progress);
        let (requests, clock) = (self.core.requests.clone(), Arc::clone(&self.core.parts.clock));
        let (journal, who) = (self.core.journal.clone(), self.core.who.clone());
        let redact = Arc::clone(&self.core.equipment.redact);
        let clean = move |text: String| redact(&text).unwrap_or(text);
        tokio::spawn(async move {
            let began = clock.elapsed();
            let mut running =
                std::pin::pin!(AssertUnwindSafe(shell::typed(&cx, &line.command)).catch_unwind());
            let typed = loop {
                tokio::select! {
                    biased;
                    typed = &mut running => break typed,
                    Some(text) = said.recv() => {
                        let (call, text) = (line.call.clone(), clean(text));
                        journal.publish(&who, Event::CallProgress { call, text });
                    }
                }
            };
            let broken = |_| Typed {
                remark: Some("the command failed inside Decurion; this is a bug in it".to_owned()),
                ..Typed::default()
            };
            let Typed { output, exit_code, remark, file } = typed.unwrap_or_else(broken);
            let took = clock.elapsed().saturating_sub(began);
            let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            let ending = ShellEnding { output: clean(output), exit_code, remark, file, duration_ms };
            let shell = Box::new(ShellLine { ending: Some(ending), ..line.clone() });
            // A session that is gone has ended its commands itself.
            let _ = requests.send(SessionRequest::TypedEnded(shell)).await;
        });
    }

    /// A command has ended: that is on record, then it is told to whoever reads the conversation.
    pub(super) async fn typed_ended(&mut self, shell: Box<ShellLine>) {
        self.tasks.typed.remove(&shell.call);
        let who = self.core.who.clone();
        // A journal that is lost is found lost by the next run.
        let _ = self.record(&who, Event::ShellEnded { shell }).await;
        if self.root_runs() {
            self.mark_told(None);
        } else {
            self.settle_root().await;
        }
    }

    /// Ends the commands that run.
    pub fn stop_typed(&self) {
        self.tasks.typed.values().for_each(CancellationToken::cancel);
    }

    /// Says of commands that a process which is gone left running that nobody knows what came of them.
    pub(super) async fn settle_typed(&mut self) {
        for shell in self.tasks.table.typed() {
            let ending = ShellEnding { remark: Some(UNSEEN.to_owned()), ..ShellEnding::default() };
            let shell = Box::new(ShellLine { ending: Some(ending), ..shell });
            let who = self.core.who.clone();
            let _ = self.record(&who, Event::ShellEnded { shell }).await;
        }
    }

    fn typed_context(
        &self,
        line: &ShellLine,
        cancel: CancellationToken,
        progress: mpsc::Sender<String>,
    ) -> ToolContext {
        let equipment = &self.core.equipment;
        let mut directories = vec![line.cwd.clone()];
        directories.extend(self.place.directories());
        ToolContext {
            run: self.core.who.run,
            call: line.call.clone(),
            called: String::new(),
            around: Surroundings { cwd: line.cwd.clone(), home: equipment.home.clone(), directories },
            cancel,
            progress,
            seen: Arc::new(FilesSeen::default()),
            spill: Arc::clone(&equipment.spill),
            rules: Arc::new(NoRules),
            processes: equipment.processes.clone(),
            // A person runs what he types as in any other terminal.
            sandbox: None,
            printed: Arc::default(),
            held: None,
            environment: call::environment(&equipment.environment, self.place.worktree.as_ref()),
            limits: Arc::clone(&equipment.limits),
            http: equipment.http.clone(),
            detached: watch::channel(false).1,
            elicit: None,
            host: None,
        }
    }
}

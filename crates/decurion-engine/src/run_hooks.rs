//! Hooks at their places in the loop. Takes what is about to happen or has happened in a run, gives what the
//! hooks want of it. Every input names the session, the agent, its type and its depth.

use camino::Utf8PathBuf;
use decurion_protocol::permission::session_updates;
use decurion_protocol::{AgentId, Event, HookEvent, Intent, Mode, Rule, RuleSet, ToolOutput, Verdict};
use serde_json::{Map, Value, json};

use crate::child;
use crate::hook::{HookCall, HookResult, Hooks};
use crate::journal::{Journal, Who};
use crate::permission::{Around, Policy, add_real_paths, decide, suggest};
use crate::run_handle::RunHandle;

/// How often in a row hooks may send a run on that wants to end.
pub const MOST_BLOCKS: u32 = 5;

/// A run, as far as hooks are concerned.
pub struct RunHooks<'a> {
    pub run: &'a RunHandle,
}

/// Calls a person through the hooks of a run.
pub struct Bell {
    hooks: Hooks,
    journal: Journal,
    who: Who,
    input: Map<String, Value>,
    worktree: Option<Utf8PathBuf>,
}

impl Bell {
    /// Runs the hooks, and waits for none of them.
    pub fn ring(&self, kind: &'static str, message: &str) {
        let (hooks, journal, who) = (self.hooks.clone(), self.journal.clone(), self.who.clone());
        let (mut input, worktree) = (self.input.clone(), self.worktree.clone());
        input.insert("message".to_owned(), json!(message));
        input.insert("notification_type".to_owned(), json!(kind));
        tokio::spawn(async move {
            let subject = Some(kind);
            let event = HookEvent::Notification;
            let call = HookCall { who: &who, event, subject, input, worktree, rule_matches: &nothing };
            show(&hooks.run(call).await, &journal, &who).await;
        });
    }
}

/// A call, as far as hooks are concerned.
pub struct CallForHooks<'a> {
    pub tool: &'a str,
    pub input: &'a Value,
    pub id: &'a str,
    /// What it would touch, for the rules of hooks.
    pub intent: &'a Intent,
    /// Where rules count from.
    pub around: Around,
}

impl<'a> RunHooks<'a> {
    fn hooks(&self) -> &'a Hooks {
        &self.run.hooks
    }

    /// What every hook is told.
    fn base(&self) -> Map<String, Value> {
        let rights = self.run.rights.borrow().clone();
        let mode = child::mode((rights.mode, rights.undecided), &self.run.lineage.modes, rights.trusted);
        let mut input = Map::new();
        let mut put = |name: &str, value: Value| drop(input.insert(name.to_owned(), value));
        put("session_id", json!(self.run.spec.session));
        put("transcript_path", json!(self.run.equipment.transcript));
        put("cwd", json!(self.run.now().cwd));
        put("permission_mode", json!(mode.value));
        put("depth", json!(self.run.spec.depth));
        if let Some(agent) = &self.run.spec.agent {
            put("agent_id", json!(agent));
            put("agent_type", json!(self.run.spec.definition.name));
        }
        input
    }

    /// The checkout of its own that the run works in.
    fn worktree(&self) -> Option<Utf8PathBuf> {
        self.run.now().worktree.as_ref().map(|worktree| worktree.path.clone())
    }

    /// Runs the hooks of an event and shows the person what they should know.
    async fn run(
        &self,
        event: HookEvent,
        subject: Option<&str>,
        more: Value,
        rule_matches: &(dyn Fn(&str) -> bool + Sync),
    ) -> HookResult {
        if !self.hooks().wait_for(event) {
            return HookResult::default();
        }
        let mut input = self.base();
        if let Value::Object(more) = more {
            input.extend(more);
        }
        let who = &self.run.who;
        let call = HookCall { who, event, subject, input, worktree: self.worktree(), rule_matches };
        let result = self.hooks().run(call).await;
        show(&result, &self.run.journal, &self.run.who).await;
        result
    }

    async fn about_call(&self, event: HookEvent, call: &CallForHooks<'_>, more: Value) -> HookResult {
        if !self.hooks().wait_for(event) {
            return HookResult::default();
        }
        let mut input = json!({"tool_name": call.tool, "tool_input": call.input, "tool_use_id": call.id});
        if let (Value::Object(input), Value::Object(more)) = (&mut input, more) {
            input.extend(more);
        }
        let covers = |rule: &str| covers(rule, call);
        self.run(event, Some(call.tool), input, &covers).await
    }

    /// Before a call: hooks may refuse it, ask, let it go ahead or change its input.
    pub async fn before_call(&self, call: &CallForHooks<'_>) -> HookResult {
        self.about_call(HookEvent::PreToolUse, call, Value::Null).await
    }

    /// Before a person is asked: hooks may answer.
    pub async fn before_question(&self, call: &CallForHooks<'_>) -> HookResult {
        let rules = suggest(call.tool, call.input, &with_names(call), &call.around);
        let more = json!({"permission_suggestions": session_updates(&rules)});
        self.about_call(HookEvent::PermissionRequest, call, more).await
    }

    /// While a person is asked.
    /// They run on when the answer has come: a person may be on the way.
    pub fn asking(&self, tool: &str) {
        if let Some(bell) = self.bell() {
            bell.ring("permission_prompt", &format!("Decurion needs your permission to use {tool}"));
        }
    }

    /// What calls a person, for whoever outlives this; none where no hook would.
    pub fn bell(&self) -> Option<Bell> {
        self.hooks().wait_for(HookEvent::Notification).then(|| Bell {
            hooks: self.hooks().clone(),
            journal: self.run.journal.clone(),
            who: self.run.who.clone(),
            input: self.base(),
            worktree: self.worktree(),
        })
    }

    /// After all calls of a message: hooks may add to what the model reads.
    pub async fn after_calls(&self, calls: Vec<Value>) -> HookResult {
        self.run(HookEvent::PostToolBatch, None, json!({"tool_calls": calls}), &nothing).await
    }

    /// After a call was refused.
    pub async fn after_refusal(&self, call: &CallForHooks<'_>, reason: &str) -> HookResult {
        self.about_call(HookEvent::PermissionDenied, call, json!({"reason": reason})).await
    }

    /// After a call: hooks may add to what the model reads, or replace it.
    pub async fn after_call(
        &self,
        call: &CallForHooks<'_>,
        output: &ToolOutput,
        duration_ms: u64,
    ) -> HookResult {
        if output.is_error {
            let more =
                json!({"error": output.content.text(), "is_interrupt": false, "duration_ms": duration_ms});
            return self.about_call(HookEvent::PostToolUseFailure, call, more).await;
        }
        if !self.hooks().wait_for(HookEvent::PostToolUse) {
            return HookResult::default();
        }
        let response = output.structured.clone().unwrap_or_else(|| json!(output.content.text()));
        let more = json!({"tool_response": response, "duration_ms": duration_ms});
        self.about_call(HookEvent::PostToolUse, call, more).await
    }

    /// Before a prompt is worked on.
    pub async fn prompt(&self, prompt: &str) -> HookResult {
        self.run(HookEvent::UserPromptSubmit, None, json!({"prompt": prompt}), &nothing).await
    }

    /// When a session begins or is taken up again.
    pub async fn session_start(&self, source: &str) -> HookResult {
        let more = json!({"source": source, "model": self.run.spec.model});
        self.run(HookEvent::SessionStart, Some(source), more, &nothing).await
    }

    /// When a session ends.
    pub async fn session_end(&self, reason: &str) -> HookResult {
        self.run(HookEvent::SessionEnd, Some(reason), json!({"reason": reason}), &nothing).await
    }

    /// When an agent begins. Its own hooks do not see this.
    pub async fn agent_start(&self) -> HookResult {
        let kind = self.run.spec.definition.name.clone();
        self.run(HookEvent::SubagentStart, Some(&kind), Value::Null, &nothing).await
    }

    /// When a run wants to end: hooks may send it on.
    pub async fn stop(&self, active: bool, last: &str) -> HookResult {
        let event = if self.run.spec.agent.is_some() { HookEvent::SubagentStop } else { HookEvent::Stop };
        if !self.hooks().wait_for(event) {
            return HookResult::default();
        }
        let tasks = self.run.session.under_way().await.unwrap_or_default();
        let is_other =
            |task: &Value| task["id"].as_str() != self.run.spec.agent.as_ref().map(AgentId::as_str);
        let tasks: Vec<Value> = tasks.into_iter().filter(is_other).collect();
        let mut more = json!({
            "stop_hook_active": active, "last_assistant_message": last, "background_tasks": tasks, "session_crons": [],
        });
        match &self.run.spec.agent {
            None => self.run(HookEvent::Stop, None, more, &nothing).await,
            Some(agent) => {
                more["agent_transcript_path"] = json!(self.run.equipment.transcript_of(agent));
                let kind = self.run.spec.definition.name.clone();
                self.run(HookEvent::SubagentStop, Some(&kind), more, &nothing).await
            }
        }
    }

    /// When a run could not go on.
    pub async fn failed(&self, error: &str, last: &str) -> HookResult {
        let more = json!({"error": error, "last_assistant_message": last});
        self.run(HookEvent::StopFailure, None, more, &nothing).await
    }

    /// Before a conversation is shortened.
    pub async fn before_compaction(&self, trigger: &str, instructions: Option<&str>) -> HookResult {
        let more = json!({"trigger": trigger, "custom_instructions": instructions.unwrap_or_default()});
        self.run(HookEvent::PreCompact, Some(trigger), more, &nothing).await
    }

    /// After a conversation was shortened.
    pub async fn after_compaction(&self, trigger: &str, summary: &str) -> HookResult {
        let more = json!({"trigger": trigger, "compact_summary": summary});
        self.run(HookEvent::PostCompact, Some(trigger), more, &nothing).await
    }
}

/// Shows the person what hooks say that they should know.
async fn show(result: &HookResult, journal: &Journal, who: &Who) {
    let notice = |level: &str, text: String| Event::Notice { level: level.to_owned(), text };
    let problems = result.problems().map(|text| notice("warning", text));
    let messages = result.messages.iter().map(|text| notice("info", text.clone()));
    let notices: Vec<Event> = problems.chain(messages).collect();
    if !notices.is_empty() {
        // A journal that is lost ends the run where it is used next.
        let _ = journal.write(who, notices).await;
    }
}

/// No rule is about something that is not a call.
fn nothing(_rule: &str) -> bool {
    false
}

/// Whether a permission rule covers a call, read as widely as a rule that forbids.
fn covers(rule: &str, call: &CallForHooks<'_>) -> bool {
    let Ok(rule) = Rule::parse(rule, decurion_protocol::permission::RuleSource::Command) else {
        return false;
    };
    let rules = RuleSet { deny: vec![rule], ..RuleSet::default() };
    let policy = Policy::new(Mode::BypassPermissions, rules.into(), call.around.clone());
    decide(&policy, call.tool, call.input, &with_names(call)).verdict == Verdict::Deny
}

/// What a call would touch, under all its names: a rule is about a place.
fn with_names(call: &CallForHooks<'_>) -> Intent {
    let mut intent = call.intent.clone();
    add_real_paths(&mut intent, &call.around.trails);
    intent
}

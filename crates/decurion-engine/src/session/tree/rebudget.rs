//! Another budget for one agent, from a person. Takes which limits change, gives all that hold then, or why they do not:
//! nobody is given more than is left above it.

use std::sync::PoisonError;

use decurion_protocol::{AgentId, Event, Limits, TaskId};

use crate::budget::{AccountId, Left};
use crate::session::actor::SessionActor;
use crate::session::spec;

impl SessionActor {
    /// Changes an agent's limits: what is given replaces what held, the rest stays. One that has ended has them when it
    /// goes on.
    pub async fn rebudget(&mut self, task: &TaskId, wanted: &Limits) -> Result<Limits, String> {
        let row = self.tasks.table.row(task).ok_or_else(|| format!("no task with this id: {task}"))?;
        let (Some(agent), Some(spec)) = (row.agent(), row.spec.clone()) else {
            return Err(format!(
                "{task} is a command, and only agents have a budget: stop it, or let it run"
            ));
        };
        check(wanted)?;
        let limits = merged(&spec.limits, wanted);
        let model = self.core.parts.models.resolve(&spec.model)?;
        spec::check_limits(&limits, &model).map_err(|error| error.to_string())?;
        let above = self.family(&row.record.clone()).account;
        self.check_left(&agent, above, &spec.limits, &limits)?;
        let who = self.core.who.clone();
        self.record(&who, Event::Rebudgeted { task: task.clone(), limits: limits.clone() }).await?;
        if let Some(account) = self.accounts.by_agent.get(&agent) {
            self.accounts.budget.lock().unwrap_or_else(PoisonError::into_inner).relimit(*account, &limits);
        }
        let queued = self.slots.queue.iter().map(|launch| &launch.control);
        let waiting = queued.filter(|control| control.run.who.agent.as_ref() == Some(&agent));
        for control in waiting.chain(self.tasks.runs.get(&agent)) {
            control.limit(limits.clone());
        }
        Ok(limits)
    }

    /// Whether what an agent may spend more is left in the accounts above it.
    fn check_left(
        &self,
        agent: &AgentId,
        above: AccountId,
        old: &Limits,
        new: &Limits,
    ) -> Result<(), String> {
        let budget = self.accounts.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = match self.accounts.by_agent.get(agent) {
            Some(account) => budget.gone(*account),
            None => self.tasks.table.spent(&agent.clone().into()),
        };
        let raised = |old: Option<u64>, new: Option<u64>| new.filter(|new| old.is_some_and(|old| *new > old));
        if let (Some(wanted), Some(Left { amount, account })) =
            (raised(old.tokens, new.tokens), budget.least_tokens(above))
            && wanted > gone.tokens.saturating_add(amount)
        {
            let most = gone.tokens.saturating_add(amount);
            return Err(self.too_much(
                agent,
                account,
                &format!("{amount} tokens"),
                &format!("{most} tokens"),
            ));
        }
        let money = |limits: &Limits| limits.money.map(|money| money.0);
        if let (Some(wanted), Some(Left { amount, account })) =
            (raised(money(old), money(new)), budget.least_money(above))
            && wanted > gone.money.0.saturating_add(amount.0)
        {
            let most = gone.money.plus(amount);
            let dollars = |money: decurion_protocol::Money| format!("${:.4}", money.dollars());
            return Err(self.too_much(agent, account, &dollars(amount), &dollars(most)));
        }
        Ok(())
    }

    fn too_much(&self, agent: &AgentId, account: AccountId, left: &str, most: &str) -> String {
        let whose = self.accounts.by_agent.iter().find(|(_, of)| **of == account).map(|(agent, _)| agent);
        match whose {
            Some(above) => format!(
                "{above}, for which {agent} works, has {left} left: give {agent} at most {most} in all, or {above} more first"
            ),
            None => format!(
                "the session has {left} left: give {agent} at most {most} in all, or begin a session with more"
            ),
        }
    }
}

/// Whether these are limits that somebody can keep.
fn check(wanted: &Limits) -> Result<(), String> {
    if *wanted == Limits::default() {
        return Err("nothing is to change: give turns, money, tokens, seconds or spawns".to_owned());
    }
    let none = [
        ("turns", wanted.turns == Some(0)),
        ("money", wanted.money.is_some_and(|money| money.0 == 0)),
        ("tokens", wanted.tokens == Some(0)),
        ("seconds", wanted.seconds == Some(0)),
    ];
    match none.iter().find(|(_, is_none)| *is_none) {
        Some((name, _)) => Err(format!("`{name}` must be more than 0; to end an agent, stop it")),
        None => Ok(()),
    }
}

fn merged(old: &Limits, wanted: &Limits) -> Limits {
    Limits {
        turns: wanted.turns.or(old.turns),
        money: wanted.money.or(old.money),
        tokens: wanted.tokens.or(old.tokens),
        seconds: wanted.seconds.or(old.seconds),
        spawns: wanted.spawns.or(old.spawns),
    }
}

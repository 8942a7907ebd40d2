//! Replies that wait for leave, and the order in which requests began and ended. Takes the paths of agents, gives
//! leave to go on and a list without times: what came first was not late, whatever the clock says.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// Holds the replies to agents until they are let through, each agent by itself.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// How many more replies each agent gets.
    leave: watch::Sender<HashMap<String, u32>>,
}

impl Hold {
    /// So many more replies to the agent with this path go out.
    pub(super) fn let_through(&self, path: &str, replies: u32) {
        self.leave.send_modify(|leave| *leave.entry(path.to_owned()).or_default() += replies);
    }

    /// Waits for leave and uses it up.
    pub(super) async fn wait(&self, path: &str) {
        let mut watcher = self.leave.subscribe();
        // The sender lives as long as this hold.
        while watcher.wait_for(|leave| leave.get(path).is_some_and(|left| *left > 0)).await.is_ok() {
            if self.leave.send_if_modified(|leave| use_up(leave, path)) {
                return;
            }
        }
    }
}

fn use_up(leave: &mut HashMap<String, u32>, path: &str) -> bool {
    let Some(left) = leave.get_mut(path).filter(|left| **left > 0) else { return false };
    *left -= 1;
    true
}

/// One entry of the order, with the path of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A request was read.
    Begins(String),
    /// Its reply is through or given up. Noted before the last of the reply is written to the socket, so what
    /// a client does because of the reply always comes later.
    Ends(String),
}

/// The order in which requests began and ended.
#[derive(Debug, Default)]
pub(super) struct Course(Mutex<Vec<Mark>>);

impl Course {
    pub(super) fn note(&self, mark: Mark) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn only_the_agent_with_leave_goes_on_and_only_so_often() {
        let hold = Hold::default();
        let mut other = Box::pin(hold.wait("main/b"));
        assert_eq!((&mut other).now_or_never(), None);
        hold.let_through("main/a", 2);
        assert_eq!(hold.wait("main/a").now_or_never(), Some(()));
        assert_eq!(hold.wait("main/a").now_or_never(), Some(()));
        assert_eq!(hold.wait("main/a").now_or_never(), None, "its leave is used up");
        assert_eq!((&mut other).now_or_never(), None, "leave of another is none");
        hold.let_through("main/b", 1);
        assert_eq!(other.now_or_never(), Some(()));
    }
}

//! An agent's list of steps. Takes the list as the TodoWrite tool keeps it; gives typed steps.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Todo {
    /// The item: "Run the tests".
    pub content: String,
    /// The same while it is being done: "Running the tests".
    pub active_form: String,
    /// How far it is.
    pub status: TodoStatus,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    Pending,
    InProgress,
    Completed,
}

impl Todo {
    /// The steps of a list. What is no step is left out: records of other versions may hold anything.
    pub fn list(todos: &Value) -> Vec<Self> {
        let items = todos.as_array().map_or(&[][..], Vec::as_slice);
        items.iter().filter_map(|item| Self::deserialize(item).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn list_skips_what_is_no_step() {
        let step =
            |content: &str, status: &str| json!({"content": content, "activeForm": "a", "status": status});
        let list =
            json!([step("one", "completed"), step("two", "unheard of"), 3, step("four", "in_progress")]);
        let read: Vec<_> = Todo::list(&list).into_iter().map(|todo| (todo.content, todo.status)).collect();
        assert_eq!(
            read,
            [("one".to_owned(), TodoStatus::Completed), ("four".to_owned(), TodoStatus::InProgress)]
        );
        assert_eq!(Todo::list(&json!({"todos": []})), []);
    }
}

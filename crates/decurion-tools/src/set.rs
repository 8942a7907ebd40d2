//! Which tools an agent has. Takes tools and a selection, gives them in the order the model is shown them,
//! finds one by any of its names, and writes their schemas for a request.

use std::borrow::Cow;
use std::sync::Arc;

use decurion_protocol::{ToolOutput, ToolSelection};
use serde_json::{Value, json};

use crate::{InputError, Tool, alias, edit, fetch, glob, grep, notebook_edit, read, shell, todo, write};

/// The tools that are part of Decurion and need nothing but a [`crate::ToolContext`]. A new one is one line.
pub fn builtin() -> Vec<Arc<dyn Tool>> {
    builtin_with(true)
}

/// The same; where nothing may run in the background, Bash does not offer it.
pub fn builtin_with(background: bool) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(shell::Bash::new(background)),
        Arc::new(edit::Edit::default()),
        Arc::new(glob::Glob::default()),
        Arc::new(grep::Grep::default()),
        Arc::new(notebook_edit::NotebookEdit::default()),
        Arc::new(read::Read::default()),
        Arc::new(todo::TodoWrite::default()),
        Arc::new(fetch::WebFetch::default()),
        Arc::new(write::Write::default()),
    ]
}

/// Tools in alphabetical order, each under one name.
#[derive(Clone, Default)]
pub struct ToolSet {
    tools: Vec<Arc<dyn Tool>>,
}

/// What a selection made of a set.
#[derive(Clone, Debug)]
pub struct Selected {
    pub set: ToolSet,
    /// Names in the selection that stand for no tool of the set, as written.
    pub unknown: Vec<String>,
}

/// A call whose tool is found.
pub struct Call<'a> {
    pub tool: &'a Arc<dyn Tool>,
    /// The input in its words, not validated yet.
    pub input: Cow<'a, Value>,
}

/// Why a call does not reach a tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The set has no tool of this name.
    #[error("Error: No such tool available: {0}")]
    NoSuchTool(String),
    /// The input contradicts itself.
    #[error(transparent)]
    Input(#[from] InputError),
}

impl From<CallError> for ToolOutput {
    fn from(error: CallError) -> Self {
        Self::usage_error(error.to_string())
    }
}

impl ToolSet {
    /// A set of these. Of two with one name the earlier stays, so built-in tools are given first.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        let mut tools: Vec<Arc<dyn Tool>> = tools.into_iter().collect();
        // A stable sort: among equals the first given comes first, and the others go.
        tools.sort_by(|one, other| one.spec().name.cmp(&other.spec().name));
        tools.dedup_by(|later, kept| later.spec().name == kept.spec().name);
        Self { tools }
    }

    /// The tool of this name, or the one it is an alias of.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.find(name).or_else(|| self.find(alias::tool(name)))
    }

    fn find(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        let index = self.tools.binary_search_by(|tool| tool.spec().name.as_str().cmp(name)).ok()?;
        self.tools.get(index)
    }

    /// Finds the tool of a call and puts the input into that tool's words.
    pub fn resolve<'a>(&'a self, called: &'a str, input: &'a Value) -> Result<Call<'a>, CallError> {
        let tool = self.get(called).ok_or_else(|| CallError::NoSuchTool(called.to_owned()))?;
        let input = alias::resolve(called, input)?.input;
        Ok(Call { tool, input })
    }

    /// The tools, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.tools.iter()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.spec().name.as_str())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Those that a selection leaves.
    pub fn select(&self, selection: &ToolSelection) -> Selected {
        let only: Option<Vec<Wanted<'_>>> =
            selection.only.as_ref().map(|names| names.iter().map(|name| Wanted::read(name)).collect());
        let except: Vec<Wanted<'_>> = selection.except.iter().map(|name| Wanted::read(name)).collect();
        let keeps = |tool: &Arc<dyn Tool>| {
            let name = tool.spec().name.as_str();
            only.as_ref().is_none_or(|only| only.iter().any(|wanted| wanted.means(name)))
                && !except.iter().any(|wanted| wanted.means(name))
        };
        let tools = self.tools.iter().filter(|tool| keeps(tool)).cloned().collect();
        let named = only.iter().flatten().chain(&except);
        let unknown = named
            .filter(|wanted| !self.names().any(|name| wanted.means(name)))
            .map(|wanted| wanted.written.to_owned())
            .collect();
        Selected { set: Self { tools }, unknown }
    }

    /// What a request says of each: `{name, description, input_schema}`.
    pub fn schemas(&self) -> Vec<Value> {
        let schema = |tool: &Arc<dyn Tool>| {
            let spec = tool.spec();
            json!({"name": spec.name, "description": spec.description, "input_schema": spec.input_schema})
        };
        self.tools.iter().map(schema).collect()
    }
}

/// One entry of a selection: a name, a name with a rule's parentheses, or a pattern.
struct Wanted<'a> {
    written: &'a str,
    name: &'a str,
}

impl<'a> Wanted<'a> {
    fn read(written: &'a str) -> Self {
        let name = written.split('(').next().unwrap_or(written).trim();
        Self { written, name: alias::tool(name) }
    }

    /// `*` is every tool; `mcp__server` and `mcp__server__*` are the tools of one server, `mcp__*` of all.
    fn means(&self, tool: &str) -> bool {
        if self.name == "*" || self.name == tool {
            return true;
        }
        if !self.name.starts_with("mcp__") {
            return false;
        }
        match self.name.strip_suffix('*') {
            Some(start) => tool.starts_with(start),
            None => tool.strip_prefix(self.name).is_some_and(|rest| rest.starts_with("__")),
        }
    }
}

impl std::fmt::Debug for ToolSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Surroundings, ToolContext, ToolSpec};
    use decurion_protocol::Intent;
    use decurion_protocol::link::BoxFuture;

    struct Named(ToolSpec);

    impl Tool for Named {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }
        fn intent(&self, _: &Value, _: &Surroundings) -> Result<Intent, InputError> {
            Ok(Intent::titled(&*self.0.name))
        }
        fn run<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, ToolOutput> {
            Box::pin(async { ToolOutput::text("ran") })
        }
    }

    fn set(names: &[&str]) -> ToolSet {
        ToolSet::new(names.iter().enumerate().map(|(index, name)| {
            Arc::new(Named(ToolSpec::new(name, &format!("number {index}"), json!({})))) as Arc<dyn Tool>
        }))
    }

    #[test]
    fn tools_are_in_order_and_the_first_of_a_name_stays() {
        let set = set(&["Write", "Agent", "Read", "Agent"]);
        assert_eq!(set.names().collect::<Vec<_>>(), ["Agent", "Read", "Write"]);
        assert_eq!(set.get("Agent").unwrap().spec().description, "number 1");
        assert_eq!(set.get("Task").unwrap().spec().name, "Agent");
        assert!(set.get("read").is_none());
        assert_eq!(set.schemas()[0], json!({"name": "Agent", "description": "number 1", "input_schema": {}}));
    }

    /// Only these, never these, what is left, what is unknown.
    type Case = (Option<&'static [&'static str]>, &'static [&'static str], &'static str, &'static str);

    #[test]
    fn selections_by_name_alias_rule_and_server() {
        let all = set(&["Agent", "Bash", "Read", "mcp__git__log", "mcp__git__show", "mcp__github__pull"]);
        let cases: &[Case] = &[
            (None, &[], "Agent Bash Read mcp__git__log mcp__git__show mcp__github__pull", ""),
            (Some(&[]), &[], "", ""),
            (Some(&["*"]), &["mcp__git"], "Agent Bash Read mcp__github__pull", ""),
            (Some(&["Read", "Bash(git log:*)", "Nope(x)"]), &[], "Bash Read", "Nope(x)"),
            (Some(&["Task", "mcp__git__*"]), &["mcp__git__log"], "Agent mcp__git__show", ""),
            (None, &["Task", "Bash", "Gone"], "Read mcp__git__log mcp__git__show mcp__github__pull", "Gone"),
            (None, &["mcp__*"], "Agent Bash Read", ""),
            (Some(&["Read", "Read"]), &["Read"], "", ""),
        ];
        for (only, except, left, unknown) in cases {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let selection = ToolSelection { only: only.map(owned), except: owned(except) };
            let selected = all.select(&selection);
            assert_eq!(selected.set.names().collect::<Vec<_>>().join(" "), *left, "{selection:?}");
            assert_eq!(selected.unknown.join(" "), *unknown, "{selection:?}");
        }
    }

    #[test]
    fn a_call_is_resolved_to_its_tool() {
        let set = set(&["Agent"]);
        let input = json!({"background": true});
        let call = set.resolve("Task", &input).ok().unwrap();
        assert_eq!(call.tool.spec().name, "Agent");
        assert_eq!(*call.input, json!({"run_in_background": true}));
        let error = set.resolve("Nope", &input).err().unwrap();
        assert_eq!(error.to_string(), "Error: No such tool available: Nope");
        let both = json!({"background": true, "run_in_background": false});
        assert!(matches!(set.resolve("Agent", &both), Err(CallError::Input(_))));
    }
}

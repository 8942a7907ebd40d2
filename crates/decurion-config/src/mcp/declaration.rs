//! One server's declaration. Takes the JSON as people write it, gives the server with its variables
//! expanded, or the one reason why it cannot be used; and notes about what was repaired or ignored.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_protocol::mcp::{CALL_TIMEOUT, McpServer, McpSource, McpTransport, START_TIMEOUT};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Found, McpRequest};
use crate::env::Environment;
use crate::variables::CREDENTIALS;

/// What declarations may refer to.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    environment: Environment,
    keys: Vec<String>,
    root: Utf8PathBuf,
    home: Option<Utf8PathBuf>,
    led: bool,
}

impl Around {
    pub(super) fn of(request: &McpRequest<'_>) -> Self {
        Self {
            environment: request.environment.clone(),
            keys: request.loaded.providers.key_variables().map(ToString::to_string).collect(),
            root: request.loaded.paths.root.clone(),
            home: request.loaded.paths.home.clone(),
            led: request.led,
        }
    }
}

/// What came of a declaration.
pub(super) struct Read {
    pub server: Option<McpServer>,
    pub hash: String,
    pub notes: Vec<String>,
    pub failed: Option<String>,
    /// Whether it failed only for a variable that the environment does not have now.
    pub unset: bool,
    /// Whether it is switched off by itself.
    pub off: bool,
}

/// What is said of a server that no file can declare.
pub(crate) const HOSTED: &str = "a server of `type` \"sdk\" lives in the program that hosts us, which alone can offer it, when it starts us; \
    give it a `command` or a `url`";
const LONGEST_MS: u64 = 86_400_000;
/// How long a call of a server in the host may take: it is a function of the program that waits for it.
const HOSTED_CALL_TIMEOUT: Duration = Duration::from_mins(60);
const KNOWN: &[&str] = &[
    "type",
    "transport",
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "private",
    "timeout",
    "startTimeout",
    "disabled",
    "enabled",
    "name",
    "description",
];

/// Reads one declaration. Its short name is not yet its own: see [`unique`].
pub(super) fn read(found: &Found, around: &Around) -> Read {
    let mut reader = Reader { found, around, notes: Vec::new(), unset: Cell::new(false) };
    // What is kept of a server is kept by this: in another project the same words may be another program.
    let is_of_project = matches!(found.source, McpSource::Project | McpSource::Local | McpSource::Agent);
    let root = found.root.as_ref().or(is_of_project.then_some(&around.root));
    let hash = fingerprint(&found.value, root.map(|root| root.as_str()));
    let transport = reader.transport();
    let off = reader.flag("disabled") == Some(true) || reader.flag("enabled") == Some(false);
    reader.unknown_keys();
    let (server, failed) = match transport {
        Ok(transport) => {
            let server = McpServer {
                name: found.name.clone(),
                short: short_name(&found.name),
                private: reader.flag("private").unwrap_or(false),
                start_timeout: reader.milliseconds("startTimeout").unwrap_or(START_TIMEOUT),
                call_timeout: reader
                    .milliseconds("timeout")
                    .unwrap_or_else(|| reader.usual_timeout(&transport)),
                source: if transport == McpTransport::Host { McpSource::Sdk } else { found.source },
                transport,
                hash: hash.clone(),
            };
            (Some(server), None)
        }
        Err(why) => (None, Some(why)),
    };
    Read { server, hash, unset: reader.unset.get(), notes: reader.notes, failed, off }
}

/// The names of servers in a definition's `mcpServers` that no file can declare.
pub(crate) fn hosted(declared: &Value) -> Vec<&str> {
    let is_hosted = |server: &Value| {
        let kind = server.get("type").or_else(|| server.get("transport")).and_then(Value::as_str);
        kind.is_some_and(|kind| kind.eq_ignore_ascii_case("sdk"))
    };
    let items = declared.as_array().map_or(std::slice::from_ref(declared), Vec::as_slice);
    let servers = items.iter().filter_map(Value::as_object).flatten();
    servers.filter(|(_, server)| is_hosted(server)).map(|(name, _)| name.as_str()).collect()
}

struct Reader<'a> {
    found: &'a Found,
    around: &'a Around,
    notes: Vec<String>,
    unset: Cell<bool>,
}

impl Reader<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.found.value.get(key).filter(|value| !value.is_null())
    }

    fn transport(&mut self) -> Result<McpTransport, String> {
        if !self.found.value.is_object() {
            return Err("expected an object".to_owned());
        }
        let kind = self.get("type").or_else(|| self.get("transport")).cloned();
        let kind = match &kind {
            None => None,
            Some(Value::String(kind)) => Some(kind.to_ascii_lowercase().replace(['-', '_'], "")),
            Some(_) => return Err("`type` is not a text: expected stdio, http or sse".to_owned()),
        };
        match kind.as_deref() {
            None if self.get("command").is_some() => self.stdio(),
            None if self.get("url").is_some() => {
                self.notes.push("it has a `url` and no `type`; taken as \"http\"".to_owned());
                self.address().map(|(url, headers)| McpTransport::Http { url, headers })
            }
            None => Err("it has neither `command` nor `url`".to_owned()),
            Some("stdio") => self.stdio(),
            Some("http" | "streamablehttp") => {
                self.address().map(|(url, headers)| McpTransport::Http { url, headers })
            }
            Some("sse") => self.address().map(|(url, headers)| McpTransport::Sse { url, headers }),
            Some("sdk") if self.around.led && self.found.source == McpSource::Flag => Ok(McpTransport::Host),
            Some("sdk") => Err(HOSTED.to_owned()),
            Some(other) => Err(format!("unknown `type` {other:?}: expected stdio, http or sse")),
        }
    }

    fn stdio(&mut self) -> Result<McpTransport, String> {
        let (command, mut args) = match self.get("command") {
            Some(Value::String(command)) if !command.trim().is_empty() => (command.clone(), Vec::new()),
            Some(Value::Array(_)) => {
                let mut words = self.texts("command")?;
                if words.is_empty() {
                    return Err("`command` is empty".to_owned());
                }
                self.notes.push(
                    "`command` is a list; its first item is the program, the rest arguments".to_owned(),
                );
                (words.remove(0), words)
            }
            _ => return Err("`command` is missing or not a text".to_owned()),
        };
        args.extend(self.texts("args")?);
        let command = self.expand("command", &command)?;
        let args = args.iter().map(|arg| self.expand("args", arg)).collect::<Result<Vec<_>, _>>()?;
        let env = self.pairs("env", crate::shell_env::is_variable_name)?;
        let cwd = match self.get("cwd") {
            None => None,
            Some(Value::String(cwd)) => Some(self.directory(cwd)?),
            Some(_) => return Err("`cwd` is not a text".to_owned()),
        };
        if [&command].into_iter().chain(&args).chain(env.values()).any(|text| text.contains('\0')) {
            return Err("a NUL character cannot be passed to a program".to_owned());
        }
        Ok(McpTransport::Stdio { command, args, env, cwd })
    }

    fn directory(&self, text: &str) -> Result<Utf8PathBuf, String> {
        let text = self.expand("cwd", text)?;
        Ok(match (text.strip_prefix("~/"), &self.around.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => self.around.root.join(text),
        })
    }

    fn address(&mut self) -> Result<(String, BTreeMap<String, String>), String> {
        let Some(Value::String(url)) = self.get("url") else {
            return Err("`url` is missing or not a text".to_owned());
        };
        let url = self.expand("url", url)?;
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if host.is_none_or(|host| host.is_empty() || host.starts_with('/'))
            || url.bytes().any(|byte| !byte.is_ascii_graphic())
        {
            return Err("`url` is not an http or https address".to_owned());
        }
        let headers = self.pairs("headers", crate::check::is_header_name)?;
        for (name, value) in &headers {
            if let Err(reason) = crate::secret::check_header_value(value) {
                return Err(format!("`headers`: the value of {name} {reason}"));
            }
        }
        Ok((url, headers))
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, String> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let Value::Array(items) = value else { return Err(format!("`{key}` is not a list of texts")) };
        items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                Value::Number(number) => Ok(number.to_string()),
                _ => Err(format!("`{key}` is not a list of texts")),
            })
            .collect()
    }

    fn pairs(&self, key: &str, is_name: fn(&str) -> bool) -> Result<BTreeMap<String, String>, String> {
        let Some(value) = self.get(key) else { return Ok(BTreeMap::new()) };
        let Value::Object(members) = value else { return Err(format!("`{key}` is not an object of texts")) };
        let mut pairs = BTreeMap::new();
        for (name, value) in members {
            if !is_name(name) {
                return Err(format!("`{key}` has a name that cannot be one: {:?}", cut(name)));
            }
            let text = match value {
                Value::String(text) => self.expand(key, text)?,
                Value::Number(number) => number.to_string(),
                Value::Bool(value) => value.to_string(),
                Value::Null => continue,
                _ => return Err(format!("`{key}.{name}` is not a text")),
            };
            pairs.insert(name.clone(), text);
        }
        Ok(pairs)
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.get(key)?.as_bool();
        if value.is_none() {
            self.notes.push(format!("`{key}` is ignored: expected true or false"));
        }
        value
    }

    fn milliseconds(&mut self, key: &str) -> Option<Duration> {
        let value = self.get(key)?;
        let number = value.as_u64().filter(|number| (1..=LONGEST_MS).contains(number));
        if number.is_none() {
            self.notes.push(format!("`{key}` is ignored: expected milliseconds from 1 to {LONGEST_MS}"));
        }
        number.map(Duration::from_millis)
    }

    /// How long a call may take that says nothing else: as the environment says, or longer where the server is the
    /// program's own that leads the session.
    fn usual_timeout(&self, transport: &McpTransport) -> Duration {
        let given = self.around.environment.get("MCP_TOOL_TIMEOUT").and_then(|text| text.trim().parse().ok());
        let given = given.filter(|number| (1..=LONGEST_MS).contains(number)).map(Duration::from_millis);
        given.unwrap_or(if *transport == McpTransport::Host { HOSTED_CALL_TIMEOUT } else { CALL_TIMEOUT })
    }

    fn unknown_keys(&mut self) {
        let members = self.found.value.as_object();
        let unknown: Vec<String> = members
            .into_iter()
            .flat_map(serde_json::Map::keys)
            .filter(|key| !KNOWN.contains(&key.as_str()) && !key.starts_with(['_', '$', '/']))
            .map(|key| cut(key))
            .collect();
        self.notes.extend(unknown.into_iter().map(|key| format!("unknown key, ignored: {key:?}")));
    }

    /// Puts in `${NAME}` and `${NAME:-default}`.
    fn expand(&self, key: &str, text: &str) -> Result<String, String> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let Some(length) = rest[start..].find('}') else { break };
            let inner = &rest[start + 2..start + length];
            let (name, default) = match inner.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (inner, None),
            };
            expanded.push_str(&rest[..start]);
            if crate::shell_env::is_variable_name(name) {
                expanded.push_str(&self.variable(key, name, default)?);
            } else {
                expanded.push_str(&rest[start..=start + length]);
            }
            rest = &rest[start + length + 1..];
        }
        expanded.push_str(rest);
        Ok(expanded)
    }

    fn variable(&self, key: &str, name: &str, default: Option<&str>) -> Result<String, String> {
        match (name, &self.found.root) {
            ("CLAUDE_PLUGIN_ROOT" | "DECURION_PLUGIN_ROOT", Some(root)) => return Ok(root.to_string()),
            ("CLAUDE_PROJECT_DIR" | "DECURION_PROJECT_DIR", _) => return Ok(self.around.root.to_string()),
            _ => {}
        }
        // A repository's file decides where a value goes; a model provider's key does not go there.
        let is_key = CREDENTIALS.contains(&name) || self.around.keys.iter().any(|known| known == name);
        let is_ours = matches!(self.found.source, McpSource::User | McpSource::Flag | McpSource::Managed);
        if is_key && !is_ours {
            return Err(format!("`{key}`: a model provider's key is not given to a server: ${{{name}}}"));
        }
        match (self.around.environment.get(name), default) {
            (Some(value), _) => Ok(value.to_owned()),
            (None, Some(default)) => Ok(default.to_owned()),
            (None, None) => {
                self.unset.set(true);
                Err(format!("`{key}`: the environment has no {name}; set it, or write ${{{name}:-default}}"))
            }
        }
    }
}

/// Enough of a foreign text to find it.
fn cut(text: &str) -> String {
    text.chars().take(60).filter(|character| !character.is_control()).collect()
}

/// The part of a tool's name that stands for a server: letters, digits, `-` and single `_`, so that the
/// first `__` after it is where the tool's own name begins.
fn short_name(name: &str) -> String {
    let mut short = String::new();
    for character in name.chars().take(40) {
        let kept = if character.is_ascii_alphanumeric() || character == '-' { character } else { '_' };
        if !(kept == '_' && short.ends_with('_')) {
            short.push(kept);
        }
    }
    match short.trim_matches('_') {
        "" => "server".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

/// The short name itself, or with a number where another server has it; taken from then on.
pub(super) fn unique(base: &str, taken: &mut BTreeSet<String>) -> String {
    let mut short = base.to_owned();
    let mut number = 2;
    while !taken.insert(short.clone()) {
        short = format!("{base}_{number}");
        number += 1;
    }
    short
}

/// A fingerprint that does not depend on the order of keys. `root` is the folder that the words mean something in.
fn fingerprint(value: &Value, root: Option<&str>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(root.unwrap_or_default());
    hasher.update([0]);
    add(&mut hasher, value);
    crate::trust::hex(&hasher.finalize())
}

fn add(hasher: &mut Sha256, value: &Value) {
    match value {
        Value::Array(items) => {
            hasher.update(format!("[{}", items.len()));
            for item in items {
                add(hasher, item);
            }
        }
        Value::Object(members) => {
            let sorted: BTreeMap<&String, &Value> = members.iter().collect();
            hasher.update(format!("{{{}", sorted.len()));
            for (key, value) in sorted {
                hasher.update(format!("{}:{key}", key.len()));
                add(hasher, value);
            }
        }
        Value::String(text) => hasher.update(format!("s{}:{text}", text.len())),
        other => hasher.update(format!("v{other};")),
    }
}

/// Whether an entry of `allowedMcpServers` or `deniedMcpServers` means this server.
pub(super) fn matches(matcher: &Value, server: &McpServer) -> bool {
    if let Value::String(name) = matcher {
        return *name == server.name;
    }
    if let Some(name) = matcher.get("serverName").and_then(Value::as_str) {
        return name == server.name;
    }
    match (&server.transport, matcher.get("serverCommand"), matcher.get("serverUrl")) {
        (McpTransport::Stdio { command, args, .. }, Some(Value::Array(words)), _) => {
            let words = words.iter().map(|word| word.as_str().unwrap_or_default());
            words.eq(std::iter::once(command).chain(args).map(String::as_str))
        }
        (McpTransport::Http { url, .. } | McpTransport::Sse { url, .. }, _, Some(Value::String(pattern))) => {
            pattern_matches(pattern, url)
        }
        _ => false,
    }
}

/// `*` stands for any text.
fn pattern_matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_tools_are_plain_and_unique() {
        let mut taken = BTreeSet::new();
        let names = ["git", "my server", "my_server", "a__b", "plugin:x:y", "…", "", "git"];
        let short: Vec<String> = names.iter().map(|name| unique(&short_name(name), &mut taken)).collect();
        assert_eq!(
            short,
            ["git", "my_server", "my_server_2", "a_b", "plugin_x_y", "server", "server_2", "git_2"]
        );
    }

    #[test]
    fn addresses_match_patterns() {
        for (pattern, text, expected) in [
            ("https://a.example/*", "https://a.example/mcp", true),
            ("https://*.example/*", "https://b.a.example/mcp", true),
            ("https://a.example/*", "https://evil/https://a.example/", false),
            ("https://a.example", "https://a.example", true),
            ("https://a.example", "https://a.example/x", false),
            ("*", "anything", true),
        ] {
            assert_eq!(pattern_matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}

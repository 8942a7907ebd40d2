//! `decurion mcp`: which servers there are, adding and removing them, trying and approving them. Takes the
//! subcommand, gives what it found or changed in words or JSON.

mod serve;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decurion_config::mcp::edit::{self, EditError, Scope};
use decurion_config::{Environment, LoadRequest, Loaded, McpEntry, McpState, Plugins, Trust};
use decurion_engine::Definitions as _;
use decurion_engine::sandbox::ServiceSandbox;
use decurion_protocol::mcp::{Manifest, McpServer, McpSource, McpTransport};
use decurion_store::ManifestFolder;
use decurion_tools::mcp::server::FIRST_PAUSE;
use decurion_tools::mcp::{Confine, McpHost, Pool, Server, State, manifest, prompts};
use decurion_tools::oauth::Login;
use serde_json::{Map, Value, json};

use crate::args::{McpCommand, ScopeWord, TransportWord};
use crate::command::run::{block_on, check_sandbox};
use crate::command::sandbox;
use crate::consent::{agreed, can_be_asked};
use crate::definitions::LiveDefinitions;
use crate::report::{FAILED, Failure, note, visible, visible_lines};
use crate::screen::TextStyle;
use crate::servers::{self, DeclaredServers, ServerFlags};
use crate::table::{TableCell, TextTable};
use crate::wire;

pub fn run(command: McpCommand) -> Result<u8, Failure> {
    match command {
        McpCommand::List { json } => list(json),
        McpCommand::Get { name, json } => get(&name, json),
        McpCommand::Add { name, target, transport, scope, env, header } => {
            let declared = declaration(transport, target, &env, &header)?;
            add(&name, declared, scope.into())
        }
        McpCommand::AddJson { name, json, scope } => {
            let declared: Value = serde_json::from_str(&json)
                .map_err(|error| Failure::usage(format!("the declaration is not JSON: {error}")))?;
            add(&name, declared, scope.into())
        }
        McpCommand::Remove { name, scope } => remove(&name, scope),
        McpCommand::Test { name, json } => test(&name, json),
        McpCommand::Approve { name, yes } => approve(&name, yes),
        McpCommand::Login { name, scope } => login(&name, scope.as_deref()),
        McpCommand::Logout { name } => logout(&name),
        McpCommand::Serve { model, permission_mode, allowed_tools } => {
            serve::run(model.as_deref(), permission_mode.as_deref(), &allowed_tools)
        }
    }
}

impl From<ScopeWord> for Scope {
    fn from(word: ScopeWord) -> Self {
        match word {
            ScopeWord::User => Self::User,
            ScopeWord::Project => Self::Project,
            ScopeWord::Local => Self::Local,
        }
    }
}

/// The settings and every declaration.
struct Here {
    loaded: Arc<Loaded>,
    environment: Environment,
    declared: DeclaredServers,
}

impl Here {
    fn load() -> Result<Self, Failure> {
        let (cwd, environment) = wire::surroundings()?;
        let loaded = Arc::new(decurion_config::load(&LoadRequest::new(cwd, environment.clone()))?);
        for warning in &loaded.warnings {
            note(warning);
        }
        let plugins = Plugins::load(&loaded, &[]);
        let mut declared = servers::load(&loaded, &environment, &ServerFlags::default(), &plugins)?;
        let definitions = LiveDefinitions::new(&loaded, None, &plugins).all();
        declared.all.add_definitions(definitions.iter().map(|definition| &**definition));
        Ok(Self { loaded, environment, declared })
    }

    fn entry(&self, name: &str) -> Result<&McpEntry, Failure> {
        // What a definition declares may be named by its last word alone, where only one has it.
        let of_agent = |entry: &&McpEntry| {
            entry.source == McpSource::Agent && entry.name.rsplit(':').next() == Some(name)
        };
        let alone = || {
            let mut found = self.declared.all.entries.iter().filter(of_agent);
            found.next().filter(|_| found.next().is_none())
        };
        self.declared.all.get(name).or_else(alone).ok_or_else(|| {
            let known: Vec<&str> =
                self.declared.all.entries.iter().map(|entry| entry.name.as_str()).collect();
            let failure = Failure::usage(format!("MCP server not found: {name}"));
            let failure = match decurion_protocol::nearest(name, known.iter().copied()).first() {
                Some(near) => failure.hint(format!("did you mean {near}?")),
                None if known.is_empty() => failure,
                None => failure.hint(format!("servers: {}", known.join(", "))),
            };
            failure.hint("declare one with `decurion mcp add`, or in .mcp.json")
        })
    }

    fn server(entry: &McpEntry) -> Result<&McpServer, Failure> {
        entry.server.as_ref().ok_or_else(|| {
            Failure::usage(format!("{}: {} {}", entry.place, entry.name, entry.state.describe(&entry.name)))
        })
    }

    /// A server that may be started: what is not trusted or approved is not reached either.
    fn ready(entry: &McpEntry) -> Result<&McpServer, Failure> {
        let server = Self::server(entry)?;
        if entry.state == McpState::Ready {
            return Ok(server);
        }
        let state = entry.state.describe(&entry.name);
        Err(Failure::usage(visible(&format!("{} is not started: {state}", entry.name))))
    }

    /// Why a server cannot start, if its program is not there.
    fn absent_program(&self, server: &McpServer) -> Option<String> {
        let McpTransport::Stdio { command, env, cwd, .. } = &server.transport else { return None };
        let folder = cwd.as_deref().unwrap_or(&self.loaded.paths.cwd).as_std_path();
        let path = env.get("PATH").map(OsStr::new).or_else(|| self.environment.get_os("PATH"));
        let is_there = if command.contains('/') {
            is_program(&folder.join(command))
        } else {
            // Without a search path it is not known where the system looks.
            path.is_none_or(|path| {
                std::env::split_paths(path).any(|one| is_program(&folder.join(one).join(command)))
            })
        };
        (!is_there).then(|| format!("cannot start: program not found: {command}"))
    }

    fn kept(&self, hash: &str) -> Option<Manifest> {
        servers::manifests(&self.loaded)?.load(hash)
    }

    /// What a server that is started here alone is given. It keeps nothing by itself.
    fn host(&self) -> McpHost {
        let settings = &self.loaded.settings;
        let environment = decurion_config::shell_env::service_environment(
            &self.environment,
            settings,
            &self.loaded.providers,
        );
        let processes = wire::guard();
        let maker = wire::sandbox(&self.loaded, &self.environment);
        if let (Some(maker), Some(guard)) = (&maker, &processes) {
            wire::connect(&self.loaded, maker, guard, &self.environment);
        }
        let sandbox = maker.map(|maker| {
            let around = sandbox::policy(&self.loaded, Some(&maker)).around;
            let rules = Arc::new(self.loaded.rules.set.clone());
            let sandbox = ServiceSandbox::new(maker, rules, around);
            Arc::new(sandbox.caching(servers::caches(&self.loaded))) as Arc<dyn Confine>
        });
        McpHost {
            processes,
            sandbox,
            environment: environment.into_pairs().into(),
            root: self.loaded.paths.cwd.clone(),
            manifests: None,
            logins: servers::logins(&self.loaded),
            leader: None,
            pause: FIRST_PAUSE,
            notice: Arc::new(|_| {}),
        }
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file())
        && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn list(json: bool) -> Result<u8, Failure> {
    let here = Here::load()?;
    for problem in &here.declared.all.problems {
        note(visible(&problem.to_string()));
    }
    let mut table = TextTable::new(["NAME", "STATE", "DECLARED IN", "SERVER"]);
    for entry in &here.declared.all.entries {
        let absent = Some(entry).filter(|entry| entry.state == McpState::Ready);
        let absent = absent.and_then(|entry| here.absent_program(entry.server.as_ref()?));
        let transport = entry.server.as_ref().map(|server| &server.transport);
        if json {
            let line = json!({
                "name": entry.name,
                "source": entry.source,
                "place": entry.place,
                "transport": transport.map(McpTransport::name),
                "target": entry.written.summary(),
                "declared": entry.written.shown(),
                "ready": entry.state == McpState::Ready && absent.is_none(),
                "state": absent.clone().unwrap_or_else(|| entry.state.describe(&entry.name)),
            });
            say!("{line}");
        } else {
            let kind = transport.map_or("?", McpTransport::name);
            let (style, state) = match (&entry.state, &absent) {
                (McpState::Ready, Some(absent)) => (TextStyle::Bad, absent.clone()),
                (McpState::Ready, None) => (TextStyle::Good, entry.state.describe(&entry.name)),
                (McpState::Unusable(_), _) => (TextStyle::Bad, entry.state.describe(&entry.name)),
                _ => (TextStyle::Warning, entry.state.describe(&entry.name)),
            };
            table.row([
                TableCell::new(TextStyle::Strong, &entry.name),
                TableCell::new(style, state),
                TableCell::new(TextStyle::Faint, format!("{} ({})", entry.source, entry.place)),
                format!("{kind} {}", entry.written.summary()).into(),
            ]);
        }
    }
    table.print();
    if here.declared.all.entries.is_empty() && !json {
        say!("No MCP servers. Add one with `decurion mcp add` (--help shows how).");
    }
    Ok(0)
}

fn get(name: &str, json: bool) -> Result<u8, Failure> {
    let here = Here::load()?;
    let entry = here.entry(name)?;
    let kept = here.kept(&entry.hash);
    let tools: Vec<&str> =
        kept.iter().flat_map(|manifest| &manifest.tools).map(|tool| tool.name.as_str()).collect();
    let server = entry.server.as_ref();
    if json {
        let details = server.map(|server| {
            json!({
                "transport": server.transport.name(),
                "target": entry.written.summary(),
                "private": server.private,
                "start_timeout_ms": server.start_timeout.as_millis(),
                "call_timeout_ms": server.call_timeout.as_millis(),
                "prefix": format!("mcp__{}__", server.short),
            })
        });
        say!(
            "{}",
            json!({"name": name, "source": entry.source, "place": entry.place, "hash": entry.hash,
                "state": entry.state.describe(name), "ready": entry.state == McpState::Ready,
                "declared": entry.written.shown(),
                "server": details, "approved_tools": kept.is_some().then_some(tools)})
        );
        return Ok(0);
    }
    show(entry);
    say!("  state         {}", visible(&entry.state.describe(name)));
    if let Some(server) = server {
        say!("  reached by    {}", server.transport.name());
        say!("  tools named   mcp__{}__…", server.short);
        say!("  time-outs     start {:?}, call {:?}", server.start_timeout, server.call_timeout);
        say!("  process       {}", if server.private { "one per agent" } else { "one per session" });
    }
    match kept {
        Some(_) => say!(
            "  approved with {}",
            if tools.is_empty() { "no tools".to_owned() } else { visible(&tools.join(", ")) }
        ),
        None => say!("  approved with nothing yet: its tools are recorded when it is first used"),
    }
    Ok(0)
}

/// What a declaration says, in a stranger's words made harmless.
fn show(entry: &McpEntry) {
    say!("{}", visible(&entry.name));
    say!("  declared in   {} ({})", visible(&entry.place), entry.source);
    for (what, written) in entry.written.lines() {
        say!("  {:<13} {}", visible(&what), visible(&written));
    }
}

/// The declaration that the arguments describe.
fn declaration(
    transport: TransportWord,
    mut target: Vec<String>,
    env: &[String],
    headers: &[String],
) -> Result<Value, Failure> {
    let pairs = |what: &str, list: &[String], by: char| -> Result<Map<String, Value>, Failure> {
        let pair = |text: &String| match text.split_once(by) {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), Value::String(value.trim_start().to_owned())))
            }
            _ => Err(Failure::usage(format!("{what}: expected NAME{by}VALUE, found {text:?}"))),
        };
        list.iter().map(pair).collect()
    };
    if target.is_empty() {
        return Err(Failure::usage("give the server's program or address"));
    }
    let first = target.remove(0);
    if transport == TransportWord::Stdio {
        if !headers.is_empty() {
            return Err(Failure::usage("--header goes with --transport http or sse"));
        }
        if first.starts_with("http://") || first.starts_with("https://") {
            // Not shown: people put keys into addresses.
            return Err(Failure::usage("what is given is an address, not a program")
                .hint("add --transport http (or sse)"));
        }
        let mut declared = json!({"command": first, "args": target});
        if !env.is_empty() {
            declared["env"] = Value::Object(pairs("--env", env, '=')?);
        }
        return Ok(declared);
    }
    if !target.is_empty() || !env.is_empty() {
        return Err(Failure::usage("a server by address takes no arguments and no --env"));
    }
    let kind = if transport == TransportWord::Http { "http" } else { "sse" };
    let mut declared = json!({"type": kind, "url": first});
    if !headers.is_empty() {
        declared["headers"] = Value::Object(pairs("--header", headers, ':')?);
    }
    Ok(declared)
}

fn edit_failure(error: &EditError) -> Failure {
    match error {
        EditError::Exists { name, .. } => {
            let hint = format!("`decurion mcp remove {name}` removes it");
            Failure::usage(error.to_string()).hint(hint)
        }
        _ => Failure::usage(error.to_string()),
    }
}

/// Writes a declaration. Who types it wants it: it is approved, waits for no trust in the folder, and a folder that was
/// trusted stays so.
fn add(name: &str, declared: Value, scope: Scope) -> Result<u8, Failure> {
    let is_plain =
        |letter: char| !letter.is_control() && !letter.is_whitespace() && !"'\"\\$`".contains(letter);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        return Err(Failure::usage(format!("not a name for a server: {:?}", visible(name)))
            .hint("a name has 1 to 64 characters and no spaces or quotes"));
    }
    if !declared.is_object() {
        return Err(Failure::usage("a declaration is a JSON object"));
    }
    let before = Here::load()?;
    // Looked at before it is written: a file that was changed and changed back would cost the folder its trust.
    let checked = before.declared.all.checked(name, &declared, scope);
    match &checked.state {
        McpState::Unusable(why) if !checked.unset => {
            return Err(Failure::usage(format!("this declaration cannot be used: {}", visible(why))));
        }
        _ => {}
    }
    let file =
        edit::add(&before.loaded.paths, scope, name, declared).map_err(|error| edit_failure(&error))?;
    if scope != Scope::User {
        record_approval(&before, name, &checked.hash)?;
    }
    say!("{name}: declared in {file}");
    let now = Here::load()?;
    let entry = now.entry(name)?;
    match (&entry.state, entry.server.as_ref().and_then(|server| now.absent_program(server))) {
        (McpState::Ready, Some(absent)) => note(format!("warning: {name} {}", visible(&absent))),
        (McpState::Ready, None) => say!("Try it with `decurion mcp test {name}`."),
        (McpState::Unusable(why), _) if checked.unset => {
            note(format!("warning: {name} cannot start like this: {}", visible(why)));
        }
        (state, _) => say!("{}", state.describe(name)),
    }
    Ok(0)
}

fn record_approval(here: &Here, name: &str, hash: &str) -> Result<(), Failure> {
    let (mut trust, _) = Trust::open(&here.loaded.paths);
    trust
        .approve_server(&here.loaded.paths.root, name, hash)
        .map_err(|error| Failure::usage(error.to_string()))
}

fn remove(name: &str, scope: Option<ScopeWord>) -> Result<u8, Failure> {
    let before = Here::load()?;
    let scopes = match scope {
        Some(scope) => vec![scope.into()],
        None => vec![Scope::User, Scope::Project, Scope::Local],
    };
    let mut removed = Vec::new();
    for scope in scopes {
        removed
            .extend(edit::remove(&before.loaded.paths, scope, name).map_err(|error| edit_failure(&error))?);
    }
    if removed.is_empty() {
        return Err(Failure::usage(format!("MCP server not declared in a settings file here: {name}")));
    }
    for file in removed {
        say!("{name}: removed from {file}");
    }
    Ok(0)
}

/// The result of starting a server.
struct Tried {
    /// What it offers, or why it does not.
    offered: Result<Manifest, String>,
    took: Duration,
    stderr: String,
}

/// Starts a server once, and ends it again.
fn try_out(here: &Here, server: &McpServer) -> Result<Tried, Failure> {
    check_sandbox(&here.loaded)?;
    let host = here.host();
    block_on(async {
        let pool = Pool::new(host);
        let began = tokio::time::Instant::now();
        let lease = pool.lease(server, "main");
        let Some(handle) = lease.server().cloned() else {
            let offered = Err("it is gone".to_owned());
            return Tried { offered, took: began.elapsed(), stderr: String::new() };
        };
        let offered = settled(&handle).await;
        let took = began.elapsed();
        let stderr = handle.stderr();
        lease.release().await;
        Tried { offered, took, stderr }
    })
}

/// The first answer or the first failure: a test of a server should not wait for its restarts.
async fn settled(server: &Server) -> Result<Manifest, String> {
    let mut state = server.state();
    let done = state.wait_for(|state| !matches!(state, State::Starting)).await;
    match done.as_deref() {
        Ok(State::Ready(ready)) => Ok((*ready.manifest).clone()),
        Ok(State::Resting { why } | State::Disabled { why, .. }) => Err(why.clone()),
        Ok(_) | Err(_) => Err("it is gone".to_owned()),
    }
}

fn test(name: &str, json: bool) -> Result<u8, Failure> {
    let here = Here::load()?;
    let entry = here.entry(name)?;
    let server = Here::ready(entry)?;
    let tried = try_out(&here, server)?;
    let kept = here.kept(&entry.hash);
    if let (Ok(offered), None) = (&tried.offered, &kept) {
        keep(&here, &entry.hash, offered)?;
    }
    let changes = match (&tried.offered, &kept) {
        (Ok(offered), Some(kept)) => manifest::changes(kept, offered),
        _ => Vec::new(),
    };
    if json {
        let (tools, error) = match &tried.offered {
            Ok(offered) => (Some(&offered.tools), None),
            Err(error) => (None, Some(error)),
        };
        let value = json!({"name": name, "ok": error.is_none(), "error": error, "tools": tools,
            "milliseconds": tried.took.as_millis(), "stderr": tried.stderr, "changes": changes});
        say!("{value}");
        return Ok(if error.is_none() { 0 } else { FAILED });
    }
    match &tried.offered {
        Ok(offered) => {
            print_offer(server, offered, tried.took);
            if !changes.is_empty() {
                say!("changed since it was approved (`decurion mcp approve {name}` accepts it):");
                for change in &changes {
                    say!("{}", visible_lines(change));
                }
            }
            Ok(0)
        }
        Err(why) => {
            let why = visible_lines(why);
            Err(Failure::failed(format!("{name}: failed after {:.1} s: {why}", tried.took.as_secs_f64())))
        }
    }
}

fn print_offer(server: &McpServer, offered: &Manifest, took: Duration) {
    say!("{}: OK ({:.1} s)", visible(&server.name), took.as_secs_f64());
    for tool in &offered.tools {
        let first = tool.description.lines().next().unwrap_or_default();
        let hint = if tool.read_only { " (says it changes nothing)" } else { "" };
        let first: String = first.chars().take(100).collect();
        say!("  {}{hint}: {}", visible(&tool.name), visible(&first));
    }
    for prompt in &offered.prompts {
        say!("  prompt /{}", prompts::command_name(&server.short, &prompt.name));
    }
    if offered.resources {
        say!("  and resources");
    }
}

fn keep(here: &Here, hash: &str, offered: &Manifest) -> Result<(), Failure> {
    let Some(manifests) = servers::manifests(&here.loaded) else { return Ok(()) };
    manifests
        .keep(hash, offered)
        .map_err(|error| Failure::failed(format!("what it offers cannot be kept: {error}")))
}

/// Accepts a server's declaration and its offers, after showing both. Nothing of a repository's is started or recorded
/// without a person's agreement.
fn approve(name: &str, yes: bool) -> Result<u8, Failure> {
    let here = Here::load()?;
    let entry = here.entry(name)?;
    show(entry);
    let server = Here::server(entry)?;
    match &entry.state {
        McpState::Untrusted => {
            return Err(Failure::usage("the folder is not trusted").hint("run `decurion trust` first"));
        }
        McpState::Disabled(by) => return Err(Failure::usage(format!("it is disabled: {}", visible(by)))),
        _ => {}
    }
    // Of what definitions declare, only a project's is listed.
    let is_projects = matches!(entry.source, McpSource::Project | McpSource::Local | McpSource::Agent);
    if is_projects {
        agreed(yes, "Approve this declaration, and start the server to list its tools?")?;
        record_approval(&here, &entry.name, &entry.hash)?;
        say!("Approved as declared in {}.", visible(&entry.place));
    } else {
        can_be_asked(yes)?;
    }
    let tried = try_out(&here, server)?;
    let offered = tried.offered.map_err(|why| {
        let why = visible_lines(&why);
        Failure::failed(format!("it failed to start, so its tools are not known: {why}"))
    })?;
    let changes = here.kept(&entry.hash).map(|kept| manifest::changes(&kept, &offered)).unwrap_or_default();
    for change in &changes {
        say!("{}", visible_lines(change));
    }
    print_offer(server, &offered, tried.took);
    agreed(yes, "Approve these tools?")?;
    keep(&here, &entry.hash, &offered)?;
    say!("Approved.");
    Ok(0)
}

/// How long a person may take in the browser.
const BROWSING: Duration = Duration::from_mins(10);

/// Gets leave to use a server by its address, in a browser.
fn login(name: &str, scope: Option<&str>) -> Result<u8, Failure> {
    let here = Here::load()?;
    let entry = here.entry(name)?;
    let server = Here::ready(entry)?;
    let (McpTransport::Http { url, .. } | McpTransport::Sse { url, .. }) = &server.transport else {
        return Err(Failure::usage(format!("{name} is a local program and needs no login")));
    };
    let logins = servers::logins(&here.loaded)
        .ok_or_else(|| Failure::usage("no state folder to keep the login in"))?;
    let leave = block_on(async {
        let login = Login::begin(url, scope).await?;
        say!("Open this address in a browser on this machine, and agree there:\n\n{}\n", login.address);
        login.finish(BROWSING, logins.now()).await
    })?
    .map_err(|error| Failure::failed(error.to_string()))?;
    logins
        .keep(&entry.hash, &leave)
        .map_err(|error| Failure::failed(format!("cannot save the login: {error}")))?;
    say!("{name}: logged in (`decurion mcp logout {name}` logs out)");
    Ok(0)
}

fn logout(name: &str) -> Result<u8, Failure> {
    let here = Here::load()?;
    let entry = here.entry(name)?;
    let folder = ManifestFolder::new(wire::state_folder(&here.loaded));
    let was = folder
        .forget_login(&entry.hash)
        .map_err(|error| Failure::failed(format!("cannot remove the login: {error}")))?;
    say!("{name}: {}", if was { "logged out" } else { "was not logged in" });
    Ok(0)
}

//! The sandbox of hooks and of stdio MCP servers. Takes a process that the settings of a user name, gives the same launch
//! with what the kernel lets it do.
//!
//! They have what commands have, but for three things. Their network is that of the machine, because a person chose them
//! and many programs ignore proxies. Their temporary files and caches are in folders that commands cannot write: what is
//! in a cache runs. And they see what they need of our own folder: scripts, and for hooks the transcript.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::{Launch, Reach, Sandbox};
use decurion_protocol::intent::{ShellCommand, ShellIntent};
use decurion_protocol::mcp::{McpServer, McpTransport};
use decurion_protocol::{AuditKind, HookDeclaration, Intent, Mode, RuleSet};
use decurion_tools::mcp::{Confine, Sign};
use decurion_tools::shell::{self, Bash};
use decurion_tools::{Surroundings, Tool as _};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::programs::Variables;
use super::refusal::{self, Refusal};
use super::{Compiled, SandboxError, SandboxMaker};
use crate::permission::{Around, Policy};
use crate::ports::Redact;
use crate::symlinks::Symlinks;
use crate::witness::Witness;

/// Folders for temporary files: a private one covers them as a whole, so that they are never shown as a whole.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// Where `uvx` looks for tools that are installed, which it makes if it is not there.
const UV_TOOLS: (&str, &str) = ("UV_TOOL_DIR", "uv-tools");

/// Where servers cache what they download.
pub trait ServerCaches: Send + Sync {
    /// The folder of this name, made at its first use. It stays at least as long as this value lives.
    fn folder(&self, name: &str) -> io::Result<Utf8PathBuf>;
}

/// The sandbox of the hooks and servers of a session.
#[derive(Clone)]
pub struct ServiceSandbox {
    maker: Arc<SandboxMaker>,
    /// The rules and directories at the session's start.
    rules: Arc<RuleSet>,
    around: Around,
    /// Files of the session in our own folder that they may read.
    shown: Vec<Utf8PathBuf>,
    caches: Option<Arc<dyn ServerCaches>>,
    /// Who records what the sandbox refuses.
    recorder: Option<Recorder>,
}

/// What records refusals, and takes secrets out of them.
#[derive(Clone)]
struct Recorder {
    witness: Witness,
    redact: Redact,
}

/// A process to be confined.
struct Service<'a> {
    /// What the settings may exempt.
    seen: Intent,
    /// The folder of the plugin that it is part of.
    plugin: Option<&'a Utf8Path>,
    /// A further folder that it works in.
    worktree: Option<&'a Utf8Path>,
    /// The folder of its caches; none for one in the folder for temporary files.
    cache: Option<Utf8PathBuf>,
}

impl ServiceSandbox {
    /// The sandbox in a session with these rules and directories.
    pub fn new(maker: Arc<SandboxMaker>, rules: Arc<RuleSet>, around: Around) -> Self {
        Self { maker, rules, around, shown: Vec::new(), caches: None, recorder: None }
    }

    /// The same, in which these files of the session can be read.
    #[must_use]
    pub fn showing(self, shown: Vec<Utf8PathBuf>) -> Self {
        Self { shown, ..self }
    }

    /// The same, in which servers keep their caches here.
    #[must_use]
    pub fn caching(self, caches: Option<Arc<dyn ServerCaches>>) -> Self {
        Self { caches, ..self }
    }

    /// The same, whose refusals are in the audit log.
    #[must_use]
    pub(crate) fn recorded_by(self, witness: Witness, redact: Redact) -> Self {
        Self { recorder: Some(Recorder { witness, redact }), ..self }
    }

    /// Records what a hook or server reports.
    pub(crate) fn record(&self, title: &str, refusal: &Refusal) {
        let Some(Recorder { witness, redact }) = &self.recorder else { return };
        let clean = |text: &str| redact(text).unwrap_or_else(|| text.to_owned());
        witness.record(AuditKind::Sandbox {
            title: clean(title),
            refused: clean(&refusal.text()),
            verified: refusal.is_verified(),
            form: self.maker.settings().form.name().to_owned(),
        });
    }

    /// The launch of a hook in its sandbox; as it is where the settings exempt it. Looks at the disk.
    pub fn confine_hook(
        &self,
        hook: &HookDeclaration,
        worktree: Option<&Utf8Path>,
        launch: Launch,
    ) -> Result<Launch, SandboxError> {
        let seen = match &hook.args {
            None => self.seen_in(&hook.command),
            Some(_) => words_of(&launch),
        };
        self.confine(&Service { seen, plugin: hook.plugin_root.as_deref(), worktree, cache: None }, launch)
    }

    fn confine(&self, service: &Service<'_>, launch: Launch) -> Result<Launch, SandboxError> {
        let Compiled { sandbox, environment: own, .. } = self.compile(service, &launch.env)?;
        let mut launch = launch;
        launch.env.retain(|(name, _)| !own.iter().any(|(known, _)| known == name));
        launch.env.extend(own);
        let Some(sandbox) = sandbox else { return Ok(launch) };
        let temporary = sandbox.tmp.clone().unwrap_or_default();
        let cache = service.cache.as_ref().map_or(temporary.as_path(), |cache| cache.as_std_path());
        let env = environment(launch.env, &sandbox, &temporary, cache);
        Ok(Launch { env, sandbox: Some(Arc::new(sandbox)), ..launch })
    }

    fn compile(&self, service: &Service<'_>, environment: &Variables) -> Result<Compiled, SandboxError> {
        let around = Around { trails: Symlinks::on_disk(), ..self.around.clone() };
        let directories = around.directories.iter().cloned().chain(service.worktree.map(Into::into));
        let around = Around { directories: directories.collect(), ..around };
        // Hooks and servers work whatever the mode is.
        let policy = Policy::new(Mode::Default, Arc::clone(&self.rules), around);
        let compiled = self.maker.compile(&policy, None, &service.seen, Some(environment))?;
        let Some(mut sandbox) = compiled.sandbox else { return Ok(compiled) };
        let place = |path: &Utf8Path| policy.around.trails.place(path).into_std_path_buf();
        let temporary = place(self.maker.service_temporary()?);
        let of_commands = sandbox.tmp.replace(temporary.clone());
        sandbox.writable.retain(|path| Some(path) != of_commands.as_ref());
        sandbox.writable.push(temporary);
        sandbox.writable.extend(service.cache.as_deref().map(place));
        sandbox.network = true;
        sandbox.reach = Reach::Machine;
        sandbox.unix_sockets = self.maker.settings().unix_sockets;
        let own = self.maker.settings().own.as_ref();
        let state = own.map(|own| place(&own.folder));
        let ours = own.into_iter().flat_map(|own| &own.shown).chain(&self.shown).map(Utf8PathBuf::as_path);
        let shown = ours.chain(service.plugin).map(place).filter(|path| Some(path) != state.as_ref());
        let shown: Vec<PathBuf> = shown.filter(|path| may_show(&sandbox, path, state.as_deref())).collect();
        let named = named_in(&service.seen).map(|path| place(&path));
        let named: Vec<PathBuf> = named.filter(|path| may_show(&sandbox, path, None)).collect();
        sandbox.visible.extend(shown.into_iter().chain(named));
        Ok(Compiled { sandbox: Some(sandbox), ..compiled })
    }

    /// The name of a server's cache. It is for one folder: what `node server.js` or `npx tool` runs is another program in
    /// another one, which must not find code that the first has left.
    fn cache_name(&self, server: &McpServer) -> String {
        let text = format!("{}\n{}", server.hash, self.around.root);
        Sha256::digest(text).iter().fold(String::with_capacity(64), |name, byte| format!("{name}{byte:02x}"))
    }

    /// What a line for the shell runs, as rules see it.
    fn seen_in(&self, command: &str) -> Intent {
        let Around { cwd, home, directories, .. } = self.around.clone();
        let around = Surroundings { cwd, home, directories };
        let seen = Bash::default().intent(&json!({"command": command}), &around);
        seen.unwrap_or_else(|_| Intent::titled(""))
    }
}

impl Confine for ServiceSandbox {
    fn confine(&self, server: &McpServer, launch: Launch) -> Result<Launch, String> {
        // Without a folder of its own it downloads again what it needs.
        let cache = self.caches.as_ref().and_then(|caches| caches.folder(&self.cache_name(server)).ok());
        let service = Service { seen: words_of(&launch), plugin: None, worktree: None, cache };
        self.confine(&service, launch).map_err(|error| error.to_string())
    }

    fn explain(&self, server: &McpServer, printed: &str, sign: Sign) -> Option<String> {
        let refusal = reported(printed, sign)?;
        let McpTransport::Stdio { command, args, .. } = &server.transport else {
            return None;
        };
        let words = std::iter::once(command).chain(args).cloned().collect();
        if self.maker.is_excluded(&seen_as(words)) {
            return None;
        }
        self.record(&format!("MCP server {}", server.name), &refusal);
        Some(refusal.advice())
    }
}

/// What a hook or a server that printed this reports that its sandbox kept it from.
pub(crate) fn reported(printed: &str, sign: Sign) -> Option<Refusal> {
    refusal::first_sign(printed).filter(|refusal| sign == Sign::Likely || refusal.is_likely())
}

/// Whether a path that exists can be shown: it is in no hidden folder but this one.
fn may_show(sandbox: &Sandbox, path: &Path, but: Option<&Path>) -> bool {
    let hides = |hidden: &PathBuf| path.starts_with(hidden) && Some(hidden.as_path()) != but;
    path.exists() && !sandbox.hidden.iter().any(hides)
}

/// The words of a program as a command that rules can name.
fn words_of(launch: &Launch) -> Intent {
    let words = std::iter::once(&launch.program).chain(&launch.args);
    seen_as(words.map(|word| word.to_string_lossy().into_owned()).collect())
}

fn seen_as(words: Vec<String>) -> Intent {
    let command = ShellCommand { text: words.join(" "), words, ..ShellCommand::default() };
    let shell = ShellIntent { commands: vec![command], doubt: None, not_literal: None, moves: false };
    Intent { shell: Some(shell), ..Intent::titled("") }
}

/// The files and folders that a command names in full, a file by its folder: next to a script is what it loads.
fn named_in(seen: &Intent) -> impl Iterator<Item = Utf8PathBuf> {
    let commands = seen.shell.iter().flat_map(|shell| &shell.commands);
    let paths = commands.flat_map(|command| &command.words).map(Utf8Path::new);
    let folder = |path: &Utf8Path| {
        if path.is_dir() { path.to_owned() } else { path.parent().unwrap_or(path).to_owned() }
    };
    let existing = paths.filter(|path| path.is_absolute() && path.exists());
    existing.map(folder).filter(|path| !TEMPORARY.contains(&path.as_str()))
}

/// The variables of a process whose caches are here. One that names another cache stays if that can be written.
fn environment(
    mut variables: Vec<(OsString, OsString)>,
    sandbox: &Sandbox,
    temporary: &Path,
    cache: &Path,
) -> Vec<(OsString, OsString)> {
    let writable = |value: &OsString| sandbox.writable.iter().any(|path| Path::new(value).starts_with(path));
    let is_cache = |name: &OsString| shell::CACHES.iter().chain([&UV_TOOLS]).any(|(known, _)| name == known);
    variables.retain(|(name, value)| !is_cache(name) || writable(value));
    if !variables.iter().any(|(name, _)| name == UV_TOOLS.0) {
        variables.push((UV_TOOLS.0.into(), cache.join(UV_TOOLS.1).into()));
    }
    shell::environment_in(variables, temporary, cache)
}

impl std::fmt::Debug for ServiceSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceSandbox").field("cwd", &self.around.cwd).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_that_cannot_be_written_are_replaced() {
        let sandbox = Sandbox { writable: vec!["/project".into()], ..Sandbox::default() };
        let given = [
            ("XDG_CACHE_HOME", "/home/.cache"),
            ("npm_config_cache", "/project/npm"),
            ("TMPDIR", "/project/tmp"),
            ("A", "b"),
        ];
        let given = given.map(|(name, value)| (OsString::from(name), OsString::from(value))).to_vec();
        let variables = environment(given, &sandbox, Path::new("/private"), Path::new("/caches"));
        let mut lines: Vec<String> =
            variables.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "A=b",
                "GOFLAGS=-modcacherw",
                "GOMODCACHE=/caches/go",
                "TMPDIR=/private",
                "UV_TOOL_DIR=/caches/uv-tools",
                "XDG_CACHE_HOME=/caches/cache",
                "npm_config_cache=/project/npm",
            ]
        );
    }

    #[test]
    fn only_what_no_rule_hides_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("own/hooks")).unwrap();
        std::fs::create_dir_all(at("denied/own/hooks")).unwrap();
        let sandbox = Sandbox { hidden: vec![at("own"), at("denied")], ..Sandbox::default() };
        assert!(may_show(&sandbox, &at("own/hooks"), Some(&at("own"))));
        assert!(!may_show(&sandbox, &at("own/hooks"), None));
        assert!(!may_show(&sandbox, &at("denied/own/hooks"), Some(&at("denied/own"))));
        assert!(!may_show(&sandbox, &at("own/absent"), Some(&at("own"))));
    }
}

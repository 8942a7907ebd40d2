//! `decurion plugin`: which plugins there are, what is wrong with one, and whether it is on. Takes a subcommand,
//! prints lists or what was done.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::mcp::Written;
use decurion_config::{
    LoadRequest, Loaded, PartKind, Plugin, PluginError, PluginRegistry, Plugins, Severity,
};
use decurion_serve::progress::one_line;
use serde_json::{Value, json};

use super::agents::tool_names;
use crate::args::{PluginCommand, PluginConsent};
use crate::consent::agreed;
use crate::report::{FAILED, Failure, note, visible};
use crate::screen::TextStyle;
use crate::table::{TableCell, TextTable};
use crate::wire;

/// Lists, checks, adds or switches plugins.
pub fn run(command: PluginCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd, environment))?;
    match command {
        PluginCommand::List { json } => list(&loaded, json),
        PluginCommand::Validate { path, json } => return Ok(validate(&loaded, &path, json)),
        PluginCommand::Add { path, consent } => add(&loaded, &path, &consent)?,
        PluginCommand::Enable { name, consent } => {
            let plugin = registry(&loaded).find(&name).map_err(failure)?;
            if !is_agreed(&plugin, &consent, &format!("Enable the plugin {}?", visible(&name)))? {
                return Ok(0);
            }
            registry(&loaded).enable(&name, &plugin).map_err(failure)?;
            say!("{name}: enabled as it is now in {}", plugin.root);
        }
        PluginCommand::Disable { name } => {
            registry(&loaded).disable(&name).map_err(failure)?;
            say!("{name}: disabled");
        }
        PluginCommand::Remove { name } => {
            registry(&loaded).remove(&name).map_err(failure)?;
            say!("{name}: removed; its folder is still there");
        }
    }
    Ok(0)
}

fn registry(loaded: &Loaded) -> PluginRegistry {
    let (registry, warning) = PluginRegistry::open(&loaded.paths);
    warning.into_iter().for_each(note);
    registry
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn failure(error: PluginError) -> Failure {
    let failure = Failure::usage(error.to_string());
    match error {
        PluginError::Unknown(_) => failure.hint("`decurion plugin list` shows those that were added"),
        PluginError::Unusable(_) => failure.hint("`decurion plugin validate PATH` shows all that is wrong"),
        PluginError::Taken(_) => failure.hint("`decurion plugin remove NAME` forgets the other"),
        PluginError::NoState | PluginError::Write { .. } => failure,
    }
}

fn list(loaded: &Loaded, json: bool) {
    let plugins = Plugins::load(loaded, &[]);
    let mut table = TextTable::new(["NAME", "VERSION", "STATE", "FOLDER", "DESCRIPTION"]);
    for plugin in &plugins.all {
        if json {
            say!("{}", row(plugin));
        } else {
            table.row([
                TableCell::new(TextStyle::Strong, &plugin.name),
                plugin.version.as_deref().unwrap_or_default().into(),
                plugin.state.word().into(),
                TableCell::new(TextStyle::Faint, &plugin.root),
                one_line(plugin.description.as_deref().unwrap_or_default()).into(),
            ]);
        }
    }
    table.print();
    if plugins.all.is_empty() && !json {
        say!("No plugins. Add one with `decurion plugin add PATH`.");
    }
    plugins.warnings.iter().for_each(note);
}

fn row(plugin: &Plugin) -> Value {
    json!({
        "name": plugin.name,
        "version": plugin.version,
        "description": plugin.description,
        "path": plugin.root,
        "source": plugin.source(),
        "state": plugin.state,
        "hooks": plugin.hooks().declarations.len(),
        "mcp_servers": plugin.servers().keys().collect::<Vec<_>>(),
    })
}

fn validate(loaded: &Loaded, path: &Utf8Path, json: bool) -> u8 {
    let names = tool_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let plugin = Plugin::check(&absolute(loaded, path), loaded, &names);
    let failed = plugin.problems.iter().any(|problem| problem.severity == Severity::Error);
    if json {
        let mut report = row(&plugin);
        report["valid"] = json!(!failed);
        report["problems"] = json!(plugin.problems);
        say!("{report}");
    } else {
        for problem in &plugin.problems {
            say!("{problem}");
        }
        if !failed {
            say!("{}: can be used", plugin.name);
        }
    }
    if failed { FAILED } else { 0 }
}

fn absolute(loaded: &Loaded, path: &Utf8Path) -> Utf8PathBuf {
    loaded.paths.expand(path.as_str(), &loaded.paths.cwd)
}

fn add(loaded: &Loaded, path: &Utf8Path, consent: &PluginConsent) -> Result<(), Failure> {
    let plugin = Plugin::read(&absolute(loaded, path));
    let mut registry = registry(loaded);
    registry.check(&plugin).map_err(failure)?;
    let question =
        format!("Add the plugin {} from {}?", visible(&plugin.name), visible(plugin.root.as_str()));
    if !is_agreed(&plugin, consent, &question)? {
        return Ok(());
    }
    let on = registry.add(&plugin).map_err(failure)?;
    let how = if on { "enabled" } else { "not enabled; `decurion plugin enable` does that" };
    say!("{}: added from {}, {how}", plugin.name, plugin.root);
    Ok(())
}

/// Whether a plugin may be enabled as it was read. What it runs is shown first, and asked about where there is something to
/// agree to; false where that was only wanted to be shown.
fn is_agreed(plugin: &Plugin, consent: &PluginConsent, question: &str) -> Result<bool, Failure> {
    let (shown, has_any) = (programs(plugin), !plugin.parts().parts().is_empty());
    if has_any && consent.preview {
        let row =
            json!({"question": question, "shows": shown.join("\n"), "fingerprint": plugin.fingerprint()});
        say!("{row}");
        return Ok(false);
    }
    match &consent.as_shown {
        Some(agreed) if *agreed == plugin.fingerprint() => return Ok(true),
        Some(_) => {
            return Err(Failure::failed("the plugin has changed since it was shown; nothing was changed"));
        }
        None => shown.iter().for_each(|line| say!("{line}")),
    }
    if has_any {
        agreed(consent.yes, question)?;
    }
    Ok(true)
}

/// What runs because of a plugin, and what it allows: a person should see this before agreeing.
fn programs(plugin: &Plugin) -> Vec<String> {
    let description = one_line(plugin.description.as_deref().unwrap_or_default());
    let mut lines = vec![format!("{}  {description}", visible(&plugin.name)).trim_end().to_owned()];
    for hook in plugin.hooks().declarations {
        lines.push(format!("  runs at {}: {}", hook.event, visible(&hook.command)));
    }
    for (name, declared) in plugin.servers() {
        let server = visible(&Written::new(declared).summary());
        lines.push(format!("  starts the server {}: {server}", visible(name)));
    }
    let parts = plugin.parts();
    let is_listed = |kind| matches!(kind, PartKind::Hook | PartKind::Server);
    for part in parts.parts().iter().filter(|part| !is_listed(part.kind)) {
        for (what, written) in &part.said {
            let (key, what, written) = (visible(&part.key), visible(what), visible(written));
            lines.push(format!("  {} {key}: {what} {written}", part.kind.name()));
        }
    }
    if parts.parts().is_empty() {
        lines.push("  runs no programs and allows nothing".to_owned());
    }
    lines
}

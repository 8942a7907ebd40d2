//! `decurion config`: the values in force and where they come from, the schema of the file, and a value that a person sets
//! or removes.

use decurion_config::{Keeper, Layer, LoadRequest, Loaded, NewSetting, SettingKey};
use serde_json::json;

use crate::args::{ConfigCommand, ScopeWord};
use crate::report::{FAILED, Failure, USAGE, note, visible};
use crate::wire;

/// Prints the settings of the working directory, or changes one.
pub fn run(command: &ConfigCommand) -> Result<u8, Failure> {
    match command {
        ConfigCommand::Show { key, origin, json } => show(key.as_deref(), *origin, *json),
        ConfigCommand::Schema => {
            say!("{:#}", decurion_config::settings_schema());
            Ok(0)
        }
        ConfigCommand::Set { key, value, scope } => set(key, value, *scope),
        ConfigCommand::Unset { key, scope } => unset(key, *scope),
    }
}

fn show(key: Option<&str>, origin: bool, json: bool) -> Result<u8, Failure> {
    let key = key.map(parse).transpose()?;
    if let Some(problem) = key.as_ref().and_then(SettingKey::problem) {
        return Err(Failure::usage(visible(&problem)));
    }
    let name = key.as_ref().map(SettingKey::name);
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::examine(&LoadRequest::new(cwd, environment))?;
    for problem in loaded.invalid.iter().chain(&loaded.broken) {
        note(format!("not in effect: {problem}"));
    }
    for warning in &loaded.warnings {
        note(warning);
    }
    let mut rows = loaded.rows();
    if let Some(name) = &name {
        let is_below = |key: &str| {
            key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        rows.retain(|row| is_below(&row.key));
        if rows.is_empty() {
            note(format!("{}: not set", visible(name)));
            return Ok(FAILED);
        }
    }
    for row in rows {
        if json {
            let mut line = json!({"key": row.key, "value": row.value});
            if origin {
                line["origin"] = json!(row.origin.to_string());
            }
            say!("{line}");
        } else {
            say!("{}", row.line(origin));
        }
    }
    Ok(if loaded.invalid.is_empty() { 0 } else { USAGE })
}

fn parse(key: &str) -> Result<SettingKey, Failure> {
    SettingKey::parse(key).map_err(|problem| Failure::usage(visible(&problem)))
}

fn layer(scope: ScopeWord) -> Layer {
    match scope {
        ScopeWord::User => Layer::User,
        ScopeWord::Project => Layer::Project,
        ScopeWord::Local => Layer::Local,
    }
}

fn set(key: &str, value: &str, scope: ScopeWord) -> Result<u8, Failure> {
    let layer = layer(scope);
    let setting =
        NewSetting::parse(key, value, layer).map_err(|problem| Failure::usage(visible(&problem)))?;
    let (cwd, environment) = wire::surroundings()?;
    // What is wrong elsewhere in the file is no reason not to change this.
    let request = LoadRequest::new(cwd, environment);
    let loaded = decurion_config::examine(&request)?;
    let kept = Keeper::new(&loaded).keep_setting(layer, &setting);
    let kept = kept.map_err(|error| Failure::failed(visible(&error.to_string())))?;
    say!("{}: set in {}", visible(key), kept.file);
    if let Some(remark) = kept.remark {
        note(remark);
    }
    let now = decurion_config::examine(&request)?;
    if let Some(origin) = now.origin(&parse(key)?.name()).filter(|origin| origin.layer > layer) {
        note(format!("{} has no effect here: {origin} sets it too, and comes first", visible(key)));
    }
    Ok(0)
}

fn unset(key: &str, scope: ScopeWord) -> Result<u8, Failure> {
    let setting = parse(key)?;
    let (cwd, environment) = wire::surroundings()?;
    let request = LoadRequest::new(cwd, environment);
    let examine = || -> Result<Loaded, Failure> { Ok(decurion_config::examine(&request)?) };
    let removed = Keeper::new(&examine()?).remove_setting(layer(scope), &setting);
    let (kept, was_there) = removed.map_err(|error| Failure::failed(visible(&error.to_string())))?;
    let name = visible(&setting.name());
    if !was_there {
        note(format!("{name}: not set in {}", kept.file));
        return Ok(FAILED);
    }
    say!("{name}: removed from {}", kept.file);
    if let Some(origin) = examine()?.origin(&setting.name()).filter(|origin| origin.layer != Layer::Default) {
        note(format!("{name} is still set in {origin}"));
    }
    Ok(0)
}

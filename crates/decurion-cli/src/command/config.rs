//! `decurion config`: the values in force and where they come from, the schema of the file, and a value that a person sets
//! or removes.

use decurion_config::{Keeper, Layer, LoadRequest, NewSetting};
use serde_json::json;

use crate::args::{ConfigCommand, ScopeWord};
use crate::report::{Failure, USAGE, note, visible};
use crate::wire;

/// Prints the settings of the working directory, or changes one.
pub fn run(command: &ConfigCommand) -> Result<u8, Failure> {
    match command {
        ConfigCommand::Show { origin, json } => show(*origin, *json),
        ConfigCommand::Schema => {
            say!("{:#}", decurion_config::settings_schema());
            Ok(0)
        }
        ConfigCommand::Set { key, value, scope } => set(key, value, *scope),
    }
}

fn show(origin: bool, json: bool) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::examine(&LoadRequest::new(cwd, environment))?;
    for problem in loaded.invalid.iter().chain(&loaded.broken) {
        note(format!("not in effect: {problem}"));
    }
    for warning in &loaded.warnings {
        note(warning);
    }
    for row in loaded.rows() {
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

fn set(key: &str, value: &str, scope: ScopeWord) -> Result<u8, Failure> {
    let layer = match scope {
        ScopeWord::User => Layer::User,
        ScopeWord::Project => Layer::Project,
        ScopeWord::Local => Layer::Local,
    };
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
    if let Some(origin) = now.origin(key).filter(|origin| origin.layer > layer) {
        note(format!("{} has no effect here: {origin} sets it too, and comes first", visible(key)));
    }
    Ok(0)
}

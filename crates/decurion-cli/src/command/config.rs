//! `decurion config show`: every value in force, and where it comes from.

use decurion_config::LoadRequest;
use serde_json::json;

use crate::args::ConfigCommand;
use crate::report::{Failure, note};
use crate::wire;

/// Prints the settings of the working directory.
pub fn run(command: &ConfigCommand) -> Result<u8, Failure> {
    let ConfigCommand::Show { origin, json } = command;
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd, environment))?;
    for warning in &loaded.warnings {
        note(warning);
    }
    for row in loaded.rows() {
        if *json {
            let mut line = json!({"key": row.key, "value": row.value});
            if *origin {
                line["origin"] = json!(row.origin.to_string());
            }
            say!("{line}");
        } else {
            say!("{}", row.line(*origin));
        }
    }
    Ok(0)
}

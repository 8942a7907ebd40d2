//! `decurion trust`: lets this folder's own settings take full effect, once a person has seen what they say and
//! agreed to it.

use decurion_config::{LoadRequest, ProjectParts, Trust, TrustState};

use crate::args::TrustArgs;
use crate::consent::agreed;
use crate::report::{Failure, visible};
use crate::wire;

/// Trusts the project of the working directory, shows what that would mean, or takes it back.
pub fn run(args: &TrustArgs) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let request = LoadRequest::new(cwd, environment);
    let loaded = decurion_config::inspect(&request)?;
    for warning in &loaded.warnings {
        crate::report::note(warning);
    }
    let root = loaded.paths.root.clone();
    let (mut trust, _) = Trust::open(&loaded.paths);
    let failed = |error: decurion_config::trust::TrustError| Failure::usage(error.to_string());
    if args.revoke {
        let was = trust.revoke(&root).map_err(failed)?;
        say!("{root}: {}", if was { "no longer trusted" } else { "was not trusted" });
        return Ok(0);
    }
    for line in lines(&loaded.project_parts) {
        say!("{line}");
    }
    if args.list {
        say!("{root}: {}", standing(&trust.check(&root, &loaded.project_parts)));
        return Ok(0);
    }
    agreed(args.yes, &format!("Trust {root}, and let git run what its configuration names?"))?;
    trust.trust_folder(&root, &loaded.project_parts).map_err(failed)?;
    say!("{root}: trusted. You will be asked again if any of this changes.");
    Ok(0)
}

/// Each part with everything it says: who agrees should have seen that.
pub fn lines(parts: &ProjectParts) -> Vec<String> {
    let mut lines = Vec::new();
    for part in parts.parts() {
        let (key, origin) = (visible(&part.key), visible(&part.origin.to_string()));
        lines.push(format!("{}  {key}  ({origin})", part.kind.name()));
        lines.extend(
            part.said.iter().map(|(what, written)| format!("  {:<13} {}", visible(what), visible(written))),
        );
    }
    let all: usize = parts.counts().values().sum();
    match all - parts.parts().len() {
        0 if all == 0 => {
            lines.push("Nothing in this folder's settings runs programs or grants permissions.".to_owned());
        }
        0 => {}
        more => lines.push(format!("…and {more} more")),
    }
    lines
}

fn standing(state: &TrustState) -> &'static str {
    match state {
        TrustState::Trusted => "trusted",
        TrustState::Untrusted { changed: true, .. } => "was trusted, but has changed since",
        TrustState::Untrusted { .. } => "not trusted",
    }
}

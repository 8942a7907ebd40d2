//! `decurion trust`: lets this folder's own settings take full effect, after showing which parts wait.

use decurion_config::{LoadRequest, Trust, TrustMode};

use crate::report::Failure;
use crate::wire;

/// Trusts the project of the working directory, or takes that back.
pub fn run(revoke: bool) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let request = LoadRequest { trust: TrustMode::Refused, ..LoadRequest::new(cwd, environment) };
    let loaded = decurion_config::load(&request)?;
    let root = loaded.paths.root.clone();
    let (mut trust, warning) = Trust::open(&loaded.paths);
    if let Some(warning) = warning {
        crate::report::note(warning);
    }
    let failed = |error: decurion_config::trust::TrustError| Failure::usage(error.to_string());
    if revoke {
        let was = trust.revoke(&root).map_err(failed)?;
        say!("{root}: {}", if was { "no longer trusted" } else { "was not trusted" });
        return Ok(0);
    }
    for part in loaded.project_parts.parts() {
        say!("  {} {} ({})", part.kind.name(), part.key, part.origin);
    }
    trust.trust_folder(&root, &loaded.project_parts).map_err(failed)?;
    say!("{root}: trusted as it is now; a change of these parts asks again");
    Ok(0)
}

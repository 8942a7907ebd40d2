//! Files of a project that the user's own answers write ("always", `mcp add`). Takes a file and its text before and after
//! such a change; records in the state folder that what waits for trust in it is the user's, so that it holds without
//! trust in the folder, and only as long as nothing else changes it.

use camino::Utf8Path;

use crate::origin::Layer;
use crate::paths::Paths;
use crate::trust::{ProjectParts, Trust, TrustError};
use crate::{read, up_to_project};

/// The layers by which it is told whose a file is.
const EVERY_LAYER: [Layer; 3] = [Layer::User, Layer::Project, Layer::Local];

/// How a file of the project stood with the user before something was written into it.
#[derive(Default)]
pub(crate) struct Before {
    /// That of the file's parts which wait for trust; none where it has no such parts.
    fingerprint: Option<String>,
    /// Whether these are only what the user's own answers have written.
    is_own: bool,
    /// All parts of the project, where the user has agreed to them.
    agreed: Option<ProjectParts>,
}

impl Before {
    /// With this text in the file, which is the one that is changed: nothing that stands there later is vouched for.
    pub fn of(paths: &Paths, file: &Utf8Path, text: Option<&str>) -> Self {
        let text = text.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
        let Some(parts) = parts(paths, Some((file, text))) else { return Self::default() };
        let (trust, _) = Trust::open(paths);
        let fingerprint = parts.fingerprints().remove(name(paths, file));
        let is_own = fingerprint
            .as_deref()
            .is_none_or(|fingerprint| trust.is_own(&paths.root, name(paths, file), fingerprint));
        let is_trusted = trust.check(&paths.root, &parts).is_trusted();
        Self { fingerprint, is_own, agreed: is_trusted.then_some(parts) }
    }

    /// To be called before a text is written: what was there and what comes are both the user's, so that their answers
    /// hold wherever a crash comes. A problem is told by [`Self::written`].
    pub fn about_to_write(&self, paths: &Paths, file: &Utf8Path, text: &str) {
        if self.is_own {
            let _ = record(paths, file, text, self.fingerprint.as_deref());
        }
    }

    /// To be called once a text is written; says whether it holds in later sessions. A file in which nothing waited for
    /// trust but what the user's own answers wrote stays theirs. Who agreed to the folder as it was and adds something
    /// agrees to that too; what anything else changed meanwhile is not agreed to.
    pub fn written(&self, paths: &Paths, file: &Utf8Path, written: &str) -> Result<bool, TrustError> {
        if self.is_own {
            return record(paths, file, written, None).map(|()| true);
        }
        let (Some(agreed), Some(after)) = (&self.agreed, parts(paths, None)) else { return Ok(false) };
        let others = |parts: &ProjectParts| {
            let mut files = parts.fingerprints();
            files.remove(name(paths, file));
            files
        };
        let now = read::whole(file, crate::jsonc::MAX_BYTES).ok().flatten();
        if now.as_deref() != Some(written.as_bytes()) || others(agreed) != others(&after) {
            return Ok(false);
        }
        let (mut trust, _) = Trust::open(paths);
        trust.trust_folder(&paths.root, &after).map(|()| true)
    }
}

/// All that waits for trust in the project, the user's own included; with one file taken to hold this text.
fn parts(paths: &Paths, instead: Option<(&Utf8Path, &str)>) -> Option<ProjectParts> {
    let none = Trust::default();
    let (loader, project) = up_to_project(paths, &EVERY_LAYER, &none, instead);
    loader.invalid.is_empty().then_some(project.parts)
}

/// Records that a file with this text holds what the user's own answers have written, and that one with this other
/// fingerprint does.
fn record(paths: &Paths, file: &Utf8Path, text: &str, other: Option<&str>) -> Result<(), TrustError> {
    let mut fingerprints: Vec<String> = other.map(str::to_owned).into_iter().collect();
    let after = parts(paths, Some((file, text)));
    fingerprints.extend(after.and_then(|parts| parts.fingerprints().remove(name(paths, file))));
    let (mut trust, _) = Trust::open(paths);
    trust.record_own(&paths.root, name(paths, file), fingerprints)
}

/// What a file is called in the record of trust.
fn name<'a>(paths: &Paths, file: &'a Utf8Path) -> &'a str {
    file.strip_prefix(&paths.root).unwrap_or(file).as_str()
}

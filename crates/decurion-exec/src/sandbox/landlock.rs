//! Landlock rules for one command. Takes its sandbox, gives a ruleset that the command's process applies to itself
//! just before it becomes the program.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};

use super::{Form, Sandbox};

/// The newest version whose rights are used; older kernels enforce those that they know.
const NEWEST: ABI = ABI::V6;
/// Devices that any program may use.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// The ruleset. `None` where the kernel has no Landlock.
pub(crate) fn ruleset(sandbox: &Sandbox, form: Form) -> Result<Option<OwnedFd>, RulesetError> {
    let all = AccessFs::from_all(NEWEST);
    let reading = AccessFs::from_read(NEWEST);
    let devices = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?;
    rules = match form {
        Form::Namespaces => allow(rules, Path::new("/"), reading)?,
        Form::Landlock => allow_reading(rules, sandbox)?,
    };
    let changing = all & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    for path in sandbox.writable.iter().chain(&sandbox.tmp) {
        rules = allow(rules, path, changing)?;
    }
    if form == Form::Namespaces && sandbox.tmp.is_some() {
        for path in super::mounts::TEMPORARY {
            rules = allow(rules, Path::new(path), changing)?;
        }
    }
    for path in DEVICES {
        rules = allow(rules, Path::new(path), devices)?;
    }
    Ok(rules.into())
}

/// Whether the kernel enforces such rules.
pub(crate) fn is_supported() -> bool {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create);
    ruleset.is_ok_and(|ruleset| Option::<OwnedFd>::from(ruleset).is_some())
}

/// What is not there needs no rule.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(place) = PathFd::new(path) else { return Ok(rules) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(place, access))
}

/// Allows reading everything but what is hidden. Landlock has no rule that takes away, so in each folder above a
/// hidden path all others are allowed one by one.
fn allow_reading(mut rules: RulesetCreated, sandbox: &Sandbox) -> Result<RulesetCreated, RulesetError> {
    let names_and_programs = AccessFs::ReadDir | AccessFs::Execute;
    rules = allow(rules, Path::new("/"), names_and_programs)?;
    for path in readable(&sandbox.hidden) {
        rules = allow(rules, &path, AccessFs::ReadFile.into())?;
    }
    Ok(rules)
}

/// The shortest list of paths that covers everything but these.
fn readable(hidden: &[PathBuf]) -> Vec<PathBuf> {
    let above: BTreeSet<&Path> = hidden.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    if above.is_empty() {
        return vec![PathBuf::from("/")];
    }
    let mut found = Vec::new();
    for folder in &above {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let others = entries.map(|entry| entry.path());
        found.extend(others.filter(|path| !above.contains(path.as_path()) && !hidden.contains(path)));
    }
    found
}

//! Masked secrets of a session. Takes secrets with their hosts, gives what a sandbox needs so that its commands can use
//! them and not read them: variables with sentinels, and a file with the authority that signs for these hosts.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_egress::{Masked, MaskedError, Secret, environment_for_ca, system_roots_pem};
use decurion_exec::Sandbox;

use crate::sandbox::PrivateFolder;

/// Name of the file with certificates.
const BUNDLE: &str = "ca.pem";

/// The secrets of a session.
pub struct Secrets {
    masked: Arc<Masked>,
    hosts: Vec<String>,
    temporary: Utf8PathBuf,
    more_roots: Vec<OsString>,
    /// Made at the first use.
    folder: OnceLock<PrivateFolder>,
}

impl Secrets {
    /// Masks these secrets; a file with certificates is made in a private folder below `temporary`. The files that the
    /// variables of `environment` name as certificates are part of it, because commands get this file instead.
    pub fn new(
        secrets: Vec<Secret>,
        now: SystemTime,
        temporary: &Utf8Path,
        environment: &[(OsString, OsString)],
    ) -> Result<Self, MaskedError> {
        let hosts = secrets.iter().flat_map(|secret| secret.hosts.iter().cloned()).collect();
        let names = environment_for_ca("");
        let named = |name: &OsString| names.iter().any(|(known, _)| name == known);
        let files = environment.iter().filter(|(name, _)| named(name)).map(|(_, file)| file.clone());
        let mut more_roots: Vec<OsString> = files.collect();
        more_roots.sort();
        more_roots.dedup();
        Ok(Self {
            masked: Arc::new(Masked::new(secrets, "", now)?),
            hosts,
            temporary: temporary.to_owned(),
            more_roots,
            folder: OnceLock::new(),
        })
    }

    pub(super) fn masked(&self) -> Arc<Masked> {
        Arc::clone(&self.masked)
    }

    /// The hosts that may get a secret. Naming them allows commands to reach them.
    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The variables of a command in this sandbox; the sandbox is made to show the file that they name.
    pub(super) fn equip(&self, sandbox: &mut Sandbox) -> io::Result<Vec<(OsString, OsString)>> {
        let native = |(name, value): (String, String)| (name.into(), value.into());
        let mut variables: Vec<(OsString, OsString)> =
            self.masked.environment().into_iter().map(native).collect();
        if sandbox.network {
            let file = self.bundle()?;
            let named = environment_for_ca(file.as_str()).into_iter();
            variables.extend(named.map(|(name, value)| (name.into(), value.into())));
            sandbox.visible.push(file.into());
        }
        Ok(variables)
    }

    /// The file with certificates.
    fn bundle(&self) -> io::Result<Utf8PathBuf> {
        if self.folder.get().is_none() {
            let folder = PrivateFolder::make(&self.temporary)?;
            let mut roots = system_roots_pem();
            for file in &self.more_roots {
                // Programs would say themselves that it cannot be read.
                roots.push_str(&std::fs::read_to_string(file).unwrap_or_default());
                roots.push('\n');
            }
            let path = folder.path().join(BUNDLE);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(self.masked.bundle_pem(&roots).as_bytes())?;
            // If another was faster, this one is removed again.
            let _ = self.folder.set(folder);
        }
        let folder = self.folder.get().ok_or(io::ErrorKind::NotFound)?;
        Ok(folder.path().join(BUNDLE))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

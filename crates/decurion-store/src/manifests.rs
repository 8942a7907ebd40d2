//! What MCP servers offered when they were approved or first used, and the logins there. Takes a manifest or a
//! login under the fingerprint of a server's declaration, gives it back to any later session. One small file
//! each, for its owner alone.

use std::io;

use camino::Utf8PathBuf;
use decurion_protocol::id::is_name;
use decurion_protocol::mcp::{Manifest, Manifests};

use crate::folder::DirHandle;

const FOLDER: &str = "mcp";
/// The largest that is read back.
const LIMIT: u64 = 64 << 20;

/// The manifests in a state folder.
#[derive(Clone, Debug)]
pub struct ManifestFolder {
    home: Utf8PathBuf,
}

impl ManifestFolder {
    /// Those of this state folder.
    pub fn new(home: impl Into<Utf8PathBuf>) -> Self {
        Self { home: home.into() }
    }

    /// The login at a server, as it was kept.
    pub fn login(&self, hash: &str) -> Option<Vec<u8>> {
        self.folder(false).ok()?.read(&login_name(hash).ok()?, LIMIT).ok()
    }

    /// Keeps a login in place of what was kept before.
    pub fn keep_login(&self, hash: &str, bytes: &[u8]) -> io::Result<()> {
        self.folder(true)?.replace(&login_name(hash)?, bytes).map(drop)
    }

    /// Forgets a login; says whether there was one.
    pub fn forget_login(&self, hash: &str) -> io::Result<bool> {
        let name = login_name(hash)?;
        let Ok(folder) = self.folder(false) else { return Ok(false) };
        if !folder.has(&name) {
            return Ok(false);
        }
        folder.remove(&name).map(|()| true)
    }

    fn folder(&self, create: bool) -> io::Result<DirHandle> {
        DirHandle::root(&self.home, create)?.sub(FOLDER, create)
    }

    fn name(hash: &str) -> io::Result<String> {
        if is_name(hash) {
            Ok(format!("{hash}.json"))
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a fingerprint"))
        }
    }
}

fn login_name(hash: &str) -> io::Result<String> {
    ManifestFolder::name(hash).map(|name| name.replace(".json", ".login"))
}

impl Manifests for ManifestFolder {
    fn load(&self, hash: &str) -> Option<Manifest> {
        let bytes = self.folder(false).ok()?.read(&Self::name(hash).ok()?, LIMIT).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn keep(&self, hash: &str, manifest: &Manifest) -> io::Result<()> {
        let name = Self::name(hash)?;
        let bytes = serde_json::to_vec(manifest)?;
        self.folder(true)?.replace(&name, &bytes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::mcp::OfferedTool;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_is_kept_comes_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let home = Utf8PathBuf::from_path_buf(folder.path().join("home")).unwrap();
        let manifests = ManifestFolder::new(&home);
        assert_eq!(manifests.load("ab12"), None);
        let tools = vec![OfferedTool { name: "x".into(), ..OfferedTool::default() }];
        let manifest = Manifest { tools, ..Manifest::default() };
        manifests.keep("ab12", &manifest).unwrap();
        assert_eq!(manifests.load("ab12"), Some(manifest));
        let file = home.join("mcp/ab12.json");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        manifests.keep("ab12", &Manifest::default()).unwrap();
        assert_eq!(manifests.load("ab12"), Some(Manifest::default()));
        assert_eq!((manifests.login("ab12"), manifests.forget_login("ab12").unwrap()), (None, false));
        manifests.keep_login("ab12", b"secret").unwrap();
        assert_eq!(manifests.login("ab12").unwrap(), b"secret");
        let mode = std::fs::metadata(home.join("mcp/ab12.login")).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, manifests.forget_login("ab12").unwrap()), (0o600, true));
        assert_eq!(manifests.login("ab12"), None);
        assert!(manifests.keep("../ab", &Manifest::default()).is_err());
        std::fs::write(&file, "{").unwrap();
        assert_eq!(manifests.load("ab12"), None);
    }
}

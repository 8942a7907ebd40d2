//! What was in a working directory before the first command, as a session keeps it in case it is killed. Takes it and
//! gives bytes, and the other way round for the next session.

use std::ffi::OsString;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::{Found, Identity, identity};

/// The names of files need not be text.
#[derive(Serialize, Deserialize)]
struct Saved {
    folder: Utf8PathBuf,
    /// The folder, and what git found in it.
    place: Option<Identity>,
    git: Option<Identity>,
    /// The repositories that git looked into from the top of the checkout.
    before: Vec<Utf8PathBuf>,
    repositories: Vec<Utf8PathBuf>,
    protected: Vec<Utf8PathBuf>,
    programs: Vec<String>,
    files: Vec<(OsString, OsString)>,
    read_only: Vec<Utf8PathBuf>,
    unnamed: Vec<OsString>,
    is_cut: bool,
}

pub(super) fn bytes_of(found: &Found, before: &[Utf8PathBuf]) -> Option<Vec<u8>> {
    let files = found.files.iter().map(|(path, text)| (path.clone().into_os_string(), text.clone()));
    let saved = Saved {
        folder: found.folder.clone(),
        place: identity(&found.folder),
        git: identity(&found.folder.join(".git")),
        before: before.to_vec(),
        repositories: found.repositories.iter().cloned().collect(),
        protected: found.protected.iter().cloned().collect(),
        programs: found.programs.iter().cloned().collect(),
        files: files.collect(),
        read_only: found.read_only.iter().cloned().collect(),
        unnamed: found.unnamed.iter().map(|path| path.clone().into_os_string()).collect(),
        is_cut: found.is_cut,
    };
    serde_json::to_vec(&saved).ok()
}

/// What a session has kept.
pub(super) enum Record {
    /// What was in the folder, and the repositories that git looked into.
    Of(Box<Found>, Vec<Utf8PathBuf>),
    /// It is about another folder.
    OfOtherFolder,
    /// Another version has kept it, or the folder or its repository has been replaced since, which no command can do: it
    /// says nothing of what is there now.
    Useless,
}

pub(super) fn read(bytes: &[u8], folder: &Utf8Path) -> Record {
    let Ok(saved) = serde_json::from_slice::<Saved>(bytes) else { return Record::Useless };
    if saved.folder != folder {
        return Record::OfOtherFolder;
    }
    // Commands can make a repository where there was none.
    let is_replaced = saved.git.is_some() && saved.git != identity(&folder.join(".git"));
    if is_replaced || saved.place != identity(folder) {
        return Record::Useless;
    }
    let found = Found {
        folder: saved.folder,
        repositories: saved.repositories.into_iter().collect(),
        protected: saved.protected.into_iter().collect(),
        programs: saved.programs.into_iter().collect(),
        files: saved.files.into_iter().map(|(path, text)| (path.into(), text)).collect(),
        read_only: saved.read_only.into_iter().collect(),
        unnamed: saved.unnamed.into_iter().map(Into::into).collect(),
        is_cut: saved.is_cut,
    };
    Record::Of(Box::new(found), saved.before)
}

/// Whether no session can look at a folder by what was kept of it: the folder is gone, or another version has kept it.
pub(super) fn is_useless(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Saved>(bytes).map_or(true, |saved| identity(&saved.folder).is_none())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn what_was_kept_is_the_same_when_it_is_read() {
        let odd = || OsString::from_vec(b"/project/.git/\xff".to_vec());
        let found = Found {
            folder: "/no/project".into(),
            repositories: ["/project/.git".into()].into(),
            protected: ["/project/.git/modules/m".into()].into(),
            programs: ["exec make".to_owned()].into(),
            files: [(odd().into(), "../x".into())].into(),
            read_only: ["/project/n/.git".into()].into(),
            unnamed: [odd().into()].into(),
            is_cut: true,
        };
        let before = ["/project/n".into()];
        let bytes = bytes_of(&found, &before).unwrap();
        let Record::Of(read_back, again) = read(&bytes, "/no/project".into()) else { panic!("it was read") };
        assert_eq!(format!("{read_back:?}"), format!("{found:?}"));
        assert_eq!(again, before);
        assert!(matches!(read(&bytes, "/other".into()), Record::OfOtherFolder));
        assert!(matches!(read(b"{}", "/no/project".into()), Record::Useless));
        assert!(is_useless(&bytes) && is_useless(b"{}"));
        let there = Found { folder: "/".into(), ..found };
        assert!(!is_useless(&bytes_of(&there, &before).unwrap()));
    }
}

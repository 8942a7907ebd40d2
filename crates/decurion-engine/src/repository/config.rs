//! A repository's own configuration, read strictly. Takes the text of one file; gives what matters of it, or why it
//! could make git run a program.
//!
//! The list is of what is harmless: what is not on it may name a program, now or in a later git. What git itself
//! and common tools write into a clone is on it.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

/// What is known of a repository's settings.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Where the hooks may be, if that is said; relative to the checkout.
    pub hooks: Vec<Utf8PathBuf>,
    /// How many bytes the name of an object has, if that is said.
    pub hash: Option<usize>,
    /// Whether they say that it is checked out where it was found.
    pub stands_here: bool,
    /// The addresses of other repositories.
    pub addresses: Vec<String>,
    /// What names another repository, mostly by the name that it has in these settings.
    pub remotes: Vec<String>,
    /// If given, [`USUAL`] settings are harmless too, and those of other programs: they run nothing, but show what a person
    /// may not want to be shown without a question, or run something only where it is asked for by name. A checkout must lie
    /// in this folder then.
    pub usual: Option<Utf8PathBuf>,
}

/// What git and people write into a repository that they work in, by section and name.
const USUAL: [(&str, &str); 7] = [
    ("alias", "*"),
    ("remote", "promisor"),
    ("remote", "partialclonefilter"),
    ("extensions", "partialclone"),
    ("core", "excludesfile"),
    ("commit", "template"),
    ("mailmap", "file"),
];

/// Names that are harmless whatever their value, by section. A `*` stands for every name.
const HARMLESS: &[(&str, &str)] = &[
    (
        "core",
        "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol \
         safecrlf quotepath abbrev compression loosecompression bigfilethreshold untrackedcache sharedrepository \
         protecthfs protectntfs longpaths fscache preloadindex commitgraph multipackindex trustctime checkstat \
         whitespace commentchar hidedotfiles sparsecheckout sparsecheckoutcone usereplacerefs fsyncobjectfiles fsync \
         deltabasecachelimit packedgitlimit packedgitwindowsize splitindex",
    ),
    ("user", "name email signingkey useconfigonly"),
    ("author", "name email"),
    ("committer", "name email"),
    ("init", "defaultbranch"),
    ("pull", "rebase ff"),
    ("push", "default autosetupremote followtags"),
    ("fetch", "prune prunetags parallel writecommitgraph showforcedupdates output"),
    ("rebase", "autosquash autostash updaterefs"),
    ("merge", "conflictstyle ff renames"),
    ("rerere", "enabled autoupdate"),
    ("gc", "auto autodetach autopacklimit pruneexpire reflogexpire reflogexpireunreachable"),
    ("maintenance", "auto strategy"),
    ("feature", "manyfiles experimental"),
    ("index", "version threads skiphash sparse recordendofindexentries recordoffsettable"),
    ("pack", "threads windowmemory packsizelimit writereverseindex usesparse"),
    ("commit", "gpgsign verbose status"),
    ("tag", "gpgsign sort"),
    ("status", "showuntrackedfiles short branch relativepaths aheadbehind renames renamelimit showstash"),
    (
        "diff",
        "renames renamelimit algorithm mnemonicprefix noprefix colormoved colormovedws context interhunkcontext \
         indentheuristic wordregex relative statgraphwidth suppressblankempty",
    ),
    ("log", "date decorate abbrevcommit follow showroot"),
    ("grep", "linenumber column fullname patterntype extendedregexp"),
    ("blame", "date coloring showroot showemail"),
    ("branch", "sort autosetupmerge autosetuprebase"),
    ("checkout", "defaultremote guess"),
    ("http", "postbuffer version sslverify extraheader lowspeedlimit lowspeedtime"),
    ("lfs", "repositoryformatversion"),
    ("remote", "pushdefault"),
    ("submodule", "active fetchjobs"),
    ("color", "*"),
    ("advice", "*"),
];

/// The same for sections with a name of their own (`[remote "origin"]`).
const HARMLESS_NAMED: &[(&str, &str)] = &[
    (
        "remote",
        "url fetch pushurl push tagopt mirror prune prunetags skipfetchall skipdefaultupdate followremotehead gh-resolved",
    ),
    (
        "branch",
        "remote merge rebase pushremote description vscode-merge-base gh-merge-base github-pr-owner-number \
         base",
    ),
    ("submodule", "url active path branch ignore fetchrecursesubmodules shallow"),
    ("diff", "xfuncname funcname binary wordregex"),
    ("http", "extraheader sslverify"),
    ("lfs", "access locksverify"),
    ("color", "*"),
];

/// Settings that are harmless with these very values. They are what `git lfs install --local` and `git clone` write.
const HARMLESS_VALUES: &[(&str, &[&str])] = &[
    ("filter.lfs.clean", &["git-lfs clean -- %f"]),
    ("filter.lfs.smudge", &["git-lfs smudge -- %f"]),
    ("filter.lfs.process", &["git-lfs filter-process"]),
    ("filter.lfs.required", &["true", "false"]),
    ("core.fsmonitor", &["true", "false"]),
    ("blame.ignorerevsfile", &[".git-blame-ignore-revs"]),
    ("extensions.worktreeconfig", &["true", "false"]),
    ("extensions.refstorage", &["files", "reftable"]),
];

/// The sections that git and its usual extensions read. What another one says is for other programs.
const READ_BY_GIT: &str = "add advice alias am annex apply attr author blame branch browser bundle checkout clean clone \
     color column commit commitgraph committer completion core credential credentialcache diff difftool extensions fastimport \
     feature fetch filter format fsck fsmonitor gc gitcvs gitweb gpg grep gui guitool help hook http i18n imap include \
     includeif index init instaweb interactive lfs log lsrefs mailinfo mailmap maintenance man merge mergetool notes pack \
     pager pretty promisor protocol pull push rebase receive reftable remote remotes repack rerere revert safe sendemail \
     sendpack sequence showbranch sideband sparse splitindex ssh stash status submodule svn svn-remote tag tar trace2 trailer \
     transfer uploadarchive uploadpack url user versionsort web worktree";

impl Settings {
    /// Adds what a file says; the error is what in it could run a program, or is not understood. `top` is the
    /// checkout and `own` the folder of git for it.
    pub fn read(&mut self, text: &str, top: &Utf8Path, own: &Utf8Path) -> Result<(), String> {
        let mut section = (String::new(), None);
        for line in text.strip_prefix('\u{feff}').unwrap_or(text).split('\n') {
            let line = line.strip_suffix('\r').unwrap_or(line);
            let odd = || format!("a line of its settings is not understood: {:.60}", line.escape_debug());
            // What goes on in the next line could hide a setting there.
            if line.ends_with('\\') || line.chars().any(|c| c.is_control() && c != '\t') {
                return Err(odd());
            }
            let line = line.trim_matches([' ', '\t']);
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if line.starts_with('[') {
                section = header(line).ok_or_else(odd)?;
                continue;
            }
            let (name, value) = line.split_once('=').unwrap_or((line, "true"));
            let name = name.trim_end_matches([' ', '\t']).to_ascii_lowercase();
            if section.0.is_empty() || !is_name(&name) {
                return Err(odd());
            }
            let value = value.trim_matches([' ', '\t']);
            self.setting(&section, &name, value, (top, own))?;
        }
        Ok(())
    }

    fn setting(
        &mut self,
        (section, named): &(String, Option<String>),
        name: &str,
        value: &str,
        (top, own): (&Utf8Path, &Utf8Path),
    ) -> Result<(), String> {
        let key = match named {
            Some(named) => format!("{section}.{named}.{name}"),
            None => format!("{section}.{name}"),
        };
        match (section.as_str(), name) {
            ("remote" | "submodule", "url" | "pushurl") => self.addresses.push(value.to_owned()),
            ("branch", "remote" | "pushremote") | ("remote", "pushdefault") => {
                self.remotes.push(value.to_owned());
            }
            _ => {}
        }
        let refused = || Err(format!("its settings have {}, which may name a program", key.escape_debug()));
        match key.as_str() {
            "extensions.objectformat" => {
                let hash = match value {
                    "sha1" => 20,
                    "sha256" => 32,
                    _ => return refused(),
                };
                return if *self.hash.get_or_insert(hash) == hash { Ok(()) } else { refused() };
            }
            "core.hookspath" if is_plain_path(value) => {
                self.hooks.push(value.into());
                return Ok(());
            }
            // In a nested repository it says where that is checked out.
            "core.worktree" if leads_to(own, value, top) => {
                self.stands_here = true;
                return Ok(());
            }
            // Git writes files there.
            "core.worktree" if self.usual.as_ref().is_some_and(|folder| lies_in(own, value, folder)) => {
                return Ok(());
            }
            // `!` before it would be a command.
            _ if section == "submodule" && name == "update" && named.is_some() => {
                let known = ["checkout", "rebase", "merge", "none"].contains(&value);
                return if known { Ok(()) } else { refused() };
            }
            _ => {}
        }
        let with_value = HARMLESS_VALUES.iter().any(|(known, values)| {
            *known == key && values.iter().any(|known| *known == value || format!("\"{known}\"") == value)
        });
        let is_read = || READ_BY_GIT.split_ascii_whitespace().any(|known| known == section);
        let is_usual =
            || USUAL.iter().any(|(known, names)| known == section && (*names == "*" || *names == name));
        let usual = self.usual.is_some() && (is_usual() || !is_read());
        if with_value || usual || is_harmless(section, named.is_some(), name) { Ok(()) } else { refused() }
    }
}

/// Whether a setting names no program whatever its value is. `named` is whether its section has a name of its own.
pub(super) fn is_harmless(section: &str, named: bool, name: &str) -> bool {
    let list = if named { HARMLESS_NAMED } else { HARMLESS };
    list.iter().any(|(known, names)| {
        *known == section && (*names == "*" || names.split_ascii_whitespace().any(|known| known == name))
    })
}

/// `[section]` or `[section "name"]`.
fn header(line: &str) -> Option<(String, Option<String>)> {
    let inner = line.strip_prefix('[')?.strip_suffix(']')?;
    let (section, named) = match inner.split_once('"') {
        None => (inner, None),
        Some((section, rest)) => {
            let named = rest.strip_suffix('"')?;
            let section = section.strip_suffix([' ', '\t'])?.trim_end_matches([' ', '\t']);
            if named.contains(['"', '\\']) {
                return None;
            }
            (section, Some(named.to_owned()))
        }
    };
    is_name(section).then(|| (section.to_ascii_lowercase(), named))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Whether a value is the path that it looks like, without quotes, comments and what git puts in for a mark.
fn is_plain_path(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

/// Whether a value names a place in a folder where git may write, perhaps one that does not exist, and no link on the way
/// leads to another one.
fn lies_in(from: &Utf8Path, value: &str, folder: &Utf8Path) -> bool {
    let value = value.trim_matches('"');
    let parts = Utf8Path::new(value).components();
    // Up only at the beginning, so that no link is left out.
    let mut down = parts.skip_while(|part| *part == Utf8Component::ParentDir);
    if value.is_empty()
        || value.contains(['"', '\\', '#', ';'])
        || down.any(|part| part == Utf8Component::ParentDir)
    {
        return false;
    }
    let Ok(from) = from.canonicalize_utf8() else { return false };
    let path = decurion_tools::bash::normal(&from.join(value));
    let place = path.ancestors().find_map(|above| {
        let rest = path.strip_prefix(above).ok()?;
        Some(above.canonicalize_utf8().ok()?.join(rest))
    });
    [Some(path.clone()), place].iter().all(|place| {
        let below = place.as_ref().and_then(|place| place.strip_prefix(folder).ok());
        below.is_some_and(|below| !is_off_limits(below, folder))
    })
}

/// Whether commands may not write at a path in a folder, or git keeps a repository there.
fn is_off_limits(below: &Utf8Path, folder: &Utf8Path) -> bool {
    let parts: Vec<&str> = below.components().map(|part| part.as_str()).collect();
    // An agent has its checkout there.
    let of_agent = matches!(parts.as_slice(), [".decurion" | ".claude", "worktrees", _, ..]);
    let rest: Utf8PathBuf = parts.iter().skip(if of_agent { 3 } else { 0 }).collect();
    let is_git = |path: &Utf8Path| super::looks_like_git_folder(&folder.join(path));
    let in_git = below.ancestors().filter(|path| !path.as_str().is_empty()).any(is_git);
    in_git || crate::permission::is_protected(&rest, &crate::permission::Around::default())
}

fn leads_to(from: &Utf8Path, value: &str, place: &Utf8Path) -> bool {
    is_plain_path(value)
        && super::links::straight(from, value)
            .is_some_and(|target| place.canonicalize_utf8().is_ok_and(|place| place == target))
}

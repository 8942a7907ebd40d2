//! Instruction files: `AGENTS.md` and `CLAUDE.md`. Takes the folders of a start, gives the texts that every
//! agent is told, what they import with `@path`, and, for a file that an agent reads, the texts of the folders
//! on the way to it.
//!
//! A repository's file is someone else's words: what it imports from outside of the project is read only when
//! the user agreed to that import, and whatever it imports is bounded and must be text.

use std::collections::HashSet;
use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::origin::Origin;
use crate::paths::Paths;
use crate::read;
use crate::trust::{Agreed, Part, PartKind, ProjectParts};
use crate::{Layer, Loaded};

/// The names looked for in a folder; the same file under two names is read once.
const NAMES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
/// The same in the folders of settings inside a project.
const INNER: [&str; 2] = [".decurion/AGENTS.md", ".claude/CLAUDE.md"];
/// Names of files that are one person's own and not shared.
const LOCAL: [&str; 2] = ["AGENTS.local.md", "CLAUDE.local.md"];

/// How much of one file is read, and of all together.
const MOST_BYTES: usize = 64 * 1024;
const MOST_TOTAL: usize = 512 * 1024;
/// How many files there may be, and how deep they import each other.
const MOST_FILES: usize = 100;
const MOST_DEPTH: usize = 5;
/// How many imports of one file are looked at.
const MOST_IMPORTS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstructionFile {
    pub path: Utf8PathBuf,
    /// Where its links led when it was read.
    pub place: Utf8PathBuf,
    /// The file that imports it; none for one that is read because of where it stands.
    pub imported_by: Option<Utf8PathBuf>,
    pub text: String,
}

/// The files found, in the order they are told, and what is worth saying about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundInstructions {
    pub files: Vec<InstructionFile>,
    /// What was left out, and why.
    pub warnings: Vec<String>,
}

/// Everything to read instruction files from, decided once.
#[derive(Clone, Debug)]
pub struct InstructionRequest {
    managed: Option<Utf8PathBuf>,
    user: Vec<Utf8PathBuf>,
    root: Utf8PathBuf,
    cwd: Utf8PathBuf,
    home: Option<Utf8PathBuf>,
    layers: Vec<Layer>,
    excluded: GlobSet,
    trusted: Option<Agreed>,
}

impl InstructionRequest {
    /// The places of these settings, and what is wrong with `claudeMdExcludes`.
    pub fn new(loaded: &Loaded) -> (Self, Vec<String>) {
        let (excluded, problems) = excluded(&loaded.settings.instruction_excludes, &loaded.paths);
        let managed = loaded.managed_path.parent().map(Utf8Path::to_owned);
        let request = Self {
            managed,
            trusted: Agreed::of(loaded),
            excluded,
            ..Self::of_paths(&loaded.paths, &loaded.layers)
        };
        (request, problems)
    }

    fn of_paths(paths: &Paths, layers: &[Layer]) -> Self {
        Self {
            managed: None,
            user: [&paths.state, &paths.shared].into_iter().flatten().cloned().collect(),
            root: paths.root.clone(),
            cwd: paths.cwd.clone(),
            home: paths.home.clone(),
            layers: layers.to_vec(),
            excluded: GlobSet::empty(),
            trusted: None,
        }
    }

    /// The administrator's files, the user's, then those of each folder from the project's root to the working
    /// directory.
    pub fn load(&self) -> FoundInstructions {
        let mut reader = Reader::new(self, &self.root);
        reader.own();
        reader.project();
        reader.found
    }

    /// The files of the folders on the way from the working directory to a file, for an agent that works in
    /// `cwd`: those that [`load`](Self::load) did not give.
    pub fn nested(&self, cwd: &Utf8Path, file: &Utf8Path) -> FoundInstructions {
        let inside = if file.starts_with(&self.root) { self.root.as_path() } else { cwd };
        let mut reader = Reader::new(self, inside);
        let known = |folder: &&Utf8Path| cwd.starts_with(folder) || self.cwd.starts_with(folder);
        let folders: Vec<&Utf8Path> =
            file.ancestors().skip(1).take_while(|at| at.starts_with(inside)).collect();
        for folder in folders.into_iter().rev().filter(|folder| !known(folder)) {
            reader.folder(folder);
        }
        reader.found
    }
}

/// Whose words a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The administrator's: never left out.
    Managed,
    User,
    Repository,
}

struct Reader<'a> {
    request: &'a InstructionRequest,
    /// The folder that a repository's files must stay inside of.
    inside: Utf8PathBuf,
    seen: HashSet<Utf8PathBuf>,
    left: usize,
    found: FoundInstructions,
    /// What waits for trust; gathered, where someone asks for it, instead of being judged.
    parts: Option<ProjectParts>,
}

impl<'a> Reader<'a> {
    fn new(request: &'a InstructionRequest, inside: &Utf8Path) -> Self {
        let inside = inside.canonicalize_utf8().unwrap_or_else(|_| inside.to_owned());
        let found = FoundInstructions::default();
        Self { request, inside, seen: HashSet::new(), left: MOST_TOTAL, found, parts: None }
    }

    fn own(&mut self) {
        if let Some(folder) = &self.request.managed {
            for name in NAMES {
                self.file(&folder.join(name), Whose::Managed, None, 0);
            }
        }
        if !self.request.layers.contains(&Layer::User) {
            return;
        }
        // Ours stand for the ecosystem's where there are any.
        for folder in &self.request.user {
            let before = self.found.files.len();
            for name in NAMES {
                self.file(&folder.join(name), Whose::User, None, 0);
            }
            if self.found.files.len() > before {
                break;
            }
        }
    }

    fn project(&mut self) {
        let request = self.request;
        let below = request.cwd.strip_prefix(&request.root).unwrap_or(Utf8Path::new(""));
        let mut folder = request.root.clone();
        self.folder(&folder);
        for part in below.components() {
            folder.push(part);
            self.folder(&folder);
        }
    }

    fn folder(&mut self, folder: &Utf8Path) {
        let layers = &self.request.layers;
        if layers.contains(&Layer::Project) {
            for name in NAMES.iter().chain(&INNER) {
                self.file(&folder.join(name), Whose::Repository, None, 0);
            }
        }
        if layers.contains(&Layer::Local) {
            for name in LOCAL {
                self.file(&folder.join(name), Whose::Repository, None, 0);
            }
        }
    }

    /// Reads a file and what it imports, if it is there and was not read yet.
    fn file(&mut self, path: &Utf8Path, whose: Whose, from: Option<&Utf8Path>, depth: usize) {
        let Ok(real) = path.canonicalize_utf8() else { return };
        let outside = whose == Whose::Repository && !real.starts_with(&self.inside);
        if outside && depth == 0 && !self.may_leave(path, "link", 1, &real) {
            return;
        }
        let excluded = &self.request.excluded;
        let is_excluded = whose != Whose::Managed && (excluded.is_match(path) || excluded.is_match(&real));
        if is_excluded || self.seen.contains(&real) {
            return;
        }
        if self.found.files.len() >= MOST_FILES || self.left == 0 {
            return self.warn(format!("{path}: left out, because there are too many instructions"));
        }
        let Some(text) = self.text(path, &real) else { return };
        self.seen.insert(real.clone());
        if text.trim().is_empty() {
            return;
        }
        self.left = self.left.saturating_sub(text.len());
        let imports = imports(&text);
        let imported_by = from.map(Utf8Path::to_owned);
        self.found.files.push(InstructionFile { path: path.to_owned(), place: real, imported_by, text });
        for (line, target) in imports.into_iter().take(MOST_IMPORTS) {
            self.import(path, whose, line, &target, depth);
        }
    }

    fn import(&mut self, from: &Utf8Path, whose: Whose, line: u32, target: &str, depth: usize) {
        let base = from.parent().unwrap_or(from);
        let path = match (target.strip_prefix("~/"), &self.request.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => base.join(target),
        };
        // Text has many signs that only look like an import; one that names a file is meant.
        let Ok(real) = path.canonicalize_utf8() else {
            if path.extension().is_some_and(|extension| extension == "md") {
                self.warn(format!("{from}:{line}: imports a file that is not there: @{target}"));
            }
            return;
        };
        if !real.is_file() {
            return;
        }
        if depth >= MOST_DEPTH {
            return self.warn(format!("{from}:{line}: not imported, more than {MOST_DEPTH} deep: @{target}"));
        }
        let inside = real.starts_with(&self.inside);
        if whose == Whose::Repository && !inside && !self.may_leave(from, &format!("@{target}"), line, &real)
        {
            return;
        }
        // What a user imports from a repository is the repository's word, not the user's.
        let own = from.canonicalize_utf8().is_ok_and(|from| from.starts_with(&self.inside));
        let whose = if inside && !own { Whose::Repository } else { whose };
        self.file(&path, whose, Some(from), depth + 1);
    }

    /// Whether the user agreed that a repository's file brings in something from outside: from exactly there,
    /// since the same words can lead elsewhere when a link on the way is changed.
    fn may_leave(&mut self, file: &Utf8Path, what: &str, line: u32, real: &Utf8Path) -> bool {
        let Ok(name) = file.strip_prefix(&self.request.root) else { return false };
        let origin = Origin::in_project_file(file, line);
        let leads = serde_json::json!({"leads to": real.as_str()});
        let part = Part::new(PartKind::Directory, what, origin, &leads);
        let content = format!("{what}\0{real}");
        if let Some(parts) = &mut self.parts {
            // Each import is agreed to by itself, in whichever order they stand.
            parts.add(&format!("{name}#{what}"), part, content.as_bytes());
            return true;
        }
        let mut parts = ProjectParts::default();
        parts.add(&format!("{name}#{what}"), part, content.as_bytes());
        let agreed = self.request.trusted.as_ref().is_some_and(|agreed| agreed.covers(&parts));
        if !agreed {
            self.warn(format!(
                "{file}:{line}: not read, because it is outside of the project and the folder is not trusted with \
                 it (see `decurion trust`): {what}"
            ));
        }
        agreed
    }

    fn text(&mut self, path: &Utf8Path, real: &Utf8Path) -> Option<String> {
        // What was judged is what is read, also if a link on the way is exchanged meanwhile.
        let opened = match read::open_place(real) {
            Ok(opened) => opened?,
            Err(error) => {
                self.warn(format!("{path}: cannot be read: {error}"));
                return None;
            }
        };
        let most = MOST_BYTES.min(self.left);
        let mut bytes = Vec::new();
        if let Err(error) = opened.take(most as u64 + 1).read_to_end(&mut bytes) {
            self.warn(format!("{path}: cannot be read: {error}"));
            return None;
        }
        if memchr::memchr(0, &bytes).is_some() {
            self.warn(format!("{path}: left out, because it is not text"));
            return None;
        }
        let is_cut = bytes.len() > most;
        bytes.truncate(most);
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if is_cut {
            text.truncate(text.trim_end_matches('\u{fffd}').len());
            text.push_str("\n[… the rest of this file was left out]");
            self.warn(format!("{path}: only its first {most} bytes are told"));
        }
        Some(text)
    }

    fn warn(&mut self, text: String) {
        self.found.warnings.push(text);
    }
}

/// The imports of a text with their lines: `@path` at the beginning of a word, outside of code.
fn imports(text: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let line_number = u32::try_from(index + 1).unwrap_or(u32::MAX);
                found.extend(words(line).into_iter().map(|target| (line_number, target)));
            }
        }
    }
    found
}

/// The imports of one line, code spans left out.
fn words(line: &str) -> Vec<String> {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].len() - rest[start..].trim_start_matches('`').len();
        let mark = &rest[start..start + ticks];
        let after = &rest[start + ticks..];
        plain.push_str(&rest[..start]);
        // A mark that is never closed is not code.
        let Some(end) = after.find(mark) else {
            rest = after;
            continue;
        };
        plain.push(' ');
        rest = &after[end + ticks..];
    }
    plain.push_str(rest);
    let target = |word: &str| {
        let word = word.trim_start_matches(['(', '"', '\'', '*']).strip_prefix('@')?;
        let word = word.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', '"', '\'', '*']);
        (!word.is_empty() && !word.contains('@')).then(|| word.to_owned())
    };
    plain.split_whitespace().filter_map(target).collect()
}

/// The patterns of files that are not read; a relative one holds in every folder.
fn excluded(patterns: &[String], paths: &Paths) -> (GlobSet, Vec<String>) {
    let mut set = GlobSetBuilder::new();
    let mut problems = Vec::new();
    for pattern in patterns {
        let whole = match pattern.strip_prefix("~/") {
            Some(rest) => {
                paths.home.as_ref().map_or_else(|| pattern.clone(), |home| format!("{home}/{rest}"))
            }
            None if pattern.starts_with('/') || pattern.starts_with("**/") => pattern.clone(),
            None => format!("**/{pattern}"),
        };
        match GlobBuilder::new(&whole).literal_separator(true).build() {
            Ok(glob) => drop(set.add(glob)),
            Err(error) => {
                problems.push(format!("claudeMdExcludes: not a pattern: {pattern:?}: {}", error.kind()));
            }
        }
    }
    (set.build().unwrap_or_default(), problems)
}

/// Adds what the project's instruction files bring in from outside to the parts that the user is asked to trust.
pub(crate) fn add_project_parts(paths: &Paths, layers: &[Layer], parts: &mut ProjectParts) {
    let request = InstructionRequest::of_paths(paths, layers);
    let mut reader = Reader::new(&request, &request.root);
    reader.parts = Some(std::mem::take(parts));
    reader.project();
    *parts = reader.parts.take().unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_words_outside_of_code() {
        for (text, expected) in [
            ("see @a.md and @./b.md.", "1 a.md, 1 ./b.md"),
            ("(@~/x.md) \"@/y.md\", *@z.md*", "1 ~/x.md, 1 /y.md, 1 z.md"),
            ("mail a@b.c, `@no.md` and ``@no `@no`` @yes.md", "1 yes.md"),
            ("```\n@no.md\n~~~\n```\n@yes.md", "5 yes.md"),
            ("~~~ text\n@no.md\n```\n~~~\n@yes.md", "5 yes.md"),
            ("an open ` tick @yes.md", "1 yes.md"),
            ("@ alone, @@ twice, @a@b", ""),
            ("```\n@no.md", ""),
        ] {
            let found: Vec<String> =
                imports(text).into_iter().map(|(line, target)| format!("{line} {target}")).collect();
            assert_eq!(found.join(", "), expected, "{text}");
        }
    }
}

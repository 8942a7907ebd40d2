//! Skills and commands as people write them. Takes the places where they may be, gives all of them with their
//! origin, which of equal names counts, and everything that is wrong with any file, with its line.
//!
//! A skill is a folder with a `SKILL.md`, a command a Markdown file; both are instructions that are read when
//! they are needed, so both become the same thing ([`Skill`]). Only heads are kept: a text is read when it is
//! used.

mod draft;

use std::collections::HashMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{AgentSource, Skill, SkillKind};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::agents::definition::WaitingParts;
use crate::agents::place::{self, Walk};
use crate::agents::{AgentFolder, AgentOrigin, AgentProblem, Severity, Stamp, text_of};
use crate::commands;
use crate::frontmatter::{self, Document, HeadError};
use crate::paths::Paths;
use crate::trust::{Agreed, ProjectParts};
use crate::{Layer, Loaded};
use draft::Draft;

/// Everything to load skills and commands from, decided once; kept to load them again when something changed.
#[derive(Clone, Debug)]
pub struct SkillRequest {
    /// The folders, from the highest to the lowest, each with what it holds.
    pub folders: Vec<(SkillKind, AgentFolder)>,
    /// Those of plugins, which come after them.
    pub plugins: Vec<(SkillKind, AgentFolder)>,
    /// The names of the tools there are.
    pub tools: Vec<String>,
    /// The names of the agents there are; none where that is not known.
    pub agents: Option<Vec<String>>,
    trusted: Option<Agreed>,
}

impl SkillRequest {
    /// The places of these settings, without plugins.
    pub fn new(loaded: &Loaded, tools: &[&str]) -> Self {
        Self {
            folders: folders(&loaded.paths, &loaded.managed_path, &loaded.layers),
            plugins: Vec::new(),
            tools: tools.iter().map(|name| (*name).to_owned()).collect(),
            agents: None,
            trusted: Agreed::of(loaded),
        }
    }

    fn all_folders(&self) -> impl Iterator<Item = &(SkillKind, AgentFolder)> {
        self.folders.iter().chain(&self.plugins)
    }

    /// What the folders look like now.
    pub fn stamp(&self) -> Stamp {
        Stamp(self.all_folders().flat_map(|(kind, folder)| walk(*kind, &folder.path).take_marks()).collect())
    }
}

/// In one place a skill goes before a command of the same name.
fn folders(paths: &Paths, managed: &Utf8Path, layers: &[Layer]) -> Vec<(SkillKind, AgentFolder)> {
    let skills = place::folders(paths, managed, layers, "skills");
    let commands = place::folders(paths, managed, layers, "commands");
    let both = |(skills, commands)| [(SkillKind::Skill, skills), (SkillKind::Command, commands)];
    skills.into_iter().zip(commands).flat_map(both).collect()
}

fn walk(kind: SkillKind, folder: &Utf8Path) -> Walk {
    match kind {
        SkillKind::Skill => place::walk_skills(folder),
        SkillKind::Command => place::walk(folder),
    }
}

/// Every skill and command found.
#[derive(Clone, Debug, Default)]
pub struct Skills {
    /// All of them, from the highest place to the lowest.
    pub all: Vec<LoadedSkill>,
    /// What is wrong, in the same order.
    pub problems: Vec<AgentProblem>,
    stamp: Stamp,
}

/// A skill or command and whether it counts.
#[derive(Clone, Debug)]
pub struct LoadedSkill {
    /// What its file declares.
    pub skill: Arc<Skill>,
    /// Where the one is that counts instead, if another of the same name comes first.
    pub shadowed_by: Option<Utf8PathBuf>,
}

impl Skills {
    pub fn load(request: &SkillRequest) -> Self {
        let mut found = Self::default();
        for (kind, folder) in request.all_folders() {
            found.folder(request, *kind, folder);
        }
        found.shadow();
        found
    }

    /// Reads a folder or file that someone named, without judging names against each other.
    pub fn check(request: &SkillRequest, kind: SkillKind, folder: &AgentFolder) -> Self {
        let mut found = Self::default();
        found.folder(request, kind, folder);
        found
    }

    /// Whether anything in the folders has changed since these were read. Looks at names and dates only.
    pub fn is_stale(&self, request: &SkillRequest) -> bool {
        request.stamp() != self.stamp
    }

    /// The one that counts under a name: exactly that, else without regard to case.
    pub fn get(&self, name: &str) -> Option<&Arc<Skill>> {
        let exact = self.active().find(|skill| skill.name == name);
        exact.or_else(|| self.active().find(|skill| skill.name.eq_ignore_ascii_case(name)))
    }

    /// Those that count, from the highest place to the lowest.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Skill>> {
        self.all.iter().filter(|skill| skill.shadowed_by.is_none()).map(|skill| &skill.skill)
    }

    fn folder(&mut self, request: &SkillRequest, kind: SkillKind, folder: &AgentFolder) {
        // The stamp is as old as the reading or older: a change in between is noticed later, never missed.
        let mut walk = walk(kind, &folder.path);
        self.stamp.0.extend(walk.take_marks());
        self.problems.append(&mut walk.problems);
        for file in &walk.files {
            self.file(request, kind, folder, file);
        }
    }

    fn file(&mut self, request: &SkillRequest, kind: SkillKind, folder: &AgentFolder, file: &Utf8Path) {
        let origin = AgentOrigin::File(file.to_owned());
        let problem =
            |severity, line, text| AgentProblem { severity, origin: origin.clone(), line, agent: None, text };
        if let Some(reason) = folder.refuses(file) {
            return self.problems.push(problem(Severity::Error, None, reason.to_owned()));
        }
        let document = match read(file) {
            Ok(document) => document,
            Err((line, reason)) => return self.problems.push(problem(Severity::Error, line, reason)),
        };
        if let Some(repair) = &document.repair {
            self.problems.push(problem(Severity::Warning, Some(repair.line), repair.text.clone()));
        }
        let trust = WaitingParts::of(request.trusted.as_ref(), folder, file, |parts, name| {
            draft::add_parts(parts, name, file, &document.head);
        });
        let name = match kind {
            SkillKind::Skill => file.parent().and_then(Utf8Path::file_name).unwrap_or_default().to_owned(),
            SkillKind::Command => commands::name(&folder.path, file),
        };
        let draft = Draft { kind, folder, file, name: &name, trust, document: &document };
        if let Some(skill) = draft.decide(request, &mut self.problems) {
            self.all.push(LoadedSkill { skill: Arc::new(skill), shadowed_by: None });
        }
    }

    /// Of equal names the first counts. Two in one folder are said to be, since that is hardly meant.
    fn shadow(&mut self) {
        let mut first: HashMap<String, Utf8PathBuf> = HashMap::new();
        for LoadedSkill { skill, shadowed_by } in &mut self.all {
            let Some(winner) = first.get(&skill.name.to_lowercase()) else {
                first.insert(skill.name.to_lowercase(), skill.path.clone());
                continue;
            };
            *shadowed_by = Some(winner.clone());
            if places(winner).is_some() && places(winner) == places(&skill.path) {
                self.problems.push(AgentProblem {
                    severity: Severity::Warning,
                    origin: AgentOrigin::File(skill.path.clone()),
                    line: None,
                    agent: Some(skill.name.clone()),
                    text: format!("not used, because another file here has this name: {winner}"),
                });
            }
        }
    }
}

/// The folder that holds the `skills` and `commands` a file is in.
fn places(file: &Utf8Path) -> Option<&Utf8Path> {
    let is_kind = |folder: &&Utf8Path| matches!(folder.file_name(), Some("skills" | "commands"));
    file.ancestors().find(is_kind)?.parent()
}

/// A skill's text, as its file is now: what is below the head, a plugin's folder in the place of its names.
/// A link in a repository's file may not lead out of it.
pub fn body(skill: &Skill, paths: &Paths) -> Result<String, String> {
    let root = match (&skill.plugin_root, skill.source) {
        (Some(root), _) => Some((root.as_path(), place::OUT_OF_PLUGIN)),
        (None, AgentSource::Project) => Some((paths.bounds(&skill.path), place::OUT_OF_PROJECT)),
        _ => None,
    };
    if let Some((_, reason)) = root.filter(|(root, _)| place::leaves(root, &skill.path).is_some()) {
        return Err(format!("{}: {reason}", skill.path));
    }
    let document = read(&skill.path).map_err(|(_, reason)| format!("{}: {reason}", skill.path))?;
    Ok(match &skill.plugin_root {
        Some(root) => {
            let plugin = place::PluginPlace { name: String::new(), root: root.clone() };
            plugin.expand(&document.body)
        }
        None => document.body,
    })
}

/// Whether a skill's `paths` name a file like this one: by where it is in the project, or below a directory.
pub fn concerns(skill: &Skill, paths: &Paths, cwd: &Utf8Path, file: &Utf8Path) -> bool {
    let inside = [&*paths.root, cwd].map(|folder| file.strip_prefix(folder).ok());
    let matches = |pattern: &String| {
        let pattern = concerned(pattern);
        pattern.is_some_and(|pattern| inside.iter().flatten().any(|file| pattern.is_match(file)))
    };
    skill.paths.iter().any(matches)
}

/// A pattern of files as people write it in `.gitignore`: without a slash it is a name in any folder, and what
/// names a folder means all that is in it.
fn concerned(pattern: &str) -> Option<GlobSet> {
    let plain = pattern.trim_start_matches("./").trim_start_matches('/');
    let plain = plain.trim_end_matches('/');
    if plain.is_empty() || plain.len() > MOST_PATTERN {
        return None;
    }
    let anywhere = if plain.contains('/') || pattern.starts_with('/') { "" } else { "**/" };
    let mut set = GlobSetBuilder::new();
    for text in [format!("{anywhere}{plain}"), format!("{anywhere}{plain}/**")] {
        set.add(GlobBuilder::new(&text).literal_separator(true).build().ok()?);
    }
    set.build().ok()
}

/// Longer than any pattern that a person writes; a pattern is compiled for each file that is read.
const MOST_PATTERN: usize = 500;

/// A file told apart; one without a head is all body.
fn read(file: &Utf8Path) -> Result<Document, (Option<u32>, String)> {
    let text = text_of(file)?;
    match frontmatter::read(&text, draft::KEYS) {
        Ok(document) => Ok(document),
        Err(HeadError::NoHead) => {
            let body = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n");
            Ok(Document { head: Vec::new(), body: body.trim().to_owned(), repair: None })
        }
        Err(error) => Err((Some(1), error.to_string())),
    }
}

/// The skills or commands of a folder.
pub(crate) fn files(kind: SkillKind, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    walk(kind, folder).files
}

/// Adds what a skill or command widens, under this name of its file.
pub(crate) fn add_parts(file: &Utf8Path, name: &str, parts: &mut ProjectParts) {
    if let Ok(document) = read(file) {
        draft::add_parts(parts, name, file, &document.head);
    }
}

/// Adds what the project's skills and commands widen to the parts that the user is asked to trust.
pub(crate) fn add_project_parts(paths: &Paths, layers: &[Layer], parts: &mut ProjectParts) {
    let folders = folders(paths, Utf8Path::new(""), layers);
    for (kind, folder) in folders.iter().filter(|(_, folder)| folder.source == AgentSource::Project) {
        let files = walk(*kind, &folder.path).files;
        for file in files.into_iter().filter(|file| folder.refuses(file).is_none()) {
            let Ok(name) = file.strip_prefix(&paths.root) else { continue };
            let Ok(document) = read(&file) else { continue };
            draft::add_parts(parts, name.as_str(), &file, &document.head);
        }
    }
}

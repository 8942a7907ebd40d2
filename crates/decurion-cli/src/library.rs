//! What agents read besides, as the files are now. Takes the settings and the plugins, gives the engine skills,
//! commands, memories and the instructions of folders; skills are read again when a file has changed.

use std::sync::{Arc, Mutex, PoisonError};

use camino::Utf8Path;
use decurion_config::{InstructionRequest, Loaded, Plugins, SkillRequest, Skills, memory, skills};
use decurion_engine::{Instructions, Library, Memory};
use decurion_protocol::{AgentDefinition, HookDeclaration, Skill, SkillKind};

use crate::command::agents::{SERVER_TOOLS, tool_names};

/// A library that follows its files.
pub struct Shelf {
    loaded: Arc<Loaded>,
    request: SkillRequest,
    skills: Mutex<LoadedSkills>,
    instructions: InstructionRequest,
    /// The only skills that are listed; none is all. Others can be called by name.
    only: Option<Vec<String>>,
}

/// What was read last.
struct LoadedSkills {
    skills: Skills,
    /// Those that count; the same ones each time, so that a change is seen at once.
    active: Vec<Arc<Skill>>,
}

impl LoadedSkills {
    fn load(request: &SkillRequest) -> Self {
        let skills = Skills::load(request);
        let active = skills.active().cloned().collect();
        Self { skills, active }
    }
}

/// Where skills and commands of these settings are, and the tools that they may name.
pub fn request(loaded: &Loaded, plugins: &Plugins) -> SkillRequest {
    let names = tool_names();
    let names: Vec<&str> = names.iter().map(String::as_str).chain(SERVER_TOOLS).collect();
    let mut request = SkillRequest::new(loaded, &names);
    request.plugins = plugins.skills();
    request
}

impl Shelf {
    /// Those of these settings and plugins.
    pub fn new(loaded: &Arc<Loaded>, plugins: &Plugins) -> Self {
        let request = request(loaded, plugins);
        let skills = Mutex::new(LoadedSkills::load(&request));
        let (instructions, _) = InstructionRequest::new(loaded);
        Self { loaded: Arc::clone(loaded), request, skills, instructions, only: None }
    }

    /// The same, telling only of these skills: by their whole name, or by what stands behind a plugin's.
    #[must_use]
    pub fn telling_of(self, only: Option<Vec<String>>) -> Self {
        Self { only, ..self }
    }

    fn is_told_of(&self, skill: &Skill) -> bool {
        let is_it = |name: &String| {
            let own = skill.name.strip_suffix(name.as_str());
            own.is_some_and(|before| before.is_empty() || before.ends_with(':'))
        };
        // A command that only a person types is not listed as a skill.
        skill.kind != SkillKind::Skill || self.only.as_ref().is_none_or(|only| only.iter().any(is_it))
    }

    /// Looks at the skills as their files are now.
    fn look<T>(&self, at: impl FnOnce(&LoadedSkills) -> T) -> T {
        let mut held = self.skills.lock().unwrap_or_else(PoisonError::into_inner);
        if held.skills.is_stale(&self.request) {
            *held = LoadedSkills::load(&self.request);
        }
        at(&held)
    }
}

impl Library for Shelf {
    fn has_skills(&self) -> bool {
        true
    }

    fn skills(&self) -> Vec<Arc<Skill>> {
        self.look(|held| held.active.iter().filter(|skill| self.is_told_of(skill)).cloned().collect())
    }

    fn find(&self, name: &str) -> Option<Arc<Skill>> {
        self.look(|held| held.skills.get(name).cloned())
    }

    fn body(&self, skill: &Skill) -> Result<String, String> {
        skills::body(skill, &self.loaded.paths)
    }

    fn hooks_of(&self, skill: &Skill) -> Vec<HookDeclaration> {
        self.loaded.hooks_of_skill(skill).declarations
    }

    /// As they were read last: a file that an agent reads is no reason to look through all of them.
    fn concerning(&self, cwd: &Utf8Path, file: &Utf8Path) -> Vec<Arc<Skill>> {
        let held = self.skills.lock().unwrap_or_else(PoisonError::into_inner);
        let concerns = |skill: &&Arc<Skill>| skills::concerns(skill, &self.loaded.paths, cwd, file);
        held.active.iter().filter(concerns).cloned().collect()
    }

    fn memory(&self, scope: &str, agent: &AgentDefinition) -> Result<Memory, String> {
        let folder = memory::prepare(&self.loaded.paths, scope, &agent.name, agent.source)
            .map_err(|error| error.to_string())?;
        let index = memory::index(&folder).map_err(|error| error.to_string())?;
        Ok(Memory { folder, index })
    }

    fn nested(&self, cwd: &Utf8Path, file: &Utf8Path) -> Vec<Instructions> {
        let found = self.instructions.nested(cwd, file);
        for warning in found.warnings {
            tracing::warn!("{warning}");
        }
        found
            .files
            .into_iter()
            .map(|file| Instructions {
                path: file.path,
                place: file.place,
                imported_by: file.imported_by,
                text: file.text,
            })
            .collect()
    }
}

//! A home and a project in a folder of their own.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::{ConfigError, Environment, LoadRequest, Loaded, TrustMode, load};

pub struct Stage {
    _folder: tempfile::TempDir,
    pub top: Utf8PathBuf,
    pub home: Utf8PathBuf,
    pub project: Utf8PathBuf,
    pub variables: BTreeMap<String, String>,
}

impl Stage {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = Utf8PathBuf::from_path_buf(fs::canonicalize(folder.path()).unwrap()).unwrap();
        let (home, project) = (top.join("home"), top.join("project"));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(project.join(".git")).unwrap();
        let variables = BTreeMap::from([("HOME".to_owned(), home.to_string())]);
        Self { _folder: folder, top, home, project, variables }
    }

    /// Writes a file below the stage's folder.
    pub fn file(self, path: &str, content: &str) -> Self {
        write(&self.top.join(path), content);
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn request(&self) -> LoadRequest {
        let mut request =
            LoadRequest::new(self.project.clone(), Environment::from_pairs(self.variables.clone()));
        request.managed_path = self.top.join("managed.json");
        request
    }

    pub fn load(&self) -> Loaded {
        self.try_load().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_load(&self) -> Result<Loaded, ConfigError> {
        load(&self.request())
    }

    pub fn load_trusted(&self) -> Loaded {
        let request = LoadRequest { trust: TrustMode::Granted, ..self.request() };
        load(&request).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The message of the error that loading must give, with the stage's folder cut off.
    pub fn error(&self) -> String {
        self.short(&self.try_load().unwrap_err().to_string())
    }

    pub fn warnings(&self, loaded: &Loaded) -> Vec<String> {
        loaded.warnings.iter().map(|warning| self.short(&warning.to_string())).collect()
    }

    pub fn short(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.top), "")
    }
}

pub fn write(path: &Utf8Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

//! Where the tests play: a project in a temporary folder, the tools, and the state a run keeps between
//! its calls.

use std::fs;
use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{Access, CallId, Intent, RunId, ToolOutput};
use decurion_tools::{
    Check, FilesSeen, Http, NoRules, PathRules, Spill, SpillFile, Surroundings, ToolContext, ToolLimits,
    ToolSet, builtin,
};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub struct Stage {
    _folder: tempfile::TempDir,
    /// The folder around the project: what is here and not in `project` is outside.
    pub outside: Utf8PathBuf,
    pub project: Utf8PathBuf,
    pub seen: Arc<FilesSeen>,
    pub limits: ToolLimits,
    pub rules: Arc<dyn PathRules>,
    pub cancel: CancellationToken,
    pub http: Http,
    pub set: ToolSet,
}

impl Stage {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outside = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let project = outside.join("project");
        fs::create_dir(&project).unwrap();
        Self {
            _folder: folder,
            outside,
            project,
            seen: Arc::default(),
            limits: ToolLimits::default(),
            rules: Arc::new(NoRules),
            cancel: CancellationToken::new(),
            http: Http::default(),
            set: ToolSet::new(builtin()),
        }
    }

    /// Writes a file of the project.
    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> Utf8PathBuf {
        let path = self.project.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The content of a file of the project.
    pub fn content(&self, path: &str) -> String {
        fs::read_to_string(self.project.join(path)).unwrap()
    }

    /// Makes a link in the project.
    pub fn link(&self, target: &str, path: &str) {
        std::os::unix::fs::symlink(target, self.project.join(path)).unwrap();
    }

    pub fn around(&self) -> Surroundings {
        Surroundings {
            cwd: self.project.clone(),
            home: Some(self.outside.join("home")),
            directories: vec![self.project.clone()],
        }
    }

    pub fn context(&self) -> (ToolContext, mpsc::Receiver<String>) {
        let (progress, lines) = mpsc::channel(16);
        let context = ToolContext {
            run: RunId("018f3b1e-0000-7000-8000-000000000000".parse::<RunId>().unwrap().0),
            call: CallId("call".into()),
            called: String::new(),
            around: self.around(),
            cancel: self.cancel.clone(),
            progress,
            seen: Arc::clone(&self.seen),
            spill: Arc::new(NoSpill),
            rules: Arc::clone(&self.rules),
            processes: None,
            sandbox: None,
            printed: Arc::default(),
            held: None,
            environment: Arc::from([]),
            limits: Arc::new(self.limits.clone()),
            http: self.http.clone(),
            detached: tokio::sync::watch::channel(false).1,
            elicit: None,
            host: None,
        };
        (context, lines)
    }

    /// What a call would touch.
    pub fn intent(&self, tool: &str, input: &Value) -> Result<Intent, String> {
        self.set.get(tool).unwrap().intent(input, &self.around()).map_err(|error| error.to_string())
    }

    /// Runs a call and takes over what it changed in the run's state.
    pub async fn run(&mut self, tool: &str, input: Value) -> ToolOutput {
        let (context, _lines) = self.context();
        let output = self.set.get(tool).unwrap().run(&context, input).await;
        self.seen = self.seen.with(&output.effects);
        output
    }

    /// Runs a call where nothing else happens: what a check finds before is what the tool finds.
    async fn checked(&mut self, tool: &str, input: Value) -> ToolOutput {
        let (context, _lines) = self.context();
        let checked = self.set.get(tool).unwrap().check(&context, &input).await;
        let output = self.run(tool, input).await;
        match checked {
            Check::Fails(checked) => assert_eq!(*checked, output),
            Check::Works { patch: Some(patch) } => {
                let structured = output.structured.as_ref().unwrap();
                assert_eq!(patch, structured["structuredPatch"]);
            }
            Check::Works { patch: None } => {}
        }
        output
    }

    /// What a call is answered that cannot work, before anybody is asked about it.
    pub async fn check(&self, tool: &str, input: &Value) -> Option<String> {
        let (context, _lines) = self.context();
        let Check::Fails(output) = self.set.get(tool).unwrap().check(&context, input).await else {
            return None;
        };
        Some(output.content.text().replace(self.outside.as_str(), "OUTSIDE"))
    }

    /// Runs a call that must succeed; its text.
    pub async fn ok(&mut self, tool: &str, input: Value) -> String {
        let output = self.checked(tool, input).await;
        assert!(!output.is_error, "{:?}", output.content);
        output.content.text()
    }

    /// Runs a call that must fail; its text.
    pub async fn fails(&mut self, tool: &str, input: Value) -> String {
        let output = self.checked(tool, input).await;
        assert!(output.is_error, "{:?}", output.content);
        assert!(output.effects.is_empty());
        output.content.text().replace(self.outside.as_str(), "OUTSIDE")
    }

    /// Every file and link below the folder, with its content, to see that nothing else changed.
    pub fn everything(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        list(&self.outside, &mut all);
        all.sort();
        all
    }
}

fn list(folder: &Utf8Path, all: &mut Vec<(String, String)>) {
    for entry in folder.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if path.is_symlink() {
            all.push((path.to_string(), format!("-> {}", path.read_link_utf8().unwrap())));
        } else if path.is_dir() {
            all.push((path.to_string(), "directory".into()));
            list(path, all);
        } else {
            all.push((path.to_string(), String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()));
        }
    }
}

struct NoSpill;

impl Spill for NoSpill {
    fn create(&self, _call: &CallId, _extension: &str) -> io::Result<SpillFile> {
        Err(io::Error::other("no output is long enough for this"))
    }
}

/// Rules that refuse every path with this word in it.
pub struct Refusing(pub &'static str);

impl PathRules for Refusing {
    fn refuses(&self, path: &Utf8Path, _access: Access) -> Option<String> {
        path.as_str().contains(self.0).then(|| "a rule denies this".to_owned())
    }
}

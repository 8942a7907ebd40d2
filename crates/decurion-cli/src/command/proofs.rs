//! Whether the sandbox keeps its promises on this machine. Takes the settings, tries in a sandboxed command what must
//! not work, and gives the result of each attempt.

use std::ffi::OsString;
use std::net::TcpListener;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::{Environment, Loaded};
use decurion_engine::sandbox::SandboxMaker;
use decurion_exec::{Capture, CaptureBounds, Exit, Form, Guard, Launch, Sandbox, shell};
use decurion_protocol::Intent;
use serde_json::{Value, json};

use crate::command::sandbox::policy;
use crate::wire;

/// One promise and whether it was kept.
pub struct Proof {
    /// What a command cannot do.
    pub promise: &'static str,
    /// Whether the attempt had no effect; the error is why nothing could be tried.
    pub held: Result<bool, String>,
}

impl Proof {
    pub fn json(&self) -> Value {
        match &self.held {
            Ok(held) => json!({"promise": self.promise, "held": held}),
            Err(problem) => json!({"promise": self.promise, "problem": problem}),
        }
    }
}

/// Tries all of them; nothing where there is no sandbox.
pub async fn run(loaded: &Loaded, environment: &Environment) -> Vec<Proof> {
    let (Some(maker), Some(guard)) = (wire::sandbox(loaded, environment), wire::guard()) else {
        return Vec::new();
    };
    // Kept until the end: it owns what leads out of the commands' network.
    let _egress = wire::connect(loaded, &maker, &guard, environment);
    let attempts = match Attempts::prepare(loaded, &maker, guard) {
        Ok(attempts) => attempts,
        Err(problem) => return vec![Proof { promise: "run in a sandbox", held: Err(problem) }],
    };
    let proof = |promise, held| Proof { promise, held };
    vec![
        proof("write outside of the working directories", attempts.write().await),
        proof("read Decurion's own files", attempts.read().await),
        proof("read ~/.ssh", attempts.read_keys(loaded).await),
        proof("connect to services on this machine", attempts.connect().await),
        proof("leave a process running after they end", attempts.daemon().await),
        proof("look into other processes or signal them", attempts.signal().await),
        proof("change the hooks of this repository (.git/hooks)", attempts.hook().await),
    ]
}

/// Where and how they are tried.
struct Attempts {
    guard: Guard,
    sandbox: Arc<Sandbox>,
    /// A folder of ours that commands may not read, and next to it one that they may not write.
    state: Utf8PathBuf,
    cwd: Utf8PathBuf,
    network_open: bool,
    /// Landlock alone does not protect what is in a working directory.
    landlock: bool,
    environment: Vec<(OsString, OsString)>,
}

impl Attempts {
    fn prepare(loaded: &Loaded, maker: &SandboxMaker, guard: Guard) -> Result<Self, String> {
        let compiled = maker.compile(&policy(loaded, Some(maker)), None, &Intent::titled(""), None);
        let sandbox =
            compiled.map_err(|error| error.to_string())?.sandbox.ok_or("commands run without one")?;
        let state = loaded.paths.state.clone().ok_or("there is no state folder")?;
        let home = loaded.paths.home.as_ref().map(|home| ("HOME".into(), home.as_str().into()));
        Ok(Self {
            guard,
            sandbox: Arc::new(sandbox),
            state,
            cwd: loaded.paths.cwd.clone(),
            network_open: maker.settings().network_open,
            landlock: maker.settings().form == Form::Landlock,
            environment: [("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]
                .into_iter()
                .chain(home)
                .collect(),
        })
    }

    /// Gives what a command prints and how it ends. One that does not even start has no effect, which proves nothing.
    async fn bash(&self, command: &str) -> Result<(String, Exit), String> {
        const STARTED: &str = "started\n";
        let launch = Launch {
            sandbox: Some(Arc::clone(&self.sandbox)),
            env: self.environment.clone(),
            ..shell::bash(&format!("printf '{STARTED}'; {command}"), self.cwd.as_std_path(), false)
        };
        let mut process = self.guard.start(launch).await.map_err(|error| error.to_string())?;
        let mut output = Capture::new(CaptureBounds { head: 4096, tail: 0, file: 0 });
        let exit = process.collect(&mut output, None, |_| {}).await;
        let text = String::from_utf8_lossy(&output.finish().head).into_owned();
        match text.strip_prefix(STARTED) {
            Some(printed) => Ok((printed.to_owned(), exit)),
            None => Err(format!("commands do not start in the sandbox: {}", text.trim_end())),
        }
    }

    async fn write(&self) -> Result<bool, String> {
        let folder = self.state.parent().unwrap_or(Utf8Path::new("/"));
        if self.sandbox.writable.iter().any(|writable| folder.as_std_path().starts_with(writable)) {
            return Err(format!("they may write in {folder} here"));
        }
        let mark = folder.join(format!(".decurion-doctor-{}", std::process::id()));
        self.bash(&format!("echo x > '{mark}'")).await?;
        let held = !mark.exists();
        let _ = std::fs::remove_file(mark);
        Ok(held)
    }

    async fn read(&self) -> Result<bool, String> {
        const CANARY: &str = "canary of decurion doctor";
        let file = self.state.join(format!("doctor-{}", std::process::id()));
        std::fs::write(&file, CANARY).map_err(|error| error.to_string())?;
        let tried = self.bash(&format!("cat '{file}'")).await;
        let _ = std::fs::remove_file(file);
        Ok(!tried?.0.contains(CANARY))
    }

    /// Nothing is put into the folder, so that there must be something in it.
    async fn read_keys(&self, loaded: &Loaded) -> Result<bool, String> {
        let folder = loaded.paths.home.as_ref().ok_or("there is no home folder")?.join(".ssh");
        if loaded.settings.sandbox.readable.contains(&folder) {
            return Err("sandbox.filesystem.allowRead shows it".to_owned());
        }
        let entries = folder.read_dir_utf8().map(|entries| entries.flatten().collect::<Vec<_>>());
        let names: Vec<String> =
            entries.unwrap_or_default().iter().map(|entry| entry.file_name().to_owned()).collect();
        if names.is_empty() {
            return Err("there is nothing in it".to_owned());
        }
        if self.landlock {
            // It hides no names.
            let tried = self.bash("find ~/.ssh -type f -exec head -c 1 {} + 2>/dev/null").await?;
            return Ok(tried.0.is_empty());
        }
        let (listed, _) = self.bash("ls -A ~/.ssh").await?;
        Ok(!listed.lines().any(|line| names.iter().any(|name| name == line)))
    }

    async fn connect(&self) -> Result<bool, String> {
        if self.network_open {
            return Err("the network is open by the settings".to_owned());
        }
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        Ok(!self.bash(&format!("exec 3<>/dev/tcp/127.0.0.1/{port}")).await?.1.success())
    }

    async fn daemon(&self) -> Result<bool, String> {
        let time = format!("86400.{}", std::process::id());
        self.bash(&format!("setsid nohup sleep {time} > /dev/null 2>&1 &")).await?;
        let processes = std::fs::read_dir("/proc").map_err(|error| error.to_string())?;
        let lines = processes.flatten().filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        Ok(!lines.map(|line| String::from_utf8_lossy(&line).into_owned()).any(|line| line.contains(&time)))
    }

    async fn signal(&self) -> Result<bool, String> {
        let me = std::process::id();
        Ok(!self
            .bash(&format!("kill -0 {me} || head -c 1 /proc/{me}/environ > /dev/null"))
            .await?
            .1
            .success())
    }

    async fn hook(&self) -> Result<bool, String> {
        if self.landlock {
            return Err("Landlock alone does not keep them from it".to_owned());
        }
        if !self.cwd.join(".git").is_dir() {
            return Err("this folder is no repository".to_owned());
        }
        let name = format!("decurion-doctor-{}", std::process::id());
        self.bash(&format!("echo x > .git/hooks/{name}")).await?;
        let mark = self.cwd.join(".git/hooks").join(name);
        let held = !mark.exists();
        let _ = std::fs::remove_file(mark);
        Ok(held)
    }
}

//! MCP servers as people use them, from the registries, over every transport. Takes what `cargo xtask test
//! --install` installed, runs the real binary with them, gives what their tools answered: each kind of result,
//! calls given up and interrupted in the middle, a form filled in, a hundred agents on one server, and a server
//! killed in a call.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::faults::mcp::results;
use crate::faults::stand::{HANG, RUN, Stand, brief, ended_well, kill};
use crate::faults::{Options, Report};
use crate::proc::{Finished, MARKER, Running};

/// A call that takes as long as it is told to.
const LONG: &str = "mcp__everything__trigger-long-running-operation";

/// Where the servers are installed: beside the folders of binaries.
fn installed(options: &Options) -> Result<PathBuf, String> {
    let folder = options.binaries.parent().unwrap_or(&options.binaries).join("mcp-servers");
    let wanted = [
        "node_modules/.bin/mcp-server-everything",
        "node_modules/.bin/mcp-server-filesystem",
        "node_modules/.bin/mcp-server-memory",
        "venv/bin/mcp-server-git",
        "venv/bin/mcp-server-time",
    ];
    let missing: Vec<&str> = wanted.into_iter().filter(|name| !folder.join(name).exists()).collect();
    if missing.is_empty() {
        return Ok(folder);
    }
    Err(format!(
        "missing in {}: {}; `cargo xtask test --install` installs them",
        folder.display(),
        missing.join(", ")
    ))
}

pub fn row(options: &Options) -> Report {
    let folder = match installed(options) {
        Ok(folder) => folder,
        Err(missing) => return Report::broken(missing),
    };
    let mut report = Report::default();
    let bench = Bench { options, folder };
    report.add("everything over stdio: each kind of result", bench.kinds());
    report.add("filesystem, memory, git, time", bench.others());
    report.add("filesystem, in the sandbox and without one", bench.confined());
    report.add("everything over streamable HTTP", bench.by_address("streamableHttp", "http", "mcp"));
    report.add("everything over server-sent events", bench.by_address("sse", "sse", "sse"));
    report.add("a call given up in the middle", bench.given_up());
    report.add("a call interrupted by a signal", bench.interrupted());
    report.add("a call interrupted by a host, and a form filled in", bench.led());
    report.add("a server killed in a call", bench.killed());
    let agents = options.count(20, 100);
    report.add(format_args!("{agents} agents on one server"), bench.many(agents));
    let held = report.runs - report.failures.len() as u64;
    report.figure(format!(
        "{held} of 10: five servers from npm and PyPI, three transports; {agents} agents on 1 process, 0 after"
    ))
}

struct Bench<'a> {
    options: &'a Options,
    folder: PathBuf,
}

impl Bench<'_> {
    /// A stand with these servers in the user's settings. Each process carries the stand's mark.
    fn stand(&self, script: &str, servers: &[(&str, Value)]) -> Result<Stand, String> {
        let script = script.to_owned();
        let stand = Stand::new(self.options, |work| script.replace("WORK", &work.to_string_lossy()));
        let stand = stand.map_err(|error| error.to_string())?;
        let mut declared = serde_json::Map::new();
        for (name, server) in servers {
            let text = server.to_string().replace("WORK", &stand.home.work().to_string_lossy());
            let mut server: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if server.get("command").is_some() {
                server["env"][MARKER] = json!(stand.home.marker());
            }
            declared.insert((*name).to_owned(), server);
        }
        let state = stand.home.state();
        fs::create_dir_all(&state).map_err(|error| error.to_string())?;
        // Programs in other languages take their time to start, and nothing is known of them yet.
        let settings = json!({"mcp": {"startupWait": 60_000}, "mcpServers": declared});
        fs::write(state.join("settings.json"), settings.to_string()).map_err(|error| error.to_string())?;
        Ok(stand)
    }

    fn npm(&self, name: &str, args: &[&str]) -> Value {
        json!({"command": self.folder.join("node_modules/.bin").join(name), "args": args})
    }

    fn pip(&self, name: &str, args: &[&str]) -> Value {
        json!({"command": self.folder.join("venv/bin").join(name), "args": args})
    }

    fn everything(&self) -> Value {
        self.npm("mcp-server-everything", &["stdio"])
    }

    fn kinds(&self) -> Result<(), String> {
        let calls = [
            ("mcp__everything__echo", json!({"message": "hi"})),
            ("mcp__everything__get-sum", json!({"a": 2, "b": 40})),
            ("mcp__everything__get-tiny-image", json!({})),
            ("mcp__everything__get-resource-links", json!({"count": 2})),
            ("mcp__everything__get-resource-reference", json!({"resourceType": "Text", "resourceId": 1})),
            ("mcp__everything__get-structured-content", json!({"location": "New York"})),
            ("mcp__everything__get-annotated-message", json!({"messageType": "error"})),
            ("mcp__everything__get-roots-list", json!({})),
            ("mcp__everything__trigger-elicitation-request", json!({})),
            ("mcp__everything__trigger-long-running-operation", json!({"duration": 1, "steps": 2})),
            ("mcp__everything__get-sum", json!({"a": "no number"})),
            ("ListMcpResources", json!({})),
        ];
        let wanted = [
            "Echo: hi",
            "42",
            "image/png",
            "[resource ",
            "[resource ",
            "temperature",
            "Error",
            "WORK",
            "decline",
            "completed",
            "rror",
            "everything\t",
        ];
        let stand = self.stand(&one_turn(&calls), &[("everything", self.everything())])?;
        let work = stand.home.work().to_string_lossy().into_owned();
        let run = finish(&stand)?;
        let found = results(&run);
        expect_each(&found, &wanted.map(|part| part.replace("WORK", &work)))
    }

    fn others(&self) -> Result<(), String> {
        let calls = [
            ("mcp__filesystem__write_file", json!({"path": "WORK/made.txt", "content": "by a server"})),
            ("mcp__filesystem__read_text_file", json!({"path": "WORK/made.txt"})),
            ("mcp__filesystem__read_text_file", json!({"path": "/etc/passwd"})),
            (
                "mcp__memory__create_entities",
                json!({"entities": [{"name": "ours", "entityType": "t", "observations": ["o"]}]}),
            ),
            ("mcp__memory__read_graph", json!({})),
            ("mcp__git__git_status", json!({"repo_path": "WORK"})),
            ("mcp__time__get_current_time", json!({"timezone": "UTC"})),
            ("mcp__time__get_current_time", json!({"timezone": "Nowhere/Land"})),
        ];
        let memory = {
            let mut server = self.npm("mcp-server-memory", &[]);
            server["env"] = json!({"MEMORY_FILE_PATH": "WORK/memory.json"});
            server
        };
        let stand = self.stand(
            &one_turn(&calls),
            &[
                ("filesystem", self.npm("mcp-server-filesystem", &["WORK"])),
                ("memory", memory),
                ("git", self.pip("mcp-server-git", &["--repository", "WORK"])),
                ("time", self.pip("mcp-server-time", &[])),
            ],
        )?;
        let init = stand.program("git").args(["init", "-q", "-b", "main", "."]).run(HANG);
        init.map_err(|error| error.to_string())?;
        let run = finish(&stand)?;
        let wanted = ["made.txt", "by a server", "denied", "ours", "ours", "ranch", "UTC", "rror"];
        expect_each(&results(&run), &wanted.map(str::to_owned))
    }

    /// What a server can do in the working directory, to which its own rules keep it.
    fn confined(&self) -> Result<(), String> {
        let calls = [
            ("mcp__filesystem__write_file", json!({"path": "WORK/made.txt", "content": "x"})),
            ("mcp__filesystem__write_file", json!({"path": "WORK/.git/config", "content": "x"})),
        ];
        for (sandbox, wanted) in [(true, [true, false]), (false, [true; 2])] {
            let server = self.npm("mcp-server-filesystem", &["/"]);
            let stand = self.stand(&one_turn(&calls), &[("filesystem", server)])?;
            let (home, work) = (&stand.home, stand.home.work());
            let ready = || -> std::io::Result<()> {
                stand.program("git").args(["init", "-q", "."]).run(HANG)?;
                if sandbox { Ok(()) } else { home.switch_sandbox_off() }
            };
            ready().map_err(|error| error.to_string())?;
            let found = results(&finish(&stand)?);
            let effects = [
                work.join("made.txt").exists(),
                fs::read(work.join(".git/config")).is_ok_and(|text| text == b"x"),
            ];
            if effects != wanted {
                return Err(format!("sandbox {sandbox}: {effects:?} instead of {wanted:?}: {found:?}"));
            }
        }
        Ok(())
    }

    /// The same server, reached by its address.
    fn by_address(&self, mode: &str, kind: &str, path: &str) -> Result<(), String> {
        let port = free_port()?;
        let calls = [
            ("mcp__web__echo", json!({"message": "over there"})),
            ("mcp__web__get-sum", json!({"a": 1, "b": 2})),
            ("mcp__web__trigger-long-running-operation", json!({"duration": 1, "steps": 2})),
        ];
        let server = json!({"type": kind, "url": format!("http://127.0.0.1:{port}/{path}")});
        let stand = self.stand(&one_turn(&calls), &[("web", server)])?;
        let program = stand.program(self.folder.join("node_modules/.bin/mcp-server-everything"));
        let serving =
            program.arg(mode).env("PORT", port.to_string()).start().map_err(|error| error.to_string())?;
        let answered = listens(port);
        let result = answered.and_then(|()| run_well(&stand)).and_then(|run| {
            expect_each(&results(&run), &["Echo: over there", "3", "completed"].map(str::to_owned))
        });
        end(serving);
        result
    }

    /// A call that takes too long is given up, and the server is none the worse.
    fn given_up(&self) -> Result<(), String> {
        let script = turns(&[
            &[("mcp__everything__trigger-long-running-operation", json!({"duration": 60, "steps": 60}))],
            &[("mcp__everything__echo", json!({"message": "still here"}))],
        ]);
        let mut server = self.everything();
        server["timeout"] = json!(2000);
        let stand = self.stand(&script, &[("everything", server)])?;
        let run = finish(&stand)?;
        expect_each(&results(&run), &["no answer within 2s", "Echo: still here"].map(str::to_owned))
    }

    /// The server behind a program that keeps a copy of what it is sent.
    fn tapped(&self) -> Value {
        let server = self.folder.join("node_modules/.bin/mcp-server-everything");
        json!({"command": "/bin/bash", "args": ["-c", "tee WORK/sent | exec \"$0\" stdio", server]})
    }

    /// A person ends a run in the middle of a call: the server is told that it is not wanted, and gone.
    fn interrupted(&self) -> Result<(), String> {
        let script = turns(&[&[(LONG, json!({"duration": 60, "steps": 60}))]]);
        let stand = self.stand(&script, &[("everything", self.tapped())])?;
        let running = stand.run("go").start().map_err(|error| error.to_string())?;
        sent(&stand, "tools/call")?;
        running.signal(rustix::process::Signal::INT).map_err(|error| error.to_string())?;
        let run = running.finish(HANG).map_err(|error| error.to_string())?;
        if run.timed_out || run.ending.code() != 130 {
            return Err(format!("ended with {:?}: {}", run.ending, brief(&run.errors)));
        }
        stand.check_left()?;
        sent(&stand, "notifications/cancelled")
    }

    /// A host interrupts a call and goes on: the server is told, lives, and is given what it asks a person for.
    fn led(&self) -> Result<(), String> {
        let script = turns(&[
            &[(LONG, json!({"duration": 60, "steps": 60}))],
            &[("mcp__everything__trigger-elicitation-request", json!({}))],
        ]);
        let stand = self.stand(&script, &[("everything", self.tapped())])?;
        let program = stand.program(stand.binary()).args(RUN).args(["--input-format", "stream-json"]);
        let mut running = program.start_talking().map_err(|error| error.to_string())?;
        let prompt = json!({"type": "user", "message": {"role": "user", "content": "go"}}).to_string();
        let interrupt =
            json!({"type": "control_request", "request_id": "i", "request": {"subtype": "interrupt"}});
        let say = |running: &mut Running, line: &str| running.say(line).map_err(|error| error.to_string());
        say(&mut running, &prompt)?;
        sent(&stand, "tools/call")?;
        say(&mut running, &interrupt.to_string())?;
        sent(&stand, "notifications/cancelled")?;
        say(&mut running, &prompt)?;
        let asks = |line: &str| line.contains("\"subtype\":\"elicitation\"");
        let asked = running.wait_for_line(HANG, asks).ok_or("nobody was asked")?;
        let asked: Value = serde_json::from_str(&asked).map_err(|error| error.to_string())?;
        let content = json!({"action": "accept", "content": {"name": "Ada of the test"}});
        let response = json!({"subtype": "success", "request_id": asked["request_id"], "response": content});
        say(&mut running, &json!({"type": "control_response", "response": response}).to_string())?;
        let answered = running.wait_for_line(HANG, |line| line.contains("tool_result")).is_some();
        running.hang_up();
        let run = running.finish(HANG).map_err(|error| error.to_string())?;
        stand.check_left()?;
        sent(&stand, "Ada of the test")?;
        let heard = results(&run).last().cloned().unwrap_or_default();
        if answered && heard.contains("Ada of the test") {
            return Ok(());
        }
        Err(format!("the server gave {}; {}", brief(&heard), brief(&run.errors)))
    }

    fn killed(&self) -> Result<(), String> {
        let script = turns(&[
            &[("mcp__everything__trigger-long-running-operation", json!({"duration": 60, "steps": 60}))],
            &[("mcp__everything__echo", json!({"message": "back again"}))],
            &[("mcp__time__get_current_time", json!({"timezone": "UTC"}))],
        ]);
        let servers = [("everything", self.tapped()), ("time", self.pip("mcp-server-time", &[]))];
        let stand = self.stand(&script, &servers)?;
        let running = stand.run("go").start().map_err(|error| error.to_string())?;
        // Killed before it has the call, it would be started again and take its minute.
        sent(&stand, "tools/call")?;
        let victims = of_server(&stand, "server-everything");
        if victims.is_empty() {
            return Err("there is no server to kill".into());
        }
        for pid in victims {
            kill(pid);
        }
        let run = running.finish(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
        stand.check_left()?;
        expect_each(
            &results(&run),
            &["went away while it worked", "Echo: back again", "UTC"].map(str::to_owned),
        )
    }

    fn many(&self, agents: u64) -> Result<(), String> {
        let call = "  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"general-purpose\"}\n";
        let calls = call.repeat(usize::try_from(agents).unwrap_or(1));
        let script = format!(
            "when agent=main turn=1\n{calls}when agent=main\n  say \"done\"\nwhen turn=1\n  \
             call mcp__everything__echo {{\"message\": \"one of many\"}}\nwhen\n  say \"used\"\n"
        );
        let stand = self.stand(&script, &[("everything", self.everything())])?;
        let running = stand.run("go").start().map_err(|error| error.to_string())?;
        let mut most = 0;
        let begun = Instant::now();
        let mut answered = 0;
        let wanted = usize::try_from(agents).unwrap_or_default() * 2;
        while answered < wanted && begun.elapsed() < HANG {
            most = most.max(of_server(&stand, "server-everything").len());
            answered = stand.model.requests().len();
        }
        let run = running.finish(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
        stand.check_left()?;
        let heard = results(&run).iter().filter(|text| text.contains("Echo: one of many")).count() as u64;
        if (most, heard) == (1, agents) {
            Ok(())
        } else {
            Err(format!("{most} processes at once, {heard} answers"))
        }
    }
}

/// Waits until a server was sent this.
fn sent(stand: &Stand, part: &str) -> Result<(), String> {
    let begun = Instant::now();
    let file = stand.home.work().join("sent");
    while !fs::read_to_string(&file).unwrap_or_default().contains(part) {
        if begun.elapsed() > HANG {
            return Err(format!("the server was not sent this: {part}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The processes of a server: those with the mark that run this program.
fn of_server(stand: &Stand, program: &str) -> Vec<i32> {
    let runs = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        memchr::memmem::find(&line, program.as_bytes()).is_some()
    };
    stand.home.processes().into_iter().filter(runs).collect()
}

fn run_well(stand: &Stand) -> Result<Finished, String> {
    let run = stand.run("go").run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    Ok(run)
}

/// Runs to the end, with nothing left of it.
fn finish(stand: &Stand) -> Result<Finished, String> {
    let run = run_well(stand)?;
    stand.check_left()?;
    Ok(run)
}

fn one_turn(calls: &[(&str, Value)]) -> String {
    turns(&[calls])
}

/// A model that makes these calls, turn by turn.
fn turns(all: &[&[(&str, Value)]]) -> String {
    let mut script = String::new();
    for (nth, calls) in all.iter().enumerate() {
        script.push_str(&format!("when turn={}\n", nth + 1));
        for (tool, input) in *calls {
            script.push_str(&format!("  call {tool} {input}\n"));
        }
    }
    script + "when\n  say \"done\"\n"
}

/// That the results hold these, one each. Calls that may overlap end in any order.
fn expect_each(found: &[String], wanted: &[String]) -> Result<(), String> {
    if found.len() != wanted.len() {
        return Err(format!("{} results, not {}: {}", found.len(), wanted.len(), brief(&found.join(" / "))));
    }
    let missing = wanted.iter().find(|part| !found.iter().any(|text| text.contains(part.as_str())));
    match missing {
        None => Ok(()),
        Some(part) => Err(format!(
            "expected {part:?} in {}",
            found.iter().map(|text| brief(text)).collect::<Vec<_>>().join(" / ")
        )),
    }
}

fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

fn listens(port: u16) -> Result<(), String> {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begun.elapsed() > HANG {
            return Err("the server does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn end(serving: Running) {
    let _ = serving.signal(rustix::process::Signal::KILL);
    let _ = serving.finish(Duration::from_secs(5));
}

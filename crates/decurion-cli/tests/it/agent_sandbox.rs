//! The `sandbox` of agents' definitions through the program: each agent reaches its own hosts and files, those below it no
//! more than it does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::stand::{Stand, finished};

/// A server that answers each connection with its name, and its port.
fn server(name: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let length = name.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{name}"
            );
        }
    });
    port
}

/// The results of calls in the last request of an agent whose first message has this text.
fn results(stand: &Stand, prompt: &str) -> String {
    let requests = stand.model.requests();
    let bodies = requests.iter().filter_map(|request| serde_json::from_slice::<Value>(&request.body).ok());
    let own = bodies.filter(|body| body["messages"][0].to_string().contains(prompt));
    let last = own.last().unwrap_or_else(|| panic!("no request of {prompt}"));
    let messages = last["messages"].as_array().unwrap().iter();
    let blocks = messages.filter_map(|message| message["content"].as_array()).flatten();
    blocks
        .filter(|block| block["type"] == "tool_result")
        .map(|block| format!("{}\n", block["content"]))
        .collect()
}

#[test]
fn agents_reach_their_own_hosts_and_files_and_their_children_no_more() {
    let (one, two) = (server("served-by-one"), server("served-by-two"));
    // What a program does is not in the text of the command, so that its analysis does not answer for the sandbox.
    let program = format!(
        "for my $port ({one}, {two}) {{ system(qq(curl -sS --noproxy '' -x \"\\$HTTP_PROXY\" http://127.0.0.1:$port/; echo)) }}\n\
         open(F, q(secrets/key)) and print <F>; open(F, q(>vendor/x)) or print qq(no vendor\\n); open(F, q(>made));\n"
    );
    let look = json!({"command": "perl look.pl"});
    let page = |port: u16| json!({"url": format!("http://127.0.0.1:{port}/"), "prompt": "p"});
    let agent =
        |kind: &str, prompt: &str| json!({"description": "d", "prompt": prompt, "subagent_type": kind});
    let script = format!(
        "when agent=main turn=1\n  call Agent {}\n  call Agent {}\nwhen agent=deployer turn=1\n  call Bash {look}\n  call WebFetch {}\n  \
         call WebFetch {}\n  call Read {}\n  call Agent {}\nwhen agent=loose turn=1\n  call Bash {look}\nwhen agent=offline turn=1\n  \
         call Bash {look}\n  call WebFetch {}\nwhen\n  say \"done\"\n",
        agent("deployer", "deploy now"),
        agent("offline", "stay offline"),
        page(one),
        page(two),
        json!({"file_path": "WORK/secrets/key"}),
        agent("loose", "be loose"),
        page(one),
    );
    let home = decurion_testkit::proc::Home::new().unwrap();
    let script = script.replace("WORK", home.work().to_str().unwrap());
    let stand = Stand::in_home(home, &script);
    let work = stand.home.work();
    for folder in ["secrets", "vendor", ".decurion/agents"] {
        fs::create_dir_all(work.join(folder)).unwrap();
    }
    fs::write(work.join("secrets/key"), "canary-key\n").unwrap();
    fs::write(work.join("look.pl"), program).unwrap();
    let definition = format!(
        "---\nname: deployer\ndescription: d\nsandbox:\n  network:\n    allowedDomains: [\"127.0.0.1:{one}\"]\n  filesystem:\n    \
         denyRead: [secrets]\n    denyWrite: [vendor]\n---\nDeploy.\n"
    );
    fs::write(work.join(".decurion/agents/deployer.md"), definition).unwrap();
    let agents = json!({
        // What it lists is not its parent's to give.
        "loose": {"description": "d", "prompt": "p", "sandbox": {"network": {"allowedDomains": [format!("127.0.0.1:{one}"), format!("127.0.0.1:{two}")]}}},
        "offline": {"description": "d", "prompt": "p", "sandbox": {"network": "none"}},
    });
    let hosts = [format!("127.0.0.1:{one}"), format!("127.0.0.1:{two}")];
    let settings = json!({"sandbox": {"network": {"allowedDomains": hosts}}, "agents": {"maxDepth": 3}});
    let run = finished(stand.decurion().args([
        "-p",
        "go",
        "--allowedTools",
        "Bash,WebFetch(domain:127.0.0.1),Agent,Read",
        "--agents",
        &agents.to_string(),
        "--settings",
        &settings.to_string(),
    ]));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    for prompt in ["deploy now", "be loose"] {
        let told = results(&stand, prompt);
        assert!(told.contains("served-by-one"), "{prompt}: {told}");
        assert!(!told.contains("served-by-two"), "{prompt}: {told}");
        assert!(!told.contains("canary-key"), "{prompt}: {told}");
        assert!(told.contains("no vendor"), "{prompt}: {told}");
    }
    let told = results(&stand, "deploy now");
    assert_eq!(told.matches("served-by-one").count(), 2, "{told}");
    assert!(told.contains("the definition of agent deployer allows only 127.0.0.1"), "{told}");
    let told = results(&stand, "stay offline");
    assert!(told.contains("the definition of agent offline denies it (sandbox.network: none)"), "{told}");
    assert!(!told.contains("served-by"), "{told}");
    // The control: what is not named of files is not forbidden to it.
    assert!(told.contains("canary-key"), "{told}");
    assert!(work.join("made").exists() && work.join("vendor/x").exists());
}

/// Runs a command of the agent `limited`, which has this sandbox, and one of the session itself; gives what both were told.
fn told_under(agent: &Value, settings: &Value, command: &str) -> [String; 2] {
    let call = json!({"command": command});
    let start = json!({"description": "d", "prompt": "do it limited", "subagent_type": "limited"});
    let stand = Stand::new(&format!(
        "when agent=main turn=1\n  call Bash {call}\n  call Agent {start}\nwhen agent=limited turn=1\n  call Bash {call}\n\
         when\n  say \"done\"\n"
    ));
    let agents = json!({"limited": {"description": "d", "prompt": "p", "sandbox": agent}});
    let (agents, settings) = (agents.to_string(), settings.to_string());
    let run = finished(stand.decurion().args([
        "-p",
        "go now",
        "--allowedTools",
        "Bash,Agent",
        "--agents",
        &agents,
        "--settings",
        &settings,
    ]));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    ["go now", "do it limited"].map(|prompt| results(&stand, prompt))
}

#[test]
fn agents_with_lists_of_hosts_have_no_network_without_the_proxy() {
    let port = server("served");
    let command = format!("curl -sS --noproxy '*' http://127.0.0.1:{port}/; echo ran");
    let open = json!({"sandbox": {"network": {"open": true}}});
    for network in [json!({"allowedDomains": ["a.example"]}), json!({"deniedDomains": ["a.example"]})] {
        let [session, limited] = told_under(&json!({"network": network}), &open, &command);
        assert!(session.contains("served"), "{session}");
        assert!(limited.contains("ran") && !limited.contains("served"), "{limited}");
    }
    let [_, files] = told_under(&json!({"filesystem": {"denyRead": ["x"]}}), &open, &command);
    assert!(files.contains("served"), "{files}");
}

#[test]
fn a_refused_host_names_the_definition_that_refuses_it() {
    let named = |network: &Value, host: &str| {
        let command = format!("curl -sS https://{host}/");
        let [_, limited] = told_under(&json!({"network": network}), &json!({}), &command);
        assert!(!limited.contains("PROXY") && !limited.contains("in the settings"), "{limited}");
        limited
    };
    let told = named(&json!("none"), "a.example");
    let why = "the definition of agent limited gives commands no network (sandbox.network: none)";
    assert!(told.contains(why), "{told}");
    for host in ["b.example", "10.1.2.3"] {
        let told = named(&json!({"allowedDomains": ["a.example"]}), host);
        assert!(told.contains("the definition of agent limited allows only a.example"), "{told}");
    }
    let told = named(&json!({"deniedDomains": ["pypi.org"]}), "pypi.org");
    let why = "the definition of agent limited (sandbox.network.deniedDomains) denies this host";
    assert!(told.contains(why), "{told}");
}

#[test]
fn agents_with_limits_run_no_command_outside_of_the_sandbox() {
    let off = json!({"sandbox": {"enabled": false}});
    let excluded = json!({"sandbox": {"excludedCommands": ["perl"]}});
    let shows = "perl -e 'print $ENV{TMPDIR}'";
    for agent in [json!({"network": "none"}), json!({"filesystem": {"denyWrite": ["x"]}})] {
        let [session, limited] = told_under(&agent, &off, "touch made");
        assert!(!session.contains("not started"), "{session}");
        let reason = "the command was not started: the definition of agent limited limits its sandbox";
        assert!(limited.contains(reason), "{limited}");
        // What is excluded runs in the sandbox, which has a folder of its own for temporary files.
        let [session, limited] = told_under(&agent, &excluded, shows);
        assert!(!session.contains("decurion-sandbox-"), "{session}");
        assert!(limited.contains("decurion-sandbox-"), "{limited}");
    }
}

#[test]
fn the_sandbox_of_an_agent_is_shown_and_slips_in_it_are_errors() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let folder = stand.home.work().join(".decurion/agents");
    fs::create_dir_all(&folder).unwrap();
    let head = "---\nname: a\ndescription: d\nsandbox:\n  network: {allowedDomains: [x.example]}\n";
    fs::write(folder.join("a.md"), format!("{head}---\nx\n")).unwrap();
    let explained = stand.run(&["agents", "explain", "a"]);
    assert!(explained.output().contains("reaches only x.example"), "{explained:?}");
    let shown = stand.run(&["agents", "show", "a"]);
    assert!(shown.output().contains("allowedDomains"), "{shown:?}");
    fs::write(folder.join("a.md"), format!("{head}  enabled: false\n---\nx\n")).unwrap();
    let linted = stand.run(&["agents", "lint"]);
    assert_eq!(linted.ending.code(), 1, "{linted:?}");
    assert!(linted.output().contains("a.md:6: error: `sandbox: enabled`"), "{linted:?}");
}

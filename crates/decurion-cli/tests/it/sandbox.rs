//! The sandbox through the program: what commands of a session can do by default, and what people are told.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use decurion_testkit::proc::Program;
use serde_json::{Value, json};

use crate::stand::{Stand, finished};

/// Runs commands, one call each, in a session where nobody can be asked. Gives their results.
pub fn results(stand: &Stand, arguments: &[&str]) -> Vec<String> {
    told(stand, stand.decurion().args(["-p", "go"]).args(arguments))
}

/// The results of all calls of a run, the last agent's that was asked.
pub fn told(stand: &Stand, program: Program) -> Vec<String> {
    let run = finished(program);
    assert!(matches!(run.ending.code(), 0 | 3), "{run:?}");
    stand.results().iter().map(|result| result.as_str().unwrap_or_default().to_owned()).collect()
}

pub fn stand(commands: &[&str]) -> Stand {
    let mut script = String::new();
    for (index, command) in commands.iter().enumerate() {
        let call = json!({"command": command});
        script.push_str(&format!("when agent=main turn={}\n  call Bash {call}\n", index + 1));
    }
    script.push_str("when\n  say \"done\"\n");
    let stand = Stand::new(&script);
    let work = stand.home.work();
    fs::create_dir_all(work.join("src")).unwrap();
    fs::create_dir_all(stand.home.path().join("out")).unwrap();
    for (file, text) in
        [("a.txt", "one\n"), ("b.txt", "two\nthree\n"), (".env", "canary\n"), ("src/c.txt", "")]
    {
        fs::write(work.join(file), text).unwrap();
    }
    stand
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_command_finds_the_packages_of_the_user_s_cargo() {
    let list = "ls $CARGO_HOME/registry/cache/index";
    let stand = stand(&[list]);
    let cache = stand.home.home().join(".cargo/registry/cache/index");
    fs::create_dir_all(&cache).unwrap();
    fs::write(cache.join("a-1.crate"), "").unwrap();
    // Otherwise commands of this home may write there.
    fs::write(stand.home.home().join(".claude/settings.json"), "{}").unwrap();
    // The text does not name the program, as that of a script or of make.
    assert_eq!(results(&stand, &["--allowedTools", "Bash"]), ["a-1.crate"]);
    let ran = stand.run(&["sandbox", "run", "--", "sh", "-c", list]);
    assert_eq!(
        (ran.ending.code(), ran.lines.as_slice()),
        (0, ["a-1.crate".to_owned()].as_slice()),
        "{ran:?}"
    );
}

#[test]
fn what_looks_as_if_it_reads_needs_no_question() {
    let commands = [
        "for f in *.txt; do wc -l \"$f\"; done",
        "x=$(cat a.txt); echo \"it is $x\"",
        "find . -name '*.txt' | xargs wc -l | tail -1",
        "if [ -f a.txt ]; then head -1 a.txt; fi",
        "diff <(sort a.txt) <(sort a.txt) && echo same",
    ];
    let stand = stand(&commands);
    let results = results(&stand, &[]);
    assert_eq!(results, ["1 a.txt\n2 b.txt", "it is one", " 3 total", "one", "same"]);
}

#[test]
fn what_only_looked_as_if_it_reads_has_no_effect() {
    let commands = [
        "for f in a.txt; do awk 'BEGIN { print \"x\" > \"made\" }'; done",
        "x=$(awk 'BEGIN { system(\"rm b.txt\") }'); echo \"$x\"",
        "echo $(( $(date '+a[$(touch made)]') ))",
        "for i in 1; do cat < /dev/tcp/127.0.0.1/1; done",
    ];
    let stand = stand(&commands);
    let before = names(&stand.home.work());
    let results = results(&stand, &[]);
    assert_eq!(names(&stand.home.work()), before, "{results:?}");
    assert!(results[0].contains("The sandbox refused to write "), "{}", results[0]);
}

#[test]
fn an_allowed_command_writes_in_the_working_directory_and_nowhere_else() {
    let commands = [
        "touch made && mkdir -p src/new && echo x > $TMPDIR/t && cat $TMPDIR/t",
        "perl -e 'open(F, q(>/etc/decurion-made)) or die $!'",
        "touch ../out/made; ln -s ../out way && touch way/made",
        "cat /tmp/t",
    ];
    let stand = stand(&commands);
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(results[0], "x");
    assert!(results[1].contains("Read-only file system"), "{}", results[1]);
    assert!(results[1].contains("it tried to write a read-only path"), "{}", results[1]);
    assert_eq!(names(&stand.home.path().join("out")), [""; 0], "{results:?}");
    assert!(stand.home.work().join("made").exists());
    // The private folder is also what it sees as /tmp.
    assert_eq!(results[3], "x");
}

#[test]
fn what_a_reader_leaves_is_there_for_readers_alone() {
    let plant = "for to in $TMPDIR /tmp /var/tmp /dev/shm; do \
                 awk -v to=$to 'BEGIN { print \"planted\" > (to \"/plant\") }' 2> /dev/null; done; cat $TMPDIR/plant";
    let search = "perl -e 'print grep { -e } map { qq($_/plant) } $ENV{TMPDIR}, qw(/tmp /var/tmp /dev/shm), \
                  glob(qq($ENV{TMPDIR}/../*)), glob(qq(/tmp/*)); open(F, q(>/tmp/log)) and print F q(work); print q(.)'";
    let stand = stand(&[plant, "x=plant; cat $TMPDIR/$x", search, "x=/tmp/log; cat $x"]);
    let seen = results(&stand, &["--allowedTools", "Bash(perl:*)"]);
    assert_eq!(seen, ["planted", "planted", ".", "work"]);
}

#[test]
fn rules_hold_for_whatever_an_allowed_command_runs() {
    let read = "perl -e 'open(F, q(.env)) and print <F>; open(F, q(<), q(./) . q(.e) . q(nv)) and print <F>'";
    let write = "perl -e 'rename q(src), q(s); open(F, q(>), q(src/c.txt)) and print F q(x)'; ls";
    let stand = stand(&[read, write]);
    let deny = "Read(.env),Edit(src/**)";
    let held = results(&stand, &["--allowedTools", "Bash(perl:*)", "--disallowedTools", deny]);
    assert!(!held.concat().contains("canary"), "{held:?}");
    assert_eq!(fs::read_to_string(stand.home.work().join("src/c.txt")).unwrap(), "");
    let control = self::stand(&[read, write]);
    let open = results(&control, &["--allowedTools", "Bash(perl:*)"]);
    assert!(open[0].contains("canary"), "{open:?}");
}

#[test]
fn settings_that_do_not_exist_yet_cannot_be_made() {
    let make = "mkdir -p .claude .vscode; echo '{}' > .claude/settings.json; \
                echo '{}' > .vscode/tasks.json; echo x > .git/hooks/pre-commit; git config core.fsmonitor x; echo ../src > .git/commondir; true";
    let stand = stand(&["git init -q . 2>&1; true", make, "git status --short"]);
    finished(stand.home.program("git").args(["init", "-q"]));
    let before = fs::read(stand.home.work().join(".git/config")).unwrap();
    let results = results(&stand, &["--allowedTools", "Bash"]);
    for name in [".claude", ".vscode", ".decurion", ".git/hooks/pre-commit", ".git/commondir"] {
        assert!(!stand.home.work().join(name).exists(), "{name}: {results:?}");
    }
    assert_eq!(fs::read(stand.home.work().join(".git/config")).unwrap(), before);
    // What holds their places is nothing to git.
    assert_eq!(
        results[2].lines().filter(|line| line.contains(".claude") || line.contains(".vscode")).count(),
        0
    );
}

#[test]
fn placeholders_of_a_killed_session_are_removed_when_the_next_one_begins() {
    let stand = stand(&["for f in .*; do echo $f; done"]);
    let work = stand.home.work();
    fs::create_dir(work.join(".idea")).unwrap();
    // As they are while one is made.
    fs::set_permissions(work.join(".idea"), fs::Permissions::from_mode(0o1700)).unwrap();
    fs::create_dir(work.join(".vscode")).unwrap();
    let results = results(&stand, &[]);
    assert_eq!(results, [".env\n.vscode"]);
    assert!(!work.join(".idea").exists());
}

#[test]
fn no_mode_leads_outside() {
    let mut stand = stand(&[]);
    let call = json!({"command": "touch ../out/made", "dangerouslyDisableSandbox": true});
    for mode in ["default", "dontAsk", "bypassPermissions", "acceptEdits", "plan"] {
        let script = format!("when agent=main turn=1\n  call Bash {call}\nwhen\n  say \"done\"\n");
        let home = stand.home;
        stand = Stand::in_home(home, &script);
        let results = results(&stand, &["--permission-mode", mode]);
        assert_eq!(names(&stand.home.path().join("out")), [""; 0], "{mode}: {results:?}");
    }
}

#[test]
fn a_rule_holds_in_the_checkout_that_an_agent_s_own_was_made_from() {
    let child = json!({"command": "cat $(echo WORK/.env); echo looked"});
    let agent = json!({"description": "d", "prompt": "p", "subagent_type": "general-purpose", "isolation": "worktree"});
    let home = decurion_testkit::proc::Home::new().unwrap();
    let work = home.work();
    let child = child.to_string().replace("WORK", work.to_str().unwrap());
    let script = format!(
        "when agent=main turn=1\n  call Agent {agent}\nwhen agent=general-purpose turn=1\n  call Bash {child}\nwhen\n  \
         say \"done\"\n"
    );
    let stand = Stand::in_home(home, &script);
    fs::write(work.join(".env"), "canary\n").unwrap();
    for arguments in [&["init", "-q"][..], &["add", "-f", ".gitignore"], &["commit", "-q", "-m", "x"]] {
        fs::write(work.join(".gitignore"), ".env\n").unwrap();
        let git =
            stand.home.program("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(arguments);
        assert_eq!(finished(git).ending.code(), 0);
    }
    let seen = |deny: &[&str]| {
        finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash(git:*)"]).args(deny));
        let requests = stand.model.requests();
        requests.iter().any(|request| String::from_utf8_lossy(&request.body).contains("canary"))
    };
    assert!(!seen(&["--disallowedTools", "Read(.env)"]));
    // Without the rule the same command reads it.
    let told = || String::from_utf8_lossy(&stand.model.requests().last().unwrap().body).into_owned();
    assert!(seen(&[]), "{}", told());
}

#[test]
fn a_host_that_is_not_listed_is_refused_and_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let fetch = format!("curl -sS --noproxy '' -x \"$HTTP_PROXY\" http://127.0.0.1:{port}/; exit 7");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").unwrap();
    });
    let refused = results(&stand(&[&fetch]), &["--allowedTools", "Bash"]);
    assert!(refused[0].contains(&format!("127.0.0.1:{port}")), "{refused:?}");
    assert!(refused[0].contains("sandbox.network.allowedDomains"), "{refused:?}");
    let settings =
        json!({"sandbox": {"network": {"allowedDomains": [format!("127.0.0.1:{port}")]}}}).to_string();
    let stand = stand(&[&fetch]);
    let fetched = results(&stand, &["--allowedTools", "Bash", "--settings", &settings]);
    assert!(fetched[0].contains("hello"), "{fetched:?}");
    server.join().unwrap();
}

#[test]
fn the_sandbox_can_be_looked_at_and_used_by_itself() {
    let stand = stand(&[]);
    let explained = stand.run(&["sandbox", "explain", "for f in *.txt; do cat $f; done"]);
    assert!(explained.output().contains("Runs without asking"), "{explained:?}");
    let asked = stand.run(&["sandbox", "explain", "make install"]);
    assert!(asked.output().contains("Needs permission"), "{asked:?}");
    assert!(asked.output().contains(stand.home.work().to_str().unwrap()), "{asked:?}");
    let ran = stand.run(&["sandbox", "run", "--", "sh", "-c", "touch made; touch ../out/made; exit 5"]);
    assert_eq!(ran.ending.code(), 5, "{ran:?}");
    assert!(stand.home.work().join("made").exists());
    assert_eq!(names(&stand.home.path().join("out")), [""; 0]);
    let reads = stand.run(&["sandbox", "run", "--read-only", "--", "touch", "made2"]);
    assert_eq!(reads.ending.code(), 1, "{reads:?}");
    assert!(!stand.home.work().join("made2").exists());
}

#[test]
fn settings_of_the_user_that_are_links_into_the_project_cannot_be_written() {
    let stand = stand(&[]);
    let (own, place) =
        (stand.home.home().join(".claude/settings.json"), stand.home.work().join("dotfiles.json"));
    fs::rename(&own, &place).unwrap();
    std::os::unix::fs::symlink(&place, &own).unwrap();
    let before = fs::read(&place).unwrap();
    let ran = stand.run(&["sandbox", "run", "--", "sh", "-c", "touch made; echo {} > dotfiles.json"]);
    assert!(stand.home.work().join("made").exists(), "{ran:?}");
    assert_eq!(fs::read(&place).unwrap(), before, "{ran:?}");
}

#[test]
fn a_folder_that_is_opened_under_a_roundabout_name_is_no_other_folder() {
    let stand = stand(&[]);
    let state = stand.home.state();
    let roundabout = format!("{0}/../{1}", state.display(), state.file_name().unwrap().to_str().unwrap());
    let settings = json!({"sandbox": {"filesystem": {"allowWrite": [roundabout]}}});
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("settings.json"), settings.to_string()).unwrap();
    let command = format!("touch made; touch {}/made", state.display());
    let ran = stand.run(&["sandbox", "run", "--", "sh", "-c", &command]);
    assert!(stand.home.work().join("made").exists(), "{ran:?}");
    assert!(!state.join("made").exists(), "{ran:?}");
}

#[test]
fn a_sandbox_that_is_switched_off_is_shown() {
    let stand = stand(&[]).without_sandbox();
    let doctor = stand.run(&["doctor", "--json"]);
    let facts: Value = serde_json::from_str(&doctor.output()).unwrap();
    assert_eq!(facts["sandbox"], "off");
    let on: Value = serde_json::from_str(&self::stand(&[]).run(&["doctor", "--json"]).output()).unwrap();
    assert_eq!(on["sandbox"], "namespaces");
}

/// Where commands may write next to the state folder, as in a home folder that is worked in, and where bash does not start.
#[test]
fn doctor_reports_neither_kept_nor_broken_promises_that_it_could_not_try() {
    let proof = |stand: &Stand, cwd: &Path, promise: &str| {
        let run = finished(stand.decurion().cwd(cwd).args(["doctor", "--json"]));
        let facts: Value = serde_json::from_str(&run.output()).unwrap();
        let proofs = facts["sandbox_proofs"].as_array().unwrap();
        let found = proofs.iter().find(|proof| proof["promise"].as_str().unwrap().starts_with(promise));
        (found.unwrap().clone(), run.ending.code())
    };
    let stand = stand(&[]);
    let (tried, _) = proof(&stand, &stand.home.work(), "write outside");
    assert_eq!(tried["held"], true, "{tried}");
    let (above, code) = proof(&stand, stand.home.path(), "write outside");
    assert!(above["held"].is_null() && code == 0, "{above}");
    let libraries = finished(stand.home.program("ldd").arg("/bin/bash"));
    let library = libraries.lines.iter().find_map(|line| line.split("=> ").nth(1)?.split(' ').next());
    let library = fs::canonicalize(library.unwrap()).unwrap();
    let hidden = json!({"sandbox": {"filesystem": {"denyRead": [format!("/{}", library.display())]}}});
    fs::write(stand.home.home().join(".claude/settings.json"), hidden.to_string()).unwrap();
    for promise in ["write outside", "read Decurion's", "connect", "leave a process", "look into other"] {
        let (untried, _) = proof(&stand, &stand.home.work(), promise);
        assert!(untried["problem"].to_string().contains("do not start in the sandbox"), "{untried}");
    }
}

#[test]
fn a_connection_that_is_open_when_its_command_ends_is_on_record() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It keeps what it accepts open and never answers.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let open = format!(
        "t=${{HTTP_PROXY#http://}}; t=${{t%@*}}; p=${{HTTP_PROXY##*:}}; exec 3<>/dev/tcp/127.0.0.1/$p; \
         printf 'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nProxy-Authorization: Basic %s\\r\\n\\r\\n' \
         \"$(printf %s \"$t\" | base64 -w0)\" >&3; head -1 <&3; printf 'twelve bytes' >&3"
    );
    let settings =
        json!({"sandbox": {"network": {"allowedDomains": [format!("127.0.0.1:{port}")]}}}).to_string();
    let stand = stand(&[&open, "true"]);
    let opened = results(&stand, &["--allowedTools", "Bash", "--settings", &settings]);
    assert!(opened[0].contains("200"), "{opened:?}");
    let audit = stand.run(&["audit", "show", "--kind", "egress"]).output();
    assert!(audit.contains(&format!("  allow   connect to 127.0.0.1:{port} (127.0.0.1), ")), "{audit}");
    assert!(audit.contains(": rule: the setting sandbox.network.allowedDomains"), "{audit}");
    let transcripts: String =
        stand.written().iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let recorded = transcripts
        .lines()
        .filter(|line| line.contains("\"connection\"") && line.contains(&port.to_string()));
    assert_eq!(recorded.count(), 1, "{audit}");
}

#[test]
fn a_host_that_nobody_could_be_asked_about_was_not_denied_by_a_person() {
    let stand = stand(&["curl -sS https://unlisted.example/"]);
    let refused = results(&stand, &["--allowedTools", "Bash"]);
    assert!(refused[0].contains("unlisted.example:443"), "{refused:?}");
    let audit = stand.run(&["audit", "show", "--kind", "egress"]).output();
    assert!(audit.contains("  deny    connect to unlisted.example:443"), "{audit}");
    assert!(audit.contains(": policy: ") && audit.contains("this host is not allowed"), "{audit}");
}

/// Remotes count where the folder is trusted, as they were when the session began.
#[test]
fn only_remotes_of_a_trusted_folder_open_their_host() {
    let push = "git config -f .git/config remote.evil.url https://evil.example/x; mkdir -p n && cd n && git init -q . && \
                git remote add origin https://nested.example/x; curl -sS https://nested.example/; curl -sS https://evil.example/; \
                curl -sS https://origin.example/; exit 3";
    for trusted in [false, true] {
        let stand = stand(&[push]);
        finished(stand.home.program("git").args(["init", "-q"]));
        let add = ["remote", "add", "origin", "https://origin.example/x"];
        finished(stand.home.program("git").args(add));
        if trusted {
            assert_eq!(stand.run(&["trust", "--yes"]).ending.code(), 0);
        }
        results(&stand, &["--allowedTools", "Bash"]);
        let audit = stand.run(&["audit", "show", "--kind", "egress"]).output();
        let refused = |host: &str| {
            audit.lines().any(|line| line.contains(host) && line.contains("this host is not allowed"))
        };
        assert!(refused("nested.example") && refused("evil.example"), "{trusted}: {audit}");
        // That it is allowed is what shows: there is no such host to look up.
        assert_eq!(refused("origin.example"), !trusted, "{trusted}: {audit}");
    }
}

/// Answers each request on a port of this machine with this page.
fn serve(page: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{page}", page.len());
        }
    });
    port
}

#[test]
fn pages_go_through_the_same_gate_and_are_on_record() {
    let port = serve("x".repeat(1000));
    let fetch = json!({"url": format!("http://127.0.0.1:{port}/"), "prompt": "p"});
    let script = format!("when agent=main turn=1\n  call WebFetch {fetch}\nwhen\n  say \"done\"\n");
    for denied in [false, true] {
        let stand = Stand::new(&script);
        let hosts = if denied { vec!["127.0.0.1"] } else { Vec::new() };
        let settings = json!({"sandbox": {"network": {"deniedDomains": hosts}}}).to_string();
        let read =
            results(&stand, &["--allowedTools", "WebFetch(domain:127.0.0.1)", "--settings", &settings]);
        assert_eq!(read[0].contains("xxxx"), !denied, "{read:?}");
        let audit = stand.run(&["audit", "show", "--kind", "egress"]).output();
        let verdict = if denied { "deny" } else { "allow" };
        assert!(audit.contains(&format!("  {verdict:<6}  connect to 127.0.0.1:{port}")), "{audit}");
        let down =
            audit.split("bytes up, ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        assert_eq!(down.is_some_and(|down| down >= 1000), !denied, "{audit}");
        let files = stand.written();
        let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
        let events = texts.map(|text| text.matches("\"connection\"").count()).sum::<usize>();
        assert_eq!(events, 1, "{denied}: {audit}");
    }
}

#[test]
fn a_long_list_of_refused_hosts_is_cut() {
    let stand = stand(&["for i in $(seq 30); do curl -sS http://h$i.example/; done; exit 3"]);
    let read = results(&stand, &["--allowedTools", "Bash"]).remove(0);
    assert!(read.contains("h20.example:80, others"), "{read}");
}

/// A page of this machine by its name, with a rule that allows it: what was read, under these settings.
fn page_under(settings: &Value) -> String {
    let port = serve("served".to_owned());
    let fetch = json!({"url": format!("http://localhost:{port}/"), "prompt": "p"});
    let stand =
        Stand::new(&format!("when agent=main turn=1\n  call WebFetch {fetch}\nwhen\n  say \"done\"\n"));
    let arguments = ["--allowedTools", "WebFetch(domain:localhost)", "--settings", &settings.to_string()];
    results(&stand, &arguments).remove(0)
}

#[test]
fn denied_addresses_hold_for_pages_under_every_name() {
    for denied in ["127.0.0.1", "127.0.0.0/8"] {
        let read = page_under(&json!({"sandbox": {"network": {"deniedDomains": [denied, "::1"]}}}));
        assert!(read.contains("sandbox.network.deniedDomains") && read.contains(denied), "{read}");
    }
    let read = page_under(&json!({"sandbox": {"network": {"deniedDomains": ["10.0.0.1"]}}}));
    assert!(read.contains("served"), "{read}");
}

#[test]
fn denied_hosts_hold_for_pages_without_the_proxy_and_the_sandbox() {
    for network in [json!({"open": true}), json!({})] {
        let mut settings = json!({"sandbox": {"enabled": network != json!({}), "network": network}});
        let read = page_under(&settings);
        assert!(read.contains("served"), "{settings}: {read}");
        settings["sandbox"]["network"]["deniedDomains"] = json!(["localhost"]);
        let read = page_under(&settings);
        assert!(!read.contains("served"), "{settings}: {read}");
    }
}

#[test]
fn denied_hosts_that_cannot_be_read_deny_every_page() {
    let read = page_under(&json!({"sandbox": {"network": {"deniedDomains": ["https://evil.example/"]}}}));
    assert!(read.contains("https://evil.example/") && !read.contains("served"), "{read}");
}

#[test]
fn explaining_a_command_lists_its_hosts_and_what_it_reads_in_hidden_folders() {
    let stand = stand(&[]);
    let explain = |network: Value, arguments: &[&str]| {
        let settings =
            json!({"sandbox": {"network": network}, "permissions": {"deny": ["WebFetch(domain:pypi.org)"]}});
        fs::create_dir_all(stand.home.path().join(".decurion")).unwrap();
        fs::write(stand.home.path().join(".decurion/settings.json"), settings.to_string()).unwrap();
        stand.run(&[&["sandbox", "explain"], arguments].concat()).output()
    };
    let listed =
        json!({"allowedDomains": ["example.com", "*.example.org"], "deniedDomains": ["rubygems.org"]});
    let told = explain(listed.clone(), &["make install"]);
    let line = |text: &str| told.lines().any(|line| line.trim() == text);
    assert!(line("network: through the proxy, to these hosts"), "{told}");
    assert!(line("example.com, *.example.org (the setting sandbox.network.allowedDomains)"), "{told}");
    assert!(told.contains("crates.io, ") && told.contains("(the default list)"), "{told}");
    assert!(!told.contains("pypi.org") && !told.contains("rubygems.org"), "{told}");
    let json: Value = serde_json::from_str(&explain(listed, &["--json", "make install"])).unwrap();
    assert_eq!(json["sandbox"]["networkOpen"], false, "{json}");
    assert!(json["sandbox"]["hosts"].as_array().unwrap().contains(&json!("example.com")), "{json}");
    let told = explain(json!({"open": true}), &["make install"]);
    assert!(told.contains("network: that of this machine (sandbox.network.open)"), "{told}");
    // The home folder is hidden from a command that only reads, its programs are not.
    fs::create_dir_all(stand.home.home().join(".cargo")).unwrap();
    let told = explain(json!({}), &["ls"]);
    let home = stand.home.home();
    let (_, shown) = told.split_once("  except\n").unwrap();
    assert!(shown.contains(&format!("{}/.cargo\n", home.display())), "{told}");
    assert!(shown.contains("network: none"), "{told}");
}

#[test]
fn commands_that_only_read_find_the_programs_of_every_folder_that_is_searched() {
    let stand = stand(&[]);
    let top = stand.home.path().join("tools");
    for (name, text) in [("bin/tool", "cat ${0%/bin/tool}/lib/text"), ("lib/text", "loaded")] {
        let file = top.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = stand.decurion().env("PATH", format!("{}/bin:/usr/bin:/bin", top.display()));
    let found = finished(program.args(["sandbox", "run", "--read-only", "--", "sh", "-c", "tool"]));
    assert!(found.output().contains("loaded"), "{found:?}");
    // The home folder is not shown for a program in it.
    fs::write(stand.home.home().join("notes.txt"), "canary").unwrap();
    let program = stand.decurion().env("PATH", format!("{}:/usr/bin:/bin", stand.home.home().display()));
    let read = finished(program.args(["sandbox", "run", "--read-only", "--", "sh", "-c", "cat ~/notes.txt"]));
    assert!(!read.output().contains("canary"), "{read:?}");
}

#[test]
fn a_required_sandbox_is_not_landlock_alone() {
    // In a sandbox no other one can make namespaces.
    let stand = stand(&[]);
    fs::copy(crate::stand::DECURION, stand.home.work().join("decurion")).unwrap();
    let nested = |settings: &str| {
        // Without a prompt it ends before it asks a model.
        stand.run(&["sandbox", "run", "--", "./decurion", "-p", "--settings", settings])
    };
    let refused = nested(r#"{"sandbox": {"required": true}}"#);
    assert_eq!(refused.ending.code(), 2, "{refused:?}");
    assert!(refused.errors.contains("by Landlock alone, which protects less"), "{refused:?}");
    assert!(
        refused.errors.contains("`sandbox.required` (or `failIfUnavailable`) asks for more"),
        "{refused:?}"
    );
    let warned = nested("{}");
    assert!(warned.errors.contains("commands are sandboxed by Landlock alone"), "{warned:?}");
}

#[test]
fn settings_of_the_sandbox_that_cannot_be_used_are_reported_at_the_start() {
    let network = json!({"allowedDomains": ["https://foo.test/", "exa mple", "*", "fine.test"], "deniedDomains": ["a b"]});
    let settings =
        json!({"sandbox": {"network": network, "filesystem": {"allowWrite": ["~/absent", "$HOME/x", "~"]}}});
    let stand = stand(&[]);
    let run = finished(stand.decurion().args(["-p", "go", "--settings", &settings.to_string()]));
    let told =
        |start: &str, text: &str| run.errors.lines().any(|line| line.contains(start) && line.contains(text));
    for (start, text) in [
        ("allowedDomains: cannot use host pattern \"https://foo.test/\"", "name its host alone"),
        ("allowedDomains: cannot use host pattern \"*\"", "`sandbox.network.open` opens the network"),
        ("allowedDomains: cannot use host pattern \"exa mple\"", "commands cannot reach it"),
        ("deniedDomains: cannot use host pattern \"a b\"", "commands reach no host"),
        ("allowWrite: ~/absent does not exist", "make it first"),
        ("allowWrite: $HOME/x does not exist", "make it first"),
    ] {
        assert!(told(start, text), "{start} {text}: {run:?}");
    }
    assert!(!run.errors.contains("fine.test") && !run.errors.contains("allowWrite: ~ "), "{run:?}");
}

#[test]
fn the_facts_for_a_report_are_what_the_guide_promises() {
    let stand = stand(&[]);
    let settings =
        json!({"sandbox": {"excludedCommands": ["docker"], "network": {"allowedDomains": ["a.example"]}}});
    fs::write(stand.home.state().join("settings.json"), settings.to_string()).unwrap();
    let run = stand.run(&["doctor", "--json"]);
    let facts: Value = serde_json::from_str(&run.output()).unwrap();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(facts["kernel"], kernel.trim(), "{facts}");
    assert_eq!(facts["sandbox_settings"]["excludedCommands"], json!(["docker"]), "{facts}");
    assert_eq!(facts["sandbox_settings"]["network"]["allowedDomains"], json!(["a.example"]), "{facts}");
    assert!(facts["sandbox_proofs"].as_array().is_some_and(|proofs| !proofs.is_empty()), "{facts}");
}

#[test]
fn doctor_tries_to_read_keys_and_fails_where_a_promise_is_not_kept() {
    let stand = stand(&[]);
    let ssh = stand.home.home().join(".ssh");
    fs::create_dir_all(&ssh).unwrap();
    fs::write(ssh.join("id_test"), "key").unwrap();
    let held = stand.run(&["doctor"]);
    assert_eq!(held.ending.code(), 0, "{held:?}");
    for line in
        ["✓ Model ", "✓ Project ", "✓ Sandbox   on (namespaces)", "✓           commands cannot read ~/.ssh"]
    {
        assert!(held.output().lines().any(|known| known.starts_with(line)), "{line}: {held:?}");
    }
    assert!(!held.output().contains("null"), "{held:?}");
    let settings = json!({"sandbox": {"filesystem": {"allowRead": ["~/.ssh", stand.home.state()]}}});
    fs::write(stand.home.home().join(".claude/settings.json"), settings.to_string()).unwrap();
    let broken = stand.run(&["doctor"]);
    assert_eq!(broken.ending.code(), 1, "{broken:?}");
    for line in [
        "✗           PROBLEM: a command could read Decurion's own files",
        "!           not tried: commands cannot read ~/.ssh (sandbox.filesystem.allowRead shows it)",
    ] {
        assert!(broken.output().lines().any(|known| known.starts_with(line)), "{line}: {broken:?}");
    }
}

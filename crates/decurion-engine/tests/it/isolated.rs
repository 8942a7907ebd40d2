//! Agents in checkouts of their own: begun there, kept to it, told how paths are called there, and reported
//! with what they left.

use std::fs;
use std::sync::Arc;

use decurion_engine::AgentSettings;
use decurion_engine::worktree::{WorktreeSettings, Worktrees};
use decurion_protocol::{
    AgentDefinition, Block, Command, Envelope, Event, Mode, OpenSession, Outcome, Place as _, Reply, Rule,
    RunSpec, Start, agent::Equipment,
};
use decurion_store::{LeaseState, Leases};
use decurion_testkit::repo::Repo;
use decurion_testkit::stage::{Played, Stage, send};
use expect_test::expect;
use futures_util::StreamExt as _;

use crate::worktrees::{git_for_tests, utf8};

/// A stage that works in a repository, with the real tools and a definition that asks for isolation.
pub fn stage(repo: &Repo, script: &str) -> Stage {
    let mut stage = Stage::new(script);
    let git = git_for_tests();
    stage.processes = Some(git.guard().clone());
    let leases = Leases::new(stage.archive().layout().home());
    stage.worktrees =
        Some(Worktrees::new(git, leases, WorktreeSettings::default(), Arc::clone(&stage.clock)));
    stage.agent_settings = AgentSettings { max_depth: 2, ..AgentSettings::default() };
    stage.request.cwd = utf8(repo.path());
    stage.tools.extend(decurion_tools::builtin_with(true));
    for rule in ["Bash", "Write", "Edit", "Read"] {
        stage.rules.allow.push(Rule::parse(rule, Default::default()).unwrap());
    }
    let equipment = Equipment { isolation: Some("worktree".to_owned()), ..Equipment::default() };
    stage.agents.push(Arc::new(AgentDefinition {
        name: "apart".into(),
        description: "works apart".into(),
        prompt: "You work apart.".into(),
        equipment,
        ..AgentDefinition::default()
    }));
    stage
}

fn spec(played: &Played) -> RunSpec {
    let of_agent = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::RunStarted { spec } if spec.agent.is_some() => Some((**spec).clone()),
        _ => None,
    };
    played.events.iter().find_map(of_agent).unwrap()
}

/// What calls of a tool came to, of agents or of the root.
pub fn results(played: &Played, tool: &str, of_agents: bool) -> Vec<String> {
    let of_tool = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::CallEnded { tool: called, output, .. }
            if called == tool && envelope.agent.is_some() == of_agents =>
        {
            Some(output.content.text())
        }
        _ => None,
    };
    played.events.iter().filter_map(of_tool).collect()
}

/// Ids, folders and commits of this run replaced.
fn masked(played: &Played, repo: &Repo, text: &str) -> String {
    let spec = spec(played);
    let worktree = spec.worktree.as_deref().unwrap();
    text.replace(worktree.path.as_str(), "TREE")
        .replace(spec.agent.as_ref().unwrap().as_str(), "ID")
        .replace(&worktree.base, "BASE")
        .replace(utf8(repo.path()).as_str(), "REPO")
}

const DELEGATE: &str = r#"
when agent=main turn=1
  call Agent {"description": "change it", "prompt": "go", "subagent_type": "apart"}
when agent=main
  say "done"
"#;

#[tokio::test]
async fn an_agent_can_be_sent_to_the_background_before_its_task_is_there() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let stage = stage(&repo, &format!("when agent=apart\n  say \"changed\"\n{DELEGATE}"));
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let (mut reply, mut result) = (None, None);
    while reply.is_none() || result.is_none() {
        let envelope = link.events.next().await.expect("the session ended");
        match &envelope.event {
            // Its checkout is still to be made.
            Event::CallStarted { .. } if envelope.agent.is_none() => {
                send(&link, 2, Command::Background { target: None }).await;
            }
            Event::Replied { request, reply: to_us } if request.0 == 2 => reply = Some(to_us.clone()),
            Event::CallEnded { output, .. } if envelope.agent.is_none() => {
                result = Some(output.structured.clone().unwrap_or_default());
            }
            _ => {}
        }
    }
    assert_eq!(reply, Some(Reply::Done { value: 1.into() }));
    let result = result.unwrap();
    assert_eq!((&result["status"], &result["backgroundedByUser"]), (&"async_launched".into(), &true.into()));
}

#[tokio::test]
async fn what_an_agent_changes_is_on_its_own_branch_and_in_its_report() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = r#"
when agent=apart turn=1
  call Bash {"command": "echo two > a.txt && git -c user.name=A -c user.email=a@b commit -qam 'second' && pwd"}
when agent=apart turn=2
  call Bash {"command": "echo new > new.txt"}
when agent=apart
  say "changed"
"#;
    let stage = stage(&repo, &format!("{script}{DELEGATE}"));
    let played = stage.play("go").await;
    let spec = spec(&played);
    let worktree = spec.worktree.as_deref().unwrap();
    assert_eq!(results(&played, "Bash", true)[0].trim(), worktree.path.as_str());
    assert_eq!(spec.cwd, worktree.path);
    assert_eq!(worktree.base, repo.git(&["rev-parse", "HEAD"]).unwrap().trim());
    assert_eq!(repo.status().unwrap(), "", "the shared folder is as it was");
    let report = masked(&played, &repo, &results(&played, "Agent", false)[0]);
    let report = report.split("<usage>").next().unwrap();
    expect![[r"
        changed

        agentId: ID (for `resume` or SendMessage, if its work should go on; not for the user)
        Its work is in a separate checkout, not here: 1 commit, 1 file changed, +1 -1, 1 untracked, not all committed.
        worktreePath: TREE
        worktreeBranch: decurion/ID
        worktreeBase: BASE
    "]].assert_eq(report);
    let log = repo.git(&["log", "--format=%s", &worktree.branch]).unwrap();
    assert_eq!(log, "second\nfirst\n");
    // It is told where it is.
    let told = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::Message { message, .. } if envelope.agent.is_some() => Some(message.text()),
        _ => None,
    });
    let told = masked(&played, &repo, &told.unwrap());
    expect![[r"

        You work in a git checkout of your own, on the branch decurion/ID, which began at BASE.
        A path below REPO that you are told of means the same path below TREE.
        Nothing outside of TREE may be changed. What you change stays on your branch, committed or not, and others decide about merging it.
        </worktree>"]].assert_eq(told.split_once("<worktree>").unwrap().1);
    assert!(told.contains("Working directory: TREE\n") && !told.contains("Also allowed"), "{told}");
}

#[tokio::test]
async fn what_the_session_reads_without_a_question_its_agents_read_from_their_checkouts() {
    let repo = Repo::with_files(&[("a.txt", "one\n"), ("sub/b.txt", "two\n")]).unwrap();
    let top = utf8(repo.path());
    fs::write(top.join("sub/new.txt"), "uncommitted\n").unwrap();
    let script = format!(
        "when agent=apart turn=1\n  call Read {{\"file_path\": \"{top}/sub/new.txt\"}}\n  call Read {{\"file_path\": \"{top}/sub/secret.txt\"}}\n  call Read {{\"file_path\": \"{top}/a.txt\"}}\n  call Read {{\"file_path\": \"/etc/hostname\"}}\nwhen agent=apart\n  say \"read\"\n{DELEGATE}"
    );
    let mut stage = stage(&repo, &script);
    stage.request.cwd = top.join("sub");
    stage.rules.allow.retain(|rule| rule.tool != "Read");
    stage.rules.deny.push(Rule::parse("Read(/secret.txt)", Default::default()).unwrap());
    let played = stage.play("go").await;
    let mut said: Vec<String> =
        results(&played, "Read", true).iter().map(|said| masked(&played, &repo, said)).collect();
    // They read at the same time, and end in any order.
    said.sort();
    expect![[r"
        1	uncommitted
        2	
        Permission denied: denied by Read(/secret.txt)
        Permission denied: it reads outside the working directory: /etc/hostname; permission cannot be requested in this non-interactive session (the rule Read(//etc/hostname) would allow it)
        Permission denied: it reads outside the working directory: REPO/a.txt; use TREE/a.txt instead; permission cannot be requested in this non-interactive session (the rule Read(/REPO/a.txt) would allow it)"]].assert_eq(&said.join("\n"));
}

#[tokio::test]
async fn what_is_not_committed_and_did_not_come_along_is_told() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    fs::write(repo.path().join("b.txt"), "two\n").unwrap();
    let told = |played: &Played| -> String {
        let said = |envelope: &Arc<Envelope>| match &envelope.event {
            Event::Message { message, .. } => Some(message.text()),
            Event::CallEnded { output, .. } => Some(output.content.text()),
            _ => None,
        };
        played.events.iter().filter_map(said).collect()
    };
    let line =
        format!("What was changed below {} and not committed when you began is not here.", utf8(repo.path()));
    for (isolation, expected) in [("worktree", 1), ("worktree+dirty", 0)] {
        let script = DELEGATE.replace("\"apart\"", &format!("\"apart\", \"isolation\": \"{isolation}\""));
        let stage = stage(&repo, &format!("when agent=apart\n  say \"looked\"\n{script}"));
        assert_eq!(told(&stage.play("go").await).matches(&line).count(), expected, "{isolation}");
    }
    let mut own = stage(&repo, "when\n  say \"looked\"\n");
    own.request.worktree = Some("own".to_owned());
    assert!(told(&own.play("go").await).contains(&line));
    let mut entered = stage(&repo, "when turn=1\n  call EnterWorktree {}\nwhen\n  say \"looked\"\n");
    entered.rules.allow.push(Rule::parse("EnterWorktree", Default::default()).unwrap());
    assert!(told(&entered.play("go").await).contains(&line));
}

#[tokio::test]
async fn an_agent_that_changed_nothing_leaves_nothing() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let stage = stage(&repo, &format!("when agent=apart\n  say \"looked\"\n{DELEGATE}"));
    let played = stage.play("go").await;
    let report = &results(&played, "Agent", false)[0];
    assert!(report.starts_with("looked") && !report.contains("worktree"), "{report}");
    assert!(!spec(&played).worktree.unwrap().path.exists());
    assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
    let steps = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::Prepared { steps } => Some(steps.clone()),
        _ => None,
    });
    let order: Vec<String> = steps.unwrap().iter().map(|step| format!("{:?}", step.step)).collect();
    assert_eq!(order[..6], ["Definition", "Model", "Id", "Tools", "Worktree", "Task"]);
}

#[tokio::test]
async fn nothing_outside_of_its_checkout_is_changed() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let path = utf8(repo.path());
    let script = format!(
        r#"
when agent=apart turn=1
  call Write {{"file_path": "{path}/b.txt", "content": "x"}}
when agent=apart turn=2
  call Bash {{"command": "cd {path} && touch c.txt"}}
when agent=apart turn=3
  call Bash {{"command": "there=$(git rev-parse --path-format=absolute --git-common-dir) && ln -s ${{there%/.git}} link && ls -d link"}}
when agent=apart turn=4
  call Write {{"file_path": "link/d.txt", "content": "x"}}
when agent=apart turn=5
  call Agent {{"description": "below", "prompt": "go", "subagent_type": "worker"}}
when agent=apart
  say "tried"
when agent=worker turn=1
  call Write {{"file_path": "{path}/e.txt", "content": "x"}}
when agent=worker
  say "tried too"
{DELEGATE}"#
    );
    let mut stage = stage(&repo, &script);
    stage.request.mode = Some(Mode::BypassPermissions);
    let played = stage.play("go").await;
    assert_eq!(repo.status().unwrap(), "");
    let writes = results(&played, "Write", true).join("\n");
    expect![[r"
        Permission denied: REPO/b.txt is outside of the checkout that this agent works in, and nothing outside of TREE may be changed. Use TREE/b.txt instead.
        Permission denied: REPO/d.txt is outside of the checkout that this agent works in, and nothing outside of TREE may be changed. Use TREE/d.txt instead.
        Permission denied: REPO/e.txt is outside of the checkout that this agent works in, and nothing outside of TREE may be changed. Use TREE/e.txt instead."]].assert_eq(&masked(&played, &repo, &writes));
    let bash = results(&played, "Bash", true);
    expect![[r"
        Permission denied: REPO/c.txt is outside of the checkout that this agent works in, and nothing outside of TREE may be changed. Use TREE/c.txt instead.
        link"]].assert_eq(&masked(&played, &repo, &bash.join("\n")));
}

#[tokio::test]
async fn rules_of_the_first_checkout_hold_in_that_of_an_agent_below_an_agent() {
    let repo = Repo::with_files(&[("a.txt", "one\n"), ("secret.txt", "s\n")]).unwrap();
    let path = utf8(repo.path());
    let script = format!(
        r#"
when agent=apart turn=1
  call Agent {{"description": "below", "prompt": "go", "subagent_type": "deeper"}}
when agent=apart
  say "done"
when agent=deeper turn=1
  call Write {{"file_path": "secret.txt", "content": "x"}}
when agent=deeper turn=2
  call Read {{"file_path": "secret.txt"}}
when agent=deeper turn=3
  call Bash {{"command": "sometool {path}/a.txt"}}
when agent=deeper
  say "tried"
{DELEGATE}"#
    );
    let mut stage = stage(&repo, &script);
    for rule in ["Edit(/secret.txt)", "Read(/secret.txt)"] {
        stage.rules.deny.push(Rule::parse(rule, Default::default()).unwrap());
    }
    let deeper = AgentDefinition { name: "deeper".into(), ..(*stage.agents[stage.agents.len() - 1]).clone() };
    stage.agents.push(Arc::new(deeper));
    let played = stage.play("go").await;
    for tool in ["Write", "Read"] {
        let said = &results(&played, tool, true)[0];
        assert!(said.contains("secret.txt)"), "denied by the rule: {said}");
    }
    let bash = &results(&played, "Bash", true)[0];
    assert!(bash.contains("/a.txt instead.") && bash.starts_with("Permission denied"), "{bash}");
}

#[tokio::test]
async fn a_link_in_its_checkout_leads_no_command_out() {
    let outside = tempfile::tempdir().unwrap();
    let away = utf8(outside.path());
    fs::write(away.join("f"), "kept\n").unwrap();
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    std::os::unix::fs::symlink(&away, repo.path().join("link")).unwrap();
    repo.commit("with a link").unwrap();
    let commands = [
        "rm link/f".to_owned(),
        "echo x | tee link/new".to_owned(),
        "sed -i s/kept/lost/ link/f".to_owned(),
        "cp a.txt link/new".to_owned(),
        "cp -t link a.txt".to_owned(),
        format!("cp -t {away} a.txt"),
        format!("cp --target-directory={away} a.txt"),
        format!("install -t{away} a.txt"),
        format!("sed -i s/kept/lost/ {away}/f"),
        format!("find {away} -name f -delete"),
    ];
    let mut script = String::new();
    for (turn, command) in commands.iter().enumerate() {
        let call = serde_json::json!({ "command": command });
        script += &format!("when agent=apart turn={}\n  call Bash {call}\n", turn + 1);
    }
    let script = format!("{script}when agent=apart\n  say \"tried\"\n{DELEGATE}");
    let mut stage = stage(&repo, &script);
    stage.request.mode = Some(Mode::BypassPermissions);
    let played = stage.play("go").await;
    for (command, said) in commands.iter().zip(results(&played, "Bash", true)) {
        assert!(said.contains("is outside of the checkout"), "{command}: {said}");
    }
    assert_eq!(fs::read_to_string(away.join("f")).unwrap(), "kept\n");
    assert_eq!(fs::read_dir(&away).unwrap().count(), 1);
}

#[tokio::test]
async fn without_a_repository_the_agent_does_not_begin() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let mut stage = stage(&repo, &format!("when agent=apart\n  say \"never\"\n{DELEGATE}"));
    let elsewhere = tempfile::tempdir().unwrap();
    stage.request.cwd = utf8(elsewhere.path());
    let played = stage.play("go").await;
    let report = &results(&played, "Agent", false)[0];
    assert!(report.starts_with("The agent was not begun: not a git repository"), "{report}");
    assert!(!played.events.iter().any(|envelope| envelope.agent.is_some()), "no agent has begun");
    assert!(matches!(played.outcome, Outcome::Completed { .. }));
    stage.worktrees = None;
    let played = stage.play("go").await;
    assert!(results(&played, "Agent", false)[0].contains("Worktrees need"), "never without one instead");
}

#[tokio::test]
async fn an_agent_whose_checkout_is_deleted_is_told_and_works_nowhere_else() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = r#"
when agent=apart turn=1
  call Bash {"command": "rm -rf \"$PWD\""}
when agent=apart turn=2
  call Bash {"command": "touch here.txt; pwd"}
when agent=apart
  say "it is gone"
"#;
    let stage = stage(&repo, &format!("{script}{DELEGATE}"));
    let played = stage.play("go").await;
    let bash = results(&played, "Bash", true);
    assert!(bash[1].starts_with("working directory is gone"), "{bash:?}");
    assert_eq!(repo.status().unwrap(), "");
    assert!(results(&played, "Agent", false)[0].starts_with("it is gone"));
    assert!(!repo.path().join("here.txt").exists());
}

#[tokio::test]
async fn a_resumed_agent_has_its_checkout_again_or_is_told_that_it_is_gone() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = format!(
        r#"
when agent=apart turn=1
  call Bash {{"command": "test -e b.txt || echo x >> b.txt; cat b.txt; pwd"}}
when agent=apart turn=2
  say "once"
when agent=apart turn=3
  call Bash {{"command": "echo y >> b.txt; cat b.txt; pwd"}}
when agent=apart
  say "again"
{DELEGATE}"#
    );
    let stage = stage(&repo, &script);
    let played = stage.play("go").await;
    let spec = spec(&played);
    let agent = spec.agent.clone().unwrap();
    let tree = spec.worktree.clone().unwrap();
    let request =
        OpenSession { start: Start::Resume { id: played.session, at: None }, ..stage.request.clone() };
    let stage = stage.resuming(&format!(
        "{}\nwhen agent=main turn=3\n  call Agent {{\"description\": \"more\", \"prompt\": \"more\", \"resume\": \"{agent}\"}}\nwhen agent=main\n  say \"done\"\n",
        script.split("when agent=main").next().unwrap()
    ));
    let second = stage.play_all(request.clone(), &["more"]).await.unwrap();
    let bash = results(&second, "Bash", true);
    assert!(bash[0].starts_with("x\ny\n") && bash[0].contains(tree.path.as_str()), "{bash:?}");
    let lease = stage.worktrees.as_ref().unwrap().leases().get(&tree.repository, agent.as_str()).unwrap();
    assert_eq!(lease.state, LeaseState::Kept);
    fs::remove_dir_all(&tree.path).unwrap();
    let stage = stage.resuming(&format!(
        "when agent=main turn=5\n  call Agent {{\"description\": \"more\", \"prompt\": \"more\", \"resume\": \"{agent}\"}}\nwhen agent=main\n  say \"done\"\n"
    ));
    let third = stage.play_all(request, &["more"]).await.unwrap();
    let report = results(&third, "Agent", false);
    assert!(report[0].contains(&format!("working directory is gone: {}", tree.path)), "{report:?}");
    assert_eq!(repo.status().unwrap(), "");
}

#[tokio::test]
async fn a_fork_in_a_checkout_of_its_own_works_there_wherever_its_parent_is() {
    let repo = Repo::with_files(&[("a.txt", "one\n"), ("sub/b.txt", "two\n")]).unwrap();
    let fork = "when text=/apart/ turn=3\n  call Bash {\"command\": \"pwd; echo x > made.txt\"}\nwhen text=/apart/\n  say \"forked\"\n";
    let main = "when agent=main turn=1\n  call Bash {\"command\": \"cd sub\"}\nwhen agent=main turn=2\n  call Agent {\"description\": \"d\", \"prompt\": \"apart\", \"subagent_type\": \"fork\", \"isolation\": \"worktree\"}\nwhen agent=main\n  say \"done\"\n";
    let mut stage = stage(&repo, &format!("{fork}{main}"));
    stage.agent_settings.forks = true;
    let played = stage.play("go").await;
    let tree = spec(&played).worktree.unwrap();
    let bash = results(&played, "Bash", true);
    assert_eq!(bash.first().map(|place| place.trim()), Some(tree.path.join("sub").as_str()), "{bash:?}");
    assert_eq!(repo.status().unwrap(), "");
}

#[tokio::test]
async fn nobody_else_waits_while_an_agent_takes_up_its_checkout() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let apart = "when agent=apart turn=1\n  call Bash {\"command\": \"echo x > b.txt\"}\nwhen agent=apart\n  say \"worked\"\n";
    let stage = stage(&repo, &format!("{apart}{DELEGATE}"));
    let played = stage.play("go").await;
    let agent = spec(&played).agent.unwrap();
    let tree = spec(&played).worktree.unwrap();
    let leases = stage.worktrees.as_ref().unwrap().leases().clone();
    let stage = stage.resuming(&format!(
        "{apart}when agent=main turn=3\n  call Agent {{\"description\": \"more\", \"prompt\": \"more\", \
         \"resume\": \"{agent}\", \"run_in_background\": true}}\nwhen agent=main\n  say \"done\"\n"
    ));
    let request =
        OpenSession { start: Start::Resume { id: played.session, at: None }, ..stage.request.clone() };
    let held = leases.work_lock(&tree.repository, "clean").unwrap().unwrap();
    let mut link = stage.engine().open(request).await.unwrap();
    send(&link, 0, Command::Prompt { blocks: vec![Block::text("more")] }).await;
    let mut events = Vec::new();
    // The root ends while the agent's checkout is still held by another.
    let outcome = stage.listen(&mut link, &mut events).await;
    assert!(matches!(outcome, Outcome::Completed { .. }), "{outcome:?}");
    let ended = |events: &[Arc<Envelope>]| {
        events.iter().any(|one| one.agent.is_some() && matches!(one.event, Event::RunEnded { .. }))
    };
    assert!(!ended(&events));
    drop(held);
    send(&link, 1, Command::Finish).await;
    while let Some(envelope) = link.events.next().await {
        let closed = matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 1);
        events.push(envelope);
        if closed {
            break;
        }
    }
    let played = Played { events, outcome, session: link.session };
    let launched = &results(&played, "Agent", false)[0];
    assert!(launched.starts_with("The agent works in the background now."), "{launched}");
    let steps = played.events.iter().find_map(|one| match &one.event {
        Event::Prepared { steps } => {
            Some(steps.iter().filter_map(|step| step.note.clone()).collect::<Vec<_>>().join(", "))
        }
        _ => None,
    });
    assert!(steps.as_ref().is_some_and(|steps| steps.contains(&format!("{} again", tree.path))), "{steps:?}");
    assert!(ended(&played.events));
}

#[tokio::test]
async fn a_session_in_a_checkout_of_its_own_goes_on_there() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = r#"
when turn=1
  call Bash {"command": "echo two >> a.txt; pwd"}
when turn=3
  call Bash {"command": "cat a.txt; pwd"}
when
  say "done"
"#;
    let mut stage = stage(&repo, script);
    stage.request.worktree = Some("mine".to_owned());
    let first = stage.play("go").await;
    let tree = results(&first, "Bash", false)[0].trim().to_owned();
    assert!(tree.ends_with("/mine"), "{tree}");
    assert_eq!(repo.status().unwrap(), "");
    let kept = first.events.iter().any(|envelope| {
        matches!(&envelope.event, Event::Notice { text, .. } if text.contains("worktree is kept") && text.contains(&tree))
    });
    assert!(kept, "it is said where the work is");
    // Asked for from the shared folder, it goes on where it was.
    let request = OpenSession {
        start: Start::Resume { id: first.session, at: None },
        worktree: None,
        ..stage.request.clone()
    };
    let second = stage.play_all(request.clone(), &["more"]).await.unwrap();
    assert_eq!(results(&second, "Bash", false)[0], format!("one\ntwo\n{tree}"));
    fs::remove_dir_all(&tree).unwrap();
    let gone = stage.play_all(request, &["more"]).await.map(|played| played.session).unwrap_err();
    assert_eq!(gone.to_string(), format!("working directory is gone: {tree}; the session is kept"));
    assert_eq!(repo.status().unwrap(), "");
}

#[tokio::test]
async fn a_session_that_changed_nothing_in_its_checkout_leaves_none_and_can_go_on() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let mut stage = stage(&repo, "when turn=2\n  call Bash {\"command\": \"pwd\"}\nwhen\n  say \"done\"\n");
    stage.request.worktree = Some(String::new());
    let first = stage.play("go").await;
    assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
    let request = OpenSession {
        start: Start::Resume { id: first.session, at: None },
        worktree: None,
        ..stage.request.clone()
    };
    let second = stage.play_all(request, &["more"]).await.unwrap();
    let place = &results(&second, "Bash", false)[0];
    assert!(place.contains("/worktrees/"), "made again, never the shared folder: {place}");
}

#[tokio::test]
async fn a_crash_after_a_checkout_was_kept_loses_neither_path_nor_branch() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = "when agent=apart turn=1\n  call Bash {\"command\": \"echo two > a.txt\"}\nwhen agent=apart\n  say \"changed\"\n";
    let stage = stage(&repo, &format!("{script}{DELEGATE}"));
    let played = stage.play("go").await;
    let (spec, whole) = (spec(&played), stage.recorded(played.session));
    let ended =
        |envelope: &&Envelope| envelope.agent.is_some() && matches!(envelope.event, Event::RunEnded { .. });
    let ended = whole.iter().find(ended).unwrap().seq;
    // The lease says kept, and nothing on record does.
    stage.forget_after(ended);
    let tree = spec.worktree.as_deref().unwrap();
    let lease = || {
        let leases = stage.worktrees.as_ref().unwrap().leases();
        leases.get(&tree.repository, spec.agent.as_ref().unwrap().as_str()).unwrap()
    };
    assert_eq!(lease().state, LeaseState::Kept);
    let request =
        OpenSession { start: Start::Resume { id: played.session, at: None }, ..stage.request.clone() };
    let second = stage.play_all(request.clone(), &["more"]).await.unwrap();
    let told = |played: &Played| {
        let note = |envelope: &Arc<Envelope>| match &envelope.event {
            Event::Message { message, meta, .. } if !meta.delivers.is_empty() => Some(message.text()),
            _ => None,
        };
        played.events.iter().filter_map(note).collect::<Vec<_>>()
    };
    let notes = told(&second);
    assert_eq!(notes.len(), 1, "told once: {notes:?}");
    let wanted =
        format!("<worktreePath>{}</worktreePath><worktreeBranch>{}</worktreeBranch>", tree.path, tree.branch);
    assert!(notes[0].contains(&wanted) && notes[0].contains("1 file changed, +1 -1"), "{notes:?}");
    let released = |record: &[Envelope]| {
        record.iter().filter(|envelope| matches!(envelope.event, Event::Released { .. })).count()
    };
    assert_eq!(released(&stage.recorded(played.session)), 1);
    let third = stage.play_all(request, &["more"]).await.unwrap();
    assert_eq!((told(&third).len(), released(&stage.recorded(played.session))), (0, 1), "and not again");
    assert_eq!(lease().state, LeaseState::Kept);
}

#[tokio::test]
async fn what_is_forbidden_stays_so_in_every_checkout_above_also_in_the_middle_of_a_search() {
    let repo =
        Repo::with_files(&[("a.txt", "one\n"), ("secret.txt", "hidden\n"), ("docs/d.txt", "d\n")]).unwrap();
    let path = utf8(repo.path());
    let script = format!(
        r#"
when agent=apart turn=1
  call Grep {{"pattern": "hidden", "path": "{path}"}}
when agent=apart turn=2
  call Agent {{"description": "below", "prompt": "go", "subagent_type": "deeper"}}
when agent=apart
  say "done"
when agent=deeper turn=1
  call Grep {{"pattern": "hidden", "path": "{path}"}}
when agent=deeper turn=2
  call Grep {{"pattern": "hidden", "path": ".."}}
when agent=deeper turn=3
  call Grep {{"pattern": "one", "path": "{path}"}}
when agent=deeper
  say "tried"
{DELEGATE}"#
    );
    let mut stage = stage(&repo, &script);
    stage.request.mode = Some(Mode::BypassPermissions);
    stage.request.worktree = Some("mine".to_owned());
    stage.request.directories = vec![path.join("docs")];
    stage.rules.deny.push(Rule::parse("Read(/secret.txt)", Default::default()).unwrap());
    let deeper = AgentDefinition { name: "deeper".into(), ..(*stage.agents[stage.agents.len() - 1]).clone() };
    stage.agents.push(Arc::new(deeper));
    for in_worktree in [true, false] {
        if !in_worktree {
            stage.request.worktree = None;
        }
        let played = stage.play("go").await;
        let greps = results(&played, "Grep", true);
        let tells = |said: &String| said.contains("secret") && !said.starts_with("Permission denied");
        assert!(!greps[..3].iter().any(tells), "{in_worktree}: {greps:?}");
        assert!(greps[3].contains("a.txt"), "what is not forbidden is found: {greps:?}");
        let directories = played.events.iter().rev().find_map(|envelope| match &envelope.event {
            Event::RunStarted { spec } if spec.depth == 2 => Some(spec.directories.clone()),
            _ => None,
        });
        assert_eq!(directories.unwrap(), Vec::<camino::Utf8PathBuf>::new(), "none of a checkout above");
    }
}

#[tokio::test]
async fn whoever_worked_in_a_checkout_that_was_merged_goes_on_in_it() {
    use decurion_engine::merge::{MergeRequest, TARGET, merge};

    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let commit = |name: &str| {
        format!(
            "{{\"command\": \"echo x > {name}.txt; git add . && git -c user.name=A -c user.email=a@b commit -qm {name}\"}}"
        )
    };
    let script = format!(
        "when agent=apart turn=1\n  call Bash {}\nwhen agent=apart\n  say \"changed\"\nwhen agent=main turn=1\n  call Bash {}\nwhen agent=main turn=2\n  call Agent {{\"description\": \"change it\", \"prompt\": \"go\", \"subagent_type\": \"apart\"}}\nwhen agent=main\n  say \"done\"\n",
        commit("below"),
        commit("own")
    );
    let mut first = stage(&repo, &script);
    first.request.worktree = Some("feat".to_owned());
    let played = first.play("go").await;
    let below = spec(&played);
    let trees = first.worktrees.clone().unwrap();
    let request = MergeRequest {
        at: utf8(repo.path()),
        which: Vec::new(),
        into: TARGET.to_owned(),
        gate: None,
        dry_run: false,
    };
    let done = merge(&trees, &request).await.unwrap();
    assert!(done.rows.len() == 2 && done.rows.iter().all(|row| row.removed), "{done:?}");
    assert!(trees.list(None).await.unwrap().rows.is_empty(), "nothing is left to be listed");
    let agent = below.agent.clone().unwrap();
    let again = first.resuming(&format!(
        "when agent=apart text=/more/\n  call Bash {{\"command\": \"pwd; git log --format=%s -2\"}}\nwhen agent=apart\n  say \"changed\"\nwhen agent=main text=/where/\n  call Bash {{\"command\": \"git log --format=%s -2; git status --short\"}}\n  call Agent {{\"description\": \"more\", \"prompt\": \"more\", \"resume\": \"{agent}\"}}\nwhen agent=main\n  say \"done\"\n"
    ));
    let request = OpenSession {
        start: Start::Resume { id: played.session, at: None },
        worktree: None,
        ..again.request.clone()
    };
    let played = again.play_all(request, &["where"]).await.unwrap();
    assert_eq!(results(&played, "Bash", false), ["own\nfirst"]);
    let path = &below.worktree.as_ref().unwrap().path;
    assert_eq!(results(&played, "Bash", true), [format!("{path}\nbelow\nown")]);
    // Nothing new is in them, so they are gone again, and remembered only as long as their session is.
    assert!(trees.list(None).await.unwrap().rows.is_empty());
    let states = |trees: &Worktrees| -> Vec<LeaseState> {
        trees.leases().all(None).unwrap().0.iter().map(|lease| lease.state).collect()
    };
    assert_eq!(states(&trees), [LeaseState::Removed, LeaseState::Removed]);
    let paths = again.archive().layout().session(&again.request.cwd, played.session);
    fs::remove_file(paths.transcript()).unwrap();
    trees.clean(None, usize::MAX).await.unwrap();
    assert!(states(&trees).is_empty(), "{:?}", states(&trees));
}

#[tokio::test]
async fn a_session_whose_own_agent_works_apart_never_works_in_the_shared_folder() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = "when turn=1\n  call Bash {\"command\": \"pwd; cat b.txt; echo x > new.txt\"}\nwhen\n  say \"done\"\n";
    let mut apart = stage(&repo, script);
    apart.request.definition = (**apart.agents.last().unwrap()).clone();
    let played = apart.play("go").await;
    let lease = apart.worktrees.as_ref().unwrap().leases().all(None).unwrap().0.remove(0);
    assert!(results(&played, "Bash", false)[0].starts_with(lease.path.as_str()));
    assert!(lease.name.starts_with('s') && lease.agent.is_none(), "{lease:?}");
    assert_eq!(repo.status().unwrap(), "");
    // It goes on there, with or without its definition.
    let again =
        apart.resuming("when text=/where/\n  call Bash {\"command\": \"pwd\"}\nwhen\n  say \"done\"\n");
    for definition in [again.request.definition.clone(), AgentDefinition::default()] {
        let start = Start::Resume { id: played.session, at: None };
        let request = OpenSession { start, definition, ..again.request.clone() };
        let played = again.play_all(request, &["where"]).await.unwrap();
        assert_eq!(results(&played, "Bash", false), [lease.path.as_str()]);
    }
    // One that has none to go on in is refused, and so is a fork.
    let plain = stage(&repo, "when\n  say \"done\"\n");
    let session = plain.play("go").await.session;
    for start in [Start::Resume { id: session, at: None }, Start::Fork { from: session, id: None, at: None }]
    {
        let definition = (**plain.agents.last().unwrap()).clone();
        let request = OpenSession { start, definition, ..plain.request.clone() };
        let refused = plain.play_all(request, &["go"]).await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("the agent apart works in a checkout of its own"), "{refused}");
    }
    // Changes that are not committed come along where that is asked for.
    fs::write(repo.path().join("b.txt"), "uncommitted\n").unwrap();
    let mut dirty = stage(&repo, script);
    dirty.request.definition = (**dirty.agents.last().unwrap()).clone();
    dirty.request.definition.equipment.isolation = Some("worktree+dirty".to_owned());
    assert!(results(&dirty.play("go").await, "Bash", false)[0].ends_with("uncommitted"));
}

//! A session that goes into a checkout of its own in its middle, and out again: where its calls and its children
//! work, what becomes of the checkout, what is refused, and where it goes on after a crash between any two records.

use std::fs;
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_engine::worktree::{Released, Wanted};
use decurion_protocol::{
    Answer, Block, Command, Envelope, Event, Mode, OpenSession, Origin, Outcome, Place as _, Rule, SessionId,
    Start, Worktree,
};
use decurion_store::{Lease, LeaseState};
use decurion_testkit::repo::Repo;
use decurion_testkit::stage::{Played, Stage, render, send};
use expect_test::expect;

use crate::isolated::{results, stage};
use crate::worktrees::utf8;

/// A stage in a repository, where the session may change its checkout.
fn allowed(repo: &Repo, script: &str) -> Stage {
    let mut stage = stage(repo, script);
    for rule in ["EnterWorktree", "ExitWorktree"] {
        stage.rules.allow.push(Rule::parse(rule, Default::default()).unwrap());
    }
    stage
}

fn repo() -> Repo {
    Repo::with_files(&[("a.txt", "one\n"), ("sub/b.txt", "two\n")]).unwrap()
}

/// The checkouts that were entered, in order, and where the session was after each step.
fn places(events: &[Envelope]) -> Vec<(Utf8PathBuf, Option<Worktree>)> {
    let place = |envelope: &Envelope| match &envelope.event {
        Event::Relocated { cwd, worktree, .. } => Some((cwd.clone(), worktree.as_deref().cloned())),
        _ => None,
    };
    events.iter().filter_map(place).collect()
}

fn all(played: &Played) -> Vec<Envelope> {
    played.events.iter().map(|envelope| (**envelope).clone()).collect()
}

/// A text without the folders and the commit of this run.
fn masked(repo: &Repo, worktree: &Worktree, text: &str) -> String {
    text.replace(worktree.path.as_str(), "TREE")
        .replace(&worktree.base, "BASE")
        .replace(utf8(repo.path()).as_str(), "REPO")
}

fn wanted(repo: &Repo, name: &str, session: SessionId) -> Wanted {
    Wanted {
        from: utf8(repo.path()),
        name: name.to_owned(),
        session,
        agent: None,
        description: String::new(),
        dirty: false,
        asker: None,
        rules: decurion_engine::worktree::AskerRules::default(),
    }
}

fn leases(stage: &Stage) -> Vec<Lease> {
    stage.worktrees.as_ref().unwrap().leases().all(None).unwrap().0
}

fn resumed(stage: &Stage, session: SessionId) -> OpenSession {
    OpenSession { start: Start::Resume { id: session, at: None }, ..stage.request.clone() }
}

const THERE_AND_BACK: &str = r#"
when agent=worker turn=1
  call Bash {"command": "pwd"}
when agent=worker
  say "seen"
when agent=apart turn=1
  call Bash {"command": "pwd; git log --format=%s"}
when agent=apart
  say "seen"
when agent=main turn=1
  call EnterWorktree {"name": "mine"}
when agent=main turn=2
  call Bash {"command": "pwd; echo new > new.txt; git add . && git -c user.name=A -c user.email=a@b commit -qm inside"}
when agent=main turn=3
  call Write {"file_path": "more.txt", "content": "more"}
when agent=main turn=4
  call Agent {"description": "look", "prompt": "go", "subagent_type": "worker"}
when agent=main turn=5
  call Agent {"description": "look", "prompt": "go", "subagent_type": "apart"}
when agent=main turn=6
  call ExitWorktree {"action": "keep"}
when agent=main turn=7
  call Bash {"command": "pwd; ls"}
when
  say "done"
"#;

#[tokio::test]
async fn a_session_goes_into_a_checkout_and_out_again_with_all_that_follows_from_it() {
    let repo = repo();
    let stage = allowed(&repo, THERE_AND_BACK);
    let played = stage.play("go").await;
    let places = places(&all(&played));
    let worktree = places[0].1.clone().unwrap();
    let mask = |text: &str| masked(&repo, &worktree, text);
    expect![[r"
        The session now works in TREE.

        <worktree>
        You work in a git checkout of your own, on the branch decurion/mine, which began at BASE.
        A path below REPO that you are told of means the same path below TREE.
        Nothing outside of TREE may be changed. What you change stays on your branch, committed or not, and others decide about merging it.
        </worktree>"]].assert_eq(&mask(&results(&played, "EnterWorktree", false)[0]));
    let bash: Vec<String> = results(&played, "Bash", false).iter().map(|said| mask(said)).collect();
    assert_eq!(bash, ["TREE", "REPO\na.txt\nsub"]);
    assert_eq!(fs::read_to_string(worktree.path.join("more.txt")).unwrap(), "more", "a relative path");
    let below = results(&played, "Bash", true);
    assert_eq!(mask(&below[0]), "TREE", "an agent works where its parent does");
    assert!(
        below[1].ends_with("inside\nfirst") && !below[1].starts_with(worktree.path.as_str()),
        "{below:?}"
    );
    expect!["The session works in REPO again. The worktree is kept: TREE on decurion/mine: 1 commit, 1 file changed, +1 -0, 1 untracked, not all committed."]
        .assert_eq(&mask(&results(&played, "ExitWorktree", false)[0]));
    let of_agent = |name: &str| {
        played.events.iter().find_map(|envelope| match &envelope.event {
            Event::RunStarted { spec } if spec.definition.name == name => spec.worktree.as_deref().cloned(),
            _ => None,
        })
    };
    assert_eq!(of_agent("worker").as_ref(), Some(&worktree), "and is bound to it");
    let below = of_agent("apart").unwrap();
    assert_eq!((&below.origin, &below.above), (&worktree.path, &vec![utf8(repo.path())]));
    assert_eq!(places.len(), 2);
    assert_eq!(places[1], (utf8(repo.path()), None));
    assert_eq!(repo.status().unwrap(), "", "the shared folder is as it was");
    let lease = leases(&stage).into_iter().find(|lease| lease.name == "mine").unwrap();
    assert_eq!((lease.state, lease.agent), (LeaseState::Kept, None));
}

#[tokio::test]
async fn nothing_outside_of_the_checkout_is_changed_until_it_is_left() {
    let repo = repo();
    let path = utf8(repo.path());
    let script = format!(
        r#"
when turn=1
  call EnterWorktree {{}}
when turn=2
  call Write {{"file_path": "{path}/b.txt", "content": "x"}}
when turn=3
  call Bash {{"command": "cd {path} && touch c.txt"}}
when turn=4
  call Write {{"file_path": "secret.txt", "content": "x"}}
when turn=5
  call ExitWorktree {{"action": "remove"}}
when turn=6
  call Write {{"file_path": "d.txt", "content": "x"}}
when
  say "done"
"#
    );
    let mut stage = allowed(&repo, &script);
    stage.rules.deny.push(Rule::parse("Edit(/secret.txt)", Default::default()).unwrap());
    let played = stage.play("go").await;
    let worktree = places(&all(&played))[0].1.clone().unwrap();
    let log: String = render(&played.events).lines().filter(|line| line.starts_with("refuse")).collect();
    expect!["refuse Write: REPO/b.txt is outside of the checkout that this agent works in, and nothing outside of TREE may be changed. Use TREE/b.txt instead.refuse Bash: REPO/c.txt is outside of the checkout that this agent works in, and nothing outside of TREE may be changed. Use TREE/c.txt instead.refuse Write: denied by Edit(/secret.txt)"]
        .assert_eq(&masked(&repo, &worktree, &log));
    assert!(path.join("d.txt").exists(), "where it was before it may write again");
    assert!(!worktree.path.exists() && leases(&stage).iter().all(|lease| lease.state == LeaseState::Removed));
    assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
}

#[tokio::test]
async fn work_in_the_checkout_is_lost_only_when_that_is_asked_for() {
    let repo = repo();
    let script = r#"
when turn=1
  call EnterWorktree {"name": "mine"}
when turn=2
  call Bash {"command": "echo new > new.txt; git add . && git -c user.name=A -c user.email=a@b commit -qm inside; echo y > y; echo z >> a.txt"}
when turn=3
  call ExitWorktree {"action": "remove"}
when turn=4
  call Bash {"command": "pwd"}
when turn=5
  call ExitWorktree {"action": "keep", "discard_changes": true}
when turn=6
  call ExitWorktree {"action": "remove", "discard_changes": true}
when
  say "done"
"#;
    let stage = allowed(&repo, script);
    let played = stage.play("go").await;
    let worktree = places(&all(&played))[0].1.clone().unwrap();
    let said = results(&played, "ExitWorktree", false);
    let said: Vec<String> = said.iter().map(|said| masked(&repo, &worktree, said)).collect();
    expect![[r#"
        The worktree TREE has work in it that would be lost: 1 commit, 2 files changed, +2 -0, 1 untracked, not all committed. The session is still in it. Keep it with `action: "keep"`, or, if the user wants to lose that work, call again with `discard_changes: true`.
        <tool_use_error>InputValidationError: ExitWorktree failed due to the following issue(s):
        `discard_changes` goes with `action: "remove"`; what is kept loses nothing</tool_use_error>
        The session works in REPO again. The worktree is gone, with what was in it: 1 commit, 2 files changed, +2 -0, 1 untracked, not all committed."#]]
    .assert_eq(&said.join("\n"));
    assert_eq!(results(&played, "Bash", false)[1], worktree.path.as_str(), "it was still in it");
    let structured = played.events.iter().rev().find_map(|envelope| match &envelope.event {
        Event::CallEnded { tool, output, .. } if tool == "ExitWorktree" => output.structured.clone(),
        _ => None,
    });
    let structured = structured.unwrap();
    assert_eq!((&structured["discardedFiles"], &structured["discardedCommits"]), (&3.into(), &1.into()));
    assert!(!worktree.path.exists() && leases(&stage).is_empty());
    assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
    assert_eq!(repo.status().unwrap(), "");
}

#[tokio::test]
async fn files_that_git_ignores_are_work_where_a_person_may_have_put_them() {
    let repo = Repo::with_files(&[("a.txt", "one\n"), (".gitignore", ".env\ncache/\n")]).unwrap();
    let script = r#"
when agent=apart turn=1
  call Bash {"command": "echo x > .env"}
when agent=apart
  say "looked"
when agent=main turn=1
  call EnterWorktree {"name": "mine"}
when agent=main turn=2
  call Bash {"command": "echo key > .env; mkdir cache empty; touch cache/a cache/b"}
when agent=main turn=3
  call ExitWorktree {"action": "remove"}
when agent=main turn=4
  call Agent {"description": "look", "prompt": "go", "subagent_type": "apart"}
when
  say "done"
"#;
    let stage = allowed(&repo, script);
    let played = stage.play("go").await;
    let worktree = places(&all(&played))[0].1.clone().unwrap();
    expect![[r#"The worktree TREE has work in it that would be lost: ignored by git: .env, cache/. The session is still in it. Keep it with `action: "keep"`, or, if the user wants to lose that work, call again with `discard_changes: true`."#]].assert_eq(&masked(&repo, &worktree, &results(&played, "ExitWorktree", false)[0]));
    assert_eq!(
        fs::read_to_string(worktree.path.join(".env")).unwrap(),
        "key\n",
        "kept at the session's end too"
    );
    assert_eq!(
        leases(&stage).iter().filter(|lease| lease.state == LeaseState::Kept).count(),
        1,
        "an agent's are not"
    );
}

#[tokio::test]
async fn a_person_must_agree_or_a_rule() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {}\nwhen\n  say \"done\"\n";
    let unasked = stage(&repo, script);
    let played = unasked.play("go").await;
    expect!["Permission denied: no rule lets the session change its checkout; a person must agree, or the rule `EnterWorktree` allow it; permission cannot be requested in this non-interactive session"]
        .assert_eq(&results(&played, "EnterWorktree", false)[0]);
    assert!(matches!(played.outcome, Outcome::Denied { .. }));
    let mut asked = stage(&repo, script);
    asked.request.answers = true;
    asked.answer = Some(Answer::Allow { input: None, rules: Vec::new(), everywhere: false });
    let played = asked.play("go").await;
    assert_eq!(places(&all(&played)).len(), 1, "a person said yes");
    asked.answer = Some(Answer::Deny { message: "not now".into(), interrupt: false });
    let played = asked.play("go").await;
    assert_eq!(results(&played, "EnterWorktree", false)[0], "Permission denied: not now");
    let mut planning = stage(&repo, script);
    planning.request.mode = Some(Mode::Plan);
    assert!(results(&planning.play("go").await, "EnterWorktree", false)[0].contains("mode plan"));
    assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
}

#[tokio::test]
async fn what_cannot_be_entered_or_left_is_refused_with_the_reason() {
    let repo = repo();
    repo.git(&["branch", "decurion/taken"]).unwrap();
    let script = r#"
when agent=main turn=1
  call ExitWorktree {"action": "keep"}
when agent=main turn=2
  call EnterWorktree {"name": "../up"}
when agent=main turn=3
  call EnterWorktree {"name": "taken"}
when agent=main turn=4
  call EnterWorktree {"path": "/tmp"}
when agent=main turn=5
  call EnterWorktree {"name": "busy"}
  call EnterWorktree {"name": "mine"}
when agent=main turn=6
  call EnterWorktree {"name": "other"}
when agent=main turn=7
  call Agent {"description": "below", "prompt": "go", "subagent_type": "fork", "run_in_background": false}
when agent=main turn=8
  call Bash {"command": "sleep 600", "run_in_background": true}
when agent=main turn=9
  call ExitWorktree {"action": "remove"}
when agent=main
  say "done"
when agent=fork turn=8
  call ExitWorktree {"action": "keep"}
when agent=fork
  say "tried"
"#;
    let mut stage = allowed(&repo, script);
    stage.agent_settings.forks = true;
    let (trees, other) = (stage.worktrees.clone().unwrap(), SessionId(uuid::Uuid::from_u128(7)));
    let _alive = trees.leases().hold(other).unwrap();
    trees.make(&wanted(&repo, "busy", other)).await.unwrap();
    let mut link = decurion_protocol::Place::open(&stage.engine(), stage.request.clone()).await.unwrap();
    let prompt = decurion_protocol::Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] };
    decurion_testkit::stage::send(&link, 1, prompt).await;
    let mut events = Vec::new();
    let outcome = stage.listen(&mut link, &mut events).await;
    let played = Played { events, outcome, session: link.session };
    let worktree = places(&all(&played))[0].1.clone().unwrap();
    let said =
        |tool: &str, of_agents: bool| masked(&repo, &worktree, &results(&played, tool, of_agents).join("\n"));
    let shell = played.events.iter().rev().find_map(|envelope| match &envelope.event {
        Event::TaskOpened { record } => Some(record.task.to_string()),
        _ => None,
    });
    expect![[r#"
        The session stays where it is: not a name for a worktree (letters, digits, `_` and `-`, at most 64): "../up"
        The session stays where it is: there is a branch decurion/taken already; choose another name, or remove it
        <tool_use_error>InputValidationError: EnterWorktree failed due to the following issue(s):
        `path` is not a field here; there are: name</tool_use_error>
        The session stays where it is: the worktree busy is in use by session 00000000-0000-0000-0000-000000000007
        The session now works in TREE.

        <worktree>
        You work in a git checkout of your own, on the branch decurion/mine, which began at BASE.
        A path below REPO that you are told of means the same path below TREE.
        Nothing outside of TREE may be changed. What you change stays on your branch, committed or not, and others decide about merging it.
        </worktree>
        The session works in a worktree already, TREE: leave it with ExitWorktree first."#]].assert_eq(&said("EnterWorktree", false));
    expect![[r"
        The session works in no worktree that it could leave.
        The worktree is not removed while it is worked in (SHELL sleep 600): wait for that, stop it with TaskStop, or keep the worktree."]].assert_eq(&said("ExitWorktree", false).replace(&shell.unwrap(), "SHELL"));
    expect![[r#"Only the session's own agent moves the session; an agent has a worktree of its own with `isolation: "worktree"` when it is started."#]].assert_eq(&said("ExitWorktree", true));
    drop(link);
}

#[tokio::test]
async fn outside_of_a_repository_there_is_nothing_to_enter_and_children_have_neither_tool() {
    let elsewhere = tempfile::tempdir().unwrap();
    let script = r#"
when agent=main turn=1
  call EnterWorktree {}
when agent=main turn=2
  call Agent {"description": "look", "prompt": "go", "subagent_type": "worker"}
when
  say "done"
"#;
    let repo = repo();
    let mut stage = allowed(&repo, script);
    stage.request.cwd = utf8(elsewhere.path());
    let played = stage.play("go").await;
    let said = &results(&played, "EnterWorktree", false)[0];
    assert!(said.starts_with("The session stays where it is: not a git repository"), "{said}");
    assert!(places(&all(&played)).is_empty());
    let tools = |of_agent: bool| {
        let spec = played.events.iter().find_map(|envelope| match &envelope.event {
            Event::RunStarted { spec } if spec.agent.is_some() == of_agent => Some(spec.tools.to_vec()),
            _ => None,
        });
        spec.unwrap().iter().filter(|name| name.ends_with("Worktree")).count()
    };
    assert_eq!((tools(false), tools(true)), (2, 0));
    let mut began =
        allowed(&repo, "when turn=1\n  call ExitWorktree {\"action\": \"keep\"}\nwhen\n  say \"done\"\n");
    began.request.worktree = Some("mine".to_owned());
    let said = &results(&began.play("go").await, "ExitWorktree", false)[0];
    assert_eq!(said, "The session began in its worktree (--worktree), and stays there until it ends.");
}

#[tokio::test]
async fn a_session_that_ends_inside_goes_on_there_and_can_leave_then() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen turn=2\n  call Bash {\"command\": \"cd sub && echo x > new.txt\"}\nwhen\n  say \"done\"\n";
    let mut stage = allowed(&repo, script);
    stage.request.cwd = utf8(repo.path()).join("sub");
    stage.rules.deny.push(Rule::parse("Read(/b.txt)", Default::default()).unwrap());
    let first = stage.play("go").await;
    let worktree = places(&all(&first))[0].1.clone().unwrap();
    assert_eq!(places(&all(&first))[0].0, worktree.path.join("sub"), "the same folder, there");
    let elsewhere = tempfile::tempdir().unwrap();
    let request = OpenSession { cwd: utf8(elsewhere.path()), ..resumed(&stage, first.session) };
    let there = stage.request.cwd.join("b.txt");
    let stage = stage.resuming(&format!(
        "when text=/read/\n  call Read {{\"file_path\": \"b.txt\"}}\n  call Read {{\"file_path\": \"{there}\"}}\n{}",
        "when text=/out/\n  call ExitWorktree {\"action\": \"keep\"}\nwhen text=/where/\n  call Bash {\"command\": \"pwd\"}\nwhen text=/again/\n  call Bash {\"command\": \"pwd\"}\nwhen\n  say \"done\"\n"
    ));
    let second = stage.play_all(request, &["where", "read", "out now", "again"]).await.unwrap();
    let bash = results(&second, "Bash", false);
    let reads = results(&second, "Read", false);
    assert!(reads.iter().all(|said| said.contains("Read(/b.txt)")), "rules hold here and there: {reads:?}");
    assert_eq!(bash, [worktree.path.join("sub").as_str(), utf8(repo.path()).join("sub").as_str()]);
    assert_eq!(repo.status().unwrap(), "");
}

#[tokio::test]
async fn a_session_whose_entered_checkout_is_gone_goes_on_where_it_was_before() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen turn=2\n  call Bash {\"command\": \"echo x > new.txt\"}\nwhen\n  say \"done\"\n";
    let stage = allowed(&repo, script);
    let first = stage.play("go").await;
    let worktree = places(&all(&first))[0].1.clone().unwrap();
    fs::remove_dir_all(&worktree.path).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let stage = stage.resuming(
        "when text=/where/\n  call Bash {\"command\": \"pwd\"}\nwhen text=/out/\n  call ExitWorktree {\"action\": \"keep\"}\nwhen\n  say \"done\"\n",
    );
    // What is on record the first time is so the second time.
    for (from, is_first) in [(utf8(elsewhere.path()), true), (utf8(repo.path()), false)] {
        let request = OpenSession { cwd: from, ..resumed(&stage, first.session) };
        let again = stage.play_all(request, &["where", "out"]).await.unwrap();
        assert_eq!(results(&again, "Bash", false), [utf8(repo.path()).as_str()]);
        let said = results(&again, "ExitWorktree", false);
        assert_eq!(said, ["The session works in no worktree that it could leave."]);
        let notice = "working directory is gone: TREE; the session continues where it was before it entered the worktree: REPO";
        let told = told(&again);
        assert_eq!(masked(&repo, &worktree, &render(&again.events)).contains(notice), is_first);
        assert_eq!(
            told.contains(&format!("The session now works in {}.", utf8(repo.path()))),
            is_first,
            "{told}"
        );
    }
    assert_eq!(repo.status().unwrap(), "");
    // One that began in its checkout has no other place.
    let mut began = allowed(&repo, "when\n  call Bash {\"command\": \"echo x > new.txt\"}\n");
    began.request.worktree = Some("own".to_owned());
    let played = began.play("go").await;
    let lease = leases(&began).into_iter().find(|lease| lease.name == "own").unwrap();
    fs::remove_dir_all(&lease.path).unwrap();
    let request = OpenSession { worktree: None, ..resumed(&began, played.session) };
    let refused = began.play_all(request, &["where"]).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("working directory is gone"), "{refused}");
}

#[tokio::test]
async fn of_two_sessions_that_enter_the_same_left_checkout_one_does() {
    let repo = repo();
    let stage = allowed(&repo, "when\n  say \"done\"\n");
    let trees = stage.worktrees.clone().unwrap();
    let session = |number| SessionId(uuid::Uuid::from_u128(number));
    let made = trees.make(&wanted(&repo, "mine", session(1))).await.unwrap();
    fs::write(made.cwd.join("new.txt"), "x").unwrap();
    trees.keep_as_it_is(&made.worktree).await;
    let _alive = [2, 3].map(|number| trees.leases().hold(session(number)).unwrap());
    let (one, other) = (wanted(&repo, "mine", session(2)), wanted(&repo, "mine", session(3)));
    let (one, other) = tokio::join!(trees.make(&one), trees.make(&other));
    let refused = [one.map(drop), other.map(drop)].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].to_string().starts_with("the worktree mine is in use by session"), "{refused:?}");
}

#[tokio::test]
async fn what_an_agent_of_the_session_does_in_a_left_checkout_is_not_disturbed_by_entering_it() {
    let repo = repo();
    let stage = allowed(&repo, "when\n  say \"done\"\n");
    let trees = stage.worktrees.clone().unwrap();
    let session = |number| SessionId(uuid::Uuid::from_u128(number));
    let made = trees.make(&wanted(&repo, "mine", session(1))).await.unwrap();
    trees.keep_as_it_is(&made.worktree).await;
    // A git of an agent that is still at work there.
    let lock = repo.path().join(".git/worktrees/mine/index.lock");
    fs::write(&lock, "").unwrap();
    let again = trees.make(&wanted(&repo, "mine", session(1))).await.unwrap();
    assert!(again.found && lock.exists());
    // Of a session that is gone nothing runs any more.
    trees.make(&wanted(&repo, "mine", session(2))).await.unwrap();
    assert!(!lock.exists());
}

#[tokio::test]
async fn an_interrupt_on_the_way_into_a_left_checkout_leaves_that_as_it_was() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen turn=2\n  call ExitWorktree {\"action\": \"keep\"}\nwhen text=/again/\n  call EnterWorktree {\"name\": \"mine\"}\nwhen\n  say \"done\"\n";
    let stage = allowed(&repo, script);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let prompt = |text: &str| Command::Prompt { blocks: vec![Block::text(text)] };
    send(&link, 1, prompt("go")).await;
    let mut events = Vec::new();
    stage.listen(&mut link, &mut events).await;
    let lease = leases(&stage).remove(0);
    assert_eq!(lease.state, LeaseState::Kept);
    // Whoever enters waits for this lock.
    let trees = stage.worktrees.clone().unwrap();
    let held = trees.leases().work_lock(&lease.repository, "clean").unwrap().unwrap();
    send(&link, 2, prompt("again")).await;
    events.clear();
    while !matches!(
        events.last().map(|envelope: &Arc<Envelope>| &envelope.event),
        Some(Event::CallStarted { .. })
    ) {
        events.push(futures_util::StreamExt::next(&mut link.events).await.unwrap());
    }
    send(&link, 3, Command::Interrupt).await;
    assert!(matches!(stage.listen(&mut link, &mut events).await, Outcome::Killed { .. }));
    drop(held);
    send(&link, 4, Command::Finish).await;
    while let Some(envelope) = futures_util::StreamExt::next(&mut link.events).await {
        if matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 4) {
            break;
        }
    }
    assert!(lease.path.exists(), "it was kept, and unchanged as it is it stays");
    assert_eq!(leases(&stage)[0].state, LeaseState::Kept);
}

/// A session with an agent at work in the checkout that it left, as a process that died would leave it.
const BELOW: &str = r#"
when agent=worker turn=1
  call Bash {"command": "pwd"}
when agent=worker
  say "seen"
when agent=main turn=1
  call EnterWorktree {"name": "mine"}
when agent=main turn=2
  call Agent {"description": "look", "prompt": "go", "subagent_type": "worker"}
when agent=main turn=3
  call ExitWorktree {"action": "keep"}
when
  say "done"
"#;

#[tokio::test]
async fn an_agent_that_is_taken_up_in_a_left_checkout_finds_it_there_unless_it_is_anothers() {
    let repo = repo();
    let stage = allowed(&repo, BELOW);
    let session = stage.play("go").await.session;
    let whole = stage.recorded(session);
    let transcript = stage.archive().layout().session(&stage.request.cwd, session).transcript();
    let bytes = fs::read(&transcript).unwrap();
    let seen = |envelope: &&Envelope| {
        envelope.agent.is_some() && matches!(envelope.event, Event::CallStarted { .. })
    };
    let at_work = whole.iter().find(seen).unwrap().seq;
    let lease = leases(&stage).remove(0);
    let trees = stage.worktrees.clone().unwrap();
    let stage = stage.resuming("when agent=worker\n  say \"seen\"\nwhen\n  say \"done\"\n");
    let relocated = whole.iter().rfind(|envelope| matches!(envelope.event, Event::Relocated { .. })).unwrap();
    // The session had left, and its agent was still at work.
    let still = |number: u128| {
        fs::write(&transcript, &bytes).unwrap();
        stage.forget_after(at_work);
        let mut lines = fs::read_to_string(&transcript).unwrap();
        let whole = String::from_utf8(bytes.clone()).unwrap();
        let is_left = |line: &&str| line.contains("\"relocated\"");
        lines.push_str(whole.lines().rfind(is_left).unwrap());
        lines.push('\n');
        fs::write(&transcript, lines).unwrap();
        let session = if number == 0 { session } else { SessionId(uuid::Uuid::from_u128(number)) };
        trees
            .leases()
            .put(&Lease { state: LeaseState::Used, session, ended: None, ..lease.clone() })
            .unwrap();
    };
    assert!(relocated.seq > at_work);
    still(0);
    let mut link = stage.engine().open(resumed(&stage, session)).await.unwrap();
    let events = finished(&mut link, 1).await;
    let played = Played { events, outcome: Outcome::Lost, session };
    assert!(lease.path.exists(), "{}", render(&played.events));
    assert_eq!(leases(&stage)[0].state, LeaseState::Kept);
    // The ending of its agent wakes the root, which is told where it works now, once.
    let place = format!("The session now works in {}.", utf8(repo.path()));
    assert_eq!(told(&played).matches(&place).count(), 1, "{}", render(&played.events));
    drop(link);
    let played = stage.play_all(resumed(&stage, session), &["more"]).await.unwrap();
    assert!(!told(&played).contains(&place), "{}", told(&played));
    still(7);
    let _alive = trees.leases().hold(SessionId(uuid::Uuid::from_u128(7))).unwrap();
    let played = stage.play_all(resumed(&stage, session), &["more"]).await.unwrap();
    let log = render(&played.events);
    assert!(log.contains("the worktree mine is in use by session"), "it is another session's: {log}");
}

/// Ends a session when it is quiet; gives what it said until then.
async fn finished(link: &mut decurion_protocol::Link, request: u64) -> Vec<Arc<Envelope>> {
    send(link, request, Command::Finish).await;
    let mut events = Vec::new();
    while let Some(envelope) = futures_util::StreamExt::next(&mut link.events).await {
        let closed = matches!(&envelope.event, Event::Replied { request: asked, .. } if asked.0 == request);
        events.push(envelope);
        if closed {
            break;
        }
    }
    events
}

/// Hears a session until it says this.
async fn heard(
    link: &mut decurion_protocol::Link,
    events: &mut Vec<Arc<Envelope>>,
    said: impl Fn(&Event) -> bool,
) {
    while !events.last().is_some_and(|envelope| said(&envelope.event)) {
        events.push(futures_util::StreamExt::next(&mut link.events).await.unwrap());
    }
}

#[tokio::test]
async fn what_became_of_a_left_checkout_is_said_though_nobody_waits_for_the_answer() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen turn=2\n  call ExitWorktree {\"action\": \"remove\"}\nwhen\n  say \"done\"\n";
    let stage = allowed(&repo, script);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut events = Vec::new();
    heard(&mut link, &mut events, |event| matches!(event, Event::Relocated { .. })).await;
    // Git waits for this lock to remove the branch.
    let lock = repo.path().join(".git/refs/heads/decurion/mine.lock");
    fs::write(&lock, "").unwrap();
    events.clear();
    heard(&mut link, &mut events, |event| matches!(event, Event::Relocated { .. })).await;
    send(&link, 2, Command::Interrupt).await;
    assert!(matches!(stage.listen(&mut link, &mut events).await, Outcome::Killed { .. }));
    fs::remove_file(&lock).unwrap();
    let log = render(&finished(&mut link, 3).await);
    assert!(log.contains("notice the worktree that the session left is gone"), "{log}");
}

#[test]
fn where_the_session_works_is_untold_until_a_line_tells_it() {
    use decurion_engine::context::Context;
    use decurion_protocol::{CallId, LineId, Message, MessageMeta, Role, ToolEffect, ToolOutput};

    let line = || LineId(uuid::Uuid::new_v4());
    let ended = |tool: &str| Event::CallEnded {
        call: CallId("c".into()),
        tool: tool.to_owned(),
        line: line(),
        parent: None,
        output: Box::new(ToolOutput::text("x").with_effect(ToolEffect::Moved { cwd: "/there".into() })),
        duration_ms: 0,
    };
    let said = |origin: Origin| Event::Message {
        message: Message { role: Role::User, blocks: vec![Block::text("x")] },
        lines: vec![line()],
        parent: None,
        meta: Box::new(MessageMeta { origin, ..MessageMeta::default() }),
    };
    let rows = [
        (ended("Bash"), true),
        (ended("EnterWorktree"), false),
        (ended("ExitWorktree"), false),
        (said(Origin::Note("hook".into())), true),
        (said(Origin::Note("context".into())), false),
    ];
    for (event, untold) in rows {
        let mut context = Context::new(decurion_model::Dialect::Anthropic);
        context.apply(&Event::Relocated { cwd: "/there".into(), worktree: None, before: None });
        context.apply(&event);
        assert_eq!(context.state().moved_untold, untold, "{event:?}");
    }
}

/// A clock that is broken.
struct Broken;

impl decurion_protocol::Clock for Broken {
    fn date(&self) -> jiff::Timestamp {
        panic!("no date")
    }

    fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

#[tokio::test]
async fn a_panic_on_the_way_into_a_checkout_keeps_no_session_from_its_end() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen\n  say \"done\"\n";
    let mut stage = allowed(&repo, script);
    let trees = stage.worktrees.take().unwrap();
    let settings = decurion_engine::worktree::WorktreeSettings::default();
    stage.worktrees = Some(decurion_engine::worktree::Worktrees::new(
        trees.git().clone(),
        trees.leases().clone(),
        settings,
        Arc::new(Broken),
    ));
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut events = Vec::new();
    stage.listen(&mut link, &mut events).await;
    let played = Played { events, outcome: Outcome::Lost, session: link.session };
    assert!(results(&played, "EnterWorktree", false)[0].contains("this is a bug in it"));
    finished(&mut link, 2).await;
}

/// What the last prompt's run was told of where it is.
fn told(played: &Played) -> String {
    let note = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::Message { message, meta, .. } if meta.origin == Origin::Note("context".into()) => {
            Some(message.text())
        }
        _ => None,
    };
    played.events.iter().filter_map(note).collect()
}

#[tokio::test]
async fn whatever_record_is_the_last_the_session_goes_on_where_that_says() {
    let repo = repo();
    let stage = allowed(&repo, THERE_AND_BACK);
    let session = stage.play("go").await.session;
    let whole = stage.recorded(session);
    let transcript = stage.archive().layout().session(&stage.request.cwd, session).transcript();
    let bytes = fs::read(&transcript).unwrap();
    let lease = leases(&stage).into_iter().find(|lease| lease.name == "mine").unwrap();
    let trees = stage.worktrees.clone().unwrap();
    let stage =
        stage.resuming("when text=/where/\n  call Bash {\"command\": \"pwd\"}\nwhen\n  say \"done\"\n");
    let moves: Vec<&Envelope> =
        whole.iter().filter(|envelope| matches!(envelope.event, Event::Relocated { .. })).collect();
    let (entered, left) = (moves[0].seq, moves[1].seq);
    let ended = |tool: &str| {
        let of_tool = |envelope: &&Envelope| matches!(&envelope.event, Event::CallEnded { tool: called, .. } if called == tool);
        whole.iter().find(of_tool).unwrap().seq
    };
    let agents = whole
        .iter()
        .filter(|envelope| envelope.agent.is_none() && !matches!(envelope.event, Event::Notice { .. }));
    for after in agents.map(|envelope| envelope.seq).filter(|seq| *seq > 4) {
        fs::write(&transcript, &bytes).unwrap();
        stage.forget_after(after);
        // As it was when the process died.
        trees.leases().put(&Lease { state: LeaseState::Used, ended: None, ..lease.clone() }).unwrap();
        let played = stage.play_all(resumed(&stage, session), &["where"]).await.unwrap();
        let inside = (entered..left).contains(&after);
        let place = if inside { lease.path.clone() } else { utf8(repo.path()) };
        assert_eq!(results(&played, "Bash", false).last().unwrap(), place.as_str(), "after {after}");
        // The call that led there has no result, so the conversation says it otherwise.
        let untold = (entered..ended("EnterWorktree")).contains(&after)
            || (left..ended("ExitWorktree")).contains(&after);
        assert_eq!(
            told(&played).contains(&format!("The session now works in {place}.")),
            untold,
            "after {after}"
        );
        let now = trees.leases().get(&lease.repository, "mine").unwrap();
        assert_eq!(now.state, LeaseState::Kept, "after {after}: its work is kept");
        let notice = |envelope: &Arc<Envelope>| matches!(&envelope.event, Event::Notice { text, .. } if text.contains(lease.path.as_str()));
        assert!(played.events.iter().any(notice), "after {after}: it is said where the work is");
    }
    assert_eq!(repo.status().unwrap(), "");
}

#[tokio::test]
async fn a_checkout_that_nobody_came_to_enter_is_gone_when_the_session_goes_on() {
    let repo = repo();
    let stage = allowed(&repo, "when\n  say \"done\"\n");
    let session = stage.play("go").await.session;
    let trees = stage.worktrees.clone().unwrap();
    for state in [LeaseState::Making, LeaseState::Used, LeaseState::Removing] {
        let made = trees.make(&wanted(&repo, "half", session)).await.unwrap();
        let lease = trees.leases().get(&made.worktree.repository, "half").unwrap();
        trees.leases().put(&Lease { state, ..lease }).unwrap();
        let played = stage.play_all(resumed(&stage, session), &["more"]).await.unwrap();
        assert!(matches!(played.outcome, Outcome::Completed { .. }));
        assert!(!made.worktree.path.exists(), "{state:?}");
        assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "", "{state:?}");
        if let Some(lease) = trees.leases().get(&made.worktree.repository, "half") {
            assert_eq!(lease.state, LeaseState::Removed);
            trees.leases().remove(&lease).unwrap();
        }
    }
}

#[tokio::test]
async fn a_removal_with_all_that_is_in_it_is_finished_by_whoever_comes_next() {
    let repo = repo();
    let stage = allowed(&repo, "when\n  say \"done\"\n");
    let session = stage.play("go").await.session;
    let trees = stage.worktrees.clone().unwrap();
    let other = SessionId(uuid::Uuid::from_u128(9));
    // Broken off before git began, and when it had removed a part of the files.
    for (of, half) in [(session, false), (session, true), (other, false), (other, true)] {
        let made = trees.make(&wanted(&repo, "mine", of)).await.unwrap();
        fs::write(made.cwd.join("new.txt"), "x").unwrap();
        let lease = trees.leases().get(&made.worktree.repository, "mine").unwrap();
        trees.leases().put(&Lease { state: LeaseState::Discarding, ..lease }).unwrap();
        if half {
            fs::remove_file(made.worktree.path.join(".git")).unwrap();
        }
        if of == session {
            let played = stage.play_all(resumed(&stage, session), &["more"]).await.unwrap();
            assert!(!render(&played.events).contains("is kept"), "{}", render(&played.events));
        } else {
            trees.clean(None, usize::MAX).await.unwrap();
        }
        assert!(!made.worktree.path.exists() && leases(&stage).is_empty(), "{half}");
        assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
        assert_eq!(repo.git(&["worktree", "list"]).unwrap().lines().count(), 1);
    }
    // What it begins with is that it is wanted: a disk that takes no note of it takes nothing away either.
    let made = trees.make(&wanted(&repo, "mine", other)).await.unwrap();
    fs::write(made.cwd.join("new.txt"), "x").unwrap();
    let lock = repo.path().join(".git/worktrees/mine/locked");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    assert!(matches!(trees.discard(&made.worktree).await, Released::Kept(_)), "git cannot unlock it");
    assert_eq!(leases(&stage)[0].state, LeaseState::Kept);
    assert!(made.cwd.join("new.txt").exists());
}

#[tokio::test]
async fn a_fork_of_a_session_works_in_no_checkout_of_that() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen text=/where/\n  call Bash {\"command\": \"pwd; echo x > x.txt\"}\nwhen\n  say \"done\"\n";
    let stage = allowed(&repo, script);
    let first = stage.play("where").await;
    let request = OpenSession {
        start: Start::Fork { from: first.session, id: None, at: None },
        ..stage.request.clone()
    };
    let forked = stage.play_all(request, &["where"]).await.unwrap();
    assert_eq!(results(&forked, "Bash", false)[0], utf8(repo.path()).as_str());
    assert!(told(&forked).contains("The session now works in"), "{}", told(&forked));
    let again = stage.play_all(resumed(&stage, forked.session), &["where"]).await.unwrap();
    assert_eq!(results(&again, "Bash", false)[0], utf8(repo.path()).as_str());
}

#[tokio::test]
async fn a_session_that_goes_on_elsewhere_works_there_with_its_shell_too() {
    let repo = repo();
    let stage = allowed(
        &repo,
        "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen turn=2\n  call ExitWorktree {\"action\": \"remove\"}\nwhen turn=3\n  call Bash {\"command\": \"cd sub\"}\nwhen\n  say \"done\"\n",
    );
    let first = stage.play("go").await;
    let elsewhere = tempfile::tempdir().unwrap();
    let above = utf8(repo.path()).parent().unwrap().to_owned();
    let stage =
        stage.resuming("when text=/where/\n  call Bash {\"command\": \"pwd\"}\nwhen\n  say \"done\"\n");
    let fork = Start::Fork { from: first.session, id: None, at: None };
    let resume = Start::Resume { id: first.session, at: None };
    let there = utf8(repo.path()).join("sub");
    // From where it was and from above that, its shell is where it was; a fork begins where it is asked for.
    let rows = [
        (fork.clone(), utf8(repo.path()), utf8(repo.path())),
        (fork, above.clone(), above),
        (resume.clone(), utf8(repo.path()), there),
        (resume, utf8(elsewhere.path()), utf8(elsewhere.path())),
    ];
    for (start, cwd, expected) in rows {
        let request = OpenSession { start, cwd: cwd.clone(), ..stage.request.clone() };
        let played = stage.play_all(request, &["where"]).await.unwrap();
        assert_eq!(results(&played, "Bash", false), [expected.as_str()]);
        let moved = told(&played).contains(&format!("The session now works in {cwd}."));
        assert_eq!(moved, expected == cwd, "{}", told(&played));
    }
}

#[tokio::test]
async fn an_interrupt_while_the_checkout_is_made_leaves_the_session_where_it_was_and_no_checkout() {
    let repo = repo();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen text=/where/\n  call Bash {\"command\": \"pwd\"}\nwhen\n  say \"done\"\n";
    let stage = allowed(&repo, script);
    // Git waits for this lock, and so does the session.
    let lock = repo.path().join(".git/refs/heads/decurion/mine.lock");
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::write(&lock, "").unwrap();
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut events = Vec::new();
    while !matches!(
        events.last().map(|envelope: &Arc<Envelope>| &envelope.event),
        Some(Event::CallStarted { .. })
    ) {
        events.push(futures_util::StreamExt::next(&mut link.events).await.unwrap());
    }
    send(&link, 2, Command::Interrupt).await;
    assert!(matches!(stage.listen(&mut link, &mut events).await, Outcome::Killed { .. }));
    fs::remove_file(&lock).unwrap();
    send(&link, 3, Command::Prompt { blocks: vec![Block::text("where")] }).await;
    stage.listen(&mut link, &mut events).await;
    // The session ends when nothing of that is under way any more.
    send(&link, 4, Command::Finish).await;
    while let Some(envelope) = futures_util::StreamExt::next(&mut link.events).await {
        let closed = matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 4);
        events.push(envelope);
        if closed {
            break;
        }
    }
    let played = Played { events, outcome: Outcome::Lost, session: link.session };
    assert!(places(&all(&played)).is_empty(), "it never moved");
    assert_eq!(results(&played, "Bash", false), [utf8(repo.path()).as_str()]);
    assert_eq!(repo.git(&["branch", "--list", "decurion/*"]).unwrap(), "");
    assert_eq!(repo.git(&["worktree", "list"]).unwrap().lines().count(), 1);
    assert!(leases(&stage).iter().all(|lease| lease.state == LeaseState::Removed));
}

//! Files put back to what they held at a prompt: what is kept before which calls, what goes back, what stays as it is
//! and why, and what is left of it all after a crash.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use camino::Utf8PathBuf;
use decurion_protocol::{
    AgentDefinition, Block, Command, Envelope, Event, FileBefore, LineId, Link, OpenSession, Place as _,
    Reply, Rewound, Rule, SessionId, Start,
};
use decurion_testkit::repo::Repo;
use decurion_testkit::stage::{Stage, send};
use expect_test::expect;
use futures_util::StreamExt as _;

use crate::isolated;
use crate::support::{stage as plain_stage, with_processes, worker};

/// A stage on which files are changed and kept.
fn stage(script: &str) -> Stage {
    let mut stage = plain_stage(script).with_files();
    stage.agents.push(std::sync::Arc::new(AgentDefinition { name: "helper".into(), ..worker() }));
    stage.rules.allow.push(Rule::parse("Bash", Default::default()).unwrap());
    stage.request.checkpoints = true;
    stage
}

fn line(number: u64) -> LineId {
    LineId(uuid::Uuid::from_u64_pair(0, number))
}

/// A session, and whoever talks to it.
struct Talk<'a> {
    stage: &'a Stage,
    link: Link,
    next: u64,
}

impl<'a> Talk<'a> {
    async fn begin(stage: &'a Stage, request: OpenSession) -> Self {
        Self { stage, link: stage.engine().open(request).await.unwrap(), next: 100 }
    }

    /// Works on a prompt of this number, to its end.
    async fn prompt(&mut self, number: u64, text: &str) {
        self.submit(number, text).await;
        self.stage.listen(&mut self.link, &mut Vec::new()).await;
    }

    async fn submit(&mut self, number: u64, text: &str) {
        let command = Command::Submit { line: line(number), blocks: vec![Block::text(text)] };
        send(&self.link, number, command).await;
    }

    async fn reply(&mut self, command: Command) -> Reply {
        self.next += 1;
        send(&self.link, self.next, command).await;
        while let Some(envelope) = self.link.events.next().await {
            match &envelope.event {
                Event::Replied { request, reply } if request.0 == self.next => return reply.clone(),
                _ => {}
            }
        }
        panic!("no reply");
    }

    /// Goes back to a prompt; gives what that came to, without the folder.
    async fn rewind(&mut self, number: u64, dry_run: bool) -> String {
        let reply = self.reply(Command::Rewind { to: line(number), dry_run }).await;
        let said = match reply {
            Reply::Refused { reason } => format!("refused: {reason}"),
            Reply::Done { value } => {
                let Rewound { error, files, insertions, deletions } = serde_json::from_value(value).unwrap();
                let files: Vec<&str> = files.iter().map(|path| path.as_str()).collect();
                let error = error.map(|error| format!(" error: {error}")).unwrap_or_default();
                format!("[{}] +{insertions} -{deletions}{error}", files.join(", "))
            }
        };
        said.replace(&format!("{}/", real(&self.stage.request.cwd)), "")
    }

    async fn close(mut self) -> SessionId {
        self.reply(Command::Finish).await;
        self.link.session
    }
}

fn real(path: &camino::Utf8Path) -> Utf8PathBuf {
    path.canonicalize_utf8().unwrap()
}

/// The files of a folder and what they hold.
fn files(stage: &Stage) -> String {
    let mut all: Vec<String> = Vec::new();
    let mut folders = vec![stage.request.cwd.clone()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = path.strip_prefix(&stage.request.cwd).unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path.to_owned());
            } else {
                all.push(format!("{name}={:?}", fs::read_to_string(path).unwrap_or_default()));
            }
        }
    }
    all.sort();
    format!("{{{}}}", all.join(" "))
}

fn put(stage: &Stage, name: &str, content: &str) {
    fs::write(stage.request.cwd.join(name), content).unwrap();
}

/// Rows: what is there first, what the model does at prompt 1 and at prompt 2, and to which prompt it goes back.
#[tokio::test]
async fn files_go_back_to_what_they_held_at_a_prompt() {
    let edit = |old: &str, new: &str| {
        format!(r#"call Edit {{"file_path": "a.txt", "old_string": "{old}", "new_string": "{new}"}}"#)
    };
    let write =
        |name: &str, text: &str| format!(r#"call Write {{"file_path": "{name}", "content": "{text}"}}"#);
    let read = r#"call Read {"file_path": "a.txt"}"#.to_owned();
    let helper = r#"call Agent {"description": "d", "prompt": "help", "subagent_type": "helper"}"#.to_owned();
    let bash = r#"call Bash {"command": "rm a.txt"}"#.to_owned();
    let wrong = r#"call Edit {"file_path": "a.txt", "old_string": "nowhere", "new_string": "x"}"#.to_owned();
    let rows: &[(&str, Vec<String>, Vec<String>, u64)] = &[
        ("nothing was changed", vec![], vec![], 1),
        ("created", vec![write("new.txt", "new")], vec![], 1),
        ("created in a new folder", vec![write("sub/new.txt", "new")], vec![], 1),
        ("edited", vec![read.clone(), edit("one", "1")], vec![], 1),
        ("edited twice, back to the first", vec![read.clone(), edit("one", "1")], vec![edit("1", "eins")], 1),
        (
            "edited twice, back to the second",
            vec![read.clone(), edit("one", "1")],
            vec![edit("1", "eins")],
            2,
        ),
        ("created, and changed later", vec![write("new.txt", "new")], vec![write("new.txt", "newer")], 2),
        ("by an agent", vec![helper], vec![], 1),
        ("removed by a command after an edit", vec![read.clone(), edit("one", "1"), bash], vec![], 1),
        ("a call that failed", vec![read, wrong], vec![], 1),
        ("before it", vec![write("new.txt", "new")], vec![], 2),
    ];
    let mut seen = String::new();
    for (name, first, second, to) in rows {
        let mut script = String::from(
            "when agent=helper turn=1\n  call Write {\"file_path\": \"helped.txt\", \"content\": \"x\\ny\\n\"}\n\
             when agent=helper\n  say \"helped\"\n",
        );
        for (turn, call) in first.iter().enumerate() {
            script.push_str(&format!("when turn={}\n  {call}\n", turn + 1));
        }
        script.push_str(&format!("when turn={}\n  say \"first\"\n", first.len() + 1));
        for (turn, call) in second.iter().enumerate() {
            script.push_str(&format!("when turn={}\n  {call}\n", first.len() + 2 + turn));
        }
        script.push_str("when\n  say \"second\"\n");
        let stage = with_processes(stage(&script));
        put(&stage, "a.txt", "one\ntwo\n");
        let mut talk = Talk::begin(&stage, stage.request.clone()).await;
        talk.prompt(1, "go").await;
        talk.prompt(2, "go on").await;
        let before = files(&stage);
        let dry = talk.rewind(*to, true).await;
        assert_eq!(files(&stage), before, "{name}: a dry run changes nothing");
        let rewound = talk.rewind(*to, false).await;
        assert_eq!(dry, rewound, "{name}");
        seen.push_str(&format!("{name}\n  {before}\n  {rewound}\n  {}\n", files(&stage)));
        assert_eq!(talk.rewind(*to, false).await, "[] +0 -0", "{name}: again");
        talk.close().await;
    }
    expect![[r#"
        nothing was changed
          {a.txt="one\ntwo\n"}
          [] +0 -0
          {a.txt="one\ntwo\n"}
        created
          {a.txt="one\ntwo\n" new.txt="new"}
          [new.txt] +0 -1
          {a.txt="one\ntwo\n"}
        created in a new folder
          {a.txt="one\ntwo\n" sub/new.txt="new"}
          [sub/new.txt] +0 -1
          {a.txt="one\ntwo\n"}
        edited
          {a.txt="1\ntwo\n"}
          [a.txt] +1 -1
          {a.txt="one\ntwo\n"}
        edited twice, back to the first
          {a.txt="eins\ntwo\n"}
          [a.txt] +1 -1
          {a.txt="one\ntwo\n"}
        edited twice, back to the second
          {a.txt="eins\ntwo\n"}
          [a.txt] +1 -1
          {a.txt="1\ntwo\n"}
        created, and changed later
          {a.txt="one\ntwo\n" new.txt="newer"}
          [new.txt] +1 -1
          {a.txt="one\ntwo\n" new.txt="new"}
        by an agent
          {a.txt="one\ntwo\n" helped.txt="x\ny\n"}
          [helped.txt] +0 -2
          {a.txt="one\ntwo\n"}
        removed by a command after an edit
          {}
          [a.txt] +2 -0
          {a.txt="one\ntwo\n"}
        a call that failed
          {a.txt="one\ntwo\n"}
          [] +0 -0
          {a.txt="one\ntwo\n"}
        before it
          {a.txt="one\ntwo\n" new.txt="new"}
          [] +0 -0
          {a.txt="one\ntwo\n" new.txt="new"}
    "#]]
    .assert_eq(&seen);
}

const EDITED: &str = r#"
when turn=1
  call Read {"file_path": "a.txt"}
when turn=2
  call Edit {"file_path": "a.txt", "old_string": "one", "new_string": "1"}
  call Write {"file_path": "new.txt", "content": "new"}
when
  say "done"
"#;

/// A session that has changed one file and made another.
async fn edited(stage: &Stage) -> Talk<'_> {
    put(stage, "a.txt", "one\n");
    let mut talk = Talk::begin(stage, stage.request.clone()).await;
    talk.prompt(1, "go").await;
    assert_eq!(files(stage), r#"{a.txt="1\n" new.txt="new"}"#);
    talk
}

fn checkpoints(stage: &Stage, session: SessionId) -> Vec<(bool, Utf8PathBuf, FileBefore)> {
    let checkpoint = |envelope: Envelope| match envelope.event {
        Event::Checkpointed { call, path, before } => Some((call.is_some(), path, before)),
        _ => None,
    };
    stage.recorded(session).into_iter().filter_map(checkpoint).collect()
}

/// Why files are not put back; each time all of them stay as they are.
#[tokio::test]
async fn what_cannot_go_back_wholly_stays() {
    let mut seen = String::new();
    for case in
        ["off", "unknown", "a link", "a link inside", "a deny rule", "lost", "damaged", "too large now"]
    {
        let mut stage = stage(EDITED);
        stage.request.checkpoints = case != "off";
        let mut talk = edited(&stage).await;
        let (cwd, mut to) = (stage.request.cwd.clone(), 1);
        let kept = || {
            let folder =
                stage.archive().layout().session(&cwd, talk.link.session).folder().join("checkpoints");
            folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect::<Vec<_>>()
        };
        match case {
            "unknown" => to = 7,
            "a link" => {
                fs::write(cwd.join("../outside"), "theirs").unwrap();
                fs::remove_file(cwd.join("a.txt")).unwrap();
                std::os::unix::fs::symlink("../outside", cwd.join("a.txt")).unwrap();
            }
            "a link inside" => {
                fs::create_dir(cwd.join("other")).unwrap();
                fs::write(cwd.join("other/x"), "theirs").unwrap();
                fs::remove_file(cwd.join("a.txt")).unwrap();
                std::os::unix::fs::symlink("other/x", cwd.join("a.txt")).unwrap();
            }
            "a deny rule" => {
                let deny = Rule::parse("Edit(new.txt)", Default::default()).unwrap();
                let update = decurion_protocol::PermissionUpdate::AddRules {
                    behavior: decurion_protocol::Verdict::Deny,
                    rules: vec![deny],
                };
                talk.reply(Command::Permit { updates: vec![update] }).await;
            }
            "lost" => kept().iter().for_each(|path| fs::remove_file(path).unwrap()),
            "damaged" => kept().iter().for_each(|path| fs::write(path, "two\n").unwrap()),
            "too large now" => {
                fs::File::create(cwd.join("new.txt")).unwrap().set_len((16 << 20) + 1).unwrap();
            }
            _ => {}
        }
        let size = || fs::metadata(cwd.join("new.txt")).unwrap().len();
        let (before, length) = (fs::read_to_string(cwd.join("a.txt")).unwrap(), size());
        seen.push_str(&format!("{case}: {}\n", talk.rewind(to, false).await));
        assert_eq!((fs::read_to_string(cwd.join("a.txt")).unwrap(), size()), (before, length), "{case}");
        talk.close().await;
    }
    expect![[r"
        off: [] +0 -0 error: file checkpointing is off, so nothing was kept to go back to; switch it on with `enable_file_checkpointing` (Python), `enableFileCheckpointing` (TypeScript) or CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=true when the session starts
        unknown: [] +0 -0 error: no prompt of this session has this id: 00000000-0000-0000-0000-000000000007
        a link: [] +0 -0 error: nothing was changed: a link stands on this path now and is not followed: a.txt
        a link inside: [] +0 -0 error: nothing was changed: a link stands on this path now and is not followed: a.txt
        a deny rule: [] +0 -0 error: nothing was changed: denied by Edit(new.txt): new.txt
        lost: [] +0 -0 error: nothing was changed: what a.txt held cannot be read again: No such file or directory (os error 2)
        damaged: [] +0 -0 error: nothing was changed: what a.txt held cannot be read again: what was kept is damaged
        too large now: [] +0 -0 error: nothing was changed: the file has 16777217 bytes, more than the 16777216 that are handled: new.txt
    "]].assert_eq(&seen);
}

/// A call that failed has changed nothing: what somebody else made of its file stays, and what a later call did to it
/// goes back.
#[tokio::test]
async fn what_a_failed_call_named_is_left_alone() {
    let edit = |file: &str, old: &str| {
        format!(r#"call Edit {{"file_path": "{file}", "old_string": "{old}", "new_string": "x"}}"#)
    };
    let script = format!(
        "when turn=1\n  {}\n  {}\n  {}\nwhen turn=2\n  call Read {{\"file_path\": \"c.txt\", \"limit\": 5}}\nwhen \
         turn=3\n  {}\nwhen\n  say \"done\"\n",
        edit("missing.txt", "a"),
        edit("a.txt", "not there"),
        edit("c.txt", "not there"),
        edit("c.txt", "three"),
    );
    let stage = stage(&script);
    put(&stage, "a.txt", "one\n");
    put(&stage, "c.txt", "three\n");
    let mut talk = Talk::begin(&stage, stage.request.clone()).await;
    talk.prompt(1, "go").await;
    put(&stage, "a.txt", "by hand\n");
    put(&stage, "missing.txt", "mine\n");
    assert_eq!(files(&stage), r#"{a.txt="by hand\n" c.txt="x\n" missing.txt="mine\n"}"#);
    expect!["[c.txt] +1 -1"].assert_eq(&talk.rewind(1, false).await);
    assert_eq!(files(&stage), r#"{a.txt="by hand\n" c.txt="three\n" missing.txt="mine\n"}"#);
    talk.close().await;
}

/// What a process changed that had it switched off is named.
#[tokio::test]
async fn what_was_not_kept_is_named() {
    let script = "when turn=1\n  call Read {\"file_path\": \"a.txt\", \"limit\": 1}\nwhen turn=2\n  \
        call Write {\"file_path\": \"b.txt\", \"content\": \"b\"}\nwhen\n  say \"done\"\n";
    let stage = stage(script);
    put(&stage, "a.txt", "one\n");
    let mut talk = Talk::begin(&stage, OpenSession { checkpoints: false, ..stage.request.clone() }).await;
    talk.prompt(1, "go").await;
    let session = talk.close().await;
    assert_eq!(checkpoints(&stage, session), []);
    // The next process has it switched on: what it did not see begin is not known to it.
    let request = OpenSession { start: Start::Resume { id: session, at: None }, ..stage.request.clone() };
    let mut talk = Talk::begin(&stage, request).await;
    expect!["[] +0 -0 error: nothing was changed: what b.txt held was not kept: it was changed while file checkpointing was off"]
        .assert_eq(&talk.rewind(1, false).await.replace(&format!("{}/", stage.request.cwd), ""));
    assert_eq!(files(&stage), r#"{a.txt="one\n" b.txt="b"}"#);
    talk.close().await;
}

/// What could not be kept is on record as that, the call goes on, and going back names it and changes nothing.
#[tokio::test]
async fn what_could_not_be_kept_is_named() {
    let stage = stage(EDITED);
    put(&stage, "a.txt", "one\n");
    let mut talk = Talk::begin(&stage, stage.request.clone()).await;
    let folder = stage.archive().layout().session(&stage.request.cwd, talk.link.session).folder();
    fs::write(folder.join("checkpoints"), "in the way").unwrap();
    talk.prompt(1, "go").await;
    expect!["[] +0 -0 error: nothing was changed: what a.txt held was not kept: it could not be written: Not a directory (os error 20); what new.txt holds now cannot be kept: it could not be written: Not a directory (os error 20)"].assert_eq(&talk.rewind(1, false).await);
    assert_eq!(files(&stage), r#"{a.txt="1\n" new.txt="new"}"#);
    let session = talk.close().await;
    let all = checkpoints(&stage, session);
    assert!(matches!(all[0].2, FileBefore::NotKept { .. }), "{all:?}");
    assert_eq!(all[1].2, FileBefore::Missing);
}

/// What going back overwrites is kept too, and on record, whatever it is.
#[tokio::test]
async fn what_is_overwritten_is_kept() {
    let stage = stage(EDITED);
    let mut talk = edited(&stage).await;
    put(&stage, "a.txt", "by hand\n");
    assert_eq!(talk.rewind(1, false).await, "[a.txt, new.txt] +1 -2");
    assert_eq!(files(&stage), r#"{a.txt="one\n"}"#);
    let session = talk.close().await;
    let all = checkpoints(&stage, session);
    let folder = stage.archive().layout().session(&stage.request.cwd, session).folder().join("checkpoints");
    let shown = all.iter().map(|(by_call, path, before)| {
        let held = match before {
            FileBefore::Kept { hash, .. } => {
                let path = folder.join(hash);
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                fs::read_to_string(path).unwrap()
            }
            other => format!("{other:?}"),
        };
        format!("{} {} {held:?}\n", if *by_call { "call  " } else { "rewind" }, path.file_name().unwrap())
    });
    expect![[r#"
        call   a.txt "one\n"
        call   new.txt "Missing"
        rewind a.txt "by hand\n"
        rewind new.txt "new"
    "#]]
    .assert_eq(&shown.collect::<String>());
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
}

/// A file that is gone comes back with the permissions that it had.
#[tokio::test]
async fn permissions_come_back() {
    let stage = stage(EDITED);
    put(&stage, "a.txt", "one\n");
    let path = stage.request.cwd.join("a.txt");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    let mut talk = edited(&stage).await;
    fs::remove_file(&path).unwrap();
    talk.rewind(1, false).await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
    talk.close().await;
}

/// Wherever the process dies, what is on record is enough for the next one.
#[tokio::test]
async fn files_go_back_after_a_crash() {
    let began = stage(EDITED);
    let session = edited(&began).await.close().await;
    let records = began.recorded(session);
    let begun = records.iter().rfind(|envelope| matches!(envelope.event, Event::CallStarted { .. })).unwrap();
    for seq in [begun.seq, records.last().unwrap().seq] {
        // The state folder is as the crash left it, and so are the files, in a folder of their own.
        let stage = began.after_crash_at(seq);
        put(&began, "a.txt", "1\n");
        put(&began, "new.txt", "new");
        let request = OpenSession { start: Start::Resume { id: session, at: None }, ..began.request.clone() };
        let mut talk = Talk::begin(&stage, request).await;
        assert_eq!(talk.rewind(1, false).await, "[a.txt, new.txt] +1 -2", "{seq}");
        assert_eq!(files(&began), r#"{a.txt="one\n"}"#, "{seq}");
        talk.close().await;
    }
}

/// While someone works nothing is put back, and a prompt that comes meanwhile waits for it.
#[tokio::test]
async fn nothing_goes_back_while_someone_works() {
    let mut stage = stage("when turn=1\n  call Poke {\"text\": \"a\"}\nwhen\n  say \"done\"\n");
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    stage.request.answers = true;
    let mut talk = Talk::begin(&stage, stage.request.clone()).await;
    talk.submit(1, "go").await;
    while let Some(envelope) = talk.link.events.next().await {
        if matches!(envelope.event, Event::Asked { .. }) {
            break;
        }
    }
    expect!["refused: files are restored only while nothing is running; wait until the turn and its agents have ended, or interrupt them, and try again"].assert_eq(&talk.rewind(1, false).await);
    talk.reply(Command::Interrupt).await;
    talk.stage.listen(&mut talk.link, &mut Vec::new()).await;
    assert_eq!(talk.rewind(1, false).await, "[] +0 -0");
    talk.close().await;
}

/// What a session inherited is not its own to put back.
#[tokio::test]
async fn a_fork_does_not_go_back_behind_its_beginning() {
    let stage = stage(EDITED);
    let session = edited(&stage).await.close().await;
    let request =
        OpenSession { start: Start::Fork { from: session, id: None, at: None }, ..stage.request.clone() };
    let mut talk = Talk::begin(&stage, request).await;
    expect!["[] +0 -0 error: this prompt is from before the session was forked or imported; what changed then was not kept here: 00000000-0000-0000-0000-000000000001"].assert_eq(&talk.rewind(1, false).await);
    assert_eq!(files(&stage), r#"{a.txt="1\n" new.txt="new"}"#);
    talk.close().await;
}

/// A checkout that an agent had is gone with its files; they do not come back.
#[tokio::test]
async fn files_of_a_checkout_that_is_gone_stay_gone() {
    let script = r#"
when agent=apart turn=1
  call Read {"file_path": "a.txt"}
when agent=apart turn=2
  call Edit {"file_path": "a.txt", "old_string": "one", "new_string": "1"}
when agent=apart turn=3
  call Edit {"file_path": "a.txt", "old_string": "1", "new_string": "one"}
when agent=apart
  say "as it was"
when agent=main turn=1
  call Agent {"description": "look", "prompt": "go", "subagent_type": "apart"}
when
  say "done"
"#;
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let mut stage = isolated::stage(&repo, script);
    stage.request.checkpoints = true;
    let mut talk = Talk::begin(&stage, stage.request.clone()).await;
    talk.prompt(1, "go").await;
    let session = talk.link.session;
    assert_eq!(talk.rewind(1, false).await, "[] +0 -0");
    talk.close().await;
    let all = checkpoints(&stage, session);
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|(_, path, _)| !path.exists() && !path.parent().unwrap().exists()), "{all:?}");
}

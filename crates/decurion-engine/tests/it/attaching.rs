//! Files that a prompt names with `@path`: what the model reads of them, what is left out, and that a resumed session has
//! the same request.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Event, HookDeclaration, HookEvent, Mode, OpenSession, Rule, Start};
use decurion_testkit::stage::{Played, Stage};
use serde_json::Value;

use crate::support::{self, Playing, prompt};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n0000";

/// A stage with a Read tool that asks about what no rule decides, and some files to be named.
fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.tools.push(Arc::new(decurion_tools::read::Read::default()));
    stage.request.mode = Some(Mode::Default);
    let work = work(&stage);
    fs::create_dir(work.join("docs")).unwrap();
    fs::write(work.join("a.rs"), "fn main() {}\n// end").unwrap();
    fs::write(work.join("docs/b.md"), "# B").unwrap();
    fs::write(work.join("docs/secret.md"), "never").unwrap();
    fs::write(work.join("my shot.png"), PNG).unwrap();
    let long: Vec<String> = (1..=500).map(|number| format!("line {number}")).collect();
    fs::write(work.join("long.txt"), long.join("\n")).unwrap();
    fs::write(work.join("wide.txt"), "wide \n".repeat(50).replace(' ', &"x".repeat(1000))).unwrap();
    fs::write(work.parent().unwrap().join("outside.txt"), "theirs").unwrap();
    fs::write(work.parent().unwrap().join("shot.png"), PNG).unwrap();
    stage
}

fn work(stage: &Stage) -> Utf8PathBuf {
    stage.request.cwd.canonicalize_utf8().unwrap()
}

fn deny(stage: &mut Stage, rule: &str) {
    stage.rules.deny.push(Rule::parse(rule, RuleSource::UserSettings).unwrap());
}

/// What the model was asked last: the texts of the user's side behind the surroundings, and what else is there by its kind.
fn heard(stage: &Stage) -> Vec<String> {
    let request: Value = serde_json::from_slice(&stage.requests().pop().unwrap()).unwrap();
    let messages = request["messages"].as_array().unwrap().clone();
    let users = messages.iter().filter(|message| message["role"] == "user");
    let blocks = users.flat_map(|message| message["content"].as_array().cloned().unwrap_or_default());
    let word = |block: Value| match block["text"].as_str() {
        Some(text) => text.to_owned(),
        None => block["type"].as_str().unwrap_or_default().to_owned(),
    };
    blocks.map(word).filter(|text| !text.starts_with("<environment>")).collect()
}

fn notices(played: &Played) -> Vec<String> {
    let notice = |event: &Event| match event {
        Event::Notice { level, text } => Some(format!("{level}: {text}")),
        _ => None,
    };
    played.events.iter().filter_map(|envelope| notice(&envelope.event)).collect()
}

#[tokio::test(start_paused = true)]
async fn files_and_folders_that_a_prompt_names_are_attached() {
    let stage = stage("when\n  say \"seen\"\n");
    let played = stage.play("compare @a.rs, @docs and @\"my shot.png\" (me@example.org, @nobody)").await;
    let heard = heard(&stage);
    assert_eq!(
        heard,
        [
            "compare @a.rs, @docs and @\"my shot.png\" (me@example.org, @nobody)",
            "The user's prompt names a.rs. Attached: 2 lines.\n\n1\tfn main() {}\n2\t// end",
            "The user's prompt names docs. Attached: what the folder holds.\n\nb.md\nsecret.md",
            "The user's prompt names my shot.png. Attached: an image.",
            "image",
        ]
    );
    assert_eq!(
        notices(&played),
        [
            "info: attached a.rs (2 lines)",
            "info: attached docs (what the folder holds)",
            "info: attached my shot.png (an image)",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_attached_is_bounded_and_says_how_much_was_cut() {
    let stage = stage("when\n  say \"seen\"\n");
    let played = stage.play("@long.txt @long.txt#L490-495 @wide.txt").await;
    assert_eq!(
        notices(&played),
        [
            "info: attached long.txt (lines 1-200 of 500)",
            "info: attached long.txt (lines 490-495 of 500)",
            "info: attached wide.txt (lines 1-32 of 51)",
        ]
    );
    let heard = heard(&stage);
    assert!(
        heard[1].ends_with("200\tline 200\n[cut here; Read with offset 201 gives the rest]"),
        "{}",
        heard[1]
    );
    assert!(heard[2].ends_with("495\tline 495"), "{}", heard[2]);
    assert!(heard[3].len() < 40 << 10 && heard[3].ends_with("read on with offset 33]"), "{}", heard[3].len());
}

#[tokio::test(start_paused = true)]
async fn a_rule_and_the_working_directories_keep_files_out_under_every_name() {
    let mut stage = stage("when\n  say \"seen\"\n");
    deny(&mut stage, "Read(./docs/secret.md)");
    let work = work(&stage);
    symlink(work.join("docs/secret.md"), work.join("alias.md")).unwrap();
    symlink(work.parent().unwrap().join("outside.txt"), work.join("way.txt")).unwrap();
    let played = stage.play("@docs/secret.md @alias.md @../outside.txt @way.txt @docs @../shot.png").await;
    let heard = heard(&stage);
    // The folder is attached without what a rule hides in it; nobody can be asked about the picture.
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(heard[1].ends_with("\n\nb.md"), "{}", heard[1]);
    let notices = notices(&played);
    let refused: Vec<&str> =
        notices.iter().filter_map(|text| text.strip_prefix("warning: not attached: ")).collect();
    assert_eq!(refused.len(), 5, "{notices:?}");
    for (refused, (path, why)) in refused.iter().zip([
        ("docs/secret.md", "Read(./docs/secret.md)"),
        ("alias.md", "Read(./docs/secret.md)"),
        ("../outside.txt", "outside"),
        ("way.txt", "outside"),
        ("../shot.png", "outside"),
    ]) {
        assert!(refused.starts_with(path) && refused.contains(why), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_picture_outside_of_the_working_directories_is_asked_about() {
    let mut stage = stage("when\n  say \"seen\"\n");
    stage.request.answers = true;
    let mut playing = Playing::with(&stage, stage.request.clone()).await;
    prompt(&playing.link, "what is in @../shot.png and @../outside.txt").await;
    let question = playing.question().await;
    playing.allow(question).await;
    let log = playing.finish().await;
    assert!(log.contains("notice attached ../shot.png (an image)"), "{log}");
    assert!(log.contains("notice not attached: ../outside.txt: "), "{log}");
    assert_eq!(heard(&stage).last().map(String::as_str), Some("image"));
}

#[tokio::test(start_paused = true)]
async fn secrets_are_taken_out_and_an_attached_file_counts_as_read() {
    let script = "when turn=1\n  call Edit {\"file_path\": \"a.rs\", \"old_string\": \"// end\", \"new_string\": \"// over\"}\nwhen\n  say \"done\"\n";
    let mut stage = stage(script);
    stage.tools.push(Arc::new(decurion_tools::edit::Edit::default()));
    stage.redact = Arc::new(|text: &str| text.contains("main").then(|| text.replace("main", "[secret]")));
    stage.rules.allow.push(Rule::parse("Edit", RuleSource::UserSettings).unwrap());
    stage.play("change @a.rs").await;
    assert_eq!(fs::read_to_string(work(&stage).join("a.rs")).unwrap(), "fn main() {}\n// over");
    assert!(heard(&stage)[1].contains("fn [secret]() {}"));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_sends_what_was_attached_then() {
    let stage = stage("when turn=1\n  say \"seen\"\nwhen\n  say \"again\"\n");
    let played = stage.play("look at @a.rs").await;
    let before = heard(&stage);
    fs::write(work(&stage).join("a.rs"), "another text").unwrap();
    let start = Start::Resume { id: played.session, at: None };
    let again = OpenSession { start, ..stage.request.clone() };
    stage.play_all(again, &["and now?"]).await.unwrap();
    let after = heard(&stage);
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!(after.last().map(String::as_str), Some("and now?"));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_refuses_to_read_a_file_keeps_it_out() {
    let mut stage = support::with_processes(stage("when\n  say \"seen\"\n"));
    let hook = HookDeclaration::new(HookEvent::PreToolUse, "echo 'not this one' >&2; exit 2");
    stage.hooks = vec![HookDeclaration { matcher: Some("Read".to_owned()), ..hook }];
    let played = stage.play("look at @a.rs").await;
    assert_eq!(heard(&stage), ["look at @a.rs"]);
    let notices = notices(&played);
    assert!(
        notices.iter().any(|text| text.contains("not attached: a.rs: ") && text.contains("not this one")),
        "{notices:?}"
    );
}

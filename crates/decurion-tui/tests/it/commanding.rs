//! Commands of our own, and keys that are pressed twice: what they ask for, show and leave in the prompt.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_protocol::{Block, Command, Inspected, PermissionUpdate, Reply, RequestId};
use decurion_tui::app::{App, AppInput, Effect};
use decurion_tui::commands::{CommandName, Topic};
use decurion_tui::port::{FrontEndJob, JobPurpose, JobResult};
use decurion_tui::theme::{Shades, Theme};
use expect_test::expect;
use serde_json::json;

use crate::screens::{Happens, app, asked, happen, said};

/// A screen of 80 columns after a prompt and its answer.
fn answered() -> App {
    let mut app = app(
        &[
            (None, json!({"type": "session_opened", "info": started()})),
            said("user", "prompt", &json!("first question")),
            said("assistant", "model", &json!([{"type": "text", "text": "An \u{1b}**answer**."}])),
            (
                None,
                json!({"type": "run_ended", "outcome": {"outcome": "completed", "report": "", "limit": null}, "totals": {}}),
            ),
        ],
        (80, 40),
    );
    app.library.skills = vec![("deploy".to_owned(), "ours".to_owned())];
    app
}

fn started() -> serde_json::Value {
    json!({"session": uuid::Uuid::nil(), "cwd": "/work", "version": "1", "entrypoint": "cli"})
}

fn press(app: &mut App, code: KeyCode) -> Vec<Effect> {
    app.update(AppInput::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn write(app: &mut App, text: &str) {
    app.update(AppInput::Paste(text.to_owned()));
}

fn send(app: &mut App, text: &str) -> Vec<Effect> {
    write(app, text);
    // What is proposed is closed first: it would take the key.
    if text.contains(' ') {
        return press(app, KeyCode::Enter);
    }
    press(app, KeyCode::Esc);
    press(app, KeyCode::Enter)
}

fn shown(app: &mut App) -> String {
    let mut lines = app.finished();
    lines.extend(app.live(jiff::Timestamp::from_second(100_000).unwrap()).0);
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}

fn commands(effects: &[Effect]) -> Vec<&Command> {
    let mut commands = Vec::new();
    for effect in effects {
        if let Effect::Send(request) = effect {
            commands.push(&request.command);
        }
    }
    commands
}

#[test]
fn a_misspelt_command_is_not_sent_and_stays_in_the_prompt() {
    let mut app = answered();
    let effects = send(&mut app, "/hlep me");
    assert_eq!(effects, []);
    let screen = shown(&mut app);
    assert!(screen.contains("· Unknown command /hlep. Did you mean /help?"), "{screen}");
    assert!(screen.contains("> /hlep me"), "{screen}");
    // A person's own, a path, and what nothing is near to, are for the session to judge.
    for prompt in ["/deploy now", "/usr/bin is full", "/frobnicate it"] {
        press(&mut app, KeyCode::Esc);
        press(&mut app, KeyCode::Esc);
        let effects = send(&mut app, prompt);
        assert!(matches!(commands(&effects)[..], [Command::Submit { .. }]), "{prompt}: {effects:?}");
    }
}

#[test]
fn escape_twice_empties_the_prompt_or_goes_back() {
    let mut app = answered();
    write(&mut app, "half a thought");
    assert_eq!(press(&mut app, KeyCode::Esc), []);
    let screen = shown(&mut app);
    assert!(screen.contains("> half a thought") && screen.contains("press esc again to clear"), "{screen}");
    // Another key in between begins anew.
    press(&mut app, KeyCode::Char('!'));
    press(&mut app, KeyCode::Esc);
    assert!(shown(&mut app).contains("half a thought!"));
    assert_eq!(press(&mut app, KeyCode::Esc), [Effect::Remember("half a thought!".to_owned())]);
    assert!(!shown(&mut app).contains("half a thought!"));
    press(&mut app, KeyCode::Up);
    assert!(shown(&mut app).contains("> half a thought!"));
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Esc);
    let screen = shown(&mut app);
    assert!(screen.contains("press esc again to go back to an earlier prompt"), "{screen}");
    press(&mut app, KeyCode::Esc);
    let screen = shown(&mut app);
    assert!(screen.contains("Back to before which prompt?") && screen.contains("first question"), "{screen}");
}

#[test]
fn escape_of_a_turn_under_way_is_its_end_and_no_first_press() {
    let mut app = answered();
    happen(&mut app, 9, &said("user", "prompt", &json!("second question")));
    happen(&mut app, 10, &(None, json!({"type": "quiet", "quiet": false, "queued": 0})));
    let effects = press(&mut app, KeyCode::Esc);
    assert!(matches!(commands(&effects)[..], [Command::Interrupt]), "{effects:?}");
    happen(&mut app, 11, &(None, json!({"type": "quiet", "quiet": true, "queued": 0})));
    press(&mut app, KeyCode::Esc);
    assert!(!shown(&mut app).contains("Back to before which prompt?"));
}

#[test]
fn a_pasted_path_of_a_picture_is_attached() {
    let mut app = answered();
    write(&mut app, "'/tmp/my shot.png'");
    write(&mut app, "what is this?");
    let effects = press(&mut app, KeyCode::Enter);
    let expected = vec![Block::text("@\"/tmp/my shot.png\" what is this?")];
    assert!(
        matches!(commands(&effects)[..], [Command::Submit { blocks, .. }] if *blocks == expected),
        "{effects:?}"
    );
    write(&mut app, "/tmp/notes.txt");
    assert!(shown(&mut app).contains("> /tmp/notes.txt"));
}

#[test]
fn prompts_of_ours_are_sent_by_their_name_unless_a_person_has_their_own() {
    let mut app = answered();
    let effects = send(&mut app, "/init focus on tests");
    let [Command::Submit { blocks, .. }] = commands(&effects)[..] else { panic!("{effects:?}") };
    let texts: Vec<&str> = blocks
        .iter()
        .map(|block| match block {
            Block::Text { text } => text.as_str(),
            _ => "",
        })
        .collect();
    assert!(texts[0].contains("<command-name>/init</command-name>"), "{texts:?}");
    assert!(
        texts[1].contains("AGENTS.md") && texts[1].ends_with("The user adds: focus on tests"),
        "{texts:?}"
    );
    let message = json!([{"type": "text", "text": texts[0]}, {"type": "text", "text": texts[1]}]);
    happen(&mut app, 20, &said("user", "prompt", &message));
    let screen = shown(&mut app);
    assert!(screen.contains("> /init focus on tests") && !screen.contains("Write an AGENTS.md"), "{screen}");
    app.library.skills.push(("review".to_owned(), "mine".to_owned()));
    let effects = send(&mut app, "/review now");
    let mine = vec![Block::text("/review now")];
    assert!(
        matches!(commands(&effects)[..], [Command::Submit { blocks, .. }] if *blocks == mine),
        "{effects:?}"
    );
}

#[test]
fn the_last_answer_is_copied_whole_and_bounded() {
    let mut app = answered();
    let effects = send(&mut app, "/copy");
    assert!(effects.contains(&Effect::Copy("An **answer**.".to_owned())), "{effects:?}");
    let long = "x".repeat(80_000);
    happen(&mut app, 20, &said("assistant", "model", &json!([{"type": "text", "text": long}])));
    let effects = send(&mut app, "/copy");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Copy(_))));
    assert!(shown(&mut app).contains("the answer has 80 KB"));
}

#[test]
fn changes_of_the_working_tree_are_drawn_as_changes() {
    let mut app = answered();
    let effects = send(&mut app, "/diff");
    let [Command::Inspect { what: Inspected::Changes }] = commands(&effects)[..] else {
        panic!("{effects:?}")
    };
    let Some(Effect::Send(request)) = effects.iter().find(|effect| matches!(effect, Effect::Send(_))) else {
        panic!()
    };
    let diff = "diff --git a/src/a b.rs b/src/a b.rs\nindex 1..2 100644\n--- a/src/a b.rs\n+++ b/src/a b.rs\n@@ -3,3 +3,3 @@ fn x\n one\n---dashes\n+++pluses\n three\ndiff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\ndiff --git a/p.png b/p.png\nBinary files a/p.png and b/p.png differ\n";
    let value = json!({"diff": diff, "untracked": ["new\u{1b}[31m.rs"], "is_cut": true});
    replied(&mut app, request.id, Reply::Done { value });
    let (rows, _) = app.page().unwrap();
    let page: String = rows.iter().map(|row| format!("{}\n", row.to_string().trim_end())).collect();
    expect![[r"
        changes since the last commit
        src/a b.rs +1 −1
        3   one
        4 - --dashes
        4 + ++pluses
        5   three

        gone −1
        deleted file mode 100644
        1 - x
        \ No newline at end of file

        p.png
        Binary files a/p.png and b/p.png differ

        The rest is left out: there is too much of it.

        Not tracked by git:
        new␛[31m.rs
    "]]
    .assert_eq(&page.split("\n\n\n").next().map(|page| format!("{}\n", page.trim_end())).unwrap());
}

fn replied(app: &mut App, request: RequestId, reply: Reply) {
    happen(
        app,
        50,
        &(None, serde_json::to_value(decurion_protocol::Event::Replied { request, reply }).unwrap()),
    );
}

#[test]
fn status_tells_what_is_in_force() {
    let mut app = answered();
    app.known.version = "1.2.3".to_owned();
    app.known.provider = "anthropic (key: ANTHROPIC_API_KEY)".to_owned();
    let effects = send(&mut app, "/status");
    let Some(Effect::Send(request)) = effects.iter().find(|effect| matches!(effect, Effect::Send(_))) else {
        panic!()
    };
    replied(&mut app, request.id, Reply::Done { value: json!([]) });
    let (rows, _) = app.page().unwrap();
    let page: String = rows.iter().take(11).map(|row| format!("{}\n", row.to_string().trim_end())).collect();
    expect![[r#"
        status
        Version   1.2.3
        Session   00000000-0000-0000-0000-000000000000
        Folder    /work
        Model     none
        Provider  anthropic (key: ANTHROPIC_API_KEY)
        Mode      ask before acting
        Sandbox   off
        Cost      $0.000
        Agents    0 started, 0 at work
        Servers   none
    "#]]
    .assert_eq(&page);
}

#[test]
fn a_directory_is_allowed_once_the_program_has_found_it() {
    let mut app = answered();
    let effects = send(&mut app, "/add-dir ../lib");
    let errand = Effect::Errand(JobPurpose::AddDirectory, FrontEndJob::Folder("../lib".to_owned()));
    assert!(effects.contains(&errand), "{effects:?}");
    let effects =
        app.update(AppInput::Done(JobPurpose::AddDirectory, Ok(JobResult::File("/lib".to_owned()))));
    let updates = vec![PermissionUpdate::AddDirectories { directories: vec!["/lib".into()] }];
    assert_eq!(commands(&effects), [&Command::Permit { updates }]);
}

#[test]
fn an_added_rule_is_said_to_hold_for_the_session_with_the_way_to_keep_it() {
    let mut app = answered();
    shown(&mut app);
    let request = |effects: &[Effect]| {
        let sent = effects.iter().find_map(|effect| match effect {
            Effect::Send(request) => Some(request.id),
            _ => None,
        });
        sent.unwrap_or_else(|| panic!("{effects:?}"))
    };
    let effects = send(&mut app, "/permissions");
    let rules = json!({"mode": "default", "rules": {"allow": [], "ask": [], "deny": []}, "cwd": "/work", "directories": []});
    replied(&mut app, request(&effects), Reply::Done { value: rules });
    press(&mut app, KeyCode::Char('a'));
    write(&mut app, "Bash(cargo test:*)");
    let effects = press(&mut app, KeyCode::Enter);
    replied(&mut app, request(&effects), Reply::Done { value: json!(null) });
    let lines: Vec<String> = app.finished().iter().map(ToString::to_string).collect();
    expect![[r#"
        · Added for this session: allow Bash(cargo test:*). To keep it, add it to
          "permissions": {"allow": […]} in ~/.decurion/settings.json."#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn a_theme_is_tried_while_it_is_chosen_and_kept_by_enter() {
    let mut app = answered();
    app.known.background = Shades::Light;
    let style = |app: &App| app.live(jiff::Timestamp::UNIX_EPOCH).0[1].style;
    send(&mut app, "/theme");
    let heading = |shades| Theme::new(shades).heading;
    assert_eq!(style(&app), heading(Shades::None));
    let screen = shown(&mut app);
    assert!(screen.contains("❯ none") && screen.contains("w * w // squared"), "{screen}");
    for _ in 0..9 {
        press(&mut app, KeyCode::Up);
    }
    assert_eq!(style(&app), heading(Shades::Light), "auto is the terminal's");
    press(&mut app, KeyCode::Down);
    assert_eq!(style(&app), heading(Shades::Dark));
    press(&mut app, KeyCode::Esc);
    send(&mut app, "/theme");
    assert_eq!(style(&app), heading(Shades::None), "esc has the one before");
    for _ in 0..2 {
        press(&mut app, KeyCode::Up);
    }
    let effects = press(&mut app, KeyCode::Enter);
    let kept = Effect::Errand(JobPurpose::Say, FrontEndJob::Theme("dark-daltonized".to_owned()));
    assert_eq!(effects, [kept, Effect::Repaint]);
    send(&mut app, "/theme");
    assert_eq!(style(&app), heading(Shades::DarkDaltonized));
}

#[test]
fn an_export_asks_where_before_it_writes() {
    let mut app = answered();
    assert!(!send(&mut app, "/export").iter().any(|effect| matches!(effect, Effect::Errand(..))));
    assert!(shown(&mut app).contains("> /export ~/session-00000000.md"));
    let effects = press(&mut app, KeyCode::Enter);
    let errand = FrontEndJob::Export("~/session-00000000.md".to_owned());
    assert!(effects.contains(&Effect::Errand(JobPurpose::Say, errand)), "{effects:?}");
}

#[test]
fn earlier_sessions_are_searched_previewed_and_timed() {
    let mut app = answered();
    send(&mut app, "/resume");
    let row = |id: u32, title: &str, modified: &str| {
        format!(
            "{{\"session\": \"{id:08}-0000-0000-0000-000000000000\", \"title\": \"{title}\", \"cwd\": \"/work\", \"modified\": \"{modified}\"}}\n"
        )
    };
    // The clock of these tests stands at 100 000 seconds.
    let printed =
        row(1, "fix the parser", "1970-01-02T03:40:00Z") + &row(2, "write docs", "1970-01-01T03:46:40Z");
    let purpose = JobPurpose::List(Topic::Sessions);
    let effects = app.update(AppInput::Done(purpose, Ok(JobResult::Text(printed))));
    let first = "00000001-0000-0000-0000-000000000000".to_owned();
    assert_eq!(
        effects,
        [Effect::Errand(JobPurpose::Preview(first.clone()), FrontEndJob::Preview(first.clone()))]
    );
    let preview = JobResult::Text("> fix it\n● It is fixed.".to_owned());
    app.update(AppInput::Done(JobPurpose::Preview(first), Ok(preview)));
    let screen = shown(&mut app);
    for words in [
        "❯ fix the parser  6 min ago",
        "  write docs      yesterday",
        "● It is fixed.",
        "type to search",
        "tab fork",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    for letter in "docs".chars() {
        press(&mut app, KeyCode::Char(letter));
    }
    let screen = shown(&mut app);
    assert!(
        screen.contains("search: docs") && screen.contains("❯ write docs") && !screen.contains("parser"),
        "{screen}"
    );
    for _ in 0..4 {
        press(&mut app, KeyCode::Backspace);
    }
    assert!(shown(&mut app).contains("fix the parser"));
    let effects = press(&mut app, KeyCode::Enter);
    assert!(matches!(effects[..], [Effect::Leave(_)]), "{effects:?}");
}

#[test]
fn the_context_is_a_bar_with_what_is_free() {
    let value = json!({"model": "m", "window": 200_000, "total": 50_000, "compacts_at": 160_000,
        "parts": [{"kind": "messages", "name": "", "of": "", "tokens": 50_000}]});
    let list = decurion_tui::topics::of_inspected(Topic::Context, value).unwrap();
    let lines = list.lines(&Theme::new(Shades::None), 90, 20, jiff::Timestamp::UNIX_EPOCH);
    let shown: String = lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect();
    expect![[r#"
        Context of m: █████░░░░░░░░░░░░░░░ 50.0k tok of 200k tok (25%)
        ❯ free          150k tok · 75% · compacts by itself at 160k tok
          conversation  50.0k tok · 25%
        ↑↓ choose · esc close
    "#]]
    .assert_eq(&shown);
}

#[test]
fn somebody_who_looks_elsewhere_is_told_of_questions_and_of_long_work() {
    let quiet = |quiet: bool| (None, json!({"type": "quiet", "quiet": quiet, "queued": 0}));
    let asked = asked(None, &[], "Bash", &json!({"command": "make"}), &[]).pop().unwrap();
    let told = |app: &mut App, second: usize, event: &Happens| {
        let event: decurion_protocol::Event = serde_json::from_value(event.1.clone()).unwrap();
        let at = jiff::Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
        let run = decurion_protocol::RunId(uuid::Uuid::nil());
        let envelope = decurion_protocol::Envelope { seq: second as u64, at, agent: None, run, event };
        let effects = app.update(AppInput::Event(envelope.into()));
        effects.into_iter().find_map(|effect| match effect {
            Effect::Notify(text) => Some(text),
            _ => None,
        })
    };
    let question = Some("Question: Run: make".to_owned());
    for (looks_elsewhere, took, expected) in [
        (false, 60, [None, None]),
        (true, 60, [question.clone(), Some("Done after 1m 00s: work".to_owned())]),
        (true, 19, [question, None]),
    ] {
        let mut app = answered();
        app.set_focus(!looks_elsewhere);
        told(&mut app, 100, &said("user", "prompt", &json!("work")));
        app.view.root.began = Some(jiff::Timestamp::UNIX_EPOCH);
        told(&mut app, 100, &quiet(false));
        let first = told(&mut app, 101, &asked);
        app.set_focus(true);
        app.set_focus(!looks_elsewhere);
        let second = told(&mut app, 100 + took, &quiet(true));
        assert_eq!([first, second], expected, "{looks_elsewhere} {took}");
    }
}

/// Two questions of the model.
fn two_questions() -> App {
    let option = |label: &str| json!({"label": label, "description": ""});
    let questions = json!({"questions": [
        {"question": "Which fruit?", "header": "fruit", "multiSelect": false, "options": [option("Pear"), option("Quince")]},
        {"question": "Which tools?", "header": "tools", "multiSelect": true, "options": [option("Ladder"), option("Basket")]},
    ]});
    let mut app = app(&asked(None, &[], "AskUserQuestion", &questions, &[]), (80, 40));
    app.drawn_once();
    app
}

#[test]
fn several_questions_have_chips_a_way_back_and_a_review() {
    let mut app = two_questions();
    assert!(shown(&mut app).contains("  [fruit] · tools · Send\n"));
    press(&mut app, KeyCode::Char('2'));
    let screen = shown(&mut app);
    assert!(
        screen.contains("  ✓ fruit · [tools] · Send\n") && screen.contains("← previous question"),
        "{screen}"
    );
    press(&mut app, KeyCode::Left);
    let screen = shown(&mut app);
    assert!(screen.contains("[fruit]") && screen.contains("❯ 2. Quince"), "{screen}");
    press(&mut app, KeyCode::Char('1'));
    press(&mut app, KeyCode::Char('1'));
    press(&mut app, KeyCode::Char('2'));
    assert_eq!(press(&mut app, KeyCode::Enter), []);
    let screen = shown(&mut app);
    for words in [
        "✓ fruit · ✓ tools · [Send]",
        "fruit: Pear",
        "tools: Ladder, Basket",
        "Send these answers?",
        "❯ 1. Send",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    // Back to the last one, with what was marked there.
    press(&mut app, KeyCode::Char('2'));
    assert!(shown(&mut app).contains("1. [x] Ladder"));
    press(&mut app, KeyCode::Enter);
    let effects = press(&mut app, KeyCode::Enter);
    let [Command::Answer { answer: decurion_protocol::Answer::Allow { input: Some(input), .. }, .. }] =
        commands(&effects)[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(input["answers"], json!({"Which fruit?": "Pear", "Which tools?": "Ladder, Basket"}));
}

#[test]
fn what_a_person_chose_is_shown_whole() {
    let mut app = answered();
    let text =
        "What the user chose:\n- Which?\n  a plum\n- How?\n  slowly\n- When?\n  now\n  They add: please";
    let events = [
        (
            None,
            json!({"type": "call_started", "call": "c", "tool": "AskUserQuestion", "intent": decurion_protocol::Intent::titled("Which? How? When?"),
            "decision": {"decision": "allow", "rule": null, "reason": "r"}}),
        ),
        (
            None,
            json!({"type": "call_ended", "call": "c", "tool": "AskUserQuestion", "line": uuid::Uuid::nil(), "parent": null,
            "output": {"content": text}, "duration_ms": 5}),
        ),
    ];
    for event in &events {
        happen(&mut app, 30, event);
    }
    let screen = shown(&mut app);
    assert!(!screen.contains("What the user chose") && !screen.contains("more lines"), "{screen}");
    for words in ["a plum", "slowly", "They add: please"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
}

#[test]
fn plain_lines_do_not_say_again_what_the_terminal_has_echoed() {
    for (echoes, times) in [(true, 0), (false, 1)] {
        let mut app = answered();
        app.be_plain(echoes);
        app.finished();
        write(&mut app, "my own prompt");
        let effects = press(&mut app, KeyCode::Enter);
        let [Command::Submit { line, .. }] = commands(&effects)[..] else { panic!("{effects:?}") };
        let mut event = said("user", "prompt", &json!("my own prompt"));
        event.1["lines"] = json!([line]);
        happen(&mut app, 60, &event);
        // One that somebody else sent is news.
        happen(&mut app, 61, &said("user", "prompt", &json!("another's prompt")));
        let lines: String = app.finished().iter().map(|line| format!("{line}\n")).collect();
        assert_eq!(lines.matches("my own prompt").count(), times, "{lines}");
        assert!(lines.contains("> another's prompt"), "{lines}");
    }
}

#[test]
fn every_command_stands_under_one_heading() {
    let of_groups: usize = decurion_tui::commands::HelpGroup::ALL
        .iter()
        .map(|group| decurion_tui::commands::names_of(*group).count())
        .sum();
    assert_eq!(of_groups, decurion_tui::commands::all().count());
    let typed = decurion_tui::commands::typed("/memory");
    assert_eq!(typed, decurion_tui::commands::TypedText::Ours(CommandName::List(Topic::Memory), ""));
}

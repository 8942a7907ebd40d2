//! What a person sees of a question: a change, a long command; and the forms of servers, field by field.

use super::{Terminal, USUAL, put, text_of};
use crate::stand::Stand;

/// A server with one tool, which asks a person and keeps what comes back.
const CLERK: &str = r#"answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*)
      answer "$id" '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"clerk","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      answer "$id" '{"tools":[{"name":"ask","description":"Asks a person.","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*)
      call=$id
      printf '{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":%s}\n' '{"message":"Who are you?","requestedSchema":{"type":"object","properties":{"name":{"type":"string","title":"Your name"},"fruit":{"type":"string","title":"Your fruit","enum":["pear","plum"]}},"required":["name"]}}' ;;
    *'"e1"'*)
      printf '%s\n' "$line" > answered
      answer "$call" '{"content":[{"type":"text","text":"noted"}]}' ;;
  esac
done
"#;

fn clerk() -> Terminal {
    let stand =
        Stand::new("when turn=1\n  call mcp__clerk__ask {}\nwhen result=/noted/\n  say \"It is noted.\"\n");
    put(&stand, "clerk.sh", CLERK);
    put(&stand, "servers.json", r#"{"mcpServers": {"clerk": {"command": "sh", "args": ["clerk.sh"]}}}"#);
    let arguments = ["--mcp-config", "servers.json", "--allowedTools", "mcp__clerk__ask"];
    let terminal = Terminal::with(stand, &arguments, USUAL);
    terminal.say("ask me");
    let screen = terminal.wait_for("The MCP server clerk asks");
    assert!(screen.contains("Who are you?") && screen.contains("1. Answer it"), "{screen}");
    terminal
}

/// What the server got.
fn answered(terminal: &Terminal) -> serde_json::Value {
    let got = text_of(terminal.stand.home.work().join("answered"));
    serde_json::from_str::<serde_json::Value>(&got).unwrap_or_default()["result"].clone()
}

#[test]
fn a_form_of_a_server_is_filled_in_field_by_field() {
    let terminal = clerk();
    terminal.keys("1");
    for _ in 0..2 {
        let screen = terminal.wait_until("a field", |screen| {
            screen.contains("Your name (") || screen.contains("Your fruit (")
        });
        if screen.contains("Your name (") {
            terminal.wait_for("\nanswer:");
            terminal.write("Ada");
            terminal.keys("Enter");
            terminal.wait_gone("Your name (");
        } else {
            assert!(screen.contains("1. pear") && screen.contains("2. plum"), "{screen}");
            terminal.keys("2");
            terminal.wait_gone("Your fruit (");
        }
    }
    terminal.wait_settled("It is noted.");
    let expected = serde_json::json!({"action": "accept", "content": {"name": "Ada", "fruit": "plum"}});
    assert_eq!(answered(&terminal), expected);
}

#[test]
fn a_form_of_a_server_is_declined_or_left() {
    for (key, action) in [("2", "decline"), ("Escape", "cancel")] {
        let terminal = clerk();
        terminal.keys(key);
        terminal.wait_settled("It is noted.");
        assert_eq!(answered(&terminal), serde_json::json!({"action": action}));
    }
}

#[test]
fn a_change_is_asked_about_as_a_difference() {
    let home = decurion_testkit::proc::Home::new().unwrap();
    let notes = crate::stand::file_in(&home, "notes.txt");
    let script = format!(
        "when turn=1\n  call Read {{\"file_path\": \"{notes}\"}}
when turn=2\n  call Edit {{\"file_path\": \"{notes}\", \"old_string\": \"two plums\", \"new_string\": \"three quinces\"}}
when\n  say \"It is over.\"\n"
    );
    let stand = Stand::in_home(home, &script);
    put(&stand, "notes.txt", "one pear\ntwo plums\n");
    let terminal = Terminal::with(stand, &[], (120, 30));
    terminal.say("go");
    let screen = terminal.wait_for("? Edit");
    let has = |row: &str| screen.lines().any(|line| line.trim_end().ends_with(row));
    assert!(has("- two plums") && has("+ three quinces"), "{screen}");
    assert!(screen.contains("Yes, for the rest of this session: Edit(./notes.txt)"), "{screen}");
    let notes = || text_of(terminal.stand.home.work().join("notes.txt"));
    assert_eq!(notes(), "one pear\ntwo plums\n");
    terminal.keys("1");
    terminal.wait_settled("It is over.");
    assert_eq!(notes(), "one pear\nthree quinces\n");
}

#[test]
fn what_is_cut_of_a_command_can_be_seen_whole_before_it_is_decided() {
    let lines: Vec<String> = (1..=60).map(|number| format!("echo row-{number} >> $EFFECTS")).collect();
    let input = serde_json::json!({"command": lines.join("\n"), "description": "Write rows"});
    let script = format!("when turn=1\n  call Bash {input}\nwhen\n  say \"It is over.\"\n");
    let terminal = Terminal::start(&script);
    terminal.say("go");
    let screen = terminal.wait_for("more lines (ctrl+o to see all)");
    assert!(screen.contains("row-1 ") && !screen.contains("row-60 "), "{screen}");
    terminal.keys("C-o");
    terminal.wait_fact("alternate_on", |on| on == "1");
    terminal.keys("PageDown PageDown PageDown");
    terminal.wait_for("row-60 ");
    terminal.keys("q");
    terminal.wait_for("1. Yes, this once");
    assert_eq!(text_of(terminal.stand.home.effects()), "");
    terminal.keys("1");
    terminal.wait_settled("It is over.");
    assert_eq!(text_of(terminal.stand.home.effects()).lines().count(), 60);
}

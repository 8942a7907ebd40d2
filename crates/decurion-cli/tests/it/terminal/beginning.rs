//! The first run: no model is configured, or the folder is not trusted.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use decurion_model::script::Script;
use decurion_testkit::proc::Home;
use decurion_testkit::server::{Answers, FakeModel, Settings};

use super::{Terminal, USUAL, put, text_of};
use crate::stand::{DECURION, Stand};

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

const KEY: &str = "sk-secret-of-the-orchard";
const MENU: &str = "Choose 1–4 (Enter to quit):";
const RETRY: &str = "Enter to try again, c to change the answers, q to quit without saving:";

/// A server in a home that was never used, which accepts one key and lists these models.
fn server(models: &[&str]) -> Arc<Stand> {
    let answers = Answers::Script(Script::parse(ANY).unwrap());
    let models = models.iter().map(|id| (*id).to_owned()).collect();
    let settings = Settings { models, key: Some(KEY.to_owned()), ..Settings::new(answers) };
    Arc::new(Stand { home: Home::new().unwrap(), model: FakeModel::with(settings).unwrap() })
}

/// The program in a home where nothing is configured, and where no server of this machine answers.
fn started(stand: &Arc<Stand>) -> Terminal {
    Terminal::as_told(Arc::clone(stand), (100, 30), |_| {
        let program =
            stand.home.program(DECURION).env("OLLAMA_HOST", "127.0.0.1:1").env("LLAMA_ARG_PORT", "1");
        // What would go to a provider's own address goes to a port where nothing listens.
        program.env("HTTPS_PROXY", "http://127.0.0.1:1").env("NO_PROXY", "127.0.0.1")
    })
}

/// The same, at the first question.
fn unconfigured() -> Terminal {
    let terminal = started(&server(&["gpt-4o", "gpt-5.4", "pear-1"]));
    let screen = terminal.wait_for(MENU);
    assert!(screen.contains("No model is configured yet. Choose one:"), "{screen}");
    terminal
}

/// Answers the questions about a server of the OpenAI kind up to its key.
fn name_server(terminal: &Terminal, address: &str, key: &str) {
    terminal.say("2");
    terminal.wait_for("Address [https://api.openai.com/v1]:");
    terminal.say(address);
    terminal.wait_for("API key (hidden; Enter for none):");
    terminal.say(key);
}

fn settings(terminal: &Terminal) -> std::path::PathBuf {
    terminal.stand.home.state().join("settings.json")
}

/// Waits for a prompt and has it answered.
fn converse(terminal: &Terminal, model: &str) {
    terminal.wait_for("ask before acting");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    let request = terminal.last_request("main");
    assert!(request.contains(&format!("\"model\":\"{model}\"")), "{request}");
}

#[test]
fn a_key_is_checked_kept_and_never_shown_and_what_is_kept_starts() {
    let terminal = unconfigured();
    name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
    terminal.wait_for("Model [gpt-5.4]:");
    assert!(!settings(&terminal).exists());
    terminal.keys("Enter");
    terminal.wait_for("settings.json (key stored separately, mode 0600).");
    converse(&terminal, "gpt-5.4");
    assert!(!terminal.scrollback().contains("secret-of"), "{}", terminal.scrollback());
    let kept = text_of(settings(&terminal));
    assert!(kept.contains("openai/gpt-5.4") && !kept.contains("secret-of"), "{kept}");
    let key = terminal.stand.home.state().join("keys/openai");
    assert_eq!(text_of(&key).trim(), KEY);
    for file in [key, settings(&terminal)] {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let again = started(&terminal.stand);
    let screen = again.wait_for("ask before acting");
    assert!(!screen.contains("Choose"), "{screen}");
}

#[test]
fn a_wrong_key_is_reported_and_asked_for_again() {
    let terminal = unconfigured();
    name_server(&terminal, &terminal.stand.model.openai_url(), "sk-mistyped");
    let screen = terminal.wait_for("API key (hidden; Enter to cancel):");
    assert!(screen.contains("authentication failed (401), check your API key"), "{screen}");
    assert!(!settings(&terminal).exists());
    terminal.say(KEY);
    terminal.wait_for("Model [gpt-5.4]:");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
}

/// The same with another key in a variable than the one that the server accepts.
fn started_with_wrong_variable(stand: &Arc<Stand>) -> Terminal {
    Terminal::as_told(Arc::clone(stand), (100, 30), |_| {
        let program = stand.home.program(DECURION).env("OLLAMA_HOST", "127.0.0.1:1");
        program.env("OPENAI_API_KEY", "sk-of-the-variable").env("OPENAI_BASE_URL", stand.model.openai_url())
    })
}

#[test]
fn a_typed_key_is_used_although_a_variable_holds_another() {
    let terminal = started_with_wrong_variable(&server(&["gpt-5.4"]));
    let screen = terminal.wait_for(MENU).replace('\n', "");
    let cause =
        "authentication failed (401), check your API key (from the environment variable OPENAI_API_KEY";
    assert!(screen.contains(cause) && !screen.contains("no default model"), "{screen}");
    name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
    terminal.wait_for("Model [gpt-5.4]:");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
    let shown = terminal.scrollback().replace('\n', " ");
    let notice = "OPENAI_API_KEY, OPENAI_BASE_URL: set in the environment, ignored by this session.";
    assert!(shown.contains(notice), "{shown}");
    // The next start goes by the variable again, and says which key was refused.
    let again = started_with_wrong_variable(&terminal.stand);
    again.wait_for("ask before acting");
    again.say("hello");
    let screen = again.wait_for("(from the environment variable OPENAI_API_KEY");
    assert!(screen.contains("authentication failed (401)"), "{screen}");
}

#[test]
fn a_person_who_gives_up_at_the_key_is_back_at_the_menu_and_nothing_is_saved() {
    let terminal = unconfigured();
    name_server(&terminal, &terminal.stand.model.openai_url(), "sk-mistyped");
    terminal.wait_for("API key (hidden; Enter to cancel):");
    terminal.keys("Enter");
    terminal.wait_until("the menu again", |screen| screen.matches(MENU).count() == 2);
    assert!(terminal.screen().contains("Nothing was saved."), "{}", terminal.screen());
    assert_eq!(terminal.stand.written(), Vec::<std::path::PathBuf>::new());
}

/// Shown before a key is asked for that others could read on its way.
const UNENCRYPTED: &str = "Warning: http:// is not encrypted.";

#[test]
fn without_a_network_the_reason_is_shown_and_nothing_is_saved() {
    let terminal = unconfigured();
    name_server(&terminal, "http://127.0.0.1:1/v1", "sk-any");
    let screen = terminal.wait_for(RETRY);
    assert!(screen.contains("cannot connect to the provider: 127.0.0.1:1"), "{screen}");
    terminal.say("c");
    terminal.wait_until("the address again", |screen| screen.matches("Address [").count() == 2);
    assert!(!screen.contains(UNENCRYPTED), "{screen}");
    terminal.say("http://no-such-host.invalid/v1");
    terminal.wait_for(UNENCRYPTED);
    terminal.wait_until("the key again", |screen| {
        screen.matches("API key (hidden; Enter for none)").count() == 2
    });
    terminal.say("sk-any");
    let screen = terminal.wait_until("two failures", |screen| screen.matches(RETRY).count() == 2);
    let expected = "cannot resolve the provider's host name (are you online?): no-such-host.invalid";
    assert!(screen.replace('\n', "").contains(expected), "{screen}");
    terminal.say("q");
    terminal.wait_until("the menu again", |screen| screen.matches(MENU).count() == 2);
    terminal.say("1");
    terminal.wait_for("API key (hidden; Enter to cancel):");
    terminal.say("sk-any");
    terminal.wait_for("the proxy did not connect us to the provider");
    assert_eq!(terminal.stand.written(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_address_that_is_no_api_is_reported_and_asked_for_again() {
    let terminal = unconfigured();
    let page = terminal.stand.model.url();
    name_server(&terminal, &format!("{page}/elsewhere"), KEY);
    let screen = terminal.wait_for("or Enter to name the model:");
    assert!(screen.contains("status 404") && screen.contains("It often ends in /v1."), "{screen}");
    terminal.keys("Enter");
    terminal.wait_for("Model (q to quit without saving):");
    terminal.say("pear-1");
    terminal.wait_for("\"pear-1\" does not work:");
    terminal.say("q");
    terminal.wait_until("the menu again", |screen| screen.matches(MENU).count() == 2);
    assert_eq!(terminal.stand.written(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn of_models_that_are_all_unusual_one_must_be_named_that_answers() {
    let terminal = started(&server(&["pear-1", "plum-2"]));
    terminal.wait_for(MENU);
    name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
    let screen = terminal.wait_for("Model (q to quit without saving):");
    assert!(screen.contains("Models: pear-1, plum-2"), "{screen}");
    terminal.keys("Enter");
    terminal.wait_until("the question again", |screen| screen.matches("Model (q").count() == 2);
    terminal.say("plum-2");
    converse(&terminal, "plum-2");
}

#[test]
fn answers_that_cannot_be_used_are_asked_for_again() {
    let terminal = unconfigured();
    terminal.say("banana");
    terminal.wait_for("\"banana\" isn't one of the options.");
    terminal.say("2");
    terminal.wait_for("Address [");
    terminal.say("localhost:8080/v1");
    terminal.wait_for("That is not an http or https address without user, query or fragment: localhost");
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_for("API key (hidden");
    assert!(!settings(&terminal).exists());
    terminal.say(KEY);
    terminal.wait_for("Model [gpt-5.4]:");
    terminal.say("pear-1");
    converse(&terminal, "pear-1");
}

/// Settings of the user's that no session can start with, and what is said about them.
const BROKEN: &[(&str, &str)] = &[
    (
        r#"{"model": "local/qwen", "provider": "openai", "providers": {"openai": {"apiKey": "sk-any"}}}"#,
        "no provider \"local\"",
    ),
    (r#"{"provider": "openai", "providers": {"openai": {"apiKeyFile": "keys/gone"}}}"#, "keys/gone"),
    (r#"{"provider": "pear"}"#, "the model provider \"pear\" cannot be used"),
    (
        r#"{"provider": "openai", "providers": {"openai": {"baseUrl": "http://127.0.0.1:1/v1"}}}"#,
        "the server at http://127.0.0.1:1/v1 does not answer",
    ),
];

#[test]
fn settings_that_cannot_start_bring_the_questions_back() {
    for (text, problem) in BROKEN {
        let stand = server(&["gpt-5.4"]);
        std::fs::write(stand.home.state().join("settings.json"), text).unwrap();
        let terminal = started(&stand);
        let screen = terminal.wait_for(MENU);
        assert!(screen.contains(problem) && screen.contains("Set up a model again:"), "{text}\n{screen}");
        name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
        terminal.wait_for("Model [gpt-5.4]:");
        terminal.keys("Enter");
        converse(&terminal, "gpt-5.4");
    }
}

#[test]
fn a_settings_file_that_cannot_be_read_is_tried_again_or_moved_aside() {
    let stand = server(&["gpt-5.4"]);
    let file = stand.home.state().join("settings.json");
    std::fs::write(&file, "{\n  \"model\": oops\n}\n").unwrap();
    let terminal = started(&stand);
    let question = "Enter to try again, m to move the file aside and set up again, q to quit:";
    let screen = terminal.wait_for(question);
    assert!(screen.replace('\n', "").contains("settings.json:2:"), "{screen}");
    terminal.keys("Enter");
    terminal.wait_until("the question again", |screen| screen.matches(question).count() == 2);
    terminal.say("m");
    terminal.wait_for(MENU);
    let kept = stand.home.state().join("settings.json.broken1");
    assert!(text_of(&kept).contains("oops") && !file.exists());
    terminal.keys("Enter");
    assert_eq!(terminal.ended(), 2);
}

#[test]
fn a_model_that_a_flag_names_wrongly_is_an_error_and_no_reason_to_set_up() {
    let stand = Arc::new(Stand::new(ANY));
    let terminal = Terminal::as_told(stand, (100, 30), |program| program.args(["--model", "local/qwen"]));
    assert_eq!(terminal.ended(), 2);
    let screen = terminal.screen();
    assert!(screen.contains("no provider \"local\"") && !screen.contains("Choose 1"), "{screen}");
}

#[test]
fn slash_model_refuses_an_unknown_provider() {
    let terminal = Terminal::start(ANY);
    terminal.say("/model local/qwen");
    terminal.wait_for("no provider \"local\"");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    assert!(terminal.last_request("main").contains("claude-sonnet-5-5"));
}

#[test]
fn a_server_that_was_started_meanwhile_is_found() {
    let terminal = unconfigured();
    terminal.say("3");
    terminal.wait_for("Start it (for example");
    terminal.keys("Enter");
    // It was not started: the same question again, and nothing was written.
    terminal.wait_until("the question again", |screen| screen.matches(MENU).count() == 2);
    assert!(!settings(&terminal).exists());
}

#[test]
fn a_server_on_this_machine_is_used_without_a_question() {
    let stand = Arc::new(Stand::new(ANY));
    let address = stand.model.url().trim_start_matches("http://").to_owned();
    let terminal = Terminal::as_told(Arc::clone(&stand), (120, 24), |_| {
        stand.home.program(DECURION).env("OLLAMA_HOST", address)
    });
    let screen = terminal.wait_for("ask before acting");
    assert!(screen.contains("using ollama at"), "{screen}");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
}

#[test]
fn a_demo_shows_how_it_works_and_comes_back() {
    let terminal = unconfigured();
    terminal.say("4");
    terminal.wait_for("Three agents look around in parallel");
    terminal.keys("Escape");
    terminal.wait_until("the question again", |screen| screen.trim_end().ends_with(MENU));
    assert!(!settings(&terminal).exists());
    terminal.keys("Enter");
    assert_ne!(terminal.ended(), 0);
}

#[test]
fn whoever_leaves_is_told_how_to_come_back() {
    let terminal = unconfigured();
    terminal.keys("Enter");
    assert_ne!(terminal.ended(), 0);
    let screen = terminal.screen();
    assert!(screen.contains("ANTHROPIC_API_KEY"), "{screen}");
    assert!(!settings(&terminal).exists());
}

const HOOK: &str =
    r#"{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "touch $HOME/ran"}]}]}}"#;

/// A folder whose files would run a program.
fn untrusted() -> Terminal {
    let stand = Stand::new(ANY);
    put(&stand, ".claude/settings.json", HOOK);
    let terminal = Terminal::as_told(stand, USUAL, |program| program);
    let screen = terminal.wait_for("Trust them (y), or go on without (enter)?");
    assert!(screen.contains("touch $HOME/ran"), "it does not say what would run: {screen}");
    terminal
}

fn ran(terminal: &Terminal) -> bool {
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.stand.home.home().join("ran").exists()
}

#[test]
fn a_folder_is_trusted_once() {
    let terminal = untrusted();
    terminal.say("y");
    terminal.wait_for("ask before acting");
    assert!(ran(&terminal));
    let again = terminal.beside(&[]);
    let screen = again.wait_for("ask before acting");
    assert!(!screen.contains("Trust them"), "{screen}");
}

#[test]
fn a_folder_that_is_not_trusted_runs_nothing_and_is_asked_about_again() {
    let terminal = untrusted();
    terminal.keys("Enter");
    terminal.wait_for("ask before acting");
    assert!(!ran(&terminal));
    let again = terminal.beside(&[]);
    again.wait_for("Trust them");
}

//! The first run: no model is configured, or the folder is not trusted.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use decurion_model::script::Script;
use decurion_testkit::proc::{Home, Program};
use decurion_testkit::server::{Answers, FakeModel, Settings};

use super::{Terminal, USUAL, put, text_of};
use crate::stand::{DECURION, Stand};

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

const KEY: &str = "sk-secret-of-the-orchard";
/// The first row of the menu while it is open, with the mark of what is chosen.
const MENU: &str = "❯ 1. Anthropic";
const RETRY: &str = "❯ 1. Try again";
const ADDRESS: &str = "Address (for example https://openrouter.ai/api/v1):";
const KEY_WANTED: &str = "API key (hidden; Enter to cancel):";
const KEY_ALLOWED: &str = "API key (hidden; Enter for none):";
const SAVED: &str = "settings.json (key stored separately, mode 0600).";
/// Below a question that is open.
const KEY_HINT: &str = "paste or type";

/// A server in a home that was never used, which accepts one key and lists these models.
fn server(models: &[&str]) -> Arc<Stand> {
    locked(models, Some(KEY))
}

/// The same with another key, or for everybody.
fn locked(models: &[&str], key: Option<&str>) -> Arc<Stand> {
    let answers = Answers::Script(Script::parse(ANY).unwrap());
    let models = models.iter().map(|id| (*id).to_owned()).collect();
    let settings = Settings { models, key: key.map(str::to_owned), ..Settings::new(answers) };
    Arc::new(Stand { home: Home::new().unwrap(), model: FakeModel::with(settings).unwrap() })
}

/// The program in a home where nothing is configured, and where no server of this machine answers.
fn started(stand: &Arc<Stand>) -> Terminal {
    started_with(stand, |program| program)
}

fn started_with(stand: &Arc<Stand>, told: impl FnOnce(Program) -> Program) -> Terminal {
    Terminal::as_told(Arc::clone(stand), (100, 40), |_| {
        let program =
            stand.home.program(DECURION).env("OLLAMA_HOST", "127.0.0.1:1").env("LLAMA_ARG_PORT", "1");
        // What would go to a provider's own address goes to a port where nothing listens.
        told(program.env("HTTPS_PROXY", "http://127.0.0.1:1").env("NO_PROXY", "127.0.0.1"))
    })
}

/// The same, at the first question.
fn unconfigured() -> Terminal {
    let terminal = started(&server(&["gpt-4o", "gpt-5.4", "pear-1"]));
    let screen = terminal.wait_for(MENU);
    assert!(screen.contains("No model is configured yet."), "{screen}");
    terminal
}

/// Writes a key where one is asked for.
fn give_key(terminal: &Terminal, key: &str) {
    terminal.wait_for(KEY_HINT);
    terminal.say(key);
}

/// Answers the questions about a server of the OpenAI kind up to its key.
fn name_server(terminal: &Terminal, address: &str, key: &str) {
    terminal.keys("3");
    terminal.wait_for("enter continue");
    terminal.say(address);
    terminal.wait_for(KEY_ALLOWED);
    give_key(terminal, key);
}

fn settings(terminal: &Terminal) -> std::path::PathBuf {
    terminal.stand.home.state().join("settings.json")
}

fn wrote_nothing(terminal: &Terminal) {
    assert_eq!(terminal.stand.written(), Vec::<std::path::PathBuf>::new());
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
    // By arrow keys; a digit does the same.
    terminal.keys("Down Down Enter");
    terminal.wait_for(ADDRESS);
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_for(KEY_ALLOWED);
    terminal.write("sk-");
    terminal.wait_for("••• (3 characters)");
    terminal.paste(&format!("{}\n", &KEY[3..]));
    terminal.wait_for(&format!("({} characters)", KEY.len()));
    terminal.keys("Enter");
    terminal.wait_for("✓ The key works: 3 models.");
    let screen = terminal.wait_for("❯ 2. gpt-5.4  recommended");
    assert!(screen.contains("3. pear-1"), "{screen}");
    assert!(!settings(&terminal).exists());
    terminal.keys("Enter");
    terminal.wait_for("✓ gpt-5.4 answers.");
    terminal.wait_for(SAVED);
    converse(&terminal, "gpt-5.4");
    assert!(!terminal.scrollback().contains("secret-of"), "{}", terminal.scrollback());
    let kept = text_of(settings(&terminal));
    assert!(kept.contains("local/gpt-5.4") && !kept.contains("secret-of"), "{kept}");
    let key = terminal.stand.home.state().join("keys/local");
    assert_eq!(text_of(&key).trim(), KEY);
    for file in [key, settings(&terminal)] {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let again = started(&terminal.stand);
    let screen = again.wait_for("ask before acting");
    assert!(!screen.contains("Choose"), "{screen}");
}

/// What each provider by name takes: its row, the variable of its address, and the model that is used.
fn set_up_by_name(row: &str, variable: &str, url: impl Fn(&Stand) -> String, models: &[&str], usual: &str) {
    let stand = server(models);
    let address = url(&stand);
    let terminal = started_with(&stand, |program| program.env(variable, &address).args(["login"]));
    terminal.wait_for(MENU);
    terminal.keys(row);
    terminal.wait_for(&format!("({variable})"));
    give_key(&terminal, "sk-mistyped");
    terminal.wait_for("✗ This does not work: authentication failed (401), check your API key");
    give_key(&terminal, KEY);
    terminal.wait_for("recommended");
    terminal.keys("Enter");
    terminal.wait_for(SAVED);
    terminal.wait_for(&format!("/{usual}."));
    assert_eq!(terminal.ended(), 0);
    // The key is found in its file, and the address with it.
    let again = started(&stand);
    converse(&again, usual);
}

#[test]
fn an_openai_key_alone_leads_to_an_answer() {
    let models = ["gpt-4o", "gpt-5.4", "text-embedding-3-small"];
    set_up_by_name("2", "OPENAI_BASE_URL", |stand| stand.model.openai_url(), &models, "gpt-5.4");
}

#[test]
fn an_anthropic_key_alone_leads_to_an_answer() {
    let models = ["claude-opus-5-5", "claude-sonnet-5-5"];
    let usual = "claude-sonnet-5-5";
    set_up_by_name("1", "ANTHROPIC_BASE_URL", |stand| stand.model.url(), &models, usual);
}

#[test]
fn a_wrong_key_is_reported_and_asked_for_again() {
    let terminal = unconfigured();
    name_server(&terminal, &terminal.stand.model.openai_url(), "sk-mistyped");
    let screen = terminal.wait_for(KEY_WANTED);
    assert!(screen.contains("authentication failed (401), check your API key"), "{screen}");
    assert!(!settings(&terminal).exists());
    give_key(&terminal, KEY);
    terminal.wait_for("❯ 2. gpt-5.4");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
}

/// The same with another key in a variable than the one that the server accepts.
fn started_with_wrong_variable(stand: &Arc<Stand>) -> Terminal {
    started_with(stand, |program| {
        program.env("OPENAI_API_KEY", "sk-of-the-variable").env("OPENAI_BASE_URL", stand.model.openai_url())
    })
}

#[test]
fn a_typed_key_is_used_although_a_variable_holds_another() {
    let terminal = started_with_wrong_variable(&server(&["gpt-5.4"]));
    let screen = terminal.wait_for(MENU).replace('\n', "");
    let cause = "authentication failed (401), check your API key (from the environment variable";
    assert!(screen.contains(cause) && !screen.contains("no default model"), "{screen}");
    terminal.keys("2");
    give_key(&terminal, KEY);
    terminal.wait_for("❯ 1. gpt-5.4");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
    let shown = terminal.scrollback();
    let notice = "OPENAI_API_KEY: set in the environment, ignored by this session.";
    assert!(shown.contains(notice) && shown.contains("unset OPENAI_API_KEY\n"), "{shown}");
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
    terminal.wait_for(KEY_WANTED);
    terminal.keys("Enter");
    let screen = terminal.wait_for(MENU);
    assert!(screen.contains("Nothing was saved."), "{screen}");
    // And from an earlier question by the key that goes back.
    terminal.keys("1");
    terminal.wait_for(KEY_HINT);
    terminal.keys("Escape");
    terminal.wait_for(MENU);
    wrote_nothing(&terminal);
}

/// Shown before a key is asked for that others could read on its way.
const UNENCRYPTED: &str = "Warning: http:// is not encrypted.";

#[test]
fn without_a_network_the_reason_is_shown_and_nothing_is_saved() {
    let terminal = unconfigured();
    name_server(&terminal, "http://127.0.0.1:1/v1", "sk-any");
    let screen = terminal.wait_for(RETRY);
    assert!(screen.contains("cannot connect to the provider: 127.0.0.1:1"), "{screen}");
    terminal.keys("1");
    terminal.wait_until("a second failure", |screen| {
        screen.contains(RETRY) && screen.matches("cannot connect").count() == 2
    });
    terminal.keys("2");
    terminal.wait_for("enter continue");
    assert!(!screen.contains(UNENCRYPTED), "{screen}");
    terminal.say("http://no-such-host.invalid/v1");
    terminal.wait_for(UNENCRYPTED);
    give_key(&terminal, "sk-any");
    let screen = terminal.wait_for(RETRY);
    let expected = "cannot resolve the provider's host name (are you online?): no-such-host.invalid";
    assert!(screen.replace("\n  ", " ").contains(expected), "{screen}");
    terminal.keys("3");
    terminal.wait_for(MENU);
    terminal.keys("1");
    give_key(&terminal, "sk-any");
    terminal.wait_for("the proxy did not connect us to the provider");
    wrote_nothing(&terminal);
}

#[test]
fn an_address_that_is_no_api_is_reported_and_asked_for_again() {
    let terminal = unconfigured();
    let page = terminal.stand.model.url();
    name_server(&terminal, &format!("{page}/elsewhere"), KEY);
    let screen = terminal.wait_for("❯ 1. Name the model");
    assert!(screen.contains("status 404") && screen.contains("It often ends in /v1."), "{screen}");
    terminal.keys("Enter");
    terminal.wait_for("Model:");
    terminal.wait_for("enter continue");
    terminal.say("pear-1");
    terminal.wait_for("✗ pear-1 does not work:");
    terminal.wait_for("3. Back, without saving");
    terminal.keys("3");
    terminal.wait_for(MENU);
    wrote_nothing(&terminal);
}

#[test]
fn of_many_models_one_is_found_by_a_part_of_its_name() {
    let many: Vec<String> = (1..=30).map(|at| format!("pear-{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["plum-7"]).collect();
    let terminal = started(&server(&many));
    terminal.wait_for(MENU);
    name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
    terminal.wait_for("❯ 1. pear-1");
    terminal.keys("/");
    terminal.wait_for("filter:");
    terminal.say("PLUM");
    terminal.wait_until("one row", |screen| screen.contains("❯ 1. plum-7") && !screen.contains("pear-2"));
    terminal.keys("Enter");
    converse(&terminal, "plum-7");
}

#[test]
fn answers_that_cannot_be_used_are_asked_for_again() {
    let terminal = unconfigured();
    terminal.keys("9");
    terminal.keys("3");
    terminal.wait_for("enter continue");
    terminal.say("localhost:8080/v1");
    terminal.wait_for("That is not an http or https address without user, query or fragment: localhost");
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_for(KEY_ALLOWED);
    terminal.say("ключ");
    terminal.wait_for("This key holds characters that cannot be sent in a header.");
    assert!(!settings(&terminal).exists());
    give_key(&terminal, KEY);
    terminal.wait_for("❯ 2. gpt-5.4");
    terminal.keys("o");
    terminal.wait_for("model id:");
    terminal.say("quince-1");
    terminal.wait_for("✓ quince-1 answers.");
    converse(&terminal, "quince-1");
}

#[test]
fn plain_questions_do_the_same() {
    let stand = server(&["gpt-4o", "gpt-5.4"]);
    let terminal = started_with(&stand, |program| program.args(["--plain"]));
    terminal.wait_for("Choose 1–5 [1] (q to quit):");
    terminal.say("banana");
    terminal.wait_for("\"banana\" isn't one of the options.");
    terminal.say("3");
    terminal.wait_for(ADDRESS);
    terminal.say(&stand.model.openai_url());
    terminal.wait_for(KEY_ALLOWED);
    terminal.say(KEY);
    terminal.wait_for(&format!("({} characters)", KEY.len()));
    terminal.wait_for("Choose 1–2, or model id [2] (q to quit):");
    terminal.keys("Enter");
    terminal.wait_for(SAVED);
    terminal.say("hello");
    terminal.wait_for("I heard: hello");
    assert!(!terminal.scrollback().contains("secret-of"), "{}", terminal.scrollback());
}

#[test]
fn login_in_a_conversation_changes_the_provider_and_keeps_what_was_said() {
    let terminal = Terminal::start(ANY);
    terminal.say("peel the pomegranate");
    terminal.wait_settled("I heard: peel the pomegranate");
    terminal.say("/login");
    let screen = terminal.wait_for(MENU);
    assert!(screen.contains("Choose a model provider"), "{screen}");
    terminal.keys("Escape");
    terminal.wait_for("nothing was changed");
    terminal.wait_for("ask before acting");
    terminal.say("/login");
    terminal.wait_for(MENU);
    let row = |screen: &str| screen.lines().any(|row| row.contains("3. Another server"));
    terminal.wait_until("the row", row);
    name_server(&terminal, &terminal.stand.model.openai_url(), "any-key-will-do");
    terminal.wait_for("❯ 1. test-model");
    terminal.keys("Enter");
    terminal.wait_for("local/test-model answers from here on");
    converse(&terminal, "test-model");
    let request = terminal.last_request("main");
    assert!(request.contains("peel the pomegranate"), "{request}");
    assert_eq!(terminal.scrollback().matches("I heard: peel the pomegranate").count(), 1);
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
}

#[test]
fn login_in_plain_lines_asks_there_and_the_conversation_continues() {
    let terminal = Terminal::with(Stand::new(ANY), &["--plain"], (100, 60));
    terminal.say("peel the pomegranate");
    terminal.wait_for("I heard: peel the pomegranate");
    terminal.say("/login");
    terminal.wait_for("Choose 1–4 [1] (q to quit):");
    terminal.keys("C-c");
    terminal.wait_for("nothing was changed");
    terminal.say("still here");
    terminal.wait_for("I heard: still here");
    terminal.say("/login");
    terminal.wait_until("the question again", |screen| screen.matches("(q to quit):").count() == 2);
    terminal.say("3");
    terminal.wait_for(ADDRESS);
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_for(KEY_ALLOWED);
    terminal.say("any-key-will-do");
    terminal.wait_for("Choose 1–1, or model id [1] (q to quit):");
    terminal.keys("Enter");
    terminal.wait_for("local/test-model answers from here on");
    terminal.say("and now");
    terminal.wait_for("I heard: and now");
    let request = terminal.last_request("main");
    assert!(request.contains("peel the pomegranate") && request.contains("\"test-model\""), "{request}");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert!(!terminal.scrollback().contains("any-key-will-do"), "{}", terminal.scrollback());
    assert_eq!(terminal.scrollback().matches("I heard: peel").count(), 1, "{}", terminal.scrollback());
}

#[test]
fn login_before_anything_was_said_needs_no_session() {
    let terminal = Terminal::start(ANY);
    terminal.say("/login");
    terminal.wait_for(MENU);
    name_server(&terminal, &terminal.stand.model.openai_url(), "any-key-will-do");
    terminal.wait_for("❯ 1. test-model");
    terminal.keys("Enter");
    converse(&terminal, "test-model");
}

#[test]
fn login_without_a_terminal_says_how_to_configure_a_model() {
    let stand = server(&[]);
    let run = crate::stand::finished(stand.home.program(DECURION).args(["login"]));
    assert_eq!(run.ending.code(), 2, "{run:?}");
    for words in ["not a terminal", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "\"providers\""] {
        assert!(run.errors.contains(words), "{words}: {}", run.errors);
    }
    assert_eq!(stand.written(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn login_offers_the_servers_that_run_on_this_machine() {
    let stand = locked(&["llama3", "qwen3-coder", "nomic-embed-text"], None);
    let address = stand.model.url().trim_start_matches("http://").to_owned();
    let terminal = started_with(&stand, |program| program.env("OLLAMA_HOST", address).args(["login"]));
    terminal.wait_for("3. ollama");
    terminal.keys("3");
    terminal.wait_for("✓ The server answers: 3 models.");
    terminal
        .wait_until("the models", |screen| screen.contains("2. qwen3-coder") && !screen.contains("nomic"));
    terminal.keys("2");
    terminal.wait_for("`decurion` starts a conversation with ollama/qwen3-coder.");
    assert_eq!(terminal.ended(), 0);
    converse(&started(&stand), "qwen3-coder");
}

#[test]
fn a_server_with_credentials_in_its_headers_needs_no_key() {
    let stand = server(&["claude-sonnet-5-5"]);
    let terminal = started_with(&stand, |program| {
        let header = format!("x-api-key: {KEY}");
        program.env("ANTHROPIC_BASE_URL", stand.model.url()).env("ANTHROPIC_CUSTOM_HEADERS", header)
    });
    converse(&terminal, "claude-sonnet-5-5");
}

#[test]
fn login_offers_the_key_in_the_environment_and_does_not_save_it() {
    let stand = server(&["gpt-5.4"]);
    let address = stand.model.openai_url();
    let terminal = started_with(&stand, |program| {
        program.env("OPENAI_API_KEY", KEY).env("OPENAI_BASE_URL", &address).args(["login"])
    });
    terminal.wait_for(MENU);
    terminal.keys("2");
    terminal.wait_for("OPENAI_API_KEY is set. Use it?");
    terminal.keys("Enter");
    terminal.wait_for("❯ 1. gpt-5.4");
    terminal.keys("Enter");
    terminal.wait_for("settings.json (key: OPENAI_API_KEY).");
    assert_eq!(terminal.ended(), 0);
    assert!(!terminal.scrollback().contains("unset"), "{}", terminal.scrollback());
    assert!(text_of(settings(&terminal)).contains("\"apiKeyEnv\": \"OPENAI_API_KEY\""));
    assert!(!stand.home.state().join("keys").exists());
    converse(&started_with(&stand, |program| program.env("OPENAI_API_KEY", KEY)), "gpt-5.4");
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
        terminal.wait_for("❯ 1. gpt-5.4");
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
    let screen = terminal.wait_for(RETRY);
    assert!(screen.replace('\n', "").contains("settings.json:2:"), "{screen}");
    terminal.keys("Enter");
    terminal.wait_until("the question again", |screen| {
        screen.contains(RETRY) && screen.matches("expected a value").count() == 2
    });
    terminal.keys("2");
    terminal.wait_for(MENU);
    let kept = stand.home.state().join("settings.json.broken1");
    assert!(text_of(&kept).contains("oops") && !file.exists());
    name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
    terminal.wait_for("❯ 1. gpt-5.4");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
}

#[test]
fn a_model_that_a_flag_names_wrongly_is_an_error_and_no_reason_to_set_up() {
    let stand = Arc::new(Stand::new(ANY));
    let terminal = Terminal::as_told(stand, (100, 30), |program| program.args(["--model", "local/qwen"]));
    assert_eq!(terminal.ended(), 2);
    let screen = terminal.screen();
    assert!(screen.contains("no provider \"local\"") && !screen.contains("Choose a model"), "{screen}");
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
fn a_server_that_is_not_running_is_looked_for_again() {
    let terminal = unconfigured();
    terminal.keys("4");
    terminal.wait_for("Start it (for example");
    terminal.keys("Enter");
    let screen = terminal.wait_for(MENU);
    assert!(screen.contains("Nothing answers on ports 1, 1, 1234, 8000."), "{screen}");
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
    terminal.keys("5");
    terminal.wait_for("Three agents look around in parallel");
    terminal.keys("Escape");
    terminal.wait_until("the question again", |screen| {
        screen.split_once("Now try your own repository").is_some_and(|(_, after)| after.contains(MENU))
    });
    assert!(!settings(&terminal).exists());
    terminal.keys("Escape");
    assert_ne!(terminal.ended(), 0);
}

#[test]
fn whoever_leaves_is_told_how_to_come_back() {
    let terminal = unconfigured();
    terminal.keys("Escape");
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
    let screen = terminal.wait_for(UNTRUSTED);
    assert!(screen.contains("touch $HOME/ran"), "it does not say what would run: {screen}");
    assert!(screen.contains("This folder's settings would run programs or grant permissions."), "{screen}");
    terminal
}

/// The question is open.
const UNTRUSTED: &str = "❯ 1. No, continue without them";

fn ran(terminal: &Terminal) -> bool {
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.stand.home.home().join("ran").exists()
}

/// The program once more in the same folder, which asks nothing.
fn unasked(terminal: &Terminal) -> Terminal {
    let again = terminal.beside(&[]);
    let screen = again.wait_for("ask before acting");
    assert!(!screen.contains("would run programs"), "{screen}");
    again
}

#[test]
fn a_folder_is_trusted_once() {
    let terminal = untrusted();
    terminal.keys("2");
    terminal.wait_for("ask before acting");
    assert!(ran(&terminal));
    unasked(&terminal);
}

#[test]
fn a_folder_that_is_not_trusted_runs_nothing_and_is_asked_about_again_once_it_changes() {
    let terminal = untrusted();
    terminal.keys("Enter");
    let screen = terminal.wait_for("ask before acting");
    assert!(screen.contains("this folder is not trusted: 1 setting is disabled"), "{screen}");
    assert!(!ran(&terminal));
    assert!(!ran(&unasked(&terminal)));
    put(&terminal.stand, ".claude/settings.json", &HOOK.replace("ran", "ran2"));
    let again = terminal.beside(&[]);
    again.wait_for(UNTRUSTED);
    // To leave the question is no answer.
    again.keys("Escape");
    again.wait_for("ask before acting");
    terminal.beside(&[]).wait_for(UNTRUSTED);
}

/// A command that is asked about, in a folder that holds something to trust.
fn answered_always(stand: Stand) -> Terminal {
    put(&stand, ".claude/settings.json", HOOK);
    let terminal = Terminal::as_told(stand, USUAL, |program| program);
    terminal.wait_for(UNTRUSTED);
    terminal.keys("Enter");
    terminal.wait_for("ask before acting");
    terminal.say("go");
    let screen = terminal.wait_for("always in this project");
    let row = screen.lines().find(|row| row.contains("always in this project")).unwrap().trim();
    terminal.keys(row.trim_start_matches('❯').trim().split('.').next().unwrap());
    let screen = terminal.wait_settled("It is over.");
    assert!(!screen.contains("decurion trust` to"), "{screen}");
    let file = terminal.stand.home.work().join(".decurion/settings.local.json");
    terminal.wait_that("the rule in a file", || text_of(&file).contains("Bash(touch"));
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    std::fs::remove_file(terminal.stand.home.work().join("made")).unwrap();
    terminal
}

const TOUCH: &str = "when turn=1
  call Bash {\"command\": \"touch made\", \"description\": \"Make a file\"}
when
  say \"It is over.\"\n";

#[test]
fn an_answer_for_always_holds_in_a_folder_that_is_not_trusted() {
    let terminal = answered_always(Stand::new(TOUCH));
    let again = unasked(&terminal);
    again.say("go");
    again.wait_settled("It is over.");
    assert!(again.stand.home.work().join("made").exists());
    assert!(!again.stand.home.home().join("ran").exists(), "the folder's hook ran");
}

#[test]
fn an_answer_that_something_else_has_changed_is_asked_about_again() {
    let terminal = answered_always(Stand::new(TOUCH));
    let file = terminal.stand.home.work().join(".decurion/settings.local.json");
    let text = text_of(&file);
    assert!(text.contains("\"Bash(touch"), "{text}");
    std::fs::write(&file, text.replace("\"Bash(touch", "\"Bash(rm *)\", \"Bash(touch")).unwrap();
    let again = terminal.beside(&[]);
    again.wait_for(UNTRUSTED);
    again.keys("Enter");
    again.wait_for("ask before acting");
    again.say("go");
    again.wait_for("? Run");
    assert!(!again.stand.home.work().join("made").exists());
}

/// From an empty home to a first answer, each as a person sees it, in a file of `starts/`. `UPDATE_EXPECT=1` writes them
/// anew.
fn recorded(name: &str, terminal: &Terminal) {
    let folder = terminal.stand.home.work().parent().unwrap().display().to_string();
    let port = terminal.stand.model.url().rsplit(':').next().unwrap().to_owned();
    let shown = terminal.scrollback().replace(&folder, "/tmp/home").replace(&port, "PORT");
    // What the prompt costs and how commands are kept in is not what is looked at.
    let line = |row: &str| match row.split_once("ask before acting · ") {
        Some((_, facts)) => format!("ask before acting · {}", facts.split(" · ").next().unwrap_or_default()),
        None => row.trim_end().to_owned(),
    };
    let lines: Vec<String> = shown.lines().map(line).collect();
    let path = format!("{}/tests/it/terminal/starts/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    expect_test::expect_file![path].assert_eq(&format!("{}\n", lines.join("\n").trim_end()));
}

#[test]
fn first_start_with_an_openai_key() {
    let stand = server(&["gpt-5.4", "gpt-4o"]);
    let address = stand.model.openai_url();
    let terminal = started_with(&stand, |program| program.env("OPENAI_BASE_URL", &address));
    terminal.wait_for(MENU);
    terminal.keys("2");
    give_key(&terminal, KEY);
    terminal.wait_for("recommended");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
    recorded("openai-key", &terminal);
}

#[test]
fn first_start_with_an_anthropic_key() {
    let stand = server(&["claude-sonnet-5-5", "claude-opus-5-5"]);
    let address = stand.model.url();
    let terminal = started_with(&stand, |program| program.env("ANTHROPIC_BASE_URL", &address));
    terminal.wait_for(MENU);
    terminal.keys("1");
    give_key(&terminal, KEY);
    terminal.wait_for("recommended");
    terminal.keys("Enter");
    converse(&terminal, "claude-sonnet-5-5");
    recorded("anthropic-key", &terminal);
}

#[test]
fn first_start_with_a_server_on_this_machine() {
    let stand = locked(&["qwen3-coder"], None);
    let address = stand.model.url().trim_start_matches("http://").to_owned();
    let terminal = started_with(&stand, |program| program.env("OLLAMA_HOST", address));
    converse(&terminal, "qwen3-coder");
    recorded("local-server", &terminal);
}

#[test]
fn first_start_with_a_wrong_key() {
    let stand = server(&["gpt-5.4"]);
    let address = stand.model.openai_url();
    let terminal = started_with(&stand, |program| program.env("OPENAI_BASE_URL", &address));
    terminal.wait_for(MENU);
    terminal.keys("2");
    give_key(&terminal, "sk-mistyped");
    terminal.wait_for("authentication failed (401)");
    give_key(&terminal, KEY);
    terminal.wait_for("recommended");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
    recorded("wrong-key", &terminal);
}

#[test]
fn first_start_without_a_network() {
    let terminal = started(&server(&["gpt-5.4"]));
    terminal.wait_for(MENU);
    name_server(&terminal, "http://127.0.0.1:1/v1", KEY);
    terminal.wait_for(RETRY);
    // The network is there again, at the address that was meant.
    terminal.keys("2");
    terminal.wait_for("enter continue");
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_until("the key again", |screen| screen.matches(KEY_ALLOWED).count() == 2);
    give_key(&terminal, KEY);
    terminal.wait_for("❯ 1. gpt-5.4");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
    recorded("no-network", &terminal);
}

#[test]
fn first_start_with_a_broken_settings_file() {
    let stand = server(&["gpt-5.4"]);
    std::fs::write(stand.home.state().join("settings.json"), "{\n  \"model\": oops\n}\n").unwrap();
    let terminal = started(&stand);
    terminal.wait_for(RETRY);
    terminal.keys("2");
    terminal.wait_for(MENU);
    name_server(&terminal, &terminal.stand.model.openai_url(), KEY);
    terminal.wait_for("❯ 1. gpt-5.4");
    terminal.keys("Enter");
    converse(&terminal, "gpt-5.4");
    recorded("broken-settings", &terminal);
}

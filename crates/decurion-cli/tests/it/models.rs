//! Which model a name comes to, from outside: settings, flags and variables in, the requests of a loopback server out.

use decurion_testkit::proc::{Finished, Home};
use decurion_testkit::server::{Answers, FakeModel, Recorded, Settings};
use serde_json::{Value, json};

use crate::stand::{DECURION, LIMIT, Stand, finished};
use crate::talk::{LED, control, next, prompt};

const ANY: &str = "when\n  say \"Hello.\"\n";
/// The main agent starts another one, on the model that `%` stands for.
const STARTS: &str = "when agent=main turn=1\n  call Agent {\"description\": \"look\", \"prompt\": \"look\", \"model\": \"%\"}\nwhen agent=main\n  say \"done\"\nwhen\n  say \"looked\"\n";

/// A server that lists these models.
fn serving(script: &str, models: &[&str]) -> Stand {
    let answers = Answers::Script(decurion_model::script::Script::parse(script).unwrap());
    let models = models.iter().map(|id| (*id).to_owned()).collect();
    let model = FakeModel::with(Settings { models, ..Settings::new(answers) }).unwrap();
    Stand { home: Home::new().unwrap(), model }
}

/// Runs `-p hi` in the OpenAI dialect, with these arguments besides.
fn openai(stand: &Stand, arguments: &[&str]) -> Finished {
    finished(stand.decurion_openai().args(["-p", "hi"]).args(arguments))
}

fn conversations(stand: &Stand) -> Vec<Recorded> {
    stand.model.requests().into_iter().filter(|request| request.dialect.is_some()).collect()
}

/// The agent and the model of each conversation request.
fn asked(stand: &Stand) -> Vec<(String, String)> {
    let one =
        |request: Recorded| (request.agent.clone(), request.json()["model"].as_str().unwrap().to_owned());
    conversations(stand).into_iter().map(one).collect()
}

fn settings(stand: &Stand, text: &Value) {
    std::fs::write(stand.home.state().join("settings.json"), text.to_string()).unwrap();
}

#[track_caller]
fn assert_answered(run: &Finished, stand: &Stand, model: &str) {
    assert_eq!((run.ending.code(), run.lines.join("\n").as_str()), (0, "Hello."), "{run:?}");
    assert_eq!(asked(stand), [("main".to_owned(), model.to_owned())]);
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

#[test]
fn an_openai_key_alone_uses_the_only_model_that_the_server_lists() {
    let stand = serving(ANY, &["text-embedding-3", "pear-1"]);
    let run = openai(&stand, &[]);
    assert_answered(&run, &stand, "pear-1");
    assert_eq!(run.errors, "");
}

#[test]
fn of_several_listed_models_the_usual_one_is_used_in_the_way_openai_takes_it() {
    let stand = serving(ANY, &["gpt-4o", "gpt-5.4", "gpt-5.4-mini"]);
    assert_answered(&openai(&stand, &[]), &stand, "gpt-5.4");
    let body = conversations(&stand)[0].json();
    assert!(body["max_completion_tokens"].is_u64() && body["max_tokens"].is_null(), "{body}");
    assert_eq!(body["reasoning_effort"], "none", "{body}");
}

#[test]
fn of_several_unknown_models_none_is_guessed() {
    let stand = serving(ANY, &["pear-1", "plum-2", "quince-3"]);
    let run = openai(&stand, &[]);
    assert_eq!(run.ending.code(), 2, "{run:?}");
    for needle in ["no default model for the provider \"openai\"", "3 models", "pear-1, plum-2", "--model"] {
        assert!(run.errors.contains(needle), "{needle}: {}", run.errors);
    }
    assert_eq!(asked(&stand), []);
}

#[test]
fn at_the_built_in_address_openai_has_a_default_model() {
    let home = Home::new().unwrap();
    let program = home.program(DECURION).env("OPENAI_API_KEY", "sk-any").args(["doctor", "--json"]);
    // A proxy that is not there, so that nothing leaves this machine.
    let run = finished(program.env("HTTPS_PROXY", "http://127.0.0.1:1").env("NO_PROXY", ""));
    let facts: Value = serde_json::from_str(&run.lines[0]).unwrap();
    assert_eq!(facts["model"], "openai/gpt-5.4", "{facts}");
    assert!(facts["model_problem"].as_str().unwrap().contains("proxy"), "{facts}");
}

#[test]
fn doctor_reports_a_provider_without_a_model_and_a_wrong_key() {
    let problem = |stand: &Stand| {
        let run = finished(stand.decurion_openai().args(["doctor", "--json"]));
        let facts: Value = serde_json::from_str(&run.lines[0]).unwrap();
        facts["model_problem"].as_str().map(str::to_owned)
    };
    let several = problem(&serving(ANY, &["pear-1", "plum-2"])).unwrap();
    assert!(several.contains("pear-1, plum-2"), "{several}");
    let answers = Answers::Script(decurion_model::script::Script::parse(ANY).unwrap());
    let key = Some("another-key".to_owned());
    let model = FakeModel::with(Settings { key, ..Settings::new(answers) }).unwrap();
    let wrong = problem(&Stand { home: Home::new().unwrap(), model }).unwrap();
    assert!(wrong.contains("authentication failed (401), check your API key"), "{wrong}");
    assert_eq!(problem(&serving(ANY, &["pear-1"])), None);
    let exit_code = |stand: &Stand| finished(stand.decurion_openai().args(["doctor"])).ending.code();
    assert_eq!((exit_code(&refusing()), exit_code(&serving(ANY, &["pear-1"]))), (1, 0));
}

/// A server that refuses the key of the tests.
fn refusing() -> Stand {
    let answers = Answers::Script(decurion_model::script::Script::parse(ANY).unwrap());
    let key = Some("another-key".to_owned());
    let model = FakeModel::with(Settings { key, ..Settings::new(answers) }).unwrap();
    Stand { home: Home::new().unwrap(), model }
}

#[test]
fn a_refused_key_is_reported_with_its_source_whether_or_not_a_model_is_named() {
    for arguments in [&[][..], &["--model", "pear-1"]] {
        let run = openai(&refusing(), arguments);
        assert_eq!(run.ending.code(), 1, "{run:?}");
        let start = "decurion: authentication failed (401), check your API key (from the environment variable \
                     OPENAI_API_KEY; change or unset it; address http://127.0.0.1:";
        assert!(run.errors.starts_with(start), "{arguments:?}: {}", run.errors);
        let end = "/v1 from OPENAI_BASE_URL; `decurion login`, in a conversation /login, sets up a provider)";
        assert!(run.errors.contains(end), "{arguments:?}: {}", run.errors);
        assert!(!run.errors.contains("--model"), "{}", run.errors);
    }
    let stand = refusing();
    let run = finished(
        stand.home.program(DECURION).env("ANTHROPIC_BASE_URL", stand.model.url()).args(["-p", "hi"]),
    );
    let source =
        format!("(no key is set; address {} from ANTHROPIC_BASE_URL; `decurion login`", stand.model.url());
    assert!(run.ending.code() == 1 && run.errors.contains(&source), "{run:?}");
    let stand = refusing();
    std::fs::create_dir(stand.home.state().join("keys")).unwrap();
    let file = stand.home.state().join("keys/openai");
    std::fs::write(&file, "sk-of-the-file\n").unwrap();
    let provider = json!({"baseUrl": stand.model.openai_url(), "apiKeyFile": "keys/openai"});
    settings(&stand, &json!({"provider": "openai", "providers": {"openai": provider}}));
    let run = finished(stand.home.program(DECURION).args(["-p", "hi"]));
    let source = format!("(from the file {}; address ", file.display());
    assert!(run.ending.code() == 1 && run.errors.contains(&source), "{run:?}");
}

#[test]
fn source_of_the_key_is_named_only_if_the_key_is_wrong() {
    for (status, named) in [(401, true), (402, false), (403, false)] {
        let stand = Stand::new(&format!("when\n fail {status} should-retry=false \"no\""));
        let run = stand.run(&["-p", "hi"]);
        assert_eq!(run.ending.code(), 1, "{run:?}");
        assert_eq!(run.errors.contains("ANTHROPIC_API_KEY"), named, "{status}: {}", run.errors);
    }
}

#[test]
fn a_server_that_is_down_is_reported_as_such_and_not_as_a_missing_model() {
    let home = Home::new().unwrap();
    let program = home.program(DECURION).env("OPENAI_API_KEY", "sk-any");
    let run = finished(program.env("OPENAI_BASE_URL", "http://127.0.0.1:1/v1").args(["-p", "hi"]));
    assert_eq!(run.ending.code(), 1, "{run:?}");
    let start = "decurion: the server at http://127.0.0.1:1/v1 does not answer: cannot connect";
    assert!(run.errors.starts_with(start), "{}", run.errors);
    assert!(run.errors.contains("OPENAI_BASE_URL") && !run.errors.contains("--model"), "{}", run.errors);
}

#[test]
fn a_start_that_the_provider_refuses_ends_with_a_result_in_json() {
    for format in ["json", "stream-json"] {
        let run = openai(&refusing(), &["--output-format", format]);
        assert_eq!(run.ending.code(), 1, "{run:?}");
        let result: Value = serde_json::from_str(run.lines.last().unwrap()).unwrap();
        assert_eq!((&result["type"], &result["is_error"]), (&json!("result"), &json!(true)), "{result}");
        assert_eq!(result["subtype"], "error_during_execution", "{result}");
        assert!(result["errors"].to_string().contains("authentication failed (401)"), "{result}");
    }
}

#[test]
fn the_source_of_the_key_is_the_variable_that_holds_it() {
    let stand = serving(ANY, &["pear-1"]);
    let run = openai(&stand, &["--output-format", "stream-json"]);
    let init: Value = serde_json::from_str(&run.lines[0]).unwrap();
    assert_eq!(init["apiKeySource"], "OPENAI_API_KEY", "{init}");
}

#[test]
fn an_alias_that_the_provider_does_not_map_is_its_default_model_with_one_warning() {
    let stand = serving(ANY, &["pear-1"]);
    let run = openai(&stand, &["--model", "sonnet"]);
    assert_answered(&run, &stand, "pear-1");
    assert_eq!(run.errors.lines().count(), 1, "{}", run.errors);
    let expected = "\"sonnet\" is not a model of the provider \"openai\"; using pear-1";
    assert!(run.errors.contains(expected), "{}", run.errors);
}

#[test]
fn a_childs_unmapped_alias_means_its_parents_model() {
    let stand = serving(&STARTS.replace('%', "haiku"), &["pear-1", "plum-2"]);
    settings(&stand, &json!({"providers": {"openai": {"models": ["pear-1", "plum-2"]}}}));
    let run = openai(&stand, &["--model", "plum-2", "--allowedTools", "Agent"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let models: Vec<String> = asked(&stand).into_iter().map(|(_, model)| model).collect();
    assert_eq!(models, ["plum-2"; 3], "{:?}", asked(&stand));
}

#[test]
fn a_prefix_that_names_no_provider_sends_nothing_from_any_setting() {
    let unknown = "no provider \"local\" for the model \"local/qwen\"; the known ones are anthropic";
    let agent = r#"{"one": {"description": "d", "prompt": "p", "model": "local/qwen"}}"#;
    let rows: &[(&[&str], Value)] = &[
        (&["--model", "local/qwen"], json!({})),
        (&[], json!({"model": "local/qwen"})),
        (&["--agents", agent, "--agent", "one"], json!({})),
        (&["--fallback-model", "local/qwen"], json!({})),
        (&[], json!({"fallbackModel": ["local/qwen"]})),
        (&["--model", "sonnet"], json!({"models": {"aliases": {"sonnet": "local/qwen"}}})),
    ];
    for (arguments, given) in rows {
        let stand = Stand::new(ANY);
        settings(&stand, given);
        let run = finished(stand.decurion().args(["-p", "hi"]).args(*arguments));
        assert_eq!(run.ending.code(), 2, "{arguments:?} {run:?}");
        assert!(run.errors.contains(unknown), "{arguments:?} {}", run.errors);
        assert_eq!(stand.model.requests().len(), 0, "{arguments:?} {given}");
    }
}

#[test]
fn a_failed_start_names_the_setting_its_file_and_what_to_do() {
    let stand = Stand::new(ANY);
    settings(&stand, &json!({"model": "local/qwen"}));
    let run = stand.run(&["-p", "hi"]);
    let place = format!("\"model\" is set in {}:1:", stand.home.state().join("settings.json").display());
    for needle in [place.as_str(), "change it there, or choose another model with --model"] {
        assert!(run.errors.contains(needle), "{needle}: {}", run.errors);
    }
    let stand = serving(ANY, &["pear-1", "plum-2"]);
    settings(&stand, &json!({"model": "sonnet"}));
    let run = openai(&stand, &[]);
    for needle in ["no default model", "pear-1, plum-2", "\"model\" is set in "] {
        assert!(run.errors.contains(needle), "{needle}: {}", run.errors);
    }
}

#[test]
fn an_agents_model_of_an_unknown_provider_is_an_error_to_its_parent() {
    let by_definition = r#"{"general-purpose": {"description": "d", "prompt": "p", "model": "local/qwen"}}"#;
    let rows: &[(&str, &[&str], &str)] =
        &[("local/qwen", &[], ""), ("inherit", &[], "local/qwen"), ("", &["--agents", by_definition], "")];
    for (call, arguments, variable) in rows {
        let script = STARTS.replace(", \"model\": \"\"", "").replace('%', call);
        let stand = Stand::new(&script.replace(", \"model\": \"\"", ""));
        let mut program = stand.decurion().args(["-p", "hi", "--allowedTools", "Agent"]).args(*arguments);
        if !variable.is_empty() {
            program = program.env("DECURION_SUBAGENT_MODEL", *variable);
        }
        let run = finished(program);
        assert_eq!(run.ending.code(), 0, "{run:?}");
        let requests = conversations(&stand);
        assert!(requests.iter().all(|request| request.agent == "main"), "{call:?} {variable:?}");
        let told = String::from_utf8_lossy(&requests.last().unwrap().body).into_owned();
        assert!(told.contains("no provider \\\"local\\\""), "{call:?} {variable:?} {told}");
    }
}

#[test]
fn a_host_cannot_set_a_model_of_an_unknown_provider() {
    let stand = Stand::new(ANY);
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&control("one", &json!({"subtype": "set_model", "model": "local/qwen"}))).unwrap();
    let said = next(&mut run, |line| line["response"]["request_id"] == "one");
    let error = said["response"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("no provider \"local\""), "{said}");
    run.say(&prompt("hi")).unwrap();
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    run.finish(LIMIT).unwrap();
    let models: Vec<String> = asked(&stand).into_iter().map(|(_, model)| model).collect();
    assert_eq!(models, ["claude-sonnet-5-5"]);
}

#[test]
fn an_id_with_a_slash_is_written_behind_its_provider() {
    let stand = Stand::new(ANY);
    let router = json!({"kind": "openai", "baseUrl": stand.model.openai_url()});
    settings(&stand, &json!({"providers": {"openrouter": router}}));
    let run = finished(stand.decurion().args(["-p", "hi", "--model", "openrouter/openai/gpt-4o"]));
    assert_answered(&run, &stand, "openai/gpt-4o");
}

#[test]
fn a_fallback_model_is_asked_for_by_the_providers_own_name() {
    let stand =
        Stand::new("when model=claude-haiku-5-5\n  say \"Hello.\"\nwhen\n  fail 529 \"Overloaded\"\n");
    let run = finished(stand.decurion().args(["-p", "hi", "--fallback-model", "haiku"]));
    assert_eq!((run.ending.code(), run.lines.join("\n").as_str()), (0, "Hello."), "{run:?}");
}

//! Who serves models, with which credentials.

use std::os::unix::fs::PermissionsExt;

use decurion_config::{Auth, Choice, FlagSettings, LoadRequest, Loaded, NoProvider, ProviderKind, load};

use crate::stage::Stage;

fn auth(loaded: &Loaded, name: &str) -> String {
    match &loaded.providers.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", loaded.warnings)).auth {
        Auth::ApiKey(secret) => format!("key {}", secret.expose()),
        Auth::Bearer(secret) => format!("bearer {}", secret.expose()),
        Auth::None => "none".to_owned(),
    }
}

fn chosen(loaded: &Loaded, model: Option<&str>) -> String {
    match loaded.providers.choose(model) {
        Ok(Choice::Provider { provider, model }) => {
            format!("{} {}", provider.name, model.unwrap_or_default())
        }
        Ok(Choice::Scripted { file }) => format!("script {file}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn variables_make_providers() {
    let loaded = Stage::new().variable("ANTHROPIC_API_KEY", " key-1 ").load();
    let provider = loaded.providers.get("anthropic").unwrap();
    assert_eq!(auth(&loaded, "anthropic"), "key key-1");
    assert_eq!(
        (provider.kind, provider.base_url.as_str()),
        (ProviderKind::Anthropic, "https://api.anthropic.com")
    );
    let loaded = Stage::new()
        .variable("ANTHROPIC_AUTH_TOKEN", "token-1")
        .variable("ANTHROPIC_API_KEY", "key-1")
        .variable("ANTHROPIC_BASE_URL", "http://127.0.0.1:8123/")
        .variable("ANTHROPIC_BETAS", "a-1, b-2,")
        .variable("ANTHROPIC_CUSTOM_HEADERS", "X-One: 1\n x-two:  two words ")
        .load();
    let provider = loaded.providers.get("anthropic").unwrap();
    assert_eq!(auth(&loaded, "anthropic"), "bearer token-1");
    assert_eq!(provider.base_url, "http://127.0.0.1:8123");
    assert_eq!(provider.betas, ["a-1", "b-2"]);
    let headers: Vec<_> =
        provider.headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(headers, [("X-One", "1"), ("x-two", "two words")]);
    let loaded = Stage::new().variable("OPENAI_API_KEY", "key-2").variable("OPENAI_MODEL", "gpt").load();
    assert_eq!(auth(&loaded, "openai"), "bearer key-2");
    assert_eq!(chosen(&loaded, loaded.settings.model.as_deref()), "openai gpt");
    // A local server needs no key.
    let loaded = Stage::new().variable("OPENAI_BASE_URL", "http://localhost:8080/v1").load();
    assert_eq!(auth(&loaded, "openai"), "none");
}

#[test]
fn a_variable_that_would_send_data_elsewhere_is_an_error() {
    for (name, value) in [
        ("ANTHROPIC_BASE_URL", "api.example"),
        ("ANTHROPIC_BASE_URL", "https://user:canary@host"),
        ("ANTHROPIC_BASE_URL", "file:///etc/passwd"),
        ("OPENAI_BASE_URL", "https://h/v1?key=canary"),
        ("ANTHROPIC_API_KEY", "canary\nx"),
        ("ANTHROPIC_CUSTOM_HEADERS", "canary"),
        ("ANTHROPIC_CUSTOM_HEADERS", "X Y: canary"),
    ] {
        let error = Stage::new().variable(name, value).error();
        assert!(error.starts_with(&format!("environment variable {name}: expected ")), "{error}");
        assert!(!error.contains("canary"), "{error}");
    }
}

#[test]
fn declared_providers_say_where_their_key_is() {
    let stage = Stage::new()
        .file("home/.decurion/key", "key-from-file\n")
        .file(
            "home/.decurion/settings.json",
            r#"{"providers": {
                "router": {"kind": "openai", "baseUrl": "https://router.example/v1/", "apiKeyEnv": "ROUTER", "models": ["a/b", "c"],
                           "timeouts": {"idleMs": 5000}, "maxTokensField": "max_completion_tokens"},
                "filed": {"kind": "anthropic", "baseUrl": "https://x.example", "apiKeyFile": "key"},
                "local": {"kind": "openai", "baseUrl": "http://localhost:11434/v1"},
                "unset": {"kind": "openai", "baseUrl": "https://x.example", "apiKeyEnv": "NOT_SET"},
                "lost": {"kind": "openai", "baseUrl": "https://x.example", "apiKeyFile": "~/none"},
                "half": {"kind": "openai"}
            }}"#,
        )
        .variable("ROUTER", "key-r");
    std::fs::set_permissions(stage.home.join(".decurion/key"), std::fs::Permissions::from_mode(0o644))
        .unwrap();
    let loaded = stage.load();
    assert_eq!(auth(&loaded, "router"), "bearer key-r");
    assert_eq!(auth(&loaded, "filed"), "key key-from-file");
    assert_eq!(auth(&loaded, "local"), "none");
    let router = loaded.providers.get("router").unwrap();
    assert_eq!((router.base_url.as_str(), router.models.len()), ("https://router.example/v1", 2));
    assert_eq!(router.timeouts.idle.unwrap().as_millis(), 5000);
    assert_eq!(router.max_tokens_field.as_deref(), Some("max_completion_tokens"));
    assert_eq!(loaded.providers.list().len(), 3);
    let warnings = stage.warnings(&loaded).join("\n");
    for words in [
        "others can read the file that holds the key of \"filed\" (chmod 600): home/.decurion/key",
        "provider \"unset\" cannot be used: the variable that holds its key is not set (NOT_SET)",
        "provider \"lost\" cannot be used: the file that holds its key cannot be used",
        "provider \"half\" cannot be used: it has no baseUrl",
    ] {
        assert!(warnings.contains(words), "{words}\n{warnings}");
    }
    assert_eq!(chosen(&loaded, None), "router a/b");
    let unset =
        "the model provider \"unset\" cannot be used: the variable that holds its key is not set (NOT_SET)";
    assert_eq!(chosen(&loaded, Some("unset/m")), unset);
    assert_eq!(chosen(&loaded, Some("local/qwen/3")), "local qwen/3");
    assert_eq!(chosen(&loaded, Some("router/maker/model")), "router maker/model");
    assert_eq!(chosen(&loaded, Some("a/b")), "router a/b", "a declared id may hold a slash");
    assert_eq!(chosen(&loaded, Some("scripted:a/b.script")), "script a/b.script");
}

#[test]
fn the_default_provider_is_the_one_that_was_meant() {
    let both = || Stage::new().variable("ANTHROPIC_API_KEY", "key-a").variable("OPENAI_API_KEY", "key-o");
    #[rustfmt::skip]
    let rows: &[(&[(&str, &str)], &str, Option<&str>, &str)] = &[
        (&[], "{}", None, "anthropic "),
        (&[], "{}", Some("sonnet"), "anthropic sonnet"),
        (&[], "{}", Some("openai/gpt"), "openai gpt"),
        (&[], r#"{"provider": "openai"}"#, Some("gpt"), "openai gpt"),
        (&[("DECURION_PROVIDER", "openai")], "{}", Some("gpt"), "openai gpt"),
        (&[("OPENAI_MODEL", "gpt")], "{}", Some("gpt"), "openai gpt"),
        (&[("ANTHROPIC_MODEL", "opus"), ("OPENAI_MODEL", "gpt")], "{}", Some("opus"), "anthropic opus"),
        (&[], r#"{"provider": "none"}"#, Some("x"), "the model provider \"none\" cannot be used: it is not declared in the settings"),
    ];
    for (variables, json, model, expected) in rows {
        let mut stage = both().file("home/.decurion/settings.json", json);
        for (name, value) in *variables {
            stage = stage.variable(name, value);
        }
        assert_eq!(chosen(&stage.load(), *model), *expected, "{variables:?} {json}");
    }
    let one = Stage::new().variable("ANTHROPIC_API_KEY", "key-a").load();
    assert_eq!(
        chosen(&one, Some("openai/gpt")),
        "the model provider \"openai\" cannot be used: it has no key (set OPENAI_API_KEY)"
    );
}

#[test]
fn a_prefix_that_names_no_provider_is_an_error_and_never_the_default_provider() {
    let both = Stage::new().variable("ANTHROPIC_API_KEY", "key-a").variable("OPENAI_API_KEY", "key-o").load();
    assert_eq!(
        chosen(&both, Some("local/qwen")),
        "no provider \"local\" for the model \"local/qwen\"; the known ones are anthropic, openai; declare \
         \"providers\": {\"local\": {\"kind\": …, \"baseUrl\": …}} in the settings, or write anthropic/local/qwen if that \
         is a model of \"anthropic\""
    );
    let nothing = Stage::new().load();
    assert!(chosen(&nothing, Some("local/qwen")).starts_with("no provider \"local\""));
}

#[test]
fn a_providers_own_variable_names_a_model_as_that_provider_calls_it() {
    let server = || Stage::new().variable("OPENAI_BASE_URL", "http://localhost:1/v1");
    for model in ["maker/qwen", "openai/gpt-x"] {
        let loaded = server().variable("OPENAI_MODEL", model).load();
        assert_eq!(chosen(&loaded, loaded.settings.model.as_deref()), format!("openai {model}"));
    }
    let loaded = server().load();
    assert_eq!(chosen(&loaded, Some("openai/openai/gpt-x")), "openai openai/gpt-x");
}

#[test]
fn no_provider_is_an_answer_with_places_to_try() {
    let loaded = Stage::new().variable("OLLAMA_HOST", "0.0.0.0:9999").load();
    let Err(NoProvider::Nothing { candidates }) = loaded.choice() else { panic!() };
    let urls: Vec<_> =
        candidates.iter().map(|candidate| (candidate.name, candidate.base_url.as_str())).collect();
    assert_eq!(
        urls,
        [
            ("ollama", "http://127.0.0.1:9999/v1"),
            ("llama.cpp", "http://127.0.0.1:8080/v1"),
            ("LM Studio", "http://127.0.0.1:1234/v1"),
            ("vLLM", "http://127.0.0.1:8000/v1")
        ]
    );
}

#[test]
fn the_highest_layer_decides_about_the_key() {
    let stage = Stage::new().file(
        "home/.decurion/settings.json",
        r#"{"providers": {"anthropic": {"apiKey": "key-of-the-user"}}}"#,
    );
    let loaded = stage.load();
    assert_eq!(auth(&loaded, "anthropic"), "key key-of-the-user");
    assert!(stage.warnings(&loaded)[0].contains("a key in a settings file is easily shared"));
    let stage = stage.variable("ANTHROPIC_API_KEY", "key-of-the-environment");
    assert_eq!(auth(&stage.load(), "anthropic"), "key key-of-the-environment");
    let flags = FlagSettings {
        settings: Some(r#"{"providers": {"anthropic": {"apiKeyEnv": "OTHER"}}}"#.to_owned()),
        ..FlagSettings::default()
    };
    let stage = stage.variable("OTHER", "key-of-the-flag");
    assert_eq!(
        auth(&load(&LoadRequest { flags: flags.clone(), ..stage.request() }).unwrap(), "anthropic"),
        "key key-of-the-flag"
    );
    let stage = stage
        .file(
            "managed.json",
            r#"{"providers": {"anthropic": {"baseUrl": "https://proxy.corp", "authTokenEnv": "CORP"}}}"#,
        )
        .variable("CORP", "key-of-the-corp");
    let loaded = load(&LoadRequest { flags, ..stage.request() }).unwrap();
    assert_eq!(auth(&loaded, "anthropic"), "bearer key-of-the-corp");
    assert_eq!(loaded.providers.get("anthropic").unwrap().base_url, "https://proxy.corp");
}

#[test]
fn a_higher_layer_wins_over_the_order_of_keys_and_that_order_decides_inside_a_layer() {
    let user = |json: &str| {
        let json = format!(r#"{{"providers": {{"anthropic": {json}}}}}"#);
        Stage::new().file("home/.decurion/settings.json", &json).variable("MINE", "key-by-name")
    };
    let stage = user(r#"{"authToken": "token-of-the-user"}"#);
    assert_eq!(auth(&stage.load(), "anthropic"), "bearer token-of-the-user");
    let stage = stage.variable("ANTHROPIC_API_KEY", "key-of-the-environment");
    assert_eq!(auth(&stage.load(), "anthropic"), "key key-of-the-environment");
    let stage = user(r#"{"apiKey": "key-written-down", "apiKeyEnv": "MINE"}"#);
    assert_eq!(auth(&stage.load(), "anthropic"), "key key-by-name");
}

#[test]
fn what_people_keep_in_the_env_of_their_settings_counts() {
    let stage = Stage::new().file(
        "home/.claude/settings.json",
        r#"{"env": {"ANTHROPIC_BASE_URL": "https://proxy.example", "ANTHROPIC_AUTH_TOKEN": "token-of-settings", "ANTHROPIC_MODEL": "opus"}}"#,
    );
    let loaded = stage.load();
    assert_eq!(auth(&loaded, "anthropic"), "bearer token-of-settings");
    assert_eq!(loaded.providers.get("anthropic").unwrap().base_url, "https://proxy.example");
    assert_eq!(loaded.settings.model.as_deref(), Some("opus"));
    let stage = stage.variable("ANTHROPIC_AUTH_TOKEN", "token-of-the-environment");
    assert_eq!(auth(&stage.load(), "anthropic"), "bearer token-of-the-environment");
}

#[test]
fn a_key_in_clear_text_is_worth_a_word() {
    for (url, expected) in [
        ("http://10.1.2.3:4000", 1),
        ("http://127.0.0.1:4000", 0),
        ("http://localhost", 0),
        ("http://[::1]:1", 0),
        ("https://10.1.2.3", 0),
    ] {
        let loaded =
            Stage::new().variable("ANTHROPIC_API_KEY", "key-1").variable("ANTHROPIC_BASE_URL", url).load();
        assert_eq!(loaded.warnings.len(), expected, "{url} {:?}", loaded.warnings);
    }
}

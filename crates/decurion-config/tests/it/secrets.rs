//! Canaries in every place a secret can stand, and nowhere it can be seen.

use decurion_config::shell_env::{service_environment, shell_environment};
use decurion_config::{Environment, Loaded};

use crate::stage::Stage;

/// A home in which everything that can hold a secret holds one with `canary` in it.
fn stage() -> Stage {
    Stage::new()
        .file(
            "home/.decurion/settings.json",
            r#"{"providers": {
                  "one": {"kind": "openai", "baseUrl": "https://x.example", "apiKey": "canary-settings-key", "headers": {"X-Auth": "canary-header"}},
                  "two": {"kind": "anthropic", "baseUrl": "https://x.example", "authToken": "canary-settings-token"},
                  "three": {"kind": "openai", "baseUrl": "https://x.example", "apiKeyEnv": "MY_OWN"},
                  "four": {"kind": "openai", "baseUrl": "https://x.example", "apiKeyFile": "key"}},
                "env": {"NPM_TOKEN": "canary-env-token", "PLAIN": "visible", "COPY": "Bearer canary-from-anthropic"},
                "envPass": ["ANTHROPIC_API_KEY", "MY_OWN", "AWS_SECRET_ACCESS_KEY"],
                "mcpServers": {"s": {"command": "x", "env": {"K": "canary-server-env"}, "headers": {"A": "canary-server-header"}, "apiKey": "canary-inline"}},
                "hooks": {"Stop": [{"hooks": [{"type": "http", "url": "https://h", "headers": {"Authorization": "canary-hook"}}]}]}}"#,
        )
        .file("home/.decurion/key", "canary-file-key")
        .variable("ANTHROPIC_API_KEY", "canary-from-anthropic")
        .variable("ANTHROPIC_AUTH_TOKEN", "canary-auth-token")
        .variable("ANTHROPIC_CUSTOM_HEADERS", "X-Secret: canary-custom")
        .variable("OPENAI_API_KEY", "canary-openai")
        .variable("MY_OWN", "canary-own")
        .variable("UNSUSPICIOUS", "prefix canary-from-file canary-file-key")
        .variable("GITHUB_TOKEN", "canary-github")
        .variable("DB_PASSWORD", "canary-password")
        .variable("db_passwd", "canary-lower")
        .variable("AWS_SECRET_ACCESS_KEY", "passed-on-purpose")
        .variable("SSH_AUTH_SOCK", "/tmp/agent")
        .variable("GOOGLE_APPLICATION_CREDENTIALS", "canary-path")
        .variable("PATH", "/usr/bin")
        .variable("LC_ALL", "C")
        .variable("EDITOR", "vi")
}

fn environments(stage: &Stage, loaded: &Loaded) -> [decurion_config::ChildEnvironment; 2] {
    let environment = Environment::from_pairs(stage.variables.clone());
    [
        shell_environment(&environment, &loaded.settings, &loaded.providers),
        service_environment(&environment, &loaded.settings, &loaded.providers),
    ]
}

#[test]
fn no_canary_is_printed_listed_or_warned_of() {
    let stage = stage();
    let loaded = stage.load();
    let rows = loaded.rows();
    let lines: Vec<_> = rows.iter().map(|row| row.line(true)).collect();
    let printed = [
        format!("{loaded:?} {loaded:#?}"),
        format!("{:?}", stage.request()),
        lines.join("\n"),
        serde_json::to_string(&rows).unwrap(),
        stage.warnings(&loaded).join("\n"),
        format!("{:?} {:?}", loaded.redactor(), environments(&stage, &loaded)),
    ];
    for text in printed {
        // `[redacted]` stands there instead, so that a person sees that something is set.
        assert!(!text.contains("canary"), "{text}");
    }
    let listed = lines.join("\n");
    for key in [
        "providers.one.apiKey",
        "providers.anthropic.authToken",
        "env.NPM_TOKEN",
        "providers.one.headers.X-Auth",
    ] {
        assert!(listed.contains(&format!("{key} = \"[redacted]\"")), "{key}\n{listed}");
    }
}

#[test]
fn no_canary_reaches_a_child_process() {
    let stage = stage();
    let loaded = stage.load();
    for child in environments(&stage, &loaded) {
        for (name, value) in child.pairs() {
            assert!(!value.to_string_lossy().contains("canary"), "{name:?}");
        }
    }
}

#[test]
fn shells_have_the_rest_and_services_a_list() {
    let stage = stage();
    let [shell, service] = environments(&stage, &stage.load());
    let names = |child: &decurion_config::ChildEnvironment| {
        child.pairs().iter().map(|(name, _)| name.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&shell),
        ["AWS_SECRET_ACCESS_KEY", "DECURION", "EDITOR", "HOME", "LC_ALL", "PATH", "PLAIN", "SSH_AUTH_SOCK"]
    );
    assert_eq!(names(&service), ["AWS_SECRET_ACCESS_KEY", "DECURION", "HOME", "LC_ALL", "PATH", "PLAIN"]);
    assert_eq!(shell.get("DECURION").unwrap(), "1");
    assert_eq!(shell.get("PLAIN").unwrap(), "visible");
}

#[test]
fn a_secret_of_the_settings_is_passed_on_only_by_name() {
    let json = |pass: &str| format!(r#"{{"env": {{"NPM_TOKEN": "npm-value"}}, "envPass": [{pass}]}}"#);
    for (pass, expected) in [("", None), ("\"NPM_TOKEN\"", Some("npm-value"))] {
        let stage = Stage::new().file("home/.decurion/settings.json", &json(pass));
        let [shell, _] = environments(&stage, &stage.load());
        assert_eq!(shell.get("NPM_TOKEN").and_then(|value| value.to_str()), expected);
    }
}

#[test]
fn a_providers_key_is_not_passed_on_and_that_is_said() {
    let stage = stage();
    let warnings = stage.warnings(&stage.load());
    for name in ["ANTHROPIC_API_KEY", "MY_OWN"] {
        let text = format!("envPass: a provider's key or a masked secret is never passed on: {name}");
        assert!(warnings.contains(&text), "{warnings:?}");
    }
}

#[test]
fn values_that_are_not_text_are_passed_on() {
    use std::os::unix::ffi::OsStringExt;
    let stage = Stage::new();
    let loaded = stage.load();
    let odd = std::ffi::OsString::from_vec(b"a\xffb".to_vec());
    let environment = Environment::from_pairs([("ODD", odd.clone()), ("ODD_TOKEN", odd.clone())]);
    let shell = shell_environment(&environment, &loaded.settings, &loaded.providers);
    assert_eq!(shell.get("ODD"), Some(odd.as_os_str()));
    assert_eq!(shell.get("ODD_TOKEN"), None);
}

#[test]
fn what_is_configured_is_cut_out_of_text() {
    let stage = stage();
    let redactor = stage.load().redactor();
    for secret in [
        "canary-settings-key",
        "canary-header",
        "canary-settings-token",
        "canary-own",
        "canary-file-key",
        "canary-env-token",
        "canary-auth-token",
        "canary-openai",
    ] {
        let text = format!("before {secret}, after");
        assert_eq!(redactor.redact(&text), "before [redacted], after", "{secret}");
    }
}

#[test]
fn errors_do_not_repeat_what_could_be_a_key() {
    for json in [
        r#"{"providers": {"x": {"apiKey": ["canary-1"]}}}"#,
        r#"{"providers": {"x": {"apiKey": 99}}}"#,
        r#"{"providers": {"x": {"apiKey": "canary\u0007"}}}"#,
        r#"{"providers": {"x": {"kind": "canary99canary99canary99"}}}"#,
        r#"{"providers": {"x": {"headers": {"A": "canary\r\nB: c"}}}}"#,
        r#"{"redactSecrets": "canary-1"}"#,
        r#"{"permissions": {"deny": ["Bash(sk-ant-api03-abcdefgh12345678"]}}"#,
        r#"{"apiKey": "canary-1" "x"}"#,
    ] {
        let error = Stage::new().file("home/.decurion/settings.json", json).error();
        assert!(!error.contains("canary") && !error.contains("99") && !error.contains("api03"), "{error}");
    }
}

#[test]
fn connection_strings_and_credentials_do_not_reach_a_shell() {
    let withheld = [
        ("DATABASE_URL", "postgres://localhost/db"),
        ("TEST_DATABASE_URL", "x"),
        ("REDIS_URL", "x"),
        ("MONGODB_URI", "x"),
        ("SENTRY_DSN", "x"),
        ("GITHUB_PAT", "x"),
        ("PAT", "x"),
        ("SMTP_PASS", "x"),
        ("MYSQL_PWD", "x"),
        ("GOOGLE_CREDENTIALS", "x"),
        ("NPM_AUTH", "x"),
        ("DOCKER_AUTH_CONFIG", "x"),
        ("npm_config__auth", "x"),
        ("SLACK_WEBHOOK_URL", "x"),
        ("AZURE_STORAGE_CONNECTION_STRING", "x"),
        ("SESSION_COOKIE", "x"),
        ("SSHPASS", "x"),
        ("LDAP_BIND_PW", "x"),
        ("ADMIN_PW", "x"),
        ("PW", "x"),
        ("SSH_PRIVATE", "x"),
        ("ENCRYPTION_SALT", "x"),
        ("ACCESS", "x"),
        ("S3_ACCESS", "x"),
        ("SIGNING", "x"),
        ("CODE_SIGNING", "x"),
        ("KUBECONFIG_DATA", "x"),
        // By what they hold.
        ("UPSTREAM", "https://user:word@example.org/x"),
        ("QUEUES", "a,amqp://u:p@h:1,b"),
        ("STORE", "DefaultEndpointsProtocol=https;AccountKey=abc=="),
        ("SERVER", "Server=h;User=u;Password=p"),
        ("PLAIN_NAME", "ghp_0123456789abcdefghijABCDEFGHIJ012345"),
    ];
    let passed = [
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b.c"),
        ("PATH", "/bin"),
        ("XAUTHORITY", "/x"),
        ("GIT_ASKPASS", "/x"),
        ("HTTPS_PROXY", "http://user:word@proxy:3128"),
        ("http_proxy", "http://user:word@proxy:3128"),
        ("BASE_URL", "https://example.org:8080/a:b@c"),
        ("REPOSITORY", "git@github.com:a/b.git"),
        ("COMPASS", "x"),
        ("KUBECONFIG", "/x"),
        ("ACCESSIBILITY", "x"),
        ("XDG_SESSION_ID", "1"),
    ];
    let stage = Stage::new();
    let loaded = stage.load();
    let environment = Environment::from_pairs(withheld.into_iter().chain(passed));
    let shell = shell_environment(&environment, &loaded.settings, &loaded.providers);
    for (name, _) in withheld {
        assert_eq!(shell.get(name), None, "{name}");
    }
    for (name, value) in passed {
        assert_eq!(shell.get(name).and_then(|value| value.to_str()), Some(value), "{name}");
    }
}

#[test]
fn variables_that_change_what_words_mean_do_not_reach_a_shell() {
    let names = ["PWD", "OLDPWD", "CDPATH", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "BASHOPTS"];
    let loaded = Stage::new().load();
    let environment = Environment::from_pairs(names.map(|name| (name, "/w")));
    let shell = shell_environment(&environment, &loaded.settings, &loaded.providers);
    for name in names {
        assert_eq!(shell.get(name), None, "{name}");
    }
}

#[test]
fn withheld_variable_is_passed_on_by_name() {
    let stage =
        Stage::new().file("home/.decurion/settings.json", r#"{"envPass": ["DATABASE_URL", "UPSTREAM"]}"#);
    let loaded = stage.load();
    let pairs = [("DATABASE_URL", "postgres://u:p@h/db"), ("UPSTREAM", "https://u:p@h")];
    let shell = shell_environment(&Environment::from_pairs(pairs), &loaded.settings, &loaded.providers);
    assert_eq!(shell.pairs().len(), 3, "{shell:?}");
}

#[test]
fn masked_secrets_are_taken_from_the_environment_and_given_to_no_child() {
    let stage = Stage::new()
        .file(
            "home/.decurion/settings.json",
            r#"{"secrets": {"DEPLOY": {"hosts": ["api.example.com"]}, "ABSENT": {"hosts": ["x.example"]}},
                "env": {"DEPLOY": "other"}, "envPass": ["DEPLOY"]}"#,
        )
        .variable("DEPLOY", "canary-deploy")
        .variable("COPY", "prefix canary-deploy");
    let loaded = stage.load();
    let [deploy, ..] = &loaded.settings.secrets[..] else { panic!("{:?}", loaded.settings.secrets) };
    assert_eq!((deploy.name.as_str(), &deploy.hosts[..]), ("DEPLOY", &["api.example.com".to_owned()][..]));
    assert_eq!(deploy.value.as_ref().unwrap().expose(), "canary-deploy");
    for child in environments(&stage, &loaded) {
        assert_eq!(child.get("DEPLOY"), None);
        assert_eq!(child.get("COPY"), None, "{child:?}");
    }
    let warnings = stage.warnings(&loaded).join("\n");
    for words in [
        "secrets.ABSENT: the variable ABSENT is not set, so commands do not have it; set it where Decurion is started",
        "a masked secret is never passed on: DEPLOY",
    ] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
    let shown = format!("{loaded:?} {:?} {}", loaded.rows(), loaded.shown());
    assert!(!shown.contains("canary"), "{shown}");
    assert_eq!(loaded.redactor().redact("it is canary-deploy"), "it is [redacted]");
}

#[test]
fn a_repository_defines_no_secrets_and_widens_none() {
    let stage = Stage::new()
        .file("home/.decurion/settings.json", r#"{"secrets": {"DEPLOY": {"hosts": ["api.example.com"]}}}"#)
        .file(
            "work/.decurion/settings.json",
            r#"{"secrets": {"DEPLOY": {"hosts": ["evil.example"]}, "OTHER": {"hosts": ["evil.example"]}}}"#,
        )
        .variable("DEPLOY", "canary-deploy")
        .variable("OTHER", "canary-other");
    for loaded in [stage.load(), stage.load_trusted()] {
        let found: Vec<_> =
            loaded.settings.secrets.iter().map(|secret| (&secret.name, &secret.hosts)).collect();
        assert_eq!(found, [(&"DEPLOY".to_owned(), &vec!["api.example.com".to_owned()])]);
    }
}

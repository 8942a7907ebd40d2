//! What is written into settings: the change and nothing else, in our own files, so that the next start reads it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Barrier;

use camino::Utf8Path;
use decurion_config::{
    Auth, BaseUrl, Keeper, NewProvider, Paths, ProviderKind, Secret, Trust, keep_provider,
};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Mode, PermissionUpdate, Rule, Verdict};
use expect_test::expect;

use crate::stage::{Stage, write};

const LOCAL: &str = "project/.decurion/settings.local.json";

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| Rule::parse(text, RuleSource::Session).unwrap()).collect()
}

fn add(texts: &[&str]) -> PermissionUpdate {
    PermissionUpdate::AddRules { behavior: Verdict::Allow, rules: rules(texts) }
}

/// What was said about a change.
fn keep(stage: &Stage, at: RuleSource, update: &PermissionUpdate) -> String {
    let said = match Keeper::new(&stage.load()).keep(at, update) {
        Ok(kept) => {
            format!("{}{}", kept.file, kept.remark.map(|remark| format!(" ({remark})")).unwrap_or_default())
        }
        Err(error) => format!("not kept: {error}"),
    };
    stage.short(&said)
}

fn read(stage: &Stage, file: &str) -> String {
    fs::read_to_string(stage.top.join(file)).unwrap_or_else(|error| format!("{error}\n"))
}

fn trust(stage: &Stage) {
    let loaded = stage.load();
    let (mut trust, _) = Trust::open(&loaded.paths);
    trust.trust_folder(&loaded.paths.root, &loaded.project_parts).unwrap();
}

fn mode_of(path: &Utf8Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Each kind of change in each of the files, one after the other.
#[test]
fn a_change_is_in_the_file_of_its_source() {
    let stage = Stage::new();
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    let mut seen = String::new();
    for (at, update) in [
        (RuleSource::LocalSettings, add(&["Bash(cargo test *)", "Read"])),
        (RuleSource::LocalSettings, add(&["Bash(cargo test *)", "Edit(./a.rs)"])),
        (RuleSource::UserSettings, add(&["Edit(./a.rs)"])),
        (RuleSource::UserSettings, PermissionUpdate::SetMode { mode: Mode::AcceptEdits }),
        (RuleSource::UserSettings, PermissionUpdate::SetMode { mode: Mode::Plan }),
        (RuleSource::UserSettings, PermissionUpdate::SetMode { mode: Mode::BypassPermissions }),
        (
            RuleSource::ProjectSettings,
            PermissionUpdate::AddRules { behavior: deny, rules: rules(&["WebFetch"]) },
        ),
        (
            RuleSource::LocalSettings,
            PermissionUpdate::RemoveRules { behavior: allow, rules: rules(&["Read"]) },
        ),
        (
            RuleSource::LocalSettings,
            PermissionUpdate::ReplaceRules {
                behavior: allow,
                source: RuleSource::LocalSettings,
                rules: rules(&["Edit(./a.rs)", "Glob"]),
            },
        ),
        (
            RuleSource::LocalSettings,
            PermissionUpdate::AddDirectories { directories: vec!["/a".into(), "/b".into()] },
        ),
        (RuleSource::LocalSettings, PermissionUpdate::RemoveDirectories { directories: vec!["/a".into()] }),
        (RuleSource::Session, add(&["Read"])),
    ] {
        seen.push_str(&format!("{}\n", keep(&stage, at, &update)));
    }
    for file in ["home/.decurion/settings.json", "project/.decurion/settings.json", LOCAL] {
        seen.push_str(&format!("--- {file}\n{}", read(&stage, file)));
    }
    expect![[r#"
        project/.decurion/settings.local.json
        project/.decurion/settings.local.json
        home/.decurion/settings.json
        home/.decurion/settings.json
        home/.decurion/settings.json
        not kept: an answer cannot make a mode that never asks the default; to do that, edit the settings by hand
        project/.decurion/settings.json
        project/.decurion/settings.local.json
        project/.decurion/settings.local.json
        project/.decurion/settings.local.json
        project/.decurion/settings.local.json
        not kept: no settings file to save this in (it is for the session alone)
        --- home/.decurion/settings.json
        {
          "permissions": {
            "allow": ["Edit(/project/a.rs)"],
            "defaultMode": "plan"
          }
        }
        --- project/.decurion/settings.json
        {
          "permissions": {
            "deny": ["WebFetch"]
          }
        }
        --- project/.decurion/settings.local.json
        {
          "permissions": {
            "allow": ["Edit(./a.rs)", "Glob"],
            "additionalDirectories": ["/b"]
          }
        }
    "#]].assert_eq(&stage.short(&seen));
    let file = stage.top.join(LOCAL);
    assert_eq!((mode_of(&file), mode_of(file.parent().unwrap())), (0o600, 0o700));
    let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(left, 2, "nothing else is left beside the settings");
}

/// The rules that allow something.
fn allowed(stage: &Stage) -> Vec<String> {
    stage.load().rules.set.allow.iter().map(ToString::to_string).collect()
}

const SESSION_ONLY: &str = " (applies to this session only; run `decurion trust` to use it in later ones)";

/// Whoever trusts the folder goes on trusting it with what they added; what somebody else added is not agreed to by that.
#[test]
fn trust_goes_on_with_what_its_owner_adds() {
    let hand_written = r#"{"permissions": {"allow": ["Glob"]}}"#;
    let stage = Stage::new().file(LOCAL, hand_written);
    let waits = format!("{LOCAL}{SESSION_ONLY}");
    assert_eq!(keep(&stage, RuleSource::LocalSettings, &add(&["Read"])), waits);
    assert_eq!(allowed(&stage), Vec::<String>::new());
    trust(&stage);
    assert_eq!(keep(&stage, RuleSource::LocalSettings, &add(&["Edit"])), LOCAL);
    assert_eq!(allowed(&stage), ["Glob", "Read", "Edit"]);
    write(&stage.project.join(".claude/settings.json"), r#"{"permissions": {"allow": ["Bash"]}}"#);
    assert_eq!(keep(&stage, RuleSource::LocalSettings, &add(&["Grep"])), waits);
    assert_eq!(allowed(&stage), Vec::<String>::new());
}

#[test]
fn an_answer_holds_without_trust_and_turns_on_nothing_else() {
    let foreign = r#"{"permissions": {"allow": ["Glob"]}, "hooks": {"Stop": []}}"#;
    let stage = Stage::new().file("project/.claude/settings.json", foreign);
    assert_eq!(keep(&stage, RuleSource::LocalSettings, &add(&["Read"])), LOCAL);
    assert_eq!(keep(&stage, RuleSource::ProjectSettings, &add(&["Edit"])), "project/.decurion/settings.json");
    assert_eq!(allowed(&stage), ["Edit", "Read"]);
    let loaded = stage.load();
    assert!(!loaded.trust.is_trusted());
    let keys: Vec<&str> = loaded.project_parts.parts().iter().map(|part| part.key.as_str()).collect();
    assert_eq!(keys, ["permissions.allow[0]", "hooks.Stop"], "the user's own answers are asked about");
    // Also while sessions run that do not read the file, and where nothing is left to write.
    let mut request = stage.request();
    request.flags.setting_sources = Some("user".to_owned());
    let keeper = Keeper::new(&decurion_config::load(&request).unwrap());
    for _ in 0..2 {
        keeper.keep(RuleSource::LocalSettings, &add(&["Grep"])).unwrap();
    }
    assert_eq!(allowed(&stage), ["Edit", "Read", "Grep"]);
    // Trust in the folder takes in the rest, and an answer after that needs no second one.
    trust(&stage);
    assert_eq!(allowed(&stage), ["Glob", "Edit", "Read", "Grep"]);
    assert_eq!(keep(&stage, RuleSource::LocalSettings, &add(&["LS"])), LOCAL);
    assert_eq!(allowed(&stage), ["Glob", "Edit", "Read", "Grep", "LS"]);
    let (mut record, _) = Trust::open(&stage.load().paths);
    assert!(record.revoke(&stage.project).unwrap());
    assert_eq!(allowed(&stage), Vec::<String>::new());
}

/// What anything but the user's own answers has made of the file is off, all of it, until the folder is trusted.
#[test]
fn a_file_of_answers_that_something_else_changed_is_off() {
    #[rustfmt::skip]
    let rows = [
        ("the same", r#"{"permissions": {"allow": ["Read"]}}"#, true),
        ("written otherwise", "{ // why\n\"permissions\": {\"allow\": [\"Read\"]}}", true),
        ("a deny rule more", r#"{"permissions": {"allow": ["Read"], "deny": ["Bash"]}}"#, true),
        ("a rule more", r#"{"permissions": {"allow": ["Read", "Bash"]}}"#, false),
        ("another rule", r#"{"permissions": {"allow": ["Bash"]}}"#, false),
        ("a hook more", r#"{"permissions": {"allow": ["Read"]}, "hooks": {"Stop": []}}"#, false),
        ("a wider mode", r#"{"permissions": {"allow": ["Read"], "defaultMode": "acceptEdits"}}"#, false),
        ("a folder more", r#"{"permissions": {"allow": ["Read"], "additionalDirectories": ["/"]}}"#, false),
        ("a server more", r#"{"permissions": {"allow": ["Read"]}, "mcpServers": {"x": {"command": "x"}}}"#, false),
        ("a variable more", r#"{"permissions": {"allow": ["Read"]}, "env": {"A": "1"}}"#, false),
    ];
    for (name, text, holds) in rows {
        let stage = Stage::new();
        keep(&stage, RuleSource::LocalSettings, &add(&["Read"]));
        write(&stage.top.join(LOCAL), text);
        let expected: &[&str] = if holds { &["Read"] } else { &[] };
        assert_eq!(allowed(&stage), expected, "{name}");
        if !holds {
            // An answer in between makes nothing of it the user's.
            let said = keep(&stage, RuleSource::LocalSettings, &add(&["Glob"]));
            assert_eq!(said, format!("{LOCAL}{SESSION_ONLY}"), "{name}");
            assert_eq!(allowed(&stage), Vec::<String>::new(), "{name}");
            assert!(stage.load().hooks().declarations.is_empty(), "{name}");
        }
    }
}

#[test]
fn a_repository_cannot_bring_an_answer_along() {
    let answered = Stage::new();
    keep(&answered, RuleSource::LocalSettings, &add(&["Read"]));
    let (file, record) = (read(&answered, LOCAL), read(&answered, "home/.decurion/trust.json"));
    assert!(!record.contains("Read") && record.contains("own"), "{record}");
    // The same file in the repository of somebody who answered nothing, with the record beside it.
    let shipped = Stage::new().file(LOCAL, &file).file("project/.decurion/trust.json", &record);
    assert_eq!(allowed(&shipped), Vec::<String>::new());
    // In another folder of the one who answered.
    let mut request = answered.request();
    request.cwd = answered.top.join("copy");
    write(&request.cwd.join(".decurion/settings.local.json"), &file);
    assert!(decurion_config::load(&request).unwrap().rules.set.allow.is_empty());
    // In another file of the same folder.
    write(&answered.project.join(".claude/settings.local.json"), &file);
    fs::remove_file(answered.top.join(LOCAL)).unwrap();
    assert_eq!(allowed(&answered), Vec::<String>::new());
    // A rule that was taken back is not brought back by its file.
    let stage = Stage::new();
    keep(&stage, RuleSource::LocalSettings, &add(&["Read", "Edit"]));
    let both = read(&stage, LOCAL);
    let gone = PermissionUpdate::RemoveRules { behavior: Verdict::Allow, rules: rules(&["Edit"]) };
    keep(&stage, RuleSource::LocalSettings, &gone);
    assert_eq!(allowed(&stage), ["Read"]);
    write(&stage.top.join(LOCAL), &both);
    assert_eq!(allowed(&stage), Vec::<String>::new());
}

/// What cannot be changed stays as it is to the byte, and it is said why.
#[test]
fn a_file_that_cannot_be_changed_stays() {
    let outside = r#"{"permissions": {}}"#;
    let mut seen = String::new();
    for (name, text) in [
        ("torn", "{\"permissions\": {"),
        ("a list", "{\n  \"permissions\": []\n}"),
        ("no rules", "{\"permissions\": {\"allow\": true}}"),
    ] {
        let stage = Stage::new();
        let loaded = stage.load();
        write(&stage.top.join(LOCAL), text);
        let error = Keeper::new(&loaded).keep(RuleSource::LocalSettings, &add(&["Read"])).unwrap_err();
        seen.push_str(&format!("{name}: {}\n", stage.short(&error.to_string())));
        assert_eq!(read(&stage, LOCAL), text);
    }
    // A link to a file, and one to a folder, that are not the project's.
    for link in [LOCAL, "project/.decurion"] {
        let stage = Stage::new().file("other/settings.local.json", outside);
        let (link, to) = (stage.top.join(link), stage.top.join("other"));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let to = if link.ends_with(".decurion") { to } else { to.join("settings.local.json") };
        symlink(to, link).unwrap();
        seen.push_str(&format!("{}\n", keep(&stage, RuleSource::LocalSettings, &add(&["Read"]))));
        assert_eq!(read(&stage, "other/settings.local.json"), outside);
    }
    let stage = Stage::new().file("managed.json", r#"{"allowManagedPermissionRulesOnly": true}"#);
    seen.push_str(&format!("{}\n", keep(&stage, RuleSource::UserSettings, &add(&["Read"]))));
    expect![[r"
        torn: project/.decurion/settings.local.json:1:18: expected a key in double quotes or `}`
        a list: project/.decurion/settings.local.json:2:18: `permissions` is not an object
        no rules: project/.decurion/settings.local.json:1:27: `permissions.allow` is not a list
        not kept: it is a link that leads out of the project, or nowhere: project/.decurion/settings.local.json
        not kept: it is a link that leads out of the project, or nowhere: project/.decurion/settings.local.json
        not kept: the administrator lets only their own rules allow anything (`allowManagedPermissionRulesOnly`)
    "]].assert_eq(&seen);
}

/// The user's own file may be a link to wherever they keep it: the link stays, and what it leads to is changed.
#[test]
fn the_users_own_link_is_followed_and_stays() {
    let stage = Stage::new().file("dotfiles/settings.json", "{} // mine\n");
    let link = stage.home.join(".decurion/settings.json");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(stage.top.join("dotfiles/settings.json"), &link).unwrap();
    fs::set_permissions(stage.top.join("dotfiles/settings.json"), fs::Permissions::from_mode(0o640)).unwrap();
    keep(&stage, RuleSource::UserSettings, &add(&["Read"]));
    assert!(link.is_symlink() && read(&stage, "dotfiles/settings.json").ends_with("} // mine\n"));
    assert_eq!(mode_of(&stage.top.join("dotfiles/settings.json")), 0o640);
}

/// A rule that is to go and stands in a file that others share with us is named, and their file is not touched.
#[test]
fn files_of_others_are_not_written() {
    let text = "{\n  \"permissions\": {\"allow\": [\"Read\", \"Glob\"]}\n}\n";
    let stage = Stage::new().file("project/.claude/settings.local.json", text);
    let gone = PermissionUpdate::RemoveRules { behavior: Verdict::Allow, rules: rules(&["Glob"]) };
    expect!["project/.decurion/settings.local.json (Glob also stands in project/.claude/settings.local.json:2:37, which is not ours to change: remove it there)"].assert_eq(&keep(&stage, RuleSource::LocalSettings, &gone));
    keep(&stage, RuleSource::LocalSettings, &add(&["Edit"]));
    assert_eq!(read(&stage, "project/.claude/settings.local.json"), text);
}

/// Several of us write at once: nothing that anybody wrote is lost. Who never lets go is not waited for for ever.
#[test]
fn nobodys_rule_is_lost_where_many_write() {
    let stage = Stage::new();
    let keeper = Keeper::new(&stage.load());
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (keeper, start) = (&keeper, &start);
            scope.spawn(move || {
                start.wait();
                keeper.keep(RuleSource::LocalSettings, &add(&[&format!("Bash(echo {number})")])).unwrap();
            });
        }
    });
    let text = read(&stage, LOCAL);
    assert!((0..8).all(|number| text.contains(&format!("Bash(echo {number})"))), "{text}");
    let lock = fs::File::open(stage.home.join(".decurion/settings.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let said = keep(&stage, RuleSource::LocalSettings, &add(&["Read"]));
    assert_eq!(
        said,
        "not kept: another process is writing settings and does not finish: home/.decurion/settings.lock"
    );
    assert_eq!(read(&stage, LOCAL), text);
}

/// The settings of one user are hidden from git, once, where git has a list for that.
#[test]
fn the_users_own_settings_are_not_for_the_repository() {
    let stage = Stage::new().file("project/.git/info/exclude", "# mine");
    for rule in ["Read", "Edit"] {
        keep(&stage, RuleSource::LocalSettings, &add(&[rule]));
    }
    assert_eq!(read(&stage, "project/.git/info/exclude"), "# mine\n**/.decurion/settings.local.json\n");
}

#[test]
fn a_server_is_called_by_its_host() {
    for (address, name) in [
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("http://localhost:8080/v1", "local"),
        ("http://127.0.0.1:8080/v1", "local"),
        ("http://10.0.0.7:8000/v1", "server"),
        ("http://gpu-box:8000/v1", "gpu-box"),
        ("https://api.openai.com/v1", "openai"),
    ] {
        assert_eq!(BaseUrl::parse(address).unwrap().provider_name(), name, "{address}");
    }
}

const USERS: &str = "home/.decurion/settings.json";

fn anthropic(key: &str) -> NewProvider {
    let key = Some(Secret::new(key)).filter(|key| !key.expose().is_empty());
    NewProvider {
        name: "anthropic".to_owned(),
        kind: ProviderKind::Anthropic,
        address: None,
        key,
        key_variable: None,
        model: None,
    }
}

/// What was said about a provider.
fn keep_new(stage: &Stage, provider: &NewProvider) -> String {
    let request = stage.request();
    let paths = Paths::discover(&request.cwd, &request.environment).unwrap();
    let said = keep_provider(&paths, provider)
        .map_or_else(|error| format!("not kept: {error}"), camino::Utf8PathBuf::into_string);
    stage.short(&said)
}

#[test]
fn a_provider_is_kept_with_its_key_in_a_file_about_which_nobody_warns() {
    let stage = Stage::new();
    for key in ["an-older-key", "sk-canary-1234"] {
        assert_eq!(keep_new(&stage, &anthropic(key)), USERS);
    }
    for file in [USERS, "home/.decurion/keys/anthropic"] {
        assert_eq!(mode_of(&stage.top.join(file)), 0o600, "{file}");
    }
    expect![[r#"
        {
          "providers": {
            "anthropic": {
              "kind": "anthropic",
              "apiKeyFile": "keys/anthropic"
            }
          },
          "provider": "anthropic"
        }
    "#]]
    .assert_eq(&read(&stage, USERS));
    let loaded = stage.load();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let provider = &loaded.providers.list()[0];
    assert!(matches!(&provider.auth, Auth::ApiKey(key) if key.expose() == "sk-canary-1234"));
}

#[test]
fn a_provider_joins_what_is_written_and_a_link_stays_one() {
    let written = "{\n  // mine\n  \"model\": \"x\", // the best\n  \"providers\": {\"openai\": {\"kind\": \"openai\", \"baseUrl\": \"http://old\"}}\n}\n";
    let stage = Stage::new().file("dotfiles/settings.json", written);
    let (real, link) = (stage.top.join("dotfiles/settings.json"), stage.top.join(USERS));
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(stage.home.join(".decurion")).unwrap();
    symlink(&real, &link).unwrap();
    let address = Some(BaseUrl::parse("http://new").unwrap());
    let model = Some("pear".to_owned());
    let new = NewProvider {
        name: "openai".to_owned(),
        kind: ProviderKind::OpenAi,
        address,
        key: None,
        key_variable: None,
        model,
    };
    assert_eq!(keep_new(&stage, &new), USERS);
    assert!(link.is_symlink());
    expect![[r#"
        {
          // mine
          "model": "openai/pear", // the best
          "providers": {"openai": {
            "kind": "openai",
            "baseUrl": "http://new"
          }},
          "provider": "openai"
        }
    "#]]
    .assert_eq(&read(&stage, "dotfiles/settings.json"));
    assert_eq!(mode_of(&real), 0o640);
    assert!(!stage.home.join(".decurion/keys").exists());
}

#[test]
fn settings_that_cannot_be_read_or_understood_are_not_taken_for_none() {
    let mut said = String::new();
    for text in ["{\"providers\": []}", "{\"model\": \"x\"", "[1]", "{\"providers\": {\"anthropic\": 7}}"] {
        let stage = Stage::new().file(USERS, text);
        said += &format!("{text}\n  {}\n", keep_new(&stage, &anthropic("sk-canary")));
        let now = read(&stage, USERS);
        assert!(now == text || now.contains("\"apiKeyFile\""), "{now}");
        assert_eq!(now == text, !stage.home.join(".decurion/keys").exists(), "{text}");
    }
    let stage = Stage::new().file(&format!("{USERS}/file"), "");
    said += &format!("(a folder)\n  {}\n", keep_new(&stage, &anthropic("sk-canary")));
    let stage = Stage::new().file(USERS, "");
    fs::write(stage.top.join(USERS), b"\"\xff\"").unwrap();
    said += &format!("(bytes)\n  {}\n", keep_new(&stage, &anthropic("sk-canary")));
    let stage = Stage::new().file("home/.decurion/other", "");
    symlink("nowhere", stage.top.join(USERS)).unwrap();
    said += &format!("(a link to nothing)\n  {}\n", keep_new(&stage, &anthropic("sk-canary")));
    expect![[r#"
        {"providers": []}
          not kept: home/.decurion/settings.json:1:15: `providers` is not an object
        {"model": "x"
          not kept: home/.decurion/settings.json:1:14: expected `,` or `}`
        [1]
          not kept: home/.decurion/settings.json:1:1: `the document` is not an object
        {"providers": {"anthropic": 7}}
          home/.decurion/settings.json
        (a folder)
          not kept: home/.decurion/settings.json: not an ordinary file
        (bytes)
          not kept: home/.decurion/settings.json: the file is not UTF-8
        (a link to nothing)
          not kept: it is a link that leads out of the project, or nowhere: home/.decurion/settings.json
    "#]]
    .assert_eq(&said);
}

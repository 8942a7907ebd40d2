//! Skills, commands, instruction files and memory in real folders: what counts, what waits for trust, what is
//! bounded.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use decurion_config::{
    AgentRequest, Agents, FoundInstructions, InstructionRequest, LoadRequest, Loaded, PartKind, SkillRequest,
    Skills, Trust, load, memory, skills,
};
use decurion_protocol::{AgentSource, Skill};
use expect_test::{Expect, expect};

use crate::stage::{Stage, write};

const TOOLS: &[&str] = &["Bash", "Edit", "Read", "Write"];

fn skills_of(loaded: &Loaded) -> Skills {
    Skills::load(&SkillRequest::new(loaded, TOOLS))
}

fn trust(stage: &Stage) {
    let loaded = stage.load();
    Trust::open(&loaded.paths).0.trust_folder(&loaded.paths.root, &loaded.project_parts).unwrap();
}

fn shown(stage: &Stage, skills: &Skills) -> String {
    let mut lines = String::new();
    for found in &skills.all {
        let by = found.shadowed_by.as_ref().map(|by| format!(" < {by}")).unwrap_or_default();
        let allowed = found.skill.allowed_tools.join(" ");
        lines += &stage.short(&format!("{} {}{by} {allowed}\n", found.skill.name, found.skill.path));
    }
    for problem in &skills.problems {
        lines += &stage.short(&format!("{problem}\n"));
    }
    lines
}

fn named(name: &str) -> String {
    format!("---\nname: {name}\ndescription: d\n---\nDo it.\n")
}

#[test]
fn the_nearest_place_counts_and_a_skill_before_a_command() {
    let stage = Stage::new()
        .file("skills/r/SKILL.md", &named("r"))
        .file("project/deep/.claude/skills/r/SKILL.md", &named("r"))
        .file("project/.decurion/skills/r/SKILL.md", &named("R"))
        .file("project/.decurion/commands/r.md", "x")
        .file("project/.claude/commands/only.md", "x")
        .file("home/.decurion/skills/a/SKILL.md", &named("same"))
        .file("home/.decurion/skills/b/SKILL.md", &named("same"))
        .file("home/.claude/skills/r/SKILL.md", &named("r"));
    let mut request: LoadRequest = stage.request();
    request.cwd = stage.project.join("deep");
    let loaded = load(&request).unwrap();
    expect![[r"
        r skills/r/SKILL.md 
        r project/deep/.claude/skills/r/SKILL.md < skills/r/SKILL.md 
        R project/.decurion/skills/r/SKILL.md < skills/r/SKILL.md 
        r project/.decurion/commands/r.md < skills/r/SKILL.md 
        only project/.claude/commands/only.md 
        same home/.decurion/skills/a/SKILL.md 
        same home/.decurion/skills/b/SKILL.md < home/.decurion/skills/a/SKILL.md 
        r home/.claude/skills/r/SKILL.md < skills/r/SKILL.md 
        project/.decurion/skills/r/SKILL.md:2: note: `name` is not its folder's, r: it is called /R
        home/.decurion/skills/a/SKILL.md:2: note: `name` is not its folder's, a: it is called /same
        home/.decurion/skills/b/SKILL.md:2: note: `name` is not its folder's, b: it is called /same
        home/.decurion/skills/b/SKILL.md: warning: not used, because another file here has this name: home/.decurion/skills/a/SKILL.md
    "]]
    .assert_eq(&shown(&stage, &skills_of(&loaded)));
}

#[test]
fn what_a_repository_allows_waits_for_trust() {
    let skill = "---\nname: s\ndescription: d\nallowed-tools: Bash(make:*)\n---\nDo it.\n";
    let stage = Stage::new()
        .file("project/.claude/skills/s/SKILL.md", skill)
        .file("home/.claude/skills/own/SKILL.md", &skill.replace("name: s", "name: own"));
    let check = |expected: &Expect| expected.assert_eq(&shown(&stage, &skills_of(&stage.load())));
    check(&expect![[r"
        s project/.claude/skills/s/SKILL.md 
        own home/.claude/skills/own/SKILL.md Bash(make:*)
        project/.claude/skills/s/SKILL.md:4: warning: `allowed-tools` is ignored, because this folder is not trusted (see `decurion trust`)
    "]]);
    assert_eq!(stage.load().project_parts.counts().get(&PartKind::AllowRule), Some(&1));
    trust(&stage);
    check(&expect![[r"
        s project/.claude/skills/s/SKILL.md Bash(make:*)
        own home/.claude/skills/own/SKILL.md Bash(make:*)
    "]]);
    // What was loaded keeps to what the user agreed to, whatever the file says meanwhile.
    let before = stage.load();
    write(&stage.top.join("project/.claude/skills/s/SKILL.md"), &skill.replace("make", "rm"));
    expect![[r"
        s project/.claude/skills/s/SKILL.md 
        own home/.claude/skills/own/SKILL.md Bash(make:*)
        project/.claude/skills/s/SKILL.md:4: warning: `allowed-tools` is ignored, because it is not what was there when the folder was trusted
    "]]
    .assert_eq(&shown(&stage, &skills_of(&before)));
    assert!(!stage.load().trust.is_trusted());
}

#[test]
fn the_hooks_of_a_skill_wait_for_trust() {
    let skill = "---\nname: s\ndescription: d\nhooks:\n  Stop:\n    - hooks: [{command: run}]\n---\nDo it.\n";
    let stage = Stage::new()
        .file("project/.claude/skills/s/SKILL.md", skill)
        .file("home/.claude/skills/own/SKILL.md", &skill.replace("name: s", "name: own"));
    let hooks = |loaded: &Loaded| -> Vec<String> {
        let skills = skills_of(loaded);
        let of = |skill: &Arc<Skill>| {
            let found = loaded.hooks_of_skill(skill);
            found
                .declarations
                .iter()
                .map(|hook| format!("{} {}", skill.name, hook.command))
                .collect::<Vec<_>>()
        };
        skills.active().flat_map(of).collect()
    };
    let said = |loaded: &Loaded| {
        skills_of(loaded).problems.iter().map(|one| stage.short(&one.to_string())).collect::<Vec<_>>()
    };
    let place = "project/.claude/skills/s/SKILL.md:4: warning: `hooks` is ignored, because";
    let loaded = stage.load();
    assert_eq!(hooks(&loaded), ["own run"]);
    assert_eq!(said(&loaded), [format!("{place} this folder is not trusted (see `decurion trust`)")]);
    assert_eq!(loaded.project_parts.counts().get(&PartKind::Hook), Some(&1));
    trust(&stage);
    let before = stage.load();
    assert_eq!(hooks(&before), ["s run", "own run"]);
    write(&stage.top.join("project/.claude/skills/s/SKILL.md"), &skill.replace("run", "other"));
    assert_eq!(hooks(&before), ["own run"]);
    assert_eq!(
        said(&before),
        [format!("{place} it is not what was there when the folder was trusted")],
        "what an agent wrote since is not what the user agreed to"
    );
    let off = stage.file("home/.decurion/settings.json", r#"{"disableAllHooks": true}"#);
    assert!(hooks(&off.load()).is_empty());
}

#[test]
fn the_paths_of_a_skill_name_files_as_people_write_them() {
    let stage = Stage::new();
    let paths = stage.load().paths;
    for (pattern, file, cwd, expected) in [
        ("src/**", "src/a/b.rs", "", true),
        ("src/**", "lib/src/b.rs", "", false),
        ("src", "src/a/b.rs", "", true),
        ("./src/", "src/b.rs", "", true),
        ("/src", "src/b.rs", "", true),
        ("/src", "lib/src/b.rs", "", false),
        ("src", "lib/src/b.rs", "", true),
        ("*.css", "web/deep/a.css", "", true),
        ("*.css", "web/a.csss", "", false),
        ("web/*.css", "web/a.css", "", true),
        ("web/*.css", "web/deep/a.css", "", false),
        ("**/*.{ts,tsx}", "web/a.tsx", "", true),
        ("Cargo.toml", "Cargo.toml", "", true),
        ("../**", "src/b.rs", "", false),
        // From where the agent works, as well as from the project's folder.
        ("src/**", "deep/src/b.rs", "deep", true),
        ("deep/src/**", "deep/src/b.rs", "deep", true),
    ] {
        let skill = Skill { paths: vec!["nothing".into(), pattern.into()], ..Skill::default() };
        let (cwd, file) = (paths.root.join(cwd), paths.root.join(file));
        assert_eq!(skills::concerns(&skill, &paths, &cwd, &file), expected, "{pattern} on {file}");
        assert!(!skills::concerns(&skill, &paths, &cwd, "/elsewhere/src/b.rs".into()), "{pattern}");
    }
}

#[test]
fn a_change_on_disk_is_seen_and_a_text_is_read_when_it_is_used() {
    let stage = Stage::new().file("home/.decurion/skills/s/SKILL.md", &named("s"));
    let request = SkillRequest::new(&stage.load(), TOOLS);
    let found = Skills::load(&request);
    assert!(!found.is_stale(&request));
    let path = stage.top.join("home/.decurion/skills/s/SKILL.md");
    write(&path, &named("s").replace("Do it.", "Do it otherwise."));
    assert!(found.is_stale(&request));
    assert_eq!(skills::body(found.get("S").unwrap(), &stage.load().paths).unwrap(), "Do it otherwise.");
    fs::remove_file(&path).unwrap();
    assert!(
        skills::body(found.get("s").unwrap(), &stage.load().paths)
            .unwrap_err()
            .ends_with("there is no such file")
    );
    assert!(Skills::load(&request).get("s").is_none());
}

#[test]
fn links_that_go_round_and_names_that_are_not_text_are_said() {
    use std::os::unix::ffi::OsStrExt;
    let stage = Stage::new().file("home/.decurion/commands/a.md", "x");
    let commands = stage.home.join(".decurion/commands");
    symlink(&commands, commands.join("round")).unwrap();
    symlink("nowhere", commands.join("gone.md")).unwrap();
    let skills = stage.home.join(".decurion/skills");
    fs::create_dir_all(skills.join("s")).unwrap();
    symlink("SKILL.md", skills.join("s/SKILL.md")).unwrap();
    fs::create_dir_all(skills.as_std_path().join(std::ffi::OsStr::from_bytes(b"\xff"))).unwrap();
    expect![[r"
        a home/.decurion/commands/a.md 
        home/.decurion/skills/s/SKILL.md: error: cannot be read: Too many levels of symbolic links (os error 40)
        home/.decurion/skills/�: error: its name is not UTF-8
        home/.decurion/commands/gone.md: error: cannot be read: No such file or directory (os error 2)
        home/.decurion/commands/round: error: a link to a folder that is read already
    "]]
    .assert_eq(&shown(&stage, &skills_of(&stage.load())));
}

fn told(stage: &Stage, found: &FoundInstructions) -> String {
    let mut lines = String::new();
    for file in &found.files {
        let text: String = file.text.trim().chars().take(40).collect();
        lines += &stage.short(&format!("{}: {text}\n", file.path));
    }
    for warning in &found.warnings {
        lines += &stage.short(&format!("! {warning}\n"));
    }
    lines
}

fn instructions(loaded: &Loaded) -> FoundInstructions {
    let (request, problems) = InstructionRequest::new(loaded);
    assert_eq!(problems, Vec::<String>::new());
    request.load()
}

#[test]
fn instruction_files_from_the_administrator_down_to_the_working_directory() {
    let stage = Stage::new()
        .file("AGENTS.md", "managed")
        .file("home/.decurion/AGENTS.md", "the user's")
        .file("home/.claude/CLAUDE.md", "not told: ours stand for it")
        .file("project/AGENTS.md", "for all")
        .file("project/CLAUDE.md", "for one\n@AGENTS.md")
        .file("project/.claude/CLAUDE.md", "inner")
        .file("project/CLAUDE.local.md", "mine")
        .file("project/a/CLAUDE.md", "excluded")
        .file("project/a/b/AGENTS.md", "deep")
        .file("project/a/b/c/AGENTS.md", "nested")
        .file("project/other/CLAUDE.md", "elsewhere")
        .file("project/.claude/settings.local.json", "{}")
        .file("home/.decurion/settings.json", r#"{"claudeMdExcludes": ["project/a/CLAUDE.md"]}"#);
    let mut request = stage.request();
    request.cwd = stage.project.join("a/b");
    let loaded = load(&request).unwrap();
    expect![[r"
        AGENTS.md: managed
        home/.decurion/AGENTS.md: the user's
        project/AGENTS.md: for all
        project/CLAUDE.md: for one
        @AGENTS.md
        project/.claude/CLAUDE.md: inner
        project/CLAUDE.local.md: mine
        project/a/b/AGENTS.md: deep
    "]]
    .assert_eq(&told(&stage, &instructions(&loaded)));
    let (nested, _) = InstructionRequest::new(&loaded);
    let cwd = stage.project.join("a/b");
    for (file, expected) in [
        ("a/b/x.rs", ""),
        ("a/b/c/d/x.rs", "project/a/b/c/AGENTS.md: nested\n"),
        ("other/x.rs", "project/other/CLAUDE.md: elsewhere\n"),
    ] {
        let found = nested.nested(&cwd, &stage.project.join(file));
        assert_eq!(told(&stage, &found), expected, "{file}");
    }
    assert_eq!(nested.nested(&cwd, "/etc/passwd".into()), FoundInstructions::default());
}

#[test]
fn imports_are_followed_as_far_as_they_may_go() {
    let stage = Stage::new()
        .file("home/.decurion/AGENTS.md", "@~/own.md")
        .file("home/own.md", "my own")
        .file("home/secret.txt", "a key")
        .file(
            "project/CLAUDE.md",
            "@docs/a.md @docs/a.md @gone.md @someone `@docs/no.md`\n@../home/secret.txt @~/secret.txt @docs",
        )
        .file("project/docs/a.md", "a @b.md")
        .file("project/docs/b.md", "b, round again @a.md @1.md")
        .file("project/docs/no.md", "in code")
        .file("project/docs/1.md", "1 @2.md")
        .file("project/docs/2.md", "2 @3.md")
        .file("project/docs/3.md", "3 @4.md")
        .file("project/docs/4.md", "4");
    fs::write(stage.project.join("AGENTS.md"), b"bytes \0").unwrap();
    expect![[r"
        home/.decurion/AGENTS.md: @~/own.md
        home/own.md: my own
        project/CLAUDE.md: @docs/a.md @docs/a.md @gone.md @someone 
        project/docs/a.md: a @b.md
        project/docs/b.md: b, round again @a.md @1.md
        project/docs/1.md: 1 @2.md
        project/docs/2.md: 2 @3.md
        project/docs/3.md: 3 @4.md
        ! project/AGENTS.md: left out, because it is not text
        ! project/docs/3.md:1: not imported, more than 5 deep: @4.md
        ! project/CLAUDE.md:1: imports a file that is not there: @gone.md
        ! project/CLAUDE.md:2: not read, because it is outside of the project and the folder is not trusted with it (see `decurion trust`): @../home/secret.txt
        ! project/CLAUDE.md:2: not read, because it is outside of the project and the folder is not trusted with it (see `decurion trust`): @~/secret.txt
    "]]
    .assert_eq(&told(&stage, &instructions(&stage.load())));
    trust(&stage);
    let trusted = stage.load();
    let found = instructions(&trusted);
    assert!(found.files.iter().any(|file| file.text == "a key"), "{found:?}");
    // One that came later was not agreed to.
    write(&stage.project.join("CLAUDE.md"), "@/etc/hostname");
    let found = instructions(&trusted);
    assert!(found.warnings.iter().any(|warning| warning.contains("@/etc/hostname")), "{found:?}");
}

#[test]
fn a_link_out_of_the_project_is_an_import_too() {
    let stage = Stage::new().file("home/secret.txt", "a key");
    symlink(stage.home.join("secret.txt"), stage.project.join("AGENTS.md")).unwrap();
    let found = instructions(&stage.load());
    assert_eq!(found.files, []);
    assert!(found.warnings[0].contains("outside of the project"), "{found:?}");
}

#[test]
fn long_instructions_are_cut_and_that_is_said() {
    let stage = Stage::new().file("project/AGENTS.md", &"ä".repeat(40_000));
    let found = instructions(&stage.load());
    assert!(found.files[0].text.ends_with("ä\n[… the rest of this file was left out]"));
    assert_eq!(stage.short(&found.warnings[0]), "project/AGENTS.md: only its first 65536 bytes are told");
}

#[test]
fn a_memory_has_a_folder_for_its_owner_alone() {
    let stage = Stage::new();
    let paths = stage.load().paths;
    for (scope, agent, expected) in [
        ("user", "r", "home/.decurion/agent-memory/r"),
        ("project", "r", "project/.decurion/agent-memory/r"),
        ("local", "r", "project/.decurion/agent-memory-local/r"),
    ] {
        let folder = memory::prepare(&paths, scope, agent, AgentSource::User).unwrap();
        assert_eq!(stage.short(folder.as_str()), expected);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(memory::index(&folder).unwrap(), "");
    }
    let ignored = stage.project.join(".decurion/agent-memory-local/.gitignore");
    assert_eq!(fs::read_to_string(ignored).unwrap(), "*\n");
    assert!(memory::prepare(&paths, "elsewhere", "r", AgentSource::User).is_err());
    // A repository's agent of the same name has other notes, and so has that of another repository.
    let of = |source| memory::prepare(&paths, "user", "r", source).unwrap();
    let other = memory::prepare(&Stage::new().load().paths, "user", "r", AgentSource::Project).unwrap();
    assert!(!of(AgentSource::Project).starts_with(stage.home.join(".decurion/agent-memory")));
    assert_ne!(of(AgentSource::Project).parent().unwrap().file_name(), other.parent().unwrap().file_name());
    // A repository may not lead it to the user's files.
    symlink(&stage.home, stage.project.join(".decurion/agent-memory/led")).unwrap();
    let error = memory::prepare(&paths, "project", "led", AgentSource::Project).unwrap_err();
    assert!(error.to_string().starts_with("leads out of the project"), "{error}");
}

#[test]
fn an_index_is_bounded_and_says_what_was_cut() {
    let stage = Stage::new();
    let folder = memory::prepare(&stage.load().paths, "user", "r", AgentSource::User).unwrap();
    let lines = |count: usize, width: usize| {
        let line = |number: usize| format!("{number:0width$}\n");
        (1..=count).map(line).collect::<String>()
    };
    for (text, first, last) in [
        (lines(200, 3), "001", "200"),
        (lines(201, 3), "001", "[… cut: MEMORY.md has 804 bytes; its first 200 lines are shown."),
        (lines(30, 1000), "0", "[… cut: MEMORY.md has 30030 bytes; its first 26 lines are shown."),
    ] {
        write(&folder.join("MEMORY.md"), &text);
        let index = memory::index(&folder).unwrap();
        assert!(index.starts_with(first), "{index}");
        assert!(index.lines().last().unwrap().starts_with(last), "{}", index.lines().last().unwrap());
    }
}

#[test]
fn what_a_repository_links_to_outside_is_not_read() {
    let stage = Stage::new()
        .file("home/key.md", "---\nname: key\ndescription: d\n---\na key\n")
        .file("project/.claude/skills/fine/SKILL.md", &named("fine"))
        .file("project/notes/SKILL.md", &named("inner"))
        .file("home/.decurion/skills/x", "");
    let claude = stage.project.join(".claude");
    let secret = stage.home.join("key.md");
    for folder in ["skills/s", "commands", "agents"] {
        fs::create_dir_all(claude.join(folder)).unwrap();
    }
    symlink(&secret, claude.join("skills/s/SKILL.md")).unwrap();
    symlink("../../notes", claude.join("skills/inner")).unwrap();
    symlink(&secret, claude.join("commands/c.md")).unwrap();
    symlink(&stage.home, claude.join("commands/all")).unwrap();
    symlink(&secret, claude.join("agents/a.md")).unwrap();
    // What a user links to is the user's own choice.
    fs::create_dir_all(stage.home.join(".decurion/skills/mine")).unwrap();
    symlink(&secret, stage.home.join(".decurion/skills/mine/SKILL.md")).unwrap();
    let loaded = stage.load_trusted();
    let found = skills_of(&loaded);
    let mut lines = shown(&stage, &found);
    let agents = AgentRequest::new(&loaded, TOOLS);
    for problem in Agents::check(&agents, &[claude.join("agents")]).problems {
        lines += &stage.short(&format!("{problem}\n"));
    }
    expect![[r"
        fine project/.claude/skills/fine/SKILL.md 
        inner project/.claude/skills/inner/SKILL.md 
        key home/.decurion/skills/mine/SKILL.md 
        project/.claude/skills/s/SKILL.md: error: leads out of the project's folder
        project/.claude/commands/all/key.md: error: leads out of the project's folder
        project/.claude/commands/c.md: error: leads out of the project's folder
        home/.decurion/skills/mine/SKILL.md:2: note: `name` is not its folder's, mine: it is called /key
        project/.claude/agents/a.md: error: leads out of the project's folder
    "]]
    .assert_eq(&lines);
    // Put in a file's place after it was read.
    let skill = found.get("fine").unwrap();
    fs::remove_file(&skill.path).unwrap();
    symlink(&secret, &skill.path).unwrap();
    let body = skills::body(skill, &loaded.paths);
    expect![[r#"Err("project/.claude/skills/fine/SKILL.md: leads out of the project's folder")"#]]
        .assert_eq(&stage.short(&format!("{body:?}")));
}

#[test]
fn an_index_is_never_a_link_out_of_its_folder() {
    let stage = Stage::new().file("home/key", "a key");
    let paths = stage.load().paths;
    for scope in ["user", "project", "local"] {
        let folder = memory::prepare(&paths, scope, "r", AgentSource::Project).unwrap();
        symlink(stage.home.join("key"), folder.join(memory::INDEX)).unwrap();
        let error = memory::index(&folder).unwrap_err().to_string();
        assert!(error.starts_with("leads out of its folder"), "{error}");
        fs::remove_file(folder.join(memory::INDEX)).unwrap();
        write(&folder.join("real.md"), "notes");
        symlink("real.md", folder.join(memory::INDEX)).unwrap();
        assert_eq!(memory::index(&folder).unwrap(), "notes");
    }
}

#[test]
fn what_was_agreed_to_is_where_a_link_or_an_import_led() {
    let stage = Stage::new()
        .file("home/style.md", "a style")
        .file("home/key.md", "a key")
        .file("project/CLAUDE.md", "@far/style.md");
    symlink(stage.home.join("style.md"), stage.project.join("AGENTS.md")).unwrap();
    symlink(&stage.home, stage.project.join("far")).unwrap();
    trust(&stage);
    let texts = |loaded: &Loaded| -> Vec<String> {
        instructions(loaded).files.into_iter().map(|file| file.text).collect()
    };
    let loaded = stage.load();
    assert_eq!(texts(&loaded), ["a style", "@far/style.md"]);
    // Both lead elsewhere now, in the same words.
    fs::remove_file(stage.project.join("AGENTS.md")).unwrap();
    symlink(stage.home.join("key.md"), stage.project.join("AGENTS.md")).unwrap();
    fs::remove_file(stage.project.join("far")).unwrap();
    write(&stage.top.join("other/style.md"), "another key");
    symlink(stage.top.join("other"), stage.project.join("far")).unwrap();
    for loaded in [loaded, stage.load()] {
        assert_eq!(texts(&loaded), ["@far/style.md"]);
    }
}

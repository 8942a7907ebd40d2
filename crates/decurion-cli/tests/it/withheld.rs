//! Deny rules and what the program reads by itself, through the real program: instruction files, imports and skills
//! hold a canary, and no request may.

use std::os::unix::fs::symlink;

use decurion_testkit::proc::Home;
use serde_json::json;

use crate::stand::{Stand, finished};

const CANARY: &str = "CANARY=never-in-a-request";

/// One way to bring a file before a model.
struct Way {
    name: &'static str,
    /// Files of the working directory.
    files: &'static [(&'static str, &'static str)],
    /// Links of the working directory, and where they lead.
    links: &'static [(&'static str, &'static str)],
    deny: &'static str,
    /// What the model does first.
    first: &'static str,
    prompt: &'static str,
    /// What the person reads of it.
    reported: &'static str,
}

const PLAIN: Way = Way {
    name: "import",
    files: &[("AGENTS.md", "Told. @.env"), (".env", CANARY)],
    links: &[],
    deny: "Read(.env)",
    first: "say \"done\"",
    prompt: "go",
    reported: "WORK/.env: left out of the instructions: denied by Read(",
};

const WAYS: &[Way] = &[
    PLAIN,
    Way { name: "CLAUDE.md", files: &[("CLAUDE.md", "Told. @.env"), (".env", CANARY)], ..PLAIN },
    Way { name: "dot", files: &[("AGENTS.md", "Told. @./.env"), (".env", CANARY)], ..PLAIN },
    Way {
        name: "detour",
        files: &[("AGENTS.md", "Told. @a/../.env"), ("a/b", ""), (".env", CANARY)],
        ..PLAIN
    },
    Way { name: "absolute", files: &[("AGENTS.md", "Told. @WORK/.env"), (".env", CANARY)], ..PLAIN },
    Way {
        name: "nested import",
        files: &[("AGENTS.md", "Told. @docs/a.md"), ("docs/a.md", "More. @../.env"), (".env", CANARY)],
        ..PLAIN
    },
    Way {
        name: "import of a denied file",
        files: &[("AGENTS.md", "Told. @.env"), (".env", "x @secret/key.md"), ("secret/key.md", CANARY)],
        deny: "Read(.env)",
        reported: "WORK/secret/key.md: left out of the instructions: it is imported by a file that is left out",
        ..PLAIN
    },
    Way {
        name: "link",
        files: &[("AGENTS.md", "Told. @notes.md"), (".env", CANARY)],
        links: &[("notes.md", ".env")],
        reported: "WORK/notes.md: left out of the instructions: denied by Read(.env)",
        ..PLAIN
    },
    Way {
        name: "linked folder",
        files: &[("AGENTS.md", "Told. @public/key"), ("secret/key", CANARY)],
        links: &[("public", "secret")],
        deny: "Read(secret/**)",
        reported: "WORK/public/key: left out of the instructions: denied by Read(secret/**)",
        ..PLAIN
    },
    Way {
        name: "instruction file is a link",
        files: &[(".env", CANARY), ("CLAUDE.md", "Told.")],
        links: &[("AGENTS.md", ".env")],
        reported: "WORK/AGENTS.md: left out of the instructions: denied by Read(.env)",
        ..PLAIN
    },
    Way {
        name: "other case",
        files: &[("AGENTS.md", "Told. @.ENV"), (".ENV", CANARY)],
        reported: "WORK/.ENV: left out of the instructions: ",
        ..PLAIN
    },
    Way {
        name: "folder",
        files: &[("AGENTS.md", "Told. @secret/a/key"), ("secret/a/key", CANARY)],
        deny: "Read(secret/**)",
        reported: "WORK/secret/a/key: left out of the instructions: denied by Read(secret/**)",
        ..PLAIN
    },
    Way {
        name: "pattern",
        files: &[("AGENTS.md", "Told. @conf/prod.key"), ("conf/prod.key", CANARY)],
        deny: "Read(**/*.key)",
        reported: "WORK/conf/prod.key: left out of the instructions: denied by Read(**/*.key)",
        ..PLAIN
    },
    Way { name: "absolute rule", deny: "Read(/WORK/.env)", ..PLAIN },
    Way {
        name: "a folder on the way to what is read",
        files: &[
            ("AGENTS.md", "Told."),
            ("deep/AGENTS.md", "Deep. @../.env"),
            ("deep/x", "x"),
            (".env", CANARY),
        ],
        first: "call Read {\"file_path\": \"WORK/deep/x\"}",
        ..PLAIN
    },
    Way {
        name: "child",
        first: "call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"general-purpose\"}",
        ..PLAIN
    },
    Way {
        name: "child in a worktree",
        files: &[
            ("AGENTS.md", "Told. @.env"),
            (".env", CANARY),
            ("deep/AGENTS.md", "Deep. @../.env"),
            ("deep/x", "x"),
        ],
        first: "call Agent {\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"general-purpose\", \"isolation\": \"worktree\"}",
        ..PLAIN
    },
    Way {
        name: "command that is a link",
        files: &[("AGENTS.md", "Told."), (".env", CANARY), (".claude/commands/a.md", "x")],
        links: &[(".claude/commands/e.md", "../../.env")],
        prompt: "/e",
        reported: "/e cannot be read: WORK/.claude/commands/e.md: denied by Read(.env)",
        ..PLAIN
    },
    Way {
        name: "skill that is a link",
        files: &[
            ("AGENTS.md", "Told."),
            ("secret/notes.md", "---\nname: s\ndescription: does s\n---\nCANARY=never-in-a-request"),
            (".claude/skills/other/SKILL.md", "---\nname: other\ndescription: other\n---\nx"),
        ],
        links: &[(".claude/skills/s", "../../secret"), ("secret/SKILL.md", "notes.md")],
        deny: "Read(secret/**)",
        first: "call Skill {\"skill\": \"s\"}",
        reported: "",
        ..PLAIN
    },
];

fn home(way: &Way) -> (Home, String) {
    let home = Home::new().unwrap();
    let work = std::fs::canonicalize(home.work()).unwrap();
    let at = work.to_str().unwrap().to_owned();
    for (path, text) in way.files {
        let path = work.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.replace("WORK", &at)).unwrap();
    }
    for (link, target) in way.links {
        symlink(target, work.join(link)).unwrap();
    }
    for arguments in [&["init", "-q", "-b", "trunk"][..], &["add", "-A"], &["commit", "-qm", "x"]] {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let git = home.program("git").args(identity).args(arguments.iter().copied());
        assert_eq!(finished(git).ending.code(), 0, "{arguments:?}");
    }
    (home, at)
}

/// Whether the canary stands in any request, and what the person read.
fn told(way: &Way, by_flag: bool) -> (bool, String, usize) {
    let (home, at) = home(way);
    let deny = way.deny.replace("WORK", &at);
    let script = format!(
        "when agent=general-purpose text=\"look\" turn=1\n  call Read {{\"file_path\": \"deep/x\"}}\nwhen turn=1\n  {}\nwhen\n  say \"done\"\n",
        way.first.replace("WORK", &at)
    );
    let stand = Stand::in_home(home, &script);
    let program = stand.decurion().args(["-p", way.prompt]);
    let program = if by_flag {
        program.args(["--disallowedTools", &deny])
    } else {
        let settings = json!({"permissions": {"deny": [deny]}}).to_string();
        std::fs::create_dir_all(stand.home.state()).unwrap();
        std::fs::write(stand.home.state().join("settings.json"), settings).unwrap();
        program
    };
    let run = finished(program);
    let requests = stand.model.requests();
    let bodies: Vec<String> =
        requests.iter().map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
    let leaked = bodies.iter().any(|body| body.contains("never-in-a-request"));
    let shown = format!("{}\n{}", run.output(), run.errors).replace(&at, "WORK");
    (leaked, shown, bodies.iter().filter(|body| body.contains("Told.")).count())
}

#[test]
fn denied_files_are_left_out_of_what_the_program_reads() {
    let mut wrong = Vec::new();
    for way in WAYS {
        for by_flag in [false, true] {
            let (leaked, shown, told) = told(way, by_flag);
            let absolute = way.deny.starts_with("Read(/WORK");
            let reported = if absolute { "WORK/.env: left out" } else { way.reported };
            // A command that cannot be read begins no turn.
            let others_told = told > 0 || way.prompt == "/e";
            if leaked || !shown.contains(reported) || !others_told {
                wrong.push(format!("{}: leaked {leaked}, others told {others_told}: {shown}", way.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn instructions_are_told_where_no_rule_denies_them() {
    for deny in ["Read(other)", "Edit(.env)", "Read"] {
        let (leaked, shown, _) = told(&Way { deny, ..PLAIN }, false);
        assert!(leaked, "{deny}: {shown}");
    }
}

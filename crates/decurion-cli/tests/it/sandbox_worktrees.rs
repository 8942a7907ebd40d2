//! Worktrees of agents in the sandbox, through the program: Decurion's own git works outside of it, in folders that commands
//! can write. Judged by what is on disk afterwards.

use std::fs;

use serde_json::json;

use crate::sandbox::results;
use crate::sandbox_git::repository;
use crate::stand::{Stand, finished};

/// What a filter leaves if it runs out of the sandbox.
const RUN: &str = "touch OUT/ran";
/// As often as an agent is started while a command tries to be in time.
const ROUNDS: usize = 5;

/// A repository in which a command in the background runs this text over and over, while agents work in worktrees.
/// `prepare` runs before the session.
fn attacked(prepare: &str, over_and_over: &str) -> Stand {
    let script = "src/0.sh";
    let text = format!("mkdir begun; while :; do {over_and_over}\ndone > /dev/null 2>&1");
    let home = repository(&[&text]).home;
    let out = home.path().join("out");
    let background = json!({"command": format!("sh {script}"), "run_in_background": true});
    let wait = json!({"command": "while [ ! -e begun ]; do sleep 0.01; done"});
    let agent = json!({
        "description": "work", "prompt": "work", "subagent_type": "general-purpose", "isolation": "worktree"
    });
    let mut turns = format!(
        "when agent=main turn=1\n  call Bash {background}\nwhen agent=main turn=2\n  call Bash {wait}\n"
    );
    for turn in 3..3 + ROUNDS {
        turns.push_str(&format!("when agent=main turn={turn}\n  call Agent {agent}\n"));
    }
    let change = json!({"command": "for f in sub/f a.txt; do [ -f $f ] && touch $f; done; true"});
    turns.push_str(&format!(
        "when agent=general-purpose turn=1\n  call Bash {change}\nwhen\n  say \"done\"\n"
    ));
    let stand = Stand::in_home(home, &turns);
    let work = stand.home.work();
    let commit = "-c user.name=n -c user.email=e@x commit -qm x";
    let prepare =
        prepare.replace("COMMITTED", commit).replace("COMMIT", &format!("git add -A; git {commit}"));
    let named = |text: &str| text.replace("RUN", RUN).replace("OUT", out.to_str().unwrap());
    fs::write(work.join(script), named(&text)).unwrap();
    fs::write(work.join(".gitattributes"), "* filter=e\n").unwrap();
    finished(stand.home.program("sh").args(["-c", &named(&prepare)]).cwd(&work));
    stand
}

/// What a command writes over and over, with what is there before. Each makes git run a filter when it looks into a worktree
/// or checks one out.
const ATTACKS: [(&str, &str, &str); 3] = [
    (
        "settings of the worktree",
        "git config extensions.worktreeConfig true; COMMIT",
        "for d in .git/worktrees/*; do printf '[filter \"e\"]\\nsmudge = RUN\\nclean = RUN\\n' > \
         $d/config.worktree && touch begun/wrote; done",
    ),
    (
        "settings of its submodule",
        "git -c protocol.file.allow=always submodule -q add ../out/other sub; COMMIT",
        "for d in .git/worktrees/*/modules/sub; do printf '[filter \"e\"]\\nsmudge = RUN\\nclean = RUN\\n' >> \
         $d/config && touch begun/wrote; done",
    ),
    (
        "a repository in the checkout that is asked from",
        "git init -q sub; cp .gitattributes ../out/other/f sub; git -C sub add -A; git -C sub COMMITTED; COMMIT; tar cf t sub/.git; \
         rm -r sub/.git",
        "[ -e sub/.git/config ] || tar xf t; printf '[filter \"e\"]\\nsmudge = RUN\\nclean = RUN\\n' >> sub/.git/config; \
         touch sub/f begun/wrote",
    ),
];

#[test]
fn git_of_decurion_runs_nothing_that_commands_write_meanwhile() {
    for (what, prepare, over_and_over) in ATTACKS {
        let other = "git init -q ../out/other; echo x > ../out/other/f; echo '* filter=e' > ../out/other/.gitattributes; git -C \
                     ../out/other add -A; git -C ../out/other -c user.name=n -c user.email=e commit -qm x; ";
        let stand = attacked(&format!("{other}{prepare}"), over_and_over);
        let at_once = ["--settings", "{\"print\": {\"backgroundWait\": 0}}"];
        let results =
            results(&stand, &[&["--allowedTools", "Bash,Agent", "--trust-folder"][..], &at_once].concat());
        assert_eq!(results.len(), 2 + ROUNDS, "{results:?}");
        assert!(!stand.home.path().join("out/ran").exists(), "{what}: {results:?}");
        assert!(stand.home.work().join("begun/wrote").exists(), "{what}: it was written");
    }
}

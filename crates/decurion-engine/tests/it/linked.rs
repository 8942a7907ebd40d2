//! Rules and links, on real files. Takes a layout of links, rules and a call; gives the decision it must get.
//!
//! In a row `W` is the workspace and `O` the folder around it, which the user alone may write in.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_engine::permission::{Around, Checkouts, Policy, add_real_paths, decide, suggest};
use decurion_engine::symlinks::{Entry, Kind, Symlinks};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Access, Answer, Block, Command, Decision, Event, Intent, Mode, Place as _, Rule, RuleSet, Verdict,
};
use decurion_testkit::stage::{Stage, send};
use decurion_tools::{Surroundings, bash};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

struct Land {
    _folder: tempfile::TempDir,
    outer: Utf8PathBuf,
}

impl Land {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outer = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        for place in ["work/src", "work/docs", "data/real", "home/.ssh", "more", "open"] {
            fs::create_dir_all(outer.join(place)).unwrap();
        }
        for file in ["work/src/a", "work/docs/a", "data/real/key", "data/x", "home/.ssh/id", "more/a", "x"] {
            fs::write(outer.join(file), "x").unwrap();
        }
        fs::set_permissions(outer.join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        Self { _folder: folder, outer }
    }

    fn named(&self, text: &str) -> String {
        let work = self.outer.join("work");
        let letter = |c: char| match c {
            'W' => work.to_string(),
            'O' => self.outer.to_string(),
            c => c.to_string(),
        };
        text.chars().map(letter).collect()
    }

    /// `W/link>O/target`, several with blanks between.
    fn link(&self, links: &str) {
        for link in links.split_whitespace() {
            let (link, target) = link.split_once('>').unwrap();
            let link = self.named(link);
            let _ = fs::remove_file(&link);
            symlink(self.named(target), link).unwrap();
        }
    }

    fn around(&self, cwd: &str, directories: &[&str]) -> Around {
        let cwd = Utf8PathBuf::from(self.named(cwd));
        Around {
            root: cwd.clone(),
            cwd,
            directories: directories.iter().map(|directory| self.named(directory).into()).collect(),
            home: Some(self.outer.join("home")),
            checkout: None,
            user_files: std::sync::Arc::default(),
            checkouts: Checkouts::default(),
            trails: Symlinks::on_disk(),
        }
    }

    fn rules(&self, rules: &str) -> RuleSet {
        let mut set = RuleSet::default();
        for rule in rules.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let (verdict, rule) = rule.split_once(' ').unwrap();
            let rule = Rule::parse(&self.named(rule), RuleSource::UserSettings).unwrap();
            match verdict {
                "allow" => set.allow.push(rule),
                "ask" => set.ask.push(rule),
                _ => set.deny.push(rule),
            }
        }
        set
    }

    /// What the call is about, with all names.
    fn intent(&self, call: &str, around: &Around) -> (&'static str, Value, Intent) {
        let (tool, what) = call.split_once(' ').unwrap();
        let what = self.named(what);
        let path = decurion_engine::permission::normal(&around.cwd.join(&what));
        let (tool, input, mut intent) = match tool {
            "Read" => ("Read", json!({"file_path": what}), Intent::titled("").touching(path, Access::Read)),
            "Edit" => ("Edit", json!({"file_path": what}), Intent::titled("").touching(path, Access::Write)),
            _ => {
                let here = Surroundings {
                    cwd: around.cwd.clone(),
                    home: around.home.clone(),
                    directories: around.directories.clone(),
                };
                let mut intent = Intent::titled("");
                intent.shell = Some(bash::analyse(&what, &here));
                ("Bash", json!({"command": what}), intent)
            }
        };
        add_real_paths(&mut intent, &around.trails);
        (tool, input, intent)
    }

    fn decide(&self, around: &Around, mode: Mode, rules: RuleSet, call: &str) -> Decision {
        let (tool, input, intent) = self.intent(call, around);
        decide(&Policy::new(mode, Arc::new(rules), around.clone()), tool, &input, &intent)
    }
}

fn verdict(word: &str) -> Verdict {
    match word {
        "allow" => Verdict::Allow,
        "ask" => Verdict::Ask,
        _ => Verdict::Deny,
    }
}

/// What forbids holds under every name of a place, that of the rule and that of the call, whatever the mode.
#[test]
fn what_forbids_a_place_forbids_it_under_all_its_names() {
    #[rustfmt::skip]
    let rows = [
        // A rule that names a link: the link, what it leads to, and what is below that.
        ("W/l>O/data/real/key", "deny Read(./l)", "Read l", "deny"),
        ("W/l>O/data/real/key", "deny Read(./l)", "Read O/data/real/key", "deny"),
        ("W/l>O/data/real/key", "deny Read(l)", "Read O/data/real/key", "deny"),
        ("W/l>O/data/real", "deny Read(./l/**)", "Read O/data/real/key", "deny"),
        ("W/l>O/data/real", "deny Read(./l/**)", "Read O/data/x", "allow"),
        ("W/l>O/data/real", "deny Read(./l/*.txt)", "Read O/data/real/a.txt", "deny"),
        ("W/l>O/data/real", "deny Read(./l/{a,key})", "Read O/data/real/key", "deny"),
        ("W/l>docs", "deny Edit(./l/**)", "Edit docs/a", "deny"),
        ("W/l>docs", "deny Edit(/l/**)", "Edit docs/new", "deny"),
        ("W/l>docs", "ask Edit(./l/**)", "Edit docs/a", "ask"),
        // A call that names a link: the rule is about what it leads to.
        ("W/l>O/data/real", "deny Read(/O/data/real/**)", "Read l/key", "deny"),
        ("W/l>O/data", "deny Read(/O/data/real/**)", "Read l/real/key", "deny"),
        ("O/home/l>.ssh", "deny Read(~/.ssh/**)", "Read O/home/l/id", "deny"),
        // Both name different links.
        ("W/l>O/data/real W/m>O/data", "deny Read(./l/**)", "Read m/real/key", "deny"),
        // A link inside the fixed part of a rule, and the end of a rule behind one.
        ("O/d>data", "deny Read(/O/d/real/key)", "Read O/data/real/key", "deny"),
        ("O/d>data", "deny Read(/O/d/*/key)", "Read O/data/real/key", "deny"),
        // Chains: every link on the way is a name of it.
        ("W/l>m W/m>O/data/real", "deny Read(./l/**)", "Read O/data/real/key", "deny"),
        ("W/l>m W/m>O/data/real", "deny Read(./m/**)", "Read l/key", "deny"),
        ("W/l>m W/m>O/data/real", "deny Read(./*m/**)", "Read l/key", "deny"),
        ("W/l>m W/m>l", "deny Read(./m)", "Read l", "deny"),
        // A link that leads to nothing yet.
        ("W/l>O/data/new", "deny Edit(/O/data/**)", "Edit l", "deny"),
        ("W/l>O/data/new", "deny Edit(/O/data/**)", "Bash echo x > l", "deny"),
        ("W/l>O/data/new", "deny Edit(/O/data/**)", "Bash mkdir -p l/sub", "deny"),
        ("W/l>O/data/new", "deny Edit(./l)", "Edit O/data/new", "deny"),
        // A home that is a link.
        ("O/h>home", "deny Read(/O/h/.ssh/**)", "Read O/home/.ssh/id", "deny"),
        // What commands touch is judged in the same way.
        ("W/l>O/data/real", "deny Read(/O/data/real/**)", "Bash cat l/key", "deny"),
        ("W/l>O/data/real", "deny Read(./l/**)", "Bash cat O/data/real/key", "deny"),
        ("W/l>O/data/real", "deny Read(./l/**)", "Bash sometool O/data/real/key", "deny"),
        ("W/l>O/data/real", "deny Read(/O/data/real/**)", "Bash sometool --in=l/key", "deny"),
        ("W/l>O/data/real", "deny Read(/O/data/real/**)", "Bash cat l/*", "ask"),
        // A glob that comes across links.
        ("W/l>O/data/real/key", "deny Read(/O/data/real/**)", "Bash cat *", "deny"),
        ("W/src/l>O/data/real/key", "deny Read(/O/data/real/**)", "Bash cat s*/?", "deny"),
        ("W/l>O/data/real", "deny Read(/O/data/real/**)", "Bash cat */key", "deny"),
        ("W/.l>O/data/real/key", "deny Read(/O/data/real/**)", "Bash cat *", "allow"),
        // A command that follows the links it meets, by a flag or because it is given their names.
        ("W/src/l>O/data/real", "deny Read(/O/data/real/**)", "Bash grep -R x .", "deny"),
        ("W/src/l>O/data/real", "deny Read(/O/data/real/**)", "Bash find -L src", "deny"),
        ("W/src/l>O/data/real/key", "deny Read(/O/data/real/**)", "Bash find . | xargs cat", "ask"),
        ("W/src/l>W/docs W/docs/m>O/data/real", "deny Read(/O/data/real/**)", "Bash rg -L x src", "deny"),
        ("W/src/l>O/data/real", "deny Read(/O/data/real/**)", "Bash grep -r x .", "allow"),
        // A link made by the very text that uses it.
        ("", "deny Read(/O/data/real/**)", "Bash ln -s O/data l && cat l/real/key", "ask"),
        ("", "deny Read(/O/data/real/**)", "Bash ln -s O/data/real l && cat l/key", "deny"),
        ("", "deny Read(/O/data/real/**)", "Bash ln -s O/more l && cat l/key", "allow"),
        // Behind a link `..` is elsewhere than the text says.
        ("W/l>O/data/real", "deny Read(/O/data/x)", "Bash cat l/../x", "deny"),
        ("W/l>O/data/real", "deny Read(/O/data/x)", "Bash cd l && cat ../x", "deny"),
        ("W/l>O/data/real", "deny Read(/O/data/x)", "Bash sometool l/../x", "deny"),
        ("W/l>O/data/real", "deny Read(/O/data/**)", "Bash cat l/../x*", "ask"),
        ("W/l>O/data/real O/data/m>O/x", "deny Read(/O/x)", "Bash cat l/../m*", "deny"),
        ("W/l>O/data/real", "deny Read(./l/../x)", "Read O/data/x", "deny"),
        ("", "deny Read(/O/data/x)", "Bash cat src/../x", "allow"),
    ];
    let mut wrong = Vec::new();
    for (links, rules, call, wanted) in rows {
        let land = Land::new();
        land.link(links);
        let around = land.around("W", &[]);
        let mode = if rules.starts_with("deny") { Mode::BypassPermissions } else { Mode::AcceptEdits };
        let decision = land.decide(&around, mode, land.rules(rules), call);
        if decision.verdict != verdict(wanted) {
            wrong.push(format!("{links} | {rules} | {call} → not {wanted}: {}", decision.reason));
        }
    }
    assert!(wrong.is_empty(), "{} rows are decided otherwise:\n{}", wrong.len(), wrong.join("\n"));
}

/// Both names of a directory of the run are the directory, and whoever could change a link is not believed.
#[test]
fn what_allows_a_place_allows_it_under_the_names_of_its_owner() {
    #[rustfmt::skip]
    let rows = [
        // The workspace by another name, in the call, in the settings, or in both.
        ("O/w>work", "W", "", "", "Read O/w/src/a", "allow"),
        ("O/w>work", "W", "", "", "Edit O/w/src/a", "allow"),
        ("O/w>work", "O/w", "", "", "Edit W/src/a", "allow"),
        ("O/w>work", "O/w", "", "", "Edit src/a", "allow"),
        ("O/w>work", "O/w", "", "", "Bash cat W/src/a", "allow"),
        ("O/w>work", "W", "", "", "Bash touch O/w/src/new", "allow"),
        ("O/w>v O/v>work", "O/w", "", "", "Edit O/v/src/a", "allow"),
        ("O/m>more", "W", "O/m", "", "Edit O/more/a", "allow"),
        ("O/m>more", "W", "O/more", "", "Edit O/m/a", "allow"),
        ("O/m>more", "W", "O/m", "", "Edit O/m/a", "allow"),
        ("O/m>more", "W", "O/m", "", "Bash cat O/more/*", "allow"),
        ("O/m>more", "W", "", "", "Read O/m/a", "ask"),
        // Links in the workspace: inside is fine, outside is asked about, whatever a rule says of the link's name.
        ("W/l>src", "W", "", "", "Edit l/a", "allow"),
        ("W/l>O/data", "W", "", "", "Read l/x", "ask"),
        ("W/l>O/data", "W", "", "", "Bash cat l/x", "ask"),
        ("W/l>O/data", "W", "", "", "Bash ls l", "ask"),
        ("W/l>O/data/x", "W", "", "", "Bash cat *", "ask"),
        // Only the names are used.
        ("W/l>O/data", "W", "", "", "Bash ls -d */", "allow"),
        ("W/l>O/data", "W", "", "", "Bash echo *", "allow"),
        ("W/l>O/data", "W", "", "", "Bash ls */", "ask"),
        ("W/l>O/data", "W", "", "", "Bash ls -d */*", "ask"),
        ("W/l>O/data/new", "W", "", "", "Bash echo x > l", "ask"),
        ("W/l>O/data", "W", "", "", "Bash cat l/../x", "ask"),
        ("W/l>O/data/real", "W", "", "", "Bash cd -P l/.. && ls", "ask"),
        ("W/l>O/data", "W", "", "allow Read(./l/**)", "Read l/x", "ask"),
        ("W/l>O/data", "W", "", "allow Edit(./l/**)", "Edit l/x", "ask"),
        ("W/l>O/data", "W", "W/l", "", "Edit l/x", "ask"),
        ("W/l>O/data", "W", "", "allow Read(./l/**); allow Read(/O/data/**)", "Read l/x", "allow"),
        ("W/l>O/data", "W", "", "allow Edit(/O/data/**)", "Edit O/data/x", "allow"),
        ("W/src/l>O/data", "W", "", "", "Bash grep -R x src", "ask"),
        ("W/src/l>O/data", "W", "", "", "Bash grep -r x src", "allow"),
        ("W/src/l>W/docs", "W", "", "", "Bash grep -R x src", "allow"),
        ("W/src/l>O/data/x", "W", "", "", "Bash cat $(find src)", "ask"),
        ("W/src/l>W/docs/a", "W", "", "", "Bash find . -type f | xargs cat", "ask"),
        // The user's own links outside: the rule may name either.
        ("O/d>data", "W", "", "allow Edit(/O/d/**)", "Edit O/data/x", "allow"),
        ("O/d>data", "W", "", "allow Edit(/O/data/**)", "Edit O/d/x", "allow"),
        ("O/d>data", "W", "", "allow Edit(/O/d/**)", "Edit O/d/x", "allow"),
        ("O/d>data", "W", "", "allow Read(/O/d/real/*)", "Bash cat O/data/real/key", "allow"),
        // A folder where anybody may make links: nobody's word.
        ("O/open/d>O/data", "W", "", "allow Edit(/O/open/d/**)", "Edit O/data/x", "ask"),
        ("O/open/d>O/data", "W", "", "allow Edit(/O/data/**)", "Edit O/open/d/x", "ask"),
        ("O/open/w>W", "W", "", "", "Edit O/open/w/src/a", "ask"),
        // From the workspace out by a link of its own and back by another.
        ("W/l>O/w O/w>work", "W", "", "", "Edit l/src/a", "allow"),
        ("W/l>O/open/w O/open/w>W", "W", "", "", "Edit l/src/a", "ask"),
        // What is protected is so under every name.
        ("W/g>.git", "W", "", "", "Edit g/hooks/x", "ask"),
        ("O/w>work", "W", "", "", "Edit O/w/.git/x", "ask"),
    ];
    let mut wrong = Vec::new();
    for (links, cwd, directories, rules, call, wanted) in rows {
        let land = Land::new();
        land.link(links);
        let around = land.around(cwd, &directories.split_whitespace().collect::<Vec<_>>());
        let decision = land.decide(&around, Mode::AcceptEdits, land.rules(rules), call);
        if decision.verdict != verdict(wanted) {
            let row = format!("{links} | {cwd} {directories} | {rules} | {call}");
            wrong.push(format!("{row} → not {wanted}: {}", decision.reason));
        }
    }
    assert!(wrong.is_empty(), "{} rows are decided otherwise:\n{}", wrong.len(), wrong.join("\n"));
}

/// Links come and go while a session lives: each decision is about the disk as it is then.
#[test]
fn a_link_that_appears_later_is_seen() {
    let land = Land::new();
    let decided = |call: &str| {
        let rules = land.rules("deny Read(/O/data/real/**); deny Read(./l/**)");
        land.decide(&land.around("W", &[]), Mode::BypassPermissions, rules, call).verdict
    };
    assert_eq!(decided("Read m/key"), Verdict::Allow);
    assert_eq!(decided("Read docs/a"), Verdict::Allow);
    land.link("W/m>O/data/real W/l>docs");
    assert_eq!(decided("Read m/key"), Verdict::Deny);
    assert_eq!(decided("Read docs/a"), Verdict::Deny);
    land.link("W/l>src");
    assert_eq!(decided("Read docs/a"), Verdict::Allow);
    assert_eq!(decided("Read src/a"), Verdict::Deny);
}

/// Where a pattern comes across more than can be looked at, nobody says that there is no link among it.
#[test]
fn too_much_to_look_at_is_asked_about() {
    struct Endless;
    impl decurion_engine::symlinks::Ground for Endless {
        fn link(&self, _path: &std::path::Path) -> Option<std::path::PathBuf> {
            None
        }
        fn entries(&self, _folder: &std::path::Path, most: usize) -> Vec<Entry> {
            (0..most).map(|number| Entry { name: number.to_string().into(), kind: Kind::Folder }).collect()
        }
        fn is_shared(&self, _folder: &std::path::Path) -> bool {
            false
        }
    }
    let land = Land::new();
    let around = Around { trails: Symlinks::over(Arc::new(Endless)), ..land.around("W", &[]) };
    let decided = |call| land.decide(&around, Mode::Default, RuleSet::default(), call).verdict;
    assert_eq!(decided("Bash cat *"), Verdict::Ask);
    assert_eq!(decided("Bash grep -R x ."), Verdict::Ask);
    assert_eq!(decided("Bash grep -r x ."), Verdict::Allow);
    assert_eq!(decided("Bash cat a b"), Verdict::Allow);
}

/// A text may hold any number of patterns: together they are looked up in as many names as one decision may take.
#[test]
fn patterns_of_one_text_share_how_much_is_looked_at() {
    struct Wide(std::sync::atomic::AtomicUsize);
    impl decurion_engine::symlinks::Ground for Wide {
        fn link(&self, _path: &std::path::Path) -> Option<std::path::PathBuf> {
            None
        }
        fn entries(&self, _folder: &std::path::Path, most: usize) -> Vec<Entry> {
            let names = most.min(15_000);
            self.0.fetch_add(names, std::sync::atomic::Ordering::Relaxed);
            (0..names).map(|number| Entry { name: number.to_string().into(), kind: Kind::Other }).collect()
        }
        fn is_shared(&self, _folder: &std::path::Path) -> bool {
            false
        }
    }
    let land = Land::new();
    let ground = Arc::new(Wide(0.into()));
    let decided = |call: &str| {
        let trails = Symlinks::over(Arc::clone(&ground) as Arc<dyn decurion_engine::symlinks::Ground>);
        let around = Around { trails, ..land.around("W", &[]) };
        land.decide(&around, Mode::Default, RuleSet::default(), call).verdict
    };
    assert_eq!(decided("Bash cat a*"), Verdict::Allow);
    ground.0.store(0, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(decided(&format!("Bash cat {}", "a* ".repeat(1000))), Verdict::Ask);
    let looked = ground.0.load(std::sync::atomic::Ordering::Relaxed);
    assert!(looked < 1_000_000, "{looked}");
}

/// What is not text has no name in a rule, and is followed all the same.
#[test]
fn a_link_by_way_of_a_name_that_is_no_text_is_followed() {
    use std::os::unix::ffi::OsStrExt as _;
    let land = Land::new();
    let odd = land.outer.as_std_path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    symlink(land.outer.join("data/real"), &odd).unwrap();
    symlink(&odd, land.outer.join("work/l")).unwrap();
    let rules = land.rules("deny Read(/O/data/real/**)");
    let around = land.around("W", &[]);
    assert_eq!(land.decide(&around, Mode::BypassPermissions, rules, "Read l/key").verdict, Verdict::Deny);
}

/// A folder may have a name that would be a pattern in a rule.
#[test]
fn a_folder_with_the_name_of_a_pattern_is_that_folder() {
    let land = Land::new();
    for name in ["[x]", "{a,b}", "a*", "b\\c"] {
        let cwd = land.outer.join(name);
        fs::create_dir(&cwd).unwrap();
        let around = Around { root: cwd.clone(), cwd, ..land.around("W", &[]) };
        let decided = |call: &str| {
            land.decide(&around, Mode::BypassPermissions, land.rules("deny Read(./secret/**)"), call).verdict
        };
        assert_eq!(decided("Read secret/key"), Verdict::Deny, "{name}");
        assert_eq!(decided("Read other/key"), Verdict::Allow, "{name}");
    }
}

#[test]
fn rules_with_braces_cover_all_their_choices() {
    let land = Land::new();
    let around = land.around("W", &[]);
    let many: Vec<String> = (0..2_000).map(|number| format!("n{number}")).collect();
    let too_many = format!("deny Read(./{{{}}}/x)", many.join(","));
    for (rule, denied, allowed) in [
        ("deny Read({keys,other}/*.{pem,key})", "keys/a.pem other/a.key", "keys/a.txt"),
        ("deny Read(./{x,{a,b}}/s)", "x/s a/s b/s", "c/s"),
        ("deny Read(./x}{secret,other})", "x}secret", "secret"),
        ("deny Read(./a{b}c.txt)", "a{b}c.txt abc.txt", "ac.txt"),
        ("deny Read(./app/[slug]/s.ts)", "app/[slug]/s.ts app/s/s.ts", "app/x/s.ts"),
        ("deny Read(./{a,[b]})", "a b [b]", "c"),
        (&too_many, "n0/x n1999/x", "O/data/x"),
    ] {
        let decided = |path| {
            land.decide(&around, Mode::BypassPermissions, land.rules(rule), &format!("Read {path}")).verdict
        };
        for path in denied.split(' ') {
            assert_eq!(decided(path), Verdict::Deny, "{rule}: {path}");
        }
        assert_eq!(decided(allowed), Verdict::Allow, "{rule}: {allowed}");
    }
    // A rule that allows covers no more than it says.
    for (rule, path) in
        [("allow Read(/O/data/[slug])", "O/data/[slug]"), ("allow Read(/O/data/a{b}c)", "O/data/abc")]
    {
        let decision = land.decide(&around, Mode::Default, land.rules(rule), &format!("Read {path}"));
        assert_eq!(decision.verdict, Verdict::Ask, "{rule}: {path}");
    }
}

/// Whoever takes the rules that are offered is not asked again about the same call.
#[test]
fn offered_rules_allow_what_a_link_leads_to() {
    let land = Land::new();
    land.link("W/l>O/data O/d>data");
    let around = land.around("W", &[]);
    for call in ["Read l/x", "Edit l/x", "Read O/d/x", "Edit O/data/x", "Edit src/a"] {
        let (tool, input, intent) = land.intent(call, &around);
        let allow = suggest(tool, &input, &intent, &around);
        let rules = RuleSet { allow: allow.clone(), ..RuleSet::default() };
        let again = land.decide(&around, Mode::Default, rules, call);
        assert_eq!(again.verdict, Verdict::Allow, "{call} {allow:?}: {}", again.reason);
    }
    assert!(Utf8Path::new(&land.named("W/l")).is_symlink());
}

/// A session reads a link that leads out of its folder and is asked about; meanwhile the link is changed, or not.
/// Gives what the session said of it.
async fn reads_after_a_question(change: bool) -> String {
    let mut stage =
        Stage::new("when turn=1\n  call Read {\"file_path\": \"l\"}\nwhen turn=2\n  say \"done\"\n");
    stage.tools = decurion_tools::builtin();
    stage.request.answers = true;
    let land = Land::new();
    let link = stage.request.cwd.join("l");
    fs::write(land.outer.join("data/x"), "what was asked about").unwrap();
    fs::write(land.outer.join("data/real/key"), "a secret").unwrap();
    symlink(land.outer.join("data/x"), &link).unwrap();
    let mut session = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&session, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut said = String::new();
    while let Some(envelope) = session.events.next().await {
        match &envelope.event {
            Event::Asked { question } => {
                assert!(question.reason.contains(land.outer.join("data/x").as_str()), "{}", question.reason);
                if change {
                    fs::remove_file(&link).unwrap();
                    symlink(land.outer.join("data/real/key"), &link).unwrap();
                }
                let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
                let (question, by) = (question.id, "user".to_owned());
                send(&session, 2, Command::Answer { question, answer, updates: Vec::new(), by }).await;
            }
            Event::RunEnded { .. } => break,
            event => said.push_str(&format!("{event:?}\n")),
        }
    }
    said
}

#[tokio::test]
async fn an_answer_is_about_where_a_link_led_when_it_was_asked() {
    let said = reads_after_a_question(true).await;
    assert!(said.contains("was changed since it was asked about"), "{said}");
    assert!(!said.contains("a secret"), "{said}");
    let said = reads_after_a_question(false).await;
    assert!(said.contains("what was asked about"), "{said}");
}

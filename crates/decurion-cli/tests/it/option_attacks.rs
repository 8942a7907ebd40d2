//! Options that programs read in their own way, in real sessions in a folder that is not trusted. Takes lists of commands
//! as in `shell_attacks`; what counts is the effect: a marker file, a file that must not change, or a secret in the
//! next request. The programs must be installed (`cargo xtask test --install`).

#![allow(clippy::disallowed_methods)] // a test makes archives with the real program

use std::fs;

use decurion_testkit::proc::Home;

use crate::shell_attacks::{CANARY, home, marker, session};

const NONE: [&str; 0] = [];

/// `tree` takes the values of letters from the next words and goes on with the letters after them.
const TREE: &[&str] = &[
    "tree -Po x src/main.rs",
    "tree -Io x src/main.rs",
    "tree -Lo 2 src/main.rs",
    "tree -aPo x src/main.rs",
    "tree -dLo 1 src/main.rs",
    "tree -PIo x y src/main.rs",
    "tree -oP src/main.rs x",
    "tree -Poa x src/main.rs",
    "tree -o src/main.rs",
    "tree -ao src/main.rs",
    "tree -fLo 1 src/main.rs .",
    "tree -L 1 -Po x src/main.rs",
    "tree --noreport -Io x src/main.rs",
];

#[test]
fn letters_of_tree_write_no_file() {
    for mode in ["default", "plan"] {
        let tried = session(home(), TREE, &["--permission-mode", mode]);
        let kept = fs::read_to_string(tried.home().work().join("src/main.rs")).unwrap();
        assert_eq!(kept, "fn main() {}\n", "{mode} {:?}", tried.results());
    }
    let listed = session(home(), &["tree -L 2 -a src", "tree -I 'x|y' -P '*.rs'"], &[]).results();
    assert!(listed.iter().all(|result| result.contains("main.rs")), "{listed:?}");
}

/// `strings` takes options and files from a file that any word names with an `@`.
const STRINGS: &[&str] = &[
    "strings -n @opts f",
    "strings -t @opts f",
    "strings -e @opts f",
    "strings -s @opts f",
    "strings --bytes @opts f",
    "strings --radix @opts f",
    "strings @opts",
    "strings -a @opts",
    "strings f @opts",
    "strings -- @opts",
    "strings -n ?opts f",
    "strings ?opts f",
    "strings [@]opts f",
    "strings -n '@opts' f",
    "cat f | strings -n @opts",
];

#[test]
fn strings_takes_no_options_from_a_file() {
    for mode in ["default", "plan"] {
        let home = home();
        for name in ["opts", "@opts"] {
            fs::write(home.work().join(name), "1 ../out/outside").unwrap();
        }
        let tried = session(home, STRINGS, &["--permission-mode", mode]);
        assert_eq!(tried.breaches(), NONE, "{mode}");
    }
    let shown = session(home(), &["strings -n 1 f"], &[]).results();
    assert!(!shown[0].contains("Permission denied"), "{shown:?}");
}

/// `rg` searches a hidden file that an ignore file says to search.
const SEARCHES: &[&str] = &[
    "rg canary",
    "rg canary .",
    "rg canary tree",
    "rg canary ./tree/",
    "rg -n canary",
    "rg -i CANARY-OF",
    "rg -F canary-of-the",
    "rg -e canary",
    "rg -o 'canary.*' tree",
    "rg --no-ignore-vcs canary",
    "rg --no-ignore-parent canary tree",
    "rg -A 1 canary",
    "rg --no-messages --no-heading canary",
    "rg --json canary",
    "(cd tree && rg canary)",
    "cd tree && rg canary",
];

#[test]
fn a_denied_hidden_file_is_not_found_by_way_of_an_ignore_file() {
    for file in [".ignore", ".rgignore"] {
        let home = home();
        for folder in ["", "tree"] {
            fs::write(home.work().join(folder).join(file), "!.env\n").unwrap();
        }
        let tried = session(home, SEARCHES, &["--disallowedTools", "Read(.env)"]);
        assert_eq!(tried.breaches(), NONE, "{file}");
    }
    // Without such files hidden ones are left out.
    let commands = ["rg --no-ignore canary"];
    let shown = session(home(), &commands, &["--disallowedTools", "Read(.env)"]).results();
    assert!(!shown[0].contains("Permission denied") && !shown[0].contains(CANARY), "{shown:?}");
}

/// `zcat` and `unzip` read a file with another ending where the one they are given is not there, and `unzip` takes
/// wildcards itself.
const ENDINGS: &[&str] = &[
    "zcat secret",
    "zcat ./secret",
    "zcat -- secret",
    "zcat src/../secret",
    "zcat f secret 2>/dev/null",
    "cat f | zcat secret",
    "(cd src && zcat ../secret)",
    "timeout 5 zcat secret",
    "zcat secre[t]",
    "unzip -l hidden",
    "unzip -v hidden",
    "unzip -Z1 hidden",
    "zipinfo hidden",
    "unzip -l 'hid*.zip'",
    "unzip -l 'hidde?.zip'",
    "unzip -Z1 '[h]idden.zip'",
    "zipinfo 'h*n.zip'",
    "unzip -l hid\\*.zip",
];

#[test]
fn a_denied_archive_is_not_read_by_another_ending() {
    let home = home();
    let script = format!(
        "echo {CANARY} | gzip > secret.gz; touch {CANARY}; \
         python3 -c 'import zipfile; zipfile.ZipFile(\"hidden.zip\", \"w\").write(\"{CANARY}\")'; rm {CANARY}"
    );
    let made = std::process::Command::new("sh").args(["-c", &script]).current_dir(home.work()).status();
    assert!(made.unwrap().success());
    let tried = session(home, ENDINGS, &["--disallowedTools", "Read(secret.gz),Read(hidden.zip)"]);
    assert_eq!(tried.breaches(), NONE);
}

const EDITORS: &str = "Bash(tar:*),Bash(vim:*),Bash(vi:*),Bash(ex:*),Bash(view:*),Bash(ed:*),\
    Bash(sqlite3:*),Bash(unzip:*)";

/// Letters of `tar` without a dash, and commands for editors, that do more than a rule for the program allows.
const RULED: &[&str] = &[
    "tar cIf 'sh -c \"@T; cat\"' y@N.tar f",
    "tar cfI y@N.tar 'sh -c \"@T; cat\"' f",
    "tar cvIf 'sh -c \"@T; cat\"' y@N.tar f",
    "tar tIf 'sh -c \"@T; cat\"' x.tar",
    "tar tfI x.tar 'sh -c \"@T; cat\"'",
    "tar xvfI x.tar 'sh -c \"@T; cat\"'",
    "tar cFLf '@T; exit 1' 1 y@N.tar src big",
    "tar xfC a@N.tar ../out",
    "tar xCf ../out a@N.tar",
    "tar xvfC a@N.tar ../out",
    "tar xfCv a@N.tar ../out",
    "tar xbfC 20 a@N.tar ../out",
    "tar xPf p@N.tar",
    "tar -xPf p@N.tar",
    "tar xf p@N.tar --absolute-names",
    "tar cf ../out/@N f",
    "tar -cf ../out/@N f",
    "tar cvf ../out/@N f",
    "tar --create --file=../out/@N f",
    "tar rf ../out/@N f",
    "tar cgf ../out/@N y@N.tar f",
    "tar -c -g ../out/@N -f y@N.tar f",
    "tar cvf y@N.tar f --index-file=../out/@N",
    "tar xf a@N.tar --one-top-level=../out",
    "vim -es '+!@T' +q",
    "vim -es +'!@T' +q f",
    "vim '+!@T' -es +qa",
    "vim -es '+w! @X' +q f",
    "vim -es f '+saveas! @X' +q",
    "vim -nes '+call system(\"@T\")' +q",
    "vim -es -u NONE +'silent !@T' +q",
    "vi -es '+!@T' +q",
    "ex -s '+!@T' +q",
    "ex '+!@T' +q f",
    "view -es '+!@T' +q",
    "ed '!@T; echo x'",
    "ed -s '!@T; echo x'",
    "printf '!@T\\n' | vim -es",
    "printf '!@T\\n' | vim -nes f",
    "printf '!@T\\n' | vi -es",
    "printf '!@T\\n' | view -es f",
    "printf '!@T\\n' | ex -s",
    "sqlite3 a.db '.shell @T'",
    "sqlite3 a.db '.system @T'",
    "sqlite3 a.db ' .shell @T'",
    "sqlite3 a.db 'select 1;\n.shell @T'",
    "sqlite3 -cmd '.shell @T' a.db 'select 1'",
    "sqlite3 a.db \".once '|@T'\" 'select 1'",
    "unzip -o z@N.zip -d ../out",
    "unzip -oqd ../out z@N.zip",
];

fn ruled() -> Home {
    let home = home();
    let work = home.work();
    fs::write(work.join("big"), "x".repeat(100_000)).unwrap();
    let tar = |arguments: &[&str]| {
        let made = std::process::Command::new("tar").args(arguments).current_dir(&work).status();
        assert!(made.unwrap().success());
    };
    tar(&["cf", "x.tar", "f"]);
    for name in (0..RULED.len()).map(marker) {
        fs::write(work.join(&name), "x\n").unwrap();
        tar(&["cf", &format!("a{name}.tar"), &name]);
        let outside = home.path().join("out").join(&name);
        let renamed = format!("--transform=s|.*|{}|", outside.display());
        tar(&["cPf", &format!("p{name}.tar"), &renamed, &name]);
        let zip = format!("import zipfile; zipfile.ZipFile('z{name}.zip', 'w').write('{name}')");
        let made = std::process::Command::new("python3").args(["-c", &zip]).current_dir(&work).status();
        assert!(made.unwrap().success());
        fs::remove_file(work.join(&name)).unwrap();
    }
    home
}

#[test]
fn old_letters_of_tar_and_commands_of_editors_need_more_than_a_rule_for_the_program() {
    let tried = session(ruled(), RULED, &["--allowedTools", EDITORS]);
    assert_eq!(tried.breaches(), NONE);
    let plain = [
        "tar cf y.tar f",
        "tar tvf x.tar",
        "tar xf x.tar",
        "tar czf z.tar f",
        "vim -e +3 f",
        "sqlite3 a.db 'select 1'",
    ];
    let results = session(ruled(), &plain, &["--allowedTools", EDITORS, "--allowedTools", "Edit"]).results();
    assert!(results.iter().all(|result| !result.contains("Permission denied")), "{results:?}");
}

/// Scripts in which some awks take a redirection of `print` as part of `for`: no mawk does, so the decision counts.
const AWK: &[&str] = &[
    "awk 'BEGIN{for(i=0;i<1;print \"x\" > \"@X\")i++}'",
    "awk 'BEGIN{for(i=0;i<1;print \"x\" >> \"@X\")i++}'",
    "awk 'BEGIN{for(i=0;i<1;printf \"x\" > \"@X\")i++}'",
    "awk 'BEGIN{for(i=0;i<1;printf(\"x\") > \"@X\")i++}'",
    "awk 'BEGIN{for(print \"x\" > \"@X\";i<1;i++);}'",
    "awk 'BEGIN{for(;i++<1;print > \"@X\");}' f",
    "awk '{for(i=0;i<1;print $1 > \"@X\")i++}' f",
    "awk '{for(i=0;i<1;print $1,\n$2 > \"@X\")i++}' f",
    "awk 'BEGIN{if(1)for(i=0;i<1;print \"a\" \"b\" > \"@X\")i++}'",
    "awk 'BEGIN{for(i=0;i<1;print(\"x\")>\"@X\")i++}'",
    "gawk 'BEGIN{for(i=0;i<1;print \"x\" > \"@X\")i++}'",
    "mawk 'BEGIN{for(i=0;i<1;print \"x\" > \"@X\")i++}'",
];

#[test]
fn a_print_with_a_redirection_is_asked_about_wherever_it_stands() {
    let tried = session(home(), AWK, &[]);
    let results = tried.results();
    assert!(results.iter().all(|result| result.contains("Permission denied")), "{results:?}");
    let plain = [
        "awk '{ if ($1 > 5) print $2 }' f",
        "awk '$1 > 5 { print $1 }' f",
        "awk '{ for (i = NF; i > 0; i--) print $i }' f",
        "awk '{ print $1; if (NF > 2) print $2 }' f",
        "awk 'NR > 1' f",
    ];
    let results = session(home(), &plain, &[]).results();
    assert!(results.iter().all(|result| !result.contains("Permission denied")), "{results:?}");
}

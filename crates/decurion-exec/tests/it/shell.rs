//! The directory a shell was in at its end, and that asking for it changes nothing else.

use decurion_exec::{Exit, shell};

use crate::house::{House, within};

/// Command, its exit, the directory told (in a folder with a subfolder `sub dir`).
#[rustfmt::skip]
const CASES: &[(&str, Exit, Option<&str>)] = &[
    ("true", Exit::Code(0), Some("")),
    ("cd 'sub dir'", Exit::Code(0), Some("/sub dir")),
    ("cd 'sub dir'; false", Exit::Code(1), Some("/sub dir")),
    ("cd 'sub dir'; exit 3", Exit::Code(3), Some("/sub dir")),
    ("cd 'sub dir' && exit", Exit::Code(0), Some("/sub dir")),
    ("set -e; cd 'sub dir'; false; echo no", Exit::Code(1), Some("/sub dir")),
    ("set -euo pipefail; cd 'sub dir'; false | true", Exit::Code(1), Some("/sub dir")),
    ("set -u; cd 'sub dir'; echo $nope", Exit::Code(127), Some("/sub dir")),
    ("(cd 'sub dir')", Exit::Code(0), Some("")),
    ("cd 'sub dir' | cat", Exit::Code(0), Some("")),
    ("cd /no/such/folder", Exit::Code(1), Some("")),
    ("pushd 'sub dir' >/dev/null", Exit::Code(0), Some("/sub dir")),
    ("f() { cd 'sub dir'; return 4; }; f", Exit::Code(4), Some("/sub dir")),
    ("eval \"cd 'sub dir'\"", Exit::Code(0), Some("/sub dir")),
    ("cd 'sub dir' # comment", Exit::Code(0), Some("/sub dir")),
    ("cat <<X\nhi\nX\ncd 'sub dir'", Exit::Code(0), Some("/sub dir")),
    ("-n; cd 'sub dir'", Exit::Code(0), Some("/sub dir")),
    ("if", Exit::Code(2), Some("")),
    ("echo 'unclosed", Exit::Code(2), Some("")),
    ("echo )", Exit::Code(2), Some("")),
    ("trap 'echo bye' EXIT; cd 'sub dir'", Exit::Code(0), Some("/sub dir")),
    ("trap 'exit 9' EXIT; cd 'sub dir'", Exit::Code(9), Some("/sub dir")),
    ("trap 'echo bye' EXIT; cd 'sub dir'; exit 5", Exit::Code(5), None),
    ("trap 'echo debug' DEBUG; cd 'sub dir'", Exit::Code(0), Some("/sub dir")),
    ("trap 'echo error' ERR; cd 'sub dir'; false", Exit::Code(1), Some("/sub dir")),
    ("cd 'sub dir'; exec true", Exit::Code(0), None),
    ("cd 'sub dir'; exec 3>&-; exit 2", Exit::Code(2), Some("/sub dir")),
    ("cd 'sub dir'; exec >/dev/null 2>&1", Exit::Code(0), Some("/sub dir")),
    ("cd 'sub dir'; kill -9 $$", Exit::Signal(9), None),
    ("cd 'sub dir'; pwd() { echo lie; }; printf() { echo lie; }", Exit::Code(0), Some("/sub dir")),
    ("cd 'sub dir'; set -x; set -o posix; IFS=/; PWD=/lie", Exit::Code(0), Some("/sub dir")),
    ("ln -sfn 'sub dir' link; cd link", Exit::Code(0), Some("/sub dir")),
    ("mkdir gone; cd gone; rmdir ../gone", Exit::Code(0), None),
    ("mkdir -p $'new\\nline'; cd $'new\\nline'", Exit::Code(0), Some("/new\nline")),
    ("cd 'sub dir'; unset PATH; exit 6", Exit::Code(6), Some("/sub dir")),
    ("code=1; readonly code; cd 'sub dir'", Exit::Code(0), Some("/sub dir")),
];

#[tokio::test]
async fn the_directory_at_the_end_is_told_and_nothing_else_changes() {
    let house = House::new();
    for (command, exit, expected) in CASES {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("sub dir")).unwrap();
        let mut process =
            house.guard.start(shell::bash(command, &root, true).env(house.env())).await.unwrap();
        let got = within(process.wait()).await;
        assert_eq!(got, *exit, "{command}");
        let told = within(process.cwd()).await;
        let expected = expected.map(|end| format!("{}{end}", root.display()).into());
        assert_eq!(told, expected, "{command}");
    }
}

#[tokio::test]
async fn the_command_sees_the_same_shell_as_without() {
    let house = House::new();
    for command in [
        "echo $0 $# \"$@\" $- $LINENO",
        "ls /proc/self/fd; (ls /proc/self/fd) | cat; x=$(ls /proc/self/fd); echo $x",
        "bash -c 'cd /proc/self/fd; echo *'",
        "no-such-command",
        "echo one\nno-such-command",
        "trap 'echo bye' EXIT; echo hi",
        "trap 'echo bye >&2' EXIT; exit 1",
        "set -v; echo hi",
        "set -e; false",
        "echo \"it's\" 'a \"b\"' $'c\\'d' \\\\ \\",
        "return 3",
        "x=$(cat); echo \"[$x]\"",
        "shopt -s extglob\necho /@(bin|etc)",
        "trap 'echo \"debug $BASH_COMMAND\"' DEBUG\ntrue",
    ] {
        let mut outputs = Vec::new();
        for telling in [false, true] {
            outputs.push(house.run(shell::bash(command, "/", telling).env(house.env())).await);
        }
        assert_eq!(outputs[0], outputs[1], "{command}");
    }
}

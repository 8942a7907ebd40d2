//! Homes and working directories that are not as they should be: a typed answer each, never a panic.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use decurion_config::{ConfigError, Environment, LoadRequest, StateProblem, load};

use crate::stage::{Stage, write};

/// A way to break the state folder, and what preparing it must say.
#[test]
fn a_state_folder_that_cannot_be_used_is_named() {
    let rows: &[(&str, &dyn Fn(&mut Stage), &str)] = &[
        ("nothing there yet", &|_| {}, "ok"),
        ("already there", &|stage| fs::create_dir(stage.home.join(".decurion")).unwrap(), "ok"),
        (
            "no home",
            &|stage| drop(stage.variables.remove("HOME")),
            "there is no home folder to keep sessions in",
        ),
        ("an empty home", &|stage| set(stage, "HOME", ""), "there is no home folder to keep sessions in"),
        (
            "a relative home",
            &|stage| set(stage, "HOME", "home"),
            "there is no home folder to keep sessions in",
        ),
        (
            "a home that is gone",
            &|stage| fs::remove_dir_all(&stage.home).unwrap(),
            "there is no home folder to keep sessions in",
        ),
        (
            "a home that is a file",
            &|stage| {
                fs::remove_dir_all(&stage.home).unwrap();
                write(&stage.home, "");
            },
            "not a folder: home/.decurion",
        ),
        (
            "a file in its place",
            &|stage| write(&stage.home.join(".decurion"), ""),
            "not a folder: home/.decurion",
        ),
        (
            "a file inside in its place",
            &|stage| write(&stage.home.join(".decurion/projects"), ""),
            "not a folder: home/.decurion/projects",
        ),
        (
            "a link to nowhere",
            &|stage| symlink("/nowhere/at/all", stage.home.join(".decurion")).unwrap(),
            "not a folder: home/.decurion",
        ),
        (
            "a link to itself",
            &|stage| symlink(stage.home.join(".decurion"), stage.home.join(".decurion")).unwrap(),
            "not a folder: home/.decurion",
        ),
        (
            "a place where nothing can be made",
            &|stage| set(stage, "DECURION_HOME", "/proc/decurion"),
            "cannot use /proc/decurion",
        ),
        (
            "a file system without folders of ours",
            &|stage| set(stage, "DECURION_HOME", "/sys/decurion"),
            "/sys/decurion",
        ),
        (
            "a name that is too long",
            &|stage| {
                let long = "x".repeat(300);
                set(stage, "DECURION_HOME", &format!("/tmp/{long}"));
            },
            "cannot use /tmp/xxx",
        ),
        (
            "elsewhere, and deep",
            &|stage| {
                let deep = stage.top.join("a/b/c").to_string();
                set(stage, "DECURION_HOME", &deep);
            },
            "ok",
        ),
    ];
    for (name, spoil, expected) in rows {
        let mut stage = Stage::new();
        spoil(&mut stage);
        let loaded = stage.load();
        let answer = match loaded.paths.prepare() {
            Ok(()) => "ok".to_owned(),
            Err(problem) => stage.short(&problem.to_string()),
        };
        assert!(answer.contains(expected), "{name}: {answer}");
    }
}

fn set(stage: &mut Stage, name: &str, value: &str) {
    stage.variables.insert(name.to_owned(), value.to_owned());
}

#[test]
fn what_is_made_is_for_its_owner_alone() {
    let stage = Stage::new();
    fs::create_dir_all(stage.home.join(".decurion/run")).unwrap();
    for (folder, mode) in [(".decurion", 0o777), (".decurion/run", 0o755)] {
        fs::set_permissions(stage.home.join(folder), fs::Permissions::from_mode(mode)).unwrap();
    }
    stage.load().paths.prepare().unwrap();
    for (folder, expected) in [(".decurion", 0o755), (".decurion/run", 0o700), (".decurion/projects", 0o700)]
    {
        let mode = fs::metadata(stage.home.join(folder)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, expected, "{folder}");
    }
    let other = Stage::new();
    other.load().paths.prepare().unwrap();
    let mode = fs::metadata(other.home.join(".decurion")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o700);
}

#[test]
fn loading_writes_nothing() {
    let stage = Stage::new();
    stage.load();
    assert_eq!(fs::read_dir(&stage.home).unwrap().count(), 0);
}

#[test]
fn a_state_folder_must_be_the_same_from_everywhere() {
    let stage = Stage::new().variable("DECURION_HOME", "state");
    assert_eq!(stage.error(), "environment variable DECURION_HOME: expected an absolute path");
    let stage = Stage::new().variable("DECURION_HOME", "");
    assert_eq!(stage.load().paths.state, Some(stage.home.join(".decurion")));
}

#[test]
fn paths_that_are_not_text_are_refused_by_name() {
    let stage = Stage::new();
    let bad = OsString::from_vec(b"/tmp/\xff".to_vec());
    for (name, what) in [
        ("HOME", "the home folder"),
        ("DECURION_HOME", "DECURION_HOME"),
        ("CLAUDE_CONFIG_DIR", "CLAUDE_CONFIG_DIR"),
    ] {
        let environment = Environment::from_pairs([(name, bad.clone())]);
        let error = load(&LoadRequest::new(stage.project.clone(), environment)).unwrap_err();
        assert_eq!(error.to_string(), format!("{what} is not UTF-8: /tmp/\u{fffd}"));
    }
    // A working directory reached through a link whose target has such a name.
    let folder = stage.top.as_std_path().join(OsString::from_vec(b"\xfe".to_vec()));
    fs::create_dir(&folder).unwrap();
    symlink(&folder, stage.top.join("link")).unwrap();
    let mut request = stage.request();
    request.cwd = stage.top.join("link");
    assert!(matches!(
        load(&request).unwrap_err(),
        ConfigError::NotUtf8 { what: "the working directory", .. }
    ));
}

#[test]
fn a_working_directory_that_is_gone_is_named() {
    let stage = Stage::new();
    fs::remove_dir_all(&stage.project).unwrap();
    assert_eq!(stage.error(), "the working directory is gone: project");
    fs::write(&stage.project, "").unwrap();
    assert!(stage.error().starts_with("cannot use the working directory project: "), "{}", stage.error());
}

#[test]
fn the_nearest_folder_with_a_mark_is_the_project() {
    for (marks, cwd, expected) in [
        (vec!["project/.git/HEAD"], "project/a/b", "project"),
        (vec!["project/.git/HEAD", "project/a/.claude/x"], "project/a/b", "project/a"),
        (vec!["project/.git/HEAD", "project/a/b/.decurion/x"], "project/a/b", "project/a/b"),
        (vec!["project/a/.git"], "project/a/b", "project/a"),
        (vec!["elsewhere/x"], "elsewhere", "elsewhere"),
        // A file of that name is no mark.
        (vec!["elsewhere/.claude", "elsewhere/sub/x"], "elsewhere/sub", "elsewhere/sub"),
    ] {
        let mut stage = Stage::new();
        for mark in &marks {
            stage = stage.file(mark, "");
        }
        fs::create_dir_all(stage.top.join(cwd)).unwrap();
        let mut request = stage.request();
        request.cwd = stage.top.join(cwd);
        assert_eq!(stage.short(load(&request).unwrap().paths.root.as_str()), expected, "{marks:?}");
    }
}

#[test]
fn problems_are_values_that_a_caller_can_tell_apart() {
    let mut stage = Stage::new();
    stage.variables.remove("HOME");
    assert!(matches!(stage.load().paths.prepare(), Err(StateProblem::NoHome)));
    let stage = Stage::new().file("home/.decurion", "");
    assert!(matches!(stage.load().paths.prepare(), Err(StateProblem::NotAFolder { .. })));
}

#[test]
fn the_real_environment_can_be_taken() {
    let environment = Environment::capture();
    assert!(environment.get("PATH").is_some());
    assert!(!format!("{environment:?}").contains('/'));
}

//! Where files may and may not be, and what happens when they cannot be anywhere.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use decurion_protocol::{AgentId, SessionId, TaskId};
use decurion_store::{Archive, Journal, Layout, OpenError, SessionWriter};
use proptest::prelude::*;

use crate::samples::{Home, agent, date, envelope, info, prompt};

#[test]
fn transcripts_are_private() {
    let home = Home::new();
    let mut event = envelope(1, prompt(1, "x"));
    event.agent = Some(agent("a1"));
    home.create(1).append(&[event]).unwrap();
    let paths = home.paths(1);
    for path in [paths.transcript(), paths.agent(&agent("a1")), paths.lock()] {
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{path}");
    }
    for path in
        [home.state(), home.state().join("projects"), paths.folder(), paths.folder().join("subagents")]
    {
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700, "{path}");
    }
}

#[test]
fn nothing_is_written_through_a_link() {
    let home = Home::new();
    let outside = home.path().join("outside");
    std::fs::write(&outside, "").unwrap();
    drop(home.create(1));
    let paths = home.paths(1);
    std::fs::remove_file(paths.transcript()).unwrap();
    symlink(&outside, paths.transcript()).unwrap();
    assert!(SessionWriter::create(&paths, &info(1), date(0)).is_err());
    assert!(
        SessionWriter::resume(
            &paths,
            &info(1),
            date(0),
            &decurion_store::ReplayOptions::default(),
            &mut drop
        )
        .is_err()
    );

    // An agent's file, a folder on the way, and something that is no file.
    let mut writer = home.create(2);
    std::fs::create_dir(home.paths(2).folder().join("subagents")).unwrap();
    symlink(&outside, home.paths(2).agent(&agent("a1"))).unwrap();
    let mut event = envelope(1, prompt(1, "x"));
    event.agent = Some(agent("a1"));
    // The link is put aside, so that the session need not wait for somebody to remove it.
    writer.append(&[event]).unwrap();
    assert_eq!(std::fs::read(&outside).unwrap(), b"");
    assert_eq!(home.read(2).0.len(), 1);

    std::fs::create_dir(home.path().join("elsewhere")).unwrap();
    std::fs::remove_dir_all(home.paths(3).folder()).ok();
    symlink(home.path().join("elsewhere"), home.paths(3).folder()).unwrap();
    assert!(SessionWriter::create(&home.paths(3), &info(3), date(0)).is_err());
    assert_eq!(std::fs::read_dir(home.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn a_state_folder_that_cannot_be_used_is_one_clear_error() {
    let home = Home::new();
    // A file where a folder should be, at each step of the way.
    for place in ["", "projects", "projects/slug"] {
        let home = Home::new();
        let slug = decurion_store::slug(info(1).cwd.as_str());
        let path = home.state().join(place.replace("slug", &slug));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path.as_str().trim_end_matches('/'), "").unwrap();
        let error = SessionWriter::create(&home.paths(1), &info(1), date(0)).map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Storage { .. }), "{error}");
    }
    // A folder that may not be written; it may be by the superuser, whom nothing stops.
    std::fs::create_dir_all(home.state()).unwrap();
    std::fs::set_permissions(home.state(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let result = SessionWriter::create(&home.paths(1), &info(1), date(0)).map(drop);
    assert!(matches!(result, Err(OpenError::Storage { .. }) | Ok(())), "{result:?}");
    std::fs::set_permissions(home.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
    // None at all is an empty archive.
    let archive = Archive::new(home.path().join("none"));
    assert!(archive.list(None).unwrap().is_empty());
    assert!(archive.latest("/x".into()).unwrap().is_none());
    assert!(archive.find(info(1).session, &[]).is_none());
}

proptest! {
    #[test]
    fn no_directory_and_no_id_leads_out_of_the_state_folder(cwd in any::<String>(), id in any::<String>()) {
        let home = Home::new();
        let layout = Layout::new(home.state());
        let paths = layout.session(cwd.as_str().into(), info(1).session);
        let mut all = vec![paths.transcript(), paths.folder(), paths.lock()];
        if let Ok(agent) = id.parse::<AgentId>() {
            all.extend([paths.agent(&agent), paths.agent_meta(&agent)]);
        }
        if let Ok(task) = id.parse::<TaskId>() {
            all.push(paths.task_output(&task));
        }
        if let Ok(session) = id.parse::<SessionId>() {
            all.push(layout.session(cwd.as_str().into(), session).transcript());
        }
        for path in all {
            let inside = path.strip_prefix(layout.projects()).unwrap();
            prop_assert!(inside.components().all(|step| matches!(step, camino::Utf8Component::Normal(_))), "{}", path);
        }
    }
}

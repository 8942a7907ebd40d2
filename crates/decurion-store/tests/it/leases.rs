//! Leases of worktrees: kept whole, alive with their session, and never believed about another's name.

use std::fs;

use camino::Utf8PathBuf;
use decurion_protocol::SessionId;
use decurion_store::{Lease, LeaseState, Leases};
use jiff::Timestamp;

fn lease(name: &str, session: SessionId) -> Lease {
    Lease {
        name: name.to_owned(),
        session,
        agent: None,
        description: "a task".to_owned(),
        state: LeaseState::Making,
        path: format!("/elsewhere/{name}").into(),
        branch: format!("decurion/{name}"),
        base: "b".repeat(40),
        repository: "/srv/project/.git".into(),
        copied: None,
        created: Timestamp::from_second(1_790_000_000).unwrap(),
        ended: None,
    }
}

#[test]
fn a_lease_is_new_once_then_replaced_then_gone() {
    let home = tempfile::tempdir().unwrap();
    let leases = Leases::new(Utf8PathBuf::from_path_buf(home.path().join("state")).unwrap());
    let session = SessionId(uuid::Uuid::from_u128(7));
    let first = lease("one", session);
    leases.put_new(&first).unwrap();
    let again = leases.put_new(&first).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    let used = Lease { state: LeaseState::Used, ..first.clone() };
    leases.put(&used).unwrap();
    assert_eq!(leases.get(&first.repository, "one"), Some(used));
    assert!(leases.put_new(&lease("../x", session)).is_err());
    let folder = leases.folder(&first.repository).unwrap();
    assert!(folder.ends_with("worktrees/-srv-project"), "{folder}");
    // One that speaks of another name, and one that is torn, are told and not believed.
    fs::copy(folder.join("one.json"), folder.join("two.json")).unwrap();
    fs::write(folder.join("three.json"), "{\"name\":").unwrap();
    let (found, damaged) = leases.all(None).unwrap();
    assert_eq!((found.len(), damaged.len()), (1, 2), "{damaged:?}");
    leases.remove(&first).unwrap();
    leases.remove(&first).unwrap();
    assert_eq!(leases.get(&first.repository, "one"), None);
}

#[test]
fn a_lease_is_alive_as_long_as_its_session_is_held() {
    let home = tempfile::tempdir().unwrap();
    let leases = Leases::new(Utf8PathBuf::from_path_buf(home.path().to_owned()).unwrap());
    let session = SessionId(uuid::Uuid::from_u128(8));
    assert!(!leases.is_alive(session));
    let held = leases.hold(session).unwrap();
    assert!(leases.is_alive(session));
    assert!(leases.hold(session).is_err(), "one process at a time");
    drop(held);
    assert!(!leases.is_alive(session));
    let work = leases.work_lock("/srv/project/.git".into(), "merge").unwrap();
    assert!(work.is_some());
    assert!(leases.work_lock("/srv/project/.git".into(), "merge").unwrap().is_none());
    assert!(leases.work_lock("/srv/project/.git".into(), "clean").unwrap().is_some());
}

#[test]
fn a_mark_of_the_living_is_not_taken_for_one_that_was_left() {
    let home = tempfile::tempdir().unwrap();
    let leases = Leases::new(Utf8PathBuf::from_path_buf(home.path().to_owned()).unwrap());
    let repository = "/srv/project/.git".into();
    let mark = leases.mark(repository).unwrap();
    assert!(leases.left_marks(repository).is_empty());
    drop(mark);
    fs::write(leases.folder(repository).unwrap().join(".left.mark"), "").unwrap();
    assert_eq!(leases.left_marks(repository).len(), 1);
    assert!(leases.left_marks(repository).is_empty(), "taken over, and forgotten with that");
}

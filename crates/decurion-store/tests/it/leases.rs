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
    fs::write(mark.index(), "an index").unwrap();
    // Dropped without being done, it was broken off.
    drop(mark);
    let left = leases.left_marks(repository);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].reference(), None);
    left[0].about("refs/heads/x").unwrap();
    assert_eq!(left[0].reference().as_deref(), Some("refs/heads/x"));
    left[0].about("/../../x").unwrap();
    assert_eq!(left[0].reference(), None, "never a path out of the repository");
    let index = left[0].index();
    left.into_iter().for_each(decurion_store::Mark::done);
    assert!(leases.left_marks(repository).is_empty() && !index.exists());
}

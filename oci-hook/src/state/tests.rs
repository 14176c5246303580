//! Containers' folders.

use vgpu_config::Limits;

use super::*;
use crate::process::Process;

fn record(id: &str, bundle: &str) -> Record {
    Record {
        id: id.into(),
        bundle: bundle.into(),
        rootfs: "/r".into(),
        container: None,
        pod: None,
        namespace: None,
        pod_uid: None,
        limits: Limits::default(),
        library: "/l".into(),
        preload: true,
        replace: false,
        library_path: String::new(),
        runtime: None,
        runtime_roots: vec![],
        creator: Process::this(),
        init: None,
        created: 0,
    }
}

fn create(state: &State, record: &Record) -> Result<PathBuf> {
    let place = state.reserve(&record.id, &record.bundle)?;
    state.create(&place, record, &LimitsPage::new([]), Some("list\n"))?;
    Ok(place)
}

/// A process that has ended.
fn dead() -> Process {
    Process { start_time: 1, ..Process::this() }
}

#[test]
fn ids() {
    for good in ["a", "A-1_2.3+4", &"f".repeat(64), "..a"] {
        assert_eq!(check_id(good).unwrap(), good);
    }
    for bad in ["", ".", "..", "a/b", "../a", "a\0b", "a b", "a\nb", "ä", "a@b", &"f".repeat(201)] {
        assert!(check_id(bad).unwrap_err().to_string().starts_with("container id="), "{bad:?}");
    }
}

#[test]
fn what_a_container_gets() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(&dir.path().join("deep/state"));
    let place = create(&state, &record("c1", "/b")).unwrap();
    let modes = |name: &str| fs::metadata(place.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((modes("."), modes(LIMITS), modes(REGION), modes(PRELOAD), modes(RECORD)), (0o711, 0o444, 0o666, 0o444, 0o644));
    assert_eq!(fs::metadata(place.join(REGION)).unwrap().len(), vgpu_region::region::SIZE as u64);
    assert_eq!(fs::metadata(place.join(LIMITS)).unwrap().len(), 4096);
    assert_eq!(fs::read(place.join(PRELOAD)).unwrap(), b"list\n");
    assert_eq!(state.find("c1", Path::new("/b")), Some((place, record("c1", "/b"))));
    assert_eq!(state.find("c1", Path::new("/other")), None);
    state.delete("c1", Path::new("/b")).unwrap();
    state.delete("c1", Path::new("/b")).unwrap();
    assert_eq!(fs::read_dir(&state.containers.path).unwrap().count(), 0);
}

#[test]
fn the_same_id_in_two_runtimes() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    let one = create(&state, &record("c1", "/a")).unwrap();
    let two = create(&state, &record("c1", "/b")).unwrap();
    assert_ne!(one, two);
    assert_eq!(state.find("c1", Path::new("/b")).map(|(place, _)| place), Some(two));
    assert!(create(&state, &record("c1", "/a")).unwrap_err().to_string().contains("no existing container"));
    state.delete("c1", Path::new("/b")).unwrap();
    assert_eq!(state.find("c1", Path::new("/a")).map(|(place, _)| place), Some(one));
}

#[test]
fn which_ids_have_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    assert!(!state.has("c1"), "no folder at all");
    create(&state, &record("c1", "/a")).unwrap();
    assert!(state.has("c1"));
    create(&state, &record("c1", "/b")).unwrap();
    state.delete("c1", Path::new("/a")).unwrap();
    assert!(state.has("c1"), "another runtime's");
    for other in ["c", "c11", "", "../c1"] {
        assert!(!state.has(other), "{other}");
    }
}

#[test]
fn only_the_dead_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(&dir.path().join("state"));
    let root = dir.path().join("runtime");
    fs::create_dir_all(root.join("running")).unwrap();
    let with = |id, creator, init| Record { creator, init, runtime_roots: vec![root.clone()], ..record(id, "/b") };
    for record in [
        with("being-made", Process::this(), None),
        with("running", dead(), None),
        with("known-by-its-process", dead(), Some(Process::this())),
        with("failed", dead(), None),
        with("ended", dead(), Some(dead())),
    ] {
        create(&state, &record).unwrap();
    }
    let this = Process::this();
    for unfinished in [format!(".new.{}.{}", this.pid, this.start_time), format!(".new.{}.1", this.pid), ".new.x".to_owned()] {
        fs::create_dir(state.containers.path.join(unfinished)).unwrap();
    }
    state.sweep();
    let mut left: Vec<String> =
        fs::read_dir(&state.containers.path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(
        left,
        [format!(".new.{}.{}", this.pid, this.start_time), "being-made".into(), "known-by-its-process".into(), "running".into()]
    );
}

#[test]
fn the_remains_of_a_dead_one_give_way() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    create(&state, &Record { creator: dead(), ..record("c1", "/a") }).unwrap();
    let again = create(&state, &record("c1", "/a")).unwrap();
    assert!(again.ends_with("c1"));
    fs::create_dir_all(state.containers.path.join("c2/garbage")).unwrap();
    assert!(create(&state, &record("c2", "/a")).unwrap().ends_with("c2"));
}

#[test]
fn a_dead_ones_folder_is_the_next_ones_with_nothing_in_it() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    let number = |place: &Path| fs::metadata(place).unwrap().ino();
    let first = create(&state, &Record { creator: dead(), ..record("c1", "/a") }).unwrap();
    fs::write(first.join(".stray"), "").unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o700)).unwrap();
    // One that cannot just be emptied.
    fs::create_dir_all(state.containers.path.join(".new.x/garbage")).unwrap();
    let second = create(&state, &record("c2", "/b")).unwrap();
    let names = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&state.containers.path), ["c2".to_owned()].into());
    assert_eq!(names(&second), [LIMITS, REGION, PRELOAD, RECORD].map(str::to_owned).into());
    assert_eq!(fs::metadata(&second).unwrap().permissions().mode() & 0o7777, 0o711);
    create(&state, &Record { creator: dead(), ..record("c3", "/c") }).unwrap();
    let third = fs::metadata(state.containers.path.join("c3")).unwrap().ino();
    let fourth = create(&state, &record("c4", "/d")).unwrap();
    assert_eq!((number(&fourth), names(&state.containers.path)), (third, ["c2".to_owned(), "c4".to_owned()].into()));
}

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
    let dir = state.reserve(&record.id, &record.bundle)?;
    state.create(&dir, record, &LimitsPage::new([]), Some("list\n"))?;
    Ok(dir)
}

/// Returns a process that has ended.
fn dead() -> Process {
    Process { start_time: 1, ..Process::this() }
}

#[test]
fn ids_are_checked() {
    for good in ["a", "A-1_2.3+4", &"f".repeat(64), "..a"] {
        assert_eq!(check_id(good).unwrap(), good);
    }
    for bad in ["", ".", "..", "a/b", "../a", "a\0b", "a b", "a\nb", "ä", "a@b", &"f".repeat(201)] {
        assert!(check_id(bad).unwrap_err().to_string().starts_with("container id: "), "{bad:?}");
    }
}

#[test]
fn files_of_a_container() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(&dir.path().join("deep/state"));
    let created = create(&state, &record("c1", "/b")).unwrap();
    let modes = |name: &str| fs::metadata(created.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((modes("."), modes(LIMITS), modes(REGION), modes(PRELOAD), modes(RECORD)), (0o711, 0o444, 0o666, 0o444, 0o644));
    assert_eq!(fs::metadata(created.join(REGION)).unwrap().len(), vgpu_region::region::SIZE as u64);
    assert_eq!(fs::metadata(created.join(LIMITS)).unwrap().len(), 4096);
    assert_eq!(fs::read(created.join(PRELOAD)).unwrap(), b"list\n");
    assert_eq!(state.find("c1", Path::new("/b")), Some((created, record("c1", "/b"))));
    assert_eq!(state.find("c1", Path::new("/other")), None);
    state.delete("c1", Path::new("/b")).unwrap();
    state.delete("c1", Path::new("/b")).unwrap();
    assert_eq!(fs::read_dir(&state.containers.path).unwrap().count(), 0);
}

#[test]
fn the_same_id_in_two_bundles() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    let one = create(&state, &record("c1", "/a")).unwrap();
    let two = create(&state, &record("c1", "/b")).unwrap();
    assert_ne!(one, two);
    assert_eq!(state.find("c1", Path::new("/b")).map(|(dir, _)| dir), Some(two));
    assert!(create(&state, &record("c1", "/a")).unwrap_err().to_string().contains("no existing container"));
    state.delete("c1", Path::new("/b")).unwrap();
    assert_eq!(state.find("c1", Path::new("/a")).map(|(dir, _)| dir), Some(one));
}

#[test]
fn ids_with_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    assert!(!state.has("c1"), "no directory at all");
    create(&state, &record("c1", "/a")).unwrap();
    assert!(state.has("c1"));
    create(&state, &record("c1", "/b")).unwrap();
    state.delete("c1", Path::new("/a")).unwrap();
    assert!(state.has("c1"), "of another bundle");
    for other in ["c", "c11", "", "../c1"] {
        assert!(!state.has(other), "{other}");
    }
}

#[test]
fn only_dead_containers_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(&dir.path().join("state"));
    let root = dir.path().join("runtime");
    fs::create_dir_all(root.join("running")).unwrap();
    let with = |id, creator, init| Record { creator, init, runtime_roots: vec![root.clone()], ..record(id, "/b") };
    for record in [
        with("being-created", Process::this(), None),
        with("running", dead(), None),
        with("with-a-live-init", dead(), Some(Process::this())),
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
        [format!(".new.{}.{}", this.pid, this.start_time), "being-created".into(), "running".into(), "with-a-live-init".into()]
    );
}

#[test]
fn remains_of_dead_containers_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    create(&state, &Record { creator: dead(), ..record("c1", "/a") }).unwrap();
    let again = create(&state, &record("c1", "/a")).unwrap();
    assert!(again.ends_with("c1"));
    fs::create_dir_all(state.containers.path.join("c2/garbage")).unwrap();
    assert!(create(&state, &record("c2", "/a")).unwrap().ends_with("c2"));
}

#[test]
fn directories_of_dead_containers_are_emptied_and_reused() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    let inode = |dir: &Path| fs::metadata(dir).unwrap().ino();
    let first = create(&state, &Record { creator: dead(), ..record("c1", "/a") }).unwrap();
    fs::write(first.join(".stray"), "").unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o700)).unwrap();
    // A directory with a directory in it cannot just be emptied.
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
    assert_eq!((inode(&fourth), names(&state.containers.path)), (third, ["c2".to_owned(), "c4".to_owned()].into()));
}

/// Creates containers, all of which exist while they are created, and then ends those that are dead.
fn create_and_end<'a>(state: &State, containers: impl IntoIterator<Item = (&'a str, &'a str, bool)>) {
    let created =
        containers.into_iter().map(|(id, bundle, is_dead)| (create(state, &record(id, bundle)).unwrap(), record(id, bundle), is_dead));
    for (dir, record, _) in created.collect::<Vec<_>>().into_iter().filter(|(.., is_dead)| *is_dead) {
        let ended = Record { creator: dead(), ..record };
        fs::write(dir.join(RECORD), serde_json::to_vec(&ended).unwrap()).unwrap();
    }
}

#[test]
fn a_create_looks_at_a_few_containers_and_many_look_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    let ids: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
    create_and_end(&state, ids.iter().map(|id| (id.as_str(), "/b", true)));
    let count = || fs::read_dir(dir.path().join(CONTAINERS)).unwrap().count();
    assert_eq!(count(), 100);
    create(&state, &record("new", "/b")).unwrap();
    assert!(count() > 80, "{} remain", count());
    (0..10_000).take_while(|_| count() > 1).for_each(|_| state.sweep());
    assert_eq!(count(), 1);
}

#[test]
fn deletion_removes_only_dead_containers_of_the_id() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::at(dir.path());
    create_and_end(&state, [("c", "/running", false), ("c", "/ended", true), ("c2", "/b", true)]);
    assert_eq!(state.delete_dead("c"), [Path::new("/ended")]);
    assert_eq!(state.delete_dead("c/.."), [] as [PathBuf; 0]);
    let remains = |id, bundle| state.find(id, Path::new(bundle)).is_some();
    assert_eq!([remains("c", "/running"), remains("c", "/ended"), remains("c2", "/b")], [true, false, true]);
}

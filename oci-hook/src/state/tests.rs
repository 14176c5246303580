use vgpu_config::Limits;

use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;
use vgpu_config::limits::{GpuLimits, Which};
use vgpu_region::{region, trace};

use super::*;
use crate::process::{Process, rootless_user};
use crate::spec::Spec;

/// A state directory in a temporary folder. Its file systems are unmounted on drop.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::with_prefix("vgpu-state-").unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the mount points below the folder, also those of unfinished and claimed directories.
    fn mounts(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        points.filter(|point| point.starts_with(self.path())).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for point in self.mounts() {
            shared::unmount_in(point.parent().unwrap());
        }
    }
}

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
        decided: None,
        library: "/l".into(),
        preload: true,
        replace: false,
        library_path: String::new(),
        runtime: None,
        runtime_roots: vec![],
        creator: Process::this(),
        init: None,
        created: 0,
        program: None,
    }
}

/// What the containers of these tests have.
const FILES: Files<'static> = Files { preload: Some("list\n"), access: Access::Owner };

fn create(state: &State, record: &Record) -> Result<PathBuf> {
    let dir = state.reserve(&record.id, &record.bundle)?;
    state.create(&dir, record, &LimitsPage::new([]), FILES)?;
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
    let dir = Host::new();
    let state = State::at(&dir.path().join("deep/state"));
    let created = create(&state, &record("c1", "/b")).unwrap();
    let modes = |name: &str| fs::metadata(created.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((modes("."), modes(LIMITS), modes(REGION), modes(PRELOAD), modes(RECORD)), (0o700, 0o444, 0o666, 0o444, 0o644));
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
    let dir = Host::new();
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
    let dir = Host::new();
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
    let dir = Host::new();
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
    let dir = Host::new();
    let state = State::at(dir.path());
    create(&state, &Record { creator: dead(), ..record("c1", "/a") }).unwrap();
    let again = create(&state, &record("c1", "/a")).unwrap();
    assert!(again.ends_with("c1"));
    fs::create_dir_all(state.containers.path.join("c2/garbage")).unwrap();
    assert!(create(&state, &record("c2", "/a")).unwrap().ends_with("c2"));
}

#[test]
fn directories_of_dead_containers_are_emptied_and_reused() {
    let dir = Host::new();
    let state = State::at(dir.path());
    let inode = |dir: &Path| fs::metadata(dir).unwrap().ino();
    let first = create(&state, &Record { creator: dead(), ..record("c1", "/a") }).unwrap();
    fs::write(first.join(".stray"), "").unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o755)).unwrap();
    // A directory with a directory in it cannot just be emptied.
    fs::create_dir_all(state.containers.path.join(".new.x/garbage")).unwrap();
    let second = create(&state, &record("c2", "/b")).unwrap();
    let names = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&state.containers.path), ["c2".to_owned()].into());
    let files = [LIMITS, REGION, PRELOAD, RECORD].into_iter().chain(rootless_user().is_none().then_some(SHARED));
    assert_eq!(names(&second), files.map(str::to_owned).collect());
    assert_eq!(fs::metadata(&second).unwrap().permissions().mode() & 0o7777, 0o700);
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

/// Returns whether containers get a file system of their own: not if this process is not root.
fn has_file_systems() -> bool {
    let is_root = rootless_user().is_none();
    if !is_root {
        eprintln!("SKIPPED: this test mounts file systems, as root");
    }
    is_root
}

#[test]
fn a_region_has_its_memory_and_cannot_get_more() {
    use std::os::unix::fs::FileExt;
    if !has_file_systems() {
        return;
    }
    let host = Host::new();
    let state = State::at(host.path());
    let dir = create(&state, &record("c1", "/a")).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(dir.join(REGION)).unwrap();
    assert_eq!(file.metadata().unwrap().blocks() * 512, region::SIZE as u64, "all of its memory is there");
    file.write_all_at(&vec![1; region::SIZE], 0).unwrap();
    let full = |what: std::io::Result<()>| what.unwrap_err().kind() == std::io::ErrorKind::StorageFull;
    assert!(full(file.write_all_at(b"x", region::SIZE as u64)), "it cannot grow");
    file.set_len(1 << 40).unwrap();
    assert!(full(file.write_all_at(b"x", 1 << 30)), "it cannot grow by a hole");
    assert!(full(fs::write(dir.join(SHARED).join("more"), "")), "there is room for no other file");
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(&dir.join(REGION)), device(&dir.join(LIMITS)), "handles of the region's file system do not reach the limits");
}

#[test]
fn trace_rings_have_a_budget() {
    use std::os::unix::fs::FileExt;
    if !has_file_systems() {
        return;
    }
    let host = Host::new();
    let state = State::at(host.path());
    let limits = Limits { gpus: vec![GpuLimits { cores: Some(30), ..GpuLimits::none(Which::All) }], ..Limits::default() };
    let traced = Limits { trace_dir: Some("/logs".to_owned()), ..limits.clone() };
    for (id, limits) in [("traced", traced), ("later", limits)] {
        let dir = state.reserve(id, Path::new("/b")).unwrap();
        let page = limits.page().unwrap();
        state.create(&dir, &Record { limits, ..record(id, "/b") }, &page, FILES).unwrap();
        let file = fs::OpenOptions::new().write(true).open(dir.join(REGION)).unwrap();
        let has_room = |rings: usize| file.write_all_at(b"x", trace::MAX_MEMORY - 1 - (trace::RING_SIZE * rings) as u64).is_ok();
        assert_eq!(has_room(0), id == "traced");
        assert_eq!(file.metadata().unwrap().len() == trace::FILE_SIZE, id == "traced");
        shared::make_room_for_rings(&dir).unwrap();
        assert!((0..trace::TRACED_AT_ONCE).all(has_room), "{id}");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, trace::MAX_MEMORY).unwrap();
        assert!(file.write_all_at(b"x", trace::MAX_MEMORY).is_err(), "{id}");
    }
}

#[test]
fn a_create_looks_at_a_few_containers_and_many_look_at_all() {
    let host = Host::new();
    let state = State::at(host.path());
    let ids: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
    create_and_end(&state, ids.iter().map(|id| (id.as_str(), "/b", true)));
    let count = || fs::read_dir(host.path().join(CONTAINERS)).unwrap().count();
    assert_eq!(count(), 100);
    create(&state, &record("new", "/b")).unwrap();
    assert!(count() > 80, "{} remain", count());
    (0..10_000).take_while(|_| count() > 1).for_each(|_| state.sweep());
    assert_eq!(count(), 1);
}

#[test]
fn deletion_removes_only_dead_containers_of_the_id() {
    let host = Host::new();
    let state = State::at(host.path());
    create_and_end(&state, [("c", "/running", false), ("c", "/ended", true), ("c2", "/b", true)]);
    assert_eq!(state.delete_dead("c"), [Path::new("/ended")]);
    assert_eq!(state.delete_dead("c/.."), [] as [PathBuf; 0]);
    let remains = |id, bundle| state.find(id, Path::new(bundle)).is_some();
    assert_eq!([remains("c", "/running"), remains("c", "/ended"), remains("c2", "/b")], [true, false, true]);
}

#[test]
fn directories_let_through_whom_they_must() {
    if !has_file_systems() {
        return;
    }
    let host = Host::new();
    let state = State::at(host.path());
    let spec = |namespaces: &str, maps: &str| {
        let text = format!(r#"{{"linux":{{"namespaces":[{namespaces}],"gidMappings":[{maps}]}}}}"#);
        Spec::from(serde_json::from_str::<serde_json::Value>(&text).unwrap())
    };
    let user = r#"{"type":"mount"},{"type":"user"}"#;
    let cases = [
        ("none", spec(r#"{"type":"mount"}"#, ""), (0o700, 0)),
        ("own", spec(user, r#"{"containerID":1,"hostID":5,"size":9},{"containerID":0,"hostID":1234,"size":1}"#), (0o710, 1234)),
        ("unknown", spec(user, ""), (0o711, 0)),
        ("again-none", spec("", ""), (0o700, 0)),
    ];
    for (id, spec, expected) in cases {
        let dir = state.reserve(id, Path::new("/b")).unwrap();
        let files = Files { access: Access::of(&spec), ..FILES };
        state.create(&dir, &Record { creator: dead(), ..record(id, "/b") }, &LimitsPage::new([]), files).unwrap();
        for dir in [dir.clone(), dir.join(SHARED)] {
            let found = fs::metadata(&dir).unwrap();
            assert_eq!((found.mode() & 0o7777, found.gid()), expected, "{}", dir.display());
        }
    }
}

/// Body of the child processes, and no test: creates containers until it is killed.
#[test]
fn creating_child() {
    let Ok(dir) = std::env::var("VGPU_TEST_STATE") else { return };
    let state = State::at(Path::new(&dir));
    eprintln!("ready");
    for number in 0.. {
        let id = format!("c{}-{number}", std::process::id());
        create(&state, &record(&id, "/b")).unwrap();
        state.delete(&id, Path::new("/b")).unwrap();
    }
}

#[test]
fn nothing_remains_of_killed_processes() {
    use std::io::Read;
    if !has_file_systems() {
        return;
    }
    let host = Host::new();
    let state = State::at(host.path());
    for round in 0..60 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "state::tests::creating_child", "--nocapture"])
            .env("VGPU_TEST_STATE", host.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stderr.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        // Kills at different steps of creation and deletion. The test passes whichever these are.
        std::thread::sleep(std::time::Duration::from_micros(300 + 171 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        if round % 3 != 0 {
            state.sweep();
            assert_eq!((host.mounts(), fs::read_dir(&state.containers.path).unwrap().count()), (vec![], 0), "round {round}");
        }
    }
    // The remains of several processes.
    create(&state, &record("c", "/b")).unwrap();
    assert_eq!((host.mounts().len(), fs::read_dir(&state.containers.path).unwrap().count()), (1, 1));
}

#[test]
fn file_systems_are_unmounted_wherever_a_process_was_killed() {
    if !has_file_systems() {
        return;
    }
    let host = Host::new();
    let state = State::at(host.path());
    let live = create(&state, &record("live", "/b")).unwrap();
    let names = ["dead", ".new.1.1", ".old.1.1"];
    // A create would remove the remains of the one before.
    let made: Vec<PathBuf> = (1..=3).map(|number| create(&state, &record(&format!("c{number}"), "/b")).unwrap()).collect();
    let dead = serde_json::to_vec(&Record { creator: dead(), ..record("c", "/b") }).unwrap();
    for (made, name) in made.iter().zip(names) {
        fs::write(made.join(RECORD), &dead).unwrap();
        fs::rename(made, state.containers.path.join(name)).unwrap();
    }
    // Killed before the region was written, and before the mount.
    let bare = state.containers.path.join(".new.2.2");
    fs::create_dir(&bare).unwrap();
    shared::create(&bare, Access::Owner, false).unwrap();
    fs::remove_file(bare.join(REGION)).unwrap();
    fs::create_dir_all(state.containers.path.join(".new.3.3").join(SHARED)).unwrap();
    assert_eq!(host.mounts().len(), 5);
    state.sweep();
    assert_eq!(host.mounts(), [live.join(SHARED)]);
    assert_eq!(state.containers.names().collect::<Vec<_>>(), ["live"]);
    state.delete("live", Path::new("/b")).unwrap();
    assert_eq!(host.mounts(), Vec::<PathBuf>::new());
}

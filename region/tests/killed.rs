//! Real processes on one region file, of which half are killed in each round.

use std::ffi::CString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use vgpu_region::map::{self, Census};
use vgpu_region::uuid::Uuid;

const GPU: Uuid = Uuid([5; 16]);
const LIMIT: u64 = 100_000;
const PROCESSES: usize = 16;

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Body of the child processes, and no test: reserves and releases until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var("VGPU_TEST_REGION") else { return };
    let me = map::join(&c_path(Path::new(&path)), std::process::id(), 1).unwrap();
    let gpu = me.region.gpu(GPU).unwrap();
    let (total, charge) = (&me.region.gpus[gpu].total, &me.slot().gpus[gpu].charge);
    eprintln!("ready");
    let mut random = std::process::id();
    loop {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let count = random >> 16;
        if random & 0x100 == 0 {
            _ = charge.reserve(total, count, LIMIT);
        } else {
            charge.release(total, count);
        }
        assert!(total.pages() <= LIMIT);
    }
}

fn spawn(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("VGPU_TEST_REGION", path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    child.stderr.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    child
}

#[test]
fn memory_of_killed_processes_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    map::format(std::fs::File::create(&path).unwrap().as_raw_fd()).unwrap();
    let region = map::region(&c_path(&path)).unwrap();
    let gpu = region.gpu(GPU).unwrap();
    let account = &region.gpus[gpu];

    let mut children: Vec<Child> = (0..PROCESSES).map(|_| spawn(&path)).collect();
    for round in 0..20 {
        std::thread::sleep(std::time::Duration::from_micros(500 + 137 * round));
        for child in &mut children[..PROCESSES / 2] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // The survivors are stopped during the comparison, so that it is exact.
        for child in &children[PROCESSES / 2..] {
            // SAFETY: the calls take no pointers that outlive them; the child is ours and alive. It has stopped when waitpid returns.
            unsafe {
                libc::kill(child.id() as i32, libc::SIGSTOP);
                libc::waitpid(child.id() as i32, std::ptr::null_mut(), libc::WUNTRACED);
            }
        }
        let census = Census::open(&c_path(&path));
        region.recover(gpu, |slot, _, _| census.is_dead(slot));
        let most: u64 = map::living(region, &census).map(|(_, slot)| slot.gpus[gpu].charge.most()).sum();
        let held: u64 = map::living(region, &census).map(|(_, slot)| u64::from(slot.gpus[gpu].charge.held())).sum();
        assert!((held..=most).contains(&account.total.pages()), "round {round}: {held} <= {} <= {most}", account.total.pages());
        assert_eq!(map::living(region, &census).count(), PROCESSES / 2);
        for child in &children[PROCESSES / 2..] {
            // SAFETY: the call takes no pointers; the child is ours and alive.
            unsafe { libc::kill(child.id() as i32, libc::SIGCONT) };
        }
        for child in &mut children[..PROCESSES / 2] {
            *child = spawn(&path);
        }
        children.rotate_left(PROCESSES / 3);
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let census = Census::open(&c_path(&path));
    region.recover(gpu, |slot, _, _| census.is_dead(slot));
    assert_eq!(account.total.pages(), 0);
    assert!(map::living(region, &census).next().is_none());
}

#[test]
fn closing_every_descriptor_keeps_the_slot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    map::format(std::fs::File::create(&path).unwrap().as_raw_fd()).unwrap();
    let me = map::join(&c_path(&path), 1, 1).unwrap();
    // `join` has closed its descriptor already: the mapping alone keeps the slot.
    assert!(!Census::open(&c_path(&path)).is_dead(me.index));
    assert!(Census::open(&c_path(&path)).is_dead(me.index + 1));
    let second = map::join(&c_path(&path), 2, 1).unwrap();
    assert_ne!(second.index, me.index);
}

#[test]
fn invalid_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    assert!(matches!(map::region(&c_path(&path)), Err(map::Error::System { call: "open", errno: libc::ENOENT })));
    std::fs::write(&path, b"short").unwrap();
    assert_eq!(map::region(&c_path(&path)).map(|_| ()), Err(map::Error::Short(5)));
    std::fs::write(&path, vec![0; vgpu_region::region::SIZE]).unwrap();
    assert_eq!(map::region(&c_path(&path)).map(|_| ()), Err(map::Error::Region(vgpu_region::region::Invalid::Magic)));
    assert_eq!(map::limits(&c_path(&path)).map(|_| ()), Err(map::Error::Limits(vgpu_region::limits::Invalid::Magic)));
}

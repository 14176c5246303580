use super::*;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use vgpu_region::map;

const GPU: Uuid = Uuid([7; 16]);

fn made(folder: &Path) -> (std::path::PathBuf, map::Membership) {
    let path = folder.join("region");
    map::format(File::create(&path).unwrap().as_raw_fd()).unwrap();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    (path, map::join(&name, 42, 1000).unwrap())
}

#[test]
fn charges_of_a_process_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (path, member) = made(dir.path());
    let place = member.region.gpu(GPU).unwrap();
    let (account, charge) = (&member.region.gpus[place], &member.slot().gpus[place]);
    charge.charge.reserve(&account.total, 10, 100).unwrap();
    charge.overhead.store(4, Relaxed);
    account.refused.store(3, Relaxed);
    account.budget.used.store(5_000, Relaxed);
    account.moves_out.add(300, 9);
    account.moves_out.add(200, 6);
    account.moves_in.add(300, 8);
    let read = Reader::default().read(&path).unwrap();
    let gpu = read.gpus[0];
    assert_eq!((gpu.uuid, gpu.charged, gpu.refused, gpu.used), (GPU, 10 * PAGE, 3, 5_000));
    let moves = (Moves { count: 2, bytes: 500, took_ns: 15 }, Moves { count: 1, bytes: 300, took_ns: 8 });
    assert_eq!((gpu.moves_out, gpu.moves_in), moves);
    assert_eq!(read.processes.len(), 1);
    let process = &read.processes[0];
    assert_eq!((process.pid, process.since), (42, 1000));
    assert_eq!(process.charges, [Charge { total: 10 * PAGE, overhead: 4 * PAGE, managed: 0 }]);
    // SAFETY: the region is not used after this.
    unsafe { map::unmap(member.region) };
    let read = Reader::default().read(&path).unwrap();
    assert_eq!((read.processes.len(), read.gpus[0].charged), (0, 0), "dead processes are not counted");
    assert_eq!((read.gpus[0].moves_out, read.gpus[0].moves_in), moves, "what was moved stays moved");
}

#[test]
fn truncated_regions_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (path, member) = made(dir.path());
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut reader = Reader::default();
    for size in [offset_of!(Region, slots) as u64, 4096, 8, 0] {
        file.set_len(size).unwrap();
        let error = reader.read(&path).unwrap_err();
        assert!(matches!(error, Unreadable::Truncated(found) if found == size), "{error}");
    }
    // SAFETY: the region is not used after this.
    unsafe { map::unmap(member.region) };
}

#[test]
fn accounts_of_one_region_are_not_those_of_the_next() {
    let (several, one) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ((several, member), (one, other)) = (made(several.path()), made(one.path()));
    let uuids: Vec<Uuid> = (1..=vgpu_region::MAX_GPUS as u8).map(|number| Uuid([number; 16])).collect();
    uuids.iter().for_each(|uuid| _ = member.region.gpu(*uuid).unwrap());
    other.region.gpu(GPU).unwrap();
    let mut reader = Reader::default();
    let mut gpus = |path| reader.read(path).unwrap().gpus.iter().map(|gpu| gpu.uuid).collect::<Vec<Uuid>>();
    assert_eq!(gpus(&several), uuids);
    assert_eq!(gpus(&one), [GPU]);
    assert_eq!(gpus(&several), uuids);
    // SAFETY: the regions are not used after this.
    unsafe {
        map::unmap(member.region);
        map::unmap(other.region);
    }
}

#[test]
fn leases_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (path, member) = made(dir.path());
    // SAFETY: the region is not used after this.
    unsafe { map::unmap(member.region) };
    let holder = OpenOptions::new().read(true).open(&path).unwrap();
    // A read lease stands only against writers.
    shared_file::take_lease(&holder, libc::F_RDLCK);
    assert!(Reader::default().read(&path).unwrap().processes.is_empty());
    shared_file::take_lease(&holder, libc::F_WRLCK);
    let error = Reader::default().read(&path).unwrap_err();
    assert!(matches!(error, Unreadable::Leased), "{error}");
    assert_eq!(shared_file::lease_holder(&path), format!("process {}", std::process::id()));
}

#[test]
fn regions_that_their_owner_closed_are_tampered_with() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _member) = made(dir.path());
    assert!(!is_closed(&path));
    // Root may read it all the same, as the monitor's enforcing part may not.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(is_closed(&path) && Unreadable::Closed.is_tampered());
}

#[test]
fn a_region_with_very_many_locks_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (path, member) = made(dir.path());
    let used = &member.region.slots_used;
    used.store(SLOTS as u32, Relaxed);
    member.region.slots.iter().for_each(|slot| slot.pid.store(1, Relaxed));
    assert_eq!(Reader::default().read(&path).unwrap().processes.len(), 1);
    // Every second byte, as neighbours are merged. A fast processor asks about all slots beside 2,000 locks within the bound.
    let holder = OpenOptions::new().write(true).open(&path).unwrap();
    for place in 0..10_000 {
        let lock =
            libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: (1 << 30) + 2 * place, l_len: 1, l_pid: 0 };
        // SAFETY: the kernel reads the lock.
        assert_eq!(unsafe { libc::fcntl(holder.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    }
    let error = Reader::default().read(&path).unwrap_err();
    assert!(matches!(error, Unreadable::Locked) && error.is_tampered(), "{error}");
}

#[test]
fn garbage_is_read_safely() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _member) = made(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.iter_mut().skip(24).for_each(|byte| *byte = 0xff);
    std::fs::write(&path, &bytes).unwrap();
    let read = Reader::default().read(&path).unwrap();
    assert!(read.gpus.len() <= vgpu_region::MAX_GPUS && read.processes.len() <= SLOTS);
    bytes[0] = 0;
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(Reader::default().read(&path), Err(Unreadable::Header)));
}

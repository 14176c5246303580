use super::*;
use crate::snapshot::GpuProcess;
use std::fs;
use std::os::unix::fs::symlink;

/// Reader that depends on HAMi's layout alone, like HAMi's monitor.
struct Reader(Vec<u8>);

impl Reader {
    fn word(&self, at: usize) -> i32 {
        i32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn uuid(&self, device: usize) -> &str {
        std::str::from_utf8(&self.0[64 + 96 * device..][..40]).unwrap()
    }

    /// Sums a field of a device over the processes: `used[16]{context, module, data, offset, total, 3 more}` from byte 8 on.
    fn used(&self, device: usize, field: usize) -> u64 {
        (0..self.word(2_008_896) as usize).map(|process| self.long(1856 + 1960 * process + 8 + 64 * device + 8 * field)).sum()
    }

    fn sm_utilization(&self, device: usize) -> u64 {
        (0..self.word(2_008_896) as usize).map(|process| self.long(1856 + 1960 * process + 1160 + 48 * device + 16)).sum()
    }
}

fn container() -> ContainerState {
    let process = |inner_pid: u32, charged, overhead| GpuProcess {
        pid: Some(inner_pid + 1000),
        inner_pid,
        charged: Some(charged),
        overhead,
        held: Some(charged),
        is_listed: true,
        ..GpuProcess::default()
    };
    let share = |uuid: &str, limit, cores, processes| Share {
        uuid: uuid.to_owned(),
        memory_limit: limit,
        cores,
        utilization: Some(29.7),
        last_kernel: Some(1234.5),
        processes,
        ..Share::default()
    };
    ContainerState {
        id: "c".to_owned(),
        priority: 1,
        gpus: vec![
            share("GPU-01234567-89ab-cdef-0123-456789abcdef", Some(1 << 30), Some(30), vec![process(7, 600, 518), process(8, 100, 18)]),
            share("GPU-11234567-89ab-cdef-0123-456789abcdef", None, None, vec![process(8, 50, 0)]),
        ],
        ..ContainerState::default()
    }
}

#[test]
fn hamis_layout_has_limits_and_usage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.cache");
    let mut container = container();
    let mut region = RegionFile::open(&File::open(dir.path()).unwrap(), "/x.cache").unwrap();
    region.update(&container).unwrap();
    let read = || Reader(fs::read(&path).unwrap());
    let first = read();
    assert_eq!((first.0.len(), first.word(0), first.word(4), first.long(56)), (2_008_952, 19_920_718, 1, 2));
    assert_eq!((first.uuid(0), first.uuid(1)), ("GPU-01234567-89ab-cdef-0123-456789abcdef", "GPU-11234567-89ab-cdef-0123-456789abcdef"));
    assert_eq!([1600, 1608, 1728, 1736].map(|at| first.long(at)), [1 << 30, 0, 30, 100]);
    assert_eq!(first.word(2_008_896), 2);
    assert_eq!([0, 1, 2, 4].map(|field| first.used(0, field)), [536, 0, 164, 700]);
    assert_eq!((first.used(1, 4), first.sm_utilization(0)), (50, 30));
    assert_eq!((first.word(1856), first.word(1860), first.word(1856 + 1928)), (7, 1007, 1));
    assert_eq!((first.word(2_008_908), first.long(2_008_912)), (1, 1234));

    // Fields that HAMi's monitor writes stay, and processes that are gone disappear.
    fs::File::options().write(true).open(&path).unwrap().write_all_at(&(-1_i32).to_ne_bytes(), 2_008_904).unwrap();
    container.gpus[0].processes.pop();
    container.gpus[1].processes.pop();
    region.update(&container).unwrap();
    let second = read();
    assert_eq!((second.word(2_008_896), second.used(0, 4), second.word(2_008_904)), (1, 600, -1));

    // Another writer goes on with the region that is there.
    RegionFile::open(&File::open(dir.path()).unwrap(), "x.cache").unwrap().update(&container).unwrap();
    assert_eq!(read().0, second.0);
}

#[test]
fn a_region_that_its_container_changes_is_never_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut region = RegionFile::open(&File::open(dir.path()).unwrap(), "x").unwrap();
    region.update(&container()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(5).unwrap();
    region.update(&container()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE as u64);
    file.set_len(SIZE as u64 + 5).unwrap();
    assert!(region.update(&container()).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE as u64 + 5);
}

#[test]
fn other_files_are_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // Larger files with the magic number or with none are not regions either.
    for (name, head, length) in [("text", &b"text"[..], 4), ("magic", &MAGIC.to_ne_bytes(), 3 << 20), ("image", &[0; 4], 3 << 20)] {
        fs::write(at(name), head).unwrap();
        File::options().write(true).open(at(name)).unwrap().set_len(length).unwrap();
    }
    symlink(at("text"), at("link")).unwrap();
    symlink(dir.path(), at("folder")).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::hard_link(at("empty"), at("second-name")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let contents = |name: &str| fs::read(at(name)).unwrap();
    let before = ["text", "magic", "image", "empty"].map(contents);
    for name in ["text", "magic", "image", "link", "folder/new", "empty", "fifo", "", "missing/x"] {
        assert!(RegionFile::open(&File::open(dir.path()).unwrap(), name).is_err(), "{name}");
    }
    assert!(before == ["text", "magic", "image", "empty"].map(contents));
}

#[test]
fn paths_stay_in_the_containers_root() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    RegionFile::open(&File::open(&root).unwrap(), "/../../x").unwrap();
    assert!(root.join("x").exists() && !dir.path().join("x").exists());
}

use std::fs;
use std::path::Path;

use super::*;
use crate::trace::Event;
use vgpu_region::trace::{Kind, What};

fn open(dir: &Path) -> io::Result<LogFiles> {
    LogFiles::open(&File::open(dir).unwrap(), "/logs")
}

fn event() -> Event {
    let what = What::default();
    let call = "cuMemAlloc_v2".into();
    Event {
        pid: 7,
        thread: 8,
        kind: Kind::Allocate,
        what,
        call,
        name: "".into(),
        begin_ns: 9,
        took_ns: 10,
        target: 11,
        size: 12,
        gpu: None,
    }
}

fn sizes(dir: &Path) -> u64 {
    fs::read_dir(dir.join("logs")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn logs_are_continued_by_the_next_writer() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let mut logs = open(dir.path()).unwrap();
        logs.write(&event()).unwrap();
        logs.metrics.write_all_at(alnair::metrics(&[].into(), 5).as_bytes(), 0).unwrap();
        logs.timeline.flush().unwrap();
        logs.finish().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join("logs").join(name)).unwrap();
        assert_eq!(read("timeline.log").lines().count(), round);
        assert!(read("trace.json").ends_with("\n]\n"));
    }
}

/// Neither truncated nor written, whichever of the names they have; the others are not created before all were looked at.
#[test]
fn files_that_are_no_logs_stay() {
    for name in ["metrics.log", "timeline.log", "trace.json"] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        let path = dir.path().join("logs").join(name);
        fs::write(&path, "[1, 2, 3]").unwrap();
        assert!(open(dir.path()).is_err(), "{name}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1, 2, 3]", "{name}");
    }
}

#[test]
fn all_files_together_have_a_budget() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = open(dir.path()).unwrap();
    assert!([BUDGET, BUDGET_IN_MEMORY].contains(&logs.left));
    logs.left = 10_000;
    for _ in 0..1000 {
        logs.write(&event()).unwrap();
    }
    logs.timeline.flush().unwrap();
    logs.finish().unwrap();
    let written = sizes(dir.path());
    assert!((10_000..10_500).contains(&written), "{written}");
}

/// Memory of the container's tmpfs is charged to the monitor.
#[test]
fn files_in_memory_have_a_smaller_budget() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return eprintln!("SKIPPED: expected a tmpfs at /dev/shm") };
    assert_eq!(open(dir.path()).unwrap().left, BUDGET_IN_MEMORY);
}

/// Whichever of the files is in memory while the others are not. Needs the right to mount.
#[test]
fn one_file_in_memory_is_enough_for_the_smaller_budget() {
    for name in ["metrics.log", "timeline.log", "trace.json"] {
        let (dir, Ok(memory)) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new_in("/dev/shm")) else {
            return eprintln!("SKIPPED: expected a tmpfs at /dev/shm");
        };
        if open(dir.path()).unwrap().left == BUDGET_IN_MEMORY {
            return eprintln!("SKIPPED: expected a folder for temporary files that is not in memory");
        }
        let path = dir.path().join("logs").join(name);
        fs::copy(&path, memory.path()).unwrap();
        let mount = |arguments: &[&Path]| std::process::Command::new("/bin/sh").args(["-c", "\"$@\" 2>&-", "sh"]).args(arguments).status();
        if !mount(&[Path::new("mount"), Path::new("--bind"), memory.path(), &path]).is_ok_and(|status| status.success()) {
            return eprintln!("SKIPPED: expected the right to mount");
        }
        let left = open(dir.path()).map(|logs| logs.left);
        assert!(mount(&[Path::new("umount"), &path]).unwrap().success());
        assert_eq!(left.unwrap(), BUDGET_IN_MEMORY, "{name}");
    }
}

/// What a former writer appended counts.
#[test]
fn a_full_timeline_leaves_no_budget() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("logs")).unwrap();
    fs::write(dir.path().join("logs/timeline.log"), alnair::TIMELINE_HEAD).unwrap();
    File::options().write(true).open(dir.path().join("logs/timeline.log")).unwrap().set_len(BUDGET).unwrap();
    let mut logs = open(dir.path()).unwrap();
    let before = sizes(dir.path());
    logs.write(&event()).unwrap();
    logs.timeline.flush().unwrap();
    assert_eq!((logs.left, sizes(dir.path())), (0, before));
}

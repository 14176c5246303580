//! Files that the monitor writes for a container, in a root that the container's processes have prepared.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};
use tempfile::TempDir;
use vgpu_monitor::hami_region::{RegionFile, SIZE};
use vgpu_monitor::snapshot::{ContainerState, GpuProcess, Share};
use vgpu_monitor::trace::log_dir::LogFiles;

/// Names in the root, and components of paths.
const NAMES: [&str; 10] = ["a", "b", "metrics.log", "timeline.log", "trace.json", "..", ".", "", "a/b", "outside"];
/// Targets of links.
const TARGETS: [&str; 8] = ["/", "..", "../outside", "a", "b", "/proc/self/fd", "loop", "../../../../dev/shm"];
/// Content of a file that is not the container's.
const SECRET: &[u8] = b"secret";

/// What a hostile process has put into the root.
#[derive(Arbitrary, Debug)]
enum Entry {
    Folder(u8),
    Link(u8, u8),
    /// A hard link to a file outside.
    HardLink(u8),
    /// A file with this content.
    File(u8, Vec<u8>),
    /// A file with the begin of one of vgpu's, and of this size or that of HAMi's region.
    Forged(u8, u8, u32),
}

/// Component of a path.
#[derive(Arbitrary, Debug)]
enum Part {
    Known(u8),
    Any(String),
}

/// Root, path, and what the account says of a process.
#[derive(Arbitrary, Debug)]
struct Input {
    entries: Vec<Entry>,
    path: Vec<Part>,
    figures: (u64, u64, Option<u64>, u32),
}

/// Begins of the files that vgpu writes.
const BEGINS: [&[u8]; 4] =
    [b"name:mem_used,count:", b"name:cu", b"[\n{\"ph\":\"M\",\"name\":\"process_labels\",", &19_920_718_i32.to_le_bytes()];

fn name(index: u8) -> &'static str {
    NAMES[usize::from(index) % NAMES.len()]
}

/// Puts an entry into the root. Entries that cannot be made are left out.
fn put(root: &Path, entry: &Entry) {
    let _ = match entry {
        Entry::Folder(at) => fs::create_dir(root.join(name(*at))),
        Entry::Link(at, target) => symlink(TARGETS[usize::from(*target) % TARGETS.len()], root.join(name(*at))),
        Entry::HardLink(at) => fs::hard_link(root.with_file_name("outside"), root.join(name(*at))),
        Entry::File(at, content) => File::create_new(root.join(name(*at))).and_then(|_| fs::write(root.join(name(*at)), content)),
        Entry::Forged(at, begin, size) => File::create_new(root.join(name(*at))).and_then(|file| {
            fs::write(root.join(name(*at)), BEGINS[usize::from(*begin) % BEGINS.len()])?;
            file.set_len(if size % 2 == 0 { SIZE as u64 } else { u64::from(*size) % (4 << 20) })
        }),
    };
}

/// Writes the files at a path that the container names. Asserts that files outside the root, and files inside that are not vgpu's, stay as
/// they are.
pub fn files(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    thread_local! {
        static DIR: TempDir = tempfile::Builder::new().tempdir_in("/dev/shm").expect("a folder in memory");
    }
    DIR.with(|dir| {
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).expect("a new root");
        fs::write(&outside, SECRET).expect("a file outside");
        for entry in input.entries.iter().take(8).filter(|entry| is_inside(entry)) {
            put(&root, entry);
        }
        let kept = kept(&root);
        let part = |part: &Part| match part {
            Part::Known(index) => name(*index).to_owned(),
            Part::Any(text) => text.clone(),
        };
        let path = input.path.iter().take(6).map(part).collect::<Vec<_>>().join("/");
        write(&File::open(&root).expect("the root"), &path, input.figures);
        assert_eq!(fs::read(&outside).ok().as_deref(), Some(SECRET), "a file outside was changed: {input:?}");
        let entries = fs::read_dir(dir.path()).expect("the folder").count();
        assert_eq!(entries, 2, "a file outside was made: {input:?}");
        for (path, content) in kept {
            assert!(fs::read(&path).ok() == Some(content), "{} was changed: {input:?}", path.display());
        }
    });
}

/// Returns false for an entry that would be made outside the root.
fn is_inside(entry: &Entry) -> bool {
    let (Entry::Folder(at) | Entry::Link(at, _) | Entry::HardLink(at) | Entry::File(at, _) | Entry::Forged(at, ..)) = entry;
    !["..", ".", "", "a/b"].contains(&name(*at))
}

/// Returns the files in the root that do not begin like vgpu's.
fn kept(root: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = fs::read_dir(root).into_iter().flatten().flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let small = files.filter(|entry| entry.metadata().is_ok_and(|found| found.len() < 4096));
    let content = |entry: fs::DirEntry| Some((entry.path(), fs::read(entry.path()).ok()?));
    let is_foreign = |content: &[u8]| !content.is_empty() && BEGINS.iter().all(|begin| !content.starts_with(begin));
    small.filter_map(content).filter(|(_, content)| is_foreign(content)).collect()
}

/// Opens and writes HAMi's region and the logs at a path.
fn write(root: &File, path: &str, (charged, overhead, held, pid): (u64, u64, Option<u64>, u32)) {
    if let Ok(mut region) = RegionFile::open(root, path) {
        let process = GpuProcess { inner_pid: pid, charged: Some(charged), overhead, held, ..GpuProcess::default() };
        let share = Share { uuid: "GPU-1".to_owned(), processes: vec![process], ..Share::default() };
        let state = ContainerState { gpus: vec![share; (pid % 18) as usize], ..ContainerState::default() };
        let _ = region.update(&state);
    }
    if let Ok(logs) = LogFiles::open(root, path) {
        logs.finish().expect("logs in memory");
    }
}

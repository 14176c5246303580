//! Log files of containers that request traces at their creation (`PFLOG`): `metrics.log`, `timeline.log` and `trace.json` in the directory
//! that `PFLOG` names. One thread for each container keeps them up to date to a tenth of a second, also for processes that were killed. They
//! are complete once the container is gone.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use vgpu_oci_hook::state::{CONTAINERS, REGION};

use super::rings::Rings;
use super::{alnair, chrome};
use crate::account::Reader;
use crate::container_files;
use crate::snapshot::Snapshot;

/// Time between two copies of the rings, as in Alnair's profiler.
const INTERVAL: Duration = Duration::from_millis(100);
/// Upper limit of containers traced at a time.
const MAX_CONTAINERS: usize = 64;
/// Size in bytes above which a file no longer grows.
const MAX_FILE_SIZE: u64 = 1 << 30;

/// Log files of one container.
#[derive(Debug)]
pub struct LogFiles {
    metrics: File,
    timeline: BufWriter<File>,
    timeline_length: u64,
    trace: chrome::Writer<BufWriter<File>>,
}

impl LogFiles {
    /// Opens or creates the files in a directory below `root`. Truncates `metrics.log` and `trace.json`; appends to `timeline.log`, as Alnair
    /// does.
    ///
    /// # Errors
    /// The directory or a file cannot be opened.
    pub fn open(root: &Path, path: &str) -> io::Result<Self> {
        let folder = container_files::open_dir(&File::open(root)?, path)?;
        let open = |name| container_files::open_file(&folder, name, OFlags::empty());
        let trace = open("trace.json")?;
        trace.set_len(0)?;
        let timeline = container_files::open_file(&folder, "timeline.log", OFlags::APPEND)?;
        let timeline_length = timeline.metadata()?.len();
        Ok(Self {
            metrics: open("metrics.log")?,
            timeline: BufWriter::new(timeline),
            timeline_length,
            trace: chrome::Writer::new(BufWriter::new(trace))?,
        })
    }

    /// Writes the events since the last call. `held_bytes` is the memory that the container holds; `is_last` also takes incomplete events.
    ///
    /// # Errors
    /// Writing fails.
    pub fn update(&mut self, rings: &mut Rings, held_bytes: u64, is_last: bool) -> io::Result<()> {
        let mut done = Ok(());
        rings.drain(is_last, |event| {
            if done.is_ok() {
                done = self.write(&event);
            }
        });
        done?;
        let metrics = alnair::metrics(&rings.totals(), held_bytes);
        self.metrics.write_all_at(metrics.as_bytes(), 0)?;
        self.metrics.set_len(metrics.len() as u64)?;
        self.timeline.flush()?;
        self.trace.flush()
    }

    fn write(&mut self, event: &super::event::Event) -> io::Result<()> {
        if let Some(line) = alnair::timeline(event).filter(|_| self.timeline_length < MAX_FILE_SIZE) {
            self.timeline_length += line.len() as u64;
            self.timeline.write_all(line.as_bytes())?;
        }
        if self.trace.written() < MAX_FILE_SIZE { self.trace.event(event) } else { Ok(()) }
    }

    /// Completes the files.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(self) -> io::Result<()> {
        self.trace.finish().map(drop)
    }
}

/// Threads that write the logs of containers, by directory name and creation time.
#[derive(Debug)]
pub struct LogWriters {
    state_dir: PathBuf,
    running: HashMap<(String, u64), (Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

impl LogWriters {
    /// Returns writers for the containers in a state directory.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), running: HashMap::new() }
    }

    /// Starts writers for new containers, and stops those of containers that are gone.
    pub fn update(&mut self, snapshot: &Snapshot) {
        let mut keys = Vec::new();
        for container in &snapshot.containers {
            let (Some(path), Some(init)) = (&container.trace_dir, container.init) else { continue };
            let key = (container.dir_name.clone(), container.created);
            keys.push(key.clone());
            if self.running.contains_key(&key) || self.running.len() >= MAX_CONTAINERS {
                continue;
            }
            let gone = Arc::new(AtomicBool::new(false));
            let (name, path, is_gone) = (container.name(), path.clone(), Arc::clone(&gone));
            let region = self.state_dir.join(CONTAINERS).join(&container.dir_name).join(REGION);
            // Opened now, while `init` is known to be the container's process.
            let root = PathBuf::from(format!("/proc/{init}/root"));
            let opened = Rings::open(&region, true).and_then(|rings| Ok((rings, LogFiles::open(&root, &path)?)));
            let thread = thread::spawn(move || {
                let followed = opened.and_then(|(rings, logs)| follow(rings, logs, &region, &is_gone));
                if let Err(error) = followed {
                    tracing::warn!(container = name, path, %error, "cannot write trace logs");
                }
            });
            self.running.insert(key, (gone, thread));
        }
        // Stopped threads are not joined: they end after their last write.
        self.running.retain(|key, (gone, _)| {
            gone.store(!keys.contains(key), Relaxed);
            keys.contains(key)
        });
    }

    /// Stops all writers and waits until their files are complete.
    pub fn finish(self) {
        for (gone, _) in self.running.values() {
            gone.store(true, Relaxed);
        }
        for (_, thread) in self.running.into_values() {
            let _ = thread.join();
        }
    }
}

/// Writes a container's logs until `is_gone` is set.
fn follow(mut rings: Rings, mut logs: LogFiles, region: &Path, is_gone: &AtomicBool) -> io::Result<()> {
    let (mut reader, mut held_bytes) = (Reader::default(), 0);
    loop {
        let is_last = is_gone.load(Relaxed);
        if let Ok(account) = reader.read(region) {
            held_bytes = account.gpus.iter().map(|gpu| gpu.charged).sum();
        }
        logs.update(&mut rings, held_bytes, is_last)?;
        if is_last {
            return logs.finish();
        }
        thread::sleep(INTERVAL);
    }
}

//! The files of containers that asked for traces when they were made (`PFLOG`): `metrics.log`, `timeline.log` and `trace.json` in the
//! folder that they named, kept by a thread for each container. They are complete when the container is gone, and
//! at any time before they hold what its processes had recorded a moment ago, however those ended.

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

/// How often the rings are copied; Alnair's profiler writes its logs as often.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most containers that are followed at a time.
const MOST: usize = 64;
/// Longest that a file may become, in bytes.
const LONGEST: u64 = 1 << 30;

/// The three files.
#[derive(Debug)]
pub struct Logs {
    metrics: File,
    timeline: BufWriter<File>,
    timeline_length: u64,
    trace: chrome::Writer<BufWriter<File>>,
}

impl Logs {
    /// Opens or makes them in a folder below `root`. `metrics.log` and `trace.json` begin anew, `timeline.log` goes on, as Alnair's does.
    ///
    /// # Errors
    /// They cannot be written.
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

    /// Writes what has been recorded since the last time; `held` is what the container holds, in bytes.
    ///
    /// # Errors
    /// As writing.
    pub fn update(&mut self, rings: &mut Rings, held: u64, last: bool) -> io::Result<()> {
        let mut done = Ok(());
        rings.drain(last, |event| {
            if done.is_ok() {
                done = self.write(&event);
            }
        });
        done?;
        let metrics = alnair::metrics(&rings.totals(), held);
        self.metrics.write_all_at(metrics.as_bytes(), 0)?;
        self.metrics.set_len(metrics.len() as u64)?;
        self.timeline.flush()?;
        self.trace.flush()
    }

    fn write(&mut self, event: &super::event::Event) -> io::Result<()> {
        if let Some(line) = alnair::timeline(event).filter(|_| self.timeline_length < LONGEST) {
            self.timeline_length += line.len() as u64;
            self.timeline.write_all(line.as_bytes())?;
        }
        if self.trace.written() < LONGEST { self.trace.event(event) } else { Ok(()) }
    }

    /// Ends them.
    ///
    /// # Errors
    /// As writing.
    pub fn finish(self) -> io::Result<()> {
        self.trace.finish().map(drop)
    }
}

/// Follows the containers that ask for traces.
#[derive(Debug)]
pub struct LogWriters {
    state_dir: PathBuf,
    running: HashMap<(String, u64), (Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

impl LogWriters {
    /// For the containers in this state directory.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), running: HashMap::new() }
    }

    /// Begins with those that are new, and lets go of those that are gone.
    pub fn update(&mut self, snapshot: &Snapshot) {
        let mut keys = Vec::new();
        for container in &snapshot.containers {
            let (Some(path), Some(init)) = (&container.trace_dir, container.init) else { continue };
            let key = (container.place.clone(), container.created);
            keys.push(key.clone());
            if self.running.contains_key(&key) || self.running.len() >= MOST {
                continue;
            }
            let gone = Arc::new(AtomicBool::new(false));
            let (name, path, seen) = (container.name(), path.clone(), Arc::clone(&gone));
            let region = self.state_dir.join(CONTAINERS).join(&container.place).join(REGION);
            // Opened now, while the process is known to be the container's.
            let root = PathBuf::from(format!("/proc/{init}/root"));
            let begun = Rings::open(&region, true).and_then(|rings| Ok((rings, Logs::open(&root, &path)?)));
            let thread = thread::spawn(move || {
                let followed = begun.and_then(|(rings, logs)| follow(rings, logs, &region, &seen));
                if let Err(why) = followed {
                    eprintln!("vgpu monitor: {name}: {path}: {why}");
                }
            });
            self.running.insert(key, (gone, thread));
        }
        // Where nobody looks any more, the thread ends by itself.
        self.running.retain(|key, (gone, _)| {
            gone.store(!keys.contains(key), Relaxed);
            keys.contains(key)
        });
    }

    /// Writes down what is left of all, and ends.
    pub fn finish(self) {
        for (gone, _) in self.running.values() {
            gone.store(true, Relaxed);
        }
        for (_, thread) in self.running.into_values() {
            let _ = thread.join();
        }
    }
}

fn follow(mut rings: Rings, mut logs: Logs, region: &Path, gone: &AtomicBool) -> io::Result<()> {
    let (mut reader, mut held) = (Reader::default(), 0);
    loop {
        let last = gone.load(Relaxed);
        if let Ok(account) = reader.read(region) {
            held = account.gpus.iter().map(|gpu| gpu.charged).sum();
        }
        logs.update(&mut rings, held, last)?;
        if last {
            return logs.finish();
        }
        thread::sleep(INTERVAL);
    }
}

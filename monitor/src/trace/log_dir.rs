//! Log files of a container that requests traces at its creation (`PFLOG`): `metrics.log`, `timeline.log` and `trace.json` in the directory
//! that `PFLOG` names. They are complete once the container is gone.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use super::rings::Rings;
use super::{alnair, chrome};
use crate::container_files;

/// Size in bytes of a container's logs together, above which they no longer grow.
const BUDGET: u64 = 1 << 30;
/// The same on a file system in memory, where the files are charged to the monitor.
const BUDGET_IN_MEMORY: u64 = 4 << 20;

/// Log files of one container.
#[derive(Debug)]
pub struct LogFiles {
    metrics: File,
    timeline: BufWriter<File>,
    /// Bytes of the budget that are left.
    left: u64,
    trace: chrome::Writer<BufWriter<File>>,
}

impl LogFiles {
    /// Opens or creates the files in a directory below `root`. Truncates `metrics.log` and `trace.json`; appends to `timeline.log`, as Alnair
    /// does. Existing files that are not such logs stay as they are.
    ///
    /// # Errors
    /// The directory or a file cannot be opened, or a file is not such a log.
    pub fn open(root: &File, path: &str) -> io::Result<Self> {
        let folder = container_files::open_dir(root, path)?;
        let open = |name, flags, head: &'static [u8]| container_files::open_file(&folder, name, flags, |file| starts_with(file, head));
        // All are looked at before one is changed.
        let metrics = open("metrics.log", OFlags::empty(), alnair::METRICS_HEAD)?;
        let timeline = open("timeline.log", OFlags::APPEND, alnair::TIMELINE_HEAD)?;
        let trace = open("trace.json", OFlags::empty(), chrome::HEAD)?;
        trace.set_len(0)?;
        // Each of them may be on a file system of its own.
        let mut are_in_memory = false;
        for file in [&metrics, &timeline, &trace] {
            are_in_memory |= container_files::is_in_memory(file)?;
        }
        let budget = if are_in_memory { BUDGET_IN_MEMORY } else { BUDGET };
        Ok(Self {
            metrics,
            left: budget.saturating_sub(timeline.metadata()?.len()),
            timeline: BufWriter::new(timeline),
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

    /// Writes an event as long as budget is left.
    fn write(&mut self, event: &super::event::Event) -> io::Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        let mut written = 0;
        if let Some(line) = alnair::timeline(event) {
            written += line.len() as u64;
            self.timeline.write_all(line.as_bytes())?;
        }
        let before = self.trace.written();
        self.trace.event(event)?;
        written += self.trace.written() - before;
        self.left = self.left.saturating_sub(written);
        Ok(())
    }

    /// Completes the files.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(self) -> io::Result<()> {
        self.trace.finish().map(drop)
    }
}

/// Returns whether a file is empty or starts with `head`.
fn starts_with(file: &File, head: &[u8]) -> io::Result<bool> {
    let mut found = vec![0; head.len()];
    Ok(file.metadata()?.len() == 0 || (file.read_exact_at(&mut found, 0).is_ok() && found == head))
}

#[cfg(test)]
mod tests;

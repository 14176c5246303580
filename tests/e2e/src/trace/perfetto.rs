//! What Perfetto makes of a trace.

use std::fmt::Debug;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// A slice's process, thread, name, category, and when it began and how long it took, in nanoseconds.
pub type Slice = (u64, u64, String, String, u64, u64);

/// What its importer has read, as `perfetto.mjs` tells it.
#[derive(Debug, Default, Deserialize)]
pub struct Opened {
    /// Names, places and counts of what it complains about.
    pub faults: Vec<(String, u64, u64)>,
    /// All slices; instants are some that take no time.
    pub slices: Vec<Slice>,
    /// When the slices at an arrow's ends begin, the first one's name, and the other one's category.
    pub arrows: Vec<(u64, u64, String, String)>,
    /// Processes and their names.
    pub processes: Vec<(u64, String)>,
    /// Threads and tracks: process, thread and name.
    pub threads: Vec<(u64, u64, String)>,
}

/// In whatever order they are.
fn same<T: Ord + Debug>(what: &str, expected: &[T], found: &[T]) {
    let sorted = |list| {
        let mut sorted = Vec::from_iter(list);
        sorted.sort_unstable();
        sorted
    };
    let (expected, found): (Vec<&T>, Vec<&T>) = (sorted(expected), sorted(found));
    let differs = expected.iter().zip(&found).find(|(expected, found)| expected != found);
    assert_eq!(differs, None, "{what}: of ours, and as Perfetto has it");
    assert_eq!(expected.len(), found.len(), "{what}: the last of ours is {:?}, of Perfetto's {:?}", expected.last(), found.last());
}

impl Opened {
    /// Opens a trace with the importer in the folder that `VGPU_TEST_PERFETTO` names; `None` if it names none.
    ///
    /// # Panics
    /// It cannot be run, or opens nothing.
    #[must_use]
    pub fn of(json: &str) -> Option<Self> {
        let Some(importer) = std::env::var_os("VGPU_TEST_PERFETTO") else {
            eprintln!(
                "SKIPPED: Perfetto's own opinion of this trace: VGPU_TEST_PERFETTO names no importer (`perfetto` in scripts/tools.sh)"
            );
            return None;
        };
        let file = tempfile::NamedTempFile::new().expect("a file for the trace");
        std::fs::write(&file, json).expect("the trace is written");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("perfetto.mjs");
        let output = Command::new("node").arg(script).arg(importer).arg(file.path()).output().expect("node runs");
        assert!(output.status.success(), "{output:?}");
        Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}")))
    }

    /// Makes sure that it holds what it was expected to, to the nanosecond.
    ///
    /// # Panics
    /// Something is missing, or other than expected, or Perfetto complained.
    pub fn is(&self, expected: &Self) {
        assert_eq!(self.faults, expected.faults, "Perfetto complains");
        same("slices", &expected.slices, &self.slices);
        same("arrows", &expected.arrows, &self.arrows);
        same("processes", &expected.processes, &self.processes);
        same("threads", &expected.threads, &self.threads);
    }
}

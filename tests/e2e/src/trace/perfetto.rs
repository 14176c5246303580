//! Reads a trace with Perfetto's importer.

use std::fmt::Debug;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// A slice: process, thread, name, category, start and duration in nanoseconds.
pub type Slice = (u64, u64, String, String, u64, u64);

/// What Perfetto's importer read, in the form that `perfetto.mjs` prints.
#[derive(Debug, Default, Deserialize)]
pub struct Imported {
    /// Faults that the importer reports: name, index and count.
    pub faults: Vec<(String, u64, u64)>,
    /// All slices; an instant is a slice of no duration.
    pub slices: Vec<Slice>,
    /// Arrows: start of the slice at each end, name of the first slice, category of the second.
    pub arrows: Vec<(u64, u64, String, String)>,
    /// Processes and their names.
    pub processes: Vec<(u64, String)>,
    /// Threads and tracks: process, thread and name.
    pub threads: Vec<(u64, u64, String)>,
}

/// Asserts that two lists are equal, in any order.
fn assert_same_set<T: Ord + Debug>(what: &str, expected: &[T], found: &[T]) {
    let sorted = |list| {
        let mut sorted = Vec::from_iter(list);
        sorted.sort_unstable();
        sorted
    };
    let (expected, found): (Vec<&T>, Vec<&T>) = (sorted(expected), sorted(found));
    let differs = expected.iter().zip(&found).find(|(expected, found)| expected != found);
    assert_eq!(differs, None, "{what}: expected, and as Perfetto reads it");
    assert_eq!(expected.len(), found.len(), "{what}: last expected {:?}, last of Perfetto {:?}", expected.last(), found.last());
}

impl Imported {
    /// Reads a trace with the importer in the folder that `VGPU_TEST_PERFETTO` names; `None` if it is not set.
    ///
    /// # Panics
    /// If the importer cannot be run, or reads nothing.
    #[must_use]
    pub fn of(json: &str) -> Option<Self> {
        let Some(importer) = std::env::var_os("VGPU_TEST_PERFETTO") else {
            eprintln!("SKIPPED: reading this trace with Perfetto: VGPU_TEST_PERFETTO names no importer (`perfetto` in scripts/tools.sh)");
            return None;
        };
        let file = tempfile::NamedTempFile::new().expect("a file for the trace");
        std::fs::write(&file, json).expect("the trace is written");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("perfetto.mjs");
        let output = Command::new("node").arg(script).arg(importer).arg(file.path()).output().expect("node runs");
        assert!(output.status.success(), "{output:?}");
        Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }

    /// Asserts that the importer read what is expected, to the nanosecond.
    ///
    /// # Panics
    /// If something differs, or Perfetto reported a fault.
    pub fn assert_equals(&self, expected: &Self) {
        assert_eq!(self.faults, expected.faults, "Perfetto complains");
        assert_same_set("slices", &expected.slices, &self.slices);
        assert_same_set("arrows", &expected.arrows, &self.arrows);
        assert_same_set("processes", &expected.processes, &self.processes);
        assert_same_set("threads", &expected.threads, &self.threads);
    }
}

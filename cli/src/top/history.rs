//! Recent samples of each share and GPU.

use std::collections::{HashMap, VecDeque};
use vgpu_monitor::snapshot::Snapshot;

/// Samples that are kept.
const LENGTH: usize = 300;

/// Samples, oldest first: parts (0 to 1) of the limit, or of the GPU if there is none.
#[derive(Debug, Default)]
struct Samples {
    memory: VecDeque<f64>,
    time: VecDeque<f64>,
}

impl Samples {
    fn push(&mut self, memory: Option<f64>, time: Option<f64>) {
        for (samples, newest) in [(&mut self.memory, memory), (&mut self.time, time)] {
            samples.extend(newest);
            samples.drain(..samples.len().saturating_sub(LENGTH));
        }
    }
}

/// Samples by container's directory name, which is empty for a GPU itself, and by UUID.
#[derive(Debug, Default)]
pub(super) struct History(HashMap<(String, String), Samples>);

impl History {
    /// Adds a sample, and drops the history of what is gone.
    pub fn update(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.0);
        let mut add = |place: &str, uuid: &str, memory: Option<f64>, time: Option<f64>| {
            let key = (place.to_owned(), uuid.to_owned());
            let mut samples = before.remove(&key).unwrap_or_default();
            samples.push(memory, time);
            self.0.insert(key, samples);
        };
        for gpu in &snapshot.gpus {
            let memory = gpu.memory_used.map(|used| used as f64 / gpu.memory.max(1) as f64);
            add("", &gpu.uuid, memory, gpu.utilization.map(|percent| f64::from(percent) / 100.0));
        }
        for container in &snapshot.containers {
            for share in &container.gpus {
                let total = share.memory_limit.or_else(|| snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map(|gpu| gpu.memory));
                let memory = total.map(|total| share.held.unwrap_or(0).max(share.charged) as f64 / total.max(1) as f64);
                let time = share.utilization.map(|percent| percent / share.cores.map_or(100.0, f64::from));
                add(&container.dir_name, &share.uuid, memory, time);
            }
        }
    }

    /// Returns the memory of a share; of a GPU itself if the directory name is empty.
    pub fn memory(&self, place: &str, uuid: &str) -> impl DoubleEndedIterator<Item = f64> {
        self.of(place, uuid).into_iter().flat_map(|samples| &samples.memory).copied()
    }

    /// Returns the GPU time of a share; of a GPU itself if the directory name is empty.
    pub fn time(&self, place: &str, uuid: &str) -> impl DoubleEndedIterator<Item = f64> {
        self.of(place, uuid).into_iter().flat_map(|samples| &samples.time).copied()
    }

    fn of(&self, place: &str, uuid: &str) -> Option<&Samples> {
        self.0.get(&(place.to_owned(), uuid.to_owned()))
    }
}

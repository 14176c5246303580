//! Samples NVML continuously while something runs.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use vgpu_test_programs::nvml::Nvml;

/// Peaks of NVML's figures, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak {
    /// Sum over the listed processes.
    pub held: u64,
    /// Memory in use on the GPU, above the initial value. Includes managed memory, which is listed for no process.
    pub used: u64,
    /// The part of `used` that was listed for no process at one time: managed memory and the driver's own.
    pub unlisted: u64,
    /// Number of samples.
    pub samples: u64,
}

/// Runs `what` and samples the first GPU meanwhile.
pub fn during<T: Send>(what: impl FnOnce() -> T + Send) -> Result<(T, Peak), String> {
    let nvml = Nvml::open(0)?;
    let (over, begin) = (AtomicBool::new(false), used(&nvml));
    let mut peak = Peak::default();
    let value = std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            let value = what();
            over.store(true, Relaxed);
            value
        });
        let mut before = Vec::new();
        while !over.load(Relaxed) && !runs.is_finished() {
            let used = used(&nvml).saturating_sub(begin);
            let processes = nvml.processes();
            let held = processes.iter().map(|process| process.1).sum();
            // A list of several processes is not a snapshot: it counts if the next one is the same.
            if processes.len() <= 1 || processes == before {
                peak.held = peak.held.max(held);
            }
            // Memory that is freed between the two queries is in one of them only.
            if processes == before {
                peak.unlisted = peak.unlisted.max(used.saturating_sub(held));
            }
            before = processes;
            peak.used = peak.used.max(used);
            peak.samples += 1;
            std::thread::sleep(Duration::from_micros(500));
        }
        runs.join()
    });
    Ok((value.map_err(|_| "it panicked")?, peak))
}

fn used(nvml: &Nvml) -> u64 {
    nvml.memory().map_or(0, |memory| memory.1)
}

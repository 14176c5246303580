//! Samples NVML continuously from outside the measured processes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::nvml::Nvml;

/// A sampling thread and its observations. Processes that were present at the start are ignored.
pub struct Watch {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    over: AtomicBool,
    peak: AtomicU64,
    samples: AtomicU64,
    now: Mutex<Vec<(u32, u64)>>,
    others: Mutex<Vec<u32>>,
}

impl Watch {
    /// Starts sampling the GPU with this index.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn start(index: u32) -> Result<Watch, String> {
        let seen = Arc::new(Seen::default());
        let nvml = Nvml::open(index)?;
        *lock(&seen.others) = nvml.processes().into_iter().map(|(pid, _)| pid).collect();
        let thread = std::thread::spawn({
            let seen = Arc::clone(&seen);
            move || seen.look(&nvml)
        });
        Ok(Watch { seen, thread: Some(thread) })
    }

    /// Ignores the processes that are present now.
    pub fn ignore_present(&self) {
        self.settle(|_| true);
        let mut others = lock(&self.seen.others);
        others.extend(lock(&self.seen.now).iter().map(|&(pid, _)| pid));
    }

    /// Resets the peak and the number of samples.
    pub fn reset(&self) {
        self.seen.peak.store(0, Relaxed);
        self.seen.samples.store(0, Relaxed);
    }

    /// Returns the most bytes that the processes held together at one time, and the number of samples.
    #[must_use]
    pub fn peak(&self) -> (u64, u64) {
        (self.seen.peak.load(Relaxed), self.seen.samples.load(Relaxed))
    }

    /// Returns PID and bytes of every process, from a sample taken after the call.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        self.settle(|_| true)
    }

    /// Returns the bytes of all processes together, from a sample taken after the call.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.processes().iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Waits until no process is listed.
    pub fn until_empty(&self) {
        self.settle(<[_]>::is_empty);
    }

    /// Waits until no other process is listed.
    pub fn until_only(&self, pids: &[u32]) {
        self.settle(|list| list.iter().all(|(pid, _)| pids.contains(pid)));
    }

    /// Returns the first two equal consecutive lists that are as `wanted`; after ten seconds, the current list.
    fn settle(&self, wanted: impl Fn(&[(u32, u64)]) -> bool) -> Vec<(u32, u64)> {
        let (mut before, mut samples, begin) = (None, self.seen.samples.load(Relaxed), Instant::now());
        loop {
            let now = self.seen.samples.load(Relaxed);
            if now > samples + 1 {
                samples = now;
                let list = lock(&self.seen.now).clone();
                if (before.as_ref() == Some(&list) && wanted(&list)) || begin.elapsed() > Duration::from_secs(10) {
                    return list;
                }
                before = Some(list);
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

impl Seen {
    /// Samples until told to stop. A list of several processes is not a snapshot: memory that moves from one process to another
    /// meanwhile is counted twice. So a list counts only if the next one is the same.
    fn look(&self, nvml: &Nvml) {
        let mut before = Vec::new();
        while !self.over.load(Relaxed) {
            let mut list = nvml.processes();
            let others = lock(&self.others).clone();
            list.retain(|(pid, _)| !others.contains(pid));
            if list.len() <= 1 || list == before {
                self.peak.fetch_max(list.iter().map(|&(_, bytes)| bytes).sum(), Relaxed);
            }
            before.clone_from(&list);
            *lock(&self.now) = list;
            self.samples.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.seen.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

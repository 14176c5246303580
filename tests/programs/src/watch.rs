//! Reads NVML from outside all the time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::nvml::Nvml;

/// A thread that looks, and what it has seen. Processes that were there before it count for nothing.
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
    /// Begins to look at the GPU with this index.
    ///
    /// # Errors
    /// Says what failed.
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

    /// Nobody's memory counts any more of who is there now.
    pub fn ignore_present(&self) {
        self.settle(|_| true);
        let mut others = lock(&self.seen.others);
        others.extend(lock(&self.seen.now).iter().map(|&(pid, _)| pid));
    }

    /// Forgets the peak.
    pub fn reset(&self) {
        self.seen.peak.store(0, Relaxed);
        self.seen.samples.store(0, Relaxed);
    }

    /// The most bytes that the processes held together at one time, and from how many looks.
    #[must_use]
    pub fn peak(&self) -> (u64, u64) {
        (self.seen.peak.load(Relaxed), self.seen.samples.load(Relaxed))
    }

    /// PID and bytes of every process by a look from now on.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        self.settle(|_| true)
    }

    /// What the processes hold together by a look from now on.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.processes().iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Waits until nobody is there.
    pub fn until_empty(&self) {
        self.settle(<[_]>::is_empty);
    }

    /// Waits until nobody else is there.
    pub fn until_only(&self, pids: &[u32]) {
        self.settle(|list| list.iter().all(|(pid, _)| pids.contains(pid)));
    }

    /// The first two lists from now on that are the same and as they are wanted; after ten seconds, any.
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
    /// A list of several processes is no snapshot: what one gives back and another takes meanwhile counts twice. It counts if the next
    /// one is the same.
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

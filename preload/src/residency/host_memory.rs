//! How much host memory the process makes for its moves, and when.

use vgpu_region::limits::LogLevel;

use crate::os::{cgroup, clock, log};
use crate::residency::blocks;
use crate::residency::store::{Grown, Store};
use crate::residency::within::{self, in_context};
use crate::session::{Gpu, Session};

/// Time after a failed try to get host memory until the next one, in nanoseconds.
const RETRY_NS: u64 = 10_000_000_000;
/// Part of the host memory that the container may still use, as a divisor, that stays free when host memory is made for a move: the kernel
/// ends a process of a container that has none left.
const RESERVE: u64 = 4;

/// Host memory for all blocks.
#[derive(Debug)]
pub struct HostMemory {
    /// The memory.
    store: Store,
    /// Time until which none is asked for, as there was none, in nanoseconds.
    no_try_until: u64,
}

impl HostMemory {
    /// Returns none.
    pub const fn new() -> Self {
        Self { store: Store::new(), no_try_until: 0 }
    }

    /// Returns the memory.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Makes as much as all blocks need, while `may_go_on`. Returns false if they have no room. Contexts may be used.
    pub fn grow(&mut self, session: &Session, may_go_on: impl Fn() -> bool) -> bool {
        let (wanted, now) = (blocks::total(), clock::monotonic());
        if wanted <= self.store.size() {
            return true;
        }
        if now < self.no_try_until {
            return false;
        }
        let most = session.gpus().iter().filter_map(Gpu::memory_limit).sum::<u64>() as usize;
        if !may_take((wanted - self.store.size()) as u64) {
            self.no_try_until = now + RETRY_NS;
        } else if with_context(|| self.store.grow(wanted, most, may_go_on)) == Some(Grown::NoMemory) {
            self.no_try_until = now + RETRY_NS;
            log::line(LogLevel::Warn, format_args!("memory could not be moved to the host: it stays on the GPU"));
        }
        wanted <= self.store.size()
    }

    /// Gives back what the blocks do not need, while `may_go_on`. Contexts may be used.
    pub fn shrink(&mut self, may_go_on: impl Fn() -> bool) {
        with_context(|| self.store.shrink(blocks::total(), may_go_on));
    }
}

/// Runs `work` with a current context. Returns `None` without running it if the process has none.
fn with_context<T>(work: impl FnOnce() -> T) -> Option<T> {
    within::any().and_then(|context| in_context(context, work).ok())
}

/// Returns true if the container may use `bytes` more of the host's memory and has a part left then.
fn may_take(bytes: u64) -> bool {
    let left = cgroup::memory_left();
    let most = left - left / RESERVE;
    if bytes > most {
        let [wanted, most, left] = [bytes, most, left].map(|bytes| bytes >> 20);
        log::line(
            LogLevel::Warn,
            format_args!(
                "{wanted} MiB of host memory to move memory to: expected at most {most} of the {left} MiB that the container may still use"
            ),
        );
    }
    bytes <= most
}

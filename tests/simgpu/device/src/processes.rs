//! Processes on a GPU, as seen from the PID namespace of this process.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::identity;
use crate::layout::MAX_SLOTS;
use crate::locks::{self, PidMark};
use crate::scheduler::now_ns;
use crate::utilization::TENTH_NS;

/// Process with a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// PID in the reader's namespace.
    pub pid: u32,
    /// Bytes that NVML attributes to it.
    pub used: u64,
    /// Bytes that are only in the GPU's total.
    pub hidden: u64,
    /// Percent of the last second, or of the requested time, in which it owned the GPU.
    pub utilization: u32,
    /// GPU time used so far, ns.
    pub busy_ns: u64,
    /// Its time slice, ns.
    pub slice_ns: u64,
    /// Longest time slice of its groups that copy, ns.
    pub copy_slice_ns: u64,
    /// Whether it is switched off.
    pub is_off: bool,
    /// Number of times that it was switched off.
    pub times_off: u64,
}

impl Device {
    /// Returns the living processes with a context on `gpu` that are visible in the PID namespace of this process.
    #[must_use]
    pub fn processes(&self, gpu: usize) -> Vec<Process> {
        let tenth = now_ns() / TENTH_NS;
        self.processes_in(gpu, tenth.saturating_sub(10)..tenth)
    }

    /// Returns the processes with their utilization in the full tenths of a second since `since_ns`, but at most in the last ten, and the end of
    /// these tenths, ns. `None` if no tenth is over since.
    #[must_use]
    pub fn processes_since(&self, gpu: usize, since_ns: u64) -> Option<(u64, Vec<Process>)> {
        let end = now_ns() / TENTH_NS;
        let start = since_ns.div_ceil(TENTH_NS).max(end.saturating_sub(10));
        (start < end).then(|| (end * TENTH_NS, self.processes_in(gpu, start..end)))
    }

    fn processes_in(&self, gpu: usize, tenths: Range<u64>) -> Vec<Process> {
        let guard = self.lock();
        self.reap(&guard);
        drop(guard);
        let own_namespace = self.own_identity().pid_namespace;
        let high_water = (self.state.high_water.load(Ordering::Relaxed) as usize).min(MAX_SLOTS);
        let visible_process = |index: usize| {
            let slot = &self.state.slots[index];
            let held = &slot.gpus[gpu];
            if slot.pid.load(Ordering::Acquire) == 0 || held.contexts.load(Ordering::Relaxed) == 0 {
                return None;
            }
            Some(Process {
                pid: self.visible_pid(index, own_namespace)?,
                used: held.visible.load(Ordering::Relaxed),
                hidden: held.hidden.load(Ordering::Relaxed),
                utilization: held.busy.percent_of(tenths.clone()),
                busy_ns: held.busy.total(),
                slice_ns: held.slice_ns.load(Ordering::Relaxed),
                copy_slice_ns: held.copy_slice_ns.load(Ordering::Relaxed),
                is_off: !held.is_on_at(now_ns()),
                times_off: held.times_off.load(Ordering::Relaxed),
            })
        };
        (0..high_water).filter_map(visible_process).collect()
    }

    fn visible_pid(&self, index: usize, own_namespace: u64) -> Option<u32> {
        let slot = &self.state.slots[index];
        let pid = slot.pid.load(Ordering::Relaxed);
        if own_namespace != 0 && slot.pid_namespace.load(Ordering::Relaxed) == own_namespace {
            return Some(pid);
        }
        match locks::pid_mark(self.descriptor()?, index) {
            PidMark::Visible(pid) => Some(pid),
            PidMark::OtherNamespace => None,
            PidMark::None => identity::find_process(pid, slot.start_ticks.load(Ordering::Relaxed)),
        }
    }

    /// Returns the percent of the last second in which a GPU was busy.
    #[must_use]
    pub fn utilization(&self, gpu: usize) -> u32 {
        self.state.gpus[gpu].busy.percent()
    }
}

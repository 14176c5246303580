//! What NVML says this container's processes hold, and the account brought in line with it.
//!
//! NVML is loaded and asked only where the account alone will not do: after a context whose cost nobody knows, near the limit, and
//! before anything is refused.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vgpu_region::ledger::{PAGE, pages};

use super::{account, array, known, near, pools};
use crate::list::List;
use crate::nvml::sys::Process;
use crate::session::Gpu;
use crate::{driver, nvml};

/// More processes than a container has slots cannot be its own.
const MOST: usize = vgpu_region::region::SLOTS;

/// NVML's list of the processes on one GPU, as far as this PID namespace shows them.
#[derive(Debug)]
pub struct Processes(List<Process, MOST>);

impl Processes {
    /// Whether this PID is on the list.
    pub fn contains(&self, pid: u32) -> bool {
        self.find(pid).is_some()
    }

    /// What a process holds in bytes, if it is on the list and NVML can tell.
    pub fn bytes_of(&self, pid: u32) -> Option<u64> {
        // All ones is NVML's "not available".
        self.find(pid).map(|process| process.used).filter(|&used| used != u64::MAX)
    }

    fn find(&self, pid: u32) -> Option<&Process> {
        self.0.as_slice().iter().find(|process| process.pid == pid)
    }
}

/// Who is on the GPU now. `None` if NVML cannot tell.
pub fn processes(gpu: &Gpu) -> Option<Processes> {
    let mut list = List::new();
    nvml::compute_processes(gpu.uuid, &mut list)?;
    Some(Processes(list))
}

/// What this process holds on the GPU in bytes, by NVML; managed memory is not in it.
pub fn own_bytes(gpu: &Gpu) -> Option<u64> {
    // SAFETY: the call takes nothing.
    let pid = unsafe { libc::getpid() } as u32;
    processes(gpu)?.bytes_of(pid)
}

/// What the current device has free in bytes, for all.
pub fn device_free() -> usize {
    let _capture = driver::CaptureRelaxed::enter();
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes two integers.
    unsafe { driver::memory_info(&raw mut free, &raw mut total) };
    free
}

/// Sets this process's overhead to what NVML says beyond what allocation calls asked for, and what is promised and not taken yet.
///
/// Another thread's call that is under way makes both figures uncertain; then nothing is changed, after a few tries, and this is
/// `Some(false)`. `None` if NVML cannot tell.
pub fn reconcile(gpu: &Gpu) -> Option<bool> {
    (0..3).map(|_| set_overhead(gpu)).find(|&set| set != Some(false)).unwrap_or(Some(false))
}

/// The same after a call that took nobody knows how much: `before` it the device had so much free. While other threads' calls are under
/// way, what the process holds beyond all that they may have been charged for counts. Where NVML cannot tell, what the device has less of
/// now counts, whoever took it.
pub fn reconcile_after(gpu: &Gpu, before: usize) {
    for _ in 0..16 {
        match set_overhead(gpu) {
            Some(true) => return,
            // SAFETY: the call takes nothing.
            Some(false) => _ = unsafe { libc::sched_yield() },
            None => return charge_overhead(gpu, pages(before.saturating_sub(device_free()) as u64)),
        }
    }
    let managed = u64::from(gpu.charge.managed.load(Relaxed));
    let most = gpu.charge.charge.most();
    if let Some(bytes) = own_bytes(gpu) {
        let accounted = most.max(gpu.charge.charge.most()).saturating_sub(managed);
        charge_overhead(gpu, pages(bytes).saturating_sub(u32::try_from(accounted).unwrap_or(u32::MAX)));
    }
}

/// Charges what no allocation call asked for.
pub fn charge_overhead(gpu: &Gpu, pages: u32) {
    account::together(|| {
        account::add_overhead(gpu, pages);
        account::charge(gpu, pages);
    });
}

/// Whether the overhead could be set; `None` if NVML cannot tell.
fn set_overhead(gpu: &Gpu) -> Option<bool> {
    let charge = &gpu.charge.charge;
    let Some(changes) = account::quiet() else { return Some(false) };
    let is_busy = || charge.in_flight() || gpu.charge.makes_unclaimed_call();
    let (held, was_busy) = (charge.held(), is_busy());
    let overhead = gpu.charge.overhead.load(Acquire);
    // Asked first: what is taken in between counts twice rather than not at all.
    let promised = known::promises(gpu);
    let bytes = own_bytes(gpu)?;
    // Pools may have shrunk at another thread's wait, which has not told the account yet.
    pools::settle_all_of(gpu);
    if was_busy || is_busy() || charge.held() != held || account::quiet() != Some(changes) {
        return Some(false);
    }
    let asked_for = held.saturating_sub(overhead).saturating_sub(gpu.charge.managed.load(Relaxed));
    let real = pages(bytes).saturating_sub(asked_for).saturating_add(promised);
    near::set_doubtful(gpu, real < known::costs(gpu).saturating_add(promised));
    account::together(|| {
        // Of two threads that saw the same, one changes it.
        if gpu.charge.overhead.compare_exchange(overhead, real, AcqRel, Relaxed).is_err() {
            return Some(false);
        }
        account::charge(gpu, real.saturating_sub(overhead));
        account::release(gpu, overhead.saturating_sub(real));
        array::told(gpu);
        Some(true)
    })
}

/// What this process holds beyond what it has been charged for, in pages: what a call just made has cost. `None` if other threads
/// took or gave back memory meanwhile, again and again: what they did would count as the call's.
pub fn uncharged(gpu: &Gpu) -> Option<u32> {
    let charge = &gpu.charge.charge;
    for _ in 0..8 {
        let (before, most) = (charge.held(), charge.most());
        let bytes = own_bytes(gpu)?;
        if (charge.held(), charge.most()) == (before, most) {
            return Some(pages(bytes).saturating_sub(before.saturating_sub(gpu.charge.managed.load(Relaxed))));
        }
    }
    None
}

/// A context costs this much where nobody has measured one yet: more than any seen (an H200 took 518 MiB).
pub const CONTEXT_GUESS: u64 = 640 << 20;
const _: () = assert!(CONTEXT_GUESS.is_multiple_of(PAGE));

//! Layout of the state file. All mutable fields are atomics; fields that must change together change under a robust mutex.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::config::Config;

/// Maximum number of GPUs in one state file.
pub const MAX_GPUS: usize = 8;
/// Maximum number of processes that use the GPUs at the same time.
pub const MAX_SLOTS: usize = 1024;
/// Maximum number of process groups with a peak of their own.
pub const MAX_GROUPS: usize = 256;
/// Identifies a state file of this layout.
pub const MAGIC: u64 = 0x5349_4d47_5055_0004;
/// Number of busy-time buckets kept for utilization figures.
pub const BUCKETS: usize = 16;

#[repr(C)]
pub struct State {
    pub magic: AtomicU64,
    pub config: Config,
    /// Guards slots, groups and memory.
    pub mutex: SharedMutex,
    pub nvml_calls: AtomicU64,
    /// Slots at and above this index have never been used.
    pub high_water: AtomicU32,
    pub gpus: [Gpu; MAX_GPUS],
    pub groups: [Group; MAX_GROUPS],
    pub slots: [SlotState; MAX_SLOTS],
}

#[repr(C, align(64))]
pub struct SharedMutex(pub UnsafeCell<libc::pthread_mutex_t>);

/// One GPU: memory held by all processes, and the process that owns the GPU now.
#[repr(C, align(64))]
pub struct Gpu {
    /// Sum of `visible` over all slots; changes under the mutex.
    pub visible: AtomicU64,
    /// Sum of `hidden` over all slots.
    pub hidden: AtomicU64,
    /// Highest `visible` since the last reset.
    pub peak: AtomicU64,
    /// Highest sum of `visible` and `hidden` since the last reset.
    pub peak_total: AtomicU64,
    /// Guards the fields below.
    pub scheduler: SharedMutex,
    /// Slot index + 1 of the process that owns the GPU; 0 when idle.
    pub owner: AtomicU32,
    /// Slot index + 1 of the last owner.
    pub last_owner: AtomicU32,
    /// Futex word; changes whenever waiters should check the state again.
    pub wakeups: AtomicU32,
    /// Instant by which the owner should have released the GPU or renewed this deadline, ns.
    pub owner_deadline_ns: AtomicU64,
    /// Instant at which the owner's time slice began, ns.
    pub slice_start_ns: AtomicU64,
    /// Length of the owner's time slice, ns. A change of [`SlotGpu::slice_ns`] takes effect at its next slice.
    pub slice_ns: AtomicU64,
    /// Instant up to which GPU time is assigned, ns.
    pub cursor_ns: AtomicU64,
    pub busy: BusyTime,
}

/// Busy time in buckets of a tenth of a second.
#[repr(C)]
pub struct BusyTime {
    pub tenths: [AtomicU64; BUCKETS],
    pub ns: [AtomicU64; BUCKETS],
    pub total_ns: AtomicU64,
}

/// Processes of one PID namespace or one `SIMGPU_GROUP`, whose peak is tracked together.
#[repr(C)]
pub struct Group {
    /// Key of the group; 0: free.
    pub key: AtomicU64,
    pub peak: [AtomicU64; MAX_GPUS],
}

/// Slot of one process.
#[repr(C, align(64))]
pub struct SlotState {
    /// PID in its own namespace; 0: free slot.
    pub pid: AtomicU32,
    /// Index into `State::groups`.
    pub group: AtomicU32,
    /// Inode of its PID namespace; 0 if unknown.
    pub pid_namespace: AtomicU64,
    /// Start time in clock ticks since boot; 0 if unknown.
    pub start_ticks: AtomicU64,
    pub gpus: [SlotGpu; MAX_GPUS],
}

/// Resources of one process on one GPU.
#[repr(C)]
pub struct SlotGpu {
    /// Bytes that NVML attributes to the process.
    pub visible: AtomicU64,
    /// Bytes that are only in the GPU's total.
    pub hidden: AtomicU64,
    pub contexts: AtomicU32,
    /// 1 while the process has work for this GPU.
    pub runnable: AtomicU32,
    /// Time slice of the process, ns.
    pub slice_ns: AtomicU64,
    /// Longest time slice of its groups that copy, ns.
    pub copy_slice_ns: AtomicU64,
    /// Instant at which the process was last switched on, ns. It does not run before, nor from `off_from_ns` on. Both change under the
    /// GPU's scheduler mutex.
    pub on_from_ns: AtomicU64,
    /// Instant at which the process is switched off, ns; `u64::MAX` if it is not.
    pub off_from_ns: AtomicU64,
    /// Number of times that the process was switched off.
    pub times_off: AtomicU64,
    pub busy: BusyTime,
}

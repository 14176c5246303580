//! How the state file is laid out. Everything in it is atomics; what must change together changes under a robust mutex.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::config::Config;

/// Most GPUs that one state file can have.
pub const MAX_GPUS: usize = 8;
/// Most processes that can use the GPUs at one time.
pub const MAX_SLOTS: usize = 1024;
/// Most process groups whose peaks are kept apart.
pub const MAX_GROUPS: usize = 256;
/// Says that a file is a state file of this layout.
pub const MAGIC: u64 = 0x5349_4d47_5055_0002;
/// Buckets of busy time kept for utilisation figures.
pub const BUCKETS: usize = 16;

#[repr(C)]
pub struct State {
    pub magic: AtomicU64,
    pub config: Config,
    /// Guards slots, groups and memory.
    pub mutex: SharedMutex,
    pub nvml_calls: AtomicU64,
    /// Slots at and above this index were never used.
    pub high_water: AtomicU32,
    pub gpus: [Gpu; MAX_GPUS],
    pub groups: [Group; MAX_GROUPS],
    pub slots: [SlotState; MAX_SLOTS],
}

#[repr(C, align(64))]
pub struct SharedMutex(pub UnsafeCell<libc::pthread_mutex_t>);

/// One GPU: what all processes hold together, and whose turn it is.
#[repr(C, align(64))]
pub struct Gpu {
    /// Sum over the slots' `visible`, kept in step under the mutex.
    pub visible: AtomicU64,
    /// Sum over the slots' `hidden`.
    pub hidden: AtomicU64,
    /// Highest `visible` since the last reset.
    pub peak: AtomicU64,
    /// Highest sum of `visible` and `hidden` since then.
    pub peak_total: AtomicU64,
    /// Guards what follows.
    pub scheduler: SharedMutex,
    /// Slot index + 1 of the process whose turn it is; 0 when idle.
    pub owner: AtomicU32,
    /// Slot index + 1 of the process that had the last turn.
    pub last_owner: AtomicU32,
    /// Changes whenever a waiter may have reason to look again (a futex).
    pub wakeups: AtomicU32,
    /// When the owner is due to have given up its turn or renewed this, ns.
    pub owner_deadline_ns: AtomicU64,
    /// When the owner's turn began, ns.
    pub slice_start_ns: AtomicU64,
    /// GPU time is given out up to here, ns.
    pub cursor_ns: AtomicU64,
    pub busy: BusyTime,
}

/// Busy time by tenths of a second.
#[repr(C)]
pub struct BusyTime {
    pub tenths: [AtomicU64; BUCKETS],
    pub ns: [AtomicU64; BUCKETS],
    pub total_ns: AtomicU64,
}

/// Processes that are looked at together: those of one PID namespace, or of one `SIMGPU_GROUP`.
#[repr(C)]
pub struct Group {
    /// 0: free.
    pub key: AtomicU64,
    pub peak: [AtomicU64; MAX_GPUS],
}

/// One process.
#[repr(C, align(64))]
pub struct SlotState {
    /// PID in its own namespace; 0: free.
    pub pid: AtomicU32,
    /// Index into the groups.
    pub group: AtomicU32,
    /// Its PID namespace's inode; 0 when unknown.
    pub pid_namespace: AtomicU64,
    /// Its start time in clock ticks since boot; 0 when unknown.
    pub start_ticks: AtomicU64,
    pub gpus: [SlotGpu; MAX_GPUS],
}

/// What a process holds of one GPU.
#[repr(C)]
pub struct SlotGpu {
    /// Bytes that NVML shows for the process.
    pub visible: AtomicU64,
    /// Bytes that only the GPU's total shows.
    pub hidden: AtomicU64,
    pub contexts: AtomicU32,
    /// 1 while the process has work for this GPU.
    pub runnable: AtomicU32,
    pub busy: BusyTime,
}

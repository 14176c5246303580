//! Contexts and their limits.

use super::small_heap::SmallHeap;
use crate::handles::Handles;

/// Context.
pub struct Context {
    pub ordinal: i32,
    pub id: u64,
    pub flags: u32,
    pub is_primary: bool,
    pub api_version: u32,
    pub small_heap: SmallHeap,
    pub limits: Limits,
    /// True once a kernel that uses the heap was launched: the heap is then allocated.
    pub heap_used: bool,
    /// Bytes charged for local memory beyond the default, and for the heap.
    pub limits_bytes: i64,
    /// Bytes charged for graphs with kernels.
    pub graph_bytes: u64,
    /// Bytes charged once an image that calls `malloc` was loaded.
    pub malloc_bytes: u64,
    /// Its channel groups; none if libcuda makes no ioctls.
    pub groups: Vec<ChannelGroup>,
}

/// Channel group: handles of the resource manager.
pub struct ChannelGroup {
    /// Handle of its device.
    pub parent: u32,
    pub handle: u32,
    pub channels: Vec<u32>,
}

/// Limits that `cuCtxSetLimit` sets, in bytes.
#[derive(Clone, Copy)]
pub struct Limits {
    pub stack: u64,
    pub fifo: u64,
    pub heap: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { stack: 1024, fifo: 8_650_752, heap: 8 << 20 }
    }
}

/// All contexts of the process.
#[derive(Default)]
pub struct Contexts {
    pub live: Handles<Context>,
    /// Primary contexts by ordinal.
    pub primaries: Vec<PrimaryContext>,
    pub ids: u64,
}

/// Primary context of a GPU.
#[derive(Clone, Copy, Default)]
pub struct PrimaryContext {
    pub flags: u32,
    /// Handle; 0 until the context is first created. It does not change afterwards.
    pub handle: usize,
    /// Reference count. A reset does not change it.
    pub retain_count: u32,
}

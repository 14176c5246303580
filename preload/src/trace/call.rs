//! What a trace records of a call: one function for each kind of call. The rows of [`crate::table`] name them.

use vgpu_region::trace::{Direction, Kind};

use crate::trace::names;
use vgpu_cuda_abi::copies::Described;
use vgpu_cuda_abi::cuda::{DEFAULT_STREAM, Handle, LaunchConfig, LaunchParams, SUCCESS, Status};

/// Call that is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Kind of the record.
    pub kind: Kind,
    /// Whether the call puts work into [`Call::stream`].
    pub is_work: bool,
    /// Stream of the work.
    pub stream: Handle,
    /// Handle of a kernel, or an address.
    pub place: u64,
    /// Where the driver writes an address; may be null.
    pub out: *const u64,
    /// Size in bytes, or a number of things.
    pub amount: u64,
    /// Direction of a copy.
    pub name: u16,
    /// Whether the call may end contexts, and the events in them.
    pub ends_contexts: bool,
    /// Whether handles may stand for other kernels after the call.
    pub forgets_names: bool,
}

impl Call {
    /// Returns a call that is no work.
    fn new(kind: Kind) -> Self {
        let (stream, out) = (DEFAULT_STREAM, core::ptr::null());
        Self { kind, is_work: false, stream, place: 0, out, amount: 0, name: 0, ends_contexts: false, forgets_names: false }
    }

    /// Returns a call that puts work into a stream.
    fn work(kind: Kind, stream: Handle, amount: u64) -> Self {
        Self { is_work: true, stream, amount, ..Self::new(kind) }
    }

    /// Returns the record's place and amount, after the call.
    pub fn values(&self, status: Status) -> [u64; 2] {
        let place = match self.kind {
            // SAFETY: the driver has just written there.
            Kind::Allocate if status == SUCCESS && !self.out.is_null() => unsafe { self.out.read_unaligned() },
            Kind::Allocate | Kind::Free => self.place,
            _ => self.stream as u64,
        };
        [place, self.amount]
    }
}

/// Records the launch of a kernel.
pub fn kernel(stream: Handle, function: Handle) -> Call {
    Call { place: function as u64, ..Call::work(Kind::Kernel, stream, 1) }
}

/// Records a launch whose stream is in a configuration. `effective` maps that stream to the one that the call uses.
///
/// # Safety
/// `config` is null or points to a whole structure.
pub unsafe fn kernel_by_config(config: *const LaunchConfig, function: Handle, effective: impl FnOnce(Handle) -> Handle) -> Call {
    // SAFETY: the caller's promise.
    kernel(effective(unsafe { config.as_ref() }.map_or(DEFAULT_STREAM, |config| config.stream)), function)
}

/// Records one launch on each of several devices.
///
/// # Safety
/// `list` is null or has `count` entries.
pub unsafe fn kernels(list: *const LaunchParams, count: u32) -> Call {
    // SAFETY: the caller's promise.
    let first = unsafe { list.as_ref() }.filter(|_| count != 0);
    let (stream, function) = first.map_or((DEFAULT_STREAM, core::ptr::null_mut()), |first| (first.stream, first.function));
    Call { amount: count.into(), ..kernel(stream, function) }
}

/// Records the launch of a graph.
pub fn graph(stream: Handle, exec: Handle) -> Call {
    Call::work(Kind::Graph, stream, names::kernels_in(exec))
}

/// Records a copy.
pub fn copy(direction: Direction, stream: Handle, bytes: usize) -> Call {
    Call { name: direction as u16, ..Call::work(Kind::Copy, stream, bytes as u64) }
}

/// Records a copy whose direction is in its symbol's name: `…HtoD…`, `…HtoA…`, `…DtoH…`, `…AtoH…`; others are within the device.
pub fn copy_by_name(symbol: &str, stream: Handle, bytes: usize) -> Call {
    let has = |part: &str| symbol.as_bytes().windows(part.len()).any(|window| window == part.as_bytes());
    let direction = match () {
        () if has("HtoD") || has("HtoA") => Direction::ToDevice,
        () if has("DtoH") || has("AtoH") => Direction::ToHost,
        () => Direction::Within,
    };
    copy(direction, stream, bytes)
}

/// Records a copy that a structure describes.
///
/// # Safety
/// `what` is null or points to a whole structure.
pub unsafe fn copy_described<T: Described>(stream: Handle, what: *const T) -> Call {
    // SAFETY: the caller's promise.
    copy(Direction::ByAddress, stream, unsafe { what.as_ref() }.map_or(0, T::bytes))
}

/// Records a batch of copies.
///
/// # Safety
/// `sizes` is null or has `count` entries.
pub unsafe fn copies(stream: Handle, sizes: *const usize, count: usize) -> Call {
    // SAFETY: the caller's promise.
    let sizes = if sizes.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(sizes, count) } };
    copy(Direction::ByAddress, stream, sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)))
}

/// Records a fill.
pub fn fill(stream: Handle, elements: usize) -> Call {
    Call::work(Kind::Fill, stream, elements as u64)
}

/// Records an allocation, whose address the driver writes to `out`.
pub fn allocate(out: *const u64, bytes: usize) -> Call {
    Call { out, amount: bytes as u64, ..Call::new(Kind::Allocate) }
}

/// Records a free.
pub fn free(address: u64) -> Call {
    Call { place: address, ..Call::new(Kind::Free) }
}

/// Records a wait for the GPU.
pub fn synchronize(stream: Handle) -> Call {
    Call { stream, ..Call::new(Kind::Synchronize) }
}

/// Counts a call without recording it.
pub fn count() -> Call {
    Call::new(Kind::Other)
}

/// Counts a call that may end contexts.
pub fn end_contexts() -> Call {
    Call { ends_contexts: true, ..count() }
}

/// Counts a call that may unload kernels.
pub fn unload() -> Call {
    Call { forgets_names: true, ..count() }
}

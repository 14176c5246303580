//! What of a call is recorded: one function for each kind, named in [`crate::table`] behind the entry points that it is for.

use vgpu_region::trace::{Direction, Kind};

use crate::trace::names;
use vgpu_cuda_abi::copies::Described;
use vgpu_cuda_abi::cuda::{Handle, LaunchConfig, LaunchParams, SUCCESS, Status};

/// A call that is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What it is about.
    pub kind: Kind,
    /// Whether it puts work into [`Call::stream`].
    pub is_work: bool,
    /// The stream that it goes into.
    pub stream: Handle,
    /// A kernel's handle, an address.
    pub place: u64,
    /// Where an address is going to be written.
    pub out: *const u64,
    /// How much, or how many.
    pub amount: u64,
    /// A copy's direction.
    pub name: u16,
    /// Contexts may be gone after it, and the events in them.
    pub ends_contexts: bool,
    /// Handles of kernels may mean others after it.
    pub forgets_names: bool,
}

impl Call {
    fn new(kind: Kind) -> Self {
        let (stream, out) = (core::ptr::null_mut(), core::ptr::null());
        Self { kind, is_work: false, stream, place: 0, out, amount: 0, name: 0, ends_contexts: false, forgets_names: false }
    }

    fn work(kind: Kind, stream: Handle, amount: u64) -> Self {
        Self { is_work: true, stream, amount, ..Self::new(kind) }
    }

    /// The record's place and amount, after the call.
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

/// The default stream.
pub const DEFAULT: Handle = core::ptr::null_mut();

/// A launch.
pub fn kernel(stream: Handle, function: Handle) -> Call {
    Call { place: function as u64, ..Call::work(Kind::Kernel, stream, 1) }
}

/// A launch whose stream is in a structure.
///
/// # Safety
/// Null or a whole structure.
pub unsafe fn kernel_by(config: *const LaunchConfig, function: Handle, meant: impl FnOnce(Handle) -> Handle) -> Call {
    // SAFETY: the caller's promise.
    kernel(meant(unsafe { config.as_ref() }.map_or(DEFAULT, |config| config.stream)), function)
}

/// One launch on each of several devices.
///
/// # Safety
/// Null or a list of that many entries.
pub unsafe fn kernels(list: *const LaunchParams, count: u32) -> Call {
    // SAFETY: the caller's promise.
    let first = unsafe { list.as_ref() }.filter(|_| count != 0);
    let (stream, function) = first.map_or((DEFAULT, DEFAULT), |first| (first.stream, first.function));
    Call { amount: count.into(), ..kernel(stream, function) }
}

/// A graph.
pub fn graph(stream: Handle, exec: Handle) -> Call {
    Call::work(Kind::Graph, stream, names::kernels_in(exec))
}

/// A copy.
pub fn copy(direction: Direction, stream: Handle, bytes: usize) -> Call {
    Call { name: direction as u16, ..Call::work(Kind::Copy, stream, bytes as u64) }
}

/// A copy by its symbol's name, which says from where to where: `…HtoD…`, `…DtoH…`, `…HtoA…`, `…AtoH…`, or neither.
pub fn copy_by(symbol: &str, stream: Handle, bytes: usize) -> Call {
    let has = |part: &str| symbol.as_bytes().windows(part.len()).any(|window| window == part.as_bytes());
    let direction = match () {
        () if has("HtoD") || has("HtoA") => Direction::ToDevice,
        () if has("DtoH") || has("AtoH") => Direction::ToHost,
        () => Direction::Within,
    };
    copy(direction, stream, bytes)
}

/// A copy that a structure describes.
///
/// # Safety
/// Null or a whole structure.
pub unsafe fn copy_described<T: Described>(stream: Handle, what: *const T) -> Call {
    // SAFETY: the caller's promise.
    copy(Direction::ByAddress, stream, unsafe { what.as_ref() }.map_or(0, T::bytes))
}

/// Several copies at once.
///
/// # Safety
/// Null or a list of that many entries.
pub unsafe fn copies(stream: Handle, sizes: *const usize, count: usize) -> Call {
    // SAFETY: the caller's promise.
    let sizes = if sizes.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(sizes, count) } };
    copy(Direction::ByAddress, stream, sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)))
}

/// A fill of so many elements.
pub fn fill(stream: Handle, elements: usize) -> Call {
    Call::work(Kind::Fill, stream, elements as u64)
}

/// An allocation, whose address is going to be at `out`.
pub fn allocate(out: *const u64, bytes: usize) -> Call {
    Call { out, amount: bytes as u64, ..Call::new(Kind::Allocate) }
}

/// The end of one.
pub fn free(address: u64) -> Call {
    Call { place: address, ..Call::new(Kind::Free) }
}

/// A wait for the GPU.
pub fn synchronize(stream: Handle) -> Call {
    Call { stream, ..Call::new(Kind::Synchronize) }
}

/// Only counted.
pub fn count() -> Call {
    Call::new(Kind::Other)
}

/// Contexts end.
pub fn end_contexts() -> Call {
    Call { ends_contexts: true, ..count() }
}

/// Kernels go.
pub fn unload() -> Call {
    Call { forgets_names: true, ..count() }
}

//! Contexts that this process has met: the current one, its GPU, and hints where its next small allocation will be placed.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use crate::loader::driver;
use crate::memory::granules::GRANULE;
use crate::memory::objects::address_map::Entered;
use crate::session::{self, Gpu, Session, State};
use vgpu_cuda_abi::cuda::{Handle, INVALID_VALUE, LIMIT_MALLOC_HEAP_SIZE, LIMIT_PRINTF_FIFO_SIZE, OPERATING_SYSTEM, SUCCESS, Status};

/// A context, in one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Context {
    /// Handle; null in a free place, [`WRITING`] in one that is being written.
    handle: AtomicPtr<core::ffi::c_void>,
    /// GPU of the context.
    gpu: AtomicPtr<Gpu>,
    /// Address up to which the last shared block is taken; 0 if unknown.
    tail: AtomicU64,
    /// The last small allocation, as [`span`]; 0 if it was freed.
    last: AtomicU64,
    /// The room that a freed last allocation left, as [`span`].
    hole: AtomicU64,
    /// Charge of the context itself, in pages.
    pub cost: AtomicU32,
    /// Charges for its heap and a larger printf buffer, in pages. The driver takes them when a kernel first uses them.
    pub promised: [AtomicU32; 2],
    /// Set once an image whose kernels call `malloc` was loaded into it, and what comes with the first one is charged.
    pub mallocs: AtomicBool,
}

/// First place for contexts beyond the table, one for each GPU. Their memory is charged, but not given back when they are destroyed.
const BEYOND: u8 = 239;
/// Number of contexts in the table.
const MOST: usize = BEYOND as usize;
const _: () = assert!(vgpu_region::MAX_GPUS <= (u8::MAX - BEYOND) as usize + 1);
/// The table. A context keeps its place until it is destroyed.
static CONTEXTS: [Context; MOST] = [const { Context::new() }; MOST];
/// Number of places that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Alignment in bytes of small allocations (seen on driver 580).
pub const STEP: u64 = 512;
/// Stands for the handle in a record that is being written or given up.
const WRITING: Handle = 1 as Handle;

/// The current context.
#[derive(Clone, Copy, Debug)]
pub struct Current {
    /// Its GPU.
    pub gpu: &'static Gpu,
    /// Its place in the table.
    pub id: u8,
    /// Its record; `None` beyond the table.
    pub context: Option<&'static Context>,
}

/// Returns the first context that the process met, if it is current: nearly always.
#[inline]
pub fn first() -> Option<Current> {
    let current = driver::current_context();
    first_if(|handle| !current.is_null() && handle == current)
}

/// Returns the first context of the table if `is_meant` holds for its handle.
#[inline]
fn first_if(is_meant: impl FnOnce(Handle) -> bool) -> Option<Current> {
    let [first, ..] = &CONTEXTS;
    if !is_meant(first.handle.load(Acquire)) {
        return None;
    }
    Some(Current { gpu: first.gpu()?, id: 0, context: Some(first) })
}

/// Returns the only context that the process has met so far, current or not.
#[inline]
pub fn sole() -> Option<Current> {
    first_if(|handle| handle as usize > WRITING as usize && USED.load(Acquire) == 1)
}

/// Returns the current context's handle, or that of the only context that the process has met, even if none is current.
#[inline]
pub fn current_handle() -> Handle {
    let [first, ..] = &CONTEXTS;
    if sole().is_some() { first.handle.load(Relaxed) } else { driver::current_context() }
}

/// Records that there may be contexts that the library does not see, so the one that was met is not the only one.
pub fn has_others() {
    // A place that was never filled holds no handle.
    USED.fetch_max(2, AcqRel);
}

/// Returns the current context. `Err(None)`: there is none, and the driver must answer; `Err(Some(status))`: the limits cannot be read, and
/// the call must be refused. Most callers use `with_current` of `admission::target`.
///
/// A context in the table is this process's own: in a forked child its parent's contexts cannot be current.
#[inline]
pub fn current() -> Result<Current, Option<Status>> {
    let handle = driver::current_context();
    for (id, context) in CONTEXTS.iter().enumerate().take(USED.load(Acquire)).filter(|_| !handle.is_null()) {
        if context.handle.load(Acquire) != handle {
            continue;
        }
        if let Some(gpu) = context.gpu() {
            return Ok(Current { gpu, id: id as u8, context: Some(context) });
        }
    }
    first_met(handle)
}

/// Records a context that was made by a call that is not intercepted, or that does not return its handle.
#[cold]
fn first_met(handle: Handle) -> Result<Current, Option<Status>> {
    let session: &'static Session = match session::current() {
        State::Ready(session) => session,
        State::NotYet => return Err(None),
        State::Refused => return Err(Some(OPERATING_SYSTEM)),
    };
    let mut device = 0;
    // SAFETY: the driver writes one integer.
    if handle.is_null() || unsafe { driver::current_device(&raw mut device) } != SUCCESS {
        return Err(None);
    }
    let gpu = session.gpu(device).ok_or(None)?;
    let id = remember(handle, gpu, 0);
    Ok(Current { gpu, id, context: CONTEXTS.get(usize::from(id)) })
}

/// Records a context and its charge. Two threads that meet it at once may record it twice; the first record is found from then on.
pub fn remember(handle: Handle, gpu: &'static Gpu, cost: u32) -> u8 {
    for (id, context) in CONTEXTS.iter().enumerate() {
        if context.handle.compare_exchange(core::ptr::null_mut(), WRITING, AcqRel, Acquire).is_ok() {
            context.gpu.store(core::ptr::from_ref(gpu).cast_mut(), Relaxed);
            context.cost.store(cost, Relaxed);
            context.promised.iter().for_each(|promised| promised.store(0, Relaxed));
            context.mallocs.store(false, Relaxed);
            context.tail.store(0, Relaxed);
            context.last.store(0, Relaxed);
            context.hole.store(0, Relaxed);
            context.handle.store(handle, Release);
            USED.fetch_max(id + 1, AcqRel);
            return id as u8;
        }
        if context.handle.load(Acquire) == handle {
            context.cost.fetch_add(cost, AcqRel);
            return id as u8;
        }
    }
    BEYOND + gpu.device as u8
}

/// Returns the place and the record of a context.
pub fn find(handle: Handle) -> Option<(u8, &'static Context)> {
    let mut contexts = CONTEXTS.iter().enumerate().take(USED.load(Acquire));
    contexts.find(|(_, context)| !handle.is_null() && context.handle.load(Acquire) == handle).map(|(id, context)| (id as u8, context))
}

/// Returns the handle of the context with this place; `None` if it is hidden or gone.
pub fn handle_of(id: u8) -> Option<Handle> {
    CONTEXTS.get(usize::from(id))?.handle()
}

/// Returns the GPU of a context by its place.
pub fn gpu_of(id: u8) -> Option<&'static Gpu> {
    match CONTEXTS.get(usize::from(id)) {
        Some(context) => context.gpu(),
        None => session::ready()?.gpu(i32::from(id - BEYOND)),
    }
}

/// Returns the charge of the living contexts on a GPU, in pages.
pub fn costs(gpu: &Gpu) -> u32 {
    living_on(gpu).fold(0, |sum, (_, context)| sum.saturating_add(context.cost.load(Relaxed)))
}

/// Returns the place of a living context on a GPU.
pub fn any_on(gpu: &Gpu) -> Option<u8> {
    let (handle, _) = living_on(gpu).next()?;
    (0..=u8::MAX).find(|&id| handle_of(id) == Some(handle))
}

/// Iterates over the living contexts on a GPU: handles and records.
fn living_on(gpu: &Gpu) -> impl Iterator<Item = (Handle, &'static Context)> {
    let contexts = CONTEXTS.iter().take(USED.load(Acquire)).map(|context| (context.handle.load(Acquire), context));
    contexts.filter(|(handle, context)| *handle as usize > WRITING as usize && context.gpu().is_some_and(|there| there.place == gpu.place))
}

/// Returns the pages on a GPU that are charged and that the driver has not taken yet. Whether it has can be asked for the current context
/// only.
pub fn promises(gpu: &Gpu) -> u32 {
    let current = driver::current_context();
    let mut sum = 0u32;
    for (handle, context) in living_on(gpu) {
        for (promised, limit) in context.promised.iter().zip([LIMIT_MALLOC_HEAP_SIZE, LIMIT_PRINTF_FIFO_SIZE]) {
            if handle == current && promised.load(Relaxed) != 0 && is_taken(limit) {
                promised.store(0, Relaxed);
            }
            sum = sum.saturating_add(promised.load(Relaxed));
        }
    }
    sum
}

/// Returns true if a kernel has used the current context's heap or printf buffer. Then the driver refuses to set its size, even to the
/// present one (as CUDA documents).
fn is_taken(limit: i32) -> bool {
    let _capture = driver::CaptureRelaxed::enter();
    let mut value = 0;
    // SAFETY: the driver writes one integer; setting a limit to what it is changes nothing.
    unsafe { driver::context_limit(&raw mut value, limit) == SUCCESS && driver::set_context_limit(limit, value) == INVALID_VALUE }
}

impl Context {
    /// Returns an empty record.
    pub const fn new() -> Self {
        Self {
            handle: AtomicPtr::new(core::ptr::null_mut()),
            gpu: AtomicPtr::new(core::ptr::null_mut()),
            tail: AtomicU64::new(0),
            last: AtomicU64::new(0),
            hole: AtomicU64::new(0),
            cost: AtomicU32::new(0),
            promised: [const { AtomicU32::new(0) }; 2],
            mallocs: AtomicBool::new(false),
        }
    }

    /// Returns its GPU.
    #[inline]
    fn gpu(&self) -> Option<&'static Gpu> {
        // SAFETY: null, or a GPU of the session, which lives as long as the process.
        unsafe { self.gpu.load(Acquire).as_ref() }
    }

    /// Returns its handle; `None` if it is hidden or gone.
    fn handle(&self) -> Option<Handle> {
        Some(self.handle.load(Acquire)).filter(|&handle| handle as usize > WRITING as usize)
    }

    /// Hides a context that is about to be destroyed: it is not found, and its place is not taken.
    pub fn hide(&self) {
        self.handle.store(WRITING, Release);
    }

    /// Undoes [`Context::hide`].
    pub fn show(&self, handle: Handle) {
        self.handle.store(handle, Release);
    }

    /// Frees the place of a destroyed context. Its GPU stays readable by place.
    pub fn forget(&self) {
        self.handle.store(core::ptr::null_mut(), Release);
    }

    /// Takes room for a small allocation behind the last one, or where the last one was. Returns false if there is none. The driver takes a
    /// new block only if a small allocation fits nowhere else (seen on driver 580), so one that fits here costs nothing. Only a hint, for
    /// optimistic allocations alone: freed memory may have been taken again together with its neighbours.
    #[inline]
    pub fn take_room(&self, bytes: u64) -> bool {
        let hole = self.hole.load(Relaxed);
        if hole >> 48 >= bytes.div_ceil(STEP) {
            self.hole.store(0, Relaxed);
            return true;
        }
        let tail = self.tail.load(Relaxed);
        let end = tail + bytes.next_multiple_of(STEP);
        // A tail on a border between blocks means that the block is full, or that nothing is known.
        let fits = tail & (GRANULE - 1) != 0 && (tail & !(GRANULE - 1)) + GRANULE >= end;
        if fits {
            self.tail.store(end, Relaxed);
        }
        fits
    }

    /// Records where a small allocation was placed.
    #[inline]
    pub fn placed(&self, address: u64, bytes: u64, entered: Entered) {
        self.last.store(span(address, bytes), Relaxed);
        let (tail, end) = (self.tail.load(Relaxed), (address + bytes).next_multiple_of(STEP));
        // A tail on a border is the end of the block before it.
        let same_block = (tail.wrapping_sub(1) ^ address) & !(GRANULE - 1) == 0;
        if entered == Entered::New || (same_block && end > tail) {
            self.tail.store(end, Relaxed);
        }
    }

    /// Returns the address of the last small allocation; 0 if it was freed.
    pub fn last(&self) -> u64 {
        self.last.load(Relaxed) & ADDRESS
    }

    /// Forgets the hole: an allocation joined a block without a hint, and may be there.
    pub fn forget_hole(&self) {
        self.hole.store(0, Relaxed);
    }

    /// Records the free of a small allocation whose block stays.
    #[inline]
    pub fn freed(&self, address: u64) {
        let last = self.last.load(Relaxed);
        if (last ^ address) & ADDRESS == 0 {
            self.hole.store(last, Relaxed);
            self.last.store(0, Relaxed);
        }
    }

    /// Records that a shared block was given back.
    pub fn block_freed(&self, address: u64) {
        for hint in [&self.tail, &self.last, &self.hole] {
            if (hint.load(Relaxed) ^ address) & ADDRESS & !(GRANULE - 1) == 0 {
                hint.store(0, Relaxed);
            }
        }
    }
}

/// Bits of the address in a [`span`].
const ADDRESS: u64 = (1 << 48) - 1;

/// Packs an address of 48 bits and, above it, a length in [`STEP`]s: at most 4096, a block.
fn span(address: u64, bytes: u64) -> u64 {
    bytes.div_ceil(STEP) << 48 | (address & ADDRESS)
}

/// Returns the record of a context by its place.
pub fn record(id: u8) -> Option<&'static Context> {
    CONTEXTS.get(usize::from(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::granules::GRANULE;
    use crate::memory::objects::address_map::Entered;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn freed_room_is_taken_once() {
        let (context, block) = (Context::new(), 0x7f00_0020_0000);
        context.placed(block, GRANULE - 4096, Entered::New);
        assert!(context.take_room(4096) && !context.take_room(512));
        context.placed(block + GRANULE - 4096, 4096, Entered::Joined);
        context.freed(block);
        assert!(!context.take_room(512), "not the last one");
        context.freed(block + GRANULE - 4096);
        assert!(!context.take_room(4097) && context.take_room(4096) && !context.take_room(1));
        context.placed(block + GRANULE - 4096, 4096, Entered::Joined);
        context.freed(block + GRANULE - 4096);
        context.block_freed(block);
        assert!(!context.take_room(1));
    }

    #[test]
    fn room_ends_with_the_block() {
        let (context, block) = (Context::new(), 0x7f00_0020_0000);
        assert!(!context.take_room(1));
        context.placed(block, GRANULE - 1024, Entered::New);
        assert!(!context.take_room(1025));
        assert!(context.take_room(1) && context.take_room(512));
        assert!(!context.take_room(1));
    }

    #[test]
    fn a_hole_further_down_does_not_lower_the_tail() {
        let (context, block) = (Context::new(), 0x7f00_0020_0000);
        context.placed(block, 4096, Entered::New);
        context.placed(block + 4096, 4096, Entered::Joined);
        context.placed(block, 512, Entered::Joined);
        assert_eq!(context.tail.load(Relaxed), block + 8192);
        context.placed(block + GRANULE, 512, Entered::Joined);
        assert_eq!(context.tail.load(Relaxed), block + 8192);
        context.block_freed(block + GRANULE);
        assert!(context.take_room(1));
        context.block_freed(block);
        assert!(!context.take_room(1));
    }

    #[test]
    fn a_full_block_gives_no_room_in_the_next() {
        let (context, block) = (Context::new(), 0x7f00_0020_0000);
        context.placed(block, GRANULE - 1, Entered::New);
        context.placed(block + GRANULE + 512, 512, Entered::Joined);
        assert!(!context.take_room(1), "what lies further up there is not context");
    }
}

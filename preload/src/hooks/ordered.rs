//! Stream-ordered memory: taken from pools, whose reservations are what counts, and given back when the stream has come that far.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::pages;

use crate::hooks::{alloc, spill};
use crate::loader::driver;
use crate::memory::admission::{claim, near_limit};
use crate::memory::granules::{GRANULE, GRANULE_PAGES, POOL_STEP, rounded_pages};
use crate::memory::ledger::spilled;
use crate::memory::objects::context_table::Current;
use crate::memory::objects::pending_frees::{FREES_LATER, freed_later, pending, pending_frees};
use crate::memory::objects::pool_table::Pool;
use crate::memory::objects::{address_map, captures, context_table, linear, pool_table, reservoirs, usual_pool};
use crate::memory::reconcile::dead;
use crate::memory::reconcile::frees::frees_have_passed;
use crate::session;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, OUT_OF_MEMORY, SUCCESS, Status, meant};

/// An allocation that a program asks a pool for.
struct Wanted<'a, C> {
    pool: Handle,
    known: &'a Pool,
    /// Where the program wants to be told the address; not null.
    address: *mut DevicePtr,
    bytes: u64,
    /// The stream that is meant ([`meant`]).
    stream: Handle,
    /// The program's call.
    call: C,
}

impl<C: Fn() -> Status> Wanted<'_, C> {
    /// Allocates it.
    unsafe fn allocate(self, current: Current) -> Status {
        let mut gpu = current.gpu;
        let (device, before) = self.known.device_and_charge();
        if device != gpu.device {
            match session::ready().and_then(|session| session.gpu(device)) {
                Some(other) => gpu = other,
                None => return (self.call)(),
            }
        }
        // In a captured stream nothing is taken now: the graph's launch is what counts. Nor may a pool be asked anything then.
        if captures::is_under_way(self.stream) {
            return (self.call)();
        }
        let Some(claim) = near_limit::try_claim(gpu, rounded_pages(self.bytes, POOL_STEP)) else {
            // SAFETY: as this function.
            return unsafe {
                if gpu.device == current.gpu.device && !pool_table::is_shared(self.pool) {
                    self.allocate_near_limit(gpu)
                } else {
                    self.allocate_in_pool(gpu)
                }
            };
        };
        let status = (self.call)();
        reservoirs::settle_pool(gpu, self.pool, self.known, Some(claim));
        if status == SUCCESS {
            self.known.took(before, self.bytes);
        }
        status
    }

    /// Less than the pool's next step is left. What the pool does not use is given back to the device, and the allocation is made as a
    /// linear one, which takes no more than it needs; `cuMemFreeAsync` takes such addresses as well (seen on driver 580). If that does
    /// not fit either, the pool may still have room between its own allocations.
    ///
    /// The stream is in no capture, but others may be, and stay whole.
    #[cold]
    unsafe fn allocate_near_limit(&self, gpu: &Gpu) -> Status {
        let _relaxed = captures::leave_alone();
        // SAFETY: the program's own address, which it will get from a call that it did not make, of the same meaning.
        let linear = || unsafe { alloc::allocate(driver::allocate_pointer, self.address, self.bytes as usize) };
        let linear_if_it_fits = || {
            dead::recover(gpu);
            reservoirs::settle_all_of(gpu);
            (gpu.left() >= u64::from(rounded_pages(self.bytes, GRANULE))).then(linear)
        };
        // SAFETY: as this function.
        let from_pool = || unsafe { self.take_from_room(gpu) };
        if self.known.has_tail(self.bytes)
            && let Some(status) = from_pool()
        {
            return status;
        }
        for wait in [false, true] {
            if wait {
                captures::wait(self.stream);
            }
            // SAFETY: a pool that the program itself is using.
            unsafe { driver::pool_trim(self.pool, 0) };
            if let Some(SUCCESS) = linear_if_it_fits() {
                return SUCCESS;
            }
        }
        if pool_table::has_room(self.pool, self.known, self.bytes)
            && let Some(status) = from_pool()
        {
            return status;
        }
        // One last time with everything counted anew, and with a word about it if it fails.
        linear()
    }

    /// Takes from what a pool is thought to have room for. `None` if it grew past the limit instead, which is undone.
    unsafe fn take_from_room(&self, gpu: &Gpu) -> Option<Status> {
        let &Self { pool, known, address, stream, .. } = self;
        let (_, before) = known.device_and_charge();
        let status = (self.call)();
        reservoirs::settle_pool(gpu, pool, known, None);
        if status != SUCCESS {
            return Some(status);
        }
        if gpu.account.total.pages() <= gpu.limit_pages() {
            known.took(before, self.bytes);
            return Some(SUCCESS);
        }
        pool_table::has_none(pool, known);
        // SAFETY: the address was just written by the driver, and nobody has seen it. The memory is the stream's when it gets there, and
        // is given back behind that.
        unsafe {
            driver::free_ordered(*address, stream);
            *address = 0;
            driver::stream_synchronize(stream);
            driver::pool_trim(pool, 0);
        }
        reservoirs::settle_pool(gpu, pool, known, None);
        None
    }

    /// Near the limit where linear memory of the current context will not do, as another GPU or another process is to get at it.
    #[cold]
    unsafe fn allocate_in_pool(&self, gpu: &Gpu) -> Status {
        {
            let _relaxed = captures::leave_alone();
            captures::wait(self.stream);
            // SAFETY: a pool that the program itself is using.
            unsafe { driver::pool_trim(self.pool, 0) };
            reservoirs::settle_all_of(gpu);
        }
        match claim::claim(gpu, rounded_pages(self.bytes, POOL_STEP)) {
            Ok(claim) => {
                let status = (self.call)();
                reservoirs::settle_pool(gpu, self.pool, self.known, Some(claim));
                status
            }
            Err(status) => status,
        }
    }
}

/// `cuMemAllocAsync`
pub unsafe fn allocate<const OWN: bool>(
    real: unsafe extern "C" fn(*mut DevicePtr, usize, Handle) -> Status,
    address: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> Status {
    let call = move || {
        // SAFETY: the program's own arguments.
        unsafe { real(address, bytes, stream) }
    };
    if address.is_null() || bytes == 0 {
        return call();
    }
    let stream = meant::<OWN>(stream);
    // The common case in as few steps as can be.
    if let Some(current) = context_table::first()
        && let Some(usual) = usual_pool::usual(current.gpu)
    {
        // SAFETY: the address has been checked.
        return unsafe { Wanted { pool: usual.pool, known: usual.known, address, bytes: bytes as u64, stream, call }.allocate(current) };
    }
    let current = match context_table::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    let Some(usual) = usual_pool::usual(current.gpu) else {
        let mut pool = core::ptr::null_mut();
        // What cannot be watched cannot be had. Without a pool the driver says so itself.
        // SAFETY: the driver writes one handle.
        return if unsafe { driver::device_pool(&raw mut pool, current.gpu.device) } == SUCCESS { OUT_OF_MEMORY } else { call() };
    };
    // SAFETY: the address has been checked.
    unsafe { Wanted { pool: usual.pool, known: usual.known, address, bytes: bytes as u64, stream, call }.allocate(current) }
}

/// `cuMemAllocFromPoolAsync`
pub unsafe fn allocate_from<const OWN: bool>(
    real: unsafe extern "C" fn(*mut DevicePtr, usize, Handle, Handle) -> Status,
    address: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Status {
    let call = move || {
        // SAFETY: the program's own arguments.
        unsafe { real(address, bytes, pool, stream) }
    };
    match context_table::current() {
        Ok(current) if !address.is_null() && bytes != 0 && !pool.is_null() => match pool_table::known_of(pool) {
            // SAFETY: the address has been checked; a pool that is none is refused by the driver.
            Some(known) => unsafe {
                Wanted { pool, known, address, bytes: bytes as u64, stream: meant::<OWN>(stream), call }.allocate(current)
            },
            None => OUT_OF_MEMORY,
        },
        Ok(_) | Err(None) => call(),
        Err(Some(status)) => status,
    }
}

/// `cuMemFreeAsync`
#[inline]
pub unsafe fn free<const OWN: bool>(real: unsafe extern "C" fn(DevicePtr, Handle) -> Status, address: DevicePtr, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(address, stream) };
    let Some(left) = address_map::leave(address) else { return call() };
    let stream = meant::<OWN>(stream);
    let status = if spilled::is_in_use()
        && !captures::is_under_way(stream)
        && matches!(left.kind, address_map::Kind::Managed | address_map::Kind::Spilled)
    {
        spill::free_after(stream, address)
    } else {
        call()
    };
    if status != SUCCESS {
        address_map::put_back(address, left);
    } else if let Some(gpu) = context_table::gpu_of(left.context) {
        let cost = pages(u64::from(left.granules) * GRANULE);
        match left.kind {
            address_map::Kind::Managed | address_map::Kind::Spilled => linear::give_back(gpu, left),
            _ if left.count == 0 => freed_later(gpu, cost),
            // The granule stays, and in it, for a while, what was freed.
            _ => pending(gpu, GRANULE_PAGES),
        }
    }
    status
}

/// Waits for a stream or an event: pools may have shrunk.
#[inline]
pub unsafe fn after_wait(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { real(handle) };
    reservoirs::settle_after_wait();
    status
}

/// `cuCtxSynchronize`: pools may have shrunk, and what was freed stream-ordered is free.
#[inline]
pub unsafe fn after_wait_context(real: unsafe extern "C" fn() -> Status) -> Status {
    // Before the wait: what is freed from here on may not be through behind it.
    let current = if FREES_LATER.load(Relaxed) { context_table::current().ok() } else { None };
    let before = current.map(|current| (current.gpu, pending_frees(current.gpu))).filter(|&(_, pending)| pending != 0);
    // SAFETY: the call takes nothing.
    let status = unsafe { real() };
    reservoirs::settle_after_wait();
    if let (Some((gpu, pending)), SUCCESS) = (before, status) {
        frees_have_passed(gpu, pending);
    }
    status
}

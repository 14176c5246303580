//! Stream-ordered memory. It is taken from pools, whose reservations are what counts, and given back when the stream reaches the free.
//!
//! An allocation claims one step of its pool's growth, and the pool is settled at what it has reserved then, whether the call succeeded or
//! not (a reservoir, not an object, so [`acquire`](crate::memory::admission::acquire) has nothing to record). Near the limit a step does
//! not fit, though the allocation may: [`PoolAllocation::allocate_near_limit`].

use vgpu_region::ledger::pages;

use crate::hooks::{alloc, movable, spill};
use crate::loader::driver;
use crate::memory::admission::target::with_current;
use crate::memory::admission::{claim, near_limit};
use crate::memory::granules::{GRANULE, GRANULE_PAGES, POOL_STEP, rounded_pages};
use crate::memory::ledger::changes::release;
use crate::memory::ledger::spilled;
use crate::memory::objects::address_map::{Block, Kind};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::pending_frees::{record_free, record_pending};
use crate::memory::objects::pool_table::Pool;
use crate::memory::objects::{address_map, captures, context_table, linear, pool_table, reservoirs, usual_pool};
use crate::memory::reconcile::dead;
use crate::residency::blocks;
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, OUT_OF_MEMORY, SUCCESS, Status};

/// An allocation from a pool.
struct PoolAllocation<'a, C> {
    /// Handle of the pool.
    pool: Handle,
    /// Record of the pool.
    entry: &'a Pool,
    /// Where the program wants the address; not null.
    address: *mut DevicePtr,
    /// Size in bytes.
    bytes: u64,
    /// The effective stream.
    stream: Handle,
    /// The program's call.
    call: C,
}

impl<C: Fn() -> Status> PoolAllocation<'_, C> {
    /// Makes the allocation.
    unsafe fn allocate(self, current: Current) -> Status {
        let mut gpu = current.gpu;
        let (device, before) = self.entry.device_and_charge();
        if device != gpu.device {
            match session::ready().and_then(|session| session.gpu(device)) {
                Some(other) => gpu = other,
                None => return (self.call)(),
            }
        }
        // A captured allocation takes nothing now: the graph's launch does. Nor may a pool be asked anything during a capture.
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
        reservoirs::settle_pool(gpu, self.pool, self.entry, Some(claim));
        if status == SUCCESS {
            self.entry.took(before, self.bytes);
        }
        status
    }

    /// Allocates where less than the pool's next step is left. What the pool does not use is given back to the device, and the allocation
    /// is made as linear memory, which takes no more than it needs; `cuMemFreeAsync` takes such addresses too (seen on driver 580). If that
    /// does not fit either, the pool may still have room between its own allocations.
    ///
    /// The stream is in no capture, but others may be, and are not invalidated.
    #[cold]
    unsafe fn allocate_near_limit(&self, gpu: &Gpu) -> Status {
        let _relaxed = captures::leave_alone();
        let bytes = self.bytes as usize;
        // SAFETY: the program's own address, which is valid for a call of the same meaning.
        let linear = || unsafe { alloc::allocate(|| driver::allocate(self.address, bytes), self.address, bytes) };
        let linear_if_it_fits = || {
            dead::recover(gpu);
            reservoirs::settle_all_of(gpu);
            (gpu.left() >= u64::from(rounded_pages(self.bytes, GRANULE))).then(linear)
        };
        // SAFETY: as this function.
        let from_pool = || unsafe { self.take_from_room(gpu) };
        if self.entry.has_tail(self.bytes)
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
        if pool_table::has_room(self.pool, self.entry, self.bytes)
            && let Some(status) = from_pool()
        {
            return status;
        }
        // Once more after a full recount; it logs the refusal if it fails.
        linear()
    }

    /// Allocates from a pool that seems to have room. `None` if it grew past the limit instead, which is undone.
    unsafe fn take_from_room(&self, gpu: &Gpu) -> Option<Status> {
        let &Self { pool, entry, address, stream, .. } = self;
        let (_, before) = entry.device_and_charge();
        let status = (self.call)();
        reservoirs::settle_pool(gpu, pool, entry, None);
        if status != SUCCESS {
            return Some(status);
        }
        if gpu.account.total.pages() <= gpu.limit_pages() {
            entry.took(before, self.bytes);
            return Some(SUCCESS);
        }
        pool_table::mark_full(pool, entry);
        // SAFETY: the driver has just written the address, and the program has not seen it. The memory is the stream's, and is given back
        // in its order.
        unsafe {
            driver::free_ordered(*address, stream);
            *address = 0;
            driver::stream_synchronize(stream);
            driver::pool_trim(pool, 0);
        }
        reservoirs::settle_pool(gpu, pool, entry, None);
        None
    }

    /// Allocates near the limit where linear memory of the current context will not do: another GPU or another process uses the pool.
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
                reservoirs::settle_pool(gpu, self.pool, self.entry, Some(claim));
                status
            }
            Err(status) => status,
        }
    }
}

/// `cuMemAllocAsync`. `stream` is the effective one.
pub unsafe fn allocate(call: impl Fn() -> Status, address: *mut DevicePtr, bytes: usize, stream: Handle) -> Status {
    if address.is_null() || bytes == 0 {
        return call();
    }
    let bytes = bytes as u64;
    // The fast path: the first context is nearly always current.
    if let Some(current) = context_table::first()
        && let Some(usual) = usual_pool::usual(current.gpu)
    {
        // SAFETY: the address has been checked.
        return unsafe { PoolAllocation { pool: usual.pool, entry: usual.entry, address, bytes, stream, call }.allocate(current) };
    }
    with_current(call, |current, call| {
        if let Some(usual) = usual_pool::usual(current.gpu) {
            // SAFETY: the address has been checked.
            return unsafe { PoolAllocation { pool: usual.pool, entry: usual.entry, address, bytes, stream, call }.allocate(current) };
        }
        let mut pool = core::ptr::null_mut();
        // Fail closed: a pool that cannot be recorded is refused. Without a pool the driver refuses.
        // SAFETY: the driver writes one handle.
        if unsafe { driver::device_pool(&raw mut pool, current.gpu.device) } == SUCCESS { OUT_OF_MEMORY } else { call() }
    })
}

/// `cuMemAllocFromPoolAsync`. `stream` is the effective one.
pub unsafe fn allocate_from(call: impl Fn() -> Status, address: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle) -> Status {
    if address.is_null() || bytes == 0 || pool.is_null() {
        return call();
    }
    with_current(call, |current, call| match pool_table::find_or_record(pool) {
        // SAFETY: the address has been checked; the driver refuses a handle that is no pool.
        Some(entry) => unsafe { PoolAllocation { pool, entry, address, bytes: bytes as u64, stream, call }.allocate(current) },
        None => OUT_OF_MEMORY,
    })
}

/// `cuMemFreeAsync`. `stream` is the effective one.
#[inline]
pub fn free(call: impl FnOnce() -> Status, address: DevicePtr, stream: Handle) -> Status {
    let Some(left) = address_map::leave(address) else { return call() };
    let is_managed = matches!(left.kind, Kind::Managed | Kind::Spilled);
    let call = || match () {
        () if blocks::is_one(address) => spill::free_after(stream, || movable::free(address)),
        () if spilled::is_in_use() && is_managed && !captures::is_under_way(stream) => {
            // SAFETY: the program's own address.
            spill::free_after(stream, || unsafe { driver::free(address) })
        }
        () => call(),
    };
    let give_back = |left: Block| {
        let Some(gpu) = context_table::gpu_of(left.context) else { return };
        if is_managed {
            linear::give_back(gpu, left);
        } else if left.count == 0 {
            record_free(gpu, pages(u64::from(left.granules) * GRANULE));
        } else {
            // The granule stays, and for a while the freed memory in it.
            record_pending(gpu, GRANULE_PAGES);
        }
    };
    release(Some(left), call, give_back, |left| address_map::put_back(address, left))
}

//! Stream-ordered memory. What counts is what the pools have reserved from the device, which the driver tells in 20 ns; it grows in
//! steps of 32 MiB and shrinks when the host waits for a stream, so it is looked at then.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use vgpu_region::ledger::pages;

use super::account::{self, Claim};
use super::known::{self, Current};
use super::{GRANULE, POOL_STEP, blocks, graph, linear, rounded_pages, spill};
use crate::cuda::{
    AllocationProp, Device, DevicePtr, Handle, LOCATION_DEVICE, OUT_OF_MEMORY, POOL_RESERVED_CURRENT, POOL_USED_CURRENT, SUCCESS, Status,
};
use crate::driver;
use crate::session::{self, Gpu};

/// A pool that this process has met.
struct Pool {
    handle: AtomicPtr<core::ffi::c_void>,
    /// The device in the upper half, the reserved pages that were charged in the lower; or [`ELSEWHERE`].
    record: AtomicU64,
}

/// Few, and looked at after every wait, so they stand in a row. A place is taken by compare-and-swap and free again when its handle is
/// null.
static POOLS: [Pool; 512] = [const { Pool { handle: AtomicPtr::new(core::ptr::null_mut()), record: AtomicU64::new(0) } }; 512];
/// One above the highest place ever taken.
static POOLS_USED: AtomicUsize = AtomicUsize::new(0);
/// The record of a pool whose memory is not a device's.
const ELSEWHERE: u64 = u64::MAX;

fn pools() -> impl Iterator<Item = &'static Pool> {
    POOLS.iter().take(POOLS_USED.load(Acquire))
}

fn find_pool(handle: Handle) -> Option<&'static Pool> {
    pools().find(|pool| pool.handle.load(Acquire) == handle)
}

/// Notes a pool. `None` if there are more than can be kept.
fn add_pool(handle: Handle, record: u64) -> Option<&'static Pool> {
    const WRITING: Handle = 1 as Handle;
    let free = |pool: &Pool| pool.handle.compare_exchange(core::ptr::null_mut(), WRITING, AcqRel, Relaxed).is_ok();
    let place = POOLS.iter().position(free)?;
    let pool = POOLS.get(place)?;
    pool.record.store(record, Relaxed);
    pool.handle.store(handle, Release);
    POOLS_USED.fetch_max(place + 1, AcqRel);
    Some(pool)
}

/// Notes a pool that the driver has of its own, and the device of its memory; `None` is elsewhere. `false` if it cannot be kept.
pub fn note_pool(handle: Handle, device: Option<Device>) -> bool {
    find_pool(handle).or_else(|| add_pool(handle, device.map_or(ELSEWHERE, |device| (device as u64) << 32))).is_some()
}

/// Linear memory that was freed stream-ordered, in pages: it is the device's until the stream has come that far.
static FREED_LATER: AtomicU32 = AtomicU32::new(0);

/// The pool that `cuMemAllocAsync` takes from on each device, with its record, until a program sets another.
struct Usual {
    pool: Handle,
    record: &'static AtomicU64,
}

static USUAL: [AtomicPtr<Usual>; vgpu_region::MAX_GPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; vgpu_region::MAX_GPUS];

/// The usual pool of a GPU. `None` if the driver has none.
#[inline]
fn usual(gpu: &Gpu) -> Option<&'static Usual> {
    // SAFETY: null or what `look_up_usual` made, which is never freed.
    unsafe { USUAL.get(gpu.device as usize)?.load(Acquire).as_ref() }.or_else(|| look_up_usual(gpu))
}

#[cold]
fn look_up_usual(gpu: &Gpu) -> Option<&'static Usual> {
    let mut pool = core::ptr::null_mut();
    // SAFETY: the driver writes one handle.
    if unsafe { driver::device_pool(&raw mut pool, gpu.device) } != SUCCESS {
        return None;
    }
    let record = pool_record(pool, gpu)?;
    let fresh: *mut Usual = session::allocate();
    if fresh.is_null() {
        return None;
    }
    // SAFETY: freshly mapped, and never freed.
    unsafe {
        fresh.write(Usual { pool, record });
        USUAL.get(gpu.device as usize)?.store(fresh, Release);
        Some(&*fresh)
    }
}

/// The usual pools have to be asked for again.
pub fn forget_usual() {
    USUAL.iter().for_each(|usual| usual.store(core::ptr::null_mut(), Release));
}

/// `cuDeviceSetMemPool`
pub unsafe fn set_pool(real: unsafe extern "C" fn(Device, Handle) -> Status, device: Device, pool: Handle) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(device, pool) };
    forget_usual();
    status
}

fn pool_attribute(pool: Handle, attribute: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word, or fails for a handle that is no pool.
    (unsafe { driver::pool_attribute(pool, attribute, &raw mut value) } == SUCCESS).then_some(value)
}

/// The record of a pool; pools that no call of ours made are a device's own, met for the first time.
fn pool_record(pool: Handle, gpu: &Gpu) -> Option<&'static AtomicU64> {
    find_pool(pool).or_else(|| add_pool(pool, (gpu.device as u64) << 32)).map(|pool| &pool.record)
}

/// Brings what is charged for a reservoir (a pool, or a device's graph memory) in line with what it has reserved, as `read` tells.
/// `claim` was taken for its growth.
pub fn settle(gpu: &Gpu, record: &AtomicU64, claim: Option<Claim<'_>>, read: impl Fn() -> Option<u64>) {
    loop {
        let seen = record.load(Acquire);
        let Some(reserved) = read().map(pages) else { break };
        let charged = seen as u32;
        if reserved == charged && record.load(Acquire) == seen {
            break;
        }
        // Two threads that settle at once read different figures; only one that saw the record unchanged may write.
        if record.compare_exchange(seen, (seen >> 32) << 32 | u64::from(reserved), AcqRel, Acquire).is_err() {
            continue;
        }
        match claim {
            Some(claim) => claim.settle(reserved.saturating_sub(charged)),
            None => account::charge(gpu, reserved.saturating_sub(charged)),
        }
        account::release(gpu, charged.saturating_sub(reserved));
        return;
    }
    if let Some(claim) = claim {
        claim.drop_all();
    }
}

fn settle_pool(gpu: &Gpu, pool: Handle, record: &AtomicU64, claim: Option<Claim<'_>>) {
    settle(gpu, record, claim, || pool_attribute(pool, POOL_RESERVED_CURRENT));
}

/// Looks at every pool of a GPU.
pub fn settle_pools(gpu: &Gpu) {
    for Pool { handle, record } in pools() {
        let value = record.load(Relaxed);
        let handle = handle.load(Acquire);
        if handle as usize > 1 && value != ELSEWHERE && (value >> 32) as Device == gpu.device {
            settle_pool(gpu, handle, record, None);
        }
    }
    graph::settle(gpu);
}

fn settle_all() {
    if let Some(session) = session::ready() {
        session.gpus().iter().for_each(settle_pools);
    }
}

/// Set when the process first captures a stream: others need not ask.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// `cuStreamBeginCapture_v2`
pub unsafe fn begin_capture(real: unsafe extern "C" fn(Handle, i32) -> Status, stream: Handle, mode: i32) -> Status {
    CAPTURES.store(true, Relaxed);
    // SAFETY: the program's own arguments.
    unsafe { real(stream, mode) }
}

/// `cuStreamBeginCapture`
pub unsafe fn begin_capture_v1(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    CAPTURES.store(true, Relaxed);
    // SAFETY: the program's own argument.
    unsafe { real(stream) }
}

/// `cuStreamBeginCaptureToGraph`
pub unsafe fn begin_capture_to_graph(
    real: unsafe extern "C" fn(Handle, Handle, *const Handle, *const core::ffi::c_void, usize, i32) -> Status,
    stream: Handle,
    graph: Handle,
    dependencies: *const Handle,
    edges: *const core::ffi::c_void,
    count: usize,
    mode: i32,
) -> Status {
    CAPTURES.store(true, Relaxed);
    // SAFETY: the program's own arguments.
    unsafe { real(stream, graph, dependencies, edges, count, mode) }
}

/// Whether the process has ever begun to capture a stream.
#[inline]
pub fn has_captured() -> bool {
    CAPTURES.load(Relaxed)
}

#[inline]
fn is_capturing(stream: Handle) -> bool {
    if !CAPTURES.load(Relaxed) {
        return false;
    }
    let mut status = 0;
    // SAFETY: the driver writes one integer.
    unsafe { driver::is_capturing(stream, &raw mut status) == SUCCESS && status != 0 }
}

/// Allocates from a pool with `call`.
unsafe fn allocate_with(
    current: Current,
    (pool, record): (Handle, &AtomicU64),
    address: *mut DevicePtr,
    bytes: u64,
    stream: Handle,
    call: impl Fn() -> Status,
) -> Status {
    let value = record.load(Relaxed);
    let mut gpu = current.gpu;
    if (value >> 32) as Device != gpu.device {
        match session::ready().and_then(|session| session.gpu((value >> 32) as Device)) {
            Some(other) if value != ELSEWHERE => gpu = other,
            _ => return call(),
        }
    }
    // In a captured stream nothing is taken now: the graph's launch is what counts. Nor may a pool be asked anything then.
    if is_capturing(stream) {
        return call();
    }
    let Some(claim) = account::try_claim(gpu, rounded_pages(bytes, POOL_STEP)) else {
        // SAFETY: as this function.
        return unsafe { allocate_near_limit(current, pool, record, address, bytes, call) };
    };
    let status = call();
    settle_pool(gpu, pool, record, Some(claim));
    status
}

/// Less than the pool's next step is left. What the pool does not use is given back to the device, and the allocation is made as a
/// linear one, which takes no more than it needs; `cuMemFreeAsync` takes such addresses as well (seen on driver 580). If that does
/// not fit either, the pool may still have room between its own allocations.
#[cold]
unsafe fn allocate_near_limit(
    current: Current,
    pool: Handle,
    record: &AtomicU64,
    address: *mut DevicePtr,
    bytes: u64,
    call: impl Fn() -> Status,
) -> Status {
    let gpu = current.gpu;
    let linear = || {
        account::recover(gpu);
        settle_pools(gpu);
        (gpu.left() >= u64::from(rounded_pages(bytes, GRANULE))).then(|| {
            // SAFETY: the program's own address, which it will get from a call that it did not make, of the same meaning.
            unsafe { linear::allocate(driver::allocate_pointer, address, bytes as usize) }
        })
    };
    for wait in [false, true] {
        // SAFETY: a pool that the program itself is using; waiting is what the driver does when it is out of memory.
        unsafe {
            if wait {
                driver::context_synchronize();
            }
            driver::pool_trim(pool, 0);
        }
        if let Some(SUCCESS) = linear() {
            return SUCCESS;
        }
    }
    let free = |attribute| pool_attribute(pool, attribute).unwrap_or(0);
    if free(POOL_RESERVED_CURRENT).saturating_sub(free(POOL_USED_CURRENT)) >= bytes {
        let status = call();
        settle_pool(gpu, pool, record, None);
        if status != SUCCESS || gpu.account.total.pages() <= gpu.limit_pages() {
            return status;
        }
        // SAFETY: the address was just written by the driver, and nobody has seen it.
        unsafe {
            driver::free(*address);
            *address = 0;
            driver::pool_trim(pool, 0);
        }
        settle_pool(gpu, pool, record, None);
    }
    // One last time with everything counted anew, and with a word about it if it fails.
    // SAFETY: as above.
    unsafe { linear::allocate(driver::allocate_pointer, address, bytes as usize) }
}

/// `cuMemAllocAsync`
pub unsafe fn allocate(
    real: unsafe extern "C" fn(*mut DevicePtr, usize, Handle) -> Status,
    address: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> Status {
    let call = || {
        // SAFETY: the program's own arguments.
        unsafe { real(address, bytes, stream) }
    };
    if address.is_null() || bytes == 0 {
        return call();
    }
    // The common case in as few steps as can be.
    if let Some(current) = known::first()
        && let Some(usual) = usual(current.gpu)
    {
        // SAFETY: the address has been checked.
        return unsafe { allocate_with(current, (usual.pool, usual.record), address, bytes as u64, stream, call) };
    }
    let current = match known::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    let Some(usual) = usual(current.gpu) else {
        let mut pool = core::ptr::null_mut();
        // What cannot be watched cannot be had. Without a pool the driver says so itself.
        // SAFETY: the driver writes one handle.
        return if unsafe { driver::device_pool(&raw mut pool, current.gpu.device) } == SUCCESS { OUT_OF_MEMORY } else { call() };
    };
    // SAFETY: the address has been checked.
    unsafe { allocate_with(current, (usual.pool, usual.record), address, bytes as u64, stream, call) }
}

/// `cuMemAllocFromPoolAsync`
pub unsafe fn allocate_from(
    real: unsafe extern "C" fn(*mut DevicePtr, usize, Handle, Handle) -> Status,
    address: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Status {
    let call = || {
        // SAFETY: the program's own arguments.
        unsafe { real(address, bytes, pool, stream) }
    };
    match known::current() {
        Ok(current) if !address.is_null() && bytes != 0 && !pool.is_null() => match pool_record(pool, current.gpu) {
            // SAFETY: the address has been checked; a pool that is none is refused by the driver.
            Some(record) => unsafe { allocate_with(current, (pool, record), address, bytes as u64, stream, call) },
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
    let Some(left) = blocks::leave(address) else { return call() };
    let status = if spill::is_in_use() && !is_capturing(stream) && matches!(left.kind, blocks::Kind::Managed | blocks::Kind::Spilled) {
        spill::free_after(crate::compute::hooks::meant::<OWN>(stream), address)
    } else {
        call()
    };
    if status != SUCCESS {
        blocks::put_back(address, left);
    } else if left.count == 0
        && let Some(gpu) = known::gpu_of(left.context)
    {
        // Still on the device until the stream comes to it: kept as overhead until a wait, or until NVML says it is gone.
        let cost = pages(u64::from(left.granules) * GRANULE);
        if matches!(left.kind, blocks::Kind::Managed | blocks::Kind::Spilled) {
            linear::give_back(gpu, left);
        } else {
            account::add_overhead(gpu, cost);
            FREED_LATER.fetch_add(cost, AcqRel);
        }
    }
    status
}

/// `cuMemPoolCreate`
pub unsafe fn pool_create(
    real: unsafe extern "C" fn(*mut Handle, *const AllocationProp) -> Status,
    pool: *mut Handle,
    properties: *const AllocationProp,
) -> Status {
    // SAFETY: the program's own arguments; both are read only after the driver has accepted them.
    unsafe {
        let status = real(pool, properties);
        if status == SUCCESS {
            let location = (*properties).location;
            let device = if location.kind == LOCATION_DEVICE { (location.id as u64) << 32 } else { ELSEWHERE };
            if add_pool(*pool, device).is_none() {
                // What cannot be watched cannot be had.
                driver::pool_destroy(*pool);
                return OUT_OF_MEMORY;
            }
        }
        status
    }
}

/// `cuMemPoolDestroy`: allocations that are still live keep their memory, which only NVML can tell about from now on.
pub unsafe fn pool_destroy(real: unsafe extern "C" fn(Handle) -> Status, pool: Handle) -> Status {
    let known = find_pool(pool).filter(|_| !pool.is_null());
    let gpu = known.and_then(|known| {
        let value = known.record.load(Relaxed);
        if value == ELSEWHERE { None } else { session::ready()?.gpu((value >> 32) as Device) }
    });
    if let (Some(known), Some(gpu)) = (known, gpu) {
        settle_pool(gpu, pool, &known.record, None);
    }
    forget_usual();
    // From here on another thread may be given the same handle.
    if let Some(known) = known {
        known.handle.store(core::ptr::null_mut(), Release);
    }
    let value = known.map_or(0, |known| known.record.load(Relaxed));
    // SAFETY: the program's own argument.
    let status = unsafe { real(pool) };
    if known.is_some() && status != SUCCESS {
        _ = add_pool(pool, value);
    } else if let Some(gpu) = gpu {
        account::add_overhead(gpu, value as u32);
        FREED_LATER.fetch_add(value as u32, AcqRel);
    }
    status
}

/// `cuMemPoolTrimTo`
pub unsafe fn pool_trim(real: unsafe extern "C" fn(Handle, usize) -> Status, pool: Handle, keep: usize) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(pool, keep) };
    settle_all();
    status
}

/// `cuDeviceGraphMemTrim`
pub unsafe fn graph_trim(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { real(device) };
    graph::trimmed();
    settle_all();
    status
}

/// Waits for a stream or an event: pools may have shrunk.
#[inline]
pub unsafe fn after_wait(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { real(handle) };
    if POOLS_USED.load(Relaxed) != 0 {
        settle_all();
    }
    status
}

/// `cuCtxSynchronize`: pools may have shrunk, and what was freed stream-ordered is free.
#[inline]
pub unsafe fn after_wait_context(real: unsafe extern "C" fn() -> Status) -> Status {
    // SAFETY: the call takes nothing.
    let status = unsafe { real() };
    if POOLS_USED.load(Relaxed) != 0 {
        settle_all();
    }
    if FREED_LATER.load(Relaxed) != 0
        && status == SUCCESS
        && let Ok(Current { gpu, .. }) = known::current()
    {
        super::truth::reconcile(gpu);
        FREED_LATER.store(0, Relaxed);
    }
    status
}

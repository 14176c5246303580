//! This process's limits and accounts: the mapped limits page, its slot in the region, its GPUs.
//!
//! A session belongs to one process. The pointer to it lies in a page that the kernel empties in a forked child, so a child starts
//! its own at its first call, however it was forked.

use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::ledger::{PAGE, pages};
use vgpu_region::limits::{GpuLimit, LimitsPage, LogLevel};
use vgpu_region::map::Membership;
use vgpu_region::region::{GpuAccount, GpuCharge};
use vgpu_region::uuid::Uuid;
use vgpu_region::{MAX_GPUS, map, paths};

use crate::loader::{driver, elf};
use crate::nvml_query;
use crate::os::clock::realtime;
use crate::os::log;
use crate::os::mmap::allocate;
use vgpu_cuda_abi::cuda::{Device, SUCCESS};

/// One GPU that this process sees.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    /// CUDA's ordinal in this process.
    pub device: Device,
    /// Its identity.
    pub uuid: Uuid,
    /// Its memory in bytes, as the driver tells it.
    pub total: u64,
    /// Its place in the region.
    pub place: usize,
    /// Its limits; `None` if the container has none for it.
    pub limit: Option<&'static GpuLimit>,
    /// The container's account.
    pub account: &'static GpuAccount,
    /// This process's part of it.
    pub charge: &'static GpuCharge,
}

impl Gpu {
    /// The memory limit in bytes.
    #[inline]
    pub fn memory_limit(&self) -> Option<u64> {
        self.limit?.memory_for(self.total)
    }

    /// The memory limit in whole pages; `u64::MAX` without one.
    #[inline]
    pub fn limit_pages(&self) -> u64 {
        self.memory_limit().map_or(u64::MAX, |bytes| bytes / PAGE)
    }

    /// Pages left under the limit, by the account.
    #[inline]
    pub fn left(&self) -> u64 {
        self.limit_pages().saturating_sub(self.account.total.pages())
    }

    /// What one context is known to cost here, in pages; `None` before anyone has measured it.
    pub fn context_pages(&self) -> Option<u32> {
        let told = self.limit.map_or(0, |limit| limit.context_mib.load(Relaxed));
        [self.account.context_pages.load(Relaxed), pages(u64::from(told) << 20)].into_iter().find(|&known| known != 0)
    }
}

/// A process's limits and accounts.
#[derive(Debug)]
pub struct Session {
    /// The container's limits.
    pub limits: &'static LimitsPage,
    /// The region and this process's slot.
    pub membership: Membership,
    count: usize,
    gpus: [Gpu; MAX_GPUS],
    /// What NVIDIA's MPS was told of this process, in percent of the GPU's multiprocessors; 0 if it is not its client.
    pub mps_percent: u32,
}

impl Session {
    /// The GPUs that this process sees, by CUDA's ordinal.
    pub fn gpus(&self) -> &[Gpu] {
        self.gpus.get(..self.count).unwrap_or_default()
    }

    /// The GPU with this ordinal.
    #[inline]
    pub fn gpu(&self, device: Device) -> Option<&Gpu> {
        self.gpus().get(usize::try_from(device).ok()?)
    }
}

/// How things stand for this process.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// Limits and accounts are there.
    Ready(&'static Session),
    /// The driver is not initialised: it will say so itself.
    NotYet,
    /// The limits cannot be known, so nothing limited may be had.
    Refused,
}

/// Emptied by the kernel in a forked child. What every launch asks lies in one cache line.
#[repr(C, align(4096))]
struct Page {
    session: AtomicPtr<Session>,
    refused: AtomicU32,
    pid: AtomicU32,
    kept: Kept,
}

/// What somebody has made of the numbers in the limits page. Each word stands for itself: of two threads that look at different generations
/// neither can make the other's answer look like one to its own.
#[derive(Debug)]
struct Kept {
    limits: AtomicPtr<LimitsPage>,
    /// One more than the generation that nothing was made of, and than the one that something was; 0 is none.
    none_of: AtomicU64,
    made_of: AtomicU64,
    /// What that is: the same as long as the session lives.
    made: AtomicPtr<c_void>,
}

const _: () = assert!(core::mem::offset_of!(Page, kept) + size_of::<Kept>() <= 64, "what every launch asks is in one cache line");

/// What this process has made of its limits, if they are still the same: null if that was nothing. `None` if it has to be made anew.
#[inline]
pub fn kept() -> Option<*mut c_void> {
    // SAFETY: the page is never unmapped, nor are the limits.
    unsafe {
        let kept = &PAGE_AT.load(Acquire).as_ref()?.kept;
        let now = kept.limits.load(Acquire).as_ref()?.generation.load(Relaxed).wrapping_add(1);
        if kept.none_of.load(Relaxed) == now {
            return Some(core::ptr::null_mut());
        }
        (kept.made_of.load(Acquire) == now).then(|| kept.made.load(Relaxed))
    }
}

/// Keeps what was made of a generation of the limits: nothing if that is null, else always the same in a session.
pub fn keep(session: &'static Session, generation: u64, made: *mut c_void) {
    // SAFETY: the page is never unmapped.
    if let Some(page) = unsafe { PAGE_AT.load(Acquire).as_ref() } {
        if made.is_null() {
            page.kept.none_of.store(generation.wrapping_add(1), Relaxed);
        } else {
            page.kept.made.store(made, Relaxed);
            page.kept.made_of.store(generation.wrapping_add(1), Release);
        }
        page.kept.limits.store(core::ptr::from_ref(session.limits).cast_mut(), Release);
    }
}

static PAGE_AT: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());

/// This process's session, started if need be.
#[inline]
pub fn current() -> State {
    if let Some(session) = ready() { State::Ready(session) } else { start() }
}

/// This process's session, if it has been started.
#[inline]
pub fn ready() -> Option<&'static Session> {
    // SAFETY: the page is never unmapped, and a session in it lives as long as the process.
    unsafe { PAGE_AT.load(Acquire).as_ref()?.session.load(Acquire).as_ref() }
}

/// Whether any GPU of this process has a memory limit, or nobody can know.
pub fn is_memory_limited() -> bool {
    match current() {
        State::Ready(session) => session.gpus().iter().any(|gpu| gpu.memory_limit().is_some()),
        State::NotYet => false,
        State::Refused => true,
    }
}

fn page() -> Option<&'static Page> {
    let mut page = PAGE_AT.load(Acquire);
    if page.is_null() {
        page = allocate();
        // SAFETY: advice on a mapping of ours. Linux 4.14 and later know it, and every driver of CUDA 12 and later needs those.
        if page.is_null() || unsafe { libc::madvise(page.cast(), size_of::<Page>(), libc::MADV_WIPEONFORK) } != 0 {
            return None;
        }
        if let Err(other) = PAGE_AT.compare_exchange(core::ptr::null_mut(), page, Release, Acquire) {
            page = other;
        }
    }
    // SAFETY: mapped for the life of the process.
    unsafe { page.as_ref() }
}

#[cold]
fn start() -> State {
    let Some(page) = page() else {
        log::line(LogLevel::Error, format_args!("no memory, or a kernel without MADV_WIPEONFORK (4.14): no GPU for this process"));
        return State::Refused;
    };
    if page.refused.load(Acquire) != 0 {
        return State::Refused;
    }
    let mut count = 0;
    // SAFETY: the driver writes one integer.
    if unsafe { driver::device_count(&raw mut count) } != SUCCESS {
        return State::NotYet;
    }
    match build(count as usize) {
        Ok(session) => match page.session.compare_exchange(core::ptr::null_mut(), session, Release, Acquire) {
            Ok(_) => {
                // SAFETY: just built, and never freed.
                let session = unsafe { &*session };
                State::Ready(session)
            }
            Err(other) => {
                // SAFETY: the other thread's session is complete; ours was seen by nobody, and unmapping its region frees its slot.
                unsafe {
                    map::unmap((*session).membership.region);
                    State::Ready(&*other)
                }
            }
        },
        Err(problem) => {
            if page.refused.swap(1, Release) == 0 {
                let (path, error) = problem;
                log::line(LogLevel::Error, format_args!("{}: {error}; no GPU for this process", path.to_str().unwrap_or("?")));
            }
            State::Refused
        }
    }
}

/// The files' paths: the fixed ones, or, in a process outside any container of ours (benchmarks, tests), those in `VGPU_DIR`.
struct Paths {
    limits: [u8; 256],
    region: [u8; 256],
}

static PATHS: AtomicPtr<Paths> = AtomicPtr::new(core::ptr::null_mut());

fn paths() -> (&'static CStr, &'static CStr) {
    // SAFETY: set once, to a mapping that is never removed.
    if let Some(paths) = unsafe { PATHS.load(Acquire).as_ref() } {
        let text = |bytes: &'static [u8; 256]| CStr::from_bytes_until_nul(bytes).unwrap_or_default();
        return (text(&paths.limits), text(&paths.region));
    }
    (paths::LIMITS_C, paths::REGION_C)
}

/// The paths of limits page and region, for a process that takes no slot.
pub fn files() -> (&'static CStr, &'static CStr) {
    choose_paths();
    paths()
}

/// The region's path, for whoever has to open it again.
pub fn region_path() -> &'static CStr {
    paths().1
}

/// In a container of ours the mounted files are there, and whatever the environment says does not count. Nor does it where they cannot
/// be seen although we come from there: after a chroot, say.
fn choose_paths() {
    if elf::we_are_below(paths::DIR) {
        return;
    }
    // SAFETY: C strings; getenv's answer is read at once, and before any limit is in force.
    unsafe {
        if libc::access(paths::LIMITS_C.as_ptr(), libc::F_OK) == 0 || *libc::__errno_location() != libc::ENOENT {
            return;
        }
        let folder = libc::getenv(c"VGPU_DIR".as_ptr());
        let paths: *mut Paths = allocate();
        if folder.is_null() || paths.is_null() || libc::strlen(folder) > 200 {
            return;
        }
        for (place, name) in [((*paths).limits.as_mut_ptr(), c"/limits"), ((*paths).region.as_mut_ptr(), c"/region")] {
            libc::strcpy(place.cast(), folder);
            libc::strcat(place.cast(), name.as_ptr());
        }
        PATHS.store(paths, Release);
    }
}

fn build(count: usize) -> Result<*mut Session, (&'static CStr, map::Error)> {
    choose_paths();
    let (limits_path, region_path) = paths();
    log::set_level_by_environment(LogLevel::Warn);
    let limits = map::limits(limits_path).map_err(|error| (limits_path, error))?;
    log::set_level_by_environment(limits.log_level());
    // SAFETY: the call takes nothing.
    let pid = unsafe { libc::getpid() } as u32;
    let membership = map::join(region_path, pid, realtime()).map_err(|error| (region_path, error))?;
    let failed = |call| (region_path, map::Error::System { call, errno: libc::ENODEV });
    let first = membership.region.gpus.first().ok_or(failed("region"))?;
    let nobody = Gpu {
        device: 0,
        uuid: Uuid::default(),
        total: 0,
        place: 0,
        limit: None,
        account: first,
        charge: membership.slot().gpus.first().ok_or(failed("region"))?,
    };
    let session: *mut Session = allocate();
    if session.is_null() || count > MAX_GPUS {
        return Err(failed("more than 16 GPUs"));
    }
    let mut gpus = [nobody; MAX_GPUS];
    for (ordinal, gpu) in gpus.iter_mut().enumerate().take(count) {
        *gpu = find_gpu(ordinal as i32, limits, membership).ok_or(failed("device"))?;
        log::line(LogLevel::Info, format_args!("device {ordinal} is {}, limit {:?} bytes of {}", gpu.uuid, gpu.memory_limit(), gpu.total));
    }
    // SAFETY: freshly mapped, large and aligned enough.
    unsafe { session.write(Session { limits, membership, count, gpus, mps_percent: mps_percent(limits) }) };
    Ok(session)
}

/// Only in the way that the runtime set it up, and read before the driver is initialised. That the driver reads it no later, so that what
/// the program changes afterwards changes nothing, is taken for granted here and was not seen: no daemon was at hand.
fn mps_percent(limits: &LimitsPage) -> u32 {
    if !limits.is_mps() {
        return 0;
    }
    // SAFETY: C strings; getenv's answers are read at once.
    unsafe {
        let pipes = libc::getenv(c"CUDA_MPS_PIPE_DIRECTORY".as_ptr());
        let percent = libc::getenv(c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".as_ptr());
        if pipes.is_null()
            || percent.is_null()
            || libc::strcmp(pipes, paths::MPS_C.as_ptr()) != 0
            || libc::access(paths::MPS_CONTROL_C.as_ptr(), libc::F_OK) != 0
        {
            return 0;
        }
        // 0 for what is no number: then the library limits.
        u32::try_from(libc::atoi(percent)).unwrap_or(0)
    }
}

fn find_gpu(ordinal: i32, limits: &'static LimitsPage, membership: Membership) -> Option<Gpu> {
    let (mut device, mut uuid, mut total) = (0, [0; 16], 0);
    // SAFETY: the driver writes into variables of the documented types.
    unsafe {
        if driver::device_get(&raw mut device, ordinal) != SUCCESS
            || driver::device_total(&raw mut total, device) != SUCCESS
            || (driver::device_uuid(&raw mut uuid, device) != SUCCESS && driver::device_uuid_v1(&raw mut uuid, device) != SUCCESS)
        {
            return None;
        }
    }
    let uuid = Uuid(uuid);
    let index = if limits.has_index_entries() { nvml_query::index_of(uuid) } else { None };
    let place = map::account(region_path(), membership.region, uuid).ok()?;
    let account = membership.region.gpus.get(place)?;
    let charge = membership.slot().gpus.get(place)?;
    Some(Gpu { device, uuid, total: total as u64, place, limit: limits.find(uuid, index), account, charge })
}

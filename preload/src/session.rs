//! The session: this process's mapped limits page, its slot in the region, its GPUs.
//!
//! A session belongs to one process. The pointer to it is in a page that the kernel clears in a forked child, so a child starts a session
//! of its own at its first call, however it was forked.

mod build;
mod files;
mod model;

use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::limits::{LimitsPage, LogLevel};
use vgpu_region::map;

pub use self::files::choose as files;
pub use self::model::{Gpu, Session};
use crate::loader::driver;
use crate::os::log;
use crate::os::mmap::allocate;
use vgpu_cuda_abi::cuda::SUCCESS;

/// State of this process's session.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// Limits and accounts are mapped.
    Ready(&'static Session),
    /// The driver is not initialised; its own calls report that.
    NotYet,
    /// The limits cannot be read, so limited calls are refused.
    Refused,
}

/// Process state that the kernel clears in a forked child. The part that every launch reads is in one cache line.
#[repr(C, align(4096))]
struct Page {
    /// The session; null before it is started.
    session: AtomicPtr<Session>,
    /// 1 if the session could not be built.
    refused: AtomicU32,
    /// Unused.
    padding: AtomicU32,
    /// See [`Cache`].
    cache: Cache,
}

/// Cache of a value derived from one generation of the limits.
///
/// The words are independent: of two threads that see different generations, neither can make the other's value look current to itself.
#[derive(Debug)]
struct Cache {
    /// The limits page; null while nothing is cached.
    limits: AtomicPtr<LimitsPage>,
    /// Generation plus one for which the value is null; 0 is none.
    null_for: AtomicU64,
    /// Generation plus one for which `value` is valid; 0 is none.
    valid_for: AtomicU64,
    /// The value; the same as long as the session lives.
    value: AtomicPtr<c_void>,
}

const _: () = assert!(core::mem::offset_of!(Page, cache) + size_of::<Cache>() <= 64, "launches read one cache line");

/// Returns the value cached for the current generation of the limits; may be null. `None` if the limits have changed since.
#[inline]
pub fn cached() -> Option<*mut c_void> {
    // SAFETY: neither the page nor the limits are ever unmapped.
    unsafe {
        let cache = &PAGE.load(Acquire).as_ref()?.cache;
        let now = cache.limits.load(Acquire).as_ref()?.generation.load(Relaxed).wrapping_add(1);
        if cache.null_for.load(Relaxed) == now {
            return Some(core::ptr::null_mut());
        }
        (cache.valid_for.load(Acquire) == now).then(|| cache.value.load(Relaxed))
    }
}

/// Caches a value for a generation of the limits: null, or a pointer that is the same as long as the session lives.
pub fn cache(session: &'static Session, generation: u64, value: *mut c_void) {
    // SAFETY: the page is never unmapped.
    if let Some(page) = unsafe { PAGE.load(Acquire).as_ref() } {
        if value.is_null() {
            page.cache.null_for.store(generation.wrapping_add(1), Relaxed);
        } else {
            page.cache.value.store(value, Relaxed);
            page.cache.valid_for.store(generation.wrapping_add(1), Release);
        }
        page.cache.limits.store(core::ptr::from_ref(session.limits).cast_mut(), Release);
    }
}

/// This process's page; null before the first call.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());

/// Returns this process's session, and starts it if needed.
#[inline]
pub fn current() -> State {
    if let Some(session) = ready() { State::Ready(session) } else { start() }
}

/// Returns this process's session if it has been started.
#[inline]
pub fn ready() -> Option<&'static Session> {
    // SAFETY: the page is never unmapped, and a session in it lives as long as the process.
    unsafe { PAGE.load(Acquire).as_ref()?.session.load(Acquire).as_ref() }
}

/// Returns whether any GPU of this process has a memory limit; true if the limits cannot be read.
pub fn is_memory_limited() -> bool {
    match current() {
        State::Ready(session) => session.gpus().iter().any(|gpu| gpu.memory_limit().is_some()),
        State::NotYet => false,
        State::Refused => true,
    }
}

/// Returns the region's path.
pub fn region_path() -> &'static CStr {
    files::chosen().1
}

/// Returns this process's page, and maps it if needed. `None` without memory or on a kernel without `MADV_WIPEONFORK`.
fn page() -> Option<&'static Page> {
    let mut page = PAGE.load(Acquire);
    if page.is_null() {
        page = allocate();
        // SAFETY: advice on a fresh mapping. Linux 4.14 and later have it, and every driver of CUDA 12 and later needs those.
        if page.is_null() || unsafe { libc::madvise(page.cast(), size_of::<Page>(), libc::MADV_WIPEONFORK) } != 0 {
            return None;
        }
        if let Err(other) = PAGE.compare_exchange(core::ptr::null_mut(), page, Release, Acquire) {
            page = other;
        }
    }
    // SAFETY: mapped for the life of the process.
    unsafe { page.as_ref() }
}

/// Starts this process's session.
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
    match build::build(count as usize) {
        Ok(session) => match page.session.compare_exchange(core::ptr::null_mut(), session, Release, Acquire) {
            Ok(_) => {
                // SAFETY: just built, and never freed.
                let session = unsafe { &*session };
                State::Ready(session)
            }
            Err(other) => {
                // SAFETY: the other thread's session is complete; no other thread has seen this one, and unmapping its region frees its
                // slot.
                unsafe {
                    map::unmap((*session).membership.region);
                    State::Ready(&*other)
                }
            }
        },
        Err((path, error)) => {
            if page.refused.swap(1, Release) == 0 {
                log::line(LogLevel::Error, format_args!("{}: {error}; no GPU for this process", path.to_str().unwrap_or("?")));
            }
            State::Refused
        }
    }
}

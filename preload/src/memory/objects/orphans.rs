//! Exported memory that its maker has freed while a descriptor keeps it on the device. NVML lists it for no process; it stays charged to
//! its maker until the descriptor is closed.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::memory::ledger::account;
use crate::session::Gpu;

/// Mark of memory that no descriptor keeps.
pub const BY_NAME: u64 = 1;
/// Mark of memory that several descriptors may keep.
pub const BY_SEVERAL: u64 = u64::MAX;

/// Returns the mark of a descriptor: its number and part of its inode, to tell whether it is still the same file's.
pub fn mark(descriptor: i32) -> u64 {
    // SAFETY: all-zero is valid for this structure of numbers, which the call fills.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        let known = descriptor >= 0 && libc::fstat(descriptor, &raw mut about) == 0;
        if known { (descriptor as u64 + 1) << 32 | (about.st_ino as u64 & 0xffff_ffff) } else { BY_NAME }
    }
}

/// Returns true if a descriptor still keeps exported memory. One that was sent to another process and closed here counts as closed: memory
/// that is imported by it is charged there.
pub fn is_kept(by: u64) -> bool {
    by == BY_SEVERAL || (by != BY_NAME && mark((by >> 32) as i32 - 1) == by)
}

/// Freed memory that is still on the device.
struct Kept {
    /// Number of pages; 0 in a free record, [`WRITING`] in one that is being written.
    pages: AtomicU32,
    /// Device that the memory is on.
    device: AtomicI32,
    /// What keeps the memory, as for [`is_kept`].
    by: AtomicU64,
}

/// All records.
static KEPT: [Kept; 64] = [const { Kept { pages: AtomicU32::new(0), device: AtomicI32::new(0), by: AtomicU64::new(0) } }; 64];
/// Number of pages in a record that is being written.
const WRITING: u32 = u32::MAX;

/// Gives back memory whose descriptors are closed by now.
pub fn recheck(gpu: &Gpu) {
    for kept in &KEPT {
        let pages = kept.pages.load(Acquire);
        let here = pages != 0 && pages != WRITING && kept.device.load(Relaxed) == gpu.device;
        if here && !is_kept(kept.by.load(Relaxed)) && kept.pages.compare_exchange(pages, 0, AcqRel, Relaxed).is_ok() {
            _ = gpu.charge.managed.fetch_update(AcqRel, Relaxed, |there| Some(there.saturating_sub(pages)));
            account::release(gpu, pages);
        }
    }
}

/// Records freed memory for [`recheck`]. Beyond the table it stays charged.
pub fn keep(gpu: &Gpu, pages: u32, by: u64) {
    let free = |kept: &&Kept| kept.pages.compare_exchange(0, WRITING, AcqRel, Relaxed).is_ok();
    if let Some(kept) = KEPT.iter().find(free) {
        kept.device.store(gpu.device, Relaxed);
        kept.by.store(by, Relaxed);
        kept.pages.store(pages, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_keeps_memory_until_it_is_closed_or_replaced() {
        let open = |path: &core::ffi::CStr| {
            // SAFETY: a C string.
            unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) }
        };
        let one = open(c"/dev/null");
        let by = mark(one);
        assert!(is_kept(by) && !is_kept(BY_NAME) && is_kept(BY_SEVERAL));
        // SAFETY: descriptors of this test's own.
        unsafe {
            let other = open(c"/dev/zero");
            libc::dup2(other, one);
            assert!(!is_kept(by));
            libc::close(one);
            libc::close(other);
        }
        assert!(!is_kept(by));
    }
}

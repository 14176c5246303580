//! Counts and logs refusals.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;
use vgpu_region::limits::LogLevel;

use crate::memory::ledger::spilled;
use crate::os::log::Throttle;
use crate::os::{clock, log};
use crate::session::Gpu;
use crate::trace::sink;

/// Limits the log lines about refusals.
static REFUSED: Throttle = Throttle::new();

/// Counts a refusal of `pages`, and logs it with the figures to act on.
#[cold]
pub fn refuse(gpu: &Gpu, pages: u32) {
    let why = if spilled::ceiling(gpu) == 0 { "" } else { "; this kind of memory cannot lie on the host instead" };
    refuse_with(gpu, pages, format_args!("{why}"));
}

/// As [`refuse`], with more text for the log line.
#[cold]
pub fn refuse_with(gpu: &Gpu, pages: u32, more: core::fmt::Arguments<'_>) {
    gpu.account.refused.fetch_add(1, Relaxed);
    sink::refused(u64::from(pages) * PAGE);
    _ = gpu.account.first_refusal.compare_exchange(0, clock::realtime(), Relaxed, Relaxed);
    if REFUSED.allow() {
        let mib = |pages: u64| (pages * PAGE) >> 20;
        log::line(
            LogLevel::Warn,
            format_args!(
                "{}: refused {} MiB: the container holds {} of its {} MiB, this process {}; refusals so far: {}{more}",
                gpu.uuid,
                mib(u64::from(pages)).max(1),
                mib(gpu.account.total.pages()),
                mib(gpu.limit_pages()),
                mib(u64::from(gpu.charge.charge.held())),
                gpu.account.refused.load(Relaxed),
            ),
        );
    }
}

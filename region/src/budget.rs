//! The compute budget of one container on one GPU: GPU time accrues at the limit's rate and is charged as it is used.
//!
//! The whole balance is one word, `Budget::zero_at`: the time at which the balance is exactly zero. The balance at `now` is
//! `(now - zero_at) × rate`. So the passing of time is the accrual, and a charge of `c` is one `fetch_add` of `c / rate`. No update can be
//! half done, so a process may be killed at any instruction; and none can be lost, so there is nothing to lock.
//!
//! Debt is GPU time. When the rate changes, the next reader moves `zero_at`, so that a debt made at 10% is paid off eight times as fast at 80%.
//! A charge at that moment may count at either rate.
//!
//! The processes of a container use the GPU one after the other: a GPU that slices its time between them loses a tenth. Each takes a
//! lease for the time that its work is expected to take. A lease expires, so a killed process blocks no other.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC` as the container's processes see it; leases count microseconds ([`Micros`]). The tenant can
//! write anything in here: values read back are clamped, and the host side treats them as this tenant's own claim.

use crate::sync::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Longest time until a debt is paid off, in nanoseconds of wall time. A larger debt is cut.
pub const MAX_DEBT_NS: u64 = 600_000_000_000;
/// Balance of a new container, in nanoseconds of GPU time.
pub(crate) const INITIAL_NS: u64 = 1_000_000;

/// Time for which a process that was refused a lease comes first. After that it has probably given up.
pub(crate) const REQUEST_TIMEOUT: Micros = Micros(50_000);
/// Time for which a process that had or wanted the lease counts as one that shares the GPU. With kernels of 100 ms at a few percent, each
/// process has a lease every few seconds.
pub const SHARED_WINDOW: Micros = Micros(3_000_000);
/// Longest lease. A later expiry is garbage, or from before the clock was set back by a restore.
pub(crate) const MAX_LEASE: Micros = Micros(1_000_000);
/// Bits of a lease word that hold its time; the process is above them.
const TIME_BITS: u32 = 48;

/// A time or duration in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// Converts nanoseconds, rounded down.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns / 1000)
    }
}

impl core::ops::Add for Micros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

/// A share of a GPU's time, in percent from 1 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u32);

impl Rate {
    /// Returns the rate, or `None` for percentages that are no limit: 0, and 100 and more.
    #[must_use]
    pub const fn new(percent: u32) -> Option<Self> {
        if percent == 0 || percent >= 100 { None } else { Some(Self(percent)) }
    }

    /// Returns the rate in percent.
    #[must_use]
    pub const fn percent(self) -> u32 {
        self.0
    }

    /// Returns the wall time in which this much GPU time accrues. Both in nanoseconds.
    #[must_use]
    pub const fn time_for(self, gpu_ns: u64) -> u64 {
        gpu_ns.saturating_mul(100) / self.0 as u64
    }

    const fn accrued_in(self, wall_ns: u64) -> u64 {
        wall_ns / 100 * self.0 as u64 + wall_ns % 100 * self.0 as u64 / 100
    }
}

/// Shared state of the compute limit.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Budget {
    pub(crate) zero_at: AtomicU64,
    /// GPU time charged since the container started, in nanoseconds.
    pub used: AtomicU64,
    /// Time for which launches were held back, summed over threads, in nanoseconds.
    pub waited: AtomicU64,
    /// The current or last lease: process and expiry.
    pub(crate) lease: AtomicU64,
    /// The process that gets the next lease, and the time of its request.
    lease_request: AtomicU64,
    /// Number of closed batches of launches, and of naps before a process's first launch: shows the arbiter whether the tenant is active.
    pub activity: AtomicU64,
    /// Expected GPU time of the work in flight at the last of them, in nanoseconds.
    pub ahead: AtomicU64,
    /// Word of the turn that a launch waits behind, or, while the turn is open, still needs.
    pub want: AtomicU64,
    /// Word of the turn that was applied: of a closed one, nothing of the container runs any more, or nearly so.
    pub drained: AtomicU64,
    /// Number of leases that ended before they expired. Waited on as a futex.
    pub lease_ends: AtomicU32,
    /// Rate that `zero_at` refers to, in percent; 0 before the first look at the balance.
    pub(crate) percent: AtomicU32,
    /// Whether a process of the container switches its channel groups as the arbiter says: 0 while unknown, [`Budget::SWITCHES`], or
    /// [`Budget::REFUSED`].
    pub controls: AtomicU64,
    reserved: [AtomicU64; 109],
}

impl Default for Budget {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            zero_at: zero(),
            used: zero(),
            waited: zero(),
            lease: zero(),
            lease_request: zero(),
            activity: zero(),
            ahead: zero(),
            want: zero(),
            drained: zero(),
            lease_ends: AtomicU32::new(0),
            percent: AtomicU32::new(0),
            controls: zero(),
            reserved: core::array::from_fn(|_| zero()),
        }
    }
}

impl Budget {
    /// Value of [`Budget::controls`]: the process switches its channel groups.
    pub const SWITCHES: u64 = 1;
    /// Value of [`Budget::controls`]: the driver refused.
    pub const REFUSED: u64 = 2;
    /// Bytes from the first on that have a meaning.
    pub const USED_BYTES: usize = core::mem::offset_of!(Self, reserved);

    /// Returns the GPU time that may be used now, in nanoseconds; negative is debt. Between minus [`MAX_DEBT_NS`] at this rate and
    /// `max_saved_ns`, the most that can be saved up.
    pub fn balance(&self, now: u64, rate: Rate, max_saved_ns: u64) -> i64 {
        let mut zero_at = self.zero_at.load(Acquire);
        if zero_at == 0 {
            // The first look starts a new budget. If two threads come first, one of them does.
            let start = now.saturating_sub(rate.time_for(INITIAL_NS));
            zero_at = self.zero_at.compare_exchange(0, start, AcqRel, Acquire).map_or_else(|seen| seen, |_| start);
        }
        if self.percent.load(Relaxed) != rate.percent() {
            zero_at = self.change_rate(now, rate);
        }
        // Savings above the bound are forfeit.
        let earliest = now.saturating_sub(rate.time_for(max_saved_ns));
        if zero_at < earliest {
            zero_at = self.zero_at.fetch_max(earliest, AcqRel).max(earliest);
        }
        let latest = now.saturating_add(MAX_DEBT_NS);
        if zero_at > latest {
            _ = self.zero_at.compare_exchange(zero_at, latest, AcqRel, Acquire);
            return -(rate.accrued_in(MAX_DEBT_NS) as i64);
        }
        if zero_at <= now { rate.accrued_in(now - zero_at) as i64 } else { -(rate.accrued_in(zero_at - now) as i64) }
    }

    /// Converts the debt to a new rate. One of the threads that see the change does it. Returns the new `zero_at`.
    #[cold]
    fn change_rate(&self, now: u64, rate: Rate) -> u64 {
        let before = self.percent.load(Relaxed);
        let is_ours = before != rate.percent() && self.percent.compare_exchange(before, rate.percent(), AcqRel, Relaxed).is_ok();
        let zero_at = self.zero_at.load(Acquire);
        let (Some(before), true) = (Rate::new(before), is_ours && zero_at > now) else { return zero_at };
        let before_ns = (zero_at - now).min(MAX_DEBT_NS);
        let after_ns = rate.time_for(before.accrued_in(before_ns)).min(MAX_DEBT_NS);
        // Other threads' charges in the meantime are kept.
        if after_ns > before_ns {
            self.zero_at.fetch_add(after_ns - before_ns, AcqRel);
        } else {
            self.zero_at.fetch_sub(before_ns - after_ns, AcqRel);
        }
        self.zero_at.load(Acquire)
    }

    /// Charges GPU time, or refunds it if negative. In nanoseconds. `rate` applies if the balance was never looked at.
    pub fn charge(&self, gpu_ns: i64, rate: Rate) {
        self.charge_scaled(gpu_ns, gpu_ns, rate);
    }

    /// Charges `charged_ns` nanoseconds for `gpu_ns` nanoseconds of GPU time; [`Budget::used`] counts the latter. Both are negative for a
    /// refund.
    pub fn charge_scaled(&self, gpu_ns: i64, charged_ns: i64, rate: Rate) {
        let rate = Rate::new(self.percent.load(Relaxed)).unwrap_or(rate);
        let (used_ns, wall_ns) = (gpu_ns.unsigned_abs(), rate.time_for(charged_ns.unsigned_abs()).min(MAX_DEBT_NS));
        if gpu_ns >= 0 {
            self.used.fetch_add(used_ns, Relaxed);
            self.zero_at.fetch_add(wall_ns, AcqRel);
        } else {
            self.used.fetch_sub(used_ns, Relaxed);
            self.zero_at.fetch_sub(wall_ns, AcqRel);
        }
    }

    /// Takes or extends the lease of `process` (from 1) until `until`. Returns false, and requests the lease, while another process has it.
    pub fn acquire_lease(&self, process: u16, now: Micros, until: Micros) -> bool {
        let ours = lease_word(process, until);
        let mut seen = self.lease.load(Acquire);
        loop {
            let (holder, expiry) = parts(seen);
            if holder != 0 && holder != process && expiry > now && expiry.0 < now.0.saturating_add(MAX_LEASE.0) {
                self.request_lease(process, now);
                return false;
            }
            match self.lease.compare_exchange_weak(seen, ours, AcqRel, Acquire) {
                Ok(_) => {
                    // The request is fulfilled.
                    let request = self.lease_request.load(Relaxed);
                    if parts(request).0 == process {
                        _ = self.lease_request.compare_exchange(request, 0, Relaxed, Relaxed);
                    }
                    return true;
                }
                Err(other) => seen = other,
            }
        }
    }

    /// Ends the lease of `process`. Returns false if another process has taken it.
    pub fn release_lease(&self, process: u16, now: Micros) -> bool {
        let seen = self.lease.load(Acquire);
        let is_released = parts(seen).0 == process && self.lease.compare_exchange(seen, lease_word(process, now), AcqRel, Acquire).is_ok();
        if is_released {
            self.lease_ends.fetch_add(1, AcqRel);
        }
        is_released
    }

    /// Requests the next lease for `process`. A process that requested it before keeps its place.
    pub fn request_lease(&self, process: u16, now: Micros) {
        let seen = self.lease_request.load(Relaxed);
        if !is_recent_of_other(seen, process, now, REQUEST_TIMEOUT) {
            _ = self.lease_request.compare_exchange(seen, lease_word(process, now), Relaxed, Relaxed);
        }
    }

    /// Returns true if another process of the container had or wanted the lease within [`SHARED_WINDOW`].
    pub fn is_shared(&self, process: u16, now: Micros) -> bool {
        [&self.lease, &self.lease_request].iter().any(|word| is_recent_of_other(word.load(Relaxed), process, now, SHARED_WINDOW))
    }

    /// Returns true if another process has requested the next lease, and comes first.
    pub fn is_lease_contended(&self, process: u16, now: Micros) -> bool {
        is_recent_of_other(self.lease_request.load(Relaxed), process, now, REQUEST_TIMEOUT)
    }
}

/// Packs a process and a time into one word.
const fn lease_word(process: u16, at: Micros) -> u64 {
    (process as u64) << TIME_BITS | at.0 & ((1 << TIME_BITS) - 1)
}

/// Returns the process and the time of a lease word.
const fn parts(word: u64) -> (u16, Micros) {
    ((word >> TIME_BITS) as u16, Micros(word & ((1 << TIME_BITS) - 1)))
}

/// Returns true if the word is another process's and its time is within `window` before `now`, or up to [`MAX_LEASE`] after it.
fn is_recent_of_other(word: u64, process: u16, now: Micros, window: Micros) -> bool {
    let (owner, at) = parts(word);
    owner != 0 && owner != process && at.0 < now.0.saturating_add(MAX_LEASE.0) && now.0.saturating_sub(at.0) < window.0
}

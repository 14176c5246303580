//! Taking from and giving back to the container's account.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::ledger::{PAGE, pages};
use vgpu_region::limits::LogLevel;
use vgpu_region::map::Census;

use super::exclusive::Exclusive;
use super::{GRANULE_PAGES, array, kept, ordered, pools, shared, spill, truth};
use crate::cuda::{OUT_OF_MEMORY, Status};
use crate::log::{self, Seldom};
use crate::session::{self, Gpu};

/// Pages taken for a call that is about to be made. It has to be settled.
#[must_use]
#[derive(Debug)]
pub struct Claim<'a> {
    gpu: &'a Gpu,
    pages: u32,
}

/// Takes `pages` before the driver is asked.
///
/// # Errors
/// CUDA's out-of-memory code, when the container has no room even after everything was counted anew.
#[inline]
pub fn claim(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    match try_claim(gpu, pages) {
        Some(claim) => Ok(claim),
        None => claim_after_recount(gpu, pages),
    }
}

/// As [`claim`], for memory that can lie on the host instead.
///
/// # Errors
/// [`spill::ELSEWHERE`] where it may, and nothing is said; else as there.
#[inline]
pub fn claim_here(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    match try_claim(gpu, pages) {
        Some(claim) => Ok(claim),
        None => claim_here_after_recount(gpu, pages),
    }
}

#[cold]
fn claim_here_after_recount(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    if spill::ceiling(gpu) == 0 { claim_after_recount(gpu, pages) } else { find_room(gpu, pages, false).ok_or(spill::ELSEWHERE) }
}

/// As [`claim`], but gives up at the first "no" without counting anew and without a word about it.
#[inline]
pub fn try_claim(gpu: &Gpu, pages: u32) -> Option<Claim<'_>> {
    let claim = begin(gpu, pages)?;
    match comparison(gpu) {
        None => Some(claim),
        Some(needed) => {
            claim.drop_all();
            begin_compared(gpu, pages, needed)
        }
    }
}

/// Pages left at which NVML is asked next, by GPU. What is made far from the limit is not measured (streams, graphs, page tables), so near
/// it NVML is asked each time that what is left has halved, from [`is_near`]'s bound on; and each time while something is only estimated.
static LOOK_AT: [AtomicU64; MAX_GPUS] = [const { AtomicU64::new(u64::MAX) }; MAX_GPUS];

/// Whether the account has to be compared with NVML before more is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    /// Another thread is at it, and wants the others to stand still.
    ByAnother,
    /// What this process holds is uncertain.
    Own,
    /// What is left has halved: what all hold.
    OfAll,
}

#[inline]
fn comparison(gpu: &Gpu) -> Option<Needed> {
    let limit = gpu.limit_pages();
    let left = limit.saturating_sub(gpu.account.total.pages());
    if left >= near(limit) {
        something_unmeasured(gpu);
        None
    } else if has_halved(gpu, left) {
        Some(Needed::OfAll)
    } else if is_doubtful(gpu) || ordered::pending_frees() != 0 || array::has_small(gpu) {
        Some(Needed::Own)
    } else {
        COMPARING.is_taken().then_some(Needed::ByAnother)
    }
}

/// Held by the thread that compares the account with NVML: while others of this process take memory, it would be uncertain.
static COMPARING: Exclusive = Exclusive::new();
/// In nanoseconds: some calls of the driver take long, and are not waited for.
const PATIENCE: u64 = 20_000_000;

/// Compares the account with NVML while no other thread begins to take memory near the limit. Whether it is certain then.
fn compare(gpu: &Gpu) -> bool {
    let begin = session::monotonic();
    loop {
        match truth::reconcile(gpu) {
            Some(false) if session::monotonic().saturating_sub(begin) < PATIENCE => {
                // SAFETY: the call takes nothing.
                unsafe { libc::sched_yield() };
            }
            compared => return compared != Some(false),
        }
    }
}

#[cold]
fn begin_compared(gpu: &Gpu, pages: u32, needed: Needed) -> Option<Claim<'_>> {
    let _comparing = COMPARING.take(2 * PATIENCE);
    if needed == Needed::ByAnother {
        return begin(gpu, pages);
    }
    let certain = compare(gpu);
    if needed == Needed::OfAll {
        shared::charge_others(gpu);
        if let Some(at) = LOOK_AT.get(gpu.place).filter(|_| certain) {
            at.store(gpu.left().saturating_sub(u64::from(pages)) / 2, Relaxed);
        }
    }
    begin_after(gpu, pages, certain)
}

#[inline]
fn has_halved(gpu: &Gpu, left: u64) -> bool {
    LOOK_AT.get(gpu.place).is_some_and(|at| left < at.load(Relaxed))
}

/// From now on the account may be too low: when the limit comes near, NVML is asked.
#[inline]
fn something_unmeasured(gpu: &Gpu) {
    if let Some(at) = LOOK_AT.get(gpu.place).filter(|at| at.load(Relaxed) != u64::MAX) {
        at.store(u64::MAX, Relaxed);
    }
}

/// After the account was compared with NVML; if that was not `certain`, as other threads' calls were under way, with room for what may be
/// on the device besides.
fn begin_after(gpu: &Gpu, pages: u32, certain: bool) -> Option<Claim<'_>> {
    let besides = if certain { 0 } else { u64::from(ordered::pending_frees()).saturating_add(array::uncertain(gpu)) };
    if gpu.left() >= besides.saturating_add(u64::from(pages)) { begin(gpu, pages) } else { None }
}

#[inline]
fn begin(gpu: &Gpu, pages: u32) -> Option<Claim<'_>> {
    gpu.charge.charge.begin(&gpu.account.total, pages, gpu.limit_pages()).ok().map(|()| Claim { gpu, pages })
}

/// On which GPUs, a bit for each by its place, this process has been charged for something that costs less than we think. When that
/// goes, too much is given back: near the limit NVML is then asked before anything is taken.
static DOUBTFUL: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(MAX_GPUS <= u32::BITS as usize);

#[inline]
fn is_doubtful(gpu: &Gpu) -> bool {
    DOUBTFUL.load(Relaxed) & (1 << gpu.place) != 0
}

/// NVML was asked: whether it counts less on this GPU than the contexts and allocations that we know of.
pub fn set_doubtful(gpu: &Gpu, less: bool) {
    match (less, is_doubtful(gpu)) {
        (true, false) => _ = DOUBTFUL.fetch_or(1 << gpu.place, Relaxed),
        (false, true) => _ = DOUBTFUL.fetch_and(!(1 << gpu.place), Relaxed),
        _ => {}
    }
}

impl Claim<'_> {
    /// The call has really taken this many pages.
    #[inline]
    pub fn settle(self, taken: u32) {
        self.gpu.charge.charge.finish(&self.gpu.account.total, self.pages, taken);
    }

    /// The call has taken what was claimed.
    #[inline]
    pub fn keep(self) {
        let pages = self.pages;
        self.settle(pages);
    }

    /// The call has taken what was claimed, for what no allocation call asked for.
    pub fn keep_as_overhead(self) {
        add_overhead(self.gpu, self.pages);
        self.keep();
    }

    /// The call has failed.
    pub fn drop_all(self) {
        self.settle(0);
    }
}

/// Charges what is there already, whatever the limit.
pub fn charge(gpu: &Gpu, pages: u32) {
    if pages != 0 && gpu.charge.charge.begin(&gpu.account.total, pages, u64::MAX).is_ok() {
        gpu.charge.charge.finish(&gpu.account.total, pages, pages);
    }
}

/// Gives pages back after the driver has.
#[inline]
pub fn release(gpu: &Gpu, pages: u32) {
    if pages != 0 {
        gpu.charge.charge.release(&gpu.account.total, pages);
    }
}

/// Changes under way of what the driver, the charge and the overhead say together, and how many have ended: between two that are equal
/// nobody changed them. Claims are not among them: they are in flight.
static CHANGING: AtomicU32 = AtomicU32::new(0);
static CHANGED: AtomicU32 = AtomicU32::new(0);

/// Makes a change of the driver's, the charge and the overhead that belongs together: meanwhile no comparison with NVML is certain.
#[inline]
pub fn together<T>(change: impl FnOnce() -> T) -> T {
    CHANGING.fetch_add(1, AcqRel);
    let result = change();
    CHANGED.fetch_add(1, AcqRel);
    CHANGING.fetch_sub(1, AcqRel);
    result
}

/// How many changes there were, unless one is under way.
pub fn quiet() -> Option<u32> {
    let changed = CHANGED.load(Acquire);
    (CHANGING.load(Acquire) == 0).then_some(changed)
}

/// Gives back pages that no allocation call asked for, at most what there is of that.
pub fn release_overhead(gpu: &Gpu, pages: u32) {
    together(|| release(gpu, take_overhead(gpu, pages)));
}

/// Adds to the part of the charge that no allocation call asked for.
pub fn add_overhead(gpu: &Gpu, pages: u32) {
    gpu.charge.overhead.fetch_add(pages, AcqRel);
}

/// Takes from that part, at most what is there. Gives what was taken.
fn take_overhead(gpu: &Gpu, pages: u32) -> u32 {
    let before = gpu.charge.overhead.fetch_update(AcqRel, Acquire, |there| Some(there.saturating_sub(pages))).unwrap_or(0);
    before.min(pages)
}

/// The account says no. Before the program hears it: give back what the dead held, let go of what pools no longer have, wait for a
/// context whose cost is still a guess, and ask NVML for the truth.
#[cold]
fn claim_after_recount(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    find_room(gpu, pages, false).ok_or_else(|| {
        refuse(gpu, pages);
        OUT_OF_MEMORY
    })
}

/// As [`claim`], for a context.
///
/// # Errors
/// As there.
pub fn claim_for_context(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    try_claim(gpu, pages).or_else(|| find_room(gpu, pages, true)).ok_or_else(|| {
        refuse(gpu, pages);
        OUT_OF_MEMORY
    })
}

#[cold]
fn find_room(gpu: &Gpu, pages: u32, context: bool) -> Option<Claim<'_>> {
    for _ in 0..400 {
        recover(gpu);
        pools::settle_all_of(gpu);
        if let Some(claim) = try_claim(gpu, pages) {
            return Some(claim);
        }
        if !someone_is_guessing(gpu, context) {
            break;
        }
        nap(5_000_000);
    }
    pools::trim_idle(gpu);
    // What calls under way have claimed may be more than they take, and what they take is not certain before they end.
    for milliseconds in [0, 1, 2, 4, 8] {
        nap(milliseconds * 1_000_000);
        let comparing = COMPARING.take(2 * PATIENCE);
        let certain = compare(gpu);
        recover(gpu);
        if let Some(claim) = begin_after(gpu, pages, certain) {
            return Some(claim);
        }
        drop(comparing);
        if !someone_is_taking(gpu) {
            break;
        }
    }
    None
}

/// Whether a call of some process is under way that may give back a part of what it has claimed.
fn someone_is_taking(gpu: &Gpu) -> bool {
    let Some(session) = session::ready() else { return false };
    session.membership.region.used_slots().any(|(_, slot)| slot.gpus.get(gpu.place).is_some_and(|charge| charge.charge.in_flight()))
}

/// Sleeps, unless a signal comes.
pub fn nap(nanoseconds: i64) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the structure is valid; the rest of an interrupted sleep is not needed.
    unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
}

/// Gives back what dead processes held.
///
/// A process lets go of its slot a little before the driver lets go of its memory, so the dead are given back only once NVML does
/// not list them any more.
pub fn recover(gpu: &Gpu) {
    let session::State::Ready(session) = session::current() else { return };
    kept::recheck(gpu);
    let census = Census::open(session::region_path());
    let own = session.membership.index;
    let mut listed = None;
    let recovered = session.membership.region.recover(gpu.place, |index, slot| {
        index != own && census.is_dead(index) && {
            let listed = listed.get_or_insert_with(|| truth::processes(gpu));
            !listed.as_ref().is_some_and(|list| list.contains(slot.pid.load(Relaxed)))
        }
    });
    // What the dead had shared lives on in those who imported it.
    if recovered && listed.is_some() {
        shared::charge_others(gpu);
    }
}

/// Whether a living process is making a context whose cost nobody knows yet: another one, if it is for a `context` of this thread's.
fn someone_is_guessing(gpu: &Gpu, context: bool) -> bool {
    let Some(session) = session::ready() else { return false };
    let census = Census::open(session::region_path());
    let own = session.membership.index;
    let makers = session.membership.region.used_slots().filter(|(_, slot)| slot.making_context.load(Acquire) != 0);
    let mut guessing = makers.filter(|(_, slot)| slot.gpus.get(gpu.place).is_some_and(|charge| charge.charge.in_flight()));
    guessing.any(|(index, _)| if index == own { !context } else { !census.is_dead(index) })
}

static REFUSED: Seldom = Seldom::new();

/// Notes a refusal, and says so with figures a person can act on.
#[cold]
pub fn refuse(gpu: &Gpu, pages: u32) {
    let why = if spill::ceiling(gpu) == 0 { "" } else { "; this kind of memory cannot lie on the host instead" };
    refuse_with(gpu, pages, format_args!("{why}"));
}

/// The same with something more to say.
#[cold]
pub fn refuse_with(gpu: &Gpu, pages: u32, more: core::fmt::Arguments<'_>) {
    gpu.account.refused.fetch_add(1, Relaxed);
    crate::trace::refused(u64::from(pages) * PAGE);
    _ = gpu.account.first_refusal.compare_exchange(0, session::realtime(), Relaxed, Relaxed);
    if REFUSED.now() {
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

/// Whether so little is left that estimates will not do: less than 64 MiB, or a sixteenth of the limit.
#[inline]
pub fn is_near(gpu: &Gpu) -> bool {
    let limit = gpu.limit_pages();
    limit.saturating_sub(gpu.account.total.pages()) < near(limit)
}

const fn near(limit: u64) -> u64 {
    const LEAST: u64 = pages(64 << 20) as u64;
    if limit / 16 > LEAST { limit / 16 } else { LEAST }
}

/// Guards a call that takes a little memory of its own for its purposes (a stream, a module, a graph): far from the limit it just
/// runs; near it, what it takes is measured, and if that went past the limit, undone.
pub fn guard(gpu: &Gpu, call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    if !is_near(gpu) {
        something_unmeasured(gpu);
        return call();
    }
    truth::reconcile(gpu);
    let Ok(room) = claim(gpu, GRANULE_PAGES) else { return OUT_OF_MEMORY };
    let before = truth::device_free();
    let status = call();
    room.drop_all();
    truth::reconcile_after(gpu, before);
    if status == crate::cuda::SUCCESS && gpu.account.total.pages() > gpu.limit_pages() {
        undo();
        truth::reconcile(gpu);
        refuse(gpu, GRANULE_PAGES);
        return OUT_OF_MEMORY;
    }
    status
}

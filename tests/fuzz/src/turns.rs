//! The arbiter's scheduler with tenants that write anything into their budgets.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arbitrary::{Arbitrary, Unstructured};
use vgpu_arbiter::scheduler::Scheduler;
use vgpu_arbiter::tenant::{Source, Tenant};
use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector, Turn};
use vgpu_region::uuid::Uuid;

/// The GPU.
const GPU: Uuid = Uuid([3; 16]);
/// Most tenants and steps of an execution.
const MOST: (usize, usize) = (4, 64);
/// Longest time until the scheduler wants to be called again, in µs: a sampling period.
const LONGEST: u64 = 10_000;

/// Limits of a tenant.
#[derive(Arbitrary, Debug)]
struct Limits {
    cores: u8,
    cores_soft: u8,
    is_first: bool,
}

/// What a tenant writes.
#[derive(Arbitrary, Debug)]
enum Word {
    Used(u64),
    Waited(u64),
    Activity(u64),
    Ahead(u64),
    Want(u64),
    Applied(u64),
    /// It waits for its turn.
    WantTurn,
    /// It has applied its turn's word.
    ApplyTurn,
    /// It switches its channels, as the library does.
    Switch,
    Controls(u64),
}

/// A tenant writes a word, and the scheduler is called some microseconds later.
#[derive(Arbitrary, Debug)]
struct Step {
    tenant: u8,
    word: Word,
    later: u32,
}

/// Tenant's pages.
struct Pages {
    limits: *mut LimitsPage,
    budget: *mut Budget,
}

impl Pages {
    fn new(limits: &Limits) -> Self {
        let limit = GpuLimit::new(Selector::All);
        limit.cores.store(limits.cores.into(), Relaxed);
        limit.cores_soft.store(limits.cores_soft.into(), Relaxed);
        let page = LimitsPage::new([limit]).with_priority(u32::from(!limits.is_first));
        Self { limits: Box::into_raw(Box::new(page)), budget: Box::into_raw(Box::default()) }
    }

    fn limits(&self) -> &'static LimitsPage {
        // SAFETY: the page is freed only when the value is dropped, after the scheduler with the tenants.
        unsafe { &*self.limits }
    }

    fn budget(&self) -> &'static Budget {
        // SAFETY: as above.
        unsafe { &*self.budget }
    }

    fn turn(&self) -> &'static Turn {
        self.limits().turn_for(GPU).expect("a free place")
    }

    fn tenant(&self) -> Tenant {
        let limit = self.limits().find(GPU, None).expect("an entry for all GPUs");
        Tenant::new(self.limits(), limit, self.turn(), Source::Memory(self.budget()))
    }

    fn write(&self, word: &Word) {
        let (budget, turn) = (self.budget(), u64::from(self.turn().word.load(Relaxed)));
        let (place, value): (&AtomicU64, u64) = match *word {
            Word::Used(value) => (&budget.used, value),
            Word::Waited(value) => (&budget.waited, value),
            Word::Activity(value) => (&budget.activity, value),
            Word::Ahead(value) => (&budget.ahead, value),
            Word::Want(value) => (&budget.want, value),
            Word::Applied(value) => (&budget.drained, value),
            Word::WantTurn => (&budget.want, turn),
            Word::ApplyTurn => (&budget.drained, turn),
            Word::Switch => (&budget.controls, Budget::SWITCHES),
            Word::Controls(value) => (&budget.controls, value),
        };
        place.store(value, Relaxed);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: both were made by `Box::into_raw`, and the tenants that refer to them are gone.
        unsafe {
            drop(Box::from_raw(self.limits));
            drop(Box::from_raw(self.budget));
        }
    }
}

/// Runs the scheduler. Asserts that it always wants to be called again soon, and that turns are open for two tenants at most.
pub fn turns(data: &[u8]) {
    let Ok((tenants, steps)) = <(Vec<Limits>, Vec<Step>)>::arbitrary(&mut Unstructured::new(data)) else { return };
    let pages: Vec<Pages> = tenants.iter().take(MOST.0).map(Pages::new).collect();
    if pages.is_empty() {
        return;
    }
    let mut scheduler = Scheduler::default();
    scheduler.replace_tenants(|_| true, pages.iter().map(Pages::tenant).collect());
    let mut now = 1_000_000;
    for step in steps.iter().take(MOST.1) {
        pages[usize::from(step.tenant) % pages.len()].write(&step.word);
        now += 1 + u64::from(step.later);
        let sleep = scheduler.tick(now);
        assert!((1..=LONGEST).contains(&sleep), "{sleep} µs");
        let open = scheduler.tenants.iter().filter(|tenant| !tenant.is_stuck && Turn::state(tenant.turn.word.load(Relaxed)) == Turn::OPEN);
        assert!(open.count() <= 2, "more than two turns are open");
        for tenant in &scheduler.tenants {
            assert!(tenant.virtual_time.is_finite(), "{tenant:?}");
        }
    }
    // A tenant that is gone leaves the others alone.
    let first = from_ref(pages[0].turn());
    scheduler.replace_tenants(|tenant| !std::ptr::eq(tenant.turn, first), Vec::new());
    scheduler.tick(now + 1);
}

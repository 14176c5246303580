//! Tenants whose channels are switched off outside their turns, on a simulated GPU with time slices.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector, Turn};
use vgpu_region::uuid::Uuid;

use super::*;
use crate::tenant::Source;

const GPU: Uuid = Uuid([4; 16]);
/// Step of the simulation, and what switching off and on take, in µs.
const STEP: u64 = 20;
const OFF_US: u64 = 600;
const ON_US: u64 = 360;
/// GPU time that a change from one tenant to another costs, and the driver's own slice, in µs.
const CHANGE_US: u64 = 220;
const DRIVER_SLICE_US: u64 = 2_048;

/// A tenant. It works in the first `works` µs of each `period`.
struct Simulated {
    page: &'static LimitsPage,
    budget: &'static Budget,
    works: u64,
    period: u64,
    /// Its processes are stopped: its thread reacts to nothing.
    is_stopped: bool,
    /// The word that its thread reacts to, and when that takes effect.
    pending: Option<(u32, u64)>,
    is_off: bool,
    used: u64,
}

fn tenant(priority: u32, weight: u32, works: u64, period: u64) -> Simulated {
    let limit = GpuLimit::new(Selector::All);
    limit.cores.store(weight, Relaxed);
    let page: &'static LimitsPage = Box::leak(Box::new(LimitsPage::new([limit]).with_priority(priority)));
    let budget: &'static Budget = Box::leak(Box::default());
    budget.controls.store(Budget::SWITCHES, Relaxed);
    Simulated { page, budget, works, period, is_stopped: false, pending: None, is_off: false, used: 0 }
}

fn busy(weight: u32) -> Simulated {
    tenant(1, weight, 1, 1)
}

impl Simulated {
    fn turn(&self) -> &'static Turn {
        self.page.turn_for(GPU).unwrap()
    }

    fn wants(&self, now: u64) -> bool {
        now % self.period < self.works
    }

    /// What the library does at `now`: its thread reacts to the turn, and the program launches.
    fn step(&mut self, now: u64) {
        if self.is_stopped {
            return;
        }
        let word = self.turn().word.load(Relaxed);
        let is_closed = |word| Turn::state(word) == Turn::CLOSED;
        if self.pending.is_none() && self.budget.drained.load(Relaxed) != u64::from(word) {
            let is_change = is_closed(word) != self.is_off;
            self.pending = Some((
                word,
                now + if !is_change {
                    0
                } else if self.is_off {
                    ON_US
                } else {
                    OFF_US
                },
            ));
        }
        if let Some((word, _)) = self.pending.take_if(|(_, at)| now >= *at) {
            self.is_off = is_closed(word);
            self.budget.drained.store(word.into(), Relaxed);
        }
        let ahead = if self.wants(now) { 2_000_000 } else { 0 };
        self.budget.ahead.store(ahead, Relaxed);
        if ahead != 0 {
            self.budget.activity.fetch_add(1, Relaxed);
            self.budget.want.store(word.into(), Relaxed);
        } else if Turn::state(word) == Turn::OPEN && now.is_multiple_of(5_000) {
            // The thread sees that the program waits for nothing.
            self.budget.want.store(0, Relaxed);
        }
    }

    fn slice_us(&self) -> u64 {
        match self.turn().slice_us.load(Relaxed) {
            0 => DRIVER_SLICE_US,
            slice_us => slice_us.into(),
        }
    }
}

/// Runs the tenants and the GPU for `length` µs; `each` is called before each step. Returns what each used after `from`, as a part.
fn run(tenants: &mut [Simulated], from: u64, length: u64, mut each: impl FnMut(u64, &mut [Simulated])) -> Vec<f64> {
    let mut scheduler = scheduler(tenants);
    let (mut next, mut owner, mut slice_end, mut changed_at) = (0, 0, 0, 0);
    let mut before = vec![0; tenants.len()];
    for now in (1_000_000..1_000_000 + length).step_by(STEP as usize) {
        if now >= next {
            next = now + scheduler.tick(now);
        }
        each(now, tenants);
        tenants.iter_mut().for_each(|tenant| tenant.step(now));
        if now == 1_000_000 + from {
            before = tenants.iter().map(|tenant| tenant.used).collect();
        }
        let can_run = |tenant: &Simulated| !tenant.is_off && tenant.wants(now);
        if !can_run(&tenants[owner]) || now >= slice_end {
            let count = tenants.len();
            if let Some(other) = (1..=count).map(|step| (owner + step) % count).find(|&other| can_run(&tenants[other])) {
                if other != owner {
                    changed_at = now;
                }
                (owner, slice_end) = (other, now + tenants[other].slice_us());
            }
        }
        if can_run(&tenants[owner]) && now >= changed_at + CHANGE_US {
            tenants[owner].used += STEP;
            tenants[owner].budget.used.fetch_add(STEP * 1_000, Relaxed);
        }
    }
    tenants.iter().zip(before).map(|(tenant, before)| (tenant.used - before) as f64 / (length - from) as f64).collect()
}

#[test]
fn busy_tenants_get_their_parts() {
    for weights in [&[30, 70][..], &[50, 50], &[25; 4], &[10, 20, 70]] {
        let mut tenants: Vec<Simulated> = weights.iter().map(|&weight| busy(weight)).collect();
        let parts = run(&mut tenants, 1_500_000, 6_500_000, |_, _| {});
        for (part, weight) in parts.iter().zip(weights) {
            assert!((part - f64::from(*weight) / 100.0).abs() < 0.02, "{weights:?}: {parts:?}");
        }
        assert!(parts.iter().sum::<f64>() > 0.98, "{weights:?}: {parts:?}");
    }
}

#[test]
fn many_tenants_share_evenly() {
    for (count, weight) in [(16, 6), (64, 1)] {
        let mut tenants: Vec<Simulated> = (0..count).map(|_| busy(weight)).collect();
        let parts = run(&mut tenants, 2_000_000, 12_000_000, |_, _| {});
        let (sum, squares): (f64, f64) = (parts.iter().sum(), parts.iter().map(|part| part * part).sum());
        assert!(sum * sum / (f64::from(count) * squares) > 0.99 && sum > 0.93, "{count}: {sum}, {parts:?}");
        assert!(parts.iter().all(|part| *part > 0.8 / f64::from(count)), "{count}: {parts:?}");
    }
}

/// A program that warms up is busy. Once it works for 1 ms in 20 it leaves the turns, though it has work for most of the time until then.
#[test]
fn who_was_busy_and_works_now_and_then_leaves_the_turns() {
    for weights in [&[70][..], &[25, 25, 20], &[90]] {
        let mut tenants: Vec<Simulated> = weights.iter().map(|&weight| busy(weight)).collect();
        tenants.push(tenant(1, 100 - weights.iter().sum::<u32>(), 1, 1));
        let mut last_off = 0;
        run(&mut tenants, 1_500_000, 9_000_000, |now, tenants| {
            let Some(last) = tenants.last_mut() else { return };
            if now == 4_000_000 {
                (last.works, last.period) = (1_000, 20_000);
            }
            last_off = if last.is_off { now } else { last_off };
        });
        assert!((3_900_000..5_000_000).contains(&last_off), "{weights:?}: off until {last_off}");
    }
}

/// It works for 1 ms in 20: once that is known it is never off beside one and beside three busy tenants, and these have short slices.
/// The arbiter may meet a container after its first work: the busy ones are not given short slices for a moment.
#[test]
fn who_has_worked_before_the_first_look_counts_as_busy() {
    let simulated = busy(30);
    simulated.budget.activity.store(1, Relaxed);
    let (limit, turn) = (simulated.page.find(GPU, None).unwrap(), simulated.turn());
    let tenant = Tenant::new(simulated.page, limit, turn, Source::Memory(simulated.budget));
    let mut scheduler = Scheduler { tenants: vec![tenant], ..Scheduler::default() };
    scheduler.tick(1_000_000);
    assert!(!scheduler.tenants[0].is_interactive);
}

#[test]
fn who_works_now_and_then_is_never_off() {
    for weights in [&[70][..], &[25, 25, 20]] {
        let mut tenants: Vec<Simulated> = weights.iter().map(|&weight| busy(weight)).collect();
        tenants.push(tenant(1, 30, 1_000, 20_000));
        let mut longest_slice = 0;
        let parts = run(&mut tenants, 1_500_000, 5_000_000, |now, tenants| {
            let (last, busy) = tenants.split_last().unwrap();
            if now > 2_500_000 {
                assert!(!last.is_off && last.slice_us() == DRIVER_SLICE_US, "at {now}");
                longest_slice = longest_slice.max(busy.iter().map(Simulated::slice_us).max().unwrap());
            }
        });
        assert_eq!(longest_slice, SHORT_SLICE_US.into());
        let busy: f64 = parts.iter().take(weights.len()).sum();
        assert!(busy > 0.85, "{parts:?}");
    }
}

#[test]
fn priority_0_keeps_a_busy_tenant_out_of_turns_within_its_share() {
    // Two thirds of its share of 30%, in pieces of 10 ms; and all of the time.
    for (works, is_ever_off) in [(10_000, false), (50_000, true)] {
        let mut tenants = [busy(35), busy(35), tenant(0, 30, works, 50_000)];
        let mut was_off = false;
        run(&mut tenants, 1_500_000, 5_000_000, |_, tenants| was_off |= tenants[2].is_off);
        assert_eq!(was_off, is_ever_off, "{works}");
    }
}

/// The one that is stopped has work on the GPU, on or off at that time.
#[test]
fn stopped_tenants_hold_up_nobody() {
    for stop in (3_000_000..3_120_000).step_by(13_000) {
        let mut tenants = [busy(30), busy(70)];
        let mut at_stop = 0;
        run(&mut tenants, 1_500_000, 6_000_000, |now, tenants| {
            tenants[0].is_stopped = (stop..6_000_000).contains(&now);
            if now == 4_000_000 {
                at_stop = tenants[1].used;
            } else if now == 6_000_000 {
                at_stop = tenants[1].used - at_stop;
            }
        });
        assert!(at_stop > 2_000_000 * 65 / 100, "stopped at {stop}: the other had {at_stop} us of 2 s");
    }
}

/// Makes a scheduler of these tenants.
fn scheduler(tenants: &[Simulated]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    let seats = tenants.iter().map(|tenant| {
        let limit = tenant.page.find(GPU, None).unwrap();
        Tenant::new(tenant.page, limit, tenant.turn(), Source::Memory(tenant.budget))
    });
    scheduler.replace_tenants(|_| true, seats.collect());
    scheduler
}

#[test]
fn tenants_learn_what_they_lose_to_those_that_work_now_and_then() {
    let tenants: Vec<Simulated> = (0..4).map(|_| tenant(1, 25, 1, 1)).collect();
    let mut scheduler = scheduler(&tenants);
    let lost = || tenants.iter().map(|tenant| tenant.turn().lost_us.load(Relaxed)).collect::<Vec<_>>();
    let lost_in_10_ms = |scheduler: &mut Scheduler, now| {
        let before = lost();
        scheduler.tick(now);
        lost().iter().zip(before).map(|(after, before)| after - before).collect::<Vec<u32>>()
    };
    scheduler.tick(1_000_000);
    for tenant in &tenants[..3] {
        tenant.budget.ahead.store(1, Relaxed);
    }
    assert_eq!(lost_in_10_ms(&mut scheduler, 1_010_000), [6_666, 6_666, 6_666, 0], "two thirds of 10 ms, if there was work");
    // The last one is busy, with a slice of 100 µs beside theirs.
    tenants[3].budget.ahead.store(1, Relaxed);
    tenants[3].budget.activity.store(1, Relaxed);
    assert_eq!(lost_in_10_ms(&mut scheduler, 1_020_000), [6_666, 6_666, 6_666, 7_500]);
}

/// While its channels are off, a slice has no meaning.
#[test]
fn a_closed_tenant_is_not_woken_for_a_slice() {
    let simulated = busy(50);
    let tenant = &mut scheduler(std::slice::from_ref(&simulated)).tenants[0];
    let changes = || simulated.page.turn_changes.load(Relaxed);
    tenant.set_turn(Turn::CLOSED, 0, 1_000_000);
    let before = changes();
    tenant.set_slice(SHORT_SLICE_US);
    assert_eq!((changes(), simulated.turn().slice_us.load(Relaxed)), (before, SHORT_SLICE_US));
    tenant.set_turn(Turn::OPEN, 10_000, 1_000_000);
    assert_eq!(changes(), before + 1);
    tenant.set_slice(0);
    assert_eq!(changes(), before + 2);
}

/// A look at 64 reports takes longer than all else that the arbiter does.
#[test]
fn a_tenant_that_waits_for_its_turn_is_not_read() {
    let simulated = busy(50);
    let tenant = &mut scheduler(std::slice::from_ref(&simulated)).tenants[0];
    tenant.update(1_000_000);
    tenant.set_turn(Turn::CLOSED, 0, 1_000_000);
    let word = simulated.turn().word.load(Relaxed).into();
    let launch = |now: u64, tenant: &mut Tenant| {
        simulated.budget.ahead.store(3_000_000, Relaxed);
        simulated.budget.activity.fetch_add(1, Relaxed);
        tenant.update(now);
        tenant.busy_until()
    };
    assert_eq!(launch(1_010_000, tenant), 1_013_000);
    simulated.budget.drained.store(word, Relaxed);
    simulated.budget.want.store(word, Relaxed);
    assert_eq!(launch(1_020_000, tenant), 1_023_000);
    assert_eq!(launch(1_030_000, tenant), 1_023_000);
    tenant.set_turn(Turn::OPEN, 10_000, 1_040_000);
    assert_eq!(launch(1_041_000, tenant), 1_044_000);
}

/// A tenant that works while the others are idle takes nothing from them, so it owes them no time later.
#[test]
fn who_had_the_gpu_alone_does_not_wait_for_it_after_all_have_rested() {
    let mut tenants: Vec<Simulated> = (0..8).map(|_| tenant(1, 12, 1_400_000, 4_000_000)).collect();
    // It rests last, and begins again when the others have their turns.
    (tenants[0].works, tenants[0].period) = (1_800_000, 4_400_000);
    let parts = run(&mut tenants, 3_800_000, 4_400_000, |_, _| {});
    assert!(parts.iter().all(|part| (0.08..0.17).contains(part)), "{parts:?}");
}

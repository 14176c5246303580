use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector, Turn};
use vgpu_region::uuid::Uuid;

use super::*;
use crate::tenant::Source;

/// Tenant that behaves as the library does, on the test's clock.
struct SimulatedTenant {
    page: &'static LimitsPage,
    budget: &'static Budget,
    /// Length of its kernels in µs.
    kernel: u64,
    /// Whether it wants to launch at a time.
    wants: fn(u64) -> bool,
    /// Whether it observes its turns.
    yields: bool,
    free_at: u64,
    word: u32,
    began: u64,
    used: u64,
}

const GPU: Uuid = Uuid([3; 16]);

fn simulated(weight: u32, kernel: u64, wants: fn(u64) -> bool) -> SimulatedTenant {
    simulated_with(1, weight, kernel, wants)
}

fn simulated_with(priority: u32, weight: u32, kernel: u64, wants: fn(u64) -> bool) -> SimulatedTenant {
    let limit = GpuLimit::new(Selector::All);
    limit.cores.store(weight, Relaxed);
    let page = Box::leak(Box::new(LimitsPage::new([limit]).with_priority(priority)));
    SimulatedTenant { page, budget: Box::leak(Box::default()), kernel, wants, yields: true, free_at: 0, word: 0, began: 0, used: 0 }
}

impl SimulatedTenant {
    fn tenant(&self) -> Tenant {
        Tenant::new(self.page, self.page.find(GPU, None).unwrap(), self.page.turn_for(GPU).unwrap(), Source::Memory(self.budget))
    }

    /// Launches at `now` if it may. The GPU, free at `gpu`, runs one kernel after the other.
    fn step(&mut self, now: u64, gpu: &mut u64) {
        let turn = self.page.turn(GPU).unwrap();
        let word = turn.word.load(Relaxed);
        if word != self.word {
            (self.word, self.began) = (word, now);
        }
        let left = self.began + u64::from(turn.length.load(Relaxed));
        let open = match Turn::state(word) {
            Turn::OPEN => now.max(self.free_at) < left,
            Turn::CLOSED => false,
            _ => true,
        };
        if self.free_at <= now && Turn::state(word) == Turn::CLOSED {
            self.budget.drained.store(u64::from(word), Relaxed);
        }
        if !(self.wants)(now) {
            return;
        }
        if !open && self.yields {
            return self.budget.want.store(u64::from(word), Relaxed);
        }
        // One kernel ahead of the running one.
        if self.free_at <= now + self.kernel {
            self.free_at = (*gpu).max(now) + self.kernel;
            *gpu = self.free_at;
            self.used += self.kernel;
            self.budget.used.fetch_add(self.kernel * 1000, Relaxed);
            self.budget.ahead.store((self.free_at - now) * 1000, Relaxed);
            self.budget.activity.fetch_add(1, Relaxed);
        }
    }
}

/// Time after which the scheduler knows what a tenant is like, in µs.
const WARM_UP: u64 = 1_500_000;

/// Runs tenants for `length` µs after [`WARM_UP`]. Returns each tenant's fraction of the GPU's time, and number of turns.
fn run(tenants: &mut [SimulatedTenant], length: u64) -> (Vec<f64>, Vec<u64>) {
    let mut scheduler = Scheduler::default();
    scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
    let figures = |tenants: &[SimulatedTenant]| -> Vec<(u64, u64)> {
        // Each turn is published twice: when it opens, and when it closes.
        tenants.iter().map(|tenant| (tenant.used, u64::from(tenant.page.turn(GPU).unwrap().word.load(Relaxed) >> 2) / 2)).collect()
    };
    let (mut next, mut gpu, mut before) = (0, 0, Vec::new());
    for now in (1_000_000..1_000_000 + WARM_UP + length).step_by(20) {
        if now >= next {
            next = now + scheduler.tick(now);
        }
        if now == 1_000_000 + WARM_UP {
            before = figures(tenants);
        }
        for tenant in tenants.iter_mut() {
            tenant.step(now, &mut gpu);
        }
    }
    let after = figures(tenants);
    let parts = before.iter().zip(&after).map(|(before, after)| (after.0 - before.0) as f64 / length as f64).collect();
    (parts, before.iter().zip(&after).map(|(before, after)| after.1 - before.1).collect())
}

#[test]
fn turns_follow_weights_for_all_kernel_lengths() {
    for (weights, kernels) in [([30, 70], [200, 200]), ([30, 70], [2000, 200]), ([50, 50], [200, 2000]), ([50, 50], [2000, 2000])] {
        let mut tenants = [simulated(weights[0], kernels[0], |_| true), simulated(weights[1], kernels[1], |_| true)];
        let (parts, _) = run(&mut tenants, 3_000_000);
        assert!((parts[0] - f64::from(weights[0]) / 100.0).abs() < 0.02, "{weights:?} {kernels:?}: {parts:?}");
        assert!(parts[0] + parts[1] > 0.97, "{weights:?} {kernels:?}: {parts:?}");
    }
}

/// Handing the GPU over is expensive, so it is done once a round.
#[test]
fn turns_of_busy_tenants_are_not_cut_short() {
    for (weights, kernel) in [([50, 50], 200), ([30, 70], 200), ([30, 70], 2_000), ([20, 20], 200), ([10, 90], 200)] {
        let mut tenants = weights.map(|weight| simulated(weight, kernel, |_| true));
        let (_, published) = run(&mut tenants, 3_000_000);
        let rounds = 3_000_000 / ROUND_US;
        assert!(
            published.iter().all(|turns| turns.abs_diff(rounds) <= rounds / 10),
            "{weights:?} {kernel}: {published:?} turns in {rounds} rounds"
        );
    }
}

/// Programs wait with their first launch until the heartbeat shows that the arbiter has looked at them.
#[test]
fn tenants_that_begin_together_take_turns_from_their_first_launch_on() {
    let tenants = [simulated(50, 200, |_| true), simulated(50, 200, |_| true)];
    let mut scheduler = Scheduler::default();
    scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
    let turns = tenants.each_ref().map(|tenant| tenant.page.turn(GPU).unwrap());
    let mut now = 1_000_000;
    now += scheduler.tick(now);
    for tenant in &tenants {
        tenant.budget.activity.fetch_add(1, Relaxed);
    }
    let beat = turns[0].beat.load(Relaxed);
    now += scheduler.tick(now);
    let mut states = turns.map(|turn| Turn::state(turn.word.load(Relaxed)));
    states.sort_unstable();
    assert_eq!((states, turns[0].beat.load(Relaxed)), ([Turn::CLOSED, Turn::OPEN], beat + 1));
    // Turns are polled more often than all tenants are looked at.
    let end = now + 1_000_000;
    while now < end {
        now += scheduler.tick(now);
    }
    assert!((90..=101).contains(&(turns[0].beat.load(Relaxed) - beat)), "{}", turns[0].beat.load(Relaxed) - beat);
}

#[test]
fn four_equal_tenants_get_equal_shares() {
    let mut tenants: Vec<_> = (0..4).map(|_| simulated(25, 500, |_| true)).collect();
    let (parts, _) = run(&mut tenants, 4_000_000);
    let (sum, squares): (f64, f64) = (parts.iter().sum(), parts.iter().map(|part| part * part).sum());
    assert!(sum * sum / (4.0 * squares) > 0.999 && sum > 0.97, "{parts:?}");
}

/// A turn of 10 ms is six times what one of 64 is due in a round.
#[test]
fn sixty_four_tenants_get_equal_shares() {
    let mut tenants: Vec<SimulatedTenant> = (0..64).map(|_| simulated(1, 500, |_| true)).collect();
    let (parts, _) = run(&mut tenants, 6_400_000);
    assert!(parts.iter().all(|part| (0.8..1.2).contains(&(part * 64.0))), "{parts:?}");
}

#[test]
fn idle_tenants_are_not_waited_for() {
    // The second works for 100 ms out of 400.
    let mut tenants = [simulated(50, 200, |_| true), simulated(50, 200, |now| now % 400_000 < 100_000)];
    let (parts, _) = run(&mut tenants, 4_000_000);
    assert!((parts[1] - 0.125).abs() < 0.02 && parts[0] + parts[1] > 0.97, "{parts:?}");
    // A single active tenant has no turns.
    let mut tenants = [simulated(10, 200, |_| true), simulated(50, 200, |_| false)];
    assert!(run(&mut tenants, 1_000_000).0[0] > 0.98);
    assert_eq!(Turn::state(tenants[0].page.turn(GPU).unwrap().word.load(Relaxed)), Turn::FREE);
}

#[test]
fn tenants_that_do_not_yield_delay_others_for_a_limited_time() {
    let mut bad = simulated(50, 200, |_| true);
    bad.yields = false;
    let mut tenants = [bad, simulated(50, 200, |_| true)];
    let (parts, _) = run(&mut tenants, 3_000_000);
    // On this GPU without time slicing it gets half of its own turn back; on a real one the driver slices fairly.
    assert!(parts[1] > 0.2, "{parts:?}");
}

#[test]
fn tenants_with_endless_kernels_get_no_turns_until_these_end() {
    // The first tenant asks for more behind a kernel of two seconds.
    let mut tenants = [simulated(50, 2_000_000, |_| true), simulated(50, 200, |_| true)];
    let mut scheduler = Scheduler::default();
    scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
    // Each tenant has a GPU to itself here, as the driver's time slicing is not simulated.
    let (mut next, mut gpus, mut closed) = (0, [0, 0], 0);
    for now in (1_000_000..4_000_000).step_by(20) {
        if now >= next {
            next = now + scheduler.tick(now);
        }
        for (tenant, gpu) in tenants.iter_mut().zip(&mut gpus) {
            tenant.step(now, gpu);
        }
        let word = tenants[1].page.turn(GPU).unwrap().word.load(Relaxed);
        closed += u64::from((1_200_000..2_900_000).contains(&now) && Turn::state(word) == Turn::CLOSED) * 20;
    }
    assert_eq!(closed, 0, "the other was kept waiting for {closed} us");
    assert!(tenants[0].used > 2_000_000, "the tenant gets turns again after its kernel");
}

/// The tenant launches nothing, but always asks for a turn, says that it has much work in flight, and never that this is over.
#[test]
fn a_tenant_that_pretends_to_work_takes_no_more_than_its_share() {
    for (priority, weight, least) in [(1, 30, 0.6), (0, 30, 0.6), (0, 10, 0.8)] {
        let mut tenants = [simulated_with(priority, weight, 200, |_| true), simulated(70, 200, |_| true)];
        let mut scheduler = Scheduler::default();
        scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
        let (mut next, mut gpu) = (0, 0);
        for now in (1_000_000..5_000_000).step_by(20) {
            if now >= next {
                next = now + scheduler.tick(now);
            }
            let word = tenants[0].page.turn(GPU).unwrap().word.load(Relaxed);
            let faked = tenants[0].budget;
            faked.want.store(u64::from(word), Relaxed);
            faked.ahead.store(u64::MAX, Relaxed);
            faked.activity.fetch_add(1, Relaxed);
            tenants[1].step(now, &mut gpu);
        }
        let part = tenants[1].used as f64 / 4_000_000.0;
        assert!(part > least, "priority {priority}, {weight}%: the other has {part}");
    }
}

#[test]
fn garbage_in_a_region_does_not_affect_other_tenants() {
    let mut tenants = [simulated(50, 200, |_| true), simulated(50, 200, |_| true)];
    let mut scheduler = Scheduler::default();
    scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
    let (mut next, mut gpu, mut random) = (0, 0, 1u64);
    for now in (1_000_000..3_000_000).step_by(20) {
        if now >= next {
            next = now + scheduler.tick(now);
            assert!(next - now <= DRAIN_TIMEOUT_US);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bad = tenants[0].budget;
        for word in [&bad.activity, &bad.ahead, &bad.want, &bad.drained] {
            word.store(random.rotate_left(7), Relaxed);
        }
        tenants[1].step(now, &mut gpu);
    }
    let part = tenants[1].used as f64 / 2_000_000.0;
    assert!(part > 0.45, "{part}");
}

/// The tenant is stopped or killed at any point of its turn, with work in flight that is never reported as finished.
#[test]
fn silent_tenants_delay_others_for_a_limited_time() {
    for stop in (1_000_000..1_080_000).step_by(1_700) {
        let mut tenants = [simulated(50, 200, |_| true), simulated(50, 200, |_| true)];
        let mut scheduler = Scheduler::default();
        scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
        let (mut next, mut gpu, mut closed, mut longest, mut before) = (0, 0, None, 0, 0);
        for now in (1_000_000..3_000_000).step_by(20) {
            if now >= next {
                next = now + scheduler.tick(now);
            }
            let [silent, other] = &mut tenants;
            if now < stop {
                silent.step(now, &mut gpu);
            }
            other.step(now, &mut gpu);
            // Time since when the other tenant has been waiting.
            let waits = now > stop && Turn::state(other.page.turn(GPU).unwrap().word.load(Relaxed)) == Turn::CLOSED;
            closed = if waits { closed.or(Some(now)) } else { None };
            longest = longest.max(closed.map_or(0, |since| now - since));
            before = if now < 2_000_000 { other.used } else { before };
        }
        let late = tenants[1].used - before;
        assert!(
            longest < DRAIN_TIMEOUT_US + 2 * ROUND_US && late > 970_000,
            "stopped at {stop}: {longest} us, {late} us of the last second"
        );
    }
}

#[test]
fn idle_time_is_lent_and_taken_back() {
    let mut tenants = [simulated(30, 200, |_| true), simulated(60, 200, |now| now > 3_500_000)];
    tenants[0].page.find(GPU, None).unwrap().cores_soft.store(100, Relaxed);
    let lent = tenants[0].page.turn_for(GPU).unwrap();
    run(&mut tenants, 900_000);
    assert_eq!(lent.lent.load(Relaxed), 100);
    run(&mut tenants, 1_100_000);
    assert_eq!(lent.lent.load(Relaxed), 33, "a tenth of the limit, as turns divide nine tenths of the GPU");
}

#[test]
fn tenants_that_rarely_ask_do_not_wait_for_long_turns() {
    // 1 ms of work every 50 ms, next to a tenant that is always busy with nine times its weight; after a second, when that is known.
    let mut tenants = [simulated(10, 1000, |_| false), simulated(90, 200, |_| true)];
    let mut scheduler = Scheduler::default();
    scheduler.replace_tenants(|_| true, tenants.iter().map(SimulatedTenant::tenant).collect());
    let (mut next, mut gpu, mut asked, mut worst) = (0, 0, None, 0);
    for now in (1_000_000..4_000_000).step_by(20) {
        if now >= next {
            next = now + scheduler.tick(now);
        }
        let [small, large] = &mut tenants;
        if now % 53_000 < 20 {
            (asked, small.wants) = (Some((now, small.used)), |_| true);
        }
        small.step(now, &mut gpu);
        if let Some((since, used)) = asked
            && small.used > used
        {
            worst = worst.max(if since < 2_000_000 { 0 } else { small.free_at - since });
            (asked, small.wants) = (None, |_| false);
        }
        large.step(now, &mut gpu);
    }
    assert!((1_000..8_000).contains(&worst), "{worst} us");
}

/// One that always wants the GPU, and waits for its small budget most of the time, is no tenant that works now and then.
#[test]
fn tenants_that_wait_for_their_budget_are_busy() {
    for waits in [true, false] {
        let simulated = simulated(1, 200, |_| false);
        let mut tenant = simulated.tenant();
        for now in (1_000_000..5_000_000).step_by(10_000) {
            // 5 ms of work in each second, in one piece.
            if now % 1_000_000 == 0 {
                simulated.budget.used.fetch_add(5_000_000, Relaxed);
                simulated.budget.activity.fetch_add(1, Relaxed);
                simulated.budget.waited.fetch_add(if waits { 990_000_000 } else { 0 }, Relaxed);
            }
            tenant.update(now);
            tenant.sample(now);
            assert!(!waits || now < 3_500_000 || !tenant.is_interactive, "{now}");
        }
        assert_eq!(tenant.is_interactive, !waits);
    }
}

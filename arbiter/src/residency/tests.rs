use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::limits::{GpuLimit, LimitsPage, Selector, Turn};
use vgpu_region::uuid::Uuid;

use super::*;

const GPU: Uuid = Uuid([3; 16]);
/// Time that a move takes in these tests, in µs.
const MOVE_US: u64 = 200_000;

/// Tenant that behaves as the library does, on the test's clock.
struct Tenant {
    page: &'static LimitsPage,
    report: &'static Mutex<Report>,
    /// Pages that it has, here or there.
    pages: u64,
    /// Whether it calls the driver at a time.
    works: fn(u64) -> bool,
    /// Whether it follows orders.
    obeys: bool,
    /// Whether it has memory that can move.
    is_movable: bool,
    /// Whether its memory is on the GPU.
    is_in: bool,
    /// Order that it follows, and when that will be done.
    leaving: Option<(u32, u64)>,
    /// Time for which it worked.
    worked: u64,
    /// Number of times that it was refused room.
    refused: u32,
    /// Its last request before it had its room.
    met: u32,
}

impl Tenant {
    fn new(overcommit: u32, priority: u32, pages: u64, works: fn(u64) -> bool) -> Self {
        let limit = GpuLimit::new(Selector::All);
        limit.overcommit.store(overcommit, Relaxed);
        let page = Box::leak(Box::new(LimitsPage::new([limit]).with_priority(priority)));
        let report = Box::leak(Box::new(Mutex::new(Report { calls: 1, left: vec![0], ..Report::default() })));
        Self { page, report, pages, works, obeys: true, is_movable: true, is_in: false, leaving: None, worked: 0, refused: 0, met: 0 }
    }

    fn turn(&self) -> &'static Turn {
        self.page.turn_for(GPU).unwrap()
    }

    fn resident(&self) -> Resident {
        Resident::new(self.page, self.page.find(GPU, None).unwrap(), self.turn(), Source::Memory(self.report))
    }

    /// Does what it does in a tick. `free` are the GPU's free pages.
    fn step(&mut self, now: u64, tick: u64, free: &mut u64) {
        let mut report = self.report.lock().unwrap();
        let order = self.turn().leave.load(Relaxed);
        if self.obeys && order != 0 && report.left != [order] && self.leaving.is_none() {
            self.leaving = Some((order, now + MOVE_US));
        }
        if let Some((order, done)) = self.leaving {
            if now >= done {
                (self.leaving, report.left) = (None, vec![order]);
                if self.is_movable && std::mem::replace(&mut self.is_in, false) {
                    *free += self.pages;
                    (report.resident, report.out) = (0, self.pages);
                }
            }
            return;
        }
        if !(self.works)(now) || (order != 0 && self.obeys && !self.is_in) {
            return;
        }
        if !self.is_in && *free >= self.pages {
            *free -= self.pages;
            (self.is_in, self.met) = (true, report.room_wanted);
            (report.resident, report.out) = (self.pages, 0);
        }
        if self.is_in {
            report.calls += 1;
            self.worked += tick;
        } else if self.turn().no_room.load(Relaxed) == report.room_wanted && report.room_wanted != self.met {
            self.refused += 1;
            report.room_wanted += 1;
        } else {
            report.room_wanted += 1;
        }
    }
}

/// Runs tenants for some seconds on a GPU of 100 pages.
fn run(tenants: &mut [Tenant], seconds: u64) -> Residency {
    let mut residency = Residency { residents: tenants.iter().map(Tenant::resident).collect(), ..Residency::default() };
    let (mut free, tick) = (100, 10_000);
    for now in (1_000_000..1_000_000 + seconds * 1_000_000).step_by(tick as usize) {
        tenants.iter_mut().for_each(|tenant| tenant.step(now, tick, &mut free));
        residency.tick(now);
    }
    residency
}

/// Returns whether any of the tenants was ever told to leave.
fn orders(tenants: &[Tenant]) -> Vec<bool> {
    tenants.iter().map(|tenant| tenant.report.lock().unwrap().left != [0]).collect()
}

#[test]
fn nobody_leaves_while_everything_fits() {
    let mut tenants = [60, 40].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |_| true));
    run(&mut tenants, 10);
    assert_eq!(orders(&tenants), [false, false]);
}

#[test]
fn the_longest_idle_leaves_first() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 1, 40, |now| now < 1_100_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 40, |now| now < 2_000_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 40, |now| now > 4_000_000),
    ];
    run(&mut tenants, 5);
    assert_eq!(orders(&tenants), [true, false, false]);
    assert!(tenants[2].worked > 600_000, "{}", tenants[2].worked);
}

#[test]
fn busy_tenants_that_do_not_fit_alternate_and_lose_a_twentieth() {
    let mut tenants = [60, 60].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |_| true));
    run(&mut tenants, 120);
    let worked = tenants.each_ref().map(|tenant| tenant.worked as f64 / 120e6);
    assert!(worked.iter().sum::<f64>() > 0.93 && worked.iter().all(|part| *part > 0.4), "{worked:?}");
}

#[test]
fn priority_0_is_the_last_to_leave() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 0, 40, |_| true),
        Tenant::new(GpuLimit::EVICTABLE, 1, 40, |_| true),
        Tenant::new(GpuLimit::OVERCOMMITTED, 1, 40, |now| now > 6_000_000),
    ];
    run(&mut tenants, 8);
    assert_eq!(orders(&tenants), [false, true, false]);
}

#[test]
fn a_request_is_refused_when_nobody_can_leave() {
    let mut tenants = [GpuLimit::OVERCOMMITTED, GpuLimit::EVICTABLE].map(|kind| Tenant::new(kind, 1, 60, |_| true));
    run(&mut tenants, 2);
    assert!(tenants[1].refused > 0 && !orders(&tenants)[0]);
}

#[test]
fn a_tenant_that_does_not_leave_is_skipped_and_its_order_taken_back() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 1, 60, |now| now < 1_100_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 40, |now| now < 1_200_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 40, |now| now > 2_000_000),
    ];
    tenants[0].obeys = false;
    run(&mut tenants, 12);
    assert!(tenants[0].is_in && tenants[2].worked > 3_000_000, "{}", tenants[2].worked);
    assert_eq!(tenants[0].turn().leave.load(Relaxed), 0);
}

#[test]
fn a_request_that_never_fits_is_refused_once_all_are_out() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 1, 30, |now| now < 1_100_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 30, |_| true),
        Tenant::new(GpuLimit::OVERCOMMITTED, 1, 30, |_| true),
        Tenant::new(GpuLimit::EVICTABLE, 1, 90, |now| now > 2_000_000),
    ];
    run(&mut tenants, 20);
    assert!(tenants[3].refused > 0, "still waiting");
    // The one that works is told once in each quantum at most, and works on.
    assert_eq!(orders(&tenants), [true, true, false, false]);
    assert!(tenants[1].worked > 15_000_000 && tenants[2].worked > 18_000_000, "{}", tenants[1].worked);
}

#[test]
fn room_from_several_is_kept_for_the_one_that_asks() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 1, 50, |_| true),
        Tenant::new(GpuLimit::EVICTABLE, 1, 50, |_| true),
        Tenant::new(GpuLimit::EVICTABLE, 1, 90, |now| now > 2_000_000),
    ];
    run(&mut tenants, 60);
    let seen = tenants.each_ref().map(|tenant| (tenant.worked, tenant.refused));
    assert!(seen.iter().all(|&(worked, refused)| worked > 15_000_000 && refused == 0), "{seen:?}");
}

/// Of two that are out and find room, each would take a part, and neither enough.
#[test]
fn of_several_that_come_back_one_is_let_in_and_the_others_are_held() {
    let mut tenants = [60, 60, 60].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |_| true));
    let mut residency = Residency { residents: tenants.iter().map(Tenant::resident).collect(), ..Residency::default() };
    let (mut free, mut together, mut longest) = (100, 0, 0);
    for now in (1_000_000..60_000_000).step_by(10_000) {
        tenants.iter_mut().for_each(|tenant| tenant.step(now, 10_000, &mut free));
        residency.tick(now);
        let leaves = tenants.iter().any(|tenant| tenant.is_in && tenant.turn().leave.load(Relaxed) != 0);
        assert!(
            leaves || tenants.iter().all(|tenant| tenant.turn().served.load(Relaxed) == 0),
            "at {now} a tenant is served, but none leaves"
        );
        let come = residency.residents.iter().filter(|resident| resident.waits_outside(now) && resident.order.is_none()).count();
        together = if come > 1 { together + 1 } else { 0 };
        longest = longest.max(together);
    }
    assert!(longest < 10, "two came back at the same time for {longest} ticks");
    let seen = tenants.each_ref().map(|tenant| (tenant.worked, tenant.refused));
    assert!(seen.iter().all(|&(worked, refused)| worked > 12_000_000 && refused == 0), "{seen:?}");
}

/// Two programs that start at the same time fill the GPU with a part of their memory each.
#[test]
fn of_two_that_wait_for_more_room_one_leaves_at_once() {
    let tenants = [60, 60].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |_| true));
    let mut residency = Residency { residents: tenants.iter().map(Tenant::resident).collect(), ..Residency::default() };
    for now in (1_000_000..1_200_000).step_by(10_000) {
        for tenant in &tenants {
            let mut report = tenant.report.lock().unwrap();
            (report.resident, report.calls, report.room_wanted) = (50, report.calls + 1, report.room_wanted + 1);
        }
        residency.tick(now);
    }
    let told = tenants.each_ref().map(|tenant| tenant.turn().leave.load(Relaxed) != 0);
    assert!(told[0] != told[1], "{told:?}");
}

#[test]
fn a_tenant_without_memory_that_can_move_does_not_stand_in_the_way() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 1, 10, |now| now < 1_100_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 60, |now| now < 1_200_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 60, |now| now > 2_000_000),
    ];
    tenants[0].is_movable = false;
    run(&mut tenants, 5);
    assert_eq!(orders(&tenants), [true, true, false]);
    assert!(tenants[2].worked > 2_000_000, "{}", tenants[2].worked);
}

#[test]
fn one_that_asks_for_too_much_does_not_keep_the_others_waiting() {
    let mut tenants = [
        Tenant::new(GpuLimit::EVICTABLE, 1, 60, |now| now < 1_100_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 200, |now| now > 1_500_000),
        Tenant::new(GpuLimit::EVICTABLE, 1, 60, |now| now > 2_000_000),
    ];
    run(&mut tenants, 6);
    assert!(tenants[1].refused > 0 && tenants[2].worked > 3_000_000, "{}", tenants[2].worked);
}

#[test]
fn a_newcomer_has_a_quantum() {
    let mut tenants = [60, 60].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |_| true));
    let mut newcomer = tenants[0].resident();
    let report = |room_wanted, resident| Report { room_wanted, resident, calls: 1, left: vec![0], ..Report::default() };
    for (now, now_says) in [(1_000_000, report(1, 2)), (1_020_000, report(2, 2)), (4_000_000, report(2, 60))] {
        *tenants[0].report.lock().unwrap() = now_says;
        newcomer.update(now);
    }
    assert!(!newcomer.may_be_told(4_100_000) && newcomer.asks.is_none());
    // Who asks for a little more again and again has none.
    for step in 0..40 {
        *tenants[0].report.lock().unwrap() = Report { calls: 1 + step, ..report(2 + step / 10, 61) };
        newcomer.update(4_100_000 + u64::from(step) * 100_000);
    }
    assert!(newcomer.may_be_told(8_100_000));
    tenants[1].step(0, 0, &mut 0);
}

#[test]
fn a_request_is_seen_before_the_next_look_at_all_tenants() {
    let [idle, asking] = [1, 1].map(|calls| {
        let tenant = Tenant::new(GpuLimit::EVICTABLE, 1, 60, |_| true);
        *tenant.report.lock().unwrap() = Report { calls, resident: 60, left: vec![0], ..Report::default() };
        tenant
    });
    let mut residency = Residency { residents: vec![idle.resident(), asking.resident()], ..Residency::default() };
    residency.tick(2_000_000);
    asking.report.lock().unwrap().room_wanted = 1;
    residency.tick(2_000_000 + BUSY_TICK_US);
    assert!(idle.turn().leave.load(Relaxed) != 0);
}

#[test]
fn idle_processes_make_room_for_another_of_their_container() {
    let tenant = Tenant::new(GpuLimit::EVICTABLE, 1, 60, |_| true);
    // One process is out and asks, another is in and idle.
    let says = |room_wanted, resident, out, left: [u32; 2]| {
        *tenant.report.lock().unwrap() = Report { room_wanted, calls: 1, waiting_calls: room_wanted, resident, out, left: left.to_vec() };
    };
    says(0, 60, 60, [0, 0]);
    let mut residency = Residency { residents: vec![tenant.resident()], ..Residency::default() };
    for now in 1..20 {
        says(now, 60, 60, [0, 0]);
        residency.tick(1_000_000 + u64::from(now) * 20_000);
    }
    let order = tenant.turn().leave.load(Relaxed);
    assert!(order != 0 && tenant.turn().no_room.load(Relaxed) == 0);
    says(20, 0, 120, [order, order]);
    residency.tick(1_400_000);
    assert_eq!(tenant.turn().leave.load(Relaxed), 0, "what made room for itself comes back");
    // Nobody is left.
    for now in 21..30 {
        says(now, 0, 120, [order, order]);
        residency.tick(1_000_000 + u64::from(now) * 20_000);
    }
    assert!(tenant.turn().leave.load(Relaxed) == 0 && tenant.turn().no_room.load(Relaxed) != 0);
}

#[test]
fn a_new_arbiter_takes_back_what_the_one_before_has_ordered() {
    let tenant = Tenant::new(GpuLimit::EVICTABLE, 1, 60, |_| true);
    tenant.turn().leave.store(7, Relaxed);
    let _resident = tenant.resident();
    assert_eq!(tenant.turn().leave.load(Relaxed), 0);
}

/// A busy tenant makes its host memory before it is told to leave, and only if somebody asks.
#[test]
fn busy_tenants_stand_by_while_another_asks() {
    let mut tenants = [60, 60].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |_| true));
    let mut residency = Residency { residents: tenants.iter().map(Tenant::resident).collect(), ..Residency::default() };
    let stand_by = |tenants: &[Tenant; 2]| [0, 1].map(|number: usize| tenants[number].turn().stand_by.load(Relaxed));
    let mut free = 100;
    tenants[0].step(1_000_000, 10_000, &mut free);
    residency.tick(1_000_000);
    assert_eq!(stand_by(&tenants), [0, 0]);
    for now in [1_010_000, 1_020_000] {
        tenants.iter_mut().for_each(|tenant| tenant.step(now, 10_000, &mut free));
        residency.tick(now);
    }
    assert_eq!((stand_by(&tenants), orders(&tenants)), ([1, 0], vec![false, false]));
    residency.end();
    assert_eq!(stand_by(&tenants), [0, 0]);
}

/// An idle tenant copies its memory ahead while another is out, but not while that one comes back.
#[test]
fn idle_tenants_copy_ahead_while_another_is_out() {
    let works = |now: u64| !(2_000_000..12_000_000).contains(&now);
    let mut tenants = [Tenant::new(GpuLimit::EVICTABLE, 1, 60, works), Tenant::new(GpuLimit::EVICTABLE, 1, 60, |now| now < 8_000_000)];
    let mut residency = Residency { residents: tenants.iter().map(Tenant::resident).collect(), ..Residency::default() };
    let (mut free, mut seen) = (100, Vec::new());
    for now in (1_000_000..16_000_000).step_by(10_000) {
        tenants.iter_mut().for_each(|tenant| tenant.step(now, 10_000, &mut free));
        residency.tick(now);
        let stand_by = [0, 1].map(|number: usize| tenants[number].turn().stand_by.load(Relaxed));
        if seen.last() != Some(&stand_by) {
            seen.push(stand_by);
        }
    }
    let (make, copy) = (Turn::MAKE_HOST_MEMORY, Turn::COPY_AHEAD);
    // The second asks and gets room, and is the one that is idle; then the first comes back.
    assert_eq!(seen, [[make, 0], [0, 0], [0, copy], [0, make], [0, 0], [copy, 0]]);
}

/// A tenant may keep a part of its room only while another tenant is making room for it.
#[test]
fn the_one_that_others_leave_for_is_served() {
    let mut tenants = [60, 60].map(|pages| Tenant::new(GpuLimit::EVICTABLE, 1, pages, |now| now % 4_000_000 < 1_500_000));
    let mut residency = Residency { residents: tenants.iter().map(Tenant::resident).collect(), ..Residency::default() };
    let (mut free, mut was_served) = (100, false);
    for now in (1_000_000..20_000_000).step_by(10_000) {
        tenants.iter_mut().for_each(|tenant| tenant.step(now, 10_000, &mut free));
        residency.tick(now);
        for [one, other] in [[0, 1], [1, 0]] {
            let is_served = tenants[one].turn().served.load(Relaxed) != 0;
            let order = tenants[other].turn().leave.load(Relaxed);
            // What it says now the arbiter sees at its next look.
            let other_leaves = order != 0 && residency.residents[other].report.left != [order];
            assert_eq!(is_served, other_leaves, "at {now}");
            was_served |= is_served;
        }
    }
    assert!(was_served);
    residency.end();
    assert!(tenants.iter().all(|tenant| tenant.turn().served.load(Relaxed) == 0));
}

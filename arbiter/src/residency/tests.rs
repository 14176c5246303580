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
    /// Whether its memory is on the GPU.
    is_in: bool,
    /// Order that it follows, and when that will be done.
    leaving: Option<(u32, u64)>,
    /// Time for which it worked.
    worked: u64,
    /// Number of times that it was refused room.
    refused: u32,
}

impl Tenant {
    fn new(overcommit: u32, priority: u32, pages: u64, works: fn(u64) -> bool) -> Self {
        let limit = GpuLimit::new(Selector::All);
        limit.overcommit.store(overcommit, Relaxed);
        let page = Box::leak(Box::new(LimitsPage::new([limit]).with_priority(priority)));
        let report = Box::leak(Box::new(Mutex::new(Report { calls: 1, left: vec![0], ..Report::default() })));
        Self { page, report, pages, works, obeys: true, is_in: false, leaving: None, worked: 0, refused: 0 }
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
                if std::mem::replace(&mut self.is_in, false) {
                    *free += self.pages;
                    (report.resident, report.out) = (0, self.pages);
                }
            }
            return;
        }
        if !(self.works)(now) {
            return;
        }
        if !self.is_in && *free >= self.pages {
            *free -= self.pages;
            self.is_in = true;
            (report.resident, report.out) = (self.pages, 0);
        }
        if self.is_in {
            report.calls += 1;
            self.worked += tick;
        } else if self.turn().no_room.load(Relaxed) == report.room_wanted && report.room_wanted != 0 {
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
fn a_region_with_any_content_is_a_report() {
    let path = std::env::temp_dir().join(format!("vgpu-residency-{}", std::process::id()));
    for (bytes, is_readable) in [(vec![0xff; vgpu_region::region::SIZE], true), (vec![0xff; 100], false), (vec![], false)] {
        std::fs::write(&path, bytes).unwrap();
        let report = read(&File::open(&path).unwrap(), 0);
        assert_eq!(report.is_some(), is_readable);
    }
    std::fs::remove_file(path).unwrap();
}

use std::sync::atomic::Ordering::Relaxed;

use super::budget::*;

const MS: u64 = 1_000_000;
const MAX_SAVED_NS: u64 = 20 * MS;
const START: u64 = 1_000_000 * MS;

fn rate(percent: u32) -> Rate {
    Rate::new(percent).unwrap()
}

/// Times are microseconds.
fn acquire(budget: &Budget, process: u16, now: u64, until: u64) -> bool {
    budget.acquire_lease(process, Micros(now), Micros(until))
}

#[test]
fn accrues_at_the_rate_up_to_the_maximum() {
    let budget = Budget::default();
    assert_eq!(budget.balance(START, rate(25), MAX_SAVED_NS), INITIAL_NS as i64);
    assert_eq!(budget.balance(START + 8 * MS, rate(25), MAX_SAVED_NS), (INITIAL_NS + 2 * MS) as i64);
    assert_eq!(budget.balance(START + 1_000_000 * MS, rate(25), MAX_SAVED_NS), MAX_SAVED_NS as i64);
    let longer = START + 2_000_000 * MS;
    assert_eq!(budget.balance(longer, rate(25), 2 * MAX_SAVED_NS), 2 * MAX_SAVED_NS as i64);
    assert_eq!(budget.balance(longer, rate(25), MAX_SAVED_NS), MAX_SAVED_NS as i64, "savings above the maximum are forfeit");
    budget.charge(MAX_SAVED_NS as i64, rate(25));
    assert_eq!(budget.balance(longer, rate(25), MAX_SAVED_NS), 0);
}

#[test]
fn debt_is_kept_until_paid_off_and_bounded() {
    let budget = Budget::default();
    budget.balance(START, rate(10), MAX_SAVED_NS);
    budget.charge(101 * MS as i64, rate(10));
    assert_eq!(budget.balance(START, rate(10), MAX_SAVED_NS), -100 * MS as i64);
    assert_eq!(budget.balance(START + 1000 * MS, rate(10), MAX_SAVED_NS), 0);
    for _ in 0..1000 {
        budget.charge(i64::MAX / 200, rate(10));
        assert!(budget.balance(START, rate(10), MAX_SAVED_NS) >= -(MAX_DEBT_NS as i64) / 10);
    }
    assert!(budget.balance(START + MAX_DEBT_NS, rate(10), MAX_SAVED_NS) >= 0);
}

/// Debt is GPU time: it is paid off at the rate in force, not at the one at which it was made.
#[test]
fn debt_is_paid_off_at_the_rate_in_force() {
    for (before, after) in [(10, 80), (80, 10), (1, 99), (99, 1)] {
        let budget = Budget::default();
        budget.balance(START, rate(before), MAX_SAVED_NS);
        budget.charge((INITIAL_NS + 20 * MS) as i64, rate(before));
        for _ in 0..3 {
            assert!((budget.balance(START, rate(after), MAX_SAVED_NS) + 20 * MS as i64).abs() < 3, "{before} to {after}");
        }
        // A process that has not seen the change yet charges at the rate in force.
        budget.charge(MS as i64, rate(before));
        let paid_off = START + rate(after).time_for(21 * MS);
        assert!(
            budget.balance(paid_off - MS, rate(after), MAX_SAVED_NS) < 0 && budget.balance(paid_off + 100, rate(after), MAX_SAVED_NS) >= 0,
            "{before} to {after}"
        );
    }
    let budget = Budget::default();
    budget.balance(START, rate(10), MAX_SAVED_NS);
    let saved = START + 1000 * MS;
    budget.balance(saved, rate(10), MAX_SAVED_NS);
    assert_eq!(budget.balance(saved, rate(80), MAX_SAVED_NS), MAX_SAVED_NS as i64, "the maximum does not depend on the rate");
}

#[test]
fn a_refund_restores_the_balance() {
    let budget = Budget::default();
    let before = budget.balance(START, rate(30), MAX_SAVED_NS);
    budget.charge(7 * MS as i64, rate(30));
    budget.charge(-7 * MS as i64, rate(30));
    assert_eq!((budget.balance(START, rate(30), MAX_SAVED_NS), budget.used.load(Relaxed)), (before, 0));
}

/// Whatever a tenant writes into its own budget, the balance stays in range and recovers.
#[test]
fn garbage_is_clamped() {
    for garbage in [1, START - 1, START + MAX_DEBT_NS + 1, u64::MAX, u64::MAX - MAX_DEBT_NS, 1 << 63] {
        let budget = Budget::default();
        budget.zero_at.store(garbage, Relaxed);
        budget.lease.store(garbage, Relaxed);
        budget.percent.store(garbage as u32, Relaxed);
        for step in 0..3 {
            let balance = budget.balance(START + step, rate(99), MAX_SAVED_NS);
            assert!((-(MAX_DEBT_NS as i64)..=MAX_SAVED_NS as i64).contains(&balance), "{garbage} gave {balance}");
            budget.charge(5, rate(99));
        }
        let later = START / 1000 + 2 * MAX_LEASE.0;
        assert!(acquire(&budget, 3, START / 1000, START / 1000 + 1) || acquire(&budget, 3, later, later + 1), "{garbage}");
    }
}

#[test]
fn concurrent_charges_are_all_counted() {
    let budget = Budget::default();
    budget.balance(START, rate(50), MAX_SAVED_NS);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    budget.balance(START, rate(50), MAX_SAVED_NS);
                    budget.charge(1000, rate(50));
                }
            });
        }
    });
    assert_eq!(budget.used.load(Relaxed), 40 * MS);
    assert_eq!(budget.balance(START, rate(50), MAX_SAVED_NS), INITIAL_NS as i64 - 40 * MS as i64);
}

#[test]
fn one_process_has_the_lease_and_it_expires() {
    let budget = Budget::default();
    assert!(acquire(&budget, 1, 100, 200));
    assert!(!acquire(&budget, 2, 150, 300));
    assert!(budget.is_lease_contended(1, Micros(160)) && !budget.is_lease_contended(2, Micros(160)));
    assert!(acquire(&budget, 1, 160, 250), "the holder extends its lease");
    assert!(!acquire(&budget, 2, 249, 300));
    assert!(acquire(&budget, 2, 250, 300), "the lease has expired");
    assert!(!budget.is_lease_contended(1, Micros(251)), "the request is fulfilled");
    assert!(!budget.release_lease(1, Micros(252)) && budget.lease_ends.load(Relaxed) == 0, "an expired lease cannot be released");
    assert!(!acquire(&budget, 1, 260, 400));
    assert!(budget.release_lease(2, Micros(265)) && budget.lease_ends.load(Relaxed) == 1);
    assert!(budget.is_lease_contended(2, Micros(270)), "the process that was refused comes first");
    assert!(!budget.is_lease_contended(2, Micros(260) + REQUEST_TIMEOUT), "unless it never came back");
    assert!(acquire(&budget, 1, 266, 400));
}

#[test]
fn the_first_request_keeps_its_place() {
    let budget = Budget::default();
    let is_contended = |process, now| budget.is_lease_contended(process, Micros(now));
    assert!(acquire(&budget, 1, 100, 200) && !budget.is_shared(1, Micros(100)) && budget.is_shared(2, Micros(100)));
    budget.request_lease(2, Micros(110));
    assert!(!acquire(&budget, 3, 120, 300), "refused, behind the earlier request");
    assert!(is_contended(3, 130) && is_contended(1, 130) && !is_contended(2, 130));
    assert!(budget.release_lease(1, Micros(140)) && acquire(&budget, 2, 150, 300) && !is_contended(1, 150));
    assert!(!acquire(&budget, 3, 160, 400) && is_contended(2, 170), "then the next one");
    // A process that has given up is passed over, and forgotten in the end.
    budget.request_lease(1, Micros(180));
    assert!(!is_contended(3, 190) && is_contended(1, 190));
    budget.request_lease(1, Micros(160) + REQUEST_TIMEOUT);
    assert!(is_contended(3, 160 + REQUEST_TIMEOUT.0));
    assert!(!budget.is_shared(1, Micros(10_000_000)) && !budget.is_shared(2, Micros(10_000_000)));
}

use std::sync::atomic::Ordering::Relaxed;

use super::budget::*;

const MS: u64 = 1_000_000;
const START: u64 = 1_000_000 * MS;

fn rate(percent: u32) -> Rate {
    Rate::new(percent).unwrap()
}

#[test]
fn accrues_at_the_rate_and_no_further_than_saved() {
    let budget = Budget::default();
    assert_eq!(budget.balance(START, rate(25)), FIRST as i64);
    assert_eq!(budget.balance(START + 8 * MS, rate(25)), (FIRST + 2 * MS) as i64);
    assert_eq!(budget.balance(START + 1_000_000 * MS, rate(25)), SAVED as i64);
    let longer = START + 2_000_000 * MS;
    assert_eq!(budget.balance_up_to(SAVED_BETWEEN_TURNS, longer, rate(25)), SAVED_BETWEEN_TURNS as i64);
    assert_eq!(budget.balance(longer, rate(25)), SAVED as i64, "no longer than there are turns");
    budget.charge(SAVED as i64, rate(25));
    assert_eq!(budget.balance(longer, rate(25)), 0);
}

#[test]
fn debt_is_carried_paid_off_and_bounded() {
    let budget = Budget::default();
    budget.balance(START, rate(10));
    budget.charge(101 * MS as i64, rate(10));
    assert_eq!(budget.balance(START, rate(10)), -100 * MS as i64);
    assert_eq!(budget.balance(START + 1000 * MS, rate(10)), 0);
    for _ in 0..1000 {
        budget.charge(i64::MAX / 200, rate(10));
        assert!(budget.balance(START, rate(10)) >= -(DEBT as i64) / 10);
    }
    assert!(budget.balance(START + DEBT, rate(10)) >= 0);
}

/// What is owed is GPU time: a debt made at one rate is paid off at the one that is in force.
#[test]
fn a_debt_is_paid_off_at_the_rate_that_is_in_force() {
    for (before, after) in [(10, 80), (80, 10), (1, 99), (99, 1)] {
        let budget = Budget::default();
        budget.balance(START, rate(before));
        budget.charge((FIRST + 20 * MS) as i64, rate(before));
        for _ in 0..3 {
            assert!((budget.balance(START, rate(after)) + 20 * MS as i64).abs() < 3, "{before} to {after}");
        }
        // Whoever has not seen the change yet charges at the rate that counts.
        budget.charge(MS as i64, rate(before));
        let paid_off = START + rate(after).time_for(21 * MS);
        assert!(budget.balance(paid_off - MS, rate(after)) < 0 && budget.balance(paid_off + 100, rate(after)) >= 0, "{before} to {after}");
    }
    let budget = Budget::default();
    budget.balance(START, rate(10));
    let saved = START + 1000 * MS;
    budget.balance(saved, rate(10));
    assert_eq!(budget.balance(saved, rate(80)), SAVED as i64, "no more is saved up than ever");
}

#[test]
fn what_was_charged_too_early_comes_back() {
    let budget = Budget::default();
    let before = budget.balance(START, rate(30));
    budget.charge(7 * MS as i64, rate(30));
    budget.charge(-7 * MS as i64, rate(30));
    assert_eq!((budget.balance(START, rate(30)), budget.used.load(Relaxed)), (before, 0));
}

/// Whatever a tenant writes into its own budget, the answers stay in range and recover.
#[test]
fn garbage_is_clamped() {
    for garbage in [1, START - 1, START + DEBT + 1, u64::MAX, u64::MAX - DEBT, 1 << 63] {
        let budget = Budget::default();
        budget.zero_at.store(garbage, Relaxed);
        budget.holder.store(garbage, Relaxed);
        budget.percent.store(garbage as u32, Relaxed);
        for step in 0..3 {
            let balance = budget.balance(START + step, rate(99));
            assert!((-(DEBT as i64)..=SAVED as i64).contains(&balance), "{garbage} gave {balance}");
            budget.charge(5, rate(99));
        }
        let later = START / 1000 + 2 * LONGEST_TURN;
        assert!(budget.hold(3, START / 1000, START / 1000 + 1) || budget.hold(3, later, later + 1), "{garbage}");
    }
}

#[test]
fn concurrent_charges_are_all_counted() {
    let budget = Budget::default();
    budget.balance(START, rate(50));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    budget.balance(START, rate(50));
                    budget.charge(1000, rate(50));
                }
            });
        }
    });
    assert_eq!(budget.used.load(Relaxed), 40 * MS);
    assert_eq!(budget.balance(START, rate(50)), FIRST as i64 - 40 * MS as i64);
}

#[test]
fn one_process_at_a_time_and_the_dead_time_out() {
    let budget = Budget::default();
    assert!(budget.hold(1, 100, 200));
    assert!(!budget.hold(2, 150, 300));
    assert!(budget.is_contended(1, 160) && !budget.is_contended(2, 160));
    assert!(budget.hold(1, 160, 250), "the holder prolongs its own");
    assert!(!budget.hold(2, 249, 300));
    assert!(budget.hold(2, 250, 300), "and is passed over when it is late");
    assert!(!budget.is_contended(1, 251), "it had its turn");
    assert!(!budget.let_go(1, 252) && budget.handed.load(Relaxed) == 0, "what is no longer held cannot be given up");
    assert!(!budget.hold(1, 260, 400));
    assert!(budget.let_go(2, 265) && budget.handed.load(Relaxed) == 1);
    assert!(budget.is_contended(2, 270), "who was refused goes first");
    assert!(!budget.is_contended(2, 260 + FIRST_REFUSED), "unless it never came back");
    assert!(budget.hold(1, 266, 400));
}

#[test]
fn who_asks_first_goes_first_and_keeps_its_place() {
    let budget = Budget::default();
    assert!(budget.hold(1, 100, 200) && !budget.is_shared(1, 100) && budget.is_shared(2, 100));
    budget.ask(2, 110);
    assert!(!budget.hold(3, 120, 300), "refused, and no sooner than who asked before it");
    assert!(budget.is_contended(3, 130) && budget.is_contended(1, 130) && !budget.is_contended(2, 130));
    assert!(budget.let_go(1, 140) && budget.hold(2, 150, 300) && !budget.is_contended(1, 150));
    assert!(!budget.hold(3, 160, 400) && budget.is_contended(2, 170), "then the next one");
    // Who has given up is passed over, and forgotten in the end.
    budget.ask(1, 180);
    assert!(!budget.is_contended(3, 190) && budget.is_contended(1, 190));
    budget.ask(1, 160 + FIRST_REFUSED);
    assert!(budget.is_contended(3, 160 + FIRST_REFUSED));
    assert!(!budget.is_shared(1, 10_000_000) && !budget.is_shared(2, 10_000_000));
}

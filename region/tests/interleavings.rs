//! The compute budget under every interleaving of two processes that the memory model allows: no charge is lost, a turn has one
//! holder, and nobody sleeps on.
//!
//! The budget's own source is compiled here with loom's atomics in place of the real ones.

mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[allow(dead_code, reason = "the rest is used by the library")]
#[path = "../src/budget.rs"]
mod budget;

use budget::{Budget, FIRST, Rate};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};

const NOW: u64 = 1_000_000_000_000;
const RATE: Rate = Rate::new(50).unwrap();

/// What the kernel does with a futex: who waits for another value than it read sleeps until woken.
struct Futex {
    sleepers: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU32, value: u32) {
        let mut sleepers = self.sleepers.lock().unwrap();
        while word.load(Acquire) == value {
            sleepers = self.woken.wait(sleepers).unwrap();
        }
    }

    fn wake(&self) {
        let _sleepers = self.sleepers.lock().unwrap();
        self.woken.notify_all();
    }
}

/// As `pace` and `account` use it: the word is read before the turn is asked for, and who ends a turn wakes.
fn take_a_turn(budget: &Budget, futex: &Futex, who: u16, inside: &AtomicU32) {
    loop {
        let handed = budget.handed.load(Acquire);
        if budget.hold(who, 100, 10_000) {
            break;
        }
        futex.wait(&budget.handed, handed);
    }
    assert_eq!(inside.fetch_add(1, Relaxed), 0, "two hold the turn");
    inside.fetch_sub(1, Relaxed);
    if budget.let_go(who, 100) {
        futex.wake();
    }
}

#[test]
fn turns_have_one_holder_and_whoever_waits_is_woken() {
    loom::model(|| {
        let shared = Arc::new((Budget::default(), Futex { sleepers: Mutex::new(()), woken: Condvar::new() }, AtomicU32::new(0)));
        let other = shared.clone();
        let thread = thread::spawn(move || take_a_turn(&other.0, &other.1, 1, &other.2));
        take_a_turn(&shared.0, &shared.1, 2, &shared.2);
        thread.join().unwrap();
        assert_eq!(shared.0.handed.load(Relaxed), 2);
    });
}

#[test]
fn no_charge_is_lost_and_what_a_container_starts_with_is_given_once() {
    loom::model(|| {
        let budget = Arc::new(Budget::default());
        let other = budget.clone();
        let thread = thread::spawn(move || {
            other.balance(NOW, RATE);
            other.charge(3_000, RATE);
        });
        budget.balance(NOW, RATE);
        budget.charge(5_000, RATE);
        thread.join().unwrap();
        assert_eq!(budget.used.load(Relaxed), 8_000);
        assert_eq!(budget.balance(NOW, RATE), FIRST as i64 - 8_000);
    });
}

#[test]
fn what_is_given_back_meets_a_charge() {
    loom::model(|| {
        let budget = Arc::new(Budget::default());
        budget.balance(NOW, RATE);
        let other = budget.clone();
        let thread = thread::spawn(move || {
            other.charge(4_000, RATE);
            other.charge(-4_000, RATE);
        });
        budget.charge(1_000, RATE);
        assert!(budget.balance(NOW, RATE) <= FIRST as i64 - 1_000);
        thread.join().unwrap();
        assert_eq!(budget.balance(NOW, RATE), FIRST as i64 - 1_000);
    });
}

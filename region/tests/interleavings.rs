//! The compute budget under every interleaving of two processes that the memory model allows: no charge is lost, a lease has one holder, and
//! every waiting process is woken.
//!
//! The budget's own source is compiled here with loom's atomics instead of the real ones.

mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[allow(dead_code, reason = "the library uses the rest")]
#[path = "../src/budget.rs"]
mod budget;

use budget::{Budget, INITIAL_NS, Micros, Rate};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sync::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};

const NOW: u64 = 1_000_000_000_000;
const RATE: Rate = Rate::new(50).unwrap();
const MAX_SAVED_NS: u64 = 20_000_000;

/// A model of the kernel's futex: a thread sleeps until the value differs from the one it read, and it is woken.
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

/// As in the limiter: the word is read before the lease is requested, and the process that ends a lease wakes the others.
fn take_and_end_a_lease(budget: &Budget, futex: &Futex, process: u16, inside: &AtomicU32) {
    loop {
        let lease_ends = budget.lease_ends.load(Acquire);
        if budget.acquire_lease(process, Micros(100), Micros(10_000)) {
            break;
        }
        futex.wait(&budget.lease_ends, lease_ends);
    }
    assert_eq!(inside.fetch_add(1, Relaxed), 0, "two processes have the lease");
    inside.fetch_sub(1, Relaxed);
    if budget.release_lease(process, Micros(100)) {
        futex.wake();
    }
}

#[test]
fn leases_have_one_holder_and_waiting_processes_are_woken() {
    loom::model(|| {
        let shared = Arc::new((Budget::default(), Futex { sleepers: Mutex::new(()), woken: Condvar::new() }, AtomicU32::new(0)));
        let other = shared.clone();
        let thread = thread::spawn(move || take_and_end_a_lease(&other.0, &other.1, 1, &other.2));
        take_and_end_a_lease(&shared.0, &shared.1, 2, &shared.2);
        thread.join().unwrap();
        assert_eq!(shared.0.lease_ends.load(Relaxed), 2);
    });
}

#[test]
fn no_charge_is_lost_and_the_initial_balance_is_given_once() {
    loom::model(|| {
        let budget = Arc::new(Budget::default());
        let other = budget.clone();
        let thread = thread::spawn(move || {
            other.balance(NOW, RATE, MAX_SAVED_NS);
            other.charge(3_000, RATE);
        });
        budget.balance(NOW, RATE, MAX_SAVED_NS);
        budget.charge(5_000, RATE);
        thread.join().unwrap();
        assert_eq!(budget.used.load(Relaxed), 8_000);
        assert_eq!(budget.balance(NOW, RATE, MAX_SAVED_NS), INITIAL_NS as i64 - 8_000);
    });
}

#[test]
fn a_refund_concurrent_with_a_charge_loses_neither() {
    loom::model(|| {
        let budget = Arc::new(Budget::default());
        budget.balance(NOW, RATE, MAX_SAVED_NS);
        let other = budget.clone();
        let thread = thread::spawn(move || {
            other.charge(4_000, RATE);
            other.charge(-4_000, RATE);
        });
        budget.charge(1_000, RATE);
        assert!(budget.balance(NOW, RATE, MAX_SAVED_NS) <= INITIAL_NS as i64 - 1_000);
        thread.join().unwrap();
        assert_eq!(budget.balance(NOW, RATE, MAX_SAVED_NS), INITIAL_NS as i64 - 1_000);
    });
}

//! Time slices of their own, and processes that are switched off. Each slot stands for a process: it has its own mapping of the machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use simgpu_device::{Config, Device, Slot, Span, now_ns};

const MS: u64 = 1_000_000;
/// Longer than any test.
const ENDLESS: u64 = 3_600_000 * MS;

struct Machine {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Machine {
    fn new(settings: &[(&str, &str)]) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu");
        let mut config = Config::default();
        for (name, value) in settings {
            config.set(name, value).unwrap();
        }
        Device::create(&path, &config).unwrap();
        Machine { _folder: folder, path }
    }

    fn slot(&self) -> Slot {
        Slot::attach(Arc::new(Device::open(&self.path).unwrap())).unwrap()
    }
}

/// Operation that runs on a thread of its own.
struct Running {
    slot: Slot,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Span>,
}

fn start(slot: &Slot, duration_ns: u64) -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    let (own, flag) = (slot.clone(), Arc::clone(&stop));
    let thread = thread::spawn(move || {
        let span = own.run_interruptible(0, now_ns(), duration_ns, &flag);
        own.set_idle(0);
        span
    });
    Running { slot: slot.clone(), stop, thread }
}

impl Running {
    /// Waits until the GPU executes the operation.
    fn wait_for_progress(&self) {
        while used(&self.slot) == 0 {
            // The thread accounts for its time when it is woken.
            self.slot.interrupt(0);
            wait_ms(1);
        }
    }

    fn end(self) -> Span {
        self.thread.join().unwrap()
    }

    fn interrupt(self) -> Span {
        self.stop.store(true, Ordering::Release);
        self.slot.interrupt(0);
        self.end()
    }
}

/// Returns the GPU time that a slot with a context has used, ns.
fn used(slot: &Slot) -> u64 {
    slot.device().processes(0)[0].busy_ns
}

fn wait_ms(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

#[test]
fn time_slices_divide_the_gpu() {
    let machine = Machine::new(&[]);
    let (short, long) = (machine.slot(), machine.slot());
    short.set_slice(0, Some(8 * MS));
    long.set_slice(0, Some(24 * MS));
    let (first, second) = (start(&short, ENDLESS), start(&long, ENDLESS));
    wait_ms(600);
    let (first, second) = (first.interrupt().gpu_ns, second.interrupt().gpu_ns);
    let ratio = second as f64 / first as f64;
    assert!((1.5..6.0).contains(&ratio), "{first} and {second} ns of GPU time with slices of 1 to 3");
}

#[test]
fn a_slice_can_be_changed_while_work_runs_and_reset() {
    let machine = Machine::new(&[("slice_ns", "4000000")]);
    let (one, other) = (machine.slot(), machine.slot());
    other.set_slice(0, Some(100 * MS));
    let (first, second) = (start(&one, ENDLESS), start(&other, ENDLESS));
    wait_ms(50);
    one.set_slice(0, Some(0));
    one.set_slice(0, Some(16 * MS));
    other.set_slice(0, None);
    wait_ms(500);
    let (first, second) = (first.interrupt().gpu_ns, second.interrupt().gpu_ns);
    assert!(first > second, "{first} ns with a slice of 16 ms, {second} ns with one of 4 ms");
}

#[test]
fn work_of_a_process_that_is_off_stands_still_and_the_neighbour_gets_the_gpu() {
    let machine = Machine::new(&[("slice_ns", "3600000000000")]);
    let (held, neighbour) = (machine.slot(), machine.slot());
    held.count_context(0, true);
    let work = start(&held, 200 * MS);
    work.wait_for_progress();
    held.switch_off(0, 500_000, false);
    let (off_ns, used_before) = (now_ns(), used(&held));
    // The neighbour's work would wait for the end of the other's slice, which is an hour.
    assert_eq!(start(&neighbour, 20 * MS).end().gpu_ns, 20 * MS);
    wait_ms(10);
    assert!(held.is_off(0) && !work.thread.is_finished());
    assert_eq!(used(&held), used_before, "it makes no progress");
    let on_ns = now_ns();
    held.switch_on(0, 300_000);
    assert!(!held.is_off(0));
    let span = work.end();
    assert_eq!(span.gpu_ns, 200 * MS, "the operation continues where it was interrupted");
    assert!(span.start_ns < off_ns && span.end_ns >= on_ns + 300_000, "it was off from {off_ns} to {on_ns}: {span:?}");
}

#[test]
fn a_process_that_comes_back_ends_the_slice_of_its_neighbour() {
    let machine = Machine::new(&[]);
    let (held, neighbour) = (machine.slot(), machine.slot());
    held.switch_off(0, 0, false);
    let (waiting, hog) = (start(&held, 5 * MS), start(&neighbour, ENDLESS));
    wait_ms(20);
    assert!(!waiting.thread.is_finished());
    held.switch_on(0, 0);
    assert_eq!(waiting.end().gpu_ns, 5 * MS);
    assert!(hog.interrupt().gpu_ns > 0);
}

#[test]
fn work_goes_on_to_the_end_of_the_slice_if_only_scheduling_is_disabled() {
    let machine = Machine::new(&[("slice_ns", "20000000")]);
    let (held, neighbour) = (machine.slot(), machine.slot());
    let (work, other) = (start(&held, ENDLESS), start(&neighbour, ENDLESS));
    wait_ms(100);
    held.switch_off(0, 0, true);
    wait_ms(100);
    assert!(held.is_off(0));
    let (first, second) = (work.interrupt().gpu_ns, other.interrupt().gpu_ns);
    assert!(first > 0 && second > first, "{first} ns of the process that is off, {second} ns of the other");
}

#[test]
fn switching_is_idempotent_and_cycles_lose_no_work() {
    let machine = Machine::new(&[]);
    let held = machine.slot();
    let work = start(&held, 20 * MS);
    for _ in 0..20 {
        held.switch_off(0, 100_000, false);
        held.switch_off(0, 0, false);
        wait_ms(1);
        held.switch_on(0, 0);
        held.switch_on(0, 0);
    }
    assert_eq!(work.end().gpu_ns, 20 * MS);
}

#[test]
fn new_work_is_noticed_while_off() {
    let machine = Machine::new(&[]);
    let held = machine.slot();
    held.switch_off(0, 0, false);
    let span = start(&held, MS).interrupt();
    assert_eq!(span.gpu_ns, 0);
}

#[test]
fn the_controls_of_a_process_are_listed() {
    let machine = Machine::new(&[]);
    let slot = machine.slot();
    slot.count_context(0, true);
    let state = || slot.device().processes(0).iter().map(|one| (one.slice_ns, one.is_off, one.times_off)).collect::<Vec<_>>();
    assert_eq!(state(), [(Config::default().slice_ns, false, 0)]);
    slot.set_slice(0, Some(7 * MS));
    slot.switch_off(0, 0, false);
    assert_eq!(state(), [(7 * MS, true, 1)]);
    slot.switch_on(0, 0);
    assert_eq!(state(), [(7 * MS, false, 1)]);
}

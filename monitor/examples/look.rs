//! Prints the CPU time of the monitor's looks at a host, in milliseconds: least, median, and the median of the calls of NVML in it.
//!
//!     look STATE_DIR [LOOKS]
//!
//! The first looks, which read what the later ones reuse, do not count.

use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vgpu_config::Inventory;
use vgpu_monitor::gpus::Gpus;
use vgpu_monitor::observer::Observer;
use vgpu_monitor::violations::ViolationDetector;

/// Looks that do not count.
const FIRST: usize = 2;

fn cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

/// Returns the median CPU time of the calls of NVML for one look.
fn nvml_ms(inventory: &Inventory, looks: usize) -> f64 {
    let Ok(mut gpus) = Gpus::open() else { return 0.0 };
    let mut times = Vec::new();
    for _ in 0..looks {
        let before = cpu_ms();
        let _ = gpus.states(inventory);
        times.push(cpu_ms() - before);
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let Some(state_dir) = args.get(1) else { return eprintln!("look: expected a state directory") };
    let looks = args.get(2).and_then(|count| count.parse().ok()).unwrap_or(20_usize);
    let (mut observer, mut detector) = (Observer::new(Path::new(state_dir)), ViolationDetector::new(Duration::ZERO));
    let mut times = Vec::new();
    let mut look = |number: u64| {
        let before = cpu_ms();
        let snapshot = observer.sample();
        let _ = detector.detect(&snapshot, Duration::from_millis(400 * number));
        times.push(cpu_ms() - before);
        std::thread::sleep(Duration::from_millis(100));
    };
    (0..(looks + FIRST) as u64).for_each(&mut look);
    let mut counted = times.split_off(FIRST.min(times.len()));
    counted.sort_by(f64::total_cmp);
    let nvml = nvml_ms(observer.inventory(), looks);
    println!("{:.1} {:.1} {nvml:.1}", counted.first().unwrap_or(&0.0), counted.get(counted.len() / 2).unwrap_or(&0.0));
}

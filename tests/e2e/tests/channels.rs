//! The thread that tells the GPU's scheduler about its process: where it is, and that it takes no signals.

use std::fs::{read_dir, read_to_string};

use vgpu_e2e::{Kit, Machine, Way, host};
use vgpu_test_harness::{Runtime, can_run};

/// Runs a busy process in a container, and returns the number of its threads and the status of those called `vgpu`.
fn threads(kit: &Kit, runtime: Runtime, way: Way, cores: &str, program: &str) -> (usize, Vec<String>) {
    let (machine, host) = (Machine::simulated(kit, &[]), host(kit, runtime));
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "4096");
    let bundle = if cores.is_empty() { bundle } else { bundle.annotation("nvidia.com/gpucores", cores) };
    let mut running = way.start(&host, bundle.args(&["/programs/tenant", program, "--seconds", "600"]));
    assert_eq!(running.line(), "working");
    let show = machine.show();
    let pids: Vec<u32> = show.split_whitespace().filter_map(|word| word.strip_prefix("pid=")?.parse().ok()).collect();
    let [pid] = pids[..] else { panic!("{show}") };
    let threads: Vec<String> = read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .filter_map(|thread| read_to_string(thread.path().join("status")).ok())
        .collect();
    let own = threads.iter().filter(|status| status.starts_with("Name:\tvgpu\n")).cloned().collect();
    (threads.len(), own)
}

#[test]
fn one_thread_where_gpu_time_is_limited() {
    for (runtime, way) in [(Runtime::Runc, Way::Wrapper), (Runtime::Runc, Way::Hooks), (Runtime::Crun, Way::Wrapper)] {
        if !can_run(runtime) {
            continue;
        }
        let kit = Kit::find();
        let (all, own) = threads(&kit, runtime, way, "30", "busy");
        assert_eq!(own.len(), 1, "{runtime:?}, {way:?}: {own:#?}");
        let field = |name: &str| own[0].lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
        // All but SIGKILL and SIGSTOP, which cannot be blocked, and 32 and 33, with which glibc reaches all threads of a process.
        let own_signals = 1 << 31 | 1 << 32;
        assert_eq!(u64::from_str_radix(&field("SigBlk:"), 16).unwrap() | own_signals, !(1 << 8 | 1 << 18), "{}", own[0]);
        let (without, own) = threads(&kit, runtime, way, "", "busy");
        assert_eq!((without, own), (all - 1, vec![]), "{runtime:?}, {way:?}: a container with a memory limit alone");
    }
}

/// Several threads that launch for the first time at once start one between them.
#[test]
fn racing_threads_start_one() {
    if !can_run(Runtime::Runc) {
        return;
    }
    let kit = Kit::find();
    for _ in 0..5 {
        let (all, own) = threads(&kit, Runtime::Runc, Way::Wrapper, "30", "threads");
        assert!(own.len() == 1 && all > 8, "{all} threads: {own:#?}");
    }
}

//! A container sees its share, gets its share by every ordinary call, and never more.

use vgpu_e2e::{Fill, Kit, MIB, Machine, WAYS_TO_ALLOCATE, hosts};

const LIMIT: u64 = 1024 * MIB;

#[test]
fn every_ordinary_allocation_stops_at_the_limit() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        for api in WAYS_TO_ALLOCATE {
            let machine = Machine::simulated(&kit, &[]);
            let watch = machine.watch();
            let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
            let outcome = way.run(&host, bundle.args(&["/programs/fill", "--api", api, "--chunk", "16M", "--max", "4G"]));
            let case = format!("{runtime:?}, {way:?}, {api}: {outcome:#?}");
            let fill = Fill::of(&outcome.stdout);
            assert_eq!(fill.total, LIMIT, "{case}");
            assert_eq!(fill.nvml_total, Some(LIMIT), "{case}");
            assert_eq!(fill.error, "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
            let context = fill.context.expect("the process is on NVML's list");
            assert!(fill.obtained + context <= LIMIT, "{case}");
            let peak = watch.peak(0);
            // The driver may take more than was asked for (a graph's pool grows by 32 MiB), or not show it (managed memory).
            let used = peak.max(fill.obtained + context);
            assert!(used > LIMIT - 48 * MIB, "what is left should be obtained, and only {used} bytes were: {case}");
            assert!(peak <= LIMIT, "the host's NVML showed {peak}: {case}");
            assert!(host.containers().len() <= 1, "what one left is swept by the next: {case}");
        }
    }
}

/// One thread makes the process's context, and the other is allocating in it before the first knows what that has cost. On a single
/// core, where they take turns in the middle of it.
#[test]
fn threads_that_begin_at_once_stay_within_the_limit() {
    let kit = Kit::find();
    let Some((_, way, host)) = hosts(&kit).next() else { return };
    for round in 0..6 {
        let machine = Machine::simulated(&kit, &[]);
        let watch = machine.watch();
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "50");
        let command = ["/usr/bin/taskset", "-c", "0", "/usr/bin/timeout", "1", "/programs/changes", "--chunk", "4M", "--max", "4G"];
        let outcome = way.run(&host, bundle.args(&command));
        assert!(outcome.stdout.contains("full"), "{outcome:#?}");
        let peak = watch.peak(0);
        assert!(peak <= LIMIT, "{peak} bytes in round {round}");
    }
}

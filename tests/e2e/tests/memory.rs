//! A container sees its share and obtains it by every ordinary call, but never more.

use vgpu_e2e::{ALLOCATION_METHODS, Fill, Kit, MIB, Machine, hosts};

const LIMIT: u64 = 1024 * MIB;

#[test]
fn every_ordinary_allocation_stops_at_the_limit() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        for api in ALLOCATION_METHODS {
            let machine = Machine::simulated(&kit, &[]);
            let watch = machine.watch();
            let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
            let outcome = way.run(&host, bundle.args(&["/programs/fill", "--api", api, "--chunk", "16M", "--max", "4G"]));
            let case = format!("{runtime:?}, {way:?}, {api}: {outcome:#?}");
            let fill = Fill::of(&outcome.stdout);
            assert_eq!(fill.total, LIMIT, "{case}");
            assert_eq!(fill.nvml_total, Some(LIMIT), "{case}");
            assert_eq!(fill.error, "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
            let context = fill.context.expect("NVML lists the process");
            assert!(fill.obtained + context <= LIMIT, "{case}");
            let peak = watch.peak(0);
            // The driver may take more than was requested (a graph's pool grows by 32 MiB), or not list it (managed memory).
            let used = peak.max(fill.obtained + context);
            assert!(used > LIMIT - 48 * MIB, "only {used} bytes were obtained: {case}");
            assert!(peak <= LIMIT, "NVML on the host listed {peak} bytes: {case}");
            assert!(host.containers().len() <= 1, "state of an ended container is left: {case}");
        }
    }
}

/// One thread creates the process's context, and the other allocates in it before the first has measured the context. Both run on one
/// core, so that they are preempted in between.
#[test]
fn threads_that_start_together_stay_within_the_limit() {
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

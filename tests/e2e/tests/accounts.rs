//! Every allocation method, random sequences of them, and races, under the library without a container. The programs check their own
//! results; the simulated GPU records the exact peak.

use vgpu_e2e::{Kit, MIB, Machine};

/// Runs a program under the library and returns the peak of each GPU by NVML, in bytes.
fn run(program: &str, arguments: &[&str], properties: &[&str], gpus: u32) -> Vec<u64> {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, properties);
    let watches: Vec<_> = (0..gpus).map(|_| machine.watch()).collect();
    let output = machine.program(program).arg("--library").arg(kit.library()).args(arguments).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    (0..).zip(watches).map(|(gpu, watch)| watch.peak(gpu)).collect()
}

#[test]
fn every_method_obtains_all_memory_below_the_limit() {
    assert_eq!(run("ways", &["--limit", "2G", "--no-native"], &[], 1), [2048 * MIB]);
}

#[test]
fn methods_that_obtain_less_obtain_no_more_natively() {
    // The native part fills the GPU, so its peak is not compared.
    let few = ["--only", "graph", "--only", "mipmaps", "--only", "stack"];
    run("ways", &few, &["total=16G"], 0);
}

#[test]
fn accounts_equal_nvml_after_random_sequences() {
    // The seed reproduces all steps.
    let seed = vgpu_e2e::seed();
    let peak = run("churn", &["--limit", "8G", "--rounds", "12", "--seed", &seed], &[], 1);
    assert!(peak[0] <= 8192 * MIB, "{peak:?}");
    // Threads of one process that are near the limit most of the time.
    let threads = ["--limit", "3G", "--processes", "2", "--threads", "4", "--steps", "1000", "--rounds", "4", "--seed", &seed];
    let peak = run("churn", &threads, &[], 1);
    assert!(peak[0] <= 3072 * MIB, "{peak:?}");
}

#[test]
fn racing_processes_never_exceed_the_limit() {
    let race = ["--processes", "64", "--allocations", "10000", "--limit", "1G"];
    let peak = run("race", &race, &["context=2M"], 1)[0];
    assert!((1000 * MIB..=1024 * MIB).contains(&peak), "peak of {peak} bytes: the limit was exceeded or never reached");
}

#[test]
fn racing_threads_that_share_granules_never_exceed_the_limit() {
    // Small allocations under a low limit, which is reached all the time: each thread fills the granules of other threads.
    let race = ["--processes", "6", "--threads", "8", "--allocations", "3000", "--chunk", "1M", "--limit", "120M"];
    let peak = run("race", &race, &["context=2M"], 1)[0];
    assert!((116 * MIB..=120 * MIB).contains(&peak), "peak of {peak} bytes: the limit was exceeded or never reached");
}

#[test]
fn slow_contexts_all_fit() {
    // The size of a context is overestimated until one has been measured, so they do not all start at once. Those that do overlap for long.
    let race = ["--processes", "16", "--allocations", "20", "--chunk", "1M", "--limit", "8600M"];
    let peak = run("race", &race, &["context_ns=3000000000"], 1)[0];
    assert!((16 * 518 * MIB..=8600 * MIB).contains(&peak), "peak of {peak} bytes: a context was refused, or charged too little");
}

#[test]
fn figures_of_each_gpu_agree_in_any_order() {
    assert_eq!(run("view", &[], &["gpus=3"], 3), [2048 * MIB, 2560 * MIB, 3072 * MIB]);
}

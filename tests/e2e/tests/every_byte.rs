//! Every way of taking memory, random sequences of them, and races, under the library without a container. The programs say what is
//! wrong; the simulated GPU tells the exact peak.

use vgpu_e2e::{Kit, MIB, Machine};

/// Runs one of the programs under the library and gives the most that NVML ever showed of each GPU, in bytes.
fn run(program: &str, arguments: &[&str], properties: &[&str], gpus: u32) -> Vec<u64> {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, properties);
    let watches: Vec<_> = (0..gpus).map(|_| machine.watch()).collect();
    let output = machine.program(program).arg("--library").arg(kit.library()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    (0..).zip(watches).map(|(gpu, watch)| watch.peak(gpu)).collect()
}

#[test]
fn every_way_stops_at_the_limit_and_leaves_nothing() {
    assert_eq!(run("ways", &["--limit", "2G", "--no-native"], &[], 1), [2048 * MIB]);
}

#[test]
fn a_way_that_gets_less_than_all_gets_no_more_natively() {
    // The native part fills the GPU, and so the peak says nothing here.
    let few = ["--only", "graph", "--only", "mipmaps", "--only", "stack"];
    run("ways", &few, &["total=16G"], 0);
}

#[test]
fn accounts_say_what_nvml_says_after_random_sequences() {
    // Told, the seed makes all steps again.
    let seed = std::env::var("VGPU_TEST_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("VGPU_TEST_SEED={seed}");
    let peak = run("churn", &["--limit", "8G", "--rounds", "12", "--seed", &seed], &[], 1);
    assert!(peak[0] <= 8192 * MIB, "{peak:?}");
    // Threads of one process, near the limit most of the time.
    let threads = ["--limit", "3G", "--processes", "2", "--threads", "4", "--steps", "1000", "--rounds", "4", "--seed", &seed];
    let peak = run("churn", &threads, &[], 1);
    assert!(peak[0] <= 3072 * MIB, "{peak:?}");
}

#[test]
fn sixty_four_processes_race_with_no_byte_over() {
    let race = ["--processes", "64", "--allocations", "10000", "--limit", "1G"];
    let peak = run("race", &race, &["context=2M"], 1)[0];
    assert!((1000 * MIB..=1024 * MIB).contains(&peak), "{peak} bytes at most, so the limit was passed or never met");
}

#[test]
fn threads_that_share_granules_race_with_no_byte_over() {
    // Small ones, in so little room that the limit is met all the time: each thread fills what others of its process leave.
    let race = ["--processes", "6", "--threads", "8", "--allocations", "3000", "--chunk", "1M", "--limit", "120M"];
    let peak = run("race", &race, &["context=2M"], 1)[0];
    assert!((116 * MIB..=120 * MIB).contains(&peak), "{peak} bytes at most, so the limit was passed or never met");
}

#[test]
fn contexts_that_take_long_all_find_room() {
    // Each is taken for larger than it is until one was measured, and so not all are begun at once; those that are, take long side by side.
    let race = ["--processes", "16", "--allocations", "20", "--chunk", "1M", "--limit", "8600M"];
    let peak = run("race", &race, &["context_ns=3000000000"], 1)[0];
    assert!((16 * 518 * MIB..=8600 * MIB).contains(&peak), "{peak} bytes at most: one had no room for its context, or too much");
}

#[test]
fn each_gpus_figures_fit_together_in_any_order() {
    assert_eq!(run("view", &[], &["gpus=3"], 3), [2048 * MIB, 2560 * MIB, 3072 * MIB]);
}

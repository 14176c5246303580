//! Many processes race in one container, and half of them are killed in every round.

use vgpu_e2e::{Kit, MIB, Machine, PROGRAMS, Way, host};
use vgpu_test_harness::{Runtime, can_run};

/// Size of a context on this GPU: small, so that many processes fit.
const CONTEXT: u64 = 8 * MIB;
const LIMIT: u64 = 1024 * MIB;

fn storm(runtime: Runtime, way: Way, rounds: u64) {
    if !can_run(runtime) {
        return;
    }
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["context=8M"]);
    let host = host(&kit, runtime);
    // The seed reproduces the sizes and victims of a round; the timing depends on the scheduler.
    let seed = vgpu_e2e::seed();
    let command = format!("{PROGRAMS}/storm --processes 32 --rounds {rounds} --limit {LIMIT} --context {CONTEXT} --seed {seed}");
    let watch = machine.watch();
    let outcome = way.run(&host, machine.bundle().annotation("nvidia.com/gpumem", "1024").shell(&command));
    let peak = watch.peak(0);
    let end = outcome.stderr.lines().last().unwrap_or_default();
    assert!(outcome.status.success(), "{runtime:?}, {way:?}, seed {seed}: {end}; NVML peak {peak}");
    eprintln!("{}", outcome.stdout.trim());
    assert!(peak <= LIMIT, "{runtime:?}, {way:?}, seed {seed}: NVML peak {peak}");
    // The race was a real one: the limit was reached.
    assert!(peak > LIMIT - 4 * MIB, "{runtime:?}, {way:?}, seed {seed}: NVML peak only {peak}");
    assert_eq!(machine.held(0).processes, [], "{runtime:?}, {way:?}, seed {seed}");
}

#[test]
fn survivors_obtain_all_memory_with_runc() {
    storm(Runtime::Runc, Way::Wrapper, 200);
}

#[test]
fn survivors_obtain_all_memory_with_crun() {
    storm(Runtime::Crun, Way::Wrapper, 10);
}

#[test]
fn survivors_obtain_all_memory_with_hooks_alone() {
    storm(Runtime::Runc, Way::Hooks, 10);
}

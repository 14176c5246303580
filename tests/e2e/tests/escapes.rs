//! A container keeps its limit whatever its processes do to their environment, their parents or their user.

use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, escapes, host, hosts};
use vgpu_test_harness::{Bundle, Outcome, Runtime, can_run};

const LIMIT: u64 = 1024 * MIB;

fn limited(machine: &Machine) -> Bundle {
    machine.bundle().annotation("nvidia.com/gpumem", "1024")
}

#[track_caller]
fn assert_limited(machine: &Machine, case: &str, outcome: &Outcome) {
    let fill = Fill::of(&outcome.stdout);
    assert_eq!((fill.total, fill.error.as_str()), (LIMIT, "CUDA_ERROR_OUT_OF_MEMORY"), "{case}: {outcome:#?}");
    // A process that is not a child of the command may outlive it for a moment, but may not hold more than the limit.
    let now: u64 = machine.held(0).processes.iter().map(|process| process.1).sum();
    assert!(now <= LIMIT, "{case}: {now} bytes held afterwards");
}

#[test]
fn environment_and_parents_do_not_lift_the_limit() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        for (name, script) in escapes() {
            let machine = Machine::simulated(&kit, &[]);
            let watch = machine.watch();
            let case = format!("{runtime:?}, {way:?}, {name}");
            assert_limited(&machine, &case, &way.run(&host, limited(&machine).shell(&script)));
            let peak = watch.peak(0);
            assert!(peak <= LIMIT, "{case}: NVML on the host listed {peak} bytes");
        }
    }
}

/// The loader takes libraries of `LD_PRELOAD` before those of `/etc/ld.so.preload`, so their functions come before vgpu's.
#[test]
fn libraries_that_a_program_preloads_are_caught_with_both_ways() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        host.policy("intercept = \"both\"");
        for library in ["libcuda.so.1", "libc.so.6", "/usr/local/vgpu/driver/libcuda.so.1"] {
            let machine = Machine::simulated(&kit, &[]);
            let script = format!("LD_PRELOAD={library} {PROGRAMS}/fill --chunk 16M --max 4G");
            assert_limited(&machine, &format!("{runtime:?}, {way:?}, {library}"), &way.run(&host, limited(&machine).shell(&script)));
        }
    }
}

#[test]
fn another_user_does_not_lift_the_limit() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let machine = Machine::simulated(&kit, &[]);
        let fill = format!("{PROGRAMS}/fill --chunk 16M --max 4G");
        assert_limited(&machine, &format!("{runtime:?}, {way:?}"), &way.run(&host, limited(&machine).user(65534).shell(&fill)));
    }
}

/// Two processes of a container share its limit; one of them is started by `exec`.
#[test]
fn exec_process_shares_the_limit() {
    let kit = Kit::find();
    for runtime in [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime)) {
        let host = host(&kit, runtime);
        let machine = Machine::simulated(&kit, &["context=8M"]);
        let watch = machine.watch();
        let bundle = limited(&machine).shell(&format!("{PROGRAMS}/fill --chunk 64M --max 512M --hold 600"));
        let container = host.start(&bundle);
        // The first process holds its half before the second starts.
        while machine.held(0).processes.iter().map(|process| process.1).sum::<u64>() < 512 * MIB {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let outcome = container.exec(&format!("env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH {PROGRAMS}/fill --chunk 16M --max 4G"));
        assert!(outcome.status.success(), "{runtime:?}: {outcome:#?}");
        let fill = Fill::of(&outcome.stdout);
        assert_eq!((fill.total, fill.obtained, fill.error.as_str()), (LIMIT, 496 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"), "{outcome:#?}");
        let peak = watch.peak(0);
        assert!(peak <= LIMIT && peak > LIMIT - 16 * MIB, "{runtime:?}: NVML on the host listed {peak} bytes");
    }
}

/// Two containers on one GPU have separate limits.
#[test]
fn containers_have_separate_limits() {
    let kit = Kit::find();
    if !can_run(Runtime::Runc) {
        return;
    }
    let host = host(&kit, Runtime::Runc);
    let machine = Machine::simulated(&kit, &["total=4G", "context=8M"]);
    let fill = format!("{PROGRAMS}/fill");
    let start = |mib: u64| {
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", &mib.to_string());
        let mut container = Way::Wrapper.start(&host, bundle.args(&[&fill, "--chunk", "8M", "--max", "4G", "--hold", "600"]));
        (Fill::of(&container.line()), container)
    };
    let (one, other) = (start(1024), start(512));
    assert_eq!((one.0.obtained, other.0.obtained), (1016 * MIB, 504 * MIB));
    let mut held: Vec<u64> = machine.held(0).processes.iter().map(|process| process.1).collect();
    held.sort_unstable();
    assert_eq!(held, [512 * MIB, 1024 * MIB]);
}

//! Drivers newer than vgpu: what only they have.

use vgpu_e2e::{Kit, Machine, PROGRAMS, Way, host};
use vgpu_test_harness::{Runtime, can_run};

/// What `load newer` prints with a driver that has everything it asks for.
const NATIVE: &str = "\
dlsym cuLaunchTomorrow: found
dlsym cuTomorrow: found
dlsym cuMemAlloc_v3: found
dlsym cuMemAlloc_v2: found
dlsym cuLaunchHostFunc_v2: found
dlsym nvmlDeviceGetMemoryInfo_v3: found
cuGetProcAddress cuLaunchTomorrow 13060: found
cuGetProcAddress cuTomorrow 13060: found
cuGetProcAddress cuMemAlloc 13060: found
cuGetProcAddress cuMemAlloc 13000: found
cuGetProcAddress cuLaunchHostFunc 13020: found
cuGetProcAddress cuLaunchHostFunc 10000: found
";

/// Lines in which a limited program sees something else: functions that take memory or GPU time in a way that vgpu does not know.
const WITHHELD: [&str; 5] = [
    "dlsym cuLaunchTomorrow",
    "dlsym cuMemAlloc_v3",
    "dlsym nvmlDeviceGetMemoryInfo_v3",
    "cuGetProcAddress cuLaunchTomorrow 13060",
    "cuGetProcAddress cuMemAlloc 13060",
];

#[test]
fn functions_that_nobody_knows_are_withheld_if_they_take_memory_or_time() {
    if !can_run(Runtime::Runc) {
        return;
    }
    let kit = Kit::find().playing("next");
    let machine = Machine::simulated(&kit, &[]);
    let output = machine.program("load").arg("newer").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), NATIVE);

    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
    let outcome = Way::Wrapper.run(&host(&kit, Runtime::Runc), bundle.args(&[&format!("{PROGRAMS}/load"), "newer"]));
    let limited =
        WITHHELD.iter().fold(NATIVE.to_owned(), |text, line| text.replace(&format!("{line}: found"), &format!("{line}: not found")));
    assert_eq!(outcome.stdout, limited, "{outcome:#?}");
    assert!(outcome.stderr.contains("withheld cuLaunchTomorrow: vgpu does not know this function of a newer driver"), "{outcome:#?}");
}

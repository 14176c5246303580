//! Interception: a program is limited, whichever way it reaches the driver.

use vgpu_e2e::{Fill, Kit, MIB, Machine, hosts, loads};

/// The folder in which NVIDIA's tools mount the driver.
const DRIVER: &str = "/usr/local/nvidia/lib64";

#[test]
fn every_way_to_the_driver_is_limited() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        for intercept in ["preload", "replace", "both"] {
            host.policy(&format!("intercept = {intercept:?}"));
            for load in loads().iter().filter(|load| load.is_limited_with(intercept)) {
                let machine = Machine::simulated(&kit, &[]);
                let watch = machine.watch();
                let bundle = machine.bundle().bind(&kit.simgpu(), DRIVER, &["ro"]).annotation("nvidia.com/gpumem", "1024");
                // Without the preload list, as with a program that has its own loader.
                let list = if intercept == "replace" { "test ! -s /etc/ld.so.preload && " } else { "" };
                let outcome = way.run(&host, bundle.shell(&format!("{list}exec env LD_LIBRARY_PATH={DRIVER} {}", load.command)));
                let case = format!("{runtime:?}, {way:?}, {intercept}, {}: {outcome:#?}", load.name);
                assert!(outcome.stdout.contains('{'), "{case}");
                let fill = Fill::of(&outcome.stdout);
                assert_eq!(fill.total, 1024 * MIB, "{case}");
                assert_eq!(fill.error, "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
                assert!(fill.nvml_total.is_none_or(|total| total == 1024 * MIB), "{case}");
                assert!(fill.obtained > 128 * MIB && watch.peak(0) <= 1024 * MIB, "{case}");
            }
        }
    }
}

//! Interception by replacement: programs that no preload list reaches are held as well.

use vgpu_e2e::{Fill, Kit, MIB, Machine, hosts};

/// Where NVIDIA's tools put the driver, so that the front finds it.
const DRIVER: &str = "/usr/local/nvidia/lib64";

#[test]
fn a_front_holds_what_the_preload_list_does_not_reach() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        for intercept in ["preload", "replace", "both"] {
            host.policy(&format!("intercept = {intercept:?}"));
            let machine = Machine::simulated(&kit, &[]);
            let watch = machine.watch();
            let bundle = machine.bundle().bind(&kit.simgpu(), DRIVER, &["ro"]).annotation("nvidia.com/gpumem", "1024");
            // What the loader's list holds does not count: it is as if the program had come with a loader of its own.
            let list = if intercept == "replace" { "test ! -s /etc/ld.so.preload && " } else { "" };
            let command = format!("{list}exec env LD_LIBRARY_PATH={DRIVER} /programs/fill --api cuMemAlloc --chunk 16M --max 4G");
            let outcome = way.run(&host, bundle.shell(&command));
            let case = format!("{runtime:?}, {way:?}, {intercept}: {outcome:#?}");
            let fill = Fill::of(&outcome.stdout);
            assert_eq!((fill.total, fill.nvml_total), (1024 * MIB, Some(1024 * MIB)), "{case}");
            assert_eq!(fill.error, "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
            assert!(watch.peak(0) <= 1024 * MIB, "{case}");
        }
    }
}

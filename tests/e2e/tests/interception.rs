//! Interception: a program is limited, whichever way it reaches the driver.

use std::path::Path;

use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, hosts, loads};

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

/// What is linked in the container to the replaced library, as Triton does with a module for each program, depends on it if it calls the
/// driver: it gets vgpu's functions and the driver's others. A name that no driver has stays undefined.
#[test]
fn what_is_linked_in_the_container_is_limited() {
    let kit = Kit::find();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/src").canonicalize().unwrap();
    // The linker's own --as-needed is what Ubuntu's compiler passes.
    let script = |linker: &str, flags: &str, run: &str| {
        let link = format!("cc -fuse-ld={linker} -DLINKED -Wl,--as-needed /source/load.c -L{DRIVER} -l:libcuda.so.1");
        format!(
            "set -e; {link} {flags} -o /tmp/out; readelf -d /tmp/out | grep -c 'NEEDED.*libcuda.so.1'; LD_LIBRARY_PATH={DRIVER} {run}; \
             ! {link} -DcuGetErrorName=cuNobodyHasThis -o /tmp/not 2>/tmp/said; grep -c 'undefined reference to .cuNobodyHasThis' /tmp/said"
        )
    };
    let module = ("-DPLUGIN -shared -fPIC", format!("{PROGRAMS}/load /tmp/out"));
    for (runtime, way, host) in hosts(&kit).filter(|(_, way, _)| *way == Way::Wrapper) {
        for (intercept, linker, (flags, run)) in [
            ("replace", "bfd", &module),
            ("replace", "gold", &module),
            ("both", "bfd", &module),
            ("both", "gold", &("", "/tmp/out".to_owned())),
            ("replace", "bfd", &("", "/tmp/out".to_owned())),
        ] {
            host.policy(&format!("intercept = {intercept:?}"));
            let machine = Machine::simulated(&kit, &[]);
            let bundle = machine.bundle().bind(&kit.simgpu(), DRIVER, &["ro"]).bind(&source, "/source", &["ro"]);
            let outcome = way.run(&host, bundle.annotation("nvidia.com/gpumem", "1024").shell(&script(linker, flags, run)));
            let case = format!("{runtime:?}, {intercept}, {linker} {flags}: {outcome:#?}");
            assert!(outcome.status.success() && outcome.stdout.starts_with("1\n{") && outcome.stdout.ends_with("\n1\n"), "{case}");
            let fill = Fill::of(&outcome.stdout);
            assert_eq!((fill.total, fill.error.as_str()), (1024 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"), "{case}");
        }
    }
}

/// A program that gets the image's own driver library, as with CUDA's forward compatibility on a host with an older driver, is limited: vgpu
/// calls the same library as the program. The program chooses it when it starts, or the container's environment does.
#[test]
fn programs_with_the_images_driver_library_are_limited() {
    let kit = Kit::find();
    let older = kit.clone().playing("535");
    let newer = std::fs::read(kit.clone().playing("next").simgpu().join("libcuda.so.1")).unwrap();
    for (runtime, way, host) in hosts(&kit).filter(|(_, way, _)| *way == Way::Wrapper) {
        for (intercept, by, folder) in [
            ("preload", "program", "/usr/local/cuda/compat"),
            ("both", "program", "/usr/local/cuda/compat"),
            ("both", "program", "/driver"),
            ("preload", "environment", "/usr/local/cuda/compat"),
            ("both", "environment", "/usr/local/cuda/compat"),
            ("replace", "environment", "/usr/local/cuda/compat"),
        ] {
            host.policy(&format!("intercept = {intercept:?}"));
            let machine = Machine::simulated(&older, &[]);
            let mut bundle = machine.bundle().bind(&older.simgpu(), DRIVER, &["ro"]).annotation("nvidia.com/gpumem", "1024");
            bundle = bundle.file(&format!("{folder}/libcuda.so.1"), &newer);
            let chosen = format!("LD_LIBRARY_PATH={folder}:{DRIVER}");
            let (inside, env) = if by == "program" { (format!("LD_LIBRARY_PATH={DRIVER}"), &*chosen) } else { (chosen.clone(), "") };
            if let Some(variables) = bundle.spec["process"]["env"].as_array_mut() {
                variables.retain(|variable| !variable.as_str().is_some_and(|variable| variable.starts_with("LD_LIBRARY_PATH=")));
                variables.push(inside.into());
            }
            let outcome = way.run(&host, bundle.shell(&format!("{env} {PROGRAMS}/load version; {env} {PROGRAMS}/load dlopen")));
            let case = format!("{runtime:?}, {intercept}, {folder} by the {by}: {outcome:#?}");
            assert!(outcome.stdout.starts_with("13060\n{"), "{case}");
            let fill = Fill::of(&outcome.stdout);
            assert_eq!((fill.total, fill.error.as_str()), (1024 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"), "{case}");
        }
    }
}

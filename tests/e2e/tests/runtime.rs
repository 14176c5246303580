//! A program that uses the driver as the CUDA runtime of CUDA 12 and 13 does: it gets every function from `cuGetProcAddress`.

use serde_json::Value;
use vgpu_e2e::{Kit, MIB, Machine, PROGRAMS, Way, hosts};
use vgpu_test_harness::Runtime;

/// `cudaVersion` of the runtimes.
const VERSIONS: [u64; 2] = [12000, 13000];
/// `CU_GET_PROC_ADDRESS_DEFAULT`, and that of a program with a default stream for each thread.
const FLAGS: [u64; 2] = [0, 2];
/// Memory that the program tries to obtain.
const WANTED: u64 = 2048 * MIB;

fn parse(output: &str) -> Value {
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Runs the program without the library. Panics if it finds a function missing, an error or wrong data.
fn natively(machine: &Machine, version: u64, flags: u64) -> Value {
    let mut program = machine.program("runtime");
    let output = program.args([version, flags, WANTED].map(|number| number.to_string())).output().unwrap();
    assert!(output.status.success(), "{version}, {flags}: {output:?}");
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the versions that the driver knows; 535 knows no CUDA 13.
fn versions(machine: &Machine) -> Vec<u64> {
    let driver = natively(machine, VERSIONS[0], 0)["driver"].as_u64().unwrap();
    let (known, unknown): (Vec<u64>, Vec<u64>) = VERSIONS.iter().partition(|version| **version <= driver);
    if !unknown.is_empty() {
        eprintln!("SKIPPED: {unknown:?}: the driver has CUDA {driver}");
    }
    known
}

#[test]
fn programs_of_cuda_12_and_13_run_natively() {
    let machine = Machine::simulated(&Kit::find(), &[]);
    for version in versions(&machine) {
        for flags in FLAGS {
            let found = natively(&machine, version, flags);
            let case = format!("{version}, {flags}: {found}");
            assert!(found["total"].as_u64() > Some(WANTED) && found["device_total"] == found["total"], "{case}");
            for how in ["linear", "ordered"] {
                assert_eq!((found[how].as_u64(), &found[format!("{how}_error")]), (Some(WANTED), &Value::from("CUDA_SUCCESS")), "{case}");
            }
        }
    }
}

#[test]
fn programs_of_cuda_12_and_13_are_limited() {
    let kit = Kit::find();
    let versions = versions(&Machine::simulated(&kit, &[]));
    for (runtime, way, host) in hosts(&kit) {
        // The forms for threads are other functions of the driver, and the same in every container.
        let flags = if (runtime, way) == (Runtime::Runc, Way::Wrapper) { &FLAGS[..] } else { &FLAGS[..1] };
        for (version, flags) in versions.iter().flat_map(|version| flags.iter().map(move |flags| (version, flags))) {
            let machine = Machine::simulated(&kit, &[]);
            let watch = machine.watch();
            let (program, wanted) = (format!("{PROGRAMS}/runtime"), WANTED.to_string());
            let args = [&*program, &version.to_string(), &flags.to_string(), &wanted];
            let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024");
            let outcome = way.run(&host, bundle.args(&args));
            let case = format!("{runtime:?}, {way:?}, {version}, {flags}: {outcome:#?}");
            assert!(outcome.status.success(), "{case}");
            let found = parse(&outcome.stdout);
            for total in ["total", "device_total"] {
                assert_eq!(found[total].as_u64(), Some(1024 * MIB), "{case}");
            }
            for how in ["linear", "ordered"] {
                assert_eq!(found[format!("{how}_error")], "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
                let obtained = found[how].as_u64().unwrap();
                assert!(obtained > 128 * MIB && obtained <= 1024 * MIB, "{case}");
            }
            assert!(watch.peak(0) <= 1024 * MIB, "{case}");
        }
    }
}

//! Several GPUs: each has its own limit, whichever of them a process sees and in whatever order.

use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, hosts};

/// Limits of the two GPUs, in MiB.
const SHARES: [u64; 2] = [256, 512];

#[test]
fn each_gpu_has_its_own_limit_in_any_order() {
    let kit = Kit::find();
    // A value of `CUDA_VISIBLE_DEVICES`, and the GPU of each ordinal.
    let views: [(&str, &[usize]); 7] = [
        ("", &[0, 1]),
        ("CUDA_VISIBLE_DEVICES=0,1", &[0, 1]),
        ("CUDA_VISIBLE_DEVICES=1,0", &[1, 0]),
        ("CUDA_VISIBLE_DEVICES=1", &[1]),
        ("CUDA_VISIBLE_DEVICES=0", &[0]),
        ("CUDA_VISIBLE_DEVICES=GPU-516d6770-7500-4000-8000-000000000001", &[1]),
        ("CUDA_VISIBLE_DEVICES=GPU-516d6770-7500-4000-8000-000000000001,GPU-516d6770-7500-4000-8000-000000000000", &[1, 0]),
    ];
    for (runtime, way, host) in hosts(&kit) {
        let machine = Machine::simulated(&kit, &["gpus=2", "total=4G", "context=8M"]);
        let watches = [machine.watch(), machine.watch()];
        for (variable, gpus) in views {
            for (ordinal, &gpu) in gpus.iter().enumerate() {
                let bundle = machine
                    .bundle()
                    .env("CUDA_DEVICE_MEMORY_LIMIT_0", &format!("{}m", SHARES[0]))
                    .env("CUDA_DEVICE_MEMORY_LIMIT_1", &format!("{}m", SHARES[1]));
                let script = format!("{variable} {PROGRAMS}/fill --gpu {ordinal} --chunk 4M --max 4G");
                let outcome = way.run(&host, bundle.shell(&script));
                let case = format!("{runtime:?}, {way:?}, {variable}, ordinal {ordinal}: {outcome:#?}");
                let fill = Fill::of(&outcome.stdout);
                assert_eq!((fill.total, fill.error.as_str()), (SHARES[gpu] * MIB, "CUDA_ERROR_OUT_OF_MEMORY"), "{case}");
                assert_eq!(fill.obtained, (SHARES[gpu] - 8) * MIB, "{case}");
            }
        }
        for (gpu, watch) in (0..).zip(watches) {
            assert_eq!(watch.peak(gpu), SHARES[gpu as usize] * MIB, "{runtime:?}, {way:?}, GPU {gpu}");
        }
    }
}

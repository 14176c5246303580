//! The library works in images with an older or newer C library than the host's. scripts/test.sh unpacks libc6 and dash of other
//! releases and lists the folders in VGPU_TEST_GLIBCS, separated by colons.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, host};
use vgpu_test_harness::{Bundle, Runtime, can_run};

#[test]
fn library_works_with_older_and_newer_glibc() {
    let kit = Kit::find();
    let named = std::env::var("VGPU_TEST_GLIBCS").unwrap_or_default();
    if named.is_empty() {
        eprintln!("SKIPPED: VGPU_TEST_GLIBCS lists no folders");
    }
    for folder in named.split(':').filter(|folder| !folder.is_empty() && can_run(Runtime::Runc)) {
        let host = host(&kit, Runtime::Runc);
        let machine = Machine::simulated(&kit, &["context=8M"]);
        let limited = || image(Path::new(folder)).annotation("nvidia.com/gpumem", "256");

        // A program that is linked to libc.so.6 only: every symbol that the library needs is bound when it starts.
        let script = "dash -c 'cat /proc/$$/maps' | grep -c /usr/local/vgpu/libvgpu.so";
        let outcome = Way::Wrapper.run(&host, limited().shell(script));
        assert_eq!(outcome.stderr, "", "{folder}: {outcome:#?}");
        assert!(outcome.stdout.trim().parse::<u32>().is_ok_and(|mappings| mappings > 0), "{folder}: not loaded: {outcome:#?}");

        let fill = format!("{PROGRAMS}/fill --chunk 4M --max 1G");
        let outcome = Way::Wrapper.run(&host, machine.with_gpus(limited()).shell(&fill));
        let answer = Fill::of(&outcome.stdout);
        let seen = (answer.total, answer.obtained, answer.error.as_str());
        assert_eq!(seen, (256 * MIB, 248 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"), "{folder}: {outcome:#?}");
    }
}

/// Creates an image with the C library of another release.
fn image(folder: &Path) -> Bundle {
    let bundle = Bundle::new();
    let inside = |path: &str| bundle.rootfs().join(path.trim_start_matches('/'));
    for (from, to) in
        [("lib/x86_64-linux-gnu", "/lib"), ("usr/lib/x86_64-linux-gnu", "/lib"), ("bin/dash", "/usr"), ("usr/bin/dash", "/usr")]
    {
        let from = folder.join(from);
        if from.exists() {
            fs::create_dir_all(inside(to)).unwrap();
            let to = if to == "/usr" { inside("/usr/bin/dash") } else { inside(to) };
            assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
        }
    }
    fs::create_dir_all(inside("/lib64")).unwrap();
    symlink("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", inside("/lib64/ld-linux-x86-64.so.2")).unwrap();
    bundle
}

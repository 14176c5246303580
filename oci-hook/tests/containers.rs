//! Limited containers of real runtimes: what they see, and what they cannot change.

mod common;

use std::fs;

use common::{Way, each_way, host, own_id, runtimes};
use vgpu_test_harness::Bundle;

fn limited() -> Bundle {
    Bundle::new().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30")
}

#[test]
fn limited_containers_cannot_change_their_mounts() {
    let script = "
        cat /etc/ld.so.preload; tail -n 1 /usr/local/vgpu/libvgpu.so
        for file in /etc/ld.so.preload /usr/local/vgpu/libvgpu.so /usr/local/vgpu/limits; do
            echo x 2>&- >$file && echo wrote $file
        done
        for file in /etc/ld.so.preload /usr/local/vgpu/libvgpu.so /usr/local/vgpu/limits /usr/local/vgpu/region; do
            rm -f $file 2>&- && echo removed $file
            mv $file /tmp/x 2>&- && echo moved $file
            umount $file 2>&- && echo unmounted $file
        done
        for dir in /etc /usr /usr/local /usr/local/vgpu; do
            mv $dir /tmp/x 2>&- && echo moved $dir
        done
        su -s /bin/sh nobody -c 'printf x 1<>/usr/local/vgpu/region' || echo cannot write the region
        wc -c </usr/local/vgpu/limits";
    each_way(|host, way| {
        let passwd = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
        let seen = way.run(host, limited().file("/etc/passwd", passwd.as_bytes()).shell(script)).ok();
        assert_eq!(seen, "/usr/local/vgpu/libvgpu.so\nstands in for the library\n4096\n", "{way:?}");
    });
}

#[test]
fn directories_of_deleted_containers_are_removed() {
    each_way(|host, way| {
        for _ in 0..3 {
            let _ = way.run(host, limited()).ok();
            assert!(host.containers().len() <= 1, "{way:?}: the next create removes it");
        }
        let sleeping = limited().args(&["/bin/sleep", "600"]);
        let container = host.start(&sleeping);
        let running = host.containers();
        assert_eq!(running.len(), 1, "{way:?}");
        let refused = host.outcome(host.command().arg("delete").arg(&container.id));
        assert!(!refused.status.success() && !refused.stderr.is_empty(), "{way:?}: a running container is not deleted, {refused:#?}");
        assert_eq!(host.containers(), running, "{way:?}: a running container keeps its directory");
        let _ = container.delete().ok();
        assert_eq!(host.containers().len(), 0, "{way:?}: deletion removes it");
    });
}

#[test]
fn exec_sees_the_mounts() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = limited().args(&["/bin/sleep", "600"]);
        let container = host.start(&bundle);
        assert_eq!(container.exec("cat /etc/ld.so.preload").ok(), "/usr/local/vgpu/libvgpu.so\n");
        assert_eq!(host.containers().len(), 1);
        let _ = container.delete().ok();
        assert_eq!(host.containers().len(), 0, "{runtime:?}");
    }
}

#[test]
fn images_of_many_kinds() {
    type Build = fn(Bundle) -> Bundle;
    let ours = "/usr/local/vgpu/libvgpu.so\n";
    let cases: [(&str, Build, String); 6] = [
        ("without /etc", |bundle| bundle.without("/etc"), ours.to_owned()),
        ("without /usr/local", |bundle| bundle.without("/usr"), ours.to_owned()),
        ("read-only", Bundle::read_only, ours.to_owned()),
        (
            "with its own ld.so.preload",
            |bundle| bundle.file("/etc/ld.so.preload", b"# own\n/lib/a.so:/lib/b.so"),
            format!("{ours}/lib/a.so\n/lib/b.so\n"),
        ),
        ("with a file of the same name as the library", |bundle| bundle.file("/usr/local/vgpu/libvgpu.so", b"theirs"), ours.to_owned()),
        (
            "with a hostile environment",
            |bundle| {
                let hostile = ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "VGPU_CONFIG", "XDG_RUNTIME_DIR", "PATH"];
                hostile.iter().fold(bundle, |bundle, key| bundle.env(key, "/bin"))
            },
            ours.to_owned(),
        ),
    ];
    each_way(|host, way| {
        for (description, build, expected) in &cases {
            let bundle = build(limited()).shell("/bin/cat /etc/ld.so.preload; /bin/grep -q stands /usr/local/vgpu/libvgpu.so");
            // crun before 1.26 makes the root read-only before the hook runs, but the mount points are created earlier.
            assert_eq!(way.run(host, bundle).ok(), *expected, "{description}, {way:?}");
        }
    });
}

#[test]
fn an_image_without_a_shell() {
    each_way(|host, way| {
        let bundle = limited().args(&["/bin/busybox", "cat", "/etc/ld.so.preload"]).without("/bin/sh");
        assert_eq!(way.run(host, bundle).ok(), "/usr/local/vgpu/libvgpu.so\n", "{way:?}");
    });
}

#[test]
fn in_a_user_namespace() {
    each_way(|host, way| {
        let script =
            "cat /etc/ld.so.preload; echo x 2>&- >/usr/local/vgpu/limits && echo wrote; printf x 1<>/usr/local/vgpu/region && echo region";
        let seen = way.run(host, limited().shell(script).user_namespace(100_000)).ok();
        assert_eq!(seen, "/usr/local/vgpu/libvgpu.so\nregion\n", "{way:?}");
        // The namespace's root may not write into this image.
        let bundle = limited().shell(script).user_namespace(100_000);
        for dir in ["etc", "usr", "usr/local"] {
            std::os::unix::fs::chown(bundle.rootfs().join(dir), Some(0), Some(0)).unwrap();
        }
        assert_eq!(way.run(host, bundle).ok(), "/usr/local/vgpu/libvgpu.so\nregion\n", "{way:?}");
    });
}

#[test]
fn bundles_with_special_characters_in_their_path() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = limited().shell("cat /etc/ld.so.preload");
        bundle.write();
        let special = bundle.path().join("a b:c,ä\t'\"$(x)");
        std::os::unix::fs::symlink(".", &special).unwrap();
        let outcome = host.outcome(host.command().arg("run").arg("--bundle").arg(&special).arg("special"));
        assert_eq!(outcome.ok(), "/usr/local/vgpu/libvgpu.so\n");
    }
}

#[test]
fn mounts_of_hami_are_replaced() {
    let theirs = tempfile::tempdir().unwrap();
    fs::write(theirs.path().join("libvgpu.so"), "HAMi's library\n").unwrap();
    fs::write(theirs.path().join("ld.so.preload"), "/usr/local/vgpu/libvgpu.so\n").unwrap();
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = Bundle::new()
            .env("CUDA_DEVICE_MEMORY_LIMIT_0", "1024m")
            .env("CUDA_DEVICE_SM_LIMIT", "0")
            .bind(&theirs.path().join("libvgpu.so"), "/usr/local/vgpu/libvgpu.so", &["ro"])
            .bind(&theirs.path().join("ld.so.preload"), "/etc/ld.so.preload", &["ro"])
            .shell("cat /etc/ld.so.preload; tail -n 1 /usr/local/vgpu/libvgpu.so");
        assert_eq!(host.run(&bundle).ok(), "/usr/local/vgpu/libvgpu.so\nstands in for the library\n");
    }
}

#[test]
fn a_bundle_can_be_started_again() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = limited().file("/etc/ld.so.preload", b"/lib/a.so\n").shell("cat /etc/ld.so.preload");
        assert_eq!(host.run(&bundle).ok(), "/usr/local/vgpu/libvgpu.so\n/lib/a.so\n");
        let edited = fs::read(bundle.config()).unwrap();
        let again = host.outcome(host.command().arg("run").arg("--bundle").arg(bundle.path()).arg("again"));
        assert_eq!(again.ok(), "/usr/local/vgpu/libvgpu.so\n/lib/a.so\n");
        assert_eq!(fs::read(bundle.config()).unwrap(), edited, "{runtime:?}: edits are idempotent");
    }
}

#[test]
fn volumes_over_the_mount_points() {
    let script = "cat /etc/ld.so.preload; tail -n 1 /usr/local/vgpu/libvgpu.so; wc -c </usr/local/vgpu/limits; cat /etc/theirs
        for file in /etc /usr/local /usr/local/vgpu; do mv $file /tmp/x 2>&- && echo moved $file; done; true";
    let expected = "/usr/local/vgpu/libvgpu.so\nstands in for the library\n4096\ntheirs\n";
    each_way(|host, way| {
        // Volumes without mount points.
        let (etc, local) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(etc.path().join("theirs"), "theirs\n").unwrap();
        let bundle = limited().bind(etc.path(), "/etc", &["rw"]).bind(local.path(), "/usr/local", &["rw"]).shell(script);
        assert_eq!(way.run(host, bundle).ok(), expected, "{way:?}");
        // A tenant's mount on a mount point does not mark the container as limited.
        let limits = etc.path().join("theirs");
        let bundle = limited().bind(&limits, "/usr/local/vgpu/limits", &["rw"]).file("/etc/theirs", b"theirs\n").shell(script);
        assert_eq!(way.run(host, bundle).ok(), expected, "{way:?}");
        assert_eq!(fs::read(limits).unwrap(), b"theirs\n", "{way:?}");
    });
}

#[test]
fn other_containers_are_not_changed() {
    for runtime in runtimes() {
        let host = host(runtime);
        host.policy("engine = \"containerd\"");
        let script = "test ! -e /usr/local/vgpu && test ! -e /etc/ld.so.preload && echo untouched";
        let cases = [
            ("no GPU", Bundle::new()),
            ("a sandbox", own_id(limited().annotation("io.kubernetes.cri.container-type", "sandbox"), "io.kubernetes.cri.sandbox-id")),
            ("a GPU without a request", Bundle::new().env("NVIDIA_VISIBLE_DEVICES", "all").device("/dev/nvidia0")),
        ];
        for (description, bundle) in cases {
            let bundle = bundle.shell(script);
            let outcome = host.run(&bundle);
            let is_logged = outcome.log.contains("has a GPU and starts without limits");
            assert_eq!(is_logged, description == "a GPU without a request", "{description}: {outcome:#?}");
            assert_eq!(outcome.ok(), "untouched\n", "{description}");
            let written: serde_json::Value = serde_json::from_slice(&fs::read(bundle.config()).unwrap()).unwrap();
            assert_eq!(written, bundle.spec, "{description}");
        }
        host.policy("extra_device_nodes = [\"/dev/simgpu\"]\n[defaults]\nmemory = \"1g\"");
        let bundle = Bundle::new().device("/dev/simgpu").shell("cat /etc/ld.so.preload");
        assert_eq!(host.run(&bundle).ok(), "/usr/local/vgpu/libvgpu.so\n", "an extra device node of the policy gets the default");
    }
}

#[test]
fn visible_devices_and_driver_capabilities_are_narrowed() {
    for runtime in runtimes() {
        let host = host(runtime);
        let uuid = |n| format!("GPU-0000000{n}-0000-0000-0000-000000000000");
        let gpu = |n: u32| serde_json::json!({ "index": n, "uuid": uuid(n), "name": "NVIDIA H200", "memory": 1_u64 << 37 });
        fs::create_dir_all(host.state_dir()).unwrap();
        let inventory = serde_json::json!({ "gpus": [gpu(0), gpu(1)] });
        fs::write(host.state_dir().join("inventory.json"), inventory.to_string()).unwrap();
        let bundle = limited()
            .env("NVIDIA_VISIBLE_DEVICES", "all")
            .env("NVIDIA_DRIVER_CAPABILITIES", "all")
            .annotation("nvidia.com/nouse-gpuuuid", &uuid(0))
            .shell("echo $NVIDIA_VISIBLE_DEVICES $NVIDIA_DRIVER_CAPABILITIES");
        assert_eq!(host.run(&bundle).ok(), format!("{} compute,utility\n", uuid(1)));
        let refusal = host.run(&limited().env("NVIDIA_VISIBLE_DEVICES", "all").annotation("nvidia.com/gpu", "3")).refusal();
        assert!(refusal.contains("only 2 GPUs match") && refusal.contains(&uuid(0)) && refusal.contains(&uuid(1)), "{refusal}");
    }
}

#[test]
fn a_damaged_inventory_counts_as_none() {
    each_way(|host, way| {
        fs::create_dir_all(host.state_dir()).unwrap();
        fs::write(host.state_dir().join("inventory.json"), "{\"gpus\":[{").unwrap();
        let outcome = way.run(host, limited().shell("cat /etc/ld.so.preload"));
        assert!(way != Way::Wrapper || outcome.log.contains("level=warning") && outcome.log.contains("inventory.json"), "{outcome:#?}");
        assert_eq!(outcome.ok(), "/usr/local/vgpu/libvgpu.so\n", "{way:?}");
        let needed = limited().env("NVIDIA_VISIBLE_DEVICES", "all").annotation("nvidia.com/use-gputype", "H200").shell("echo started");
        let refused = way.run(host, needed);
        let said = format!("{}{}", refused.log, refused.stderr);
        assert!(!refused.status.success() && said.contains("use-gputype") && said.contains("inventory.json"), "{way:?}: {refused:#?}");
    });
}

#[test]
fn driver_libraries_are_replaced() {
    let driver = tempfile::tempdir().unwrap();
    for name in ["libcuda.so.580.1", "libnvidia-ml.so.580.1"] {
        fs::write(driver.path().join(name), format!("the driver's {name}\n")).unwrap();
    }
    let dir = "/usr/lib/x86_64-linux-gnu";
    let bundle = |script: &str| {
        ["libcuda", "libnvidia-ml"]
            .iter()
            .fold(limited(), |bundle, name| {
                let file = format!("{name}.so.580.1");
                bundle
                    .bind(&driver.path().join(&file), &format!("{dir}/{file}"), &["ro"])
                    .link(&format!("{dir}/{name}.so.1"), &file)
                    .link(&format!("{dir}/{name}.so"), &format!("{name}.so.1"))
            })
            .shell(script)
    };
    let script =
        "cd /usr/lib/x86_64-linux-gnu; cat libcuda.so.1 libnvidia-ml.so.1; cat /usr/local/vgpu/driver/*; ls /etc/ld.so.preload 2>&-";
    let replaced =
        "stands in for libcuda.so.1\nstands in for libnvidia-ml.so.1\nthe driver's libcuda.so.580.1\nthe driver's libnvidia-ml.so.580.1\n";
    each_way(|host, way| {
        for (intercept, list) in [("replace", ""), ("both", "/etc/ld.so.preload\n")] {
            host.policy(&format!("intercept = {intercept:?}"));
            let seen = way.run(host, bundle(&format!("{script}; true"))).ok();
            assert_eq!(seen, format!("{replaced}{list}"), "{intercept}, {way:?}");
        }
        // Without GPUs there is no driver to replace.
        assert_eq!(way.run(host, limited().shell("echo started")).ok(), "started\n");
    });
}

#[test]
fn driver_libraries_are_found_in_all_locations() {
    let driver = tempfile::tempdir().unwrap();
    let lib = driver.path().join("lib64");
    fs::create_dir(&lib).unwrap();
    fs::write(lib.join("libcuda.so.580.1"), "the driver's\n").unwrap();
    std::os::unix::fs::symlink("libcuda.so.580.1", lib.join("libcuda.so.1")).unwrap();
    let file = lib.join("libcuda.so.580.1");
    type Build<'a> = Box<dyn Fn(Bundle) -> Bundle + 'a>;
    let cases: [(&str, Build, &str); 4] = [
        (
            "in a mounted directory",
            Box::new(|bundle| bundle.bind(driver.path(), "/opt/a driver", &["ro"])),
            "/opt/a driver/lib64/libcuda.so.1",
        ),
        (
            "a mounted file without a link to it",
            Box::new(|bundle| bundle.bind(&file, "/srv/libcuda.so.580.1", &["ro"])),
            "/srv/libcuda.so.580.1",
        ),
        (
            "in LD_LIBRARY_PATH",
            Box::new(|bundle| bundle.file("/data/lib/libcuda.so.1", b"the driver's\n").env("LD_LIBRARY_PATH", "/x:/data/lib")),
            "/data/lib/libcuda.so.1",
        ),
        (
            "a second copy with its full version",
            Box::new(|bundle| bundle.file("/usr/lib/libcuda.so.580.1", b"the driver's\n").file("/usr/lib/libcuda.so.1", b"the driver's\n")),
            "/usr/lib/libcuda.so.580.1",
        ),
    ];
    each_way(|host, way| {
        host.policy("intercept = \"replace\"");
        for (description, build, path) in &cases {
            let bundle = build(limited().device("/dev/nvidiactl")).shell(&format!("cat '{path}' /usr/local/vgpu/driver/libcuda.so.1"));
            assert_eq!(way.run(host, bundle).ok(), "stands in for libcuda.so.1\nthe driver's\n", "{description}, {way:?}");
        }
        // GPUs and no driver library: the limits would not be enforced.
        let without = || limited().device("/dev/nvidiactl").shell("echo started");
        let refused = way.run(host, without());
        let said = format!("{}{}", refused.log, refused.stderr);
        assert!(!refused.status.success() && said.contains("intercept: ") && said.contains("libcuda.so.1"), "{way:?}: {refused:#?}");
        host.policy("intercept = \"both\"");
        assert_eq!(way.run(host, without()).ok(), "started\n", "{way:?}: ld.so.preload enforces the limits");
    });
}

#[test]
fn other_commands_are_passed_through() {
    for runtime in runtimes() {
        let host = host(runtime);
        // Even with an invalid policy.
        host.policy("unknown = 1");
        for args in [
            &["--version"][..],
            &["--help"],
            &["features"],
            &["no-such-command"],
            &["--no-such-flag"],
            &["state", "create"],
            &["delete", "run"],
            &["delete"],
            &["delete", "--help"],
            &["kill", "run", "9"],
            &["ps", "run"],
            &["list"],
            &["update", "run"],
            &["exec", "--process", "/no/such/file", "run"],
            &["checkpoint", "run"],
            &["restore", "-h"],
            &["create", "--help"],
            &["run", "--help"],
            // No container to run.
            &["create"],
            &["run", "--no-such-flag", "c1"],
            &["run", "--bundle", "/no/such/bundle", "c1"],
            &["run", "--bundle", "/", "c1"],
            &["restore", "--bundle", "/", "c1"],
        ] {
            let wrapped = output(host.outcome(host.command().args(args)));
            assert_eq!(wrapped, output(host.outcome(host.bare_command().args(args))), "{runtime:?} {args:?}");
        }
    }
}

/// Returns the exit code and the output of a command, without times and the program's name.
fn output(outcome: vgpu_test_harness::Outcome) -> (Option<i32>, String, String, String) {
    let normalize = |text: String| {
        let lines = text.lines().map(|line| line.split_once("\" level=").map_or(line, |(_, rest)| rest).replace("vgpu-runtime", "RUNTIME"));
        lines.map(|line| line.replace("/usr/sbin/runc", "RUNTIME").replace("/usr/bin/crun", "RUNTIME")).collect::<Vec<_>>().join("\n")
    };
    (outcome.status.code(), outcome.stdout, normalize(outcome.stderr), normalize(outcome.log))
}

#[test]
fn exit_codes_are_passed_through() {
    for runtime in runtimes() {
        let outcome = host(runtime).run(&limited().shell("exit 42"));
        assert_eq!(outcome.status.code(), Some(42), "{outcome:#?}");
    }
}

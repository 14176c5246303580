//! Containers of real daemons with the real vgpu-runtime and vgpu-hook: containers that request a limit get it, others are unchanged,
//! and no state remains.

use vgpu_daemon_tests::{Containerd, Docker, IS_LIMITED, IS_UNLIMITED, Installation, PROBE, Podman, Release, import_tar, oci_archive, run};
use vgpu_test_harness::Runtime;

const DEBIAN: &str = "version = 2\n";

/// Iterates over the releases of a daemon, with each low-level runtime.
fn each(program: &str) -> impl Iterator<Item = (Release, Runtime)> {
    Release::all(program).into_iter().flat_map(|release| release.runtimes().into_iter().map(move |runtime| (release.clone(), runtime)))
}

#[test]
#[ignore = "needs root, dockerd and runc; make test runs it"]
fn docker_applies_limits_from_environment_and_annotations() {
    for (release, runtime) in each("dockerd") {
        let vgpu = Installation::with_runtime(runtime);
        let test = Docker::new(release.clone(), None).with_runtime(runtime);
        test.configure(&vgpu.runtime(), &[]);
        let _daemon = test.start();
        run(test.docker().arg("import").arg(import_tar(test.dir())).arg("test:1"));
        let probe = |options: &[&str]| {
            run(test.docker().args(["run", "--rm", "--network", "none"]).args(options).args(["test:1", "/bin/sh", "-c", PROBE]))
        };
        let name = &format!("{}, {}", release.name, runtime.name());
        assert_eq!(probe(&["--runtime", "vgpu", "-e", "CUDA_DEVICE_MEMORY_LIMIT=1g"]), IS_LIMITED, "{name}");
        assert_eq!(probe(&["--runtime", "vgpu"]), IS_UNLIMITED, "{name}: no request");
        assert_eq!(probe(&["-e", "CUDA_DEVICE_MEMORY_LIMIT=1g"]), IS_UNLIMITED, "{name}: another runtime");
        let major = run(test.docker().args(["version", "--format", "{{.Server.Version}}"]));
        let annotated = ["--runtime", "vgpu", "--annotation", "nvidia.com/gpumem=1024"];
        if major.split('.').next().unwrap().parse::<u32>().unwrap() >= 24 {
            assert_eq!(probe(&annotated), IS_LIMITED, "{name}");
        }
        assert!(vgpu.containers().is_empty(), "{name}: {:?}", vgpu.containers());

        // A long-running container: its record has the decision, exec is limited, a restart keeps the limit, removal deletes the record.
        let long = ["run", "-d", "--name", "long", "--network", "none", "--runtime", "vgpu", "-e", "CUDA_DEVICE_MEMORY_LIMIT=1g"];
        run(test.docker().args(long).args(["test:1", "/bin/sleep", "1000"]));
        assert!(vgpu.record().to_string().contains("1073741824"), "{name}: {}", vgpu.record());
        assert_eq!(run(test.docker().args(["exec", "long", "/bin/sh", "-c", PROBE])), IS_LIMITED, "{name}");
        // Its name is known, and a new one as soon as it has it.
        let shown = vgpu.vgpu_says(&["show", "long"]);
        assert!(shown.lines().nth(1).is_some_and(|line| line.starts_with("long ")), "{name}: {shown}");
        run(test.docker().args(["rename", "long", "longer"]));
        let shown = vgpu.vgpu_says(&["set", "longer", "--gpumem", "2Gi", "--persist"]);
        assert!(shown.starts_with("longer: "), "{name}: {shown}");
        run(test.docker().args(["rename", "longer", "long"]));
        run(test.docker().args(["restart", "-t", "0", "long"]));
        let limits = || vgpu.record()["limits"].to_string();
        assert!(limits().contains("2147483648"), "{name}: the change lasts: {}", limits());
        let _ = vgpu.vgpu_says(&["set", "long", "--gpumem", "3Gi"]);
        run(test.docker().args(["restart", "-t", "0", "long"]));
        assert!(limits().contains("1073741824"), "{name}: the request counts again: {}", limits());
        assert_eq!(run(test.docker().args(["exec", "long", "/bin/sh", "-c", PROBE])), IS_LIMITED, "{name}");
        run(test.docker().args(["rm", "-f", "long"]));
        assert!(vgpu.containers().is_empty(), "{name}: {:?}", vgpu.containers());

        // The user gets the error message.
        let bad = ["run", "--rm", "--network", "none", "--runtime", "vgpu", "-e", "CUDA_DEVICE_MEMORY_LIMIT=10Q", "test:1", "/bin/true"];
        let error = vgpu_daemon_tests::output(test.docker().args(bad));
        let output = String::from_utf8_lossy(&error.stderr).into_owned();
        assert!(!error.status.success() && output.contains("CUDA_DEVICE_MEMORY_LIMIT") && output.contains("10Q"), "{name}: {output}");
    }
}

#[test]
#[ignore = "needs root, containerd and runc; make test runs it"]
fn ctr_applies_limits_from_annotations() {
    for (release, runtime) in each("containerd") {
        let vgpu = Installation::with_runtime(runtime);
        let test = Containerd::new(release.clone(), DEBIAN).with_runtime(runtime);
        test.configure(&vgpu.runtime(), &[]);
        let _daemon = test.start();
        run(test.ctr().args(["images", "import"]).arg(oci_archive(test.dir(), "docker.io/library/test:1", &["/bin/sh"])));
        let probe_once = |id: &str, options: &[&str]| {
            let mut ctr = test.ctr();
            ctr.args(["run", "--rm", "--runc-binary"]).arg(vgpu.runtime()).args(options);
            run(ctr.args(["docker.io/library/test:1", id, "/bin/sh", "-c", PROBE]))
        };
        // ctr may lose the last output of a container that ends at once. The probe's last line tells.
        let probe = |id: &str, options: &[&str]| {
            let mut outputs = (0..5).map(|attempt| probe_once(&format!("{id}-{attempt}"), options));
            outputs.find(|output| output.ends_with("end\n")).expect("an output with its last line")
        };
        assert_eq!(probe("a", &["--annotation", "nvidia.com/gpumem=1024"]), IS_LIMITED, "{}, {}", release.name, runtime.name());
        assert_eq!(
            probe("b", &["--annotation", "nvidia.com/gpumem=1024", "--read-only"]),
            IS_LIMITED,
            "{}, {}",
            release.name,
            runtime.name()
        );
        assert_eq!(probe("c", &[]), IS_UNLIMITED, "{}, {}", release.name, runtime.name());
        assert!(vgpu.containers().is_empty(), "{:?}", vgpu.containers());
    }
}

#[test]
#[ignore = "needs root, podman, runc and crun; make test runs it"]
fn podman_applies_limits_by_runtime_and_by_hooks() {
    check_podman_limits(&Installation::new(), &Podman::new(), &[]);
    check_podman_limits(&Installation::with_runtime(Runtime::Crun), &Podman::with_crun(), &["--runtime", "crun"]);
}

#[test]
#[ignore = "needs root, podman, runc and uidmap; make test runs it"]
fn rootless_podman_applies_limits_by_runtime_and_by_hooks() {
    let (vgpu, test) = (Installation::for_users(), Podman::rootless());
    assert_eq!(run(test.podman().args(["info", "--format", "{{.Host.Security.Rootless}}"])), "true\n");
    check_podman_limits(&vgpu, &test, &[]);
    check_podman_limits(&vgpu, &test, &["--userns", "keep-id", "--user", "0"]);
    let is_clean = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        !test.has_processes()
    });
    assert!(is_clean, "a process of Podman is left");
}

/// Checks that `vgpu` knows containers by their names, also after a change of the name, and changes the limits of the user's own.
fn check_podman_names(vgpu: &Installation, test: &Podman, more: &[&str]) {
    let program = vgpu.vgpu();
    let script = format!(
        "podman run -d --name web --network none {} --runtime vgpu --annotation nvidia.com/gpumem=1024 localhost/test:1 sleep 600 >/dev/null && \
         {program} show web; {program} set web --gpumem 2Gi; podman rename web other && {program} show other; \
         {program} show absent; echo status $?; podman rm -f -t 0 other >/dev/null",
        more.join(" "),
        program = program.display()
    );
    let said = run(&mut test.shell(&script));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 6 && lines[1].starts_with("web ") && lines[4].starts_with("other ") && lines[5] == "status 1", "{said}");
    assert!(lines[2].starts_with("web: "), "{said}");
}

/// Checks limits by runtime and by hooks, with `more` options for all containers.
fn check_podman_limits(vgpu: &Installation, test: &Podman, more: &[&str]) {
    let probe = |options: &[&str]| {
        let command = ["localhost/test:1", "/bin/sh", "-c", PROBE];
        run(test.podman().args(["run", "--rm", "--network", "none"]).args(more).args(options).args(command))
    };
    let annotated = ["--annotation", "nvidia.com/gpumem=1024"];
    test.configure(&["--runtime-path", vgpu.runtime().to_str().unwrap()]);
    assert_eq!(probe(&["--runtime", "vgpu", "--annotation", "nvidia.com/gpumem=1024"]), IS_LIMITED);
    assert_eq!(probe(&["--runtime", "vgpu", "--read-only", "--env", "CUDA_DEVICE_MEMORY_LIMIT=1g"]), IS_LIMITED);
    assert_eq!(probe(&["--runtime", "vgpu"]), IS_UNLIMITED);
    assert_eq!(probe(&annotated), IS_UNLIMITED);
    check_podman_names(vgpu, test, more);
    test.configure(&["--undo"]);

    test.configure(&["--hooks", "--hook-path", vgpu.hook().to_str().unwrap()]);
    assert_eq!(probe(&annotated), IS_LIMITED);
    assert_eq!(probe(&["--env", "CUDA_DEVICE_MEMORY_LIMIT=1g"]), IS_LIMITED);
    assert_eq!(probe(&[]), IS_UNLIMITED);
    // No hook runs when a container ends; the next container removes the leftover record.
    assert!(vgpu.containers().len() <= 1, "{:?}", vgpu.containers());
    test.configure(&["--undo"]);
}

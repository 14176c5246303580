//! The processes of `vgpu monitor` fail apart, and come back.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Monitor, children, ready, signal, wait_for};
use vgpu_e2e::Way;
use vgpu_test_harness::Bundle;

/// Names of the parts.
const PARTS: [&str; 4] = ["arbiter", "enforce", "files", "http"];

fn is_healthy(monitor: &Monitor) -> bool {
    monitor.try_get("/healthz").is_some_and(|response| response.starts_with("HTTP/1.1 200"))
}

/// Waits until all parts run, and are others than `before`.
fn all_run(monitor: &Monitor, before: &BTreeMap<String, u32>) -> BTreeMap<String, u32> {
    wait_for("all parts run", || {
        let parts = monitor.parts();
        let is_new = |(name, pid): (&String, &u32)| before.get(name) != Some(pid);
        (parts.keys().eq(PARTS) && parts.iter().all(is_new) && is_healthy(monitor)).then_some(parts)
    })
}

/// Adds a container's files to a bundle, and a command that keeps running.
fn idle(bundle: Bundle) -> Bundle {
    let bundle = bundle.annotation("nvidia.com/gpumem", "1024").env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/shared.cache");
    bundle.env("PFLOG", "/tmp/logs").args(&["/bin/sleep", "600"])
}

#[test]
fn parts_that_die_are_started_again() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let before = all_run(&monitor, &BTreeMap::new());
    before.values().for_each(|pid| signal(*pid, "KILL"));
    let after = all_run(&monitor, &before);
    assert!(after.keys().eq(before.keys()));
    wait_for("the restarts are counted", || {
        let metrics = monitor.try_get("/metrics")?;
        PARTS.iter().all(|part| metrics.contains(&format!("vgpu_monitor_restarts_total{{part=\"{part}\"}} 1"))).then_some(())
    });
}

/// A part that stands still is named, killed and started again.
#[test]
fn parts_that_hang_are_started_again() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let before = all_run(&monitor, &BTreeMap::new());
    let stopped = ["arbiter", "enforce", "files"];
    stopped.iter().for_each(|part| signal(before[*part], "STOP"));
    wait_for("/healthz names the parts", || {
        let response = monitor.try_get("/healthz")?;
        (response.starts_with("HTTP/1.1 503") && stopped.iter().all(|part| response.contains(&format!("{part}: ")))).then_some(())
    });
    signal(before["http"], "STOP");
    all_run(&monitor, &before);
    let lines: Vec<String> = monitor.lines.try_iter().collect();
    for part in PARTS {
        assert_eq!(lines.iter().filter(|line| line.contains("part hangs") && line.contains(part)).count(), 1, "{part}: {lines:#?}");
    }
}

/// No process outlives the supervisor, however that ends.
#[test]
fn no_part_outlives_the_supervisor() {
    let Some((_kit, machine, host)) = ready() else { return };
    for is_killed in [false, true] {
        let mut monitor = Monitor::start(&host, &machine);
        let parts = all_run(&monitor, &BTreeMap::new());
        let running = Way::Wrapper.start(&host, idle(machine.bundle()));
        let writer = wait_for("the writer runs", || children(parts["files"]).first().map(|(pid, _)| *pid));
        let root = running.bundle.rootfs();
        wait_for("the trace is begun", || root.join("tmp/logs/trace.json").exists().then_some(()));
        if is_killed {
            signal(monitor.pid(), "KILL");
        } else {
            assert!(monitor.terminate().success());
            let trace = std::fs::read_to_string(root.join("tmp/logs/trace.json")).unwrap();
            assert!(trace.ends_with("\n]\n"), "the trace is complete: {trace}");
        }
        for pid in parts.values().chain([&writer]) {
            wait_for("the process is gone", || {
                let state = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
                (state.is_empty() || state.contains(") Z ")).then_some(())
            });
        }
    }
}

/// A writer that dies is started again and goes on with its files.
#[test]
fn files_are_continued_after_their_writer_died() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let parts = all_run(&monitor, &BTreeMap::new());
    let running = Way::Wrapper.start(&host, idle(machine.bundle()));
    let cache = running.bundle.rootfs().join("tmp/shared.cache");
    let is_region = || std::fs::read(&cache).is_ok_and(|bytes| bytes.starts_with(&19_920_718_u32.to_le_bytes()));
    wait_for("HAMi's region", || is_region().then_some(()));
    let writer = children(parts["files"])[0].0;
    std::fs::OpenOptions::new().write(true).open(&cache).unwrap().set_len(0).unwrap();
    signal(writer, "KILL");
    wait_for("another writer", || children(parts["files"]).iter().any(|(pid, _)| *pid != writer).then_some(()));
    wait_for("HAMi's region again", || is_region().then_some(()));
    assert_eq!(monitor.parts(), parts, "no part was disturbed");
}

/// A stopped writer stands for one whose volume never answers.
#[test]
fn a_writer_that_hangs_holds_up_nobody() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let parts = all_run(&monitor, &BTreeMap::new());
    let first = Way::Wrapper.start(&host, idle(machine.bundle()));
    let writer = wait_for("the writer runs", || children(parts["files"]).first().map(|(pid, _)| *pid));
    signal(writer, "STOP");
    let second = Way::Wrapper.start(&host, idle(machine.bundle()));
    wait_for("the files of the second container", || {
        ["tmp/shared.cache", "tmp/logs/trace.json"].iter().all(|name| second.bundle.rootfs().join(name).exists()).then_some(())
    });
    wait_for("its metrics", || monitor.try_get("/metrics")?.contains(&second.id).then_some(()));
    // It is not waited for after its container's end either.
    drop(first);
    wait_for("the hanging writer is killed", || children(parts["files"]).iter().all(|(pid, _)| *pid != writer).then_some(()));
    assert!(is_healthy(&monitor));
    assert_eq!(monitor.parts(), parts, "no part was disturbed");
}

/// Counters do not fall when the part that counts is started again.
#[test]
fn violations_stay_counted() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let before = all_run(&monitor, &BTreeMap::new());
    let script = r"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
        /tmp/ld --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 256M --hold 5; exec sleep 600";
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").args(&["/bin/sh", "-c", script]);
    let running = Way::Wrapper.start(&host, bundle);
    let count = || {
        let metrics = monitor.try_get("/metrics")?;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("vgpu_violations_total{") && line.contains("bypass") && line.contains(&running.id));
        line?.rsplit(' ').next()?.trim().parse::<f64>().ok()
    };
    wait_for("the bypass is counted", || count().filter(|count| *count >= 1.0));
    wait_for("the bypass is over", || {
        let metrics = monitor.try_get("/metrics")?;
        metrics.lines().any(|line| line.starts_with("vgpu_violations{") && line.contains("bypass") && line.ends_with(" 0")).then_some(())
    });
    signal(before["enforce"], "KILL");
    // A container that was not there before shows that another incarnation samples.
    let second = Way::Wrapper.start(&host, idle(machine.bundle()));
    wait_for("another incarnation samples", || monitor.try_get("/metrics")?.contains(&second.id).then_some(()));
    assert!(monitor.parts()["enforce"] != before["enforce"]);
    assert_eq!(count(), Some(1.0));
}

/// The part that answers HTTP cannot read the token's file, and gets the content all the same.
#[test]
fn metrics_require_the_token_that_the_file_has() {
    let Some((_kit, machine, host)) = ready() else { return };
    let path = host.state_dir().with_file_name("token");
    let write = |token: &str| {
        std::fs::write(&path, token).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("0123456789abcdef\n");
    let monitor = Monitor::start_with(&host, &machine, &["--token-file", path.to_str().unwrap()]);
    let status = |token: &str| {
        let mut stream = TcpStream::connect(monitor.address()).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        Some(response.split(' ').nth(1)?.to_owned())
    };
    let before = all_run(&monitor, &BTreeMap::new());
    assert!(monitor.get("/metrics").starts_with("HTTP/1.1 401"));
    assert_eq!((status("0123456789abcdef").as_deref(), status("fedcba9876543210").as_deref()), (Some("200"), Some("401")));
    write("fedcba9876543210\n");
    wait_for("the new token", || status("fedcba9876543210").filter(|status| status == "200"));
    assert_eq!(status("0123456789abcdef").as_deref(), Some("401"));
    // Another incarnation has the token, too, and a malformed file is not used.
    write("");
    signal(before["http"], "KILL");
    wait_for("another incarnation", || monitor.parts().get("http").filter(|pid| **pid != before["http"]).copied());
    wait_for("it answers", || status("fedcba9876543210").filter(|status| status == "200"));
    assert!(monitor.get("/metrics").starts_with("HTTP/1.1 401"));
}

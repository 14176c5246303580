//! `vgpu trace`, and the logs that containers request, with real containers on the simulated GPU.

mod common;

use std::path::Path;
use std::process::Stdio;

use common::{Monitor, ready, vgpu, wait_for};
use tempfile::TempDir;
use vgpu_e2e::trace::Trace;
use vgpu_e2e::{Machine, Running, Way};
use vgpu_test_harness::Host;

/// Starts `steps` in a container that requests traces in a folder of the host.
fn traced(host: &Host, machine: &Machine, folder: &Path, args: &[&str]) -> Running {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "50");
    // The program waits for the monitor, which misses containers that exit too soon.
    let script = format!("while [ ! -e /profile/out/trace.json ]; do sleep 0.1; done; exec /programs/steps {}", args.join(" "));
    let bundle = bundle.bind(folder, "/profile", &[]).env("PFLOG", "/profile/out").args(&["/bin/sh", "-c", &script]);
    Way::Wrapper.start(host, bundle)
}

/// Waits for the complete trace in a folder.
fn complete(folder: &Path) -> Trace {
    let read = || std::fs::read_to_string(folder.join("out/trace.json")).ok().filter(|text| text.ends_with("\n]\n"));
    Trace::check(&wait_for("the trace is complete", read))
}

/// Splits a line of `metrics.log` or `timeline.log` like Alnair's notebook: `name:value` between commas.
fn fields(line: &str) -> Vec<(&str, &str)> {
    line.trim().split(',').map(|field| field.trim().split_once(':').unwrap()).collect()
}

#[test]
fn the_trace_matches_the_programs_own_counts() {
    let Some((_kit, machine, host)) = ready() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let folder = TempDir::new().unwrap();
    let mut running = traced(&host, &machine, folder.path(), &["--rounds", "30"]);
    let last = (0..30).map(|_| running.line()).last().unwrap();
    let counts: serde_json::Value = serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {last}"));
    assert!(running.finish());
    let trace = complete(folder.path());
    let count = |name: &str| counts[name].as_u64().unwrap();
    assert_eq!(trace.on_gpu("kernel"), count("kernels"), "every launch function is traced with GPU time");
    assert_eq!((trace.on_gpu("graph"), trace.kernels_in_graphs()), (count("graphs"), count("graph_kernels")));
    assert_eq!((trace.on_gpu("gpu_memcpy"), trace.on_gpu("gpu_memset")), (count("copies"), count("fills")));
    assert_eq!((trace.calls("cuMemAlloc_v2"), trace.calls("cuMemFree_v2")), (count("allocations"), count("frees")));
    for call in ["cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuLaunchKernel_ptsz"] {
        assert_eq!(trace.calls(call), count("graphs"), "{call}");
    }
    // The simulated driver has no kernel names.
    let spins = trace.kernels_called("kernel");
    assert_eq!(spins.len() as u64, count("kernels"));
    // A kernel takes 20 us; on a busy machine the simulated GPU may be late.
    assert!(spins.iter().all(|micros| *micros >= 19.0), "{spins:?}");

    let metrics = std::fs::read_to_string(folder.path().join("out/metrics.log")).unwrap();
    let first = fields(metrics.lines().next().unwrap());
    assert_eq!((first[0], first[1].0), (("name", "mem_used"), "count"));
    let values: Vec<_> = metrics.lines().skip(1).map(fields).map(|fields| (fields[0].1, fields[1].1.parse().unwrap())).collect();
    // Three more launches were captured.
    let expected =
        [("cuLaunchKernel", count("kernels") + 3), ("cuMemAlloc", count("allocations")), ("cuMemcpyH2D_ASYNC", 30), ("cuInit", 1)];
    assert!(expected.iter().all(|value| values.contains(value)), "{values:?}");
    let timeline = std::fs::read_to_string(folder.path().join("out/timeline.log")).unwrap();
    let lines: Vec<_> = timeline.lines().map(fields).collect();
    let names = ["name", "start", "burst", "bytes", "kind"];
    assert!(lines.iter().all(|fields| fields.iter().map(|(name, _)| *name).eq(names)), "{timeline}");
    assert!(lines.iter().all(|fields| fields[1..].iter().all(|(_, value)| value.parse::<i64>().is_ok())), "{timeline}");
    let to_device = lines.iter().filter(|fields| fields[0].1 == "cuMemcpyH2D_ASYNC" && fields[3].1 == "4096" && fields[4].1 == "1");
    assert_eq!(to_device.count(), 30);
}

#[test]
fn the_trace_of_a_killed_program_is_complete() {
    let Some((_kit, machine, host)) = ready() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let folder = TempDir::new().unwrap();
    let mut running = traced(&host, &machine, folder.path(), &[]);
    for _ in 0..20 {
        let _ = running.line();
    }
    let _ = host.outcome(host.bare_command().args(["kill", &running.id, "KILL"]));
    let rest = std::iter::from_fn(|| Some(running.line()).filter(|line| line.ends_with('}'))).count() as u64;
    assert!(!running.finish(), "it was killed");
    let rounds = 20 + rest;
    let trace = complete(folder.path());
    // The last round may be incomplete; a round has four kernels.
    let launches = trace.on_host("cuLaunchKernel") + trace.on_host("cuLaunchKernelEx") + trace.on_host("cuLaunchCooperativeKernel");
    let launches = launches + trace.on_host("cuLaunchKernel_ptsz") - trace.captured();
    assert!((4 * rounds..=4 * (rounds + 1)).contains(&launches), "{rounds} rounds, {launches} launches");
}

#[test]
fn tracing_can_be_switched_while_a_container_runs() {
    let Some((_kit, machine, host)) = ready() else { return };
    let folder = TempDir::new().unwrap();
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "30");
    let running = Way::Wrapper.start(&host, bundle.args(&["/simgpu/spin", "--ns", "200000", "--seconds", "600"]));
    wait_for("the container uses the GPU", || {
        let report = vgpu(&host, &machine).args(["show", "--json", &running.id]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).ok()?;
        report["containers"][0]["gpus"][0]["used_ns"].as_u64().filter(|used| *used > 0)
    });
    for round in 0..2 {
        let file = folder.path().join(format!("{round}.json"));
        let output = vgpu(&host, &machine).args(["trace", &running.id, "--seconds", "1", "-o"]).arg(&file).stdin(Stdio::null()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let trace = Trace::check(&std::fs::read_to_string(&file).unwrap());
        let (kernels, waits) = (trace.on_gpu("kernel"), trace.on_host("wait for budget"));
        assert!(kernels > 0 && waits > 0, "{kernels} kernels, {waits} waits");
        let summary = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(summary.contains(&format!("{} kernels", trace.on_host("cuLaunchKernel"))), "{summary}");
    }
    let output = vgpu(&host, &machine).args(["trace", "missing"]).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("missing"), "{output:?}");
}

/// Perfetto does not accept an array without events as a trace.
#[test]
fn a_trace_without_events_is_valid() {
    let Some((_kit, machine, host)) = ready() else { return };
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").args(&["/bin/sh", "-c", "echo up; exec sleep 600"]);
    let mut running = Way::Wrapper.start(&host, bundle);
    assert_eq!(running.line(), "up");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("trace.json");
    let output = vgpu(&host, &machine).args(["trace", &running.id, "--seconds", "1", "-o"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = Trace::check(&std::fs::read_to_string(&file).unwrap());
    assert_eq!((trace.on_gpu("kernel"), trace.on_host("cuInit")), (0, 0));
}

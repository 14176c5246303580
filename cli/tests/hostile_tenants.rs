//! Hostile tenants next to a well-behaved one on a simulated GPU with the arbiter: they change neither its share nor its metrics.

mod common;

use std::process::Command;

use common::{Monitor, ready, stdout, vgpu, wait_for};
use vgpu_e2e::{Machine, Running, Way};
use vgpu_test_harness::Host;

/// Limit of the well-behaved tenant on GPU time, in percent.
const LIMIT: f64 = 30.0;
/// Samples per median.
const SAMPLES: usize = 7;

/// Starts a container that runs `script`.
fn tenant(host: &Host, machine: &Machine, cores: &str, script: &str) -> Running {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", cores);
    Way::Wrapper.start(host, bundle.args(&["/bin/sh", "-c", script]))
}

/// Returns a container's GPU time over the last tenths of a second, in percent.
fn share(host: &Host, machine: &Machine, id: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(&stdout(vgpu(host, machine).args(["show", "--json", id]))).ok()?;
    report["containers"][0]["gpus"][0]["utilization"].as_f64()
}

/// Returns the median of several samples of a container's GPU time, in percent.
fn median(host: &Host, machine: &Machine, id: &str, mut meanwhile: impl FnMut()) -> f64 {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .filter_map(|_| {
            meanwhile();
            share(host, machine, id)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!("{samples:.1?}");
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// Sends a signal to all processes of a container.
fn signal(running: &Running, host: &Host, name: &str) {
    let state: serde_json::Value =
        serde_json::from_str(&host.outcome(host.bare_command().args(["state", &running.id])).stdout).unwrap_or_default();
    if let Some(pid) = state["pid"].as_u64() {
        let _ = Command::new("pkill").args([&format!("-{name}"), "--ns", &pid.to_string(), "--nslist", "pid", "."]).status();
    }
}

#[test]
fn hostile_neighbours_do_not_change_a_share() {
    let Some((_kit, machine, host)) = ready() else { return };
    let spin = "/programs/spin --ns 1000000 --seconds 600";
    let garbage = format!(
        "{spin} & while :; do dd if=/dev/urandom of=/usr/local/vgpu/region bs=8 seek=$((16 + $(od -An -N2 -tu2 /dev/urandom))) count=64 conv=notrunc 2>/dev/null; done"
    );
    let cut = format!("{spin} & sleep 1; : > /usr/local/vgpu/region; exec {spin}");
    let forks = "while :; do for n in 1 2 3; do /programs/spin --ns 1000000 --seconds 600 & p=\"$p $!\"; done; sleep 0.4; kill -9 $p; p=; wait; done";
    let cases: [(&str, &str, Option<&str>); 7] = [
        ("stays within its limit", spin, None),
        ("writes garbage into its region", &garbage, None),
        ("truncates its region", &cut, None),
        ("launches a kernel that does not end", "/programs/spin --ns 1000000000000 --seconds 600", None),
        ("starts processes and kills them", forks, None),
        ("is stopped and continued repeatedly", spin, Some("STOP")),
        ("is killed", spin, Some("KILL")),
    ];
    let monitor = Monitor::start(&host, &machine);
    for (behavior, script, signals) in cases {
        println!("next to a tenant that {behavior}:");
        let well_behaved = tenant(&host, &machine, "30", spin);
        let hostile = tenant(&host, &machine, "50", script);
        wait_for("the tenant uses the GPU", || share(&host, &machine, &well_behaved.id).filter(|share| *share > 0.0));
        let mut samples = 0;
        let mut act = || {
            samples += 1;
            match signals {
                Some("KILL") if samples == 3 => signal(&hostile, &host, "KILL"),
                Some("STOP") => signal(&hostile, &host, if samples % 2 == 1 { "STOP" } else { "CONT" }),
                _ => {}
            }
        };
        // A busy machine may spoil a measurement, so it is repeated.
        wait_for(behavior, || {
            let share = median(&host, &machine, &well_behaved.id, &mut act);
            (LIMIT * 0.85..LIMIT * 1.15).contains(&share).then_some(())
        });
        assert!(monitor.get("/metrics").contains(&well_behaved.id), "the container has metrics");
    }
}

//! Tenants that mean harm, beside one that keeps to its limit, on a simulated GPU with the arbiter at work: its share stays what it is, and
//! so does the others' view.

mod common;

use std::process::Command;

use common::{Monitor, ready, said, vgpu, wait_for};
use vgpu_e2e::{Machine, Running, Way};
use vgpu_test_harness::Host;

/// Of which its share is told again and again, in percent.
const LIMIT: f64 = 30.0;
/// So many looks make a figure.
const LOOKS: usize = 7;

fn tenant(host: &Host, machine: &Machine, cores: &str, script: &str) -> Running {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", cores);
    Way::Wrapper.start(host, bundle.args(&["/bin/sh", "-c", script]))
}

/// Its share of the GPU over the last tenths of a second, in percent.
fn share(host: &Host, machine: &Machine, id: &str) -> Option<f64> {
    let shown: serde_json::Value = serde_json::from_str(&said(vgpu(host, machine).args(["show", "--json", id]))).ok()?;
    shown["containers"][0]["gpus"][0]["utilization"].as_f64()
}

/// The middle one of several looks.
fn middle(host: &Host, machine: &Machine, id: &str, mut meanwhile: impl FnMut()) -> f64 {
    let mut looks: Vec<f64> = (0..LOOKS)
        .filter_map(|_| {
            meanwhile();
            share(host, machine, id)
        })
        .collect();
    looks.sort_by(f64::total_cmp);
    println!("{looks:.1?}");
    looks.get(looks.len() / 2).copied().unwrap_or(0.0)
}

fn signal(running: &Running, host: &Host, name: &str) {
    let state: serde_json::Value =
        serde_json::from_str(&host.outcome(host.bare_command().args(["state", &running.id])).stdout).unwrap_or_default();
    if let Some(pid) = state["pid"].as_u64() {
        let _ = Command::new("pkill").args([&format!("-{name}"), "--ns", &pid.to_string(), "--nslist", "pid", "."]).status();
    }
}

#[test]
fn a_hostile_neighbour_takes_nothing_away() {
    let Some((_kit, machine, host)) = ready() else { return };
    let spin = "/programs/spin --ns 1000000 --seconds 600";
    let garbage = format!(
        "{spin} & while :; do dd if=/dev/urandom of=/usr/local/vgpu/region bs=8 seek=$((16 + $(od -An -N2 -tu2 /dev/urandom))) count=64 conv=notrunc 2>/dev/null; done"
    );
    let cut = format!("{spin} & sleep 1; : > /usr/local/vgpu/region; exec {spin}");
    let forks = "while :; do for n in 1 2 3; do /programs/spin --ns 1000000 --seconds 600 & p=\"$p $!\"; done; sleep 0.4; kill -9 $p; p=; wait; done";
    let cases: [(&str, &str, Option<&str>); 7] = [
        ("keeps to its limit", spin, None),
        ("writes garbage into its region", &garbage, None),
        ("cuts its region", &cut, None),
        ("launches a kernel that does not end", "/programs/spin --ns 1000000000000 --seconds 600", None),
        ("starts processes and kills them", forks, None),
        ("is stopped again and again", spin, Some("STOP")),
        ("is killed", spin, Some("KILL")),
    ];
    let monitor = Monitor::start(&host, &machine);
    for (what, script, stopped) in cases {
        println!("beside one that {what}:");
        let good = tenant(&host, &machine, "30", spin);
        let bad = tenant(&host, &machine, "50", script);
        wait_for("it is at work", || share(&host, &machine, &good.id).filter(|share| *share > 0.0));
        let mut looks = 0;
        let mut act = || {
            looks += 1;
            match stopped {
                Some("KILL") if looks == 3 => signal(&bad, &host, "KILL"),
                Some("STOP") => signal(&bad, &host, if looks % 2 == 1 { "STOP" } else { "CONT" }),
                _ => {}
            }
        };
        // A busy machine may hold everything up for a while, but nothing gives it more than its limit.
        wait_for(what, || {
            let share = middle(&host, &machine, &good.id, &mut act);
            assert!(share < LIMIT * 1.15, "{what}: {share}");
            Some(()).filter(|()| share > LIMIT * 0.85)
        });
        assert!(monitor.get("/metrics").contains(&good.id), "whoever is looked at is told of");
    }
}

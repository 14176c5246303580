//! Compares what the host sees of containers with NVML and with their programs' own figures: metrics, processes that bypass the library,
//! and the delay of a change of limits. Writes a report in Markdown to stdout; ends with status 1 if a check failed.
//!
//! With `--simulated`, it runs on the simulated GPU, to test itself.

mod changes;
mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use vgpu_e2e::{Fill, Kit, MIB, Machine, Monitor, Running, Way, host};
use vgpu_test_harness::{Host, Runtime};

use report::Report;

/// Tolerance of memory figures: one granule, in bytes.
const GRANULE: f64 = (2 * MIB) as f64;
/// Tolerance of shares: one point.
const POINT: f64 = 0.01;
/// Time in which a process that bypasses the library has to be reported.
const MAX_REPORT_DELAY: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let kit = Kit::find();
    let Some(machine) = Machine::from_arguments(&kit) else { return ExitCode::FAILURE };
    println!("# What the host sees\n\n{}\n", machine.held(0).name);
    let mut report = Report::default();
    figures(&mut report, &kit, &machine);
    bypass(&mut report, &kit, &machine, "report");
    bypass(&mut report, &kit, &machine, "kill");
    changes::measure(&mut report, &kit, &machine);
    println!("\n{} rows failed.", report.failed);
    if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / MIB as f64)
}

/// Starts a container that allocates `take` MiB by a method, under a limit in MiB, and holds them.
fn holder(host: &Host, machine: &Machine, limit: u64, api: &str, take: u64) -> (Running, Fill) {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", &limit.to_string()).annotation("nvidia.com/gpucores", "30");
    let take = format!("{take}M");
    let args = ["/programs/fill", "--api", api, "--chunk", "4M", "--max", &take, "--hold", "600"];
    let mut running = Way::Wrapper.start(host, bundle.args(&args));
    let fill = Fill::of(&running.line());
    (running, fill)
}

/// Compares memory and GPU time by metrics, `vgpu top`, NVML, and the programs themselves.
fn figures(report: &mut Report, kit: &Kit, machine: &Machine) {
    let host = host(kit, Runtime::Runc);
    let monitor = Monitor::start(kit, &host, machine);
    let holders = [holder(&host, machine, 1024, "cuMemAlloc", 256), holder(&host, machine, 2048, "vmm", 512)];
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "30");
    let spin = "/programs/spin --ns 1000000 --seconds 8; exec sleep 600";
    let mut busy = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", spin]));
    let output = busy.line();
    std::thread::sleep(Duration::from_secs(2));

    println!("## Figures\n\nMemory in MiB, GPU time as a share of the elapsed time.\n");
    println!("| container | the program | NVML | metrics: held | metrics: charged | top: charged | |\n|---|---|---|---|---|---|---|");
    let top = monitor.json(&["top", "--once", "--json"]);
    for (running, fill) in &holders {
        let own = (fill.obtained + fill.context.unwrap_or(0)) as f64;
        let figure = |name: &str| monitor.figure(name, &running.id).unwrap_or(f64::NAN);
        let (held, charged) = (figure("vgpu_memory_held_bytes"), figure("vgpu_memory_charged_bytes"));
        let shown = top["containers"].as_array().and_then(|all| all.iter().find(|one| one["id"] == running.id.as_str()));
        let shown = shown.and_then(|one| one["gpus"][0]["charged"].as_f64()).unwrap_or(f64::NAN);
        // NVML lists no container: its process is the one with the closest figure.
        let listed =
            machine.held(0).processes.iter().map(|process| process.1 as f64).min_by(|a, b| (a - own).abs().total_cmp(&(b - own).abs()));
        let listed = listed.unwrap_or(f64::NAN);
        let good = [held, charged, shown, listed].iter().all(|figure| (figure - own).abs() <= GRANULE);
        report.row(&fill.api, &[own, listed, held, charged, shown].map(mib), good);
    }
    let words: Vec<f64> = output.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [_, wall, share] = words[..] else { panic!("spin printed {output:?}") };
    let charged = monitor.figure("vgpu_gpu_seconds_total", &busy.id).unwrap_or(f64::NAN) * 1e9 / wall;
    let cells = [format!("{share:.4}"), String::new(), String::new(), format!("{charged:.4}"), String::new()];
    report.row("GPU time, limit 0.30", &cells, (charged - share).abs() <= POINT && (share - 0.3).abs() <= POINT);
}

/// Runs a program with a loader that ignores the preload list, and with the driver's own library.
const BYPASS: &str = r#"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
    exec /tmp/ld --library-path "/usr/local/vgpu/driver:$LD_LIBRARY_PATH" /programs/fill --chunk 64M --max "$TAKE" --hold 30"#;

/// Runs programs that bypass the library, above and below their container's limit, next to one that does not.
fn bypass(report: &mut Report, kit: &Kit, machine: &Machine, policy: &str) {
    let host = host(kit, Runtime::Runc);
    host.policy(&format!("on_violation = \"{policy}\"\nviolation_grace_seconds = 1"));
    let monitor = Monitor::start(kit, &host, machine);
    let (good, _) = holder(&host, machine, 1024, "cuMemAlloc", 256);
    println!(
        "\n## Bypassing the library, policy {policy}\n\n| program | obtained, MiB | reported after, s | ended after, s | |\n|---|---|---|---|---|"
    );
    for (what, take) in [("over its limit of 1024 MiB", "2G"), ("under its limit of 1024 MiB", "128M")] {
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").env("TAKE", take);
        let mut bad = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", BYPASS]));
        let fill = Fill::of(&bad.line());
        let start = Instant::now();
        let reported = monitor.logged("bypasses the library", &bad.id, Duration::from_secs(10)).map(|at| at - start);
        let ended =
            monitor.logged("ended process", &bad.id, Duration::from_secs(if policy == "kill" { 10 } else { 4 })).map(|at| at - start);
        let time = |time: Option<Duration>| time.map_or_else(|| "never".to_owned(), |time| format!("{:.2}", time.as_secs_f64()));
        let cells = [mib(fill.obtained as f64), time(reported), time(ended)];
        report.row(what, &cells, reported.is_some_and(|reported| reported <= MAX_REPORT_DELAY) && ended.is_some() == (policy == "kill"));
    }
    let violations = monitor.figure("vgpu_violations_total", &good.id);
    let ended = monitor.figure("vgpu_processes_ended_total", &good.id);
    let cells = [String::new(), format!("violations {}", violations.unwrap_or(f64::NAN)), format!("ended {}", ended.unwrap_or(f64::NAN))];
    report.row("no bypass", &cells, (violations, ended) == (Some(0.0), Some(0.0)));
}

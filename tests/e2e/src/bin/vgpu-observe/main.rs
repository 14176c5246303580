//! What the host sees of containers, compared with what NVML and their programs say: metrics, whoever bypasses the library, and how soon a
//! change of limits is there. Writes a report in Markdown on stdout; ends with status 1 if anything was not as it should be.
//!
//! With `--simulated`, it runs on the simulated GPU, to try itself.

mod changes;
mod monitor;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use vgpu_e2e::{Fill, Kit, MIB, Machine, Running, Way, host};
use vgpu_test_harness::{Host, Runtime};

use monitor::Monitor;

/// One granule, in bytes, and one point.
const GRANULE: f64 = (2 * MIB) as f64;
const POINT: f64 = 0.01;
/// Whoever bypasses has to be told of within this time.
const SOON: Duration = Duration::from_secs(2);

/// Whether everything was as it should be, so far.
struct Report {
    failed: u32,
}

impl Report {
    fn row(&mut self, what: &str, cells: &[String], good: bool) {
        self.failed += u32::from(!good);
        println!("| {what} | {} | {} |", cells.join(" | "), if good { "ok" } else { "**WRONG**" });
    }
}

fn main() -> ExitCode {
    let kit = Kit::find();
    let Some(machine) = Machine::told(&kit) else { return ExitCode::FAILURE };
    println!("# What the host sees\n\n{}\n", machine.held(0).name);
    let mut report = Report { failed: 0 };
    figures(&mut report, &kit, &machine);
    bypass(&mut report, &kit, &machine, "report");
    bypass(&mut report, &kit, &machine, "kill");
    changes::tried(&mut report, &kit, &machine);
    println!("\n{} of the rows are wrong.", report.failed);
    if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / MIB as f64)
}

/// A container that allocates so many MiB in this way, of a limit, and holds them.
fn holder(host: &Host, machine: &Machine, limit: u64, api: &str, take: u64) -> (Running, Fill) {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", &limit.to_string()).annotation("nvidia.com/gpucores", "30");
    let take = format!("{take}M");
    let args = ["/programs/fill", "--api", api, "--chunk", "4M", "--max", &take, "--hold", "600"];
    let mut running = Way::Wrapper.start(host, bundle.args(&args));
    let fill = Fill::of(&running.line());
    (running, fill)
}

/// Memory and GPU time, as metrics and `vgpu top` tell them, NVML, and the programs themselves.
fn figures(report: &mut Report, kit: &Kit, machine: &Machine) {
    let host = host(kit, Runtime::Runc);
    let monitor = Monitor::start(kit, &host, machine);
    let holders = [holder(&host, machine, 1024, "cuMemAlloc", 256), holder(&host, machine, 2048, "vmm", 512)];
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "30");
    let spin = "/programs/spin --ns 1000000 --seconds 8; exec sleep 600";
    let mut busy = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", spin]));
    let said = busy.line();
    std::thread::sleep(Duration::from_secs(2));

    println!("## Figures\n\nMemory in MiB, GPU time in parts of the time that passed.\n");
    println!("| container | the program | NVML | metrics: held | metrics: charged | top: charged | |\n|---|---|---|---|---|---|---|");
    let top = monitor.json(&["top", "--once", "--json"]);
    for (running, fill) in &holders {
        let own = (fill.obtained + fill.context.unwrap_or(0)) as f64;
        let figure = |name: &str| monitor.figure(name, &running.id).unwrap_or(f64::NAN);
        let (held, charged) = (figure("vgpu_memory_held_bytes"), figure("vgpu_memory_charged_bytes"));
        let shown = top["containers"].as_array().and_then(|all| all.iter().find(|one| one["id"] == running.id.as_str()));
        let shown = shown.and_then(|one| one["gpus"][0]["charged"].as_f64()).unwrap_or(f64::NAN);
        // NVML by itself, asked for the container's process by what it holds.
        let listed =
            machine.held(0).processes.iter().map(|process| process.1 as f64).min_by(|a, b| (a - own).abs().total_cmp(&(b - own).abs()));
        let listed = listed.unwrap_or(f64::NAN);
        let good = [held, charged, shown, listed].iter().all(|figure| (figure - own).abs() <= GRANULE);
        report.row(&fill.api, &[own, listed, held, charged, shown].map(mib), good);
    }
    let words: Vec<f64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [_, wall, share] = words[..] else { panic!("spin said {said:?}") };
    let charged = monitor.figure("vgpu_gpu_seconds_total", &busy.id).unwrap_or(f64::NAN) * 1e9 / wall;
    let cells = [format!("{share:.4}"), String::new(), String::new(), format!("{charged:.4}"), String::new()];
    report.row("GPU time, limit 0.30", &cells, (charged - share).abs() <= POINT && (share - 0.3).abs() <= POINT);
}

/// A loader that does not look for the preload list.
const BYPASS: &str = r#"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
    exec /tmp/ld --library-path "$LD_LIBRARY_PATH" /programs/fill --chunk 64M --max "$TAKE" --hold 30"#;

/// Programs past the library, over their container's limit and under it, beside one that does nothing wrong.
fn bypass(report: &mut Report, kit: &Kit, machine: &Machine, policy: &str) {
    let host = host(kit, Runtime::Runc);
    host.policy(&format!("on_violation = \"{policy}\"\nviolation_grace_seconds = 1"));
    let monitor = Monitor::start(kit, &host, machine);
    let (good, _) = holder(&host, machine, 1024, "cuMemAlloc", 256);
    println!(
        "\n## Past the library, policy {policy}\n\n| program | obtained, MiB | told of after, s | ended after, s | |\n|---|---|---|---|---|"
    );
    for (what, take) in [("over its limit of 1024 MiB", "2G"), ("under its limit of 1024 MiB", "128M")] {
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").env("TAKE", take);
        let mut bad = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", BYPASS]));
        let fill = Fill::of(&bad.line());
        let start = Instant::now();
        let told = monitor.hears("past the library", &bad.id, Duration::from_secs(10)).map(|at| at - start);
        let ended =
            monitor.hears("ended process", &bad.id, Duration::from_secs(if policy == "kill" { 10 } else { 4 })).map(|at| at - start);
        let time = |time: Option<Duration>| time.map_or_else(|| "never".to_owned(), |time| format!("{:.2}", time.as_secs_f64()));
        let cells = [mib(fill.obtained as f64), time(told), time(ended)];
        report.row(what, &cells, told.is_some_and(|told| told <= SOON) && ended.is_some() == (policy == "kill"));
    }
    let blamed = monitor.figure("vgpu_violations_total", &good.id);
    let ended = monitor.figure("vgpu_processes_ended_total", &good.id);
    let cells = [String::new(), format!("violations {}", blamed.unwrap_or(f64::NAN)), format!("ended {}", ended.unwrap_or(f64::NAN))];
    report.row("one that does not bypass", &cells, (blamed, ended) == (Some(0.0), Some(0.0)));
}

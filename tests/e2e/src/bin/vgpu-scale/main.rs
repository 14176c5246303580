//! Measures the host's side with many containers on a simulated GPU, half of them with a process on it. Writes a table in Markdown to stdout.
//!
//!     vgpu-scale LOOK [CONTAINERS...]
//!
//! LOOK is the example program `look` of vgpu-monitor. Runs as root, with runc.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use vgpu_e2e::process::cpu_ticks;
use vgpu_e2e::{Fill, Fleet, Kit, Monitor, Way, median, vgpu_environment};

/// Containers, if the arguments name none.
const SIZES: [usize; 4] = [10, 100, 500, 1000];
/// Starts and calls per figure.
const ROUNDS: usize = 9;
/// Time for which the monitor's CPU time is measured.
const MONITOR_TIME: Duration = Duration::from_secs(8);
/// Time between two samples of the monitor, and a little more.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which a bypass counts as never noticed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A dynamic loader that ignores /etc/ld.so.preload, and the driver's own library, so that the process bypasses the library.
const BYPASS: &str = r"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
    exec /tmp/ld --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 128M --hold 600";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(look) = arguments.next() else {
        eprintln!("vgpu-scale: expected the path of the example program look, and numbers of containers");
        return ExitCode::FAILURE;
    };
    let mut sizes: Vec<usize> = arguments.filter_map(|size| size.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    let kit = Kit::find();
    let mut fleet = Fleet::new(&kit);
    println!(
        "| containers (GPU processes) | start, runc / vgpu, least, ms | p50, ms | CPU, ms | one look, CPU, least / median, ms | NVML in it, ms | monitor, CPU | bypass noticed, s | scrape, least / p50, ms | KiB | `show`, ms | `top --once`, ms | `set`, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for size in sizes {
        fleet.grow(size);
        // Processes that make their contexts are not what is measured.
        std::thread::sleep(Duration::from_secs(3));
        println!("{}", row(&kit, &mut fleet, Path::new(&look)));
    }
    ExitCode::SUCCESS
}

/// Measures the fleet, and returns the table's row.
fn row(kit: &Kit, fleet: &mut Fleet, look: &Path) -> String {
    let [bare, limited] = [fleet.starts(false, ROUNDS), fleet.starts(true, ROUNDS)];
    let looks = Command::new(look).envs(vgpu_environment(&fleet.host, &fleet.machine)).arg(fleet.host.state_dir()).output();
    let looks = String::from_utf8_lossy(&looks.expect("look starts").stdout).trim().to_owned();
    let (looks, nvml) = looks.rsplit_once(' ').unwrap_or_default();
    let processes = fleet.machine.held(0).processes.len();
    let monitor = Monitor::start(kit, &fleet.host, &fleet.machine);
    std::thread::sleep(Duration::from_secs(2));
    let cpu = cpu_percent(monitor.pid());
    let noticed = noticed(&monitor, fleet).map_or("never".to_owned(), |seconds| format!("{seconds:.1}"));
    let size = monitor.scrape().map_or(0, |text| text.len() / 1024);
    // Each scrape is of another sample: the monitor keeps the text of one.
    let scrape = timed(SAMPLE_INTERVAL, || _ = monitor.scrape());
    let some = fleet.ids.get(fleet.ids.len() / 2).cloned().unwrap_or_default();
    let called = |args: &[&str]| {
        timed(Duration::ZERO, || {
            let output = monitor.output(args);
            assert!(output.status.success(), "{args:?}: {output:?}");
        })
    };
    let calls = [called(&["show"]), called(&["top", "--once"]), called(&["set", &some, "--gpumem", "1024"])];
    let [show, top, set] = calls.map(|(least, median)| format!("{least:.0} / {median:.0}"));
    let starts = [(bare.least, limited.least), (bare.median, limited.median), (bare.cpu, limited.cpu)];
    let starts = starts.map(|(bare, limited)| format!("{bare:.0} / {limited:.0}")).join(" | ");
    format!(
        "| {} ({processes}) | {starts} | {} | {nvml} | {cpu:.1}% | {noticed} | {:.0} / {:.0} | {size} | {show} | {top} | {set} |",
        fleet.ids.len(),
        looks.replace(' ', " / "),
        scrape.0,
        scrape.1
    )
}

/// Returns the shortest and the median time of a call in milliseconds, with a pause before each call.
fn timed(pause: Duration, mut call: impl FnMut()) -> (f64, f64) {
    let once = |_| {
        std::thread::sleep(pause);
        let began = Instant::now();
        call();
        began.elapsed().as_secs_f64() * 1e3
    };
    let times: Vec<f64> = (0..ROUNDS).map(once).collect();
    (times.iter().copied().fold(f64::INFINITY, f64::min), median(times))
}

/// Returns the CPU time of a process and its children as a percentage of one core.
fn cpu_percent(pid: u32) -> f64 {
    let before = cpu_ticks(pid);
    std::thread::sleep(MONITOR_TIME);
    let ticks = cpu_ticks(pid).saturating_sub(before);
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64 / MONITOR_TIME.as_secs_f64() * 100.0
}

/// Returns the seconds from the time at which a process bypasses the library until the monitor reports it.
fn noticed(monitor: &Monitor, fleet: &Fleet) -> Option<f64> {
    let bundle = fleet.machine.bundle().annotation("nvidia.com/gpumem", "1024");
    let mut running = Way::Wrapper.start(&fleet.host, bundle.args(&["/bin/sh", "-c", BYPASS]));
    let _ = Fill::of(&running.line());
    let began = Instant::now();
    let at = monitor.logged("bypasses the library", &running.id, PATIENCE)?;
    Some(at.saturating_duration_since(began).as_secs_f64())
}

//! What the page costs beside many containers.

use std::time::Duration;

use vgpu_e2e::process::cpu_ticks;
use vgpu_e2e::{Browser, Fleet, Kit, Monitor, median};

/// Time for which CPU time is measured.
const TIME: Duration = Duration::from_secs(60);
/// Times that the page is opened.
const ROUNDS: usize = 9;

/// Head of the table.
const HEAD: &str = "\
| containers | page opened, least / median, ms | its answers, KiB | then, KiB/s | server without page, CPU | server with page, CPU |
|---|---|---|---|---|---|";
/// What the table means, and the head of the table of aims.
const NOTES: &str = "
The containers are real, half of them have a process with memory on the simulated GPU, and none computes. \"Opened\" is the time in the
browser from the start of the navigation until all figures are drawn, nine times. CPU is that of the process that answers HTTP, for 60 s,
as a percentage of one core; without a page it keeps the history of the last hour. The page asks every two seconds and gets what changed.

| aim | found | reached |
|---|---|---|";

fn verdict(is_reached: bool) -> &'static str {
    if is_reached { "yes" } else { "no" }
}

/// Measures a fleet, and prints the table.
pub fn measure(kit: &Kit, mut browser: Browser, containers: usize) {
    let mut fleet = Fleet::new(kit);
    fleet.grow(containers);
    let monitor = Monitor::start(kit, &fleet.host, &fleet.machine);
    std::thread::sleep(Duration::from_secs(15));
    let server = part(monitor.pid(), "vgpu-http").expect("the part that answers HTTP");
    let alone = cpu_percent(server);
    browser.resize(1440, 900, false);
    let opened: Vec<f64> = (0..ROUNDS).map(|_| open(&mut browser, &monitor)).collect();
    let first = received(&mut browser);
    let with_page = cpu_percent(server);
    let later = received(&mut browser) - first;
    let shown = browser.value("document.querySelectorAll('#containers > li').length");
    let least = opened.iter().copied().fold(f64::INFINITY, f64::min);
    let median = median(opened);
    println!("{HEAD}");
    println!(
        "| {} ({} shown) | {least:.0} / {median:.0} | {:.0} | {:.1} | {alone:.2}% | {with_page:.2}% |",
        fleet.ids.len(),
        shown.as_u64().unwrap_or(0),
        first / 1024.0,
        later / 1024.0 / TIME.as_secs_f64(),
    );
    println!("{NOTES}");
    println!("| opens within 200 ms | median {median:.0} ms | {} |", verdict(median <= 200.0));
    println!("| 60 s of use take less than 5% of a core for the server | {with_page:.2}% | {} |", verdict(with_page < 5.0));
    assert_eq!(browser.errors(), [""; 0]);
}

/// Opens the page, and returns the time in milliseconds until all figures are drawn.
fn open(browser: &mut Browser, monitor: &Monitor) -> f64 {
    browser.open(&monitor.url());
    browser.wait("performance.getEntriesByName('drawn').length > 0");
    std::thread::sleep(Duration::from_secs(1));
    browser.value("performance.getEntriesByName('drawn')[0].startTime").as_f64().unwrap_or(f64::NAN)
}

/// Returns the bytes that the open page has received.
fn received(browser: &mut Browser) -> f64 {
    // The browser keeps a limited number of entries otherwise.
    let _ = browser.value("performance.setResourceTimingBufferSize(10000)");
    let sum = "performance.getEntriesByType('resource').reduce((sum, entry) => sum + entry.transferSize, 0)";
    browser.value(sum).as_f64().unwrap_or(f64::NAN)
}

/// Returns the child of a process with this name.
fn part(parent: u32, name: &str) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let is_named = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim() == name);
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_named)
}

/// Returns the CPU time of a process as a percentage of one core.
fn cpu_percent(pid: u32) -> f64 {
    let before = cpu_ticks(pid);
    std::thread::sleep(TIME);
    let ticks = cpu_ticks(pid).saturating_sub(before);
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64 / TIME.as_secs_f64() * 100.0
}

//! Pictures of the page for the book.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use vgpu_e2e::{Browser, Kit, Machine, Monitor, Running, Way, host};
use vgpu_test_harness::{Host, Runtime};

/// A loader that ignores /etc/ld.so.preload, and the driver's own library, so that the process bypasses the library.
const BYPASS: &str = r"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
    exec /tmp/ld --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 256M --hold 86400";

/// Pod, container, memory limit, limit on GPU time, and the shell's command line. Loads come and go, so that there is a history.
const CONTAINERS: [(&str, &str, &str, &str, &str); 6] = [
    (
        "trainer-0",
        "train",
        "24Gi",
        "50",
        "/programs/fill --chunk 256M --max 17G --hold 86400 & while :; do /programs/spin --ns 2000000 --seconds 40; sleep 12; done",
    ),
    (
        "llm-api-7d9c5",
        "server",
        "16Gi",
        "30",
        "/programs/fill --chunk 256M --max 13G --hold 86400 & while :; do /programs/spin --ns 500000 --seconds 9; sleep 14; done",
    ),
    (
        "notebook-ana",
        "jupyter",
        "8Gi",
        "20",
        "while :; do /programs/fill --chunk 128M --max 12G --hold 35; sleep 25; /programs/fill --chunk 128M --max 3G --hold 40; done",
    ),
    (
        "batch-42",
        "resize",
        "4Gi",
        "10",
        "while :; do /programs/fill --chunk 64M --max 2G --hold 20 & /programs/spin --ns 200000 --seconds 22; sleep 18; done",
    ),
    (
        "eval-1",
        "score",
        "12Gi",
        "25",
        "while :; do /programs/fill --chunk 256M --max 6G --hold 60 & sleep 1; /programs/spin --ns 1000000 --seconds 20; sleep 50; done",
    ),
    ("legacy", "render", "2Gi", "15", BYPASS),
];

/// Runs containers for some seconds, and takes pictures of 390 and 1440 pixels, light and dark.
pub fn take(kit: &Kit, mut browser: Browser, folder: &Path, seconds: u64) {
    let machine = Machine::simulated(kit, &[]);
    let host = host(kit, Runtime::Runc);
    host.policy("engine = \"containerd\"");
    let monitor = Monitor::start(kit, &host, &machine);
    let mut outside = machine
        .program("fill")
        .args(["--chunk", "64M", "--max", "3G", "--hold", "86400"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("fill starts");
    let _ = BufReader::new(outside.stdout.as_mut().expect("a pipe")).read_line(&mut String::new());
    let running: Vec<Running> = CONTAINERS.iter().map(|container| start(&host, &machine, *container)).collect();
    std::thread::sleep(Duration::from_secs(seconds));
    browser.resize(1440, 900, false);
    browser.open(&monitor.url());
    browser.wait("document.querySelectorAll('#containers .trace').length > 4");
    for (width, height) in [(1440, 1400), (390, 844)] {
        for (scheme, is_dark) in [("light", false), ("dark", true)] {
            browser.resize(width, height, is_dark);
            let _ = browser.value("scrollTo(0, 0)");
            std::thread::sleep(Duration::from_secs(3));
            browser.picture(&folder.join(format!("page-{width}-{scheme}.png")));
        }
    }
    assert_eq!(browser.errors(), [""; 0]);
    drop(running);
    let _ = outside.kill();
    let _ = outside.wait();
}

fn start(host: &Host, machine: &Machine, (pod, name, memory, cores, script): (&str, &str, &str, &str, &str)) -> Running {
    let keys = [("container-type", "container"), ("container-name", name), ("sandbox-name", pod), ("sandbox-namespace", "team-a")];
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", memory).annotation("nvidia.com/gpucores", cores);
    let bundle = keys.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(&format!("io.kubernetes.cri.{key}"), value));
    Way::Wrapper.start(host, bundle.args(&["/bin/sh", "-c", script]))
}

//! `vgpu show` and the metrics of processes that use a GPU without limits, on the simulated GPU.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use common::{Monitor, ready, stdout, vgpu, wait_for};
use vgpu_e2e::{Fill, MIB, Machine, Way};

/// A program outside of any container that holds 64 MiB until it is dropped.
struct Unlimited {
    child: Child,
    /// Bytes that it holds, with its context.
    held: u64,
}

impl Unlimited {
    fn start(machine: &Machine) -> Self {
        let mut fill = machine.program("fill");
        let mut child = fill.args(["--chunk", "16M", "--max", "64M", "--hold", "600"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let fill = Fill::of(&line);
        Self { child, held: fill.obtained + fill.context.unwrap() }
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_program_without_a_container_is_shown_and_counted() {
    let Some((_kit, machine, host)) = ready() else { return };
    let show = |args: &[&str]| stdout(vgpu(&host, &machine).arg("show").args(args));
    let titles = "CONTAINER  GPU  MEMORY  LIMIT  TIME  NVML  LIMIT  REFUSED  AGE\n";
    assert_eq!(show(&[]), titles, "nobody uses the GPU");

    let unlimited = Unlimited::start(&machine);
    let row = format!("{}  root  0    {}Mi ", unlimited.child.id(), unlimited.held / MIB);
    let shown = show(&[]);
    let (containers, others) = shown.split_once("\n\n").unwrap_or_else(|| panic!("{shown}"));
    assert_eq!(containers, titles.trim_end(), "there are no containers");
    let others: Vec<&str> = others.lines().collect();
    assert!(others[0].starts_with("PID") && others[0].ends_with("  WITHOUT LIMITS"), "{shown}");
    assert!(others.len() == 2 && others[1].starts_with(&row) && others[1].contains("programs/fill --chunk"), "{row}\n{shown}");

    // A container with limits is not among them, and a question about one container is not about the others.
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024");
    let mut running = Way::Wrapper.start(&host, bundle.args(&["/programs/fill", "--chunk", "16M", "--max", "16M", "--hold", "600"]));
    running.line();
    let shown = show(&[]);
    assert!(shown.contains(&running.id) && shown.ends_with(&format!("{}\n", others[1])) && shown.lines().count() == 5, "{shown}");
    assert!(!show(&[&running.id]).contains("WITHOUT LIMITS"));

    let monitor = Monitor::start(&host, &machine);
    let value = |name: &str| monitor.value(name, "device_uuid=\"GPU-");
    wait_for("the metrics", || value("vgpu_unlimited_processes").filter(|count| *count == 1.0));
    assert_eq!(value("vgpu_unlimited_memory_bytes"), Some(unlimited.held as f64));
    drop(unlimited);
    wait_for("the end of the program in the metrics", || value("vgpu_unlimited_processes").filter(|count| *count == 0.0));
    assert_eq!(value("vgpu_unlimited_memory_bytes"), Some(0.0));
}

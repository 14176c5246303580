//! Starts a container with a share of a GPU and shows the effect, on the real GPU if there is one.

use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, host};
use vgpu_test_harness::{Runtime, can_run};

fn main() {
    let kit = Kit::find();
    let Some(runtime) = [Runtime::Runc, Runtime::Crun].into_iter().find(|runtime| can_run(*runtime)) else {
        std::process::exit(1);
    };
    let machine = Machine::any(&kit);
    let host = host(&kit, runtime);
    let before = machine.held(0);
    let kind = if machine.is_real() { "" } else { " (simulated: this machine has no NVIDIA GPU)" };
    println!("The host has       {}, {} MiB{kind}", before.name, before.total / MIB);

    println!("A container starts through vgpu-runtime and {}, with the annotations", runtime.name());
    println!("                   nvidia.com/gpumem: 1024, nvidia.com/gpucores: 30");
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
    let fill = format!("{PROGRAMS}/fill");
    let mut container = Way::Wrapper.start(&host, bundle.args(&[&fill, "--chunk", "2M", "--hold", "600"]));
    let answer = container.line();
    let seen = Fill::of(&answer);
    let mib = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| (bytes / MIB).to_string());
    println!("The container sees {} MiB in total by CUDA, {} MiB by NVML", seen.total / MIB, mib(seen.nvml_total));
    println!(
        "It obtains         {} MiB in addition to its CUDA context of {} MiB, then {}",
        seen.obtained / MIB,
        mib(seen.context),
        seen.error
    );
    let held = machine.held(0);
    let known: Vec<u32> = before.processes.iter().map(|process| process.0).collect();
    let bytes: u64 = held.processes.iter().filter(|process| !known.contains(&process.0)).map(|process| process.1).sum();
    println!("The host's NVML    lists {} MiB for the container meanwhile", bytes / MIB);
    drop(container);

    let spin = ["--ns", "200000", "--seconds", "4"];
    let share = |output: &str| output.split_whitespace().nth(2).and_then(|share| share.parse::<f64>().ok());
    let alone = machine.program("spin").args(spin).output().ok();
    let alone = alone.and_then(|output| share(&String::from_utf8_lossy(&output.stdout)));
    let command = format!("{PROGRAMS}/spin {}", spin.join(" "));
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
    let limited = share(&Way::Wrapper.run(&host, bundle.shell(&command)).stdout);
    let percent = |share: Option<f64>| share.map_or_else(|| "?".to_owned(), |share| format!("{:.1}%", share * 100.0));
    println!("Kernels of 200 us  get {} of the GPU's time in such a container, {} on the host", percent(limited), percent(alone));
    let is_limited = seen.total == 1024 * MIB && seen.error == "CUDA_ERROR_OUT_OF_MEMORY" && bytes <= 1024 * MIB && bytes > 0;
    if !is_limited {
        eprintln!("The container was not limited to its share: {answer}");
        std::process::exit(1);
    }
}

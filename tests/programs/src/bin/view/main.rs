//! Checks what a program sees of several limited GPUs, in every selection and order that `CUDA_VISIBLE_DEVICES` can express.
//!
//!     view --library libvgpu.so [--first BYTES] [--step BYTES]
//!
//! Gives each GPU a limit of its own: --first (default: 2 GiB) for the first in NVML's order, and --step (default: 512 MiB) more for
//! each next one. For every selection and order, a process starts for each visible GPU. There the figures of CUDA and NVML must agree
//! with each other and with that GPU's limit, before and after the process has filled the GPU. This program samples NVML for every GPU
//! continuously, without the library. Prints a table; status 1 if any check fails.

mod child;
mod figures;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_region::uuid::Uuid;
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::nvml::Nvml;
use vgpu_test_programs::share::Share;
use vgpu_test_programs::watch::Watch;

/// A GPU of the machine.
struct Gpu {
    uuid: String,
    limit: u64,
    watch: Watch,
}

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if let Some(uuid) = arguments.value("child") {
        return child::run(uuid, arguments.number("gpu", 0) as i32, arguments.number("limit", 0));
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("view: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let library = arguments.value("library").ok_or("--library: expected a file")?;
    let (first, step) = (arguments.number("first", 2 << 30), arguments.number("step", 512 << 20));
    let mut gpus = Vec::new();
    while let Ok(nvml) = Nvml::open(gpus.len() as u32) {
        let index = gpus.len() as u32;
        gpus.push(Gpu { uuid: nvml.uuid(), limit: first + step * u64::from(index), watch: Watch::start(index)? });
    }
    let limits = gpus.iter().map(|gpu| {
        let limit = GpuLimit::new(Selector::Uuid(Uuid::parse(&gpu.uuid).unwrap_or_default()));
        limit.memory.store(gpu.limit, std::sync::atomic::Ordering::Relaxed);
        limit
    });
    let share = Share::with(limits)?;
    println!("# {} GPUs, each with its own limit\n", gpus.len());
    println!("| CUDA_VISIBLE_DEVICES | ordinal | GPU | limit, MiB | obtained, MiB | NVML peak, MiB | |");
    println!("|---|---|---|---|---|---|---|");
    let mut well = !gpus.is_empty();
    for (visible, order) in choices(&gpus) {
        for (ordinal, &index) in order.iter().enumerate() {
            gpus.iter().for_each(|gpu| {
                gpu.watch.until_empty();
                gpu.watch.reset();
            });
            let gpu = &gpus[index];
            let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
            command.args(["--child", &gpu.uuid, "--gpu", &ordinal.to_string(), "--limit", &gpu.limit.to_string()]);
            if let Some(visible) = &visible {
                command.env("CUDA_VISIBLE_DEVICES", visible);
            }
            let said = say(share.limits(library, &mut command), &gpu.watch)?;
            let peak = gpu.watch.peak().0;
            let elsewhere =
                gpus.iter().enumerate().filter(|&(other, _)| other != index).map(|(_, other)| other.watch.peak().0).sum::<u64>();
            let obtained = said.parse::<u64>();
            let verdict = match &obtained {
                _ if peak > gpu.limit => format!("**NVML listed {peak} bytes**"),
                _ if elsewhere != 0 => format!("**{elsewhere} bytes on other GPUs**"),
                Err(_) => format!("**{said}**"),
                Ok(_) if peak < gpu.limit - (4 << 20) => "**not all memory was obtained**".into(),
                Ok(_) => "ok".into(),
            };
            well &= verdict == "ok";
            println!(
                "| {} | {ordinal} | {index} | {} | {} | {} | {verdict} |",
                visible.as_deref().unwrap_or("-"),
                gpu.limit >> 20,
                obtained.unwrap_or(0) >> 20,
                peak >> 20
            );
        }
    }
    Ok(well)
}

/// Returns the first line of a process, which continues once NVML has been sampled after that line.
fn say(command: &mut Command, watch: &Watch) -> Result<String, String> {
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut said = String::new();
    if let Some(output) = process.stdout.take() {
        BufReader::new(output).read_line(&mut said).map_err(|error| error.to_string())?;
    }
    let _ = watch.processes();
    drop(process.stdin.take());
    process.wait().map_err(|error| error.to_string())?;
    Ok(said.trim().to_owned())
}

/// Returns values of the variable and the GPUs that each selects: the first few in every order, by index and by UUID.
fn choices(gpus: &[Gpu]) -> Vec<(Option<String>, Vec<usize>)> {
    let all: Vec<usize> = (0..gpus.len()).collect();
    let mut choices = vec![(None, all.clone())];
    let mut orders: Vec<Vec<usize>> = all.iter().map(|&one| vec![one]).collect();
    orders.extend(all.windows(2).flat_map(|pair| [pair.to_vec(), pair.iter().rev().copied().collect()]));
    if gpus.len() > 2 {
        orders.push(all.iter().rev().copied().collect());
    }
    for order in orders {
        let joined = |name: &dyn Fn(usize) -> String| order.iter().map(|&index| name(index)).collect::<Vec<_>>().join(",");
        choices.push((Some(joined(&|index| index.to_string())), order.clone()));
        choices.push((Some(joined(&|index| gpus[index].uuid.clone())), order.clone()));
    }
    choices
}

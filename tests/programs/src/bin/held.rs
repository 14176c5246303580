//! Prints what NVML lists for the processes on a GPU; runs on the host, while containers run.
//!
//!     held [--gpu INDEX] [--watch] [--limit BYTES]
//!
//! The output is one line of JSON, in bytes. With --watch it samples until its standard input ends, and then prints the most that all
//! processes together held at one time. A list of several processes is not a snapshot (on an H200 each process takes 25 µs): memory
//! that moves from one process to another meanwhile is counted twice. So such a list counts only if the next one is the same. A list
//! of more than --limit is written to standard error.

use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::nvml::Nvml;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let nvml = match Nvml::open(arguments.number("gpu", 0) as u32) {
        Ok(nvml) => nvml,
        Err(error) => {
            eprintln!("held: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (limit, began) = (arguments.number("limit", u64::MAX), std::time::Instant::now());
    let (mut peak, mut samples, mut before) = (0, 0_u64, Vec::new());
    let mut look = || {
        let processes = nvml.processes();
        if processes.len() <= 1 || processes == before {
            let sum = processes.iter().map(|process| process.1).sum::<u64>();
            if sum > limit && sum > peak {
                eprintln!("held: {sum} bytes, more than {limit}, after {:?}: {processes:?}", began.elapsed());
            }
            peak = sum.max(peak);
            samples += 1;
        }
        before.clone_from(&processes);
        processes
    };
    let mut processes = look();
    if arguments.has("watch") {
        static OVER: AtomicBool = AtomicBool::new(false);
        println!("watching");
        let waiter = std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            OVER.store(true, Relaxed);
        });
        while !OVER.load(Relaxed) {
            processes = look();
            std::thread::sleep(Duration::from_micros(500));
        }
        let _ = waiter.join();
    }
    let list: Vec<String> = processes.iter().map(|(pid, bytes)| format!("[{pid},{bytes}]")).collect();
    println!(
        "{{\"name\":\"{}\",\"total\":{},\"processes\":[{}],\"peak\":{peak},\"samples\":{samples}}}",
        nvml.name(),
        nvml.memory().map_or(0, |memory| memory.0),
        list.join(",")
    );
    ExitCode::SUCCESS
}

//! Compares the cost of a call natively, under the library, and under any other preloaded library.
//!
//!     costs --library libvgpu.so [--peer OTHER.so] [--runs N] [--limit BYTES]
//!
//! All processes run on one core. Every round starts one process of each kind in turn, so that all see the same machine. Prints the
//! median over the rounds of each process's own median, in ns, the ratio to native, and the ratio's spread (10th to 90th percentile of
//! the rounds' ratios).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::costs;
use vgpu_test_programs::share::Share;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return costs::print();
    }
    match compare(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("costs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One configuration: its name and the library to preload.
struct Configuration<'a> {
    name: String,
    library: Option<&'a str>,
    figures: BTreeMap<String, Vec<f64>>,
}

fn compare(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    pin_to_this_core();
    let share = Share::make(arguments.number("limit", 64 << 30))?;
    let mut configurations = vec![Configuration { name: "native".into(), library: None, figures: BTreeMap::new() }];
    for library in arguments.values("library").chain(arguments.values("peer")) {
        let name = Path::new(library).file_name().map_or(library.into(), |name| name.to_string_lossy());
        configurations.push(Configuration { name: name.into_owned(), library: Some(library), figures: BTreeMap::new() });
    }
    // The first round is discarded: it warms caches, and the share's first process measures what a context costs.
    for round in 0..=arguments.number("runs", 9) {
        let starts = starts(&configurations, &share)?;
        for (configuration, start) in configurations.iter_mut().zip(starts).filter(|_| round > 0) {
            configuration.figures.entry("start of /bin/true".into()).or_default().push(start);
        }
        for configuration in &mut configurations {
            let figures = run(configuration.library, &share)?;
            if round > 0 {
                figures.into_iter().for_each(|(call, figure)| configuration.figures.entry(call).or_default().push(figure));
            }
        }
    }
    print(&configurations);
    Ok(())
}

fn pin_to_this_core() {
    // SAFETY: an all-zero set is valid, and the calls access nothing else.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut cores);
        libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores);
    }
}

fn prepare(command: &mut Command, library: Option<&str>, share: &Share) {
    _ = match library {
        Some(library) => share.limits(library, command),
        // Setting an environment variable costs a few microseconds, so every process gets the same number of them.
        None => command.env("VGPU_NATIVE", "1").env("VGPU_LIMITED", "0"),
    };
}

/// Starts a process that never uses CUDA in each configuration in turn. Returns the medians, in nanoseconds.
fn starts(configurations: &[Configuration<'_>], share: &Share) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut figures = vec![Vec::new(); configurations.len()];
    for _ in 0..200 {
        for (configuration, figures) in configurations.iter().zip(&mut figures) {
            let mut command = Command::new("/bin/true");
            prepare(&mut command, configuration.library, share);
            let begin = Instant::now();
            command.status()?;
            figures.push(begin.elapsed().as_nanos() as f64);
        }
    }
    Ok(figures.iter_mut().map(|figures| costs::median(figures)).collect())
}

fn run(library: Option<&str>, share: &Share) -> Result<Vec<(String, f64)>, Box<dyn std::error::Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    prepare(command.arg("--child"), library, share);
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{library:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut figures = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let (call, figure) = line.rsplit_once(' ').ok_or("a line without a figure")?;
        figures.push((call.to_owned(), figure.parse()?));
    }
    Ok(figures)
}

fn print(configurations: &[Configuration<'_>]) {
    let Some((native, others)) = configurations.split_first() else { return };
    print!("| call | native, ns |");
    others.iter().for_each(|configuration| print!(" {} | ratio (p10-p90) |", configuration.name));
    println!("\n|---|---|{}", "---|---|".repeat(others.len()));
    for (call, figures) in &native.figures {
        print!("| {call} | {:.0} |", costs::median(&mut figures.clone()));
        for configuration in others {
            let theirs = configuration.figures.get(call).cloned().unwrap_or_default();
            let mut ratios: Vec<f64> = theirs.iter().zip(figures).map(|(theirs, native)| theirs / native).collect();
            let middle = costs::median(&mut ratios);
            let at = |part: f64| ratios.get((ratios.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
            print!(" {:.0} | {middle:.3} ({:.3}-{:.3}) |", costs::median(&mut theirs.clone()), at(0.1), at(0.9));
        }
        println!();
    }
}

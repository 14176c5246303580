//! Tries every way to allocate device memory under a limit, each in fresh processes, while sampling NVML from outside. Prints a table.
//!
//!     ways --library libvgpu.so [--limit BYTES] [--only NAME ...] [--no-native] [--gpu ORDINAL]
//!
//! Each method allocates chunk after chunk until it is refused, then chunks of half the size, and so on down to 1 MiB. Then plain
//! `cuMemAlloc` takes the remainder. After the refusal the context must still work. In the end everything below the limit (default:
//! 2 GiB) must have been obtained and not more, by NVML as this program reads it without the library. A method that obtains less than
//! 99.5% alone is tried natively, too, on a GPU of which a bystander process leaves only as much free. Status 1 if any row fails.

mod native;
mod row;
mod table;
mod trial;

use std::process::ExitCode;

use row::Row;
use trial::{Bounds, Trial};
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::methods::{self, METHODS, Method};
use vgpu_test_programs::nvml::Nvml;
use vgpu_test_programs::watch::Watch;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let ordinal = arguments.number("gpu", 0) as i32;
    if arguments.has("maker") {
        return methods::foreign::maker(ordinal);
    }
    if let Some(name) = arguments.value("child") {
        return trial::child(name, arguments.number("chunk", 0), ordinal);
    }
    if arguments.has("bystander") {
        return native::bystander(arguments.number("leave", 2 << 30), ordinal);
    }
    match run(&arguments, ordinal) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ways: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every row passes.
fn run(arguments: &Arguments, ordinal: i32) -> Result<bool, String> {
    let library = arguments.value("library").ok_or("--library: expected a file")?;
    let limit = arguments.number("limit", 2 << 30);
    let only: Vec<&str> = arguments.values("only").collect();
    let nvml = Nvml::open(ordinal as u32)?;
    let watch = Watch::start(ordinal as u32)?;
    let chosen = |method: &&Method| only.is_empty() || only.contains(&method.name);
    let mut rows = Vec::new();
    for method in METHODS.iter().filter(chosen) {
        for &chunk in method.chunks {
            let trial = Trial { method, chunk, ordinal, bounds: Bounds::Library { library, limit } };
            let row = Row::new(method, chunk, limit, trial.run(&watch));
            eprintln!("{}", row.line());
            rows.push(row);
        }
    }
    if !arguments.has("no-native") && rows.iter().any(Row::wants_native) {
        let _bystander = native::Bystander::start(limit, ordinal)?;
        watch.ignore_present();
        for row in rows.iter_mut().filter(|row| row.wants_native()) {
            let trial = Trial { method: row.method, chunk: row.chunk, ordinal, bounds: Bounds::Native };
            let native = trial.run(&watch);
            eprintln!("natively: {native:?}");
            row.native = Some(native);
            eprintln!("{}", row.line());
        }
    }
    table::print(&rows, &nvml.name(), limit);
    Ok(rows.iter().all(|row| row.fault().is_none()))
}

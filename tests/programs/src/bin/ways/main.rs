//! Tries every way of taking device memory under a limit, each in fresh processes, while NVML is read from outside; prints a table.
//!
//!     ways --library libvgpu.so [--limit BYTES] [--only NAME ...] [--no-native] [--gpu ORDINAL]
//!
//! Each way takes chunk after chunk until it is refused, then chunks of half the size and so on down to 1 MiB; then plain `cuMemAlloc`
//! takes what is left. Refused, the program must live on, and in the end everything below the limit (2 GiB) must have been obtained and
//! not more, by NVML as this program reads it without the library. Where a way gets less than 99.5% by itself, it is tried natively, too,
//! on a GPU of which a bystander leaves only as much free. Status 1 if any row is not as it should be.

mod native;
mod row;
mod table;
mod trial;

use std::process::ExitCode;

use row::Row;
use trial::{Bounds, Trial};
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::nvml::Nvml;
use vgpu_test_programs::take::{self, WAYS, Way};
use vgpu_test_programs::watch::Watch;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let ordinal = arguments.number("gpu", 0) as i32;
    if arguments.has("maker") {
        return take::foreign::maker(ordinal);
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
        Err(why) => {
            eprintln!("ways: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every row is as it should be.
fn run(arguments: &Arguments, ordinal: i32) -> Result<bool, String> {
    let library = arguments.value("library").ok_or("--library FILE is needed")?;
    let limit = arguments.number("limit", 2 << 30);
    let only: Vec<&str> = arguments.values("only").collect();
    let nvml = Nvml::open(ordinal as u32)?;
    let watch = Watch::start(ordinal as u32)?;
    let chosen = |way: &&Way| only.is_empty() || only.contains(&way.name);
    let mut rows = Vec::new();
    for way in WAYS.iter().filter(chosen) {
        for &chunk in way.chunks {
            let trial = Trial { way, chunk, ordinal, bounds: Bounds::Library { library, limit } };
            let row = Row::new(way, chunk, limit, trial.run(&watch));
            eprintln!("{}", row.line());
            rows.push(row);
        }
    }
    if !arguments.has("no-native") && rows.iter().any(Row::wants_native) {
        let _bystander = native::Bystander::start(limit, ordinal)?;
        watch.ignore_present();
        for row in rows.iter_mut().filter(|row| row.wants_native()) {
            let trial = Trial { way: row.way, chunk: row.chunk, ordinal, bounds: Bounds::Native };
            let native = trial.run(&watch);
            eprintln!("natively: {native:?}");
            row.native = Some(native);
            eprintln!("{}", row.line());
        }
    }
    table::print(&rows, &nvml.name(), limit);
    Ok(rows.iter().all(|row| row.fault().is_none()))
}

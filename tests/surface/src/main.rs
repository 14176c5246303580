//! `surface`: classifies every function that a driver exports.
//!
//! * [`symbols`]: exported names, from the dynamic symbols of a library or from a list.
//! * [`classification`]: classes of the names: hooked, harmless, known gap.
//! * [`table`]: the classification as a Markdown page, `SURFACE.md`.

mod classification;
mod symbols;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use classification::Classification;
use symbols::Driver;

const USAGE: &str = "\
surface check [DRIVER]       checks that every exported name is classified; else lists the problems and exits with 1
surface diff OLD NEW         lists the names that only one of the two drivers exports
surface table [DRIVER]       prints the page tests/surface/SURFACE.md

DRIVER is a folder with libcuda.so.1 and libnvidia-ml.so.1, or with the lists cuda.txt and nvml.txt. Default: the lists in the
repository (driver 580, and what the headers up to CUDA 13.5 declare besides; tests/surface/newer.py). With --library libvgpu.so the hooked names are read from that build, else from the sources.";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let library = arguments.iter().position(|argument| argument == "--library").map(|at| {
        let path = arguments.get(at + 1).map(PathBuf::from);
        arguments.drain(at..(at + 2).min(arguments.len()));
        path
    });
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match (library, &words[..]) {
        (Some(None), _) => Err("--library: expected a file".to_owned()),
        (library, ["check", driver @ ..]) if driver.len() < 2 => check(library.flatten().as_deref(), driver.first()),
        (None, ["diff", old, new]) => diff(Path::new(old), Path::new(new)),
        (library, ["table", driver @ ..]) if driver.len() < 2 => page(library.flatten().as_deref(), driver.first()),
        _ => Err(USAGE.to_owned()),
    };
    match answer {
        Ok((text, is_ok)) => {
            print!("{text}");
            if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

/// Text to print, and whether there are no problems.
type Report = Result<(String, bool), String>;

/// Returns the folder of this crate, with the classification and the lists of names.
fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the driver that the classification is written for: driver 580, with the functions that newer headers declare.
fn reference() -> Result<Driver, String> {
    let mut driver = Driver::read(&crate_dir().join("driver-580"))?;
    driver.add(Driver::read(&crate_dir().join("cuda-13.5"))?);
    Ok(driver)
}

fn load(library: Option<&Path>, driver: Option<&&str>) -> Result<(Driver, Classification), String> {
    let driver = driver.map_or_else(reference, |folder| Driver::read(Path::new(folder)))?;
    Ok((driver, Classification::read(crate_dir(), library)?))
}

fn check(library: Option<&Path>, driver: Option<&&str>) -> Report {
    let (driver, classification) = load(library, driver)?;
    let problems = classification.problems(&driver, &reference()?);
    let mut text = problems.join("\n");
    if !problems.is_empty() {
        text.push('\n');
    }
    text += &table::summary(&driver, &classification);
    Ok((text, problems.is_empty()))
}

fn diff(old: &Path, new: &Path) -> Report {
    let (old, new, classification) = (Driver::read(old)?, Driver::read(new)?, Classification::read(crate_dir(), None)?);
    Ok((table::difference(&old, &new, &classification), true))
}

fn page(library: Option<&Path>, driver: Option<&&str>) -> Report {
    let (driver, classification) = load(library, driver)?;
    Ok((table::page(&driver, &classification), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_reference_driver_is_classified() {
        let (driver, classification) = load(None, None).unwrap();
        assert_eq!(classification.problems(&driver, &driver), Vec::<String>::new());
    }

    #[test]
    fn surface_page_is_up_to_date() {
        let (driver, classification) = load(None, None).unwrap();
        let committed = std::fs::read_to_string(crate_dir().join("SURFACE.md")).unwrap();
        assert!(committed == table::page(&driver, &classification), "run: cargo run -p vgpu-surface -- table > tests/surface/SURFACE.md");
    }

    #[test]
    fn unknown_name_is_a_problem() {
        let (mut driver, classification) = load(None, None).unwrap();
        let reference = driver.clone();
        driver.cuda.insert("cuMemAllocTomorrow".to_owned());
        let problems = classification.problems(&driver, &reference);
        assert!(problems.len() == 1 && problems[0].contains("cuMemAllocTomorrow"), "{problems:?}");
        let difference = table::difference(&reference, &driver, &classification);
        assert!(difference.contains("+ cuMemAllocTomorrow: unknown"), "{difference}");
    }
}

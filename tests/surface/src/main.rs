//! `surface`: what a driver exports, name by name, and what vgpu does about each.
//!
//! * [`symbols`]: the names, from a library's dynamic symbols or from a kept list.
//! * [`classes`]: which are stood in for, which are harmless and why, which are known gaps.
//! * [`table`]: all of that as a page for people, kept in `SURFACE.md`.

mod classes;
mod symbols;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use classes::Classes;
use symbols::Driver;

const USAGE: &str = "\
surface check [DRIVER]       every exported name is known; else exits with 1 and names what is not
surface diff OLD NEW         what NEW exports that OLD does not, and the reverse
surface table [DRIVER]       the page tests/surface/SURFACE.md

A DRIVER is a folder that holds libcuda.so.1 and libnvidia-ml.so.1, or the lists cuda.txt and nvml.txt; without one it is the list
kept in the repository (driver 580). With --library libvgpu.so what is stood in for is read from that build, else from its sources.";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let library = arguments.iter().position(|argument| argument == "--library").map(|at| {
        let path = arguments.get(at + 1).map(PathBuf::from);
        arguments.drain(at..(at + 2).min(arguments.len()));
        path
    });
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match (library, &words[..]) {
        (Some(None), _) => Err("--library needs a file".to_owned()),
        (library, ["check", driver @ ..]) if driver.len() < 2 => check(library.flatten().as_deref(), driver.first()),
        (None, ["diff", old, new]) => diff(Path::new(old), Path::new(new)),
        (library, ["table", driver @ ..]) if driver.len() < 2 => page(library.flatten().as_deref(), driver.first()),
        _ => Err(USAGE.to_owned()),
    };
    match answer {
        Ok((text, is_well)) => {
            print!("{text}");
            if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

/// What is printed, and whether all is well.
type Answer = Result<(String, bool), String>;

/// This crate's folder: the classification and the kept lists.
fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn load(library: Option<&Path>, driver: Option<&&str>) -> Result<(Driver, Classes), String> {
    let driver = driver.map_or_else(|| home().join("driver-580"), PathBuf::from);
    Ok((Driver::read(&driver)?, Classes::read(home(), library)?))
}

fn check(library: Option<&Path>, driver: Option<&&str>) -> Answer {
    let (driver, classes) = load(library, driver)?;
    let problems = classes.problems(&driver, &Driver::read(&home().join("driver-580"))?);
    let mut text = problems.join("\n");
    if !problems.is_empty() {
        text.push('\n');
    }
    text += &table::summary(&driver, &classes);
    Ok((text, problems.is_empty()))
}

fn diff(old: &Path, new: &Path) -> Answer {
    let (old, new, classes) = (Driver::read(old)?, Driver::read(new)?, Classes::read(home(), None)?);
    Ok((table::difference(&old, &new, &classes), true))
}

fn page(library: Option<&Path>, driver: Option<&&str>) -> Answer {
    let (driver, classes) = load(library, driver)?;
    Ok((table::page(&driver, &classes), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_kept_driver_is_known() {
        let (driver, classes) = load(None, None).unwrap();
        assert_eq!(classes.problems(&driver, &driver), Vec::<String>::new());
    }

    #[test]
    fn the_page_is_up_to_date() {
        let (driver, classes) = load(None, None).unwrap();
        let kept = std::fs::read_to_string(home().join("SURFACE.md")).unwrap();
        assert!(kept == table::page(&driver, &classes), "run: cargo run -p vgpu-surface -- table > tests/surface/SURFACE.md");
    }

    #[test]
    fn an_unknown_name_is_a_problem() {
        let (mut driver, classes) = load(None, None).unwrap();
        let kept = driver.clone();
        driver.cuda.insert("cuMemAllocTomorrow".to_owned());
        let problems = classes.problems(&driver, &kept);
        assert!(problems.len() == 1 && problems[0].contains("cuMemAllocTomorrow"), "{problems:?}");
        let difference = table::difference(&kept, &driver, &classes);
        assert!(difference.contains("+ cuMemAllocTomorrow: unknown"), "{difference}");
    }
}

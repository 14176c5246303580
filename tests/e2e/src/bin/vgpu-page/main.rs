//! The web page of the monitor with a simulated GPU. Runs as root, with runc and Chromium.
//!
//!     vgpu-page cost CONTAINERS          # cost of the page with this many containers, as a table in Markdown
//!     vgpu-page pictures FOLDER SECONDS  # pictures of it for the book, after so long a time

mod cost;
mod pictures;

use std::path::Path;
use std::process::ExitCode;

use vgpu_e2e::{Browser, Kit};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(browser) = Browser::start() else { return ExitCode::FAILURE };
    match arguments[..] {
        ["cost", containers] if containers.parse::<usize>().is_ok() => {
            cost::measure(&Kit::find(), browser, containers.parse().unwrap_or(0))
        }
        ["pictures", folder, seconds] if seconds.parse::<u64>().is_ok() => {
            pictures::take(&Kit::find(), browser, Path::new(folder), seconds.parse().unwrap_or(0));
        }
        _ => {
            eprintln!("vgpu-page: expected cost CONTAINERS, or pictures FOLDER SECONDS");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

//! The `vgpu` program. All code is in the library, where tests reach it.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    vgpu_cli::Cli::parse().run()
}

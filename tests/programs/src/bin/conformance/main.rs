//! Asks the driver thousands of questions and prints one line for each: `subject: question: answer`.
//!
//!     conformance [SUBJECT]
//!
//! Each subject runs in a process of its own. The answers must not differ between the simulated GPU and an H200 with driver 580. Lines
//! that start with `# ` vary by machine. Memory is given in bytes, as the growth of NVML's figure for the process since the last step.

mod report;
mod setup;
mod subjects;

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    if let Some(wanted) = std::env::args().nth(1) {
        let Some((name, ask)) = subjects::ALL.iter().find(|(name, _)| *name == wanted) else {
            eprintln!("{wanted}: expected the name of a subject");
            return ExitCode::from(2);
        };
        ask(&mut report::Report::new(name));
        return ExitCode::SUCCESS;
    }
    let own = std::env::current_exe().expect("this program has a path");
    let mut all_well = true;
    for (name, _) in subjects::ALL {
        let status = Command::new(&own).arg(name).status().expect("this program starts again");
        if !status.success() {
            println!("{name}: ended by {status}");
            all_well = false;
        }
    }
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

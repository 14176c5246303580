//! The end-to-end tests on a real GPU: every runtime, every way, programs of the driver API, of the CUDA runtime and of PyTorch. Writes
//! a report in Markdown to stdout and progress to stderr; ends with status 1 if a check failed.
//!
//! With `--simulated`, it runs on the simulated GPU, to test itself. With `--interception`, it runs only what depends on the policy's
//! `intercept`, with one runtime.

mod report;
mod trials;

use std::process::ExitCode;

use vgpu_e2e::{Kit, Machine, Way, hosts};

use report::Report;
use trials::Trials;

fn main() -> ExitCode {
    let kit = Kit::find();
    let Some(machine) = Machine::from_arguments(&kit) else { return ExitCode::FAILURE };
    let mut report = Report::new(&machine);
    let trials = Trials::new(&machine);
    let is_short = std::env::args().any(|argument| argument == "--interception");
    for (number, (runtime, way, host)) in hosts(&kit).take(if is_short { 1 } else { usize::MAX }).enumerate() {
        report.setting(runtime, way, None);
        if !is_short {
            trials.nvidia_smi(&mut report, &host, way);
            trials.driver_api(&mut report, &host, way);
            trials.runtime_api(&mut report, &host, way);
            trials.oversubscription(&mut report, &host, way);
            trials.pytorch(&mut report, &host, way);
        }
        if number == 0 && !is_short {
            trials.escapes(&mut report, &host, way);
            trials.storm(&mut report, &host, way);
            trials.check(&mut report);
        }
        // Hooks alone use the same code to mount.
        if way == Way::Wrapper {
            for intercept in ["preload", "replace", "both"] {
                host.policy(&format!("intercept = {intercept:?}"));
                report.setting(runtime, way, Some(intercept));
                trials.interception(&mut report, &host, way, intercept);
            }
        }
    }
    print!("{}", report.text());
    if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

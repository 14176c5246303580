//! Pods of a real CRI-O, limited by vgpu through a runtime handler and by hooks, with runc and crun, on a simulated GPU. Writes a table in
//! Markdown to stdout and progress to stderr; ends with status 1 if a check failed. `scripts/crio.sh` runs it, once for each version of
//! cgroups.
//!
//! Its argument is the folder with CRI-O's programs `crio` and `pinns`. It needs root, namespaces of its own for mounts and processes, and
//! one version of cgroups: crun refuses machines with both.

mod checks;
mod crio;
mod report;
mod setting;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use vgpu_e2e::Way;
use vgpu_test_harness::{Runtime, can_run};

use crate::report::Report;
use crate::setting::Setting;

/// Returns whether only version 2 of cgroups is mounted.
fn is_version_2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

fn main() -> ExitCode {
    let Some(programs) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: vgpu-crio-tests FOLDER, with crio and pinns");
        return ExitCode::from(2);
    };
    let mut report = Report::default();
    for runtime in [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime)) {
        if runtime == Runtime::Crun && is_version_2() && !crio::can_lower_oom_scores() {
            report.note("crun was not run: with cgroups version 2 it raises its limit of locked memory, which needs `CAP_SYS_RESOURCE`.");
            continue;
        }
        for way in Way::ALL {
            let way_name = if way == Way::Wrapper { "handler" } else { "hooks.d" };
            report.column(format!("{}, {way_name}", runtime.name()));
            let mut setting = match Setting::new(&programs, runtime, way) {
                Ok(setting) => setting,
                Err(error) => {
                    report.failure("start", &error.to_string());
                    continue;
                }
            };
            for (name, check) in checks::ALL {
                if name == checks::WITH_HANDLER_ONLY && way == Way::Hooks {
                    report.cell(name, "-".to_owned());
                    continue;
                }
                let begun = Instant::now();
                let outcome = check(&mut setting);
                let log = if outcome.is_err() { setting.crio.log() } else { String::new() };
                report.check(name, begun.elapsed(), outcome, &log);
            }
        }
    }
    print!("{}", report.text());
    if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

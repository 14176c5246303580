//! Steps that questions depend on.

use vgpu_test_programs::cuda::sys::CUresult;
use vgpu_test_programs::cuda::{check, name};

/// Ends the program if a step of the set-up failed, with a line that names the step.
pub fn require(what: &str, code: CUresult) {
    if let Err(code) = check(code) {
        println!("stopped at {what}: {}", name(code));
        std::process::exit(1);
    }
}

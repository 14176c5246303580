//! The subjects, in the order in which they are asked about.

mod arrays;
mod contexts;
mod devices;
mod errors;
mod graphs;
mod kept;
mod linear;
mod modules;
mod nvml;
mod pools;
mod proc_address;
mod start;
mod streams;
mod vmm;

use super::report::Report;

/// A subject's questions.
type Subject = fn(&mut Report);

pub const ALL: &[(&str, Subject)] = &[
    ("start", start::ask),
    ("errors", errors::ask),
    ("devices", devices::ask),
    ("proc_address", proc_address::ask),
    ("contexts", contexts::ask),
    ("kept", kept::ask),
    ("linear", linear::ask),
    ("pools", pools::ask),
    ("vmm", vmm::ask),
    ("arrays", arrays::ask),
    ("streams", streams::ask),
    ("modules", modules::ask),
    ("graphs", graphs::ask),
    ("nvml", nvml::ask),
];

/// Ends the program with a line that says which step of the set-up failed.
fn need(what: &str, code: vgpu_test_programs::cuda::sys::CUresult) {
    if let Err(code) = vgpu_test_programs::cuda::check(code) {
        println!("stopped at {what}: {}", vgpu_test_programs::cuda::name(code));
        std::process::exit(1);
    }
}

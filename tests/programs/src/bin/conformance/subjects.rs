//! The subjects, in the order of the output.

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

/// Asks the questions of a subject.
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

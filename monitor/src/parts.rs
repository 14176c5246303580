//! The processes of `vgpu monitor`, which fail apart.
//!
//! ```text
//!  supervisor ── starts, watches ──► enforce ── samples ──► http      nobody; no capability
//!      │                                 └───── samples ──► files ──► writer, one for each container that requests files: its user
//!      └── starts, watches ────────► arbiter
//! ```
//!
//! A process waits neither for another one nor for what another one waits for. Samples go through mailboxes (`mailbox`), in which a reader
//! that is behind misses some. Each part but the writers beats; one that dies or no longer beats is killed and started again, and none outlives
//! the supervisor.

mod arbiter;
mod enforce;
mod files;
mod http;
mod launch;
mod mailbox;
mod publication;
mod pulse;
pub mod supervisor;
mod system;
mod tenant;
mod watchdog;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use launch::Part;

/// Runs one part, in a process that another one started for it, until `stop` is set.
///
/// # Errors
/// This process was not started for the part, or cannot do its work.
pub fn run(part: Part, stop: &Arc<AtomicBool>) -> io::Result<()> {
    let assignment = launch::Assignment::load(part)?;
    match part {
        Part::Enforce => enforce::run(assignment, stop),
        Part::Arbiter => arbiter::run(assignment, stop),
        Part::Http => http::run(assignment),
        Part::Files => files::run(assignment, stop),
        Part::Writer => writer::run(assignment, stop),
    }
}

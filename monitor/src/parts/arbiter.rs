//! Part that gives turns. It does nothing else, so nothing delays it.

use std::io;
use std::sync::atomic::AtomicBool;

use vgpu_oci_hook::state::CONTAINERS;

use super::launch::Assignment;
use super::pulse::Pulse;
use crate::{capabilities, seats};

/// Runs until `stop` is set and all turns are open.
///
/// # Errors
/// The part was not started by the supervisor.
pub fn run(mut assignment: Assignment, stop: &AtomicBool) -> io::Result<()> {
    capabilities::restrict_part(&capabilities::ARBITER);
    assignment.follow_parent()?;
    let [pulse] = assignment.descriptors::<1>()?;
    let mut pulse = Pulse::from(pulse);
    let state_dir = &assignment.settings.state_dir;
    vgpu_arbiter::service::run(&state_dir.join(CONTAINERS), &|dir| seats::gpus_of(state_dir, dir), stop, || pulse.beat());
    Ok(())
}

//! The checks. Each makes its own pods and removes them.

mod errors;
mod forged;
mod life;
mod limits;

use crate::setting::{Outcome, Setting};

/// A check.
type Check = fn(&mut Setting) -> Outcome;

/// Name of the check that hooks have no equivalent of.
pub const WITH_HANDLER_ONLY: &str = "`--set-as-default`";

/// All checks, in order: the last one removes vgpu from CRI-O.
pub const ALL: [(&str, Check); 15] = [
    ("memory beyond the limit is refused", limits::memory_is_refused),
    ("`vgpu show` and `vgpu set` by Kubernetes's names and by id", limits::shown_and_set_by_name),
    ("annotations of the pod, for one container, of the container", limits::annotations_of_pod_and_container),
    ("variables of the container", limits::variables),
    ("others are unchanged", limits::others_are_unchanged),
    ("a sandbox with a process is unchanged", limits::sandbox_is_unchanged),
    ("forged sandboxes are limited", forged::sandbox),
    ("a forged namespace does not opt out", forged::namespace),
    ("a bad value reaches CRI's client", errors::bad_value),
    ("an ended container, and another in its place", life::ended_and_again),
    ("stop and remove leave nothing", life::nothing_is_left),
    ("CRI-O restarts beneath pods", life::restart),
    ("CRI-O is killed beneath pods", life::kill),
    (WITH_HANDLER_ONLY, life::default_handler),
    ("`--undo`", life::undo),
];

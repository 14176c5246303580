//! Warnings about containers that start, for both programs.

use vgpu_config::{Inventory, Policy};

use crate::bundle::Bundle;
use crate::log::Log;
use crate::prepare::{self, Prepared};
use crate::privilege::limits_evadable_by;
use crate::process;

/// Logs that a container without a GPU starts although the policy is invalid.
pub(crate) fn invalid_policy(id: &str, error: &vgpu_config::Error, log: &Log) {
    log.warning(&format!("container {id} has no GPU and starts although the policy is invalid: {error}"));
}

/// Logs what the operator should know of a container that starts: a GPU without limits, a request that was hardly meant, and what weakens
/// its limits. `prepared` is `None` if the container is not changed.
pub(crate) fn container(bundle: &Bundle, policy: &Policy, id: &str, prepared: Option<&Prepared>, log: &Log) {
    let (is_limited, has_gpu) = (prepared.is_some_and(Prepared::is_limited), prepare::has_gpu(bundle, policy));
    if has_gpu && !is_limited {
        log.warning(&format!("container {id} has a GPU and starts without limits"));
    }
    if has_gpu || prepared.is_some() {
        for doubt in prepare::doubts(bundle, policy) {
            log.warning(&format!("container {id} starts, but probably not as meant: {doubt}"));
        }
    }
    let Some(prepared) = prepared else { return };
    if prepared.record.decided.is_some() {
        log.warning(&format!(
            "container {id} gets the limits that \"vgpu set --persist\" keeps for its ID, instead of those of its request"
        ));
    }
    if let Err(damaged) = Inventory::load(&policy.state_dir(process::rootless_user())) {
        log.warning(&format!("container {id} starts as without an inventory of GPUs: {damaged} (\"vgpu inventory\" writes a new one)"));
    }
    if let Some(reason) = limits_evadable_by(&bundle.spec).filter(|_| is_limited) {
        log.warning(&format!("container {id} has {reason}, which allows the evasion of its limits"));
    }
    if let Some((claim, other)) = prepared.claim_sharer() {
        log.warning(&format!("container {id} has a share of the claim {claim} that {other} has, too: each is limited separately"));
    }
}

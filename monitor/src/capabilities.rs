//! Capabilities that `vgpu monitor` keeps as root. All others are dropped before it starts its threads.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use tracing::{debug, warn};

/// Capabilities that the service uses:
/// * `CAP_SYS_PTRACE`: the namespaces and the root of other users' processes in `/proc`.
/// * `CAP_KILL`: ending processes that violate their limits.
/// * `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`: HAMi's region and the trace logs in directories that belong to a container's users.
pub const NEEDED: [Capability; 4] =
    [Capability::CAP_KILL, Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_OVERRIDE, Capability::CAP_DAC_READ_SEARCH];

/// Drops all capabilities but [`NEEDED`] from the calling thread, and from threads and programs that it starts later. Logs what cannot be
/// dropped as a warning. Nothing is ever added, so a process without capabilities stays without.
pub fn drop_unneeded() {
    let needed: CapsHashSet = NEEDED.into_iter().collect();
    // The bounding set goes first, as shrinking it needs CAP_SETPCAP.
    let results = [
        ("bounding", shrink_bounding(&needed)),
        ("ambient", caps::clear(None, CapSet::Ambient)),
        ("inheritable", caps::clear(None, CapSet::Inheritable)),
        ("effective", shrink(CapSet::Effective, &needed)),
        ("permitted", shrink(CapSet::Permitted, &needed)),
    ];
    for (set, result) in results {
        if let Err(error) = result {
            warn!(set, %error, "cannot drop unneeded capabilities");
        }
    }
    debug!(effective = describe(CapSet::Effective), bounding = describe(CapSet::Bounding), "capabilities");
}

/// Without `CAP_SETPCAP` the bounding set stays: the process was started with fewer capabilities already.
fn shrink_bounding(needed: &CapsHashSet) -> Result<(), CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(());
    }
    let unneeded = caps::read(None, CapSet::Bounding)?.into_iter().filter(|capability| !needed.contains(capability));
    unneeded.into_iter().try_for_each(|capability| caps::drop(None, CapSet::Bounding, capability))
}

fn shrink(set: CapSet, needed: &CapsHashSet) -> Result<(), CapsError> {
    let kept = caps::read(None, set)?.intersection(needed).copied().collect();
    caps::set(None, set, &kept)
}

fn describe(set: CapSet) -> String {
    let Ok(found) = caps::read(None, set) else { return "unknown".to_owned() };
    let mut names: Vec<String> = found.iter().map(ToString::to_string).collect();
    names.sort();
    names.join(" ")
}

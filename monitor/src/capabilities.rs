//! What the processes of `vgpu monitor` may do as root. Each gives up the rest before it does anything else.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid, getgid, getgroups, getuid};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tracing::{debug, warn};

/// Capabilities that the supervisor may hand on, and the only ones in the bounding set:
/// * `CAP_KILL`: ending processes that violate their limits, and parts that hang.
/// * `CAP_SYS_PTRACE`: the namespaces and the root of other users' processes in `/proc`.
/// * `CAP_SETUID`, `CAP_SETGID`: becoming a container's user to write its files, and nobody to answer HTTP.
/// * `CAP_DAC_OVERRIDE`: writing turns into limits pages, which nobody has the permission to write.
pub const ALL: [Capability; 5] =
    [Capability::CAP_KILL, Capability::CAP_SYS_PTRACE, Capability::CAP_SETUID, Capability::CAP_SETGID, Capability::CAP_DAC_OVERRIDE];
/// Capabilities of the part that enforces limits.
pub const ENFORCE: [Capability; 2] = [Capability::CAP_KILL, Capability::CAP_SYS_PTRACE];
/// Capabilities of the part that gives turns.
pub const ARBITER: [Capability; 1] = [Capability::CAP_DAC_OVERRIDE];
/// Capabilities of the part that starts the writers of containers' files.
pub const FILES: [Capability; 4] = [Capability::CAP_KILL, Capability::CAP_SYS_PTRACE, Capability::CAP_SETUID, Capability::CAP_SETGID];
/// User and group without rights.
pub const NOBODY: u32 = 65_534;

/// Restricts the calling thread, and what it starts later, to [`ALL`]; it uses only `CAP_KILL` itself. Logs what cannot be dropped as a
/// warning. Nothing is ever added, so a process without capabilities stays without.
pub fn restrict_supervisor() {
    // The bounding set goes first, as shrinking it needs CAP_SETPCAP.
    let bounding = shrink_bounding(&ALL.into_iter().collect());
    restrict(&ALL, &[Capability::CAP_KILL], bounding);
}

/// Restricts the calling thread to `kept`.
pub fn restrict_part(kept: &[Capability]) {
    restrict(kept, kept, Ok(()));
}

/// Keeps `permitted`, and of these `effective` in use. `bounding` is how dropping from the bounding set went.
fn restrict(permitted: &[Capability], effective: &[Capability], bounding: Result<(), CapsError>) {
    let [permitted, effective] = [permitted, effective].map(|kept| kept.iter().copied().collect::<CapsHashSet>());
    let results = [
        ("bounding", bounding),
        ("ambient", caps::clear(None, CapSet::Ambient)),
        ("inheritable", caps::clear(None, CapSet::Inheritable)),
        ("effective", shrink(CapSet::Effective, &effective)),
        ("permitted", shrink(CapSet::Permitted, &permitted)),
    ];
    for (set, result) in results {
        if let Err(error) = result {
            warn!(set, %error, "cannot drop unneeded capabilities");
        }
    }
    if let Err(error) = set_no_new_privs(true) {
        warn!(%error, "cannot renounce new privileges");
    }
    debug!(effective = describe(CapSet::Effective), bounding = describe(CapSet::Bounding), "capabilities");
}

/// User, group and supplementary groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Identity without rights.
    #[must_use]
    pub fn nobody() -> Self {
        Self { uid: NOBODY, gid: NOBODY, groups: Vec::new() }
    }

    /// Returns whether the process has this identity already.
    fn is_current(&self) -> bool {
        let groups = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw);
        (getuid().as_raw(), geteuid().as_raw(), getgid().as_raw()) == (self.uid, self.uid, self.gid)
            && groups.eq(self.groups.iter().copied())
    }

    /// Makes the calling thread, which must be the only one, act with this identity for good and without any capability.
    ///
    /// # Errors
    /// The kernel refuses the change, or the process would keep a capability. The process must then not go on.
    pub fn assume(&self) -> std::io::Result<()> {
        if !self.is_current() {
            let invalid = [self.uid, self.gid].into_iter().chain(self.groups.iter().copied()).any(|id| id == u32::MAX);
            if invalid {
                return Err(Errno::INVAL.into());
            }
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            set_thread_groups(&self.groups.iter().map(|group| Gid::from_raw(*group)).collect::<Vec<_>>())?;
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
        }
        restrict_part(&[]);
        let is_left = |set| caps::read(None, set).map_or(true, |left| !left.is_empty());
        if !self.is_current() || is_left(CapSet::Effective) || is_left(CapSet::Permitted) {
            return Err(std::io::Error::other("the process kept rights that it should have lost"));
        }
        Ok(())
    }
}

/// Without `CAP_SETPCAP` the bounding set stays: the process was started with fewer capabilities already.
fn shrink_bounding(needed: &CapsHashSet) -> Result<(), CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(());
    }
    let unneeded = caps::read(None, CapSet::Bounding)?.into_iter().filter(|capability| !needed.contains(capability));
    unneeded.into_iter().try_for_each(|capability| caps::drop(None, CapSet::Bounding, capability))
}

/// Drops what is not in `needed` from a set.
fn shrink(set: CapSet, needed: &CapsHashSet) -> Result<(), CapsError> {
    let kept = caps::read(None, set)?.intersection(needed).copied().collect();
    caps::set(None, set, &kept)
}

/// Returns the names of a set's capabilities.
fn describe(set: CapSet) -> String {
    let Ok(found) = caps::read(None, set) else { return "unknown".to_owned() };
    let mut names: Vec<String> = found.iter().map(ToString::to_string).collect();
    names.sort();
    names.join(" ")
}

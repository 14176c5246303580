//! The ways in which programs reach the driver's functions.

use crate::PROGRAMS;

/// A program that reaches the driver in one way and then allocates until it is refused.
#[derive(Clone, Debug)]
pub struct Load {
    /// A readable name of the way.
    pub name: &'static str,
    /// The program and its arguments, as a container sees them.
    pub command: String,
    /// Whether preloading the library limits it.
    preloads: bool,
}

impl Load {
    /// Returns whether it is limited under this `intercept` policy.
    #[must_use]
    pub fn is_limited_with(&self, intercept: &str) -> bool {
        intercept != "preload" || self.preloads
    }
}

/// Returns all of them.
#[must_use]
pub fn loads() -> Vec<Load> {
    let load = |name, preloads, program: &str| Load { name, command: format!("{PROGRAMS}/{program}"), preloads };
    vec![
        load("linked", true, "linked"),
        load("dlopen", true, "load dlopen"),
        load("RTLD_DEEPBIND", true, "load deepbind"),
        load("cuGetProcAddress", true, "load procaddress"),
        load("dlopen, NVML too", true, "fill --api cuMemAlloc --chunk 16M --max 4G"),
        load("RTLD_DEEPBIND, a plugin linked to libcuda.so.1", false, &format!("load {PROGRAMS}/plugin.so")),
        load("dlmopen", false, "load dlmopen"),
    ]
}

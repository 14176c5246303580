//! The ways in which programs get at the driver's functions.

use crate::PROGRAMS;

/// A program that gets at the driver in one way, and then allocates until it is refused.
#[derive(Clone, Debug)]
pub struct Load {
    /// The way, for people.
    pub name: &'static str,
    /// The program and its arguments, as a container sees them.
    pub command: String,
    /// Whether the loader's list is enough to hold it.
    preloads: bool,
}

impl Load {
    /// Whether it is held under this policy for interception.
    #[must_use]
    pub fn is_held_by(&self, intercept: &str) -> bool {
        intercept != "preload" || self.preloads
    }
}

/// All of them.
#[must_use]
pub fn loads() -> Vec<Load> {
    let load = |name, preloads, program: &str| Load { name, command: format!("{PROGRAMS}/{program}"), preloads };
    vec![
        load("linked", true, "linked"),
        load("dlopen", true, "load dlopen"),
        load("RTLD_DEEPBIND", true, "load deepbind"),
        load("dlopen, NVML too", true, "fill --api cuMemAlloc --chunk 16M --max 4G"),
        load("RTLD_DEEPBIND, a plugin linked to it", false, &format!("load {PROGRAMS}/plugin.so")),
        load("dlmopen", false, "load dlmopen"),
    ]
}

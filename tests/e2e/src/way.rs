//! The ways in which a container is limited.

use vgpu_test_harness::{Bundle, Host, Outcome, Runtime, can_run};

use crate::{Kit, Running};

/// How a container is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through `vgpu-runtime`.
    Wrapper,
    /// Through the bare runtime, by `vgpu-hook` alone.
    Hooks,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 2] = [Self::Wrapper, Self::Hooks];

    /// Returns a readable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wrapper => "vgpu-runtime",
            Self::Hooks => "hooks only",
        }
    }

    /// Runs a bundle to its end.
    #[must_use]
    pub fn run(self, host: &Host, bundle: Bundle) -> Outcome {
        match self {
            Self::Wrapper => host.run(&bundle),
            Self::Hooks => host.run_bare(&host.with_hooks(bundle)),
        }
    }

    /// Starts a bundle and returns while it runs.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(self, host: &Host, bundle: Bundle) -> Running {
        match self {
            Self::Wrapper => Running::start(host.command(), host.bare_command(), bundle),
            Self::Hooks => Running::start(host.bare_command(), host.bare_command(), host.with_hooks(bundle)),
        }
    }
}

/// Creates a host with the programs of the kit.
#[must_use]
pub fn host(kit: &Kit, runtime: Runtime) -> Host {
    Host::new(runtime, kit.path(), &kit.library())
}

/// Returns a host for each installed runtime and each way.
pub fn hosts(kit: &Kit) -> impl Iterator<Item = (Runtime, Way, Host)> {
    let runtimes = [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime));
    runtimes.flat_map(move |runtime| Way::ALL.map(|way| (runtime, way, host(kit, runtime))))
}

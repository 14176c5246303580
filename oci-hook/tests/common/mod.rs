//! Hosts for these tests.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::Path;

use vgpu_test_harness::{Bundle, Host, Outcome, Runtime, can_run};

/// The runtimes that are installed.
pub fn runtimes() -> impl Iterator<Item = Runtime> {
    [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime))
}

/// A host with a stand-in for the library and the programs under test.
pub fn host(runtime: Runtime) -> Host {
    let programs = Path::new(env!("CARGO_BIN_EXE_vgpu-runtime")).parent().expect("a program is in a folder");
    Host::with_stand_in(runtime, programs)
}

/// How a container gets limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through `vgpu-runtime`.
    Wrapper,
    /// By the hook at `createRuntime`.
    Hooks,
    /// By hooks at `prestart`, `createContainer` and `poststop`, as the last two were registered once.
    Prestart,
}

impl Way {
    /// Runs a bundle this way.
    pub fn run(self, host: &Host, bundle: Bundle) -> Outcome {
        let config = host.policy_file();
        let config = config.to_str().expect("a plain path");
        match self {
            Self::Wrapper => host.run(&bundle),
            Self::Hooks => host.run_bare(&host.with_hooks(bundle)),
            Self::Prestart => {
                let stages = [("prestart", "prestart"), ("createContainer", "create-container"), ("poststop", "poststop")];
                let hooked =
                    stages.iter().fold(bundle, |bundle, (key, stage)| bundle.hook(key, &host.hook(), &[stage, "--config", config]));
                host.run_bare(&hooked)
            }
        }
    }
}

/// Tries something with every runtime that is installed and in every way, each time on a fresh host.
pub fn each_way(test: impl Fn(&Host, Way)) {
    for runtime in runtimes() {
        for way in [Way::Wrapper, Way::Hooks, Way::Prestart] {
            eprintln!("{runtime:?}, {way:?}");
            test(&host(runtime), way);
        }
    }
}

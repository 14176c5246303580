//! Hosts and runtimes for these tests.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::path::Path;

use vgpu_test_harness::{Bundle, Host, Outcome, Runtime, can_run};

/// Returns the installed runtimes.
pub fn runtimes() -> impl Iterator<Item = Runtime> {
    [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime))
}

/// Returns a host with the programs under test and a stand-in for the library.
pub fn host(runtime: Runtime) -> Host {
    let programs = Path::new(env!("CARGO_BIN_EXE_vgpu-runtime")).parent().expect("the program is in a directory");
    Host::with_stand_in(runtime, programs)
}

/// Gives a bundle the id of its own container as an annotation, as sandboxes have it.
pub fn own_id(bundle: Bundle, key: &str) -> Bundle {
    let id = format!("vgpu-sandbox-{}", bundle.path().file_name().and_then(|name| name.to_str()).expect("a folder with a UTF-8 name"));
    bundle.annotation(key, &id).with_id(&id)
}

/// A way of limiting a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through `vgpu-runtime`.
    Wrapper,
    /// By a `createRuntime` hook.
    Hooks,
    /// By `prestart`, `createContainer` and `poststop` hooks, of which earlier versions registered the last two.
    Prestart,
}

impl Way {
    /// Runs a bundle, limited in this way.
    pub fn run(self, host: &Host, bundle: Bundle) -> Outcome {
        let config = host.policy_file();
        let config = config.to_str().expect("the path is UTF-8");
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

/// Runs a test with every installed runtime and in every way, each time on a new host.
pub fn each_way(test: impl Fn(&Host, Way)) {
    for runtime in runtimes() {
        for way in [Way::Wrapper, Way::Hooks, Way::Prestart] {
            eprintln!("{runtime:?}, {way:?}");
            test(&host(runtime), way);
        }
    }
}

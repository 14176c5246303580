//! The real `vgpu-runtime` and `vgpu-hook`, with a policy and a state of one test's own.

use crate::script;
use std::fs;
use std::path::{Path, PathBuf};
use vgpu_test_harness::{Host, Runtime};

/// Prints what a container sees of vgpu, and tries to be rid of it.
pub const PROBE: &str = "ls /usr/local/vgpu 2>/dev/null; cat /etc/ld.so.preload 2>/dev/null; \
    rm -f /etc/ld.so.preload /usr/local/vgpu/limits 2>/dev/null && test -e /usr/local/vgpu && echo removed; \
    (echo x > /usr/local/vgpu/limits) 2>/dev/null && echo written; echo end";

/// What [`PROBE`] prints in a container that is limited.
pub const IS_LIMITED: &str = "libvgpu.so\nlimits\nregion\n/usr/local/vgpu/libvgpu.so\nend\n";

/// What it prints in one that is not.
pub const IS_UNLIMITED: &str = "end\n";

/// vgpu as it would be installed.
#[derive(Debug)]
pub struct Installation(Host);

impl Installation {
    /// The programs are in `VGPU_PROGRAMS`, or where cargo puts them in this build.
    pub fn new() -> Self {
        Self::with_runtime(Runtime::Runc)
    }

    /// The same in front of another low-level runtime, and of no other.
    pub fn with_runtime(runtime: Runtime) -> Self {
        let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.to_owned());
        let programs = std::env::var_os("VGPU_PROGRAMS").map(PathBuf::from).or_else(built).expect("this test has a path");
        assert!(programs.join("vgpu-runtime").exists(), "build vgpu-runtime first, or set VGPU_PROGRAMS to its folder");
        let host = Host::with_stand_in(runtime, &programs);
        let policy = host.policy_file();
        let runtime = programs.join("vgpu-runtime");
        script(&host.library().with_file_name("runtime"), &format!("VGPU_CONFIG={} exec {} \"$@\"", policy.display(), runtime.display()));
        let hook = format!("exec {} \"$@\" --config {}", host.hook().display(), policy.display());
        script(&host.library().with_file_name("hook"), &hook);
        Self(host)
    }

    /// The runtime, with its policy.
    pub fn runtime(&self) -> PathBuf {
        self.0.library().with_file_name("runtime")
    }

    /// The same for ordinary users, who keep what they run in folders of their own.
    pub fn for_users() -> Self {
        let this = Self::new();
        let text = format!("library = {:?}\nruntimes = [\"runc\"]\n", this.0.library());
        fs::write(this.0.policy_file(), text).expect("the folder can be written");
        this
    }

    /// The hook, with its policy.
    pub fn hook(&self) -> PathBuf {
        self.0.library().with_file_name("hook")
    }

    /// The containers that are on record.
    pub fn containers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.state_dir().join("containers"));
        entries.map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
    }

    /// The record of the only container that there is.
    pub fn record(&self) -> serde_json::Value {
        let containers = self.containers();
        let [one] = containers.as_slice() else { panic!("one container is on record: {containers:?}") };
        read(&one.join("container.json"))
    }
}

impl Default for Installation {
    fn default() -> Self {
        Self::new()
    }
}

fn read(path: &Path) -> serde_json::Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("the record is JSON")
}

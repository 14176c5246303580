//! The real `vgpu-runtime` and `vgpu-hook` with a private policy and state.

use crate::command::{run, script};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_test_harness::{Host, Runtime};

/// Shell script that prints the files of vgpu in a container and tries to remove or change them.
pub const PROBE: &str = "ls /usr/local/vgpu 2>/dev/null; cat /etc/ld.so.preload 2>/dev/null; \
    rm -f /etc/ld.so.preload /usr/local/vgpu/limits 2>/dev/null && test -e /usr/local/vgpu && echo removed; \
    (echo x > /usr/local/vgpu/limits) 2>/dev/null && echo written; echo end";

/// Output of [`PROBE`] in a limited container.
pub const IS_LIMITED: &str = "driver\nlibvgpu.so\nlimits\nregion\n/usr/local/vgpu/libvgpu.so\nend\n";

/// Output of [`PROBE`] in a container without limits.
pub const IS_UNLIMITED: &str = "end\n";

/// vgpu as installed on a host.
#[derive(Debug)]
pub struct Installation(Host);

impl Installation {
    /// Creates an installation in front of runc. The programs are in `VGPU_PROGRAMS`, else in cargo's output folder.
    pub fn new() -> Self {
        Self::with_runtime(Runtime::Runc)
    }

    /// Creates an installation in front of this low-level runtime only.
    pub fn with_runtime(runtime: Runtime) -> Self {
        let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.to_owned());
        let programs = std::env::var_os("VGPU_PROGRAMS").map(PathBuf::from).or_else(built).expect("the test executable has a path");
        assert!(programs.join("vgpu-runtime").exists(), "build vgpu-runtime first, or set VGPU_PROGRAMS to its folder");
        let host = Host::with_stand_in(runtime, &programs);
        let policy = host.policy_file();
        let runtime = programs.join("vgpu-runtime");
        script(&host.library().with_file_name("runtime"), &format!("VGPU_CONFIG={} exec {} \"$@\"", policy.display(), runtime.display()));
        let hook = format!("exec {} \"$@\" --config {}", host.hook().display(), policy.display());
        script(&host.library().with_file_name("hook"), &hook);
        Self(host)
    }

    /// Returns the path of a script that runs `vgpu-runtime` with the policy.
    pub fn runtime(&self) -> PathBuf {
        self.0.library().with_file_name("runtime")
    }

    /// Creates an installation for rootless users, whose state is in their own folders.
    pub fn for_users() -> Self {
        let this = Self::new();
        let text = format!("library = {:?}\nruntimes = [\"runc\"]\n", this.0.library());
        fs::write(this.0.policy_file(), text).expect("the folder is writable");
        this
    }

    /// Returns the path of a script that runs `vgpu-hook` with the policy.
    pub fn hook(&self) -> PathBuf {
        self.0.library().with_file_name("hook")
    }

    /// Returns the folders of the recorded containers.
    pub fn containers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.state_dir().join("containers"));
        entries.map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
    }

    /// Returns a script that runs `vgpu` with the policy, in a folder that every user can reach.
    ///
    /// # Panics
    /// `vgpu` has not been built.
    pub fn vgpu(&self) -> PathBuf {
        let folder = self.0.library().with_file_name("bin");
        let path = folder.join("vgpu");
        if !path.exists() {
            let built = std::env::current_exe().expect("the test executable has a path");
            let built = built.ancestors().nth(2).expect("cargo's output folder").join("vgpu");
            fs::create_dir_all(&folder).expect("the folder is writable");
            fs::copy(&built, folder.join("program")).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
            script(&path, &format!("VGPU_CONFIG={} exec {} \"$@\"", self.0.policy_file().display(), folder.join("program").display()));
        }
        path
    }

    /// Returns what `vgpu` prints with these arguments.
    pub fn vgpu_says(&self, args: &[&str]) -> String {
        run(Command::new(self.vgpu()).args(args))
    }

    /// Returns the record of the only container.
    pub fn record(&self) -> serde_json::Value {
        let containers = self.containers();
        let [one] = containers.as_slice() else { panic!("expected one recorded container: {containers:?}") };
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

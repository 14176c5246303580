//! Releases of the daemons: the system's, and unpacked ones.

use std::path::PathBuf;
use std::process::Command;
use vgpu_test_harness::Runtime;

/// Release of a daemon to test with.
#[derive(Debug, Clone)]
pub struct Release {
    /// Name for messages.
    pub name: String,
    /// Program folders that precede the system's; empty for the system's release.
    folders: Vec<PathBuf>,
}

impl Release {
    /// Returns the system's release of `program` and each unpacked one in `VGPU_TEST_RELEASES` (folders separated by colons, created by
    /// `tests/daemons/newer.sh`).
    pub fn all(program: &str) -> Vec<Self> {
        let mut out = vec![Self { name: "the system's".into(), folders: Vec::new() }];
        for root in std::env::split_paths(&std::env::var_os("VGPU_TEST_RELEASES").unwrap_or_default()) {
            let folders = vec![root.join("usr/bin"), root.join("usr/sbin")];
            if folders.iter().any(|folder| folder.join(program).exists()) {
                out.push(Self { name: root.display().to_string(), folders });
            }
        }
        out
    }

    /// Returns the low-level runtimes that it works with. The system's crun may not support the specification of a later release.
    pub fn runtimes(&self) -> Vec<Runtime> {
        if self.folders.is_empty() { vec![Runtime::Runc, Runtime::Crun] } else { vec![Runtime::Runc] }
    }

    /// Returns a command for a program of this release, with its folders on the PATH.
    pub fn command(&self, program: &str) -> Command {
        self.command_for(Runtime::Runc, program)
    }

    /// Returns a command for a program of this release in an environment that this low-level runtime supports.
    pub fn command_for(&self, runtime: Runtime, program: &str) -> Command {
        let system = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(self.folders.iter().cloned().chain(std::env::split_paths(&system)).chain(["/usr/sbin".into()]));
        let own = self.folders.iter().map(|folder| folder.join(program)).find(|path| path.exists());
        let mut command = runtime.command(&own.unwrap_or_else(|| program.into()));
        command.env("PATH", path.expect("folders without colons"));
        command
    }
}

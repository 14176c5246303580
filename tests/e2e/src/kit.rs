//! The build under test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that `scripts/build.sh` creates: the library, `vgpu-runtime`, `vgpu-hook`, and the folders `simgpu` and `programs`.
#[derive(Clone, Debug)]
pub struct Kit(PathBuf);

impl Kit {
    /// Finds the kit: the folder in `VGPU_TEST_KIT`, else a folder called `kit` next to this program or above it.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn find() -> Self {
        let named = std::env::var_os("VGPU_TEST_KIT").map(PathBuf::from);
        let this = std::env::current_exe().expect("this program has a path");
        let above = || this.ancestors().map(|folder| folder.join("kit")).find(|kit| kit.join("libvgpu.so").is_file());
        let found = named.or_else(above).expect("no build to test: run scripts/build.sh, or name a build in VGPU_TEST_KIT");
        Self(found.canonicalize().expect("the folder of the build exists"))
    }

    /// Returns its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.0.join("libvgpu.so")
    }

    /// Returns the folder of the simulated driver.
    #[must_use]
    pub fn simgpu(&self) -> PathBuf {
        self.0.join("simgpu")
    }

    /// Returns the folder of the programs that run in containers.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }

    /// Runs `simgpu-ctl` on the simulated GPU with this state file and returns its output.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn simgpu_ctl(&self, state: &Path, args: &[&str]) -> String {
        let output = Command::new(self.simgpu().join("simgpu-ctl")).env("SIMGPU_STATE", state).args(args).output().unwrap();
        assert!(output.status.success(), "simgpu-ctl {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

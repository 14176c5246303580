//! What the build made.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that `scripts/build.sh` lays out: the library, `vgpu-runtime`, `vgpu-hook`, and the folders `simgpu` and `programs`.
#[derive(Clone, Debug)]
pub struct Kit(PathBuf);

impl Kit {
    /// Finds it: where `VGPU_TEST_KIT` says, else in a folder called `kit` beside this program or above.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn find() -> Self {
        let named = std::env::var_os("VGPU_TEST_KIT").map(PathBuf::from);
        let this = std::env::current_exe().expect("this program has a path");
        let above = || this.ancestors().map(|folder| folder.join("kit")).find(|kit| kit.join("libvgpu.so").is_file());
        let found = named.or_else(above).expect("no build to test: scripts/build.sh makes one, or VGPU_TEST_KIT names one");
        Self(found.canonicalize().expect("the folder of the build is there"))
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.0.join("libvgpu.so")
    }

    /// The simulated driver's folder.
    #[must_use]
    pub fn simgpu(&self) -> PathBuf {
        self.0.join("simgpu")
    }

    /// The folder of the programs that are run in containers.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }

    /// What `simgpu-ctl` answers about the simulated GPU whose state is this file.
    ///
    /// # Panics
    /// It fails.
    #[must_use]
    pub fn simgpu_ctl(&self, state: &Path, args: &[&str]) -> String {
        let output = Command::new(self.simgpu().join("simgpu-ctl")).env("SIMGPU_STATE", state).args(args).output().unwrap();
        assert!(output.status.success(), "simgpu-ctl {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

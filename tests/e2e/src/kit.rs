//! The build under test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that `scripts/build.sh` creates: the library, `vgpu-runtime`, `vgpu-hook`, and the folders `simgpu` and `programs`.
#[derive(Clone, Debug)]
pub struct Kit {
    folder: PathBuf,
    /// Driver that the simulated one plays; driver 580 if `None`.
    driver: Option<String>,
}

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
        let folder = found.canonicalize().expect("the folder of the build exists");
        Self { folder, driver: std::env::var("VGPU_TEST_DRIVER").ok() }
    }

    /// Returns the kit with a simulated driver that plays another one: 470, 535, or next, which is newer than all that vgpu knows.
    #[must_use]
    pub fn playing(self, driver: &str) -> Self {
        Self { driver: Some(driver.to_owned()), ..self }
    }

    /// Returns its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.folder.join("libvgpu.so")
    }

    /// Returns the folder of the simulated driver: driver 580, or the one that `VGPU_TEST_DRIVER` names (470, 535, next).
    #[must_use]
    pub fn simgpu(&self) -> PathBuf {
        self.folder.join(self.driver.as_ref().map_or("simgpu".to_owned(), |driver| format!("simgpu-{driver}")))
    }

    /// Returns the folder of the programs that run in containers.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.folder.join("programs")
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

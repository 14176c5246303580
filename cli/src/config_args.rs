//! The option `--config`, shared by all subcommands that look at containers.

use std::path::PathBuf;
use vgpu_config::{Policy, policy};
use vgpu_oci_hook::process::rootless_user;

/// Location of the policy file, and through it of the state directory.
#[derive(Debug, Clone, clap::Args)]
pub struct ConfigArgs {
    /// Policy file (default: $VGPU_CONFIG, or /etc/vgpu/config.toml)
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Loads the policy.
    pub(crate) fn policy(&self) -> vgpu_config::Result<Policy> {
        let path = self.config.clone().or_else(|| std::env::var_os(policy::VARIABLE).map(PathBuf::from));
        Policy::load(path.as_deref())
    }

    /// Returns the state directory: the policy's, or the default for the current user.
    pub(crate) fn state_dir(&self) -> vgpu_config::Result<PathBuf> {
        Ok(self.policy()?.state_dir(rootless_user()))
    }
}

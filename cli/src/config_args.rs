//! Where the host's state is: what every subcommand that looks at containers is told in the same way.

use std::path::PathBuf;
use vgpu_config::{Policy, policy};
use vgpu_oci_hook::process::rootless_user;

/// Where to look.
#[derive(Debug, Clone, clap::Args)]
pub struct ConfigArgs {
    /// The policy file, where it is not /etc/vgpu/config.toml (or what VGPU_CONFIG names)
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    /// What the operator says.
    pub(crate) fn policy(&self) -> vgpu_config::Result<Policy> {
        let named = self.config.clone().or_else(|| std::env::var_os(policy::VARIABLE).map(PathBuf::from));
        Policy::load(named.as_deref())
    }

    /// The state directory.
    pub(crate) fn state_dir(&self) -> vgpu_config::Result<PathBuf> {
        Ok(self.policy()?.state_dir(rootless_user()))
    }
}

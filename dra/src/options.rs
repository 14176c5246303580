//! `vgpu-dra`'s command line.

use std::path::PathBuf;

use crate::cdi;
use crate::names::DRIVER;

/// Offer this machine's GPUs to Kubernetes in shares: a kubelet plugin for dynamic resource allocation
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "vgpu-dra", version)]
pub struct Options {
    /// This node's name in the cluster
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node: String,
    /// How the cluster is reached, where that is not from inside
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where the kubelet looks for plugins
    #[arg(long = "registry", value_name = "FOLDER", default_value = "/var/lib/kubelet/plugins_registry")]
    pub registry_dir: PathBuf,
    /// Where this plugin has its socket and its checkpoint
    #[arg(long = "plugin", value_name = "FOLDER", default_value = "/var/lib/kubelet/plugins/gpu.vgpu")]
    pub plugin_dir: PathBuf,
    /// Where the container runtime looks for CDI specifications
    #[arg(long = "cdi", value_name = "FOLDER", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// The state directory of vgpu-runtime and vgpu-hook
    #[arg(long, value_name = "FOLDER", default_value = "/run/vgpu")]
    pub state_dir: PathBuf,
    /// How the GPU itself gets into containers
    #[arg(long = "devices", value_enum, default_value = "cdi")]
    pub device_injection: cdi::DeviceInjection,
    /// The kind of NVIDIA's CDI devices, which are to be named by UUIDs
    #[arg(long, value_name = "VENDOR/CLASS", default_value = "nvidia.com/gpu")]
    pub nvidia_kind: String,
    /// vgpu-hook on the node, which limits containers that are not started by vgpu-runtime
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/vgpu-hook")]
    pub hook: PathBuf,
    /// Leave containers alone that are not started by vgpu-runtime
    #[arg(long, conflicts_with = "hook")]
    pub no_hook: bool,
    /// The policy file that vgpu-hook reads, where it is not the usual one
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// A folder of the node that containers with a share see, such as the driver's; may be repeated
    #[arg(long = "mount", value_name = "HOST:CONTAINER", value_parser = cdi::parse_mount)]
    pub mounts: Vec<(PathBuf, String)>,
    /// Read the GPUs from this file, as JSON, rather than from NVML
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// Seconds between two looks at the GPUs
    #[arg(long = "every", value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    pub poll_interval_s: u64,
    /// Print the devices as they would be told to the cluster, as JSON, and do nothing else
    #[arg(long)]
    pub show: bool,
    /// Where sysfs is
    #[arg(long, value_name = "FOLDER", default_value = "/sys", hide = true)]
    pub sysfs: PathBuf,
    /// Where the driver says which device nodes MIG devices need
    #[arg(long, value_name = "FILE", default_value = "/proc/driver/nvidia-caps/mig-minors", hide = true)]
    pub mig_minors: PathBuf,
}

impl Options {
    /// What CDI specifications are made of.
    #[must_use]
    pub fn cdi_config(&self) -> cdi::Config {
        cdi::Config {
            folder: self.cdi_dir.clone(),
            state_dir: self.state_dir.clone(),
            devices: self.device_injection,
            nvidia_kind: self.nvidia_kind.clone(),
            hook: (!self.no_hook).then(|| self.hook.clone()),
            policy: self.policy.clone(),
            mounts: self.mounts.clone(),
            mig_minors: self.mig_minors.clone(),
        }
    }

    /// The socket of the DRA services.
    #[must_use]
    pub fn dra_socket(&self) -> PathBuf {
        self.plugin_dir.join("dra.sock")
    }

    /// The socket by which the kubelet finds us. The kubelet makes its path, escaped, the authority of what it asks there, and what comes
    /// before the @ is where an authority can have such escapes: our HTTP library takes no others.
    #[must_use]
    pub fn registration_socket(&self) -> PathBuf {
        self.registry_dir.join(format!("{DRIVER}-reg@kubelet.sock"))
    }

    /// The checkpoint.
    #[must_use]
    pub fn checkpoint_path(&self) -> PathBuf {
        self.plugin_dir.join("checkpoint.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
        let options = <Options as clap::Parser>::parse_from(["vgpu-dra", "--node", "n", "--no-hook"]);
        assert!(options.cdi_config().hook.is_none());
        assert_eq!(options.plugin_dir, PathBuf::from(format!("/var/lib/kubelet/plugins/{DRIVER}")));
    }
}

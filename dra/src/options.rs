//! Command line of `vgpu-dra`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::cdi;
use crate::names::{DRIVER, is_dns_label};

/// Kubelet plugin for dynamic resource allocation: offers this machine's GPUs to Kubernetes in shares
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "vgpu-dra", version)]
// Its default group id, the name of the type, is that of the flattened log options too.
#[group(skip)]
pub struct Options {
    /// Name of this node in the cluster
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node: String,
    /// Kubeconfig for access from outside the cluster
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Directory in which the kubelet looks for plugin sockets
    #[arg(long = "registry", value_name = "DIR", default_value = "/var/lib/kubelet/plugins_registry")]
    pub registry_dir: PathBuf,
    /// Directory of this plugin's DRA socket and checkpoint
    #[arg(long = "plugin", value_name = "DIR", default_value = "/var/lib/kubelet/plugins/gpu.vgpu")]
    pub plugin_dir: PathBuf,
    /// Directory from which the container runtime reads CDI specifications
    #[arg(long = "cdi", value_name = "DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// State directory of vgpu-runtime and vgpu-hook
    #[arg(long, value_name = "DIR", default_value = "/run/vgpu")]
    pub state_dir: PathBuf,
    /// How the GPU itself is injected into containers
    #[arg(long = "devices", value_name = "MODE", value_enum, default_value = "cdi")]
    pub device_injection: cdi::DeviceInjection,
    /// CDI kind of NVIDIA's devices; its devices must be named by UUID
    #[arg(long, value_name = "VENDOR/CLASS", default_value = "nvidia.com/gpu")]
    pub nvidia_kind: String,
    /// Path of vgpu-hook on the node, which limits containers that vgpu-runtime does not start
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/vgpu-hook")]
    pub hook: PathBuf,
    /// Do not limit containers that vgpu-runtime does not start
    #[arg(long, conflicts_with = "hook")]
    pub no_hook: bool,
    /// Policy file for vgpu-hook; without it, vgpu-hook reads its default file
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Host directory to mount read-only into containers with a share, such as the driver's; repeatable
    #[arg(long = "mount", value_name = "HOST:CONTAINER", value_parser = cdi::parse_mount)]
    pub mounts: Vec<(PathBuf, String)>,
    /// JSON file to read the GPUs from instead of asking NVML
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// Interval in seconds at which the GPUs are polled
    #[arg(long = "every", value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    pub poll_interval_s: u64,
    /// Evict pods from a GPU (taint NoExecute) once NVML has not listed it for this time in seconds; without it, pods are never evicted. A
    /// GPU counts as missing only while NVML answers
    #[arg(long = "evict-after", value_name = "SECONDS")]
    pub evict_after_s: Option<u64>,
    /// Name of this instance, such as the pod's UID: instances with different names can run at once, as during a rolling update
    #[arg(long, env = "POD_UID", value_name = "NAME", value_parser = instance_name)]
    pub instance: Option<String>,
    /// Address to serve /healthz and /metrics on by HTTP
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = vgpu_monitor::http::address)]
    pub listen: Option<SocketAddr>,
    /// Print the devices as JSON, as they would be published, and exit
    #[arg(long)]
    pub show: bool,
    /// Mount point of sysfs
    #[arg(long, value_name = "DIR", default_value = "/sys", hide = true)]
    pub sysfs: PathBuf,
    /// The NVIDIA driver's list of the device nodes of MIG devices
    #[arg(long, value_name = "FILE", default_value = "/proc/driver/nvidia-caps/mig-minors", hide = true)]
    pub mig_minors: PathBuf,
    /// Format and level of the log
    #[command(flatten)]
    pub log: vgpu_logging::Options,
}

impl Options {
    /// Returns the configuration of the CDI specifications.
    #[must_use]
    pub fn cdi_config(&self) -> cdi::Config {
        cdi::Config {
            spec_dir: self.cdi_dir.clone(),
            state_dir: self.state_dir.clone(),
            device_injection: self.device_injection,
            nvidia_kind: self.nvidia_kind.clone(),
            hook: (!self.no_hook).then(|| self.hook.clone()),
            policy: self.policy.clone(),
            mounts: self.mounts.clone(),
            mig_minors: self.mig_minors.clone(),
        }
    }

    /// Returns the path of the DRA services' socket.
    #[must_use]
    pub fn dra_socket(&self) -> PathBuf {
        self.plugin_dir.join(match &self.instance {
            Some(instance) => format!("dra-{instance}.sock"),
            None => "dra.sock".to_owned(),
        })
    }

    /// Returns the path of the registration socket, by which the kubelet discovers the plugin.
    ///
    /// The kubelet sends this path, percent-encoded, as the authority of its requests. The HTTP library under tonic accepts
    /// percent-encoding only in the user information of an authority, that is, before an `@`. Hence the `@` in the name.
    #[must_use]
    pub fn registration_socket(&self) -> PathBuf {
        self.registry_dir.join(match &self.instance {
            Some(instance) => format!("{DRIVER}-{instance}-reg@kubelet.sock"),
            None => format!("{DRIVER}-reg@kubelet.sock"),
        })
    }

    /// Returns the path of the checkpoint.
    #[must_use]
    pub fn checkpoint_path(&self) -> PathBuf {
        self.plugin_dir.join("checkpoint.json")
    }
}

/// Checks the name of an instance, which becomes part of the names of sockets.
fn instance_name(text: &str) -> Result<String, String> {
    if is_dns_label(text) {
        Ok(text.to_owned())
    } else {
        Err("expected at most 63 lower-case letters, digits and inner hyphens".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Options::command().debug_assert();
        let options = <Options as clap::Parser>::parse_from(["vgpu-dra", "--node", "n", "--no-hook"]);
        assert!(options.cdi_config().hook.is_none());
        assert_eq!(options.plugin_dir, PathBuf::from(format!("/var/lib/kubelet/plugins/{DRIVER}")));
    }
}

//! CDI specifications for the container runtime: how a container gets a GPU, and its limits.

mod spec;

use std::path::{Path, PathBuf};

use serde::Serialize;
use vgpu_config::dialect::claims::{FOLDER, Share};
use vgpu_config::dialect::nvidia;

use crate::claim::Grant;
use crate::storage::at_path;
use spec::{CDI_VERSION, Device, DeviceNode, Edits, Hook, Mount, Spec};

/// CDI kind of the devices of claims.
pub const CLAIM_KIND: &str = "vgpu.io/claim";
/// CDI kind of the device that adds the hook.
pub const HOOK_KIND: &str = "vgpu.io/hooks";
/// Name of that device.
const HOOK_DEVICE: &str = "enforce";
/// Seconds after which the container runtime kills the hook.
const HOOK_TIMEOUT_S: u32 = 10;
/// Directory of the share files inside containers.
const CONTAINER_CLAIMS_DIR: &str = "/usr/local/vgpu/claims";

/// How the GPU itself is injected into containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceInjection {
    /// By NVIDIA's CDI specification: its device with the GPU's UUID is listed together with ours.
    Cdi,
    /// By NVIDIA_VISIBLE_DEVICES, for nodes where vgpu-runtime wraps NVIDIA's runtime.
    Runtime,
    /// By device nodes alone; the driver's files come from --mount or are part of the image.
    Nodes,
}

/// Configuration of the CDI specifications.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the CDI specifications.
    pub spec_dir: PathBuf,
    /// State directory of `vgpu-runtime` and `vgpu-hook`.
    pub state_dir: PathBuf,
    /// How the GPU is injected into containers.
    pub device_injection: DeviceInjection,
    /// CDI kind of NVIDIA's devices.
    pub nvidia_kind: String,
    /// Path of `vgpu-hook`; `None` leaves containers that `vgpu-runtime` does not start without limits.
    pub hook: Option<PathBuf>,
    /// Policy file for the hook; `None` for its default.
    pub policy: Option<PathBuf>,
    /// Directories of the host and where containers see them.
    pub mounts: Vec<(PathBuf, String)>,
    /// The NVIDIA driver's list of the device nodes of MIG devices.
    pub mig_minors: PathBuf,
}

/// Path and contents of a file to write.
pub type SpecFile = (PathBuf, Vec<u8>);

/// Returns the name of a claim's share by its index.
fn share_device_name(uid: &str, index: usize) -> String {
    format!("{uid}-{index}")
}

impl Config {
    /// Returns the path of a claim's CDI specification.
    #[must_use]
    pub fn claim_spec_path(&self, uid: &str) -> PathBuf {
        self.spec_dir.join(format!("vgpu.io-claim_{uid}.json"))
    }

    /// Returns the path of the CDI specification with the hook.
    #[must_use]
    pub fn hook_spec_path(&self) -> PathBuf {
        self.spec_dir.join("vgpu.io-hooks.json")
    }

    /// Returns the path of a share file of a claim.
    #[must_use]
    pub fn share_path(&self, uid: &str, index: usize) -> PathBuf {
        self.state_dir.join(FOLDER).join(format!("{}.json", share_device_name(uid, index)))
    }

    /// Returns the CDI devices of a share of a claim.
    #[must_use]
    pub fn device_ids(&self, uid: &str, index: usize, grant: &Grant) -> Vec<String> {
        let mut ids = Vec::new();
        if self.device_injection == DeviceInjection::Cdi {
            ids.push(format!("{}={}", self.nvidia_kind, grant.uuid));
        }
        ids.push(format!("{CLAIM_KIND}={}", share_device_name(uid, index)));
        if self.hook.is_some() && !grant.admin {
            ids.push(format!("{HOOK_KIND}={HOOK_DEVICE}"));
        }
        ids
    }

    /// Returns all files of a claim. The specification is last, as it refers to the others.
    ///
    /// # Errors
    /// The device nodes of a MIG device are unknown.
    pub fn claim_files(&self, uid: &str, claim: &str, grants: &[Grant]) -> Result<Vec<SpecFile>, String> {
        let (mut files, mut devices) = (Vec::new(), Vec::new());
        for (index, grant) in grants.iter().enumerate() {
            // A claim with administrative access observes the device: it has no share, and its containers have no limits.
            if !grant.admin {
                files.push((self.share_path(uid, index), json(&share(claim, grant))));
            }
            let request_index = grants[..index].iter().filter(|other| other.request == grant.request).count();
            let container_edits = self.share_edits(uid, index, grant, request_index)?;
            devices.push(Device { name: share_device_name(uid, index), container_edits });
        }
        files.push((self.claim_spec_path(uid), json(&Spec { cdi_version: CDI_VERSION, kind: CLAIM_KIND, devices, container_edits: None })));
        Ok(files)
    }

    /// Returns the container edits of a share. `request_index` is its index among the shares of its request.
    fn share_edits(&self, uid: &str, index: usize, grant: &Grant, request_index: usize) -> Result<Edits, String> {
        let mut edits = Edits::default();
        // Overrides the image's own value, often "all", for which NVIDIA's runtime would add every GPU.
        let visible = if self.device_injection == DeviceInjection::Runtime { &grant.uuid } else { "void" };
        edits.env.push(format!("{}={visible}", nvidia::VISIBLE));
        if !grant.admin {
            // HAMi's dialect, for programs that read it. vgpu reads the share files, as these variables are ambiguous in a container with
            // several claims.
            edits.env.push(format!("CUDA_DEVICE_MEMORY_LIMIT_{request_index}={}m", grant.memory >> 20));
            if let Some(cores) = grant.cores {
                edits.env.push(format!("CUDA_DEVICE_SM_LIMIT_{request_index}={cores}"));
            }
        }
        if self.device_injection == DeviceInjection::Nodes {
            edits.device_nodes = self.device_nodes(grant)?;
        }
        let mount = |host_path: PathBuf, container_path: String, exec| Mount {
            host_path,
            container_path,
            options: ["rbind", "ro", "nosuid", "nodev", if exec { "exec" } else { "noexec" }],
        };
        if !grant.admin {
            let share_file = format!("{CONTAINER_CLAIMS_DIR}/{}.json", share_device_name(uid, index));
            edits.mounts.push(mount(self.share_path(uid, index), share_file, false));
        }
        edits.mounts.extend(self.mounts.iter().map(|(host, container)| mount(host.clone(), container.clone(), true)));
        Ok(edits)
    }

    fn device_nodes(&self, grant: &Grant) -> Result<Vec<DeviceNode>, String> {
        let mut paths: Vec<String> = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(|name| format!("/dev/{name}")).to_vec();
        if let Some(minor) = grant.minor {
            paths.push(format!("/dev/nvidia{minor}"));
        }
        if let (Some(instance), Some(minor)) = (grant.instance, grant.minor) {
            let table = std::fs::read_to_string(&self.mig_minors).map_err(at_path(&self.mig_minors))?;
            let nodes = mig_device_nodes(&table, minor, instance)
                .ok_or_else(|| format!("{}: no device nodes listed for {}", self.mig_minors.display(), grant.uuid))?;
            paths.extend(nodes);
        }
        Ok(paths.into_iter().map(|path| DeviceNode { path }).collect())
    }

    /// Returns the CDI specification with the hook, which limits a container under any runtime. Under `vgpu-runtime` the container is
    /// limited already, and the hook leaves it alone.
    #[must_use]
    pub fn hook_spec(&self) -> Option<SpecFile> {
        let path = self.hook.as_ref()?;
        let mut args: Vec<String> = ["vgpu-hook", "create-runtime", "--state-dir"].map(str::to_owned).to_vec();
        args.push(self.state_dir.display().to_string());
        if let Some(policy) = &self.policy {
            args.extend(["--config".to_owned(), policy.display().to_string()]);
        }
        let env = vec!["VGPU=1".to_owned()];
        let hook = Hook { hook_name: "createRuntime", path: path.clone(), args, env: env.clone(), timeout: HOOK_TIMEOUT_S };
        // Edits of the specification as a whole apply once, whatever number of devices a container has.
        let edits = Edits { hooks: vec![hook], ..Edits::default() };
        let device = Device { name: HOOK_DEVICE.to_owned(), container_edits: Edits { env, ..Edits::default() } };
        let spec = Spec { cdi_version: CDI_VERSION, kind: HOOK_KIND, devices: vec![device], container_edits: Some(edits) };
        Some((self.hook_spec_path(), json(&spec)))
    }
}

/// Returns the content of the file of a claim's share.
fn share(claim: &str, grant: &Grant) -> Share {
    Share {
        claim: claim.to_owned(),
        gpu: grant.uuid.clone(),
        memory: grant.memory,
        cores: grant.cores,
        cores_soft: grant.cores_soft,
        priority: grant.priority,
        oversubscribe: grant.oversubscribe,
    }
}

/// Formats a file.
fn json(value: &impl Serialize) -> Vec<u8> {
    // Cannot fail: all map keys are strings.
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// Returns the device nodes of a MIG device's GPU instance and compute instance, from `/proc/driver/nvidia-caps/mig-minors`.
fn mig_device_nodes(table: &str, gpu: u32, (instance, compute): (u32, u32)) -> Option<[String; 2]> {
    let node = |capability: String| {
        let minor = table.lines().find_map(|line| line.strip_prefix(capability.as_str())?.trim().parse::<u32>().ok())?;
        Some(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
    };
    Some([node(format!("gpu{gpu}/gi{instance}/access "))?, node(format!("gpu{gpu}/gi{instance}/ci{compute}/access "))?])
}

/// Parses a mount of the form `HOST:CONTAINER`.
///
/// # Errors
/// The text is not two absolute paths.
pub fn parse_mount(text: &str) -> Result<(PathBuf, String), String> {
    let (host, container) = text.split_once(':').ok_or("expected HOST:CONTAINER")?;
    if !Path::new(host).is_absolute() || !Path::new(container).is_absolute() {
        return Err("expected absolute paths".to_owned());
    }
    Ok((host.into(), container.to_owned()))
}

#[cfg(test)]
mod tests;

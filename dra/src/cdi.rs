//! The CDI specifications that the container runtime applies: what of the GPU a container gets, and its limits.

mod spec;

use std::path::{Path, PathBuf};

use serde::Serialize;
use vgpu_config::dialect::claims::{FOLDER, Share};
use vgpu_config::dialect::nvidia;

use crate::claim::Grant;
use spec::{CDI_VERSION, Device, Edits, Hook, Mount, Node, Spec};

/// The kind of claims' devices.
pub const CLAIM_KIND: &str = "vgpu.io/claim";
/// The kind of the one device that brings the hook.
pub const HOOK_KIND: &str = "vgpu.io/hooks";
/// Its name.
const HOOK_DEVICE: &str = "enforce";
/// Where containers see their shares' files.
const CONTAINER_CLAIMS_DIR: &str = "/usr/local/vgpu/claims";
/// How the GPU itself gets into containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceInjection {
    /// By NVIDIA's own CDI specification, whose device with the GPU's UUID is named beside ours.
    Cdi,
    /// By NVIDIA_VISIBLE_DEVICES, for nodes where NVIDIA's runtime is what vgpu-runtime calls.
    Runtime,
    /// By its device nodes alone; the driver's files come by --mount or are in the image.
    Nodes,
}

/// What specifications are made of beside the claim.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder of CDI specifications.
    pub folder: PathBuf,
    /// The state directory of `vgpu-runtime` and `vgpu-hook`.
    pub state_dir: PathBuf,
    /// How the GPU gets into containers.
    pub devices: DeviceInjection,
    /// The kind of NVIDIA's devices.
    pub nvidia_kind: String,
    /// `vgpu-hook`, if containers that do not run by `vgpu-runtime` are to be limited too.
    pub hook: Option<PathBuf>,
    /// The policy file that the hook reads, where it is not the usual one.
    pub policy: Option<PathBuf>,
    /// Folders of the host that containers see, and where.
    pub mounts: Vec<(PathBuf, String)>,
    /// Where the driver says which device nodes MIG devices need.
    pub mig_minors: PathBuf,
}

/// A file to be written: where, and what is in it.
pub type SpecFile = (PathBuf, Vec<u8>);

/// The name of the claim's n-th share.
fn share_device_name(uid: &str, nth: usize) -> String {
    format!("{uid}-{nth}")
}

impl Config {
    /// The claim's CDI specification.
    #[must_use]
    pub fn claim_spec_path(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("vgpu.io-claim_{uid}.json"))
    }

    /// The CDI specification with the hooks.
    #[must_use]
    pub fn hook_spec_path(&self) -> PathBuf {
        self.folder.join("vgpu.io-hooks.json")
    }

    /// The file of the claim's n-th share.
    #[must_use]
    pub fn share_path(&self, uid: &str, nth: usize) -> PathBuf {
        self.state_dir.join(FOLDER).join(format!("{}.json", share_device_name(uid, nth)))
    }

    /// The CDI devices of the claim's n-th share.
    #[must_use]
    pub fn device_ids(&self, uid: &str, nth: usize, grant: &Grant) -> Vec<String> {
        let mut ids = Vec::new();
        if self.devices == DeviceInjection::Cdi {
            ids.push(format!("{}={}", self.nvidia_kind, grant.uuid));
        }
        ids.push(format!("{CLAIM_KIND}={}", share_device_name(uid, nth)));
        if self.hook.is_some() {
            ids.push(format!("{HOOK_KIND}={HOOK_DEVICE}"));
        }
        ids
    }

    /// All files of a claim, the specification last, as it refers to the others.
    ///
    /// # Errors
    /// A MIG device's nodes are not known.
    pub fn claim_files(&self, uid: &str, claim: &str, grants: &[Grant]) -> Result<Vec<SpecFile>, String> {
        let (mut files, mut devices) = (Vec::new(), Vec::new());
        for (nth, grant) in grants.iter().enumerate() {
            let share = Share { claim: claim.to_owned(), gpu: grant.uuid.clone(), memory: grant.memory, cores: grant.cores };
            files.push((self.share_path(uid, nth), json(&share)));
            let before = grants[..nth].iter().filter(|other| other.request == grant.request).count();
            devices.push(Device { name: share_device_name(uid, nth), container_edits: self.edits(uid, nth, grant, before)? });
        }
        files.push((self.claim_spec_path(uid), json(&Spec { cdi_version: CDI_VERSION, kind: CLAIM_KIND, devices, container_edits: None })));
        Ok(files)
    }

    /// What the claim's n-th share changes in a container, being the `place`-th of its request.
    fn edits(&self, uid: &str, nth: usize, grant: &Grant, place: usize) -> Result<Edits, String> {
        let mut edits = Edits::default();
        // Otherwise NVIDIA's runtime would add what the image's own value of this says, which often is all.
        let visible = if self.devices == DeviceInjection::Runtime { &grant.uuid } else { "void" };
        edits.env.push(format!("{}={visible}", nvidia::VISIBLE));
        // HAMi's dialect. Whoever reads the share's file does not need it; where a container has several claims, only that is right.
        edits.env.push(format!("CUDA_DEVICE_MEMORY_LIMIT_{place}={}m", grant.memory >> 20));
        if let Some(cores) = grant.cores {
            edits.env.push(format!("CUDA_DEVICE_SM_LIMIT_{place}={cores}"));
        }
        if self.devices == DeviceInjection::Nodes {
            edits.device_nodes = self.device_nodes(grant)?;
        }
        let mount = |host_path: PathBuf, container_path: String, exec| Mount {
            host_path,
            container_path,
            options: ["rbind", "ro", "nosuid", "nodev", if exec { "exec" } else { "noexec" }],
        };
        edits.mounts.push(mount(self.share_path(uid, nth), format!("{CONTAINER_CLAIMS_DIR}/{}.json", share_device_name(uid, nth)), false));
        edits.mounts.extend(self.mounts.iter().map(|(host, container)| mount(host.clone(), container.clone(), true)));
        Ok(edits)
    }

    fn device_nodes(&self, grant: &Grant) -> Result<Vec<Node>, String> {
        let mut paths: Vec<String> = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(|name| format!("/dev/{name}")).to_vec();
        if let Some(minor) = grant.minor {
            paths.push(format!("/dev/nvidia{minor}"));
        }
        if let (Some(instance), Some(minor)) = (grant.instance, grant.minor) {
            let table = std::fs::read_to_string(&self.mig_minors).map_err(crate::storage::at_path(&self.mig_minors))?;
            paths.extend(
                mig_device_nodes(&table, minor, instance)
                    .ok_or_else(|| format!("{} does not list {}", self.mig_minors.display(), grant.uuid))?,
            );
        }
        Ok(paths.into_iter().map(|path| Node { path }).collect())
    }

    /// The CDI specification with the hook that limits a container whichever runtime starts it. `vgpu-runtime` does the same before it,
    /// and then it leaves the container alone.
    #[must_use]
    pub fn hook_spec(&self) -> Option<SpecFile> {
        let path = self.hook.as_ref()?;
        let mut args: Vec<String> = ["vgpu-hook", "create-runtime", "--state-dir"].map(str::to_owned).to_vec();
        args.push(self.state_dir.display().to_string());
        if let Some(policy) = &self.policy {
            args.extend(["--config".to_owned(), policy.display().to_string()]);
        }
        let hook = Hook { hook_name: "createRuntime", path: path.clone(), args, env: vec!["VGPU=1".to_owned()], timeout: 10 };
        // On the specification itself: then it is there once, however many devices a container has.
        let edits = Edits { hooks: vec![hook], ..Edits::default() };
        let device = Device { name: HOOK_DEVICE.to_owned(), container_edits: Edits { env: vec!["VGPU=1".to_owned()], ..Edits::default() } };
        let spec = Spec { cdi_version: CDI_VERSION, kind: HOOK_KIND, devices: vec![device], container_edits: Some(edits) };
        Some((self.hook_spec_path(), json(&spec)))
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Maps with texts as keys, and nothing that can fail.
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// The nodes with which a MIG device is used, from `/proc/driver/nvidia-caps/mig-minors`.
fn mig_device_nodes(table: &str, gpu: u32, (instance, compute): (u32, u32)) -> Option<[String; 2]> {
    let node = |what: String| {
        let minor = table.lines().find_map(|line| line.strip_prefix(what.as_str())?.trim().parse::<u32>().ok())?;
        Some(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
    };
    Some([node(format!("gpu{gpu}/gi{instance}/access "))?, node(format!("gpu{gpu}/gi{instance}/ci{compute}/access "))?])
}

/// Folders of the host for containers, as `HOST:CONTAINER`.
///
/// # Errors
/// It is not two absolute paths.
pub fn parse_mount(text: &str) -> Result<(PathBuf, String), String> {
    let (host, container) = text.split_once(':').ok_or("accepted is HOST:CONTAINER")?;
    if !Path::new(host).is_absolute() || !Path::new(container).is_absolute() {
        return Err("accepted are absolute paths".to_owned());
    }
    Ok((host.into(), container.to_owned()))
}

#[cfg(test)]
mod tests;

//! Kubernetes resource claims, as prepared by vgpu's DRA plugin.
//!
//! A claim's share is in a file on the host that only the plugin writes, and that is mounted into the container. A tenant cannot forge it,
//! as it could forge variables. The shares of several claims of one GPU add up. HAMi's variables, which a claim has as well, are numbered
//! within that claim, so they are ignored here.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::devices::{Choice, DeviceName, VisibleDevices, uuid};
use crate::error::{Error, Result};
use crate::quantity::{Bytes, Percent};
use crate::request::{GpuRequest, GpuRequests, Request, Spill};
use crate::setting::{Origin, Setting, Sourced};

/// Directory of the claims' files in the state directory.
pub const FOLDER: &str = "claims";

/// The share of one GPU that a device of a claim gives to its containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The claim's namespace and name, for messages.
    pub claim: String,
    /// `GPU-…` or `MIG-…`.
    pub gpu: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// GPU time in percent; `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// GPU time in percent while the GPU is otherwise idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_soft: Option<u32>,
    /// 0 (high) or 1 (normal).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Whether memory beyond the share spills to the host, as far as the operator allows it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oversubscribe: bool,
}

/// The file of a claim that a container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFile {
    /// Path on the host.
    pub path: PathBuf,
    /// Content; `None` if it could not be read.
    pub text: Option<String>,
}

impl ClaimFile {
    /// Returns the path if the source of a mount is a claim's file.
    #[must_use]
    pub fn path_of_mount(source: &Path, state_dir: &Path) -> Option<PathBuf> {
        (source.parent() == Some(&state_dir.join(FOLDER))).then(|| source.to_owned())
    }

    fn share(&self) -> Result<Share> {
        let invalid = |why: String| Error::Invalid { path: self.path.clone(), why };
        let unreadable = || invalid("cannot read the claim's share: expected a prepared claim".to_owned());
        serde_json::from_str(self.text.as_ref().ok_or_else(unreadable)?).map_err(|why| invalid(why.to_string()))
    }
}

/// The sum of the shares of one GPU.
struct Sum {
    memory: Bytes,
    /// `None` is unlimited. May exceed 100.
    cores: Option<u32>,
    /// The sum of the soft shares, where a share without one counts with its hard one; `None` if none has a soft one.
    cores_soft: Option<u32>,
    /// Whether all shares oversubscribe.
    oversubscribe: bool,
    setting: Setting,
}

impl Sum {
    /// Adds a share of the same GPU. GPU time is unlimited if one of the shares is.
    fn add(&mut self, memory: Bytes, share: &Share) {
        self.memory = self.memory.saturating_add(memory);
        let soft = |cores: Option<u32>, soft: Option<u32>| soft.or(cores).unwrap_or_default();
        let total = soft(self.cores, self.cores_soft).saturating_add(soft(share.cores, share.cores_soft));
        self.cores_soft = self.cores_soft.or(share.cores_soft).map(|_| total);
        self.cores = self.cores.zip(share.cores).map(|(one, other)| one.saturating_add(other));
        self.oversubscribe &= share.oversubscribe;
    }

    fn request(self) -> GpuRequest {
        let cores = self.cores.and_then(Percent::new).filter(|&cores| cores < Percent::MAX);
        let setting = self.setting;
        // A soft share beyond the whole GPU is the whole GPU.
        let soft = cores.and(self.cores_soft).and_then(|soft| Percent::new(soft.min(Percent::MAX.get())));
        GpuRequest {
            memory: Some(Sourced { value: self.memory, setting: setting.clone() }),
            cores: cores.map(|value| Sourced { value, setting: setting.clone() }),
            cores_soft: soft.map(|value| Sourced { value, setting: setting.clone() }),
            spill: self.oversubscribe.then_some(Sourced { value: Spill::Allowed, setting }),
            ..GpuRequest::default()
        }
    }
}

/// Reads the shares of all claims, and writes their GPUs into `request`.
///
/// # Errors
/// A file cannot be read or is not a share.
pub fn read(files: &[ClaimFile], request: &mut Request) -> Result<GpuRequests> {
    let mut shares: Vec<(DeviceName, [u8; 16], Sum)> = Vec::new();
    let mut seen: Vec<&Path> = Vec::new();
    for file in files {
        // The same device of a claim, mounted twice, is one share.
        if seen.contains(&file.path.as_path()) {
            continue;
        }
        seen.push(&file.path);
        let share = file.share()?;
        let setting = Setting { origin: Origin::File, key: file.path.display().to_string(), value: share.claim.clone() };
        let gpu = uuid(&share.gpu).ok_or_else(|| setting.refused("a share of a GPU with a UUID"))?;
        let memory = Bytes::new(share.memory).ok_or_else(|| setting.refused("a share with memory of at least 1 byte"))?;
        if share.cores == Some(0) {
            return Err(setting.refused("a share with cores of at least 1 percent"));
        }
        if let Some(value) = share.priority {
            if value > 1 {
                return Err(setting.refused("a share with a priority of 0 or 1"));
            }
            request.demote(Sourced { value, setting: setting.clone() });
        }
        match shares.iter_mut().find(|(_, known, _)| *known == gpu.0) {
            Some((_, _, sum)) => sum.add(memory, &share),
            None => {
                let Share { cores, cores_soft, oversubscribe, .. } = share;
                let sum = Sum { memory, cores, cores_soft, oversubscribe, setting };
                shares.push((DeviceName { text: share.gpu, uuid: Some(gpu) }, gpu.0, sum));
            }
        }
    }
    if shares.is_empty() {
        return Ok(GpuRequests::default());
    }
    // The claim has determined the GPUs. NVIDIA's variable may name only those of the last of several claims, or give none because the
    // GPUs come in another way; then it does not describe the driver capabilities either.
    let gpus = VisibleDevices::List(shares.iter().map(|(name, ..)| name.clone()).collect());
    let before = std::mem::replace(&mut request.visible.devices, gpus);
    match before {
        VisibleDevices::All | VisibleDevices::List(_) => request.visible.is_overridden = before != request.visible.devices,
        VisibleDevices::Nothing | VisibleDevices::Unset => request.driver_capabilities = None,
    }
    request.choice = Choice::default();
    let by_uuid = shares.into_iter().map(|(_, gpu, sum)| (gpu, sum.request())).collect();
    Ok(GpuRequests { by_uuid, ..GpuRequests::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Visible;

    const A: &str = "GPU-11111111-1111-1111-1111-111111111111";
    const B: &str = "GPU-22222222-2222-2222-2222-222222222222";

    fn file(name: &str, gpu: &str, memory: u64, cores: Option<u32>) -> ClaimFile {
        file_of(name, share(gpu, memory, cores))
    }

    fn share(gpu: &str, memory: u64, cores: Option<u32>) -> Share {
        Share { claim: "ns/c".to_owned(), gpu: gpu.to_owned(), memory, cores, cores_soft: None, priority: None, oversubscribe: false }
    }

    fn file_of(name: &str, share: Share) -> ClaimFile {
        ClaimFile { path: format!("/run/vgpu/claims/{name}").into(), text: Some(serde_json::to_string(&share).unwrap()) }
    }

    fn requested(files: &[ClaimFile], gpu: &str) -> (Option<u64>, Option<u32>) {
        let request = read(files, &mut Request::default()).unwrap().for_gpu(None, uuid(gpu));
        (request.memory.map(|memory| memory.value.get()), request.cores.map(|cores| cores.value.get()))
    }

    #[test]
    fn shares_of_one_gpu_add_up() {
        let one = file("1", A, 10, Some(30));
        assert_eq!(requested(&[one.clone(), file("2", A, 5, Some(20))], A), (Some(15), Some(50)));
        assert_eq!(requested(&[one.clone(), file("2", B, 5, Some(20))], A), (Some(10), Some(30)));
        assert_eq!(requested(&[one.clone(), one.clone()], A), (Some(10), Some(30)), "the same device mounted twice");
        assert_eq!(requested(&[one.clone(), file("2", A, 5, Some(70))], A), (Some(15), None), "a sum of 100 percent is unlimited");
        assert_eq!(requested(&[one, file("2", A, 5, None)], A), (Some(15), None), "one share is unlimited");
    }

    #[test]
    fn parameters_of_shares_of_one_gpu_are_combined() {
        let soft = |soft, oversubscribe, priority| Share { cores_soft: soft, oversubscribe, priority, ..share(A, 1, Some(20)) };
        for (one, other, expected) in [
            (soft(Some(50), true, Some(0)), soft(None, true, Some(1)), (Some(70), true, Some(1))),
            (soft(None, true, Some(0)), soft(Some(90), false, None), (Some(100), false, Some(0))),
            (soft(None, false, None), soft(None, false, None), (None, false, None)),
        ] {
            let mut request = Request::default();
            let requests = read(&[file_of("1", one), file_of("2", other)], &mut request).unwrap();
            let gpu = requests.for_gpu(None, uuid(A));
            let priority = request.priority.map(|priority| priority.value);
            assert_eq!((gpu.cores_soft.map(|soft| soft.value.get()), gpu.spill.is_some(), priority), expected);
        }
        assert!(read(&[file_of("1", soft(None, false, Some(2)))], &mut Request::default()).is_err());
    }

    #[test]
    fn claims_override_the_visible_devices() {
        let mut request = Request { visible: Visible::parse("all"), ..Request::default() };
        read(&[file("1", B, 1, None), file("2", A, 1, None)], &mut request).unwrap();
        let VisibleDevices::List(names) = request.visible.devices else { panic!("a list") };
        assert_eq!(names.iter().map(|name| name.text.as_str()).collect::<Vec<_>>(), [B, A]);
        assert!(request.visible.is_overridden, "NVIDIA's runtime has to read the same list");
        for (variable, is_overridden) in [("void", false), (A, false), (B, true)] {
            let mut request = Request { visible: Visible::parse(variable), ..Request::default() };
            read(&[file("1", A, 1, None)], &mut request).unwrap();
            assert_eq!(request.visible.is_overridden, is_overridden, "{variable}");
        }
    }

    #[test]
    fn invalid_shares_are_refused() {
        let missing = ClaimFile { path: "/run/vgpu/claims/1".into(), text: None };
        for (text, expected) in [
            (None, "cannot read"),
            (Some("{"), "EOF"),
            (Some(r#"{"claim":"c","gpu":"0","memory":1}"#), "with a UUID"),
            (Some(r#"{"claim":"c","gpu":"GPU-11111111-1111-1111-1111-111111111111","memory":1,"cores":0}"#), "at least 1 percent"),
            (Some(r#"{"claim":"c","gpu":"GPU-11111111-1111-1111-1111-111111111111","memory":0}"#), "at least 1 byte"),
        ] {
            let file = ClaimFile { text: text.map(str::to_owned), ..missing.clone() };
            let why = read(&[file], &mut Request::default()).unwrap_err().to_string();
            assert!(why.contains(expected) && why.contains("/run/vgpu/claims/1"), "{why}");
        }
    }

    #[test]
    fn only_files_in_the_state_directory_are_claims() {
        let state = Path::new("/run/vgpu");
        assert!(ClaimFile::path_of_mount(Path::new("/run/vgpu/claims/x"), state).is_some());
        for other in
            ["/run/vgpu/claims", "/run/vgpu/claims/../x", "/run/vgpu/claims/x/y", "/tmp/run/vgpu/claims/x", "/run/vgpu/containers/x"]
        {
            assert!(ClaimFile::path_of_mount(Path::new(other), state).is_none(), "{other}");
        }
    }
}

//! Kubernetes' resource claims, as our DRA plugin prepares them.
//!
//! What a claim gives is in a file on the host that only the plugin writes, and the container has that file mounted. So a tenant cannot
//! make shares up, which it could with variables, and several claims in one container stand side by side: their shares of one GPU add
//! up. HAMi's variables, which a claim has as well, are numbered for that claim alone and so mean nothing beside another's.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::devices::{Choice, Given, Name, uuid};
use crate::error::{Error, Result};
use crate::request::{Claim, GpuRequest, Request};
use crate::setting::{Place, Said, Setting};

/// Folder of the claims' files in the state directory.
pub const FOLDER: &str = "claims";

/// What one device of a claim gives to the containers that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The claim's namespace and name, for people.
    pub claim: String,
    /// `GPU-…` or `MIG-…`.
    pub gpu: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// Compute time in percent; no limit if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
}

/// A claim's file that a container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it is on the host.
    pub path: PathBuf,
    /// What it says; `None` if it could not be read.
    pub text: Option<String>,
}

impl File {
    /// The file behind a mount of a container, if it is a claim's.
    #[must_use]
    pub fn behind(source: &Path, state_dir: &Path) -> Option<PathBuf> {
        (source.parent() == Some(&state_dir.join(FOLDER))).then(|| source.to_owned())
    }

    fn share(&self) -> Result<Share> {
        let invalid = |why: String| Error::Invalid { path: self.path.clone(), why };
        let text = self
            .text
            .as_ref()
            .ok_or_else(|| invalid("the claim's share cannot be read: accepted is a claim that is prepared".to_owned()))?;
        serde_json::from_str(text).map_err(|why| invalid(why.to_string()))
    }
}

/// Reads the shares of all claims into a claim, and the GPUs that they give into `request`.
///
/// # Errors
/// A file that cannot be read or is no share.
pub fn read(files: &[File], request: &mut Request) -> Result<Claim> {
    let mut claim = Claim::default();
    let mut gpus: Vec<Name> = Vec::new();
    let mut seen: Vec<&Path> = Vec::new();
    for file in files {
        // The same device of a claim twice is still one share.
        if seen.contains(&file.path.as_path()) {
            continue;
        }
        seen.push(&file.path);
        let share = file.share()?;
        let by = Setting { place: Place::File, key: file.path.display().to_string(), value: share.claim.clone() };
        let gpu = uuid(&share.gpu).ok_or_else(|| by.refused("a share of a GPU with a UUID"))?;
        let said = GpuRequest {
            memory: Some(Said { value: share.memory, by: by.clone() }),
            cores: share.cores.map(|value| Said { value, by }),
            ..GpuRequest::default()
        };
        match claim.by_uuid.get_mut(&gpu.0) {
            Some(known) => *known = sum(std::mem::take(known), said),
            None => {
                claim.by_uuid.insert(gpu.0, said);
                gpus.push(Name { text: share.gpu, uuid: Some(gpu) });
            }
        }
    }
    if !gpus.is_empty() {
        for gpu in claim.by_uuid.values_mut() {
            gpu.cores = gpu.cores.take().filter(|cores| cores.value < 100);
        }
        // Which GPUs these are was decided with the claim. NVIDIA's variable may name only those of the last of several claims, or give
        // none because they come in another way; then it says nothing of the driver either.
        let given = std::mem::replace(&mut request.visible.given, Given::List(gpus));
        match given {
            Given::All | Given::List(_) => request.visible.replaced = given != request.visible.given,
            Given::Nothing | Given::Unsaid => request.driver_capabilities = None,
        }
        request.choice = Choice::default();
    }
    Ok(claim)
}

/// Two shares of one GPU. No limit on time and more of it is no limit.
fn sum(one: GpuRequest, other: GpuRequest) -> GpuRequest {
    fn add<T: std::ops::Add<Output = T>>(one: Option<Said<T>>, other: Option<Said<T>>) -> Option<Said<T>> {
        let (one, other) = (one?, other?);
        Some(Said { value: one.value + other.value, by: one.by })
    }
    GpuRequest { memory: add(one.memory, other.memory), cores: add(one.cores, other.cores), ..GpuRequest::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "GPU-11111111-1111-1111-1111-111111111111";
    const B: &str = "GPU-22222222-2222-2222-2222-222222222222";

    fn file(name: &str, gpu: &str, memory: u64, cores: Option<u32>) -> File {
        let share = Share { claim: "ns/c".to_owned(), gpu: gpu.to_owned(), memory, cores };
        File { path: format!("/run/vgpu/claims/{name}").into(), text: Some(serde_json::to_string(&share).unwrap()) }
    }

    fn said(files: &[File], gpu: &str) -> (Option<u64>, Option<u32>) {
        let said = read(files, &mut Request::default()).unwrap().for_gpu(None, uuid(gpu));
        (said.memory.map(|said| said.value), said.cores.map(|said| said.value))
    }

    #[test]
    fn shares_of_one_gpu_add_up() {
        let one = file("1", A, 10, Some(30));
        assert_eq!(said(&[one.clone(), file("2", A, 5, Some(20))], A), (Some(15), Some(50)));
        assert_eq!(said(&[one.clone(), file("2", B, 5, Some(20))], A), (Some(10), Some(30)));
        assert_eq!(said(&[one.clone(), one.clone()], A), (Some(10), Some(30)), "the same device twice");
        assert_eq!(said(&[one.clone(), file("2", A, 5, Some(70))], A), (Some(15), None), "all of its time");
        assert_eq!(said(&[one, file("2", A, 5, None)], A), (Some(15), None), "no limit on its time");
    }

    #[test]
    fn a_container_has_the_gpus_of_its_claims_whatever_its_image_says() {
        let mut request = Request { visible: crate::devices::Visible::parse("all"), ..Request::default() };
        read(&[file("1", B, 1, None), file("2", A, 1, None)], &mut request).unwrap();
        let Given::List(names) = request.visible.given else { panic!("a list") };
        assert_eq!(names.iter().map(|name| name.text.as_str()).collect::<Vec<_>>(), [B, A]);
        assert!(request.visible.replaced, "what NVIDIA's runtime reads has to say so too");
        for (variable, replaced) in [("void", false), (A, false), (B, true)] {
            let mut request = Request { visible: crate::devices::Visible::parse(variable), ..Request::default() };
            read(&[file("1", A, 1, None)], &mut request).unwrap();
            assert_eq!(request.visible.replaced, replaced, "{variable}");
        }
    }

    #[test]
    fn a_share_that_cannot_be_read_is_no_share_without_limits() {
        let missing = File { path: "/run/vgpu/claims/1".into(), text: None };
        for (text, expected) in
            [(None, "cannot be read"), (Some("{"), "EOF"), (Some(r#"{"claim":"c","gpu":"0","memory":1}"#), "with a UUID")]
        {
            let file = File { text: text.map(str::to_owned), ..missing.clone() };
            let why = read(&[file], &mut Request::default()).unwrap_err().to_string();
            assert!(why.contains(expected) && why.contains("/run/vgpu/claims/1"), "{why}");
        }
    }

    #[test]
    fn only_files_in_the_hosts_own_folder_are_claims() {
        let state = Path::new("/run/vgpu");
        assert!(File::behind(Path::new("/run/vgpu/claims/x"), state).is_some());
        for other in
            ["/run/vgpu/claims", "/run/vgpu/claims/../x", "/run/vgpu/claims/x/y", "/tmp/run/vgpu/claims/x", "/run/vgpu/containers/x"]
        {
            assert!(File::behind(Path::new(other), state).is_none(), "{other}");
        }
    }
}

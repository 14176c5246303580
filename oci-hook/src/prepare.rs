//! Steps that `vgpu-runtime` and `vgpu-hook` share: decide the limits of a bundle's container, check that mounting into its image is
//! safe, and write the container's directory on the host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vgpu_config::dialect::claims::{ClaimFile, Share};
use vgpu_config::dialect::misspelt;
use vgpu_config::limits::Mps;
use vgpu_config::policy::Admission;
use vgpu_config::{Inventory, Limits, Policy};
use vgpu_region::paths;

use crate::bundle::Bundle;
use crate::edits::{self, Edits};
use crate::error::{Error, Result};
use crate::path::{absolute, normalize};
use crate::process::{self, Process};
use crate::record::Record;
use crate::rootfs::{self, Rootfs};
use crate::state::{self, Access, Files, State};
use crate::{driver, library, persistent, plan, preload_list};

/// Maximum size in bytes of a file that limits are read from.
const MAX_LIMITS_FILE: usize = 4096;

/// Decides the limits of the container in this bundle. `None` if it is not changed.
///
/// A damaged inventory counts as none, as where `vgpu monitor` has not run yet. A request that needs it is refused.
///
/// # Errors
/// The request is not documented, not allowed, or cannot be met.
pub fn limits(bundle: &Bundle, policy: &Policy) -> Result<Option<Limits>> {
    let state_dir = policy.state_dir(process::rootless_user());
    // No link is followed: the file's folder may be a volume that the container's user writes.
    let read = |path: &Path| Rootfs::open(path.parent()?).ok()?.read(path.file_name()?.to_str()?, MAX_LIMITS_FILE).ok()?;
    let request = plan::request(&bundle.spec, &state_dir, read)?;
    if !plan::is_gpu_container(&bundle.spec, &request, policy, &state_dir) {
        return Ok(None);
    }
    misspelt::check(&bundle.spec.annotations(), &bundle.spec.env())?;
    let inventory = Inventory::load(&state_dir);
    let known = inventory.as_ref().ok().and_then(Option::as_ref);
    let limits = plan::decide(&bundle.spec, &request, policy, known).map_err(|refused| match &inventory {
        Ok(_) => refused,
        Err(damaged) => Error::Other(format!("{refused}; {damaged}")),
    })?;
    // Without the daemon, the library enforces the limit on GPU time.
    let pipes = policy.mps.pipe_directory.as_ref().filter(|pipes| pipes.join("control").exists());
    Ok(limits.map(|limits| Limits { mps: pipes.and_then(|pipes| Mps::of(&limits, pipes)), ..limits }))
}

/// Describes what the container requests but hardly means, for the log.
#[must_use]
pub fn doubts(bundle: &Bundle, policy: &Policy) -> Vec<String> {
    let state_dir = policy.state_dir(process::rootless_user());
    let request = plan::request(&bundle.spec, &state_dir, |_| None).unwrap_or_default();
    vgpu_config::doubts(&request, policy, Inventory::load(&state_dir).ok().flatten().as_ref())
}

/// Returns whether the container with this id is a pod's sandbox, which is passed on unchanged.
#[must_use]
pub fn is_sandbox(bundle: &Bundle, id: &str, policy: &Policy) -> bool {
    plan::is_sandbox(&bundle.spec, id, policy, &policy.state_dir(process::rootless_user()))
}

/// Returns whether the bundle's container gets a GPU.
#[must_use]
pub fn has_gpu(bundle: &Bundle, policy: &Policy) -> bool {
    plan::has_gpu(&bundle.spec, policy, &policy.state_dir(process::rootless_user()))
}

/// Returns whether an invalid policy must stop the bundle's container: it requests a limit, or it may have a GPU. Which device nodes are a
/// GPU's besides NVIDIA's is in the policy, so any device counts.
#[must_use]
pub fn needs_policy(bundle: &Bundle) -> bool {
    let policy = Policy::default();
    let state_dir = policy.state_dir(process::rootless_user());
    let may_be_limited = |request| plan::is_gpu_container(&bundle.spec, &request, &policy, &state_dir);
    bundle.spec.device_paths().next().is_some() || plan::request(&bundle.spec, &state_dir, |_| None).map_or(true, may_be_limited)
}

/// A container whose image has been checked and whose directory can be written.
#[derive(Debug)]
pub struct Prepared {
    state: State,
    /// The container's directory on the host.
    dir: PathBuf,
    /// The container's record.
    pub record: Record,
    /// The content of `/etc/ld.so.preload`, if that is used.
    preload: Option<String>,
    /// Who gets through the container's directory on the host.
    access: Access,
    /// The files of the claims that the container has shares of.
    claims: BTreeSet<PathBuf>,
    /// Whether no other container may have a share of these claims.
    has_exclusive_claims: bool,
    /// Whether processes of the container must not create user namespaces.
    denies_user_namespaces: bool,
}

impl Prepared {
    /// Performs all checks that do not require writing.
    ///
    /// # Errors
    /// The id, the library or the image cannot be used.
    pub fn new(bundle: &Bundle, policy: &Policy, limits: Limits, id: &str) -> Result<Self> {
        let state = State::at(&policy.state_dir(process::rootless_user()));
        state::check_id(id)?;
        let (limits, decided) = persistent::apply(state.dir(), id, &bundle.dir, limits);
        let (library, dir, preload) = if limits.is_limited() {
            (library::find(policy)?, state.reserve(id, &bundle.dir)?, check_rootfs(bundle, policy, &state)?)
        } else {
            Default::default()
        };
        let record = Record { decided, ..record(bundle, id, limits, policy, library)? };
        for front in record.front_libraries() {
            std::fs::metadata(&front.source).map_err(Error::io("find the front library", &front.source))?;
        }
        let claims = claims(bundle, state.dir());
        Ok(Self {
            denies_user_namespaces: record.limits.is_limited() && policy.privileged == Admission::Refuse,
            has_exclusive_claims: policy.shared_claims == Admission::Refuse,
            record,
            state,
            dir,
            preload,
            access: Access::of(&bundle.spec),
            claims,
        })
    }

    /// Returns whether any GPU is limited, so that the container has a directory.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.record.limits.is_limited()
    }

    /// Returns the edits of the specification, with `hook` as the hook program.
    ///
    /// # Errors
    /// The hook is invalid.
    pub fn edits(&self, hook: &Path) -> Result<Edits> {
        let files = if self.is_limited() { self.record.injected_files(&self.dir) } else { Vec::new() };
        let destinations = files.iter().map(|file| file.destination).collect();
        let edits = edits::edits(&self.record.limits, destinations, hook, self.state.dir())?;
        Ok(Edits { denies_user_namespaces: self.denies_user_namespaces, ..edits })
    }

    /// Writes the container's directory, and removes those of dead containers.
    ///
    /// # Errors
    /// The directory cannot be written, or another container has a share of an exclusive claim. Nothing is left then.
    pub fn write(&self) -> Result<()> {
        if !self.is_limited() {
            self.state.sweep();
            return Ok(());
        }
        let too_large = || Error::Other("the limits do not fit into the limits page".to_owned());
        let page = self.record.limits.page().ok_or_else(too_large)?;
        let files = Files { preload: self.preload.as_deref(), access: self.access };
        self.state.create(&self.dir, &self.record, &page, files)?;
        // Checked after writing, so that of two containers created at the same time at least one sees the other.
        match self.claim_sharer().filter(|_| self.has_exclusive_claims) {
            Some((claim, other)) => {
                self.remove();
                let expected = format!("a claim of no other container, but {other} has it, too (the policy's key shared_claims)");
                Err(Error::refused("claim", claim, expected))
            }
            None => Ok(()),
        }
    }

    /// Finds another container that has a share of one of this container's claims. Returns the claim and a description of the container.
    #[must_use]
    pub fn claim_sharer(&self) -> Option<(String, String)> {
        if self.claims.is_empty() {
            return None;
        }
        self.state.live().filter(|(dir, _)| *dir != self.dir).find_map(|(_, other)| {
            let others_claims = claims(&Bundle::load(&other.bundle, None).ok()?, self.state.dir());
            let file = others_claims.intersection(&self.claims).next()?;
            let text = std::fs::read(file).ok();
            let claim = text.and_then(|text| Some(serde_json::from_slice::<Share>(&text).ok()?.claim));
            let name = [&other.namespace, &other.pod, &other.container].map(|part| part.as_deref().unwrap_or("-")).join("/");
            Some((claim.unwrap_or_else(|| file.display().to_string()), format!("{name} ({})", other.id)))
        })
    }

    /// Creates the mount points in the image. The hook may not be able to: crun before 1.26 has made the image read-only by then, and the
    /// root of a user namespace may not be allowed to write into it.
    ///
    /// # Errors
    /// A step of a path is a symbolic link, or the image cannot be written.
    pub fn create_mount_points(&self) -> Result<()> {
        if !self.is_limited() {
            return Ok(());
        }
        let rootfs = Rootfs::open(&self.record.rootfs)?;
        for file in self.record.injected_files(&self.dir) {
            rootfs.create(file.destination, file.is_dir)?;
        }
        if self.record.replace { driver::create_mount_points(&rootfs) } else { Ok(()) }
    }

    /// Returns the container's directory and record.
    #[must_use]
    pub fn into_parts(self) -> (PathBuf, Record) {
        (self.dir, self.record)
    }

    /// Removes the container's directory. Called when there is another error to report; what cannot be removed is swept later.
    pub fn remove(&self) {
        if self.is_limited() {
            let _ = state::remove(&self.dir);
        }
    }
}

/// Returns the files of the claims that a container has shares of.
fn claims(bundle: &Bundle, state_dir: &Path) -> BTreeSet<PathBuf> {
    bundle.spec.mounts().filter_map(|mount| ClaimFile::path_of_mount(mount.source().as_ref()?, state_dir)).collect()
}

/// Returns the record of a container, as far as its bundle determines it.
fn record(bundle: &Bundle, id: &str, limits: Limits, policy: &Policy, library: PathBuf) -> Result<Record> {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let is_replaced = policy.intercept.replaces();
    let library_path = is_replaced.then(|| bundle.spec.env().remove("LD_LIBRARY_PATH")).flatten();
    Ok(Record {
        id: id.to_owned(),
        bundle: bundle.dir.clone(),
        rootfs: bundle.rootfs()?,
        container: owned(bundle.spec.container_name()),
        pod: owned(bundle.spec.pod_name()),
        namespace: owned(bundle.spec.namespace()),
        pod_uid: owned(bundle.spec.pod_uid()),
        limits,
        decided: None,
        library,
        preload: policy.intercept.preloads(),
        replace: is_replaced,
        library_path: library_path.unwrap_or_default(),
        runtime: None,
        runtime_roots: Vec::new(),
        creator: Process::this(),
        init: None,
        created: now(),
        program: None,
    })
}

/// Returns the time for a record, in seconds since the Unix epoch.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Refuses an image whose paths cannot be mounted on, and returns the merged list for the loader if that is used.
fn check_rootfs(bundle: &Bundle, policy: &Policy, state: &State) -> Result<Option<String>> {
    let rootfs = Rootfs::open(&bundle.rootfs()?)?;
    for path in [paths::LIBRARY, paths::LIMITS, paths::REGION] {
        rootfs.find_file(path)?;
    }
    if policy.without_glibc == Admission::Refuse && !has_glibc(&bundle.rootfs()?) {
        return Err(Error::Image {
            path: LOADERS[0].into(),
            found: "absent",
            expected: "an image with glibc's loader (the policy's key without_glibc)",
        });
    }
    if !policy.intercept.preloads() {
        return Ok(None);
    }
    let image_list = rootfs.read(paths::LD_SO_PRELOAD, preload_list::MAX_BYTES)?;
    let mount = bundle.spec.mounts().filter(|mount| normalize(mount.destination()) == Path::new(paths::LD_SO_PRELOAD)).last();
    let mounted = mount.and_then(|mount| Some(absolute(&bundle.dir, mount.source().as_ref()?)));
    // A mounted list hides the image's, unless vgpu mounted it: then it remains from an earlier start of the same bundle.
    let list = match mounted.filter(|source| !source.starts_with(state.dir())) {
        Some(source) => {
            let file = rootfs::open_regular(&source).map_err(Error::io("read", &source))?;
            Some(rootfs::read_text(file, preload_list::MAX_BYTES).map_err(Error::io("read", &source))?)
        }
        None => image_list,
    };
    Ok(Some(preload_list::merged(&list.unwrap_or_default())))
}

/// Paths of glibc's loader, by distribution and architecture.
const LOADERS: [&str; 3] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/usr/lib64/ld-linux-x86-64.so.2"];

fn has_glibc(rootfs: &Path) -> bool {
    let Ok(root) = pathrs::Root::open(rootfs) else { return false };
    LOADERS.iter().any(|path| root.resolve(path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mps_is_used_while_its_daemon_runs() {
        let dir = tempfile::tempdir().unwrap();
        let pipes = dir.path().join("mps");
        std::fs::create_dir(&pipes).unwrap();
        std::fs::write(dir.path().join("config.json"), r#"{ "annotations": { "nvidia.com/gpucores": "30" } }"#).unwrap();
        let bundle = Bundle::load(dir.path(), None).unwrap();
        let policy = format!("state_dir = {:?}\n[mps]\npipe_directory = {pipes:?}", dir.path());
        let mps = |policy: &str| limits(&bundle, &Policy::parse(policy).unwrap()).unwrap().unwrap().mps;
        assert_eq!(mps(&policy), None, "no daemon");
        std::fs::write(pipes.join("control"), "").unwrap();
        assert_eq!(mps(&policy), Some(Mps { pipes, percent: 30, memory: None }));
        assert_eq!(mps(&format!("state_dir = {:?}", dir.path())), None, "not enabled by the policy");
    }
}

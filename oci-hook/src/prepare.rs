//! What both ways of limiting a container have in common: look at its bundle, decide, check that the image is safe to mount into,
//! and write the container's folder on the host.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vgpu_config::dialect::claims;
use vgpu_config::limits::Mps;
use vgpu_config::policy::Admission;
use vgpu_config::{Inventory, Limits, Policy};
use vgpu_region::paths;

use crate::bundle::Bundle;
use crate::edits::{self, Edits, Places};
use crate::error::{Error, Result};
use crate::path::{absolute, plain};
use crate::process::{self, Process};
use crate::record::Record;
use crate::rootfs::{self, Rootfs};
use crate::state::{self, State};
use crate::{driver, plan, preload_list};

/// What is decided for the container in this bundle; `None` if it is none of our business.
///
/// # Errors
/// What it asks for is not documented, not allowed, or cannot be given.
pub fn limits(bundle: &Bundle, policy: &Policy) -> Result<Option<Limits>> {
    let state_dir = policy.state_dir(process::rootless_user());
    let request = plan::request(&bundle.spec, &state_dir, |path| rootfs::read_text(std::fs::File::open(path).ok()?, 4096).ok())?;
    if !plan::concerns(&bundle.spec, &request, policy) {
        return Ok(None);
    }
    let inventory = Inventory::load(&state_dir)?;
    let limits = plan::decide(&bundle.spec, &request, policy, inventory.as_ref())?;
    // Where the daemon is not there the library holds the container to its limit, as without the policy.
    let pipes = policy.mps.pipe_directory.as_ref().filter(|pipes| pipes.join("control").exists());
    Ok(limits.map(|limits| Limits { mps: pipes.and_then(|pipes| Mps::of(&limits, pipes)), ..limits }))
}

/// A container whose image has been looked at and whose folder is ready to be written.
#[derive(Debug)]
pub struct Prepared {
    state: State,
    place: PathBuf,
    /// What will be on record.
    pub record: Record,
    list: Option<String>,
    /// The files of the claims whose shares it has.
    shares: BTreeSet<PathBuf>,
    /// Whether no other container may have one of them.
    alone: bool,
}

impl Prepared {
    /// Checks everything that can be checked before anything is written.
    ///
    /// # Errors
    /// The id, the library or the image cannot be used.
    pub fn new(bundle: &Bundle, policy: &Policy, limits: Limits, id: &str) -> Result<Self> {
        let state = State::at(&policy.state_dir(process::rootless_user()));
        state::check_id(id)?;
        let (library, place, list) = if limits.limit_anything() {
            (library(policy)?, state.reserve(id, &bundle.dir)?, check_rootfs(bundle, policy, &state)?)
        } else {
            Default::default()
        };
        let record = record(bundle, id, limits, policy, library)?;
        for front in record.fronts() {
            std::fs::metadata(&front.source).map_err(Error::io("find what replaces the driver's library", &front.source))?;
        }
        let (shares, alone) = (shares(bundle, state.dir()), policy.shared_claims == Admission::Refuse);
        Ok(Self { record, state, place, list, shares, alone })
    }

    /// Whether any GPU is limited, so that there is a folder to be written.
    #[must_use]
    pub fn limits(&self) -> bool {
        self.record.limits.limit_anything()
    }

    /// The edits that put all this into the container, with `hook` as the hook program.
    #[must_use]
    pub fn edits(&self, hook: &Path) -> Edits {
        let files = if self.limits() { self.record.files(&self.place) } else { Vec::new() };
        let places = Places {
            inside: files.iter().map(|file| file.inside).collect(),
            state_dir: self.state.dir().to_owned(),
            hook: hook.to_owned(),
        };
        edits::edits(&self.record.limits, &places)
    }

    /// Writes the container's folder, and removes those of containers that are gone.
    ///
    /// # Errors
    /// It cannot be written; then nothing is left of it.
    pub fn write(&self) -> Result<()> {
        if !self.limits() {
            self.state.sweep();
            return Ok(());
        }
        let too_much = || Error::Other("the limits do not fit into their page".to_owned());
        let page = self.record.limits.page().ok_or_else(too_much)?;
        self.state.create(&self.place, &self.record, &page, self.list.as_deref())?;
        // Now that whoever comes later sees this container: of two at once, neither is missed.
        match self.sharer().filter(|_| self.alone) {
            Some((share, other)) => {
                self.remove();
                let accepted = format!("one that no other container has: {other} has it (the policy's key shared_claims)");
                Err(Error::refused("claim", share, accepted))
            }
            None => Ok(()),
        }
    }

    /// Another container that has a share of this one's claims: which claim's, and who.
    #[must_use]
    pub fn sharer(&self) -> Option<(String, String)> {
        if self.shares.is_empty() {
            return None;
        }
        self.state.live().filter(|(place, _)| *place != self.place).find_map(|(_, other)| {
            let theirs = shares(&Bundle::load(&other.bundle, None).ok()?, self.state.dir());
            let share = theirs.intersection(&self.shares).next()?;
            let text = std::fs::read(share).ok();
            let claim = text.and_then(|text| Some(serde_json::from_slice::<claims::Share>(&text).ok()?.claim));
            let name = [&other.namespace, &other.pod, &other.container].map(|part| part.as_deref().unwrap_or("-")).join("/");
            Some((claim.unwrap_or_else(|| share.display().to_string()), format!("{name} ({})", other.id)))
        })
    }

    /// Makes the places in the image for every mount of our hook's. The hook may not be able to: crun before 1.26 has made the image
    /// read-only by then, and the root of a user namespace may have no right to write into it.
    ///
    /// # Errors
    /// The image leads elsewhere, or cannot be written.
    pub fn make_places(&self) -> Result<()> {
        if !self.limits() {
            return Ok(());
        }
        let rootfs = Rootfs::open(&self.record.rootfs)?;
        for file in self.record.files(&self.place) {
            rootfs.make(file.inside, file.folder)?;
        }
        if self.record.replace { driver::make_places(&rootfs) } else { Ok(()) }
    }

    /// The container's folder and what is on record.
    #[must_use]
    pub fn into_parts(self) -> (PathBuf, Record) {
        (self.place, self.record)
    }

    /// Removes the container's folder again. There is an error to report already; what stays is swept later.
    pub fn remove(&self) {
        if self.limits() {
            let _ = state::remove(&self.place);
        }
    }
}

/// The claims' files that a container has.
fn shares(bundle: &Bundle, state_dir: &Path) -> BTreeSet<PathBuf> {
    bundle.spec.mounts().filter_map(|(_, source)| claims::File::behind(Path::new(source?), state_dir)).collect()
}

/// The record of a container, as far as its bundle tells.
fn record(bundle: &Bundle, id: &str, limits: Limits, policy: &Policy, library: PathBuf) -> Result<Record> {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Ok(Record {
        id: id.to_owned(),
        bundle: bundle.dir.clone(),
        rootfs: bundle.rootfs()?,
        container: owned(bundle.spec.container_name()),
        pod: owned(bundle.spec.pod_name()),
        namespace: owned(bundle.spec.namespace()),
        pod_uid: owned(bundle.spec.pod_uid()),
        limits,
        library,
        preload: policy.intercept.preloads(),
        replace: policy.intercept.replaces(),
        library_path: if policy.intercept.replaces() {
            bundle.spec.env().remove("LD_LIBRARY_PATH").unwrap_or_default()
        } else {
            String::new()
        },
        runtime: None,
        runtime_roots: Vec::new(),
        creator: Process::this(),
        init: None,
        created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    })
}

/// The library's own file. Containers keep the file that they started with, so an upgrade does not reach into them.
fn library(policy: &Policy) -> Result<PathBuf> {
    let path = policy.library.canonicalize().map_err(Error::io("find the library", &policy.library))?;
    let found = std::fs::metadata(&path).map_err(Error::io("look at the library", &path))?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    // In a user's own namespace the system's root has no number, and its files are shown as nobody's.
    let nobodys = || process::rootless_user().is_some() && Some(found.uid()) == process::overflow_user();
    let trusted = (owners.contains(&found.uid()) || nobodys()) && found.mode() & 0o022 == 0;
    if !found.is_file() || !trusted {
        let accepted = "a regular file of root's that nobody else may write (the policy's key library)";
        return Err(Error::refused("library", path.display().to_string(), accepted));
    }
    Ok(path)
}

/// Refuses an image whose paths lead elsewhere, and gives the merged list for the loader if one is used.
fn check_rootfs(bundle: &Bundle, policy: &Policy, state: &State) -> Result<Option<String>> {
    let rootfs = Rootfs::open(&bundle.rootfs()?)?;
    for path in [paths::LIBRARY, paths::LIMITS, paths::REGION] {
        rootfs.find_file(path)?;
    }
    if policy.without_glibc == Admission::Refuse && !has_glibc(&bundle.rootfs()?) {
        return Err(Error::Image {
            path: LOADERS[0].into(),
            found: "absent",
            accepted: "an image with glibc's loader (the policy's key without_glibc)",
        });
    }
    if !policy.intercept.preloads() {
        return Ok(None);
    }
    let of_image = rootfs.read(paths::LD_SO_PRELOAD, preload_list::MOST)?;
    let mounted = bundle.spec.mounts().filter(|(place, _)| plain(place) == Path::new(paths::LD_SO_PRELOAD)).last();
    let mounted = mounted.and_then(|(_, source)| Some(absolute(&bundle.dir, Path::new(source?))));
    // A list that is mounted hides the image's. One of ours is from an earlier start from the same bundle, and hides nothing.
    let list = match mounted.filter(|source| !source.starts_with(state.dir())) {
        Some(source) => {
            let file = std::fs::File::open(&source).map_err(Error::io("read", &source))?;
            Some(rootfs::read_text(file, preload_list::MOST).map_err(Error::io("read", &source))?)
        }
        None => of_image,
    };
    Ok(Some(preload_list::merged(&list.unwrap_or_default())))
}

/// Where glibc's loader is, by distribution and architecture.
const LOADERS: [&str; 3] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/usr/lib64/ld-linux-x86-64.so.2"];

fn has_glibc(rootfs: &Path) -> bool {
    let Ok(root) = pathrs::Root::open(rootfs) else { return false };
    LOADERS.iter().any(|path| root.resolve(path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_made_clients_of_mps_while_its_daemon_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let pipes = folder.path().join("mps");
        std::fs::create_dir(&pipes).unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{ "annotations": { "nvidia.com/gpucores": "30" } }"#).unwrap();
        let bundle = Bundle::load(folder.path(), None).unwrap();
        let policy = format!("state_dir = {:?}\n[mps]\npipe_directory = {pipes:?}", folder.path());
        let mps = |policy: &str| limits(&bundle, &Policy::parse(policy).unwrap()).unwrap().unwrap().mps;
        assert_eq!(mps(&policy), None, "no daemon");
        std::fs::write(pipes.join("control"), "").unwrap();
        assert_eq!(mps(&policy), Some(Mps { pipes, percent: 30, memory: None }));
        assert_eq!(mps(&format!("state_dir = {:?}", folder.path())), None, "the policy does not say so");
    }
}

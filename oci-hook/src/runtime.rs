//! `vgpu-runtime`: an OCI runtime in front of another one. It changes the bundle of a container that is to be limited, and then
//! becomes the other one, with the same arguments, descriptors and process number.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use vgpu_config::policy::{self, Admission};
use vgpu_config::{Inventory, Limits, Policy};
use vgpu_region::paths;

use crate::argv::{self, Creation, Global, absolute};
use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::plan::{self, Places};
use crate::process::{self, Process};
use crate::rootfs::{self, Rootfs};
use crate::state::{self, Record, State};
use crate::{apply, preload_list};

/// What `vgpu-runtime` calls itself in messages.
const PROGRAM: &str = "vgpu-runtime";

/// Runs as `vgpu-runtime`. Returns only if the other runtime could not be started.
#[must_use]
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let creation = argv::creation(&args);
    let global = creation.as_ref().map(|creation| creation.global.clone()).unwrap_or_default();
    let log = Log::new(PROGRAM, &global);
    let error = match creation {
        Some(creation) => create(&creation, &args, &log),
        None => match process::find(&Policy::runtimes_at_any_rate(named_policy().as_deref())) {
            Some(runtime) => exec(&runtime, &args),
            None => no_runtime(),
        },
    };
    log.error(&error.to_string());
    ExitCode::FAILURE
}

/// The policy file that our caller names.
fn named_policy() -> Option<PathBuf> {
    std::env::var_os(policy::VARIABLE).map(PathBuf::from)
}

fn no_runtime() -> Error {
    Error::Sentence("no low-level runtime found: accepted is a policy whose key runtimes lists one that is installed".to_owned())
}

/// Becomes the other runtime.
fn exec(runtime: &Path, args: &[OsString]) -> Error {
    Error::io("run", runtime)(Command::new(runtime).args(args).exec())
}

/// Limits the container if it has to be, and becomes the other runtime. Returns only why that was not possible; then the bundle
/// is as it was, and nothing is left of ours.
fn create(creation: &Creation, args: &[OsString], log: &Log) -> Error {
    match prepare(creation, log) {
        Err(error) => error,
        Ok(Prepared { runtime, undo }) => {
            let error = exec(&runtime, args);
            if let Some(undo) = undo {
                undo.now();
            }
            error
        }
    }
}

struct Prepared {
    runtime: PathBuf,
    undo: Option<Undo>,
}

/// What has been done so far.
struct Undo {
    config: PathBuf,
    text: Vec<u8>,
    folder: Option<PathBuf>,
}

impl Undo {
    fn now(self) {
        // There is already an error to report; what cannot be undone is swept later.
        let _ = apply::replace_file(&self.config, &self.text);
        if let Some(folder) = self.folder {
            let _ = state::remove(&folder);
        }
    }
}

fn prepare(creation: &Creation, log: &Log) -> Result<Prepared> {
    let cwd = std::env::current_dir().map_err(Error::io("open", Path::new(".")))?;
    let dir = absolute(&cwd, creation.bundle.as_deref().unwrap_or(Path::new(".")));
    let bundle = Bundle::load(&dir, creation.config.as_deref().map(|config| absolute(&cwd, config)).as_deref())?;
    let named = named_policy();
    if bundle.spec.is_sandbox() {
        let runtimes = Policy::runtimes_at_any_rate(named.as_deref());
        return Ok(Prepared { runtime: process::find(&runtimes).ok_or_else(no_runtime)?, undo: None });
    }
    let policy = Policy::load(named.as_deref())?;
    let runtime = process::find(&policy.runtimes).ok_or_else(no_runtime)?;
    let undo = match limits(&bundle, &policy)? {
        Some(limits) => Some(limit(creation, &cwd, &bundle, &policy, limits, &runtime, log)?),
        None => None,
    };
    Ok(Prepared { runtime, undo })
}

/// What is decided for the container in this bundle; `None` if it is none of our business.
pub(crate) fn limits(bundle: &Bundle, policy: &Policy) -> Result<Option<Limits>> {
    let request = plan::request(&bundle.spec, |path| rootfs::read_text(std::fs::File::open(path).ok()?, 4096).ok())?;
    if !plan::concerns(&bundle.spec, &request, policy) {
        return Ok(None);
    }
    let inventory = Inventory::load(&policy.state_dir(process::is_rootless()))?;
    plan::decide(&bundle.spec, &request, policy, inventory.as_ref())
}

fn limit(creation: &Creation, cwd: &Path, bundle: &Bundle, policy: &Policy, limits: Limits, runtime: &Path, log: &Log) -> Result<Undo> {
    let id = creation.id.to_str().unwrap_or_default();
    let state_dir = policy.state_dir(process::is_rootless());
    let state = State::at(&state_dir);
    state::check_id(id)?;
    state.sweep();
    let mut places = Places { container: PathBuf::new(), state_dir, library: PathBuf::new(), hook: hook_program(policy) };
    let mut folder = None;
    if limits.limit_anything() {
        places.library = library(policy)?;
        places.container = state.place(id, &bundle.dir)?;
        folder = Some(places.container.clone());
        let preload = check_rootfs(bundle, policy)?;
        let record = record(bundle, id, &limits, policy, &places, runtime, roots(&creation.global, cwd, runtime));
        let page = limits.page().ok_or_else(|| Error::Sentence("the limits do not fit into their page".to_owned()))?;
        state.create(&places.container, &record, &page, preload.as_deref())?;
        if bundle.spec.is_privileged() {
            log.warning(&format!("container {id} has CAP_SYS_ADMIN and so can undo its limits"));
        }
    }
    let edited = plan::edits(&limits, policy, &places).and_then(|edits| apply::to_spec(&bundle.spec, &edits));
    let written = edited.and_then(|spec| {
        let text = serde_json::to_vec(&spec.0).map_err(|why| Error::Sentence(format!("cannot write config.json: {why}")))?;
        apply::replace_file(&bundle.config, &text)
    });
    match written {
        Ok(()) => Ok(Undo { config: bundle.config.clone(), text: bundle.text.clone(), folder }),
        Err(error) => {
            if let Some(folder) = folder {
                let _ = state::remove(&folder);
            }
            Err(error)
        }
    }
}

/// The record of a container.
pub(crate) fn record(
    bundle: &Bundle,
    id: &str,
    limits: &Limits,
    policy: &Policy,
    places: &Places,
    runtime: &Path,
    runtime_roots: Vec<PathBuf>,
) -> Record {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Record {
        id: id.to_owned(),
        bundle: bundle.dir.clone(),
        rootfs: bundle.rootfs().unwrap_or_default(),
        container: owned(bundle.spec.container_name()),
        pod: owned(bundle.spec.pod_name()),
        namespace: owned(bundle.spec.namespace()),
        pod_uid: owned(bundle.spec.pod_uid()),
        limits: limits.clone(),
        library: places.library.clone(),
        preload: policy.intercept.preloads(),
        replace: policy.intercept.replaces(),
        runtime: Some(runtime.to_owned()),
        runtime_roots,
        creator: Process::this(),
        created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    }
}

/// The library's own file. Containers keep the file that they started with, so an upgrade does not reach into them.
pub(crate) fn library(policy: &Policy) -> Result<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let path = policy.library.canonicalize().map_err(Error::io("find the library", &policy.library))?;
    let found = std::fs::metadata(&path).map_err(Error::io("look at the library", &path))?;
    let trusted = [0, rustix::process::geteuid().as_raw()].contains(&found.uid()) && found.mode() & 0o022 == 0;
    if !found.is_file() || !trusted {
        let accepted = "a regular file of root's that nobody else may write (the policy's key library)";
        return Err(Error::refused("library", path.display().to_string(), accepted));
    }
    Ok(path)
}

/// The hook program: the policy's, or the one beside this program.
fn hook_program(policy: &Policy) -> Option<PathBuf> {
    let beside = || std::env::current_exe().ok().map(|this| this.with_file_name("vgpu-hook"));
    policy.hook.clone().or_else(beside).filter(|hook| hook.is_file())
}

/// Where the low-level runtime keeps an entry for each container.
fn roots(global: &Global, cwd: &Path, runtime: &Path) -> Vec<PathBuf> {
    if let Some(root) = &global.root {
        return vec![absolute(cwd, root)];
    }
    let name = runtime.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let known = ["crun", "runc", "youki"];
    let kinds: Vec<&str> = match known.iter().find(|kind| name.contains(*kind)) {
        Some(kind) => vec![kind],
        None => known.to_vec(),
    };
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases = [Some(PathBuf::from("/run")), own];
    bases.into_iter().flatten().flat_map(|base| kinds.iter().map(move |kind| base.join(kind))).collect()
}

/// Refuses an image whose paths lead elsewhere, and gives the merged list for the loader if one is used.
pub(crate) fn check_rootfs(bundle: &Bundle, policy: &Policy) -> Result<Option<String>> {
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
    let mounted = bundle.spec.mounts().filter(|(place, _)| apply::plain(place) == Path::new(paths::LD_SO_PRELOAD)).last();
    let list = match mounted.and_then(|(_, source)| source) {
        Some(source) => {
            let source = absolute(&bundle.dir, Path::new(source));
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

//! `vgpu-runtime`: an OCI runtime in front of another one. It changes the bundle of a container that is to be limited, and then
//! becomes the other one, with the same arguments, descriptors and process number. Only where a limited container is deleted it stays,
//! to clean up after it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use vgpu_config::{Limits, Policy, policy};

use crate::argv::{self, Command, Creation, Global};
use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::escape::undone_by;
use crate::log::Log;
use crate::path::absolute;
use crate::prepare::{self, Prepared};
use crate::state::State;
use crate::{apply, hami, process};

/// What `vgpu-runtime` calls itself in messages.
const PROGRAM: &str = "vgpu-runtime";
/// The runtimes that we know.
const KNOWN: [&str; 3] = ["crun", "runc", "youki"];

/// Runs as `vgpu-runtime`. Returns only if the other runtime could not be started.
#[must_use]
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (log, error) = match argv::command(&args) {
        Command::Create(creation) => {
            let log = Log::new(PROGRAM, &creation.global);
            let error = create(&creation, &args, &log);
            (log, error)
        }
        Command::Delete(id) => match delete(&id, &args) {
            Ok(code) => return code,
            Err(error) => (Log::new(PROGRAM, &Global::default()), error),
        },
        Command::Other => (Log::new(PROGRAM, &Global::default()), pass_on(&args)),
    };
    log.error(&error.to_string());
    ExitCode::FAILURE
}

/// Becomes the other runtime, whatever the policy says beside which that is.
fn pass_on(args: &[OsString]) -> Error {
    match any_runtime() {
        Some(runtime) => exec(&runtime, args),
        None => no_runtime(),
    }
}

fn any_runtime() -> Option<PathBuf> {
    process::find(&Policy::runtimes_at_any_rate(named_policy().as_deref()))
}

/// Has the other runtime delete a container, and removes what we keep for it if it is gone then. For a container that is none of
/// ours, becomes the other runtime.
fn delete(id: &OsStr, args: &[OsString]) -> Result<ExitCode> {
    let policy = Policy::load(named_policy().as_deref()).unwrap_or_default();
    let state = State::at(&policy.state_dir(process::rootless_user()));
    if !id.to_str().is_some_and(|id| state.has(id)) {
        return Err(pass_on(args));
    }
    let runtime = any_runtime().ok_or_else(no_runtime)?;
    let status = std::process::Command::new(&runtime).args(args).status().map_err(Error::io("run", &runtime))?;
    state.sweep();
    if let Some(signal) = status.signal() {
        // So that our caller sees what it would have seen.
        process::end_by(signal);
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The policy file that our caller names.
fn named_policy() -> Option<PathBuf> {
    std::env::var_os(policy::VARIABLE).map(PathBuf::from)
}

fn no_runtime() -> Error {
    Error::Other("no low-level runtime found: accepted is a policy whose key runtimes lists one that is installed".to_owned())
}

/// Becomes the other runtime.
fn exec(runtime: &Path, args: &[OsString]) -> Error {
    Error::io("run", runtime)(std::process::Command::new(runtime).args(args).exec())
}

/// Limits the container if it has to be, and becomes the other runtime. Returns only why that was not possible; then the bundle
/// is as it was, and nothing is left of ours.
fn create(creation: &Creation, args: &[OsString], log: &Log) -> Error {
    match ready(creation, log) {
        Err(error) => error,
        Ok(Ready { runtime, undo }) => {
            let error = exec(&runtime, args);
            if let Some(undo) = undo {
                undo.now();
            }
            error
        }
    }
}

/// A bundle that is ready for the low-level runtime.
struct Ready {
    runtime: PathBuf,
    undo: Option<Undo>,
}

/// What has been done so far.
struct Undo {
    config: PathBuf,
    text: Vec<u8>,
    prepared: Prepared,
}

impl Undo {
    fn now(self) {
        // There is already an error to report; what cannot be undone is swept later.
        let _ = apply::replace_file(&self.config, &self.text);
        self.prepared.remove();
    }
}

fn ready(creation: &Creation, log: &Log) -> Result<Ready> {
    let cwd = std::env::current_dir().map_err(Error::io("open", Path::new(".")))?;
    let dir = absolute(&cwd, creation.bundle.as_deref().unwrap_or(Path::new(".")));
    let named = named_policy();
    let config = creation.config.as_deref().map_or_else(|| dir.join("config.json"), |config| absolute(&cwd, config));
    let nothing = creation.id.is_empty() || is_absent(&config);
    if nothing && let Some(runtime) = any_runtime().filter(|runtime| creation.id.is_empty() || is_known(runtime)) {
        // There is nothing to run, and the runtime says so in its own words.
        return Ok(Ready { runtime, undo: None });
    }
    let bundle = Bundle::load(&dir, Some(&config))?;
    if bundle.spec.is_sandbox() {
        let runtimes = Policy::runtimes_at_any_rate(named.as_deref());
        return Ok(Ready { runtime: process::find(&runtimes).ok_or_else(no_runtime)?, undo: None });
    }
    let policy = Policy::load(named.as_deref())?;
    let runtime = process::find(&policy.runtimes).ok_or_else(no_runtime)?;
    let undo = match prepare::limits(&bundle, &policy)? {
        Some(limits) => Some(limit(creation, &cwd, &bundle, &policy, limits, &runtime, log)?),
        None => None,
    };
    Ok(Ready { runtime, undo })
}

/// Limits the container, and says how to undo that.
fn limit(creation: &Creation, cwd: &Path, bundle: &Bundle, policy: &Policy, limits: Limits, runtime: &Path, log: &Log) -> Result<Undo> {
    let id = creation.id.to_str().unwrap_or_default();
    let mut prepared = Prepared::new(bundle, policy, limits, id)?;
    prepared.record.runtime = Some(runtime.to_owned());
    prepared.record.runtime_roots = roots(&creation.global, cwd, runtime);
    let cache = hami::cache(&bundle.spec, prepared.record.limits.hami_cache.as_deref()).filter(|_| prepared.limits());
    let spec = cache.as_ref().map_or_else(|| bundle.spec.clone(), |cache| hami::narrowed(&bundle.spec, cache));
    let spec = apply::to_spec(spec, &prepared.edits(&hook_program(policy)?))?;
    cache.map_or(Ok(()), |cache| cache.make())?;
    let text = serde_json::to_vec(&spec.0).map_err(|why| Error::Other(format!("cannot write config.json: {why}")))?;
    prepared.write()?;
    let undo = Undo { config: bundle.config.clone(), text: bundle.text.clone(), prepared };
    if let Err(error) = undo.prepared.make_places().and_then(|()| apply::replace_file(&bundle.config, &text)) {
        undo.prepared.remove();
        return Err(error);
    }
    if let Some(by) = undone_by(&bundle.spec).filter(|_| undo.prepared.limits()) {
        log.warning(&format!("container {id} has {by}, by which its limits can be undone"));
    }
    if let Some((claim, other)) = undo.prepared.sharer() {
        log.warning(&format!("container {id} has a share of the claim {claim} that {other} has, too: each is limited by itself"));
    }
    Ok(undo)
}

/// The hook program: the policy's, or the one beside this program.
fn hook_program(policy: &Policy) -> Result<PathBuf> {
    let beside = || std::env::current_exe().map(|this| this.with_file_name("vgpu-hook")).unwrap_or_default();
    let hook = policy.hook.clone().unwrap_or_else(beside);
    if !hook.is_file() {
        return Err(Error::refused("hook program", hook.display().to_string(), "the path of vgpu-hook (the policy's key hook)"));
    }
    Ok(hook)
}

/// Whether we know all the ways in which this runtime is told its container's configuration.
fn is_known(runtime: &Path) -> bool {
    runtime.file_name().is_some_and(|name| KNOWN.iter().any(|known| name == *known))
}

fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|why| why.kind() == std::io::ErrorKind::NotFound)
}

/// Where the low-level runtime keeps an entry for each container.
fn roots(global: &Global, cwd: &Path, runtime: &Path) -> Vec<PathBuf> {
    if let Some(root) = &global.root {
        return vec![absolute(cwd, root)];
    }
    let name = runtime.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kinds: Vec<&str> = match KNOWN.iter().find(|kind| name.contains(*kind)) {
        Some(kind) => vec![kind],
        None => KNOWN.to_vec(),
    };
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases = [Some(PathBuf::from("/run")), own];
    bases.into_iter().flatten().flat_map(|base| kinds.iter().map(move |kind| base.join(kind))).collect()
}

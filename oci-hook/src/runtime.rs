//! `vgpu-runtime`: an OCI runtime in front of a low-level one. It edits the bundle of a container to be limited and then executes the
//! low-level runtime with the same arguments, descriptors and PID. Only when a limited container is deleted, it waits for the low-level
//! runtime and then cleans up.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use vgpu_config::{Policy, policy};

use crate::argv::{self, Command, Creation, Global};
use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::path::absolute;
use crate::prepare::{self, Prepared};
use crate::state::State;
use crate::{apply, hami_cache, process, warnings};

/// Name of the program in messages.
const PROGRAM: &str = "vgpu-runtime";
/// The known low-level runtimes.
const KNOWN: [&str; 3] = ["crun", "runc", "youki"];

/// Runs as `vgpu-runtime`. Returns only after a deletion, or if the low-level runtime could not be executed.
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
        Command::About => return about(&args),
        Command::Other => (Log::new(PROGRAM, &Global::default()), pass_through(&args)),
    };
    log.error(&error.to_string());
    ExitCode::FAILURE
}

/// Executes the low-level runtime, even if the policy is invalid.
fn pass_through(args: &[OsString]) -> Error {
    match any_runtime() {
        Some(runtime) => exec(&runtime, args),
        None => no_runtime(),
    }
}

/// Lets the low-level runtime print its version or help, and adds this program's. Engines read the low-level runtime's, which comes first.
fn about(args: &[OsString]) -> ExitCode {
    let runtime = any_runtime();
    let status = runtime.as_ref().map(|runtime| std::process::Command::new(runtime).args(args).status());
    let below = runtime.map_or_else(|| "no low-level runtime, as none is installed".to_owned(), |runtime| runtime.display().to_string());
    println!("{PROGRAM} {}, in front of {below}", env!("CARGO_PKG_VERSION"));
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!(
            "It takes the commands and options above, and limits containers with GPUs when they are created. \"vgpu check\" examines it."
        );
    }
    match status {
        Some(Ok(status)) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn any_runtime() -> Option<PathBuf> {
    process::find(&Policy::runtimes_even_if_invalid(policy_path().as_deref()))
}

/// Lets the low-level runtime delete a container, and removes what vgpu has written for it. For a container without a directory,
/// executes the low-level runtime.
fn delete(id: &OsStr, args: &[OsString]) -> Result<ExitCode> {
    let policy = Policy::load(policy_path().as_deref()).unwrap_or_default();
    let state = State::at(&policy.state_dir(process::rootless_user()));
    if !id.to_str().is_some_and(|id| state.has(id)) {
        return Err(pass_through(args));
    }
    let runtime = any_runtime().ok_or_else(no_runtime)?;
    let status = std::process::Command::new(&runtime).args(args).status().map_err(Error::io("run", &runtime))?;
    for bundle in id.to_str().map(|id| state.delete_dead(id)).unwrap_or_default() {
        apply::remove_temporary_files(&bundle.join("config.json"));
    }
    if let Some(signal) = status.signal() {
        // The caller must see how the low-level runtime ended.
        process::raise(signal);
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns the policy file that the caller's environment names.
fn policy_path() -> Option<PathBuf> {
    std::env::var_os(policy::VARIABLE).map(PathBuf::from)
}

fn no_runtime() -> Error {
    Error::Other("no low-level runtime found: expected the policy's key runtimes to list one that is installed".to_owned())
}

/// Executes the low-level runtime in this process.
fn exec(runtime: &Path, args: &[OsString]) -> Error {
    Error::io("run", runtime)(std::process::Command::new(runtime).args(args).exec())
}

/// Limits the container if necessary, and executes the low-level runtime. Returns only on failure; then the bundle is unchanged and
/// the container's directory is removed.
fn create(creation: &Creation, args: &[OsString], log: &Log) -> Error {
    match make_ready(creation, log) {
        Err(error) => error,
        Ok(Ready { runtime, rollback }) => {
            let error = exec(&runtime, args);
            if let Some(rollback) = rollback {
                rollback.run();
            }
            error
        }
    }
}

/// A bundle that is ready for the low-level runtime.
struct Ready {
    runtime: PathBuf,
    rollback: Option<Rollback>,
}

/// Undoes the changes for a container.
struct Rollback {
    config: PathBuf,
    text: Vec<u8>,
    prepared: Prepared,
}

impl Rollback {
    fn run(self) {
        // There is another error to report; what cannot be undone is swept later.
        let _ = apply::replace_file(&self.config, &self.text);
        self.prepared.remove();
    }
}

fn make_ready(creation: &Creation, log: &Log) -> Result<Ready> {
    let cwd = std::env::current_dir().map_err(Error::io("open", Path::new(".")))?;
    let dir = absolute(&cwd, creation.bundle.as_deref().unwrap_or(Path::new(".")));
    let policy_path = policy_path();
    let config = creation.config.as_deref().map_or_else(|| dir.join("config.json"), |config| absolute(&cwd, config));
    let is_invalid = creation.id.is_empty() || is_absent(&config);
    if is_invalid && let Some(runtime) = any_runtime().filter(|runtime| creation.id.is_empty() || is_known(runtime)) {
        // The low-level runtime reports the missing id or bundle in its own words.
        return Ok(Ready { runtime, rollback: None });
    }
    let policy = Policy::load(policy_path.as_deref());
    let known = policy.as_ref().ok().cloned().unwrap_or_default();
    let bundle = Bundle::load(&dir, Some(&config))?.of_engine(known.engine);
    let id = creation.id.to_str().unwrap_or_default();
    let passes = |error: &_| {
        !prepare::needs_policy(&bundle) && {
            warnings::invalid_policy(id, error, log);
            true
        }
    };
    // Both even if the policy is invalid.
    if prepare::is_sandbox(&bundle, id, &known) || policy.as_ref().err().is_some_and(passes) {
        let runtimes = Policy::runtimes_even_if_invalid(policy_path.as_deref());
        return Ok(Ready { runtime: process::find(&runtimes).ok_or_else(no_runtime)?, rollback: None });
    }
    let policy = policy?;
    let runtime = process::find(&policy.runtimes).ok_or_else(no_runtime)?;
    let rollback = match prepare::limits(&bundle, &policy)? {
        Some(limits) => {
            let mut prepared = Prepared::new(&bundle, &policy, limits, id)?;
            prepared.record.runtime = Some(runtime.clone());
            prepared.record.runtime_roots = runtime_roots(&creation.global, &cwd, &runtime);
            Some(limit(bundle, &policy, prepared, log)?)
        }
        None => {
            warnings::container(&bundle, &policy, id, None, log);
            None
        }
    };
    Ok(Ready { runtime, rollback })
}

/// Writes the container's directory and edits its bundle.
fn limit(bundle: Bundle, policy: &Policy, prepared: Prepared, log: &Log) -> Result<Rollback> {
    let edits = prepared.edits(&hook_program(policy)?)?;
    let cache = hami_cache::find(&bundle.spec, prepared.record.limits.hami_cache.as_deref()).filter(|_| prepared.is_limited());
    let spec = match &cache {
        Some(cache) => hami_cache::replace_directory(&bundle.spec, cache)?,
        None => bundle.spec.clone(),
    };
    let spec = apply::to_spec(spec, &edits)?;
    cache.map_or(Ok(()), |cache| cache.create())?;
    let text = serde_json::to_vec(&spec.json).map_err(|why| Error::Other(format!("cannot write config.json: {why}")))?;
    prepared.write()?;
    if let Err(error) = prepared.create_mount_points().and_then(|()| apply::replace_file(&bundle.config, &text)) {
        prepared.remove();
        return Err(error);
    }
    warnings::container(&bundle, policy, &prepared.record.id, Some(&prepared), log);
    Ok(Rollback { config: bundle.config, text: bundle.text, prepared })
}

/// Returns the hook program: the policy's, or the one next to this program.
fn hook_program(policy: &Policy) -> Result<PathBuf> {
    let adjacent = || std::env::current_exe().map(|this| this.with_file_name("vgpu-hook")).unwrap_or_default();
    let hook = policy.hook.clone().unwrap_or_else(adjacent);
    if !hook.is_file() {
        return Err(Error::refused("hook program", hook.display().to_string(), "the path of vgpu-hook (the policy's key hook)"));
    }
    Ok(hook)
}

/// Returns whether all ways are known in which this runtime finds a container's configuration.
fn is_known(runtime: &Path) -> bool {
    runtime.file_name().is_some_and(|name| KNOWN.iter().any(|known| name == *known))
}

fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|why| why.kind() == std::io::ErrorKind::NotFound)
}

/// Returns the directories in which the low-level runtime may keep an entry for each container.
fn runtime_roots(global: &Global, cwd: &Path, runtime: &Path) -> Vec<PathBuf> {
    if let Some(root) = &global.root {
        return vec![absolute(cwd, root)];
    }
    let name = runtime.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kinds: Vec<&str> = match KNOWN.iter().find(|kind| name.contains(*kind)) {
        Some(kind) => vec![kind],
        None => KNOWN.to_vec(),
    };
    let user_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases = [Some(PathBuf::from("/run")), user_dir];
    bases.into_iter().flatten().flat_map(|base| kinds.iter().map(move |kind| base.join(kind))).collect()
}

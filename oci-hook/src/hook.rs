//! `vgpu-hook`: mounts the files of containers that `vgpu-runtime` has prepared. Where no runtime can be put in front of another, it
//! limits containers by OCI hooks alone. Its commands are the stages at which it runs:
//!
//! * `create-runtime`, in the runtime's namespaces, after the container's mounts were made: decides, writes the container's directory,
//!   creates the mount points in the image, enters the container's mount namespace, and mounts.
//! * `prestart`: the same, for runtimes that have only that stage.
//! * `create-container`, in the container's mount namespace, before its root file system becomes the root: mounts what `vgpu-runtime`
//!   has prepared. Earlier versions registered it together with `create-runtime`; then everything is mounted already.
//! * `poststop`: removes the container's directory at once. It is optional, as the next create removes it, too, and a hook costs more
//!   than a millisecond.
//!
//! The environment is not read: some runtimes give hooks the image's environment.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use oci_spec::runtime::State as ContainerState;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, stat};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use serde_json::Value;
use vgpu_config::policy::Admission;
use vgpu_config::{Limits, Policy};
use vgpu_region::paths;

use crate::argv::{self, Global};
use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::injected::InjectedFile;
use crate::log::Log;
use crate::mounts::{MountSource, is_mount, pin_parents};
use crate::prepare::{self, Prepared};
use crate::process::{self, Process};
use crate::record::Record;
use crate::rootfs::{Rootfs, read_text};
use crate::state::State;
use crate::{driver, edits, seccomp, state, warnings};

/// Name of the program in messages.
const PROGRAM: &str = "vgpu-hook";
/// Maximum size of the container state on stdin, in bytes.
const MAX_STATE: usize = 4 << 20;

/// Runs as `vgpu-hook`.
#[must_use]
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [only] = &args[..]
        && let Some(text) = about(only)
    {
        println!("{text}");
        return ExitCode::SUCCESS;
    }
    // Opened before this process enters the container, in which the runtime's descriptors may have no path.
    let runtimes_stderr = process::parent_stderr_if_dropped();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // crun drops a hook's stderr, so the error also goes to the log of the runtime, or to its stderr if it has no log.
            let global = runtimes_flags();
            if let Some(mut stderr) = runtimes_stderr.filter(|_| global.log.is_none()) {
                let _ = writeln!(stderr, "{PROGRAM}: {error}");
            }
            Log::new(PROGRAM, &global).error(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Returns the global flags of the runtime that calls this hook.
fn runtimes_flags() -> Global {
    argv::creation(&process::parent_arguments()).map(|creation| creation.global).unwrap_or_default()
}

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    stage: String,
    config: Option<PathBuf>,
    state_dir: Option<PathBuf>,
}

const USAGE: &str = "vgpu-hook create-runtime | create-container | prestart | poststop, with --config PATH or --state-dir PATH (absolute)";

/// Returns the answer to `--version` or `--help`.
fn about(arg: &OsString) -> Option<String> {
    let version = format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"));
    match arg.to_str()? {
        "--version" | "-V" => Some(version),
        "--help" | "-h" => Some(format!("{version}: an OCI hook, which the runtime calls with the container's state on stdin\n{USAGE}")),
        _ => None,
    }
}

fn parse_options(args: &[OsString]) -> Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut path = || args.next().map(PathBuf::from).filter(|path| path.is_absolute());
        let value = match arg.to_str() {
            Some("--config") => &mut options.config,
            Some("--state-dir") => &mut options.state_dir,
            Some(stage @ ("create-runtime" | "create-container" | "prestart" | "poststop")) => {
                options.stage = stage.to_owned();
                continue;
            }
            _ => return Err(Error::refused("argument", arg.to_string_lossy(), USAGE)),
        };
        *value = Some(path().ok_or_else(|| Error::refused("argument", arg.to_string_lossy(), USAGE))?);
    }
    if options.stage.is_empty() {
        return Err(Error::refused("arguments", "", USAGE));
    }
    Ok(options)
}

fn run(args: &[OsString]) -> Result<()> {
    let options = parse_options(args)?;
    let text = read_text(std::io::stdin().lock().by_ref(), MAX_STATE).map_err(Error::io("read the state on", Path::new("stdin")))?;
    let mut container = parse_state(&text).map_err(|why| Error::Other(format!("the container state on stdin: {why}")))?;
    // The record has the canonical path. It cannot be resolved where the bundle is not visible.
    let bundle = container.bundle().canonicalize().unwrap_or_else(|_| container.bundle().clone());
    container.set_bundle(bundle);
    match options.stage.as_str() {
        "create-runtime" | "prestart" => limit(&container, &options),
        "create-container" => match find(&container, &options)? {
            // An earlier stage of this hook has mounted everything, and the region's file system after this mount namespace was made.
            Some((dir, record)) if record.runtime.is_none() => check_mounted(&record.injected_files(&dir), &record.rootfs),
            Some((dir, record)) => {
                let (files, fronts) = (sources(record.injected_files(&dir))?, sources(record.front_libraries())?);
                mount(&files, &fronts, &record.rootfs, &record)
            }
            None => check_unlimited(&container, &options),
        },
        _ => states(&options)?.iter().try_for_each(|state| state.delete(container.id(), container.bundle())),
    }
}

/// Parses the container state that runtimes pass to hooks.
fn parse_state(text: &str) -> std::result::Result<ContainerState, String> {
    let mut state: Value = serde_json::from_str(text).map_err(|why| why.to_string())?;
    // Not used here, and empty in the state of some runtimes.
    state.as_object_mut().map(|state| state.remove("status"));
    let state = ContainerState::deserialize(state).map_err(|why| why.to_string())?;
    if state.id().is_empty() || state.bundle().as_os_str().is_empty() {
        return Err("expected an id and a bundle".to_owned());
    }
    Ok(state)
}

/// Returns the state directories that may have the container: the one in the options, or those of the policy. A hook in the container's
/// user namespace cannot determine the user that the runtime acts for, so both default directories are searched.
fn states(options: &Options) -> Result<Vec<State>> {
    if let Some(dir) = &options.state_dir {
        return Ok(vec![State::at(dir)]);
    }
    // While the policy is invalid, a container whose record is not found starts only if it has no GPU.
    let policy = Policy::load(options.config.as_deref()).unwrap_or_default();
    let mut dirs = vec![policy.state_dir(None), policy.state_dir(process::rootless_user())];
    dirs.dedup();
    Ok(dirs.iter().map(|dir| State::at(dir)).collect())
}

fn find(container: &ContainerState, options: &Options) -> Result<Option<(PathBuf, Record)>> {
    Ok(states(options)?.iter().find_map(|state| state.find(container.id(), container.bundle())))
}

/// Checks that a container without a record does not have to be limited. In nested user namespaces the state directory of the user that
/// the runtime acts for cannot be determined, and a record that is not found must not mean that the container is unlimited.
fn check_unlimited(container: &ContainerState, options: &Options) -> Result<()> {
    let no_record = || {
        let states = states(options).unwrap_or_default();
        let dirs: Vec<_> = states.iter().map(|state| state.dir().display().to_string()).collect();
        let expected = format!("the id of a container with a record in {} (the policy's key state_dir)", dirs.join(" or "));
        Err(Error::refused("container id", container.id(), expected))
    };
    // vgpu-runtime has added the hook for this very container.
    if options.state_dir.is_some() {
        return no_record();
    }
    match Bundle::load(container.bundle(), None) {
        Ok(bundle) if edits::has_runtime_hook(&bundle.spec) => Ok(()),
        Ok(bundle) => {
            let policy = match Policy::load(options.config.as_deref()) {
                Err(_) if !prepare::needs_policy(&bundle) => return Ok(()),
                other => other?,
            };
            match decide(&bundle.of_engine(policy.engine), container.id(), &policy)? {
                Some(limits) if limits.is_limited() => no_record(),
                _ => Ok(()),
            }
        }
        // The root of a container may not be allowed to read the bundle. Then the mount points show whether it is limited. The working
        // directory is the bundle or the root file system, depending on the runtime.
        Err(_) if ["rootfs", ""].iter().any(|dir| Path::new(dir).join(paths::LIMITS.trim_start_matches('/')).exists()) => no_record(),
        Err(_) => Ok(()),
    }
}

/// Decides the limits of the container with this id. `None` if it is not changed, as a pod's sandbox.
fn decide(bundle: &Bundle, id: &str, policy: &Policy) -> Result<Option<Limits>> {
    if prepare::is_sandbox(bundle, id, policy) { Ok(None) } else { prepare::limits(bundle, policy) }
}

/// A container that is ready to be mounted into.
struct Ready {
    /// The container's directory on the host.
    dir: PathBuf,
    record: Record,
    /// Whether the specification mounts `/proc`.
    has_proc: bool,
}

/// Decides and prepares. `None`: the container is not changed, or `vgpu-runtime` has prepared it.
fn prepare(container: &ContainerState, options: &Options) -> Result<Option<Ready>> {
    let bundle = Bundle::load(container.bundle(), None)?;
    if edits::has_runtime_hook(&bundle.spec) {
        return Ok(None);
    }
    let log = Log::new(PROGRAM, &runtimes_flags());
    let mut policy = match Policy::load(options.config.as_deref()) {
        Err(error) if !prepare::needs_policy(&bundle) => {
            warnings::invalid_policy(container.id(), &error, &log);
            return Ok(None);
        }
        other => other?,
    };
    if options.state_dir.is_some() {
        policy.state_dir.clone_from(&options.state_dir);
    }
    let bundle = bundle.of_engine(policy.engine);
    if prepare::is_sandbox(&bundle, container.id(), &policy) {
        return Ok(None);
    }
    let Some(mut limits) = prepare::limits(&bundle, &policy)? else {
        warnings::container(&bundle, &policy, container.id(), None, &log);
        return Ok(None);
    };
    // MPS needs variables, which a hook cannot set.
    limits.mps = None;
    check_environment(&limits)?;
    if policy.privileged == Admission::Refuse && limits.is_limited() && seccomp::allows_user_namespaces(&bundle.spec) {
        let expected = "a limited container whose seccomp profile refuses user namespaces, in which the library's mounts can be hidden: \
                        vgpu-runtime changes the profile, hooks cannot (the policy's key privileged)";
        return Err(Error::refused("linux.seccomp", "user namespaces are allowed", expected));
    }
    let mut prepared = Prepared::new(&bundle, &policy, limits, container.id())?;
    prepared.record.init = pid(container).and_then(Process::with_pid);
    prepared.write()?;
    if let Err(error) = prepared.create_mount_points() {
        prepared.remove();
        return Err(error);
    }
    // Before this process enters the container, where the logs are out of reach.
    warnings::container(&bundle, &policy, container.id(), Some(&prepared), &log);
    let has_proc = bundle.spec.mounts().any(|mount| mount.destination() == Path::new("/proc"));
    let (dir, record) = prepared.into_parts();
    Ok(Some(Ready { dir, record, has_proc }))
}

/// Refuses limits that would need other variables than the container has.
fn check_environment(limits: &Limits) -> Result<()> {
    let devices = limits.devices.as_ref().map(|devices| format!("GPUs {}", devices.join(",")));
    let capabilities = limits.driver_capabilities.as_ref().map(|capabilities| format!("driver capabilities {capabilities}"));
    match devices.or(capabilities) {
        Some(narrowed) => Err(Error::refused(
            "environment",
            format!("narrowed to the {narrowed}"),
            "a container whose environment does not change, as hooks cannot change it (vgpu-runtime can)",
        )),
        None => Ok(()),
    }
}

fn pid(container: &ContainerState) -> Option<u32> {
    container.pid().and_then(|pid| u32::try_from(pid).ok())
}

/// Limits the container from outside: enters its mount namespace.
fn limit(container: &ContainerState, options: &Options) -> Result<()> {
    let Some(ready) = prepare(container, options)? else { return Ok(()) };
    let mounted = enter_and_mount(pid(container).unwrap_or(0), &ready);
    if mounted.is_err() {
        let _ = state::remove(&ready.dir);
    }
    mounted
}

fn enter_and_mount(pid: u32, Ready { dir, record, has_proc }: &Ready) -> Result<()> {
    let path = PathBuf::from(format!("/proc/{pid}/ns/mnt"));
    let detach = |files| sources(files)?.into_iter().map(MountSource::detach).collect::<Result<Vec<_>>>();
    let (files, fronts) = (detach(record.injected_files(dir))?, detach(record.front_libraries())?);
    let wanted = file_id(&record.rootfs)?;
    let namespace = open_namespace(&path)?;
    if namespace_id(&namespace)? == namespace_id(&open_namespace(Path::new("/proc/self/ns/mnt"))?)? {
        return Err(Error::refused("container pid", pid.to_string(), "the process of a container with its own mount namespace"));
    }
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(Error::io("enter", &path))?;
    // If the runtime has made it the root already, it is not visible under its host path. If this process runs in a chroot, it may be at
    // neither, and `/` may be the host's own root.
    let Some(rootfs) = [record.rootfs.as_path(), Path::new("/")].into_iter().find(|path| file_id(path).is_ok_and(|id| id == wanted)) else {
        let expected = "a root file system that the container's mount namespace shows at this path: an engine outside of a chroot";
        return Err(Error::refused("root.path", record.rootfs.display().to_string(), expected));
    };
    // Mounts of the container that are made later would cover these.
    let opened = Rootfs::open(rootfs)?;
    if *has_proc && !opened.find("/proc")?.is_some_and(|proc| is_mount(proc.as_fd())) {
        return Err(Error::Other("the container's mounts are missing: expected a runtime that makes them before this hook".into()));
    }
    mount(&files, &fronts, rootfs, record)
}

fn open_namespace(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(Error::io("open", path))
}

/// Returns the device and inode number that identify a namespace.
fn namespace_id(namespace: &OwnedFd) -> Result<(u64, u64)> {
    let found = fstat(namespace).map_err(Error::io("stat", Path::new("/proc/self/ns/mnt")))?;
    Ok((found.st_dev, found.st_ino))
}

/// Returns the device and inode number that identify a file.
fn file_id(path: &Path) -> Result<(u64, u64)> {
    let found = stat(path).map_err(Error::io("stat", path))?;
    Ok((found.st_dev, found.st_ino))
}

fn sources(files: Vec<InjectedFile>) -> Result<Vec<MountSource>> {
    files.iter().map(MountSource::find).collect()
}

/// Checks that all files are mounted in the root file system at `path`.
fn check_mounted(files: &[InjectedFile], path: &Path) -> Result<()> {
    let rootfs = Rootfs::open(path)?;
    for file in files {
        if !rootfs.find_kind(file.destination, file.is_dir)?.is_some_and(|found| is_mount(found.as_fd())) {
            let expected = "the file that vgpu-hook create-runtime has mounted";
            return Err(Error::Image { path: file.destination.into(), found: "not a mount point", expected });
        }
    }
    Ok(())
}

/// Mounts all files into the root file system, which is at `path` in this mount namespace.
fn mount(files: &[MountSource], fronts: &[MountSource], path: &Path, record: &Record) -> Result<()> {
    let rootfs = Rootfs::open(path)?;
    for source in files {
        source.create_mount_point(&rootfs)?;
        pin_parents(&rootfs, source.destination())?;
    }
    for source in files {
        source.mount(&rootfs)?;
    }
    driver::replace(&rootfs, fronts, &record.library_path, record.preload)
}

#[cfg(test)]
mod tests;

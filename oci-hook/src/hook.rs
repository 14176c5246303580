//! `vgpu-hook`: limits a container by OCI hooks alone, for runtimes in front of which nothing can be put; and mounts for
//! `vgpu-runtime`.
//!
//! * `create-runtime`, in the runtime's namespaces, when it has made the container's mounts: decides, writes the container's folder,
//!   makes the mount points in the image, enters the container's mount namespace, and mounts.
//! * `prestart`: the same, for runtimes that have only that.
//! * `create-container`, in the container's mount namespace, before its root file system becomes the root: mounts what `vgpu-runtime`
//!   has prepared. Where earlier versions registered it beside `create-runtime`, it finds everything done.
//! * `poststop`: removes the container's folder at once. It need not be there: the next create does the same, and a hook costs more
//!   than a millisecond.
//!
//! Nothing is read from the environment: some runtimes hand hooks the image's.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use vgpu_config::Policy;
use vgpu_region::paths;

use crate::argv::{self, Global};
use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::injected::Mounted;
use crate::log::Log;
use crate::mounts::{Source, is_mount, pin_folders};
use crate::prepare::{self, Prepared};
use crate::process::{self, Process};
use crate::record::Record;
use crate::rootfs::{Rootfs, read_text};
use crate::state::State;
use crate::{driver, edits};

/// What `vgpu-hook` calls itself in messages.
const PROGRAM: &str = "vgpu-hook";
/// Most bytes of a container's state that are read.
const MOST: usize = 4 << 20;

/// Runs as `vgpu-hook`.
#[must_use]
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // crun drops what a hook says on stderr, so it also goes where the runtime's caller looks.
            let runtime = argv::creation(&process::parents_arguments());
            let global: Global = runtime.map(|creation| creation.global).unwrap_or_default();
            Log::new(PROGRAM, &global).error(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// What a hook is told of its container on stdin.
#[derive(Debug, Deserialize)]
struct Told {
    id: String,
    bundle: PathBuf,
    #[serde(default)]
    pid: i64,
}

/// How we were called.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    stage: String,
    config: Option<PathBuf>,
    state_dir: Option<PathBuf>,
}

fn options(args: &[OsString]) -> Result<Options> {
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

const USAGE: &str = "vgpu-hook create-runtime | create-container | prestart | poststop, with --config PATH or --state-dir PATH (absolute)";

fn run(args: &[OsString]) -> Result<()> {
    let options = options(args)?;
    let text = read_text(std::io::stdin().lock().by_ref(), MOST).map_err(Error::io("read the state on", Path::new("stdin")))?;
    let mut told: Told = serde_json::from_str(&text).map_err(|why| Error::Other(format!("the state on stdin: {why}")))?;
    // Where it can be seen, in its plain form, as it is on record.
    told.bundle = told.bundle.canonicalize().unwrap_or(told.bundle);
    match options.stage.as_str() {
        "create-runtime" | "prestart" => limit(&told, &options),
        "create-container" => match find(&told, &options)? {
            Some((place, record)) => mount(&sources(record.files(&place))?, &sources(record.fronts())?, &record.rootfs, &record),
            None => may_be_unlimited(&told, &options),
        },
        _ => states(&options)?.iter().try_for_each(|state| state.delete(&told.id, &told.bundle)),
    }
}

/// Where the container's folder may be: said by whoever set up the hook, or where the policy has it. A hook in the container's
/// user namespace cannot tell for whom the runtime acts, so both of the usual places are looked at.
fn states(options: &Options) -> Result<Vec<State>> {
    if let Some(dir) = &options.state_dir {
        return Ok(vec![State::at(dir)]);
    }
    let policy = Policy::load(options.config.as_deref())?;
    let mut dirs = vec![policy.state_dir(None), policy.state_dir(process::rootless_user())];
    dirs.dedup();
    Ok(dirs.iter().map(|dir| State::at(dir)).collect())
}

fn find(told: &Told, options: &Options) -> Result<Option<(PathBuf, Record)>> {
    Ok(states(options)?.iter().find_map(|state| state.find(&told.id, &told.bundle)))
}

/// Checks that a container of which nothing is on record is none of our business: in a user namespace within another one, the folder
/// of whoever acts for its user cannot be told, and not to be found must not mean to be let go.
fn may_be_unlimited(told: &Told, options: &Options) -> Result<()> {
    let lost = || {
        let dirs = states(options).unwrap_or_default();
        let dirs: Vec<_> = dirs.iter().map(|state| state.dir().display().to_string()).collect();
        let accepted = format!("one whose folder is found in {} (the policy's key state_dir says where)", dirs.join(" or "));
        Err(Error::refused("container id", &told.id, accepted))
    };
    // Set up by vgpu-runtime for this very container.
    if options.state_dir.is_some() {
        return lost();
    }
    match Bundle::load(&told.bundle, None) {
        Ok(bundle) if is_others(&bundle) => Ok(()),
        Ok(bundle) => match prepare::limits(&bundle, &Policy::load(options.config.as_deref())?)? {
            Some(limits) if limits.limit_anything() => lost(),
            _ => Ok(()),
        },
        // A container's root may not be let see the bundle; then the places that were made tell. Some runtimes start us in the one
        // folder, some in the other.
        Err(_) if ["rootfs", ""].iter().any(|at| Path::new(at).join(paths::LIMITS.trim_start_matches('/')).exists()) => lost(),
        Err(_) => Ok(()),
    }
}

/// Whether it is a sandbox, or one that `vgpu-runtime` has seen to.
fn is_others(bundle: &Bundle) -> bool {
    bundle.spec.is_sandbox() || edits::is_planned(&bundle.spec)
}

/// Decides and prepares; tells also whether `/proc` is one of its mounts. `None`: the container is none of our business, or already
/// limited by `vgpu-runtime`.
fn prepare(told: &Told, options: &Options) -> Result<Option<(PathBuf, Record, bool)>> {
    let bundle = Bundle::load(&told.bundle, None)?;
    if is_others(&bundle) {
        return Ok(None);
    }
    let mut policy = Policy::load(options.config.as_deref())?;
    if options.state_dir.is_some() {
        policy.state_dir.clone_from(&options.state_dir);
    }
    let Some(mut limits) = prepare::limits(&bundle, &policy)? else { return Ok(None) };
    // What makes it a client of MPS is in its environment.
    limits.mps = None;
    for (what, narrowed) in
        [("GPUs", limits.devices.as_ref().map(|devices| devices.join(","))), ("driver capabilities", limits.driver_capabilities.clone())]
    {
        if let Some(narrowed) = narrowed {
            return Err(Error::refused(
                "environment",
                format!("narrowed to the {what} {narrowed}"),
                "a container whose environment stays as it is, as hooks cannot change it (vgpu-runtime can)",
            ));
        }
    }
    let mut prepared = Prepared::new(&bundle, &policy, limits, &told.id)?;
    prepared.record.init = u32::try_from(told.pid).ok().and_then(Process::with_pid);
    prepared.write()?;
    if let Err(error) = prepared.make_places() {
        prepared.remove();
        return Err(error);
    }
    let has_proc = bundle.spec.mounts().any(|(place, _)| place == "/proc");
    let (place, record) = prepared.into_parts();
    Ok(Some((place, record, has_proc)))
}

/// Limits the container from outside: its mount namespace is entered.
fn limit(told: &Told, options: &Options) -> Result<()> {
    let Some((place, record, has_proc)) = prepare(told, options)? else { return Ok(()) };
    let done = enter_and_mount(told.pid, &place, &record, has_proc);
    if done.is_err() {
        let _ = crate::state::remove(&place);
    }
    done
}

fn enter_and_mount(pid: i64, place: &Path, record: &Record, has_proc: bool) -> Result<()> {
    let namespace = PathBuf::from(format!("/proc/{pid}/ns/mnt"));
    let hold = |files| sources(files)?.into_iter().map(Source::hold).collect::<Result<Vec<_>>>();
    let (files, fronts) = (hold(record.files(place))?, hold(record.fronts())?);
    let entered = openat(CWD, &namespace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(Error::io("open", &namespace))?;
    if identity(&entered)? == identity(&own_namespace()?)? {
        return Err(Error::refused("state", format!("pid {pid}"), "a container with a mount namespace of its own"));
    }
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&entered), Some(LinkNameSpaceType::Mount))
        .map_err(Error::io("enter", &namespace))?;
    // A runtime that has already made it the root no longer shows it under its host path.
    let rootfs = if record.rootfs.is_dir() { record.rootfs.as_path() } else { Path::new("/") };
    // A mount made now would be covered by the container's own if these were still to come.
    let opened = Rootfs::open(rootfs)?;
    if has_proc && !opened.find("/proc")?.is_some_and(|proc| is_mount(std::os::fd::AsFd::as_fd(&proc))) {
        return Err(Error::Other("the container's mounts are not made yet: accepted is a runtime that makes them before this hook".into()));
    }
    mount(&files, &fronts, rootfs, record)
}

fn own_namespace() -> Result<OwnedFd> {
    let path = Path::new("/proc/self/ns/mnt");
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(Error::io("open", path))
}

fn identity(namespace: &OwnedFd) -> Result<(u64, u64)> {
    let found = fstat(namespace).map_err(Error::io("look at", Path::new("/proc/self/ns/mnt")))?;
    Ok((found.st_dev, found.st_ino))
}

fn sources(files: Vec<Mounted>) -> Result<Vec<Source>> {
    files.iter().map(Source::find).collect()
}

/// Mounts everything into the root file system, which is at `path` in this mount namespace.
fn mount(files: &[Source], fronts: &[Source], path: &Path, record: &Record) -> Result<()> {
    let rootfs = Rootfs::open(path)?;
    for source in files {
        source.make_place(&rootfs)?;
        pin_folders(&rootfs, source.inside())?;
    }
    for source in files {
        source.mount(&rootfs)?;
    }
    driver::replace(&rootfs, fronts, &record.library_path, record.preload)
}

#[cfg(test)]
mod tests;

//! How one process of `vgpu monitor` starts another: it executes its own program again, with the same arguments and the name of a part.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use rustix::thread::set_name;
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// Option that names the part. It is last on the command line.
const OPTION: &str = "--part";
/// Variable with the [`Assignment`].
const VARIABLE: &str = "VGPU_MONITOR_PART";

/// A process of `vgpu monitor` besides the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Samples, detects violations and ends their processes.
    Enforce,
    /// Gives turns.
    Arbiter,
    /// Answers HTTP.
    Http,
    /// Starts a writer for each container that requests files.
    Files,
    /// Writes the files that one container requests.
    Writer,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 5] = [Self::Enforce, Self::Arbiter, Self::Http, Self::Files, Self::Writer];

    /// Returns the name, as on the command line, in logs and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Arbiter => "arbiter",
            Self::Http => "http",
            Self::Files => "files",
            Self::Writer => "writer",
        }
    }

    /// Returns the name of the process, of at most 15 bytes.
    const fn process_name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Enforce => c"vgpu-enforce",
            Self::Arbiter => c"vgpu-arbiter",
            Self::Http => c"vgpu-http",
            Self::Files => c"vgpu-files",
            Self::Writer => c"vgpu-writer",
        }
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let expected = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|part| part.name() == name).ok_or_else(|| format!("expected {}", expected()))
    }
}

/// Files that a container requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Name of the container's directory in the state directory.
    pub dir_name: String,
    /// PID of the container's first process.
    pub init: u32,
    /// Start time of that process in clock ticks since boot.
    pub init_started: u64,
    /// Display name of the container.
    pub name: String,
    /// Path in the container of HAMi's shared region.
    pub hami_cache: Option<String>,
    /// Path in the container of the trace logs.
    pub trace_dir: Option<String>,
}

/// What a process is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// PID of the process that started this one.
    parent: i32,
    /// Settings of the service.
    pub settings: Settings,
    /// Work of a writer.
    pub request: Option<Request>,
    /// Numbers of the inherited descriptors, in the order in which the parent listed them.
    descriptors: Vec<RawFd>,
}

impl Assignment {
    /// Reads this process's assignment.
    ///
    /// # Errors
    /// This process was not started by [`start`], or the process that started it has exited.
    pub fn load(part: Part) -> io::Result<Self> {
        let text =
            std::env::var(VARIABLE).map_err(|error| io::Error::other(format!("{VARIABLE}: {error}: {OPTION} is for vgpu itself")))?;
        let this: Self = serde_json::from_str(&text)?;
        set_name(part.process_name())?;
        Ok(this)
    }

    /// Makes this process end with its parent. The kernel forgets it when a process changes its identity, so it is called after that.
    ///
    /// # Errors
    /// The parent has exited.
    pub fn follow_parent(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let is_there = getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == self.parent);
        if is_there { Ok(()) } else { Err(io::Error::other("the process that started this one has exited")) }
    }

    /// Takes the inherited descriptors, which the processes that this one starts do not inherit.
    ///
    /// # Errors
    /// There are not `N`, or one is not open.
    pub fn descriptors<const N: usize>(&mut self) -> io::Result<[OwnedFd; N]> {
        let owned = std::mem::take(&mut self.descriptors).into_iter().map(|number| {
            // SAFETY: the parent opened this descriptor for this process alone, and the list is taken, so nothing else owns it.
            let owned = unsafe { OwnedFd::from_raw_fd(number) };
            fcntl_setfd(&owned, FdFlags::CLOEXEC).map(|()| owned)
        });
        let owned = owned.collect::<Result<Vec<_>, _>>()?;
        owned.try_into().map_err(|found: Vec<_>| io::Error::other(format!("expected {N} descriptors, found {}", found.len())))
    }
}

/// Keeps the descriptors that whoever started this process left open from the parts.
///
/// # Errors
/// `/proc` is out of reach.
pub fn keep_descriptors() -> io::Result<()> {
    let numbers = std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.collect::<Vec<_>>().into_iter().filter(|number| *number > 2) {
        // SAFETY: the number is only used for these calls, which fail if nothing is open there any more.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor) {
            fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// Starts a part, which inherits `descriptors`. The calling process must have no other threads that start programs.
///
/// # Errors
/// The process cannot be started.
pub fn start(part: Part, settings: &Settings, request: Option<Request>, descriptors: &[BorrowedFd<'_>]) -> io::Result<Child> {
    let assignment = Assignment {
        parent: getpid().as_raw_nonzero().get(),
        settings: settings.clone(),
        request,
        descriptors: descriptors.iter().map(AsRawFd::as_raw_fd).collect(),
    };
    // The program itself, even if its file was replaced by an upgrade.
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1).take_while(|argument| argument != OPTION)).args([OPTION, part.name()]);
    command.env(VARIABLE, serde_json::to_string(&assignment)?).stdin(Stdio::null()).stdout(Stdio::null());
    let set_all = |inherit: bool| descriptors.iter().try_for_each(|descriptor| set_inheritable(descriptor.as_fd(), inherit));
    set_all(true)?;
    let started = command.spawn();
    set_all(false)?;
    started
}

/// Sets whether programs that this process starts inherit a descriptor.
fn set_inheritable(descriptor: BorrowedFd<'_>, inherit: bool) -> io::Result<()> {
    let mut flags = fcntl_getfd(descriptor)?;
    flags.set(FdFlags::CLOEXEC, !inherit);
    Ok(fcntl_setfd(descriptor, flags)?)
}

/// Sends a signal to a child that was not waited for yet.
///
/// # Errors
/// This process may not send it.
pub fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    Ok(kill_process(Pid::from_child(child), signal)?)
}

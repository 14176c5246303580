//! The containers of the soak, and what is done to them.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vgpu_e2e::{process, start_detached};
use vgpu_test_harness::{Bundle, Host};

/// A container.
pub struct Tenant {
    /// Its id.
    pub id: String,
    /// Index of its host, which has its runtime.
    pub host: usize,
    /// Whether it was started through `vgpu-runtime`, else by the bare runtime with hooks.
    pub wrapped: bool,
    /// Whether its processes change what they hold only if something is done to the container.
    pub is_quiet: bool,
    /// The largest memory limit that it had, in bytes. `None` if it had none at some time.
    pub most: Option<u64>,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether its first process was killed.
    pub killed: bool,
    /// When something was last done to it.
    pub touched: Instant,
    /// PID of its first process.
    pub init: u32,
    /// Its PID namespace.
    pub namespace: String,
    bundle: Bundle,
}

/// What a container is made of.
pub struct Plan {
    /// Its bundle, with annotations.
    pub bundle: Bundle,
    /// Index of the host.
    pub host: usize,
    /// Whether `vgpu-runtime` starts it.
    pub wrapped: bool,
    /// Whether its processes change nothing by themselves.
    pub is_quiet: bool,
    /// Its memory limit in bytes.
    pub limit: Option<u64>,
}

/// Runs a command to its end. Returns what it wrote to stderr if it failed.
pub fn done(command: &mut Command) -> Result<Output, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(output) } else { Err(format!("{}: {}", output.status, said.trim())) }
}

/// Returns the runtime's command line for a container that is or is not started through `vgpu-runtime`.
fn runtime(host: &Host, wrapped: bool) -> Command {
    if wrapped { host.command() } else { host.bare_command() }
}

fn bundle(host: &Host, plan: Plan) -> Bundle {
    if plan.wrapped { plan.bundle } else { host.with_hooks(plan.bundle) }
}

impl Tenant {
    /// Starts a container.
    pub fn start(hosts: &[Host], plan: Plan, id: String) -> Result<Self, String> {
        let (host, wrapped, is_quiet, most) = (plan.host, plan.wrapped, plan.is_quiet, plan.limit);
        let bundle = bundle(&hosts[host], plan);
        if let Err(why) = start_detached(runtime(&hosts[host], wrapped), &bundle, &id) {
            remove(&hosts[host], wrapped, &id);
            return Err(why);
        }
        let pid = std::fs::read_to_string(bundle.path().join("pid")).unwrap_or_default();
        let init = pid.trim().parse().map_err(|_| format!("its PID: expected a number, found {pid:?}"))?;
        let namespace = process::namespace(init).unwrap_or_default();
        Ok(Self { id, host, wrapped, is_quiet, most, paused: false, killed: false, touched: Instant::now(), init, namespace, bundle })
    }

    /// Kills the runtime while it creates a container, and removes what is there. With `group`, all processes that it has started are killed,
    /// else it alone.
    pub fn kill_create(hosts: &[Host], plan: Plan, id: &str, after: Duration, group: bool) {
        use std::os::unix::process::CommandExt;
        let (host, wrapped) = (&hosts[plan.host], plan.wrapped);
        let bundle = bundle(host, plan);
        bundle.write();
        let mut create = runtime(host, wrapped);
        create.arg("create").arg("--bundle").arg(bundle.path()).arg(id).process_group(0);
        let mut child = create.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the runtime starts");
        std::thread::sleep(after);
        let killed = Pid::from_child(&child);
        let _ = if group { rustix::process::kill_process_group(killed, Signal::KILL) } else { kill_process(killed, Signal::KILL) };
        let _ = child.wait();
        // A runtime that vgpu-runtime has started goes on without it.
        std::thread::sleep(Duration::from_millis(500));
        remove(host, wrapped, id);
    }

    /// Notes that its memory limit is changed.
    pub fn note_limit(&mut self, limit: Option<u64>) {
        self.most = self.most.zip(limit).map(|(most, limit)| most.max(limit));
    }

    /// Runs a subcommand of the low-level runtime: `before` are the words before the id.
    pub fn call(&mut self, hosts: &[Host], before: &[&str], after: &[&str]) -> Result<Output, String> {
        self.touched = Instant::now();
        done(runtime(&hosts[self.host], self.wrapped).args(before).arg(&self.id).args(after))
    }

    /// Starts a program in it and does not wait for its end.
    pub fn exec(&mut self, hosts: &[Host], words: &[&str]) -> Result<(), String> {
        self.touched = Instant::now();
        let log = self.bundle.path().join("exec");
        // A file, because a detached program keeps inherited pipes open.
        let to = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let mut command = runtime(&hosts[self.host], self.wrapped);
        command.args(["exec", "--detach", &self.id]).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(to);
        let status = command.status().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("{status}: {}", std::fs::read_to_string(log).unwrap_or_default().trim())) }
    }

    /// Pauses or resumes it.
    pub fn pause(&mut self, hosts: &[Host], paused: bool) -> Result<(), String> {
        self.call(hosts, &[if paused { "pause" } else { "resume" }], &[])?;
        self.paused = paused;
        Ok(())
    }

    /// Returns its processes: those in its PID namespace.
    pub fn processes(&self) -> Vec<u32> {
        process::all().into_iter().filter(|pid| process::namespace(*pid).as_ref() == Some(&self.namespace)).collect()
    }

    /// Deletes it.
    pub fn delete(mut self, hosts: &[Host]) -> Result<(), String> {
        // runc does not wait for the end of a paused container's processes. Engines resume a container first, too.
        if self.paused {
            let _ = self.pause(hosts, false);
        }
        self.call(hosts, &["delete", "--force"], &[]).map(drop)
    }

    /// Asks its programs to end after what they are doing now.
    pub fn stop(&self) {
        let _ = std::fs::write(self.bundle.rootfs().join("tmp/stop"), "");
    }
}

/// Removes what a failed create has left: the runtime's own, and processes that it no longer knows.
fn remove(host: &Host, wrapped: bool, id: &str) {
    let _ = done(runtime(host, wrapped).args(["delete", "--force", id]));
    for pid in crate::counts::in_cgroups_of(id) {
        let _ = Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
    }
    let _ = done(runtime(host, wrapped).args(["delete", "--force", id]));
    crate::counts::cgroups(id).iter().for_each(|cgroup| _ = std::fs::remove_dir(cgroup));
}

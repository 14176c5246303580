//! `vgpu run`: starts a program with limits and without a container.
//!
//! Two processes do it. The first one starts the second one, forwards signals to it, waits, and removes what is left. The second one writes
//! the record with itself as creator and first process, and then becomes the program by exec. So at no time does the program run without a
//! record, and the record counts as dead once the program has ended, whatever happens to the first process.

mod cgroup;
mod limits;
mod program;
mod supervise;

use std::error::Error;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use vgpu_config::Policy;
use vgpu_oci_hook::prepare;
use vgpu_oci_hook::process::{Process, rootless_user};
use vgpu_oci_hook::record::{Program, Record};
use vgpu_oci_hook::state::{self, Access, Files, State};
use vgpu_region::paths;

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use limits::Decided;

/// Exit status if the program was not started, as with env(1) and timeout(1).
const NOT_STARTED: u8 = 125;

/// Run a program with limits, without a container
///
/// The program and its children share one account. The limits hold for programs that let them: a program can remove LD_PRELOAD from the
/// environment of its children. Exits with the program's status, with 128+N if signal N ended it, or with 125 if it was not started.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    limits: limits::Options,
    /// Name in "vgpu show" and in metrics (default: the program's)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The library libvgpu.so (default: the policy's)
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Become the program, in the process that vgpu run started for it, with this id
    #[arg(long = "as", hide = true, value_name = "ID")]
    id: Option<String>,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let outcome = match &self.id {
            Some(id) => self.become_program(id).map(|never| match never {}),
            None => self.supervise(),
        };
        Ok(outcome.unwrap_or_else(|error| {
            eprintln!("vgpu: {error}");
            ExitCode::from(NOT_STARTED)
        }))
    }

    /// Runs the program in another process, and removes what is left of it.
    fn supervise(&self) -> Outcome {
        let state = State::at(&self.config.state_dir()?);
        let this = Process::this();
        let id = format!("run-{}-{}", this.pid, this.start_time);
        let mut again = Command::new("/proc/self/exe");
        again.arg0("vgpu").args(["run", "--as", &id]).args(std::env::args_os().skip(2));
        let status = supervise::run(again)?;
        state.delete_dead(&id);
        Ok(status)
    }

    /// Becomes the program. Returns only if that fails; nothing is left then.
    fn become_program(&self, id: &str) -> Result<std::convert::Infallible, Box<dyn Error>> {
        refuse_limits_in_limits()?;
        let mut policy = self.config.policy()?;
        policy.library = self.library.clone().unwrap_or(policy.library);
        let state_dir = self.config.state_dir()?;
        let Decided { limits, visible } = self.limits.decide(&policy, &state_dir)?;
        let library = find_library(&policy)?;
        let preload = preload(&library, std::env::var_os("LD_PRELOAD"));
        let (name, arguments) = self.command.split_first().ok_or("no program")?;
        let path = program::find(name)?;
        program::check(&path, &library, &preload)?;

        let state = State::at(&state_dir);
        // Its own path as the bundle: a program has none, and no two directories have the same.
        let dir = state.reserve(id, &state_dir.join(state::CONTAINERS).join(id))?;
        if dir.as_os_str().len() > paths::MAX_DIR_LEN {
            let (name, longest) = (dir.display(), paths::MAX_DIR_LEN);
            return Err(format!("{name}: expected a path of at most {longest} bytes (--state-dir)").into());
        }
        let page = limits.page().ok_or("the limits do not fit into the limits page")?;
        let own_name = || path.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut record = Record {
            id: id.to_owned(),
            bundle: dir.clone(),
            rootfs: "/".into(),
            container: self.name.clone().or_else(own_name),
            pod: None,
            namespace: None,
            pod_uid: None,
            limits,
            decided: None,
            library,
            preload: true,
            replace: false,
            library_path: String::new(),
            runtime: None,
            runtime_roots: Vec::new(),
            creator: Process::this(),
            init: Some(Process::this()),
            created: prepare::now(),
            program: Some(Program::default()),
        };
        if rootless_user().is_some() && !state_dir.exists() {
            DirBuilder::new().mode(0o700).create(&state_dir).map_err(|error| format!("{}: {error}", state_dir.display()))?;
        }
        record.program = Some(Program { cgroup: cgroup::enter(id) });
        let created = state.create(&dir, &record, &page, Files { preload: None, access: Access::Owner });
        let error: Box<dyn Error> = match created {
            Err(error) => error.into(),
            Ok(()) => {
                let mut command = Command::new(&path);
                command.arg0(name).args(arguments).envs(visible).env("LD_PRELOAD", preload).env(paths::DIR_VARIABLE, &dir);
                format!("{}: {}", path.display(), command.exec()).into()
            }
        };
        let _ = state::remove(&dir);
        Err(error)
    }
}

/// Refuses to start a program whose limits would not be those of `vgpu run`, or would replace stricter ones.
fn refuse_limits_in_limits() -> Result<(), String> {
    if Path::new(paths::LIMITS).exists() {
        return Err(format!("{} exists: expected a program outside of containers with limits", paths::LIMITS));
    }
    match std::env::var_os(paths::DIR_VARIABLE) {
        Some(dir) => {
            Err(format!("{}={}: expected a program that has no limits yet", paths::DIR_VARIABLE, dir.to_string_lossy().escape_debug()))
        }
        None => Ok(()),
    }
}

/// Finds the policy's library.
fn find_library(policy: &Policy) -> Result<PathBuf, Box<dyn Error>> {
    let path = vgpu_oci_hook::library::find(policy)?;
    // The loader separates the entries of LD_PRELOAD by these.
    if path.to_string_lossy().contains([' ', ':']) {
        return Err(format!("library: \"{}\": expected a path without spaces and colons", path.display()).into());
    }
    Ok(path)
}

/// Returns a value of `LD_PRELOAD` with the library in front of what the user has.
fn preload(library: &Path, users: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(users) = users.filter(|users| !users.is_empty()) {
        value.push(":");
        value.push(users);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_in_front_of_the_users() {
        let with = |users: Option<&str>| preload(Path::new("/l/libvgpu.so"), users.map(OsString::from));
        assert_eq!(with(None), "/l/libvgpu.so");
        assert_eq!(with(Some("")), "/l/libvgpu.so");
        assert_eq!(with(Some("libasan.so /x.so")), "/l/libvgpu.so:libasan.so /x.so");
    }
}

//! A host with its own policy, state and low-level runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tempfile::TempDir;

use crate::{Bundle, Runtime};

/// A host in a temporary folder.
#[derive(Debug)]
pub struct Host {
    dir: TempDir,
    runtime: Runtime,
    programs: PathBuf,
    library: PathBuf,
    log_format: &'static str,
}

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote on stdout.
    pub stdout: String,
    /// What it wrote on stderr.
    pub stderr: String,
    /// What was written to the runtime's `--log`.
    pub log: String,
}

impl Outcome {
    /// Asserts that it succeeded, and gives what it wrote on stdout.
    ///
    /// # Panics
    /// It failed.
    #[must_use]
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self:#?}");
        self.stdout
    }

    /// Asserts that it failed with exactly one line in the log, and gives that.
    ///
    /// # Panics
    /// It succeeded, or said nothing, or more.
    #[must_use]
    #[track_caller]
    pub fn refusal(self) -> String {
        assert!(!self.status.success(), "{self:#?}");
        assert_eq!(self.log.lines().count(), 1, "{self:#?}");
        self.log
    }
}

impl Host {
    /// A host whose `vgpu-runtime` and `vgpu-hook` are in `programs`, and whose containers get `library`.
    ///
    /// # Panics
    /// The temporary folder cannot be written.
    #[must_use]
    pub fn new(runtime: Runtime, programs: &Path, library: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::with_prefix("vgpu-host-").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let programs = programs.canonicalize().unwrap();
        let host = Self { dir, runtime, programs, library: library.to_owned(), log_format: "text" };
        host.policy("");
        host
    }

    /// A host with a file in place of the library, for tests in which no program is to be limited.
    ///
    /// # Panics
    /// The temporary folder cannot be written.
    #[must_use]
    pub fn with_stand_in(runtime: Runtime, programs: &Path) -> Self {
        let mut host = Self::new(runtime, programs, Path::new("/"));
        host.library = host.dir.path().join("libvgpu.so");
        fs::write(&host.library, "stands in for the library\n").unwrap();
        let front = host.dir.path().join("front");
        fs::create_dir(&front).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(front.join(name), format!("stands in for {name}\n")).unwrap();
        }
        host.policy("");
        host
    }

    /// Writes its policy file: where things are, and `more`.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn policy(&self, more: &str) {
        let text =
            format!("state_dir = {:?}\nlibrary = {:?}\nruntimes = [{:?}]\n{more}\n", self.state_dir(), self.library, self.runtime.name());
        fs::write(self.policy_file(), text).unwrap();
    }

    /// Asks the runtime to log as JSON.
    #[must_use]
    pub fn log_json(mut self) -> Self {
        self.log_format = "json";
        self
    }

    /// Its policy file.
    #[must_use]
    pub fn policy_file(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    /// Its state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The library that its containers get.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// `vgpu-hook`.
    #[must_use]
    pub fn hook(&self) -> PathBuf {
        self.programs.join("vgpu-hook")
    }

    /// The folders of containers in its state directory.
    #[must_use]
    pub fn containers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state_dir().join("containers")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// A call of `vgpu-runtime` with the usual global flags, still without a command.
    #[must_use]
    pub fn command(&self) -> Command {
        self.runtime_command(&self.programs.join("vgpu-runtime"))
    }

    /// A call of the low-level runtime alone.
    ///
    /// # Panics
    /// It is not installed.
    #[must_use]
    pub fn bare_command(&self) -> Command {
        self.runtime_command(&self.runtime.path().expect("the runtime is installed"))
    }

    fn runtime_command(&self, program: &Path) -> Command {
        let mut command = self.runtime.command(program);
        command.env("VGPU_CONFIG", self.policy_file());
        command.arg("--root").arg(self.dir.path().join("root"));
        command.arg("--log").arg(self.log()).args(["--log-format", self.log_format]);
        command
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Runs a command that was made here, to its end.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn outcome(&self, command: &mut Command) -> Outcome {
        let _ = fs::remove_file(self.log());
        let output = command.stdin(Stdio::null()).output().expect("the command can be started");
        Outcome {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            log: fs::read_to_string(self.log()).unwrap_or_default(),
        }
    }

    /// Writes the bundle and runs it through `vgpu-runtime` to its end.
    pub fn run(&self, bundle: &Bundle) -> Outcome {
        self.run_with(self.command(), bundle)
    }

    /// Writes the bundle and runs it through the low-level runtime alone.
    pub fn run_bare(&self, bundle: &Bundle) -> Outcome {
        self.run_with(self.bare_command(), bundle)
    }

    fn run_with(&self, mut command: Command, bundle: &Bundle) -> Outcome {
        bundle.write();
        self.outcome(command.arg("run").arg("--bundle").arg(bundle.path()).arg(new_id()))
    }

    /// Adds the hooks that limit a container without `vgpu-runtime`.
    ///
    /// # Panics
    /// The paths are not UTF-8.
    #[must_use]
    pub fn with_hooks(&self, bundle: Bundle) -> Bundle {
        let config = self.policy_file();
        let config = ["--config", config.to_str().unwrap()];
        bundle.hook("createRuntime", &self.hook(), &["create-runtime", config[0], config[1]])
    }

    /// Writes the bundle and starts it through `vgpu-runtime`, detached. Its command should keep running.
    ///
    /// # Panics
    /// It does not start.
    pub fn start<'a>(&'a self, bundle: &Bundle) -> Container<'a> {
        bundle.write();
        let container = Container { host: self, id: new_id() };
        // Files, because a detached container keeps what it inherits open.
        let output_file = self.dir.path().join(&container.id);
        let to = || fs::OpenOptions::new().create(true).append(true).open(&output_file).unwrap();
        let mut create = self.command();
        create.arg("create").arg("--bundle").arg(bundle.path()).arg(&container.id);
        let created = create.stdin(Stdio::null()).stdout(to()).stderr(to()).status().unwrap();
        assert!(created.success(), "{}", fs::read_to_string(&output_file).unwrap_or_default());
        let _ = self.outcome(self.command().arg("start").arg(&container.id)).ok();
        container
    }
}

/// A container that runs until it is dropped.
#[derive(Debug)]
pub struct Container<'a> {
    host: &'a Host,
    /// Its id.
    pub id: String,
}

impl Container<'_> {
    /// Runs a shell script in it.
    pub fn exec(&self, script: &str) -> Outcome {
        self.host.outcome(self.host.command().arg("exec").arg(&self.id).args(["/bin/sh", "-c", script]))
    }

    /// Ends and deletes it.
    pub fn delete(&self) -> Outcome {
        self.host.outcome(self.host.command().args(["delete", "--force"]).arg(&self.id))
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.delete();
    }
}

/// An id that no other test has.
fn new_id() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("vgpu-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

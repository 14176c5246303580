//! Test host with its own policy, state and low-level runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tempfile::TempDir;

use crate::bundle::Bundle;
use crate::runtime::Runtime;

/// Last line of the stub file.
pub const STAND_IN: &str = "stands in for the library";

/// Returns the content of the stub file: a library of one segment without any function, and a line of text.
#[must_use]
pub fn stand_in() -> Vec<u8> {
    let text = format!("\n{STAND_IN}\n");
    let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let length = 64 + 56 + text.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64 + 56, 0);
    // A dynamic library, its machine, and where the program headers are.
    for (at, number) in [(16, 3), (18, machine), (20, 1), (32, 64), (52, 64), (54, 56), (56, 1)] {
        file[at] = number;
    }
    // One part to be loaded: all of the file, for reading.
    (file[64], file[68]) = (1, 4);
    for at in [96, 104] {
        file[at..at + 8].copy_from_slice(&length.to_le_bytes());
    }
    file.extend(text.as_bytes());
    file
}

/// Test host in a temporary folder.
#[derive(Debug)]
pub struct Host {
    dir: TempDir,
    runtime: Runtime,
    programs: PathBuf,
    library: PathBuf,
    log_format: &'static str,
}

/// Result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Contents of the runtime's `--log` file.
    pub log: String,
}

impl Outcome {
    /// Asserts that the command succeeded and returns its standard output.
    ///
    /// # Panics
    /// The command failed.
    #[must_use]
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self:#?}");
        self.stdout
    }

    /// Asserts that the command failed with exactly one line in the log and returns that line.
    ///
    /// # Panics
    /// The command succeeded, or the log does not have exactly one line.
    #[must_use]
    #[track_caller]
    pub fn refusal(self) -> String {
        assert!(!self.status.success(), "{self:#?}");
        assert_eq!(self.log.lines().count(), 1, "{self:#?}");
        self.log
    }
}

impl Host {
    /// Creates a host whose `vgpu-runtime` and `vgpu-hook` are in `programs` and whose containers get `library`.
    ///
    /// # Panics
    /// The temporary folder cannot be written.
    #[must_use]
    pub fn new(runtime: Runtime, programs: &Path, library: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::with_prefix("vgpu-host-").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let programs = programs.canonicalize().unwrap();
        // What a runtime in its own namespace mounts in the state directory has to be visible here, as it is on a machine with systemd.
        if runtime.needs_namespace() {
            for options in [&["--bind"][..], &["--make-private"], &["--make-shared"]] {
                let source = options.contains(&"--bind").then_some(dir.path());
                let mounted = Command::new("mount").args(options).args(source).arg(dir.path()).status().unwrap();
                assert!(mounted.success(), "mount {options:?} {}", dir.path().display());
            }
        }
        let host = Self { dir, runtime, programs, library: library.to_owned(), log_format: "text" };
        host.policy("");
        host
    }

    /// Creates a host with a stub file instead of the library, for tests that do not enforce limits.
    ///
    /// # Panics
    /// The temporary folder cannot be written.
    #[must_use]
    pub fn with_stand_in(runtime: Runtime, programs: &Path) -> Self {
        let mut host = Self::new(runtime, programs, Path::new("/"));
        host.library = host.dir.path().join("libvgpu.so");
        fs::write(&host.library, stand_in()).unwrap();
        let front = host.dir.path().join("front");
        fs::create_dir(&front).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(front.join(name), format!("stands in for {name}\n")).unwrap();
        }
        host.policy("");
        host
    }

    /// Writes the policy file: the paths of this host and `more`.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn policy(&self, more: &str) {
        let text =
            format!("state_dir = {:?}\nlibrary = {:?}\nruntimes = [{:?}]\n{more}\n", self.state_dir(), self.library, self.runtime.name());
        fs::write(self.policy_file(), text).unwrap();
    }

    /// Makes the runtime log as JSON.
    #[must_use]
    pub fn log_json(mut self) -> Self {
        self.log_format = "json";
        self
    }

    /// Returns the path of the policy file.
    #[must_use]
    pub fn policy_file(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    /// Returns the state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Unmounts everything in the state directory and removes it.
    pub fn clear_state(&self) {
        unmount_below(&self.state_dir());
        let _ = fs::remove_dir_all(self.state_dir());
    }

    /// Returns the library that containers get.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Returns the path of `vgpu-hook`.
    #[must_use]
    pub fn hook(&self) -> PathBuf {
        self.programs.join("vgpu-hook")
    }

    /// Returns the folders of containers in the state directory.
    #[must_use]
    pub fn containers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state_dir().join("containers")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Returns a `vgpu-runtime` command line with global flags and without a subcommand.
    #[must_use]
    pub fn command(&self) -> Command {
        self.runtime_command(&self.programs.join("vgpu-runtime"))
    }

    /// Returns a command line of the low-level runtime, without vgpu.
    ///
    /// # Panics
    /// The runtime is not installed.
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

    /// Runs a command of this host to completion.
    ///
    /// # Panics
    /// The command cannot be started.
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

    /// Writes the bundle and runs it through `vgpu-runtime` to completion.
    pub fn run(&self, bundle: &Bundle) -> Outcome {
        self.run_with(self.command(), bundle)
    }

    /// Writes the bundle and runs it through the low-level runtime, without vgpu.
    pub fn run_bare(&self, bundle: &Bundle) -> Outcome {
        self.run_with(self.bare_command(), bundle)
    }

    fn run_with(&self, mut command: Command, bundle: &Bundle) -> Outcome {
        bundle.write();
        self.outcome(command.arg("run").arg("--bundle").arg(bundle.path()).arg(id_of(bundle)))
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

    /// Writes the bundle and starts it detached through `vgpu-runtime`. Its command should keep running.
    ///
    /// # Panics
    /// The container does not start.
    pub fn start<'a>(&'a self, bundle: &Bundle) -> Container<'a> {
        bundle.write();
        let container = Container { host: self, id: id_of(bundle) };
        // A file, because a detached container keeps inherited pipes open.
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

impl Drop for Host {
    fn drop(&mut self) {
        unmount_below(self.dir.path());
    }
}

/// Unmounts `dir` and everything below it.
fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|point| Path::new(point).starts_with(dir));
    // The last mount first.
    for point in points.collect::<Vec<_>>().into_iter().rev() {
        let _ = Command::new("umount").args(["--lazy", point]).stderr(Stdio::null()).status();
    }
}

/// Running container, deleted on drop.
#[derive(Debug)]
pub struct Container<'a> {
    host: &'a Host,
    /// Container id.
    pub id: String,
}

impl Container<'_> {
    /// Runs a shell script in the container.
    pub fn exec(&self, script: &str) -> Outcome {
        self.host.outcome(self.host.command().arg("exec").arg(&self.id).args(["/bin/sh", "-c", script]))
    }

    /// Kills and deletes the container.
    pub fn delete(&self) -> Outcome {
        self.host.outcome(self.host.command().args(["delete", "--force"]).arg(&self.id))
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.delete();
    }
}

/// Returns the id of a bundle's container: a unique one, if the bundle has none.
fn id_of(bundle: &Bundle) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    bundle.id.clone().unwrap_or_else(|| format!("vgpu-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)))
}

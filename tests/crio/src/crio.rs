//! A private CRI-O: its own folders, socket, configuration and image.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use vgpu_daemon_tests::cri::Cri;
use vgpu_daemon_tests::{Daemon, import_tar, run, script};
use vgpu_e2e::Way;
use vgpu_test_harness::{Host, Runtime};

/// Name of the image of all containers.
pub const IMAGE: &str = "localhost/test:1";
/// A command that runs until it is stopped.
pub const WAIT: [&str; 3] = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"];

/// CRI-O with private folders. On drop it is stopped, and its mounts and folders are removed.
#[derive(Debug)]
pub struct Crio {
    /// Folder with `crio` and `pinns`.
    programs: PathBuf,
    dir: TempDir,
    runtime: Runtime,
    daemon: Option<Daemon>,
    starts: u32,
    /// Its configuration before vgpu was registered: paths and texts.
    pub files_before: Vec<(PathBuf, String)>,
}

impl Crio {
    /// Prepares a CRI-O whose default handler is this runtime, with an image. It is below `/run`, as the folders are by which vgpu knows
    /// CRI-O's bundles.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn new(programs: &Path, runtime: Runtime) -> Result<Self, Box<dyn Error>> {
        let dir = TempDir::with_prefix_in("vgpu-crio-", "/run")?;
        let mut crio = Self { programs: programs.to_owned(), dir, runtime, daemon: None, starts: 0, files_before: Vec::new() };
        for folder in ["etc/crio.conf.d", "cni", "bin", "image"] {
            fs::create_dir_all(crio.path(folder))?;
        }
        crio.write_runtime()?;
        fs::write(crio.path("etc/policy.json"), r#"{"default":[{"type":"insecureAcceptAnything"}]}"#)?;
        fs::write(crio.config(), crio.configuration())?;
        crio.files_before = crio.files()?;
        let mut podman = Command::new("podman");
        podman.arg("--root").arg(crio.path("root")).arg("--runroot").arg(crio.path("runroot")).args(["--storage-driver", "vfs"]);
        podman.arg("--tmpdir").arg(crio.path("podman"));
        // The command of a sandbox.
        let command = format!("CMD {}", serde_json::json!(WAIT));
        run(podman.args(["import", "--change", &command]).arg(import_tar(&crio.path("image"))).arg(IMAGE));
        Ok(crio)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the path of its main configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("etc/crio.conf")
    }

    /// Returns the folder in which the low-level runtime has an entry for each container.
    pub fn runtime_root(&self) -> PathBuf {
        self.path("runtime-root")
    }

    fn configuration(&self) -> String {
        let (dir, name) = (self.dir.path().display(), self.runtime.name());
        format!(
            r#"[crio]
root = "{dir}/root"
runroot = "{dir}/runroot"
storage_driver = "vfs"
log_dir = "{dir}/pods"
version_file = "{dir}/version"
version_file_persist = "{dir}/version-persist"
clean_shutdown_file = "{dir}/clean"
[crio.api]
listen = "{dir}/crio.sock"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "{name}"
pids_limit = 0
namespaces_dir = "{dir}/namespaces"
container_exits_dir = "{dir}/exits"
container_attach_socket_dir = "{dir}/attach"
pinns_path = "{}"
[crio.runtime.runtimes.{name}]
runtime_path = "{dir}/bin/{name}"
runtime_root = "{dir}/runtime-root"
[crio.image]
pause_image = "{IMAGE}"
pause_command = ""
signature_policy = "{dir}/etc/policy.json"
signature_policy_dir = "{dir}/etc/policies"
[crio.network]
network_dir = "{dir}/cni"
plugin_dirs = ["{dir}/cni"]
[crio.nri]
enable_nri = false
"#,
            self.programs.join("pinns").display()
        )
    }

    /// Writes the low-level runtime: the system's, with what it or the machine does not permit taken out of the bundle before. CRI-O
    /// lowers the OOM score of a sandbox's process and its share of the CPUs, and an older crun refuses the version of the specification
    /// that CRI-O writes, although nothing that is new in it is used.
    fn write_runtime(&self) -> std::io::Result<()> {
        let system = self.runtime.path().ok_or_else(|| std::io::Error::other(format!("{} is not installed", self.runtime.name())))?;
        let own = self.path("bin").join(self.runtime.name());
        let score = (!can_lower_oom_scores()).then_some(r#"s/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/;"#);
        // Version 2 of cgroups on a machine that has the controller in version 1.
        let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
        let no_shares = controllers.is_ok_and(|list| !list.split_whitespace().any(|name| name == "cpu"));
        let shares = no_shares.then_some(r#"s/"shares": *[0-9]*/"shares":0/;"#);
        let version = is_older_crun(&system).then_some(r#"s/"ociVersion": *"1[.][0-9.]*"/"ociVersion":"1.0.0"/;"#);
        let edits: String = score.into_iter().chain(shares).chain(version).collect();
        if edits.is_empty() {
            return std::os::unix::fs::symlink(system, own);
        }
        let text = r#"for word; do [ "$previous" = --bundle ] && bundle=$word; previous=$word; done
[ -z "$bundle" ] || sed -i '{edits}' "$bundle/config.json"
exec {system} "$@""#;
        script(&own, &text.replace("{edits}", &edits).replace("{system}", &system.display().to_string()));
        Ok(())
    }

    /// Runs `vgpu configure crio` on its configuration, for the programs and the policy of `host`.
    pub fn configure(&self, host: &Host, way: Way, more: &[&str]) {
        let policy = host.policy_file();
        let program = |name: &str| host.hook().with_file_name(name);
        let (runtime, hook) = (self.path("bin/vgpu-runtime"), self.path("bin/vgpu-hook"));
        let text = "export VGPU_CONFIG={policy} PATH={path}:/usr/sbin:/usr/bin:/sbin:/bin\nexec {program} \"$@\"";
        let text = text.replace("{policy}", &policy.display().to_string()).replace("{path}", &self.path("bin").display().to_string());
        script(&runtime, &text.replace("{program}", &program("vgpu-runtime").display().to_string()));
        script(&hook, &format!("exec {} \"$@\" --config {}", program("vgpu-hook").display(), policy.display()));
        let paths = [self.config(), runtime, hook].map(|path| path.to_string_lossy().into_owned());
        let mut vgpu = Command::new(program("vgpu"));
        vgpu.args(["configure", "crio", "--config", &paths[0], "--runtime-path", &paths[1], "--hook-path", &paths[2]]);
        run(vgpu.args((way == Way::Hooks).then_some("--hooks")).args(more));
    }

    /// Runs `vgpu configure crio --undo` on its configuration.
    pub fn undo(&self, host: &Host) {
        let mut vgpu = Command::new(host.hook().with_file_name("vgpu"));
        run(vgpu.args(["configure", "crio", "--undo", "--config"]).arg(self.config()));
    }

    /// Returns the files of its configuration and what is in them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn files(&self) -> std::io::Result<Vec<(PathBuf, String)>> {
        let list = run(Command::new("find").arg(self.path("etc")).args(["-type", "f"]));
        let mut files = Vec::new();
        for path in list.lines() {
            files.push((path.into(), fs::read_to_string(path)?));
        }
        files.sort();
        Ok(files)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.programs.join("crio"));
        command.arg("--config").arg(self.config()).arg("--config-dir").arg(self.path("etc/crio.conf.d"));
        command
    }

    /// Starts it, or starts it again; containers keep running.
    pub fn start(&mut self) {
        // Two at once would change the same files.
        self.stop();
        self.starts += 1;
        let folder = self.path(&format!("log-{}", self.starts));
        fs::create_dir(&folder).expect("the folder is new");
        let cri = self.cri();
        self.daemon = Some(Daemon::start(&mut self.command(), &folder, || cri.version().is_ok()));
    }

    /// Stops it; containers keep running.
    pub fn stop(&mut self) {
        self.daemon = None;
    }

    /// Kills it; containers keep running.
    pub fn kill(&mut self) {
        if let Some(daemon) = &self.daemon {
            daemon.kill();
        }
        self.daemon = None;
    }

    /// Returns what it has logged since it was last started, without messages that tell nothing wrong.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.path(&format!("log-{}/daemon.log", self.starts))).unwrap_or_default();
        text.lines().filter(|line| !line.contains("level=info")).map(|line| format!("{line}\n")).collect()
    }

    /// Returns a client of it.
    pub fn cri(&self) -> Cri {
        Cri::new(self.path("crio.sock"))
    }
}

impl Drop for Crio {
    fn drop(&mut self) {
        self.stop();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|at| Path::new(at).starts_with(self.dir.path()));
        for at in below.collect::<Vec<_>>().into_iter().rev() {
            let _ = Command::new("umount").args(["-l", at]).status();
        }
    }
}

/// Returns whether this process may lower an OOM score, which needs `CAP_SYS_RESOURCE`.
pub fn can_lower_oom_scores() -> bool {
    let path = "/proc/self/oom_score_adj";
    let before = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, "-998").and_then(|()| fs::write(path, before)).is_ok()
}

/// Returns whether this is a crun that does not have `features`, the command of version 1.1 of the specification and later ones.
fn is_older_crun(runtime: &Path) -> bool {
    runtime.ends_with("crun") && !Command::new(runtime).arg("features").output().is_ok_and(|output| output.status.success())
}

//! What each check runs in: a CRI-O with vgpu, one low-level runtime, one way of limiting, and a simulated GPU.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use vgpu_daemon_tests::cri::{ContainerTemplate, Cri, Pod, PodTemplate};
use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, host, vgpu_environment};
use vgpu_test_harness::{Host, Runtime};

use crate::crio::{Crio, IMAGE, WAIT};

/// What a check found: nothing, or what is wrong.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Path of the simulated driver in a container.
const SIMGPU: &str = "/simgpu";
/// Longest time to wait for something that happens soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// What each check runs in.
#[derive(Debug)]
pub struct Setting {
    kit: Kit,
    /// The simulated GPU.
    pub machine: Machine,
    /// vgpu's programs, policy and state.
    pub host: Host,
    /// CRI-O.
    pub crio: Crio,
    /// How containers are limited.
    pub way: Way,
}

impl Setting {
    /// Starts a CRI-O in which vgpu is registered. `programs` is the folder with `crio` and `pinns`.
    ///
    /// # Errors
    /// CRI-O's folder cannot be written.
    pub fn new(programs: &Path, runtime: Runtime, way: Way) -> Result<Self, Box<dyn Error>> {
        let kit = Kit::find();
        let (machine, host) = (Machine::simulated(&kit, &[]), host(&kit, runtime));
        let mut crio = Crio::new(programs, runtime)?;
        crio.configure(&host, way, &[]);
        crio.start();
        Ok(Self { kit, machine, host, crio, way })
    }

    /// Returns the handler of pods whose containers are limited.
    pub fn handler(&self) -> &'static str {
        if self.way == Way::Wrapper { "vgpu" } else { "" }
    }

    /// Runs a pod whose containers are limited.
    pub fn pod<'a>(&self, cri: &'a Cri, name: &str, annotations: &[(&str, &str)]) -> Result<Pod<'a>, Box<dyn Error>> {
        cri.run_pod(&PodTemplate { name, handler: self.handler(), annotations, ..PodTemplate::default() })
    }

    /// Starts a container that waits, with the simulated GPU.
    pub fn start(&self, pod: &Pod<'_>, name: &str) -> Result<String, Box<dyn Error>> {
        self.run(pod, &ContainerTemplate { name, ..ContainerTemplate::default() })
    }

    /// Starts a container with the simulated GPU. One without a command waits.
    pub fn run(&self, pod: &Pod<'_>, container: &ContainerTemplate<'_>) -> Result<String, Box<dyn Error>> {
        let environment: Vec<_> = [("LD_LIBRARY_PATH", SIMGPU)].iter().chain(container.environment).copied().collect();
        let state = self.machine.state().unwrap_or_default();
        let (programs, driver) = (self.kit.programs(), self.kit.simgpu());
        // The test programs are linked to the host's C library.
        let libraries = ["/lib64", "/lib/x86_64-linux-gnu"].map(|path| (Path::new(path), path));
        let own = [(programs.as_path(), PROGRAMS), (driver.as_path(), SIMGPU), (state.as_path(), "/dev/simgpu")];
        let mounts: Vec<_> = own.into_iter().chain(libraries).chain(container.mounts.iter().copied()).collect();
        let command = if container.command.is_empty() { &WAIT[..] } else { container.command };
        pod.run(&ContainerTemplate { image: IMAGE, environment: &environment, mounts: &mounts, command, ..*container })
    }

    /// Lets a container allocate at most `max` MiB until it is refused.
    pub fn fill(&self, pod: &Pod<'_>, container: &str, max: u64) -> Result<Fill, Box<dyn Error>> {
        let text = pod.exec(container, &[&format!("{PROGRAMS}/fill"), "--chunk", "16M", "--max", &format!("{max}M")])?;
        let line = text.lines().find(|line| line.starts_with('{')).ok_or_else(|| format!("fill has no answer: {text:?}"))?;
        Ok(serde_json::from_str(line)?)
    }

    /// Checks that a container sees a GPU of `mib` MiB and is refused more.
    pub fn expect_limit(&self, pod: &Pod<'_>, container: &str, mib: u64) -> Outcome {
        let watch = self.machine.watch();
        let fill = self.fill(pod, container, mib + 256)?;
        let peak = watch.peak(0);
        expect_fill(&fill, mib)?;
        ensure(peak > 0 && peak <= mib * MIB, || format!("the host's NVML listed {peak} bytes, expected at most {mib} MiB"))
    }

    /// Checks that a container has no limit and none of vgpu's files.
    pub fn expect_unlimited(&self, pod: &Pod<'_>, container: &str) -> Outcome {
        let files = pod.exec(container, &["/bin/sh", "-c", "ls /usr/local/vgpu /etc/ld.so.preload 2>/dev/null; echo end"])?;
        ensure(files == "end\n", || format!("files of vgpu in a container without limits: {files}"))?;
        let host = self.machine.program("fill").args(["--max", "0"]).output()?;
        let (fill, total) = (self.fill(pod, container, 0)?.total, Fill::of(&String::from_utf8_lossy(&host.stdout)).total);
        ensure(fill == total, || format!("a container without limits sees {fill} of {total} bytes"))
    }

    /// Runs `vgpu ARGS…`.
    pub fn vgpu(&self, args: &[&str]) -> std::io::Result<Output> {
        Command::new(self.kit.path().join("vgpu")).envs(vgpu_environment(&self.host, &self.machine)).args(args).output()
    }

    /// Returns the containers that `vgpu show` lists, or the one that it selects by `name`.
    pub fn show(&self, name: Option<&str>) -> Result<Vec<Value>, Box<dyn Error>> {
        let args: Vec<&str> = ["show", "--json"].into_iter().chain(name).collect();
        let output = self.vgpu(&args)?;
        ensure(output.status.success(), || format!("vgpu {args:?}: {}", String::from_utf8_lossy(&output.stderr)))?;
        let snapshot: Value = serde_json::from_slice(&output.stdout)?;
        Ok(snapshot["containers"].as_array().cloned().unwrap_or_default())
    }

    /// Returns what vgpu and the low-level runtime still have of containers: directories, mounts, entries and processes on the GPU.
    pub fn left(&self) -> Vec<PathBuf> {
        let mut left = self.host.containers();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        left.extend(points.filter(|point| point.starts_with(self.host.state_dir().join("containers"))));
        let entries = std::fs::read_dir(self.crio.runtime_root()).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        left.extend(self.machine.held(0).processes.iter().map(|(pid, _)| PathBuf::from(format!("/proc/{pid}"))));
        left
    }

    /// Runs a container without a request in a pod of its own. It removes what hooks alone leave of ended containers.
    pub fn sweep(&self) -> Outcome {
        let cri = self.crio.cri();
        let pod = self.pod(&cri, "sweep", &[])?;
        self.run(&pod, &ContainerTemplate { name: "main", annotations: &[("nvidia.com/gpumem", "64")], ..ContainerTemplate::default() })?;
        pod.end()
    }
}

/// Checks what `fill` printed in a container with `mib` MiB.
pub fn expect_fill(fill: &Fill, mib: u64) -> Outcome {
    let is_refused = fill.error == "CUDA_ERROR_OUT_OF_MEMORY" && fill.obtained <= mib * MIB;
    let sees = fill.total == mib * MIB && fill.nvml_total == Some(mib * MIB);
    ensure(is_refused && sees, || format!("expected a limit of {mib} MiB: {fill:?}"))
}

/// Returns an error with these words unless `holds`.
pub fn ensure(holds: bool, words: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(words().into()) }
}

/// Returns the error that was expected.
pub fn expect_error<T>(result: Result<T, Box<dyn Error>>, what: &str) -> Result<String, Box<dyn Error>> {
    match result {
        Ok(_) => Err(format!("{what}: expected an error").into()),
        Err(error) => Ok(error.to_string()),
    }
}

/// Waits until there is a value.
pub fn wait_for<T>(what: &str, mut get: impl FnMut() -> Result<Option<T>, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
    let step = Duration::from_millis(50);
    for _ in 0..PATIENCE.as_millis() / step.as_millis() {
        if let Some(value) = get()? {
            return Ok(value);
        }
        std::thread::sleep(step);
    }
    Err(format!("{what}: not within {} s", PATIENCE.as_secs()).into())
}

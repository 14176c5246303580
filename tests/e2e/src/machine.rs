//! The machine on which containers are tested, with simulated or real GPUs.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use vgpu_test_harness::Bundle;

use crate::{Fill, Held, Kit};

/// Path of the test programs in a container.
pub const PROGRAMS: &str = "/programs";
/// Path of the simulated driver in a container.
const SIMGPU: &str = "/simgpu";

/// A machine with GPUs.
#[derive(Debug)]
pub struct Machine {
    kit: Kit,
    gpus: Gpus,
}

#[derive(Debug)]
enum Gpus {
    /// Simulated GPUs, whose state is a file in a temporary folder.
    Simulated { folder: TempDir },
    /// Real GPUs, with the driver's libraries in a folder.
    Real { driver: PathBuf },
}

impl Machine {
    /// Returns the machine that this program's arguments select: simulated GPUs with `--simulated`, else the real ones. Prints a
    /// message to stderr and returns `None` if there are none.
    #[must_use]
    pub fn from_arguments(kit: &Kit) -> Option<Self> {
        if std::env::args().any(|argument| argument == "--simulated") {
            return Some(Self::simulated(kit, &[]));
        }
        let real = Self::real(kit);
        if real.is_none() {
            eprintln!("no GPU: /dev/nvidiactl or the driver's libcuda.so.1 is missing (use --simulated for simulated GPUs)");
        }
        real
    }

    /// Creates a machine with simulated GPUs of these properties, in the syntax of `simgpu-ctl create`.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn simulated(kit: &Kit, properties: &[&str]) -> Self {
        let folder = TempDir::with_prefix("vgpu-simgpu-").unwrap();
        let create: Vec<&str> = ["create"].iter().chain(properties).copied().collect();
        let _ = kit.simgpu_ctl(&folder.path().join("state"), &create);
        Self { kit: kit.clone(), gpus: Gpus::Simulated { folder } }
    }

    /// Returns this machine with its own GPUs, if it has any.
    #[must_use]
    pub fn real(kit: &Kit) -> Option<Self> {
        if !Path::new("/dev/nvidiactl").exists() {
            return None;
        }
        let known = ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/lib"];
        let driver = known.iter().map(PathBuf::from).find(|folder| folder.join("libcuda.so.1").exists())?;
        Some(Self { kit: kit.clone(), gpus: Gpus::Real { driver } })
    }

    /// Returns the real GPUs, else simulated ones with the default properties.
    #[must_use]
    pub fn any(kit: &Kit) -> Self {
        Self::real(kit).unwrap_or_else(|| Self::simulated(kit, &[]))
    }

    /// Returns whether the GPUs are real.
    #[must_use]
    pub fn is_real(&self) -> bool {
        matches!(self.gpus, Gpus::Real { .. })
    }

    /// Returns the state file of the simulated GPUs.
    #[must_use]
    pub fn state(&self) -> Option<PathBuf> {
        match &self.gpus {
            Gpus::Simulated { folder } => Some(folder.path().join("state")),
            Gpus::Real { .. } => None,
        }
    }

    /// Creates a bundle with the host's programs, the test programs in [`PROGRAMS`], and all GPUs.
    #[must_use]
    pub fn bundle(&self) -> Bundle {
        self.with_gpus(Bundle::of_host())
    }

    /// Adds the test programs and all GPUs to a bundle.
    #[must_use]
    pub fn with_gpus(&self, bundle: Bundle) -> Bundle {
        let bundle = bundle.bind(&self.kit.programs(), PROGRAMS, &["ro"]);
        match &self.gpus {
            Gpus::Simulated { .. } => {
                let state = self.state().unwrap_or_default();
                bundle.bind(&self.kit.simgpu(), SIMGPU, &["ro"]).bind(&state, "/dev/simgpu", &[]).env("LD_LIBRARY_PATH", SIMGPU)
            }
            Gpus::Real { driver } => bundle.nvidia(driver),
        }
    }

    /// Returns a command that runs one of the test programs on the host.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.kit.programs().join(name));
        match &self.gpus {
            Gpus::Simulated { .. } => {
                command.env("LD_LIBRARY_PATH", self.kit.simgpu()).env("SIMGPU_STATE", self.state().unwrap_or_default())
            }
            Gpus::Real { driver } => command.env("LD_LIBRARY_PATH", driver),
        };
        command
    }

    /// Runs the kit's `vgpu check` on this machine.
    ///
    /// # Errors
    /// If the kit has no `vgpu`, or it cannot be started.
    pub fn check(&self) -> std::io::Result<Output> {
        let mut command = Command::new(self.kit.path().join("vgpu"));
        match &self.gpus {
            Gpus::Simulated { .. } => {
                command.env("LD_LIBRARY_PATH", self.kit.simgpu()).env("SIMGPU_STATE", self.state().unwrap_or_default())
            }
            Gpus::Real { driver } => command.env("LD_LIBRARY_PATH", driver),
        };
        command.arg("check").output()
    }

    /// Returns what NVML on the host lists for a GPU.
    ///
    /// # Panics
    /// If NVML fails.
    #[must_use]
    pub fn held(&self, gpu: u32) -> Held {
        let output = self.program("held").args(["--gpu", &gpu.to_string()]).stderr(Stdio::inherit()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the size of a context on the first GPU, in bytes, by NVML on the host.
    ///
    /// # Panics
    /// If no context can be created, or NVML fails.
    #[must_use]
    pub fn context(&self) -> u64 {
        let output = self.program("fill").args(["--max", "0"]).output().unwrap();
        Fill::of(&String::from_utf8_lossy(&output.stdout)).context.expect("NVML lists the program's process")
    }

    /// Waits until NVML no longer lists processes that have ended: a real driver may take a while.
    fn settle(&self) {
        for _ in 0..100 {
            let gone = |process: &(u32, u64)| !Path::new(&format!("/proc/{}", process.0)).exists();
            if !self.held(0).processes.iter().any(gone) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Starts sampling what all processes together hold of each GPU.
    ///
    /// # Panics
    /// If NVML fails.
    #[must_use]
    pub fn watch(&self) -> Watch<'_> {
        if let Some(state) = self.state() {
            let _ = self.kit.simgpu_ctl(&state, &["reset"]);
            return Watch { machine: self, sampler: None };
        }
        self.settle();
        let mut held = self.program("held").arg("--watch").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(held.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "watching\n");
        Watch { machine: self, sampler: Some((held, output)) }
    }

    /// Returns the most bytes in use on a simulated GPU since [`Machine::watch`], including memory that NVML lists for no process, such
    /// as managed memory.
    ///
    /// # Panics
    /// If the GPUs are real.
    #[must_use]
    pub fn peak_in_use(&self, gpu: u32) -> u64 {
        let state = self.state().expect("a simulated GPU");
        self.kit.simgpu_ctl(&state, &["most", &gpu.to_string()]).parse().expect("a number")
    }

    /// Returns the simulated GPU's properties and processes, as text.
    #[must_use]
    pub fn show(&self) -> String {
        self.state().map(|state| self.kit.simgpu_ctl(&state, &["show"])).unwrap_or_default()
    }
}

/// Samples a machine's GPUs from outside while containers run. The simulated GPU records the exact peak; NVML of a real one is queried
/// about 2,000 times a second.
#[derive(Debug)]
pub struct Watch<'a> {
    machine: &'a Machine,
    sampler: Option<(Child, BufReader<std::process::ChildStdout>)>,
}

impl Watch<'_> {
    /// Returns the most bytes that all processes together held of this GPU at one time. Of real GPUs only number 0 is sampled.
    ///
    /// # Panics
    /// If NVML failed.
    #[must_use]
    pub fn peak(self, gpu: u32) -> u64 {
        if let Some(state) = self.machine.state() {
            return self.machine.kit.simgpu_ctl(&state, &["peak", &gpu.to_string()]).parse().expect("a number");
        }
        let (mut child, mut output) = self.sampler.expect("a real GPU is sampled");
        drop(child.stdin.take());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let _ = child.wait();
        let held: Held = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        held.peak
    }
}

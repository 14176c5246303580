//! Many containers on one host.

use std::process::Stdio;
use std::time::Instant;

use vgpu_e2e::{Kit, Machine, host, start_detached};
use vgpu_test_harness::{Bundle, Host, Runtime};

/// Containers that run. They are deleted when dropped.
pub struct Fleet {
    /// Their host.
    pub host: Host,
    /// Their GPU.
    pub machine: Machine,
    /// Bundle of a container that uses no GPU, and of one whose process holds GPU memory.
    bundles: [Bundle; 2],
    /// Their ids.
    pub ids: Vec<String>,
    next: usize,
}

fn limited(bundle: Bundle) -> Bundle {
    bundle.annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "10")
}

impl Fleet {
    /// Returns a fleet without containers.
    pub fn new(kit: &Kit) -> Self {
        let machine = Machine::simulated(kit, &["total=2048G", "context=64M"]);
        let idle = limited(machine.bundle()).args(&["/bin/sleep", "86400"]);
        let busy = limited(machine.bundle()).args(&["/programs/fill", "--chunk", "16M", "--max", "16M", "--hold", "86400"]);
        Self { host: host(kit, Runtime::Runc), machine, bundles: [idle, busy], ids: Vec::new(), next: 0 }
    }

    /// Starts containers until there are `count`. Every second one has a process on the GPU.
    pub fn grow(&mut self, count: usize) {
        while self.ids.len() < count {
            let is_busy = self.ids.len() % 2 == 1;
            let (id, _) = self.start(true, is_busy);
            self.ids.push(id);
            if self.ids.len().is_multiple_of(50) {
                eprintln!("{} containers", self.ids.len());
            }
        }
    }

    /// Starts one container, and returns its id and how long that took in milliseconds.
    fn start(&mut self, is_limited: bool, is_busy: bool) -> (String, f64) {
        self.next += 1;
        let id = format!("vgpu-scale-{}-{}", std::process::id(), self.next);
        let runtime = if is_limited { self.host.command() } else { self.host.bare_command() };
        let began = Instant::now();
        start_detached(runtime, &self.bundles[usize::from(is_busy)], &id).unwrap_or_else(|error| panic!("{id}: {error}"));
        (id, began.elapsed().as_secs_f64() * 1e3)
    }

    /// Returns the median time of a start in milliseconds, of `rounds` containers that are deleted at once.
    pub fn start_time(&mut self, is_limited: bool, rounds: usize) -> f64 {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let (id, took) = self.start(is_limited, false);
            times.push(took);
            self.delete(&id, is_limited);
        }
        median(times)
    }

    fn delete(&self, id: &str, is_limited: bool) {
        let mut command = if is_limited { self.host.command() } else { self.host.bare_command() };
        let _ = command.args(["delete", "--force", id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.delete(id, false));
    }
}

/// Returns the median of some times.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

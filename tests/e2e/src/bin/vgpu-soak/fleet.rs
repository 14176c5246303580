//! Random operations on the containers.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use vgpu_e2e::{ALLOCATION_METHODS, Kit, MIB, Machine, Monitor, host, process};
use vgpu_test_harness::{Host, Runtime};
use vgpu_test_programs::random::Random;

use crate::tenant::{Plan, Tenant};

/// Size of a context on the simulated GPU, in MiB: small, so that many processes fit into a limit.
const CONTEXT: u64 = 16;
/// Operations on a container and how often they are chosen, in percent.
const OPERATIONS: [(&str, u64); 8] = [
    ("set memory", 22),
    ("set compute", 18),
    ("pause or resume", 16),
    ("exec", 16),
    ("kill a process", 14),
    ("kill the init", 5),
    ("delete", 7),
    ("look", 2),
];

/// Containers that run. They are deleted when dropped.
pub struct Fleet {
    /// One host for each runtime. They have one state directory, that of the last one.
    pub hosts: Vec<Host>,
    /// The GPU.
    pub machine: Machine,
    /// The containers.
    pub tenants: Vec<Tenant>,
    /// How often each operation was done, and how often it failed.
    pub counts: BTreeMap<String, (u64, u64)>,
    /// Failures that nothing explains.
    pub failures: Vec<String>,
    random: Random,
    next: u64,
}

impl Fleet {
    /// Creates a fleet without containers.
    pub fn new(kit: &Kit, runtimes: &[Runtime], seed: u64) -> Self {
        let machine = Machine::simulated(kit, &["total=512G", &format!("context={CONTEXT}M"), "context_hidden=0"]);
        let hosts: Vec<_> = runtimes.iter().map(|runtime| host(kit, *runtime)).collect();
        let state = hosts.last().expect("a runtime").state_dir();
        for (host, runtime) in hosts.iter().zip(runtimes) {
            let text = format!("state_dir = {state:?}\nlibrary = {:?}\nruntimes = [{:?}]\n", kit.library(), runtime.name());
            std::fs::write(host.policy_file(), text).expect("the policy file can be written");
        }
        // A state of zeros stays zeros.
        let mut random = Random::new(seed.max(1));
        (0..20).for_each(|_| _ = random.draw());
        Self { hosts, machine, tenants: Vec::new(), counts: BTreeMap::new(), failures: Vec::new(), random, next: 0 }
    }

    /// Returns the host that has the state directory.
    pub fn host(&self) -> &Host {
        self.hosts.last().expect("a runtime")
    }

    /// Returns the text that the names of all containers begin with.
    pub fn prefix() -> String {
        format!("vgpu-soak-{}-", std::process::id())
    }

    /// Returns a number from `from` to `to`.
    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.random.below(to - from + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// Counts an operation. A failure is one of vgpu or the runtime if `excuse` does not explain it.
    fn count<T>(&mut self, operation: &str, id: &str, result: Result<T, String>, excuse: bool) {
        let counts = self.counts.entry(operation.to_owned()).or_default();
        counts.0 += 1;
        if let Err(why) = result {
            counts.1 += 1;
            eprintln!("soak: {id}: {operation}: {why}{}", if excuse { " (expected)" } else { "" });
            if !excuse {
                self.failures.push(format!("{id}: {operation}: {why}"));
            }
        }
    }

    /// Returns the script of a container's first process, and whether what it holds stays as it is.
    fn script(&mut self) -> (String, bool) {
        let method = ALLOCATION_METHODS[self.random.below(ALLOCATION_METHODS.len() as u64) as usize];
        let (chunk, most, ns) = (self.between(1, 8), self.between(1, 40), self.between(50, 2000) * 1000);
        let seed = self.random.below(1 << 30);
        let hold = format!("/programs/fill --api {method} --chunk {chunk}M --max {most}M --hold 86400; sleep 1");
        let (work, is_quiet) = match self.random.below(100) {
            0..12 => ("sleep 5".to_owned(), true),
            12..50 => (hold, true),
            50..66 => (format!("/programs/tenant periodic --ns {ns} --work {} --every 2000 --seconds 30", ns * 2), false),
            66..74 => (format!("/programs/spin --ns {} --seconds 1; sleep 15", ns + 1_000_000), false),
            74..82 => (format!("/programs/fill --api {method} --chunk {chunk}M --max 900M --hold 1; sleep 12"), false),
            82..88 => (format!("/programs/race --processes 3 --rounds 300 --chunk 4M --seed {seed}; sleep 15"), false),
            88..92 => (
                format!("timeout 3 /programs/storm --limit 100M --context {CONTEXT}M --processes 4 --rounds 1 --seed {seed}; sleep 20"),
                false,
            ),
            92..94 => (format!("/programs/tenant exits --kills --ns {ns} --seconds 1; sleep 15"), false),
            94..96 => ("/programs/tenant forks --ns 1000000 --seconds 1; sleep 15".to_owned(), false),
            96..98 => ("/programs/tenant contexts --ns 1000000 --seconds 1; sleep 15".to_owned(), false),
            _ => (format!("/programs/tenant closes --ns {ns} --seconds 1; sleep 15"), false),
        };
        // The shell waits for all children, so that a dead process of the container does not stay a zombie.
        (format!("while [ ! -e /tmp/stop ]; do {work}; done >/dev/null 2>&1; while :; do sleep 60; done"), is_quiet)
    }

    fn plan(&mut self) -> Plan {
        let (script, is_quiet) = self.script();
        let mut bundle = self.machine.bundle().shell(&script);
        let limit = self.chance(85).then(|| self.between(64, 512));
        if let Some(limit) = limit {
            bundle = bundle.annotation("nvidia.com/gpumem", &limit.to_string());
        }
        if limit.is_none() || self.chance(70) {
            bundle = bundle.annotation("nvidia.com/gpucores", &self.between(5, 95).to_string());
        }
        if self.chance(30) {
            bundle = bundle.user(1000);
        }
        if self.chance(8) {
            bundle = bundle.env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/shared.cache");
        }
        if self.chance(4) {
            bundle = bundle.env("PFLOG", "/tmp/logs");
        }
        // A third in the second runtime, if there is one.
        let host = if self.hosts.len() > 1 && self.chance(33) { 1 } else { 0 };
        Plan { bundle, host, wrapped: self.chance(50), is_quiet, limit: limit.map(|limit| limit * MIB) }
    }

    /// Starts a container.
    pub fn start(&mut self) {
        self.next += 1;
        let (id, plan) = (format!("{}{}", Self::prefix(), self.next), self.plan());
        if self.chance(5) {
            let (after, group) = (Duration::from_millis(self.between(0, 90)), self.chance(50));
            Tenant::kill_create(&self.hosts, plan, &id, after, group);
            return self.count(if group { "kill of a create, with its children" } else { "kill of a create" }, &id, Ok(()), true);
        }
        let operation =
            format!("start ({}, {})", if plan.wrapped { "wrapper" } else { "hooks" }, if plan.host == 0 { "runc" } else { "crun" });
        let started = Tenant::start(&self.hosts, plan, id.clone());
        let result = started.map(|tenant| self.tenants.push(tenant));
        self.count(&operation, &id, result, false);
    }

    /// Does something at random, with the aim of `wanted` containers.
    pub fn step(&mut self, monitor: &Monitor, wanted: usize) {
        let percent = if self.tenants.len() < wanted { 50 } else { 3 };
        if self.tenants.is_empty() || self.chance(percent) {
            return self.start();
        }
        let index = self.random.below(self.tenants.len() as u64) as usize;
        let mut tenant = self.tenants.swap_remove(index);
        let mut roll = self.random.below(100);
        let chosen = OPERATIONS.iter().find(|(_, percent)| {
            let is_it = roll < *percent;
            roll = roll.saturating_sub(*percent);
            is_it
        });
        let operation = chosen.map_or("look", |(name, _)| name);
        let id = tenant.id.clone();
        if tenant.killed || operation == "delete" {
            let name = if tenant.killed { "delete after a kill of the init" } else { "delete" };
            let result = tenant.delete(&self.hosts);
            return self.count(name, &id, result, false);
        }
        let (name, result) = self.operate(operation, &mut tenant, monitor);
        let gone = tenant.killed || !process::is_running(tenant.init);
        self.count(&name, &id, result, gone);
        self.tenants.push(tenant);
    }

    /// Does one operation. Returns its name with details.
    fn operate(&mut self, operation: &str, tenant: &mut Tenant, monitor: &Monitor) -> (String, Result<(), String>) {
        let result = match operation {
            "set memory" => self.set_memory(tenant, monitor),
            "set compute" => {
                let percent = if self.chance(10) { "none".to_owned() } else { self.between(5, 95).to_string() };
                set(monitor, &[&tenant.id, "--gpucores", &percent])
            }
            "pause or resume" => {
                let paused = !tenant.paused;
                return (if paused { "pause" } else { "resume" }.to_owned(), tenant.pause(&self.hosts, paused));
            }
            "exec" if !tenant.paused => self.exec(tenant),
            "kill a process" => {
                let others: Vec<_> = tenant.processes().into_iter().filter(|pid| *pid != tenant.init).collect();
                if others.is_empty() {
                    return ("kill a process: there was none".to_owned(), Ok(()));
                }
                let victim = others[self.random.below(others.len() as u64) as usize];
                // It may have ended meanwhile.
                let _ = Pid::from_raw(victim.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
                Ok(())
            }
            "kill the init" => {
                // A paused process ends when it is resumed.
                let result = if tenant.paused { tenant.pause(&self.hosts, false) } else { Ok(()) };
                let result = result.and_then(|()| tenant.call(&self.hosts, &["kill"], &["KILL"]).map(drop));
                tenant.killed = true;
                return (operation.to_owned(), result);
            }
            _ => {
                let output = monitor.output(&["show", &tenant.id]);
                return ("look".to_owned(), if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) });
            }
        };
        tenant.touched = std::time::Instant::now();
        (operation.to_owned(), result)
    }

    fn set_memory(&mut self, tenant: &mut Tenant, monitor: &Monitor) -> Result<(), String> {
        let limit = (!self.chance(10)).then(|| self.between(48, 640));
        tenant.note_limit(limit.map(|limit| limit * MIB));
        set(monitor, &[&tenant.id, "--gpumem", &limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())])
    }

    fn exec(&mut self, tenant: &mut Tenant) -> Result<(), String> {
        let (seconds, most) = (self.between(2, 40).to_string(), format!("{}M", self.between(1, 60)));
        let program: &[&str] = match self.random.below(4) {
            0 => &["/programs/tenant", "periodic", "--ns", "300000", "--every", "1000", "--seconds", &seconds],
            1 => &["/programs/spin", "--ns", "2000000", "--seconds", "1"],
            _ => &["/programs/fill", "--chunk", "2M", "--max", &most, "--hold", &seconds],
        };
        tenant.exec(&self.hosts, program)
    }
}

fn set(monitor: &Monitor, what: &[&str]) -> Result<(), String> {
    let output = monitor.output(&[&["set"], what].concat());
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for tenant in self.tenants.drain(..) {
            let _ = tenant.delete(&self.hosts);
        }
    }
}

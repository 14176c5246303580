//! Checkpoints: what is there every minute, and what of it should not be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vgpu_e2e::Monitor;
use vgpu_e2e::process::{self, Usage};

use crate::fleet::Fleet;
use crate::{accounts, counts, parts};

/// Checkpoints at which the folder of a container that is gone may be there: a create looks at some of the folders only, by chance.
const LEFTOVER: u32 = 10;

/// What was there before the first container.
pub struct Begin {
    /// Files and folders below TMPDIR.
    pub files: BTreeSet<PathBuf>,
    /// Mounts below TMPDIR.
    pub mounts: usize,
    /// Memory in use on the simulated GPU, in bytes.
    pub gpu: u64,
    /// What the monitor's processes used, by role.
    pub parts: BTreeMap<String, Usage>,
}

impl Begin {
    /// Notes it.
    pub fn of(fleet: &Fleet, monitor: &Monitor) -> Self {
        let folder = std::env::temp_dir();
        Self {
            files: counts::files(&folder).into_keys().collect(),
            mounts: counts::mounts(&folder).len(),
            gpu: accounts::gpu(&fleet.machine).used,
            parts: usages(monitor),
        }
    }

    /// Returns it as a line of the log.
    pub fn as_json(&self) -> Value {
        let parts: BTreeMap<_, _> = self.parts.iter().map(|(role, usage)| (role, json!([usage.private, usage.descriptors]))).collect();
        json!({ "begin": { "files": self.files.len(), "mounts": self.mounts, "gpu_used": self.gpu, "parts": parts } })
    }
}

/// Returns what a monitor's processes use, by role.
pub fn usages(monitor: &Monitor) -> BTreeMap<String, Usage> {
    parts::roles(monitor.pid()).into_iter().filter_map(|(pid, role)| Some((role, process::usage(pid)?))).collect()
}

/// The checkpoints so far.
pub struct Log {
    file: File,
    begun: Instant,
    /// All checkpoints.
    pub checkpoints: Vec<Value>,
    /// What was found.
    pub findings: Vec<String>,
    /// The monitor's processes.
    pub lives: parts::Lives,
    /// How often each process of the monitor was killed.
    pub kills: BTreeMap<&'static str, u64>,
    /// Comparisons of accounts, and those of containers with a process on the GPU.
    pub compared: [usize; 2],
    /// Folders of containers that are gone, and at how many checkpoints each was there.
    leftovers: BTreeMap<PathBuf, u32>,
}

impl Log {
    /// Creates the file.
    pub fn create(path: &str) -> Self {
        let file = File::create(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (begun, lives) = (Instant::now(), parts::Lives::default());
        Self {
            file,
            begun,
            lives,
            checkpoints: Vec::new(),
            findings: Vec::new(),
            kills: BTreeMap::new(),
            compared: [0; 2],
            leftovers: BTreeMap::new(),
        }
    }

    /// Writes a line.
    pub fn write(&mut self, line: &Value) {
        writeln!(self.file, "{line}").expect("the log can be written");
    }

    /// Notes something that should not be.
    pub fn find(&mut self, what: String) {
        eprintln!("soak: FOUND: {what}");
        self.write(&json!({ "t": self.begun.elapsed().as_secs(), "found": what }));
        self.findings.push(what);
    }

    /// Notes a kill.
    pub fn killed(&mut self, role: &'static str) {
        *self.kills.entry(role).or_default() += 1;
        self.write(&json!({ "t": self.begun.elapsed().as_secs(), "killed": role }));
    }

    /// Notes if a monitor has reported a violation: there is none.
    pub fn false_reports(&mut self, monitor: &Monitor) {
        for words in ["bypasses the library", "more memory than", "more GPU time than", "ended process"] {
            if monitor.logged(words, &Fleet::prefix(), Duration::ZERO).is_some() {
                self.find(format!("the monitor reported a violation: a line with {words:?}"));
            }
        }
    }

    /// Does a checkpoint. The last one, when operations have ended, has no minute.
    pub fn checkpoint(&mut self, minute: Option<u64>, fleet: &Fleet, monitor: &Monitor) {
        let folders = fleet.host().containers();
        let is_living = |folder: &PathBuf| fleet.tenants.iter().any(|tenant| is_of(folder, &tenant.id));
        let leftovers: BTreeSet<_> = folders.iter().filter(|folder| !is_living(folder)).cloned().collect();
        self.leftovers = leftovers.iter().map(|folder| (folder.clone(), self.leftovers.get(folder).unwrap_or(&0) + 1)).collect();
        let old: Vec<_> = self.leftovers.iter().filter(|(_, times)| **times == LEFTOVER).map(|(folder, _)| folder.clone()).collect();
        old.iter().for_each(|folder| self.find(format!("of a container that is gone for {LEFTOVER} minutes: {}", folder.display())));
        for tenant in fleet.tenants.iter().filter(|tenant| !tenant.killed && !process::is_running(tenant.init)) {
            self.find(format!("{}: its first process ended by itself", tenant.id));
        }
        let roles = parts::roles(monitor.pid());
        for role in parts::ALWAYS.iter().filter(|role| !roles.iter().any(|(_, found)| found == *role)) {
            self.find(format!("part {role} does not run"));
        }
        let compared = accounts::compare(&fleet.machine, monitor, fleet.tenants.iter());
        self.compared = [self.compared[0] + compared.compared, self.compared[1] + compared.with_processes];
        compared.differences.iter().for_each(|difference| self.find(format!("an account differs: {difference}")));
        let line = self.line(minute, fleet, monitor, leftovers.len(), &compared);
        self.write(&line);
        let when = minute.map_or("the end".to_owned(), |minute| format!("minute {minute}"));
        eprintln!("soak: {when}: {} containers, {} findings", fleet.tenants.len(), self.findings.len());
        self.checkpoints.push(line);
    }

    fn line(&mut self, minute: Option<u64>, fleet: &Fleet, monitor: &Monitor, leftovers: usize, compared: &accounts::Comparison) -> Value {
        let (state, gpu) = (fleet.host().state_dir(), accounts::gpu(&fleet.machine));
        let (files, mounts) = (counts::files(&state), counts::mounts(&state));
        let gone = gpu.processes.iter().filter(|truth| !process::is_running(truth.pid)).count();
        let of_monitor = process::tree(monitor.pid());
        let own = process::usage(std::process::id()).unwrap_or_default();
        json!({
            "t": self.begun.elapsed().as_secs(),
            "minute": minute,
            "containers": fleet.tenants.len(),
            "paused": fleet.tenants.iter().filter(|tenant| tenant.paused).count(),
            "operations": fleet.counts.values().map(|count| count.0).sum::<u64>(),
            "machine_mounts": counts::all_mounts(),
            "state_mounts": mounts.len(),
            "state_tmpfs": mounts.iter().filter(|mount| mount.1 == "tmpfs").count(),
            "state_files": files.len(),
            "state_bytes": files.values().sum::<u64>(),
            "state_containers": fleet.host().containers().len(),
            "leftovers": leftovers,
            "cgroups": counts::cgroups(&Fleet::prefix()).len(),
            "container_processes": counts::in_cgroups_of(&Fleet::prefix()).len(),
            "machine_zombies": counts::zombies(),
            "monitor_zombies": of_monitor.iter().filter(|pid| process::is_zombie(**pid)).count(),
            "gpu_processes": gpu.processes.len(),
            "gpu_gone_processes": gone,
            "gpu_used": gpu.used,
            "compared": compared.compared,
            "compared_with_processes": compared.with_processes,
            "differences": compared.differences.len(),
            "metrics_bytes": monitor.scrape().map_or(0, |text| text.len()),
            "monitor_cpu_ticks": process::cpu_ticks(monitor.pid()),
            "soak_private": own.private,
            "soak_descriptors": own.descriptors,
            "parts": self.lives.note(monitor.pid()),
        })
    }
}

/// Returns whether a folder in the state directory is that of a container.
fn is_of(folder: &std::path::Path, id: &str) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split(|character: char| !character.is_ascii_alphanumeric() && character != '-').any(|word| word == id)
}

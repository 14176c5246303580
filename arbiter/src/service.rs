//! Finds the containers, and runs one scheduler for each GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::debug;
use vgpu_region::MAX_GPUS;
use vgpu_region::limits::{LimitsPage, Turn};
use vgpu_region::map;
use vgpu_region::region::{GpuAccount, Region};
use vgpu_region::uuid::Uuid;

use crate::residency::{self, Residency, Resident};
use crate::scheduler::Scheduler;
use crate::tenant::{Source, Tenant};

/// Time between two scans for new containers, and for GPUs that a container uses for the first time.
const SCAN_INTERVAL: Duration = Duration::from_millis(200);

/// Scans after which the GPUs of a container that takes part on none are asked for again: the inventory may not be written yet.
const SCANS_BETWEEN_QUESTIONS: u32 = 10;

struct Container {
    limits: &'static LimitsPage,
    region: File,
    /// The container's GPUs in its own order, according to the host. What the container says in its region is no evidence.
    gpus: Vec<Uuid>,
    /// Scans until these may be asked for again.
    asked_for: u32,
    /// GPUs on which the container is a tenant.
    known_gpus: BTreeSet<[u8; 16]>,
}

/// Runs until `stop` is set. `dir` has a directory for each container, with the files `limits` and `region`. `gpus_of` returns the GPUs of the
/// container in a directory, in the container's order; it must not rely on what the container's processes write. Calls `beat` all the time,
/// to show that nothing holds it up.
pub fn run(dir: &Path, gpus_of: &dyn Fn(&Path) -> Vec<Uuid>, stop: &AtomicBool, mut beat: impl FnMut()) {
    reduce_timer_slack();
    let mut arbiter = Arbiter::new(dir, gpus_of);
    let (start, mut scanned, mut memory_at_us) = (Instant::now(), None::<Instant>, 0_u64);
    while !stop.load(Relaxed) {
        beat();
        if scanned.is_none_or(|scanned| scanned.elapsed() > SCAN_INTERVAL) {
            arbiter.scan();
            scanned = Some(Instant::now());
        }
        // Never 0, which stands for "never active".
        let now_us = start.elapsed().as_micros() as u64 + 1_000_000;
        let turns = arbiter.gpus.values_mut().map(|scheduler| scheduler.tick(now_us)).min();
        if now_us >= memory_at_us {
            memory_at_us = now_us + arbiter.memory.values_mut().map(|memory| memory.tick(now_us)).min().unwrap_or(0);
        }
        let memory = (!arbiter.memory.is_empty()).then(|| memory_at_us.saturating_sub(now_us));
        let sleep = turns.into_iter().chain(memory).min();
        std::thread::sleep(sleep.map_or(SCAN_INTERVAL, Duration::from_micros).min(SCAN_INTERVAL));
    }
    arbiter.memory.values_mut().for_each(Residency::end);
    for tenant in arbiter.gpus.values_mut().flat_map(|scheduler| &mut scheduler.tenants) {
        tenant.turn.lent.store(0, Relaxed);
        tenant.set_slice(0);
        tenant.set_turn(Turn::FREE, 0, 0);
    }
}

/// Turns are handed over within microseconds; with the default timer slack, sleeps end 50 µs late.
fn reduce_timer_slack() {
    // SAFETY: sets this thread's own timer slack, in nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}

struct Arbiter<'a> {
    dir: PathBuf,
    gpus_of: &'a dyn Fn(&Path) -> Vec<Uuid>,
    containers: BTreeMap<PathBuf, Container>,
    gpus: BTreeMap<[u8; 16], Scheduler>,
    /// GPUs whose memory is overcommitted.
    memory: BTreeMap<[u8; 16], Residency>,
}

impl<'a> Arbiter<'a> {
    fn new(dir: &Path, gpus_of: &'a dyn Fn(&Path) -> Vec<Uuid>) -> Self {
        Self { dir: dir.to_owned(), gpus_of, containers: BTreeMap::new(), gpus: BTreeMap::new(), memory: BTreeMap::new() }
    }

    fn scan(&mut self) {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        // Unfinished directories are renamed: under the new name, the files would be closed and opened again.
        let complete = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        let found: BTreeSet<PathBuf> = complete.map(|entry| entry.path()).collect();
        let gone: Vec<PathBuf> = self.containers.keys().filter(|path| !found.contains(*path)).cloned().collect();
        for path in gone {
            self.remove(&path);
        }
        for path in found {
            if !self.containers.contains_key(&path)
                && let Some(container) = open(&path)
            {
                self.containers.insert(path, container);
            }
        }
        // Clients of MPS run side by side, without turns.
        for (path, container) in self.containers.iter_mut().filter(|(_, container)| !container.limits.is_mps()) {
            for (uuid, tenant, resident) in new_tenants(container, || (self.gpus_of)(path)) {
                if let Some(resident) = resident {
                    self.memory.entry(uuid.0).or_default().residents.push(resident);
                }
                debug!(container = %path.display(), gpu = %uuid, "container takes part in turns");
                self.gpus.entry(uuid.0).or_default().replace_tenants(|_| true, vec![tenant]);
            }
        }
    }

    /// Removes a container that is gone. Its page stays mapped until no tenant refers to it.
    fn remove(&mut self, path: &Path) {
        let Some(container) = self.containers.remove(path) else { return };
        debug!(container = %path.display(), "container is gone");
        for uuid in &container.known_gpus {
            if let (Some(scheduler), Some(turn)) = (self.gpus.get_mut(uuid), container.limits.turn(Uuid(*uuid))) {
                scheduler.replace_tenants(|tenant| !std::ptr::eq(tenant.turn, turn), vec![]);
                if let Some(memory) = self.memory.get_mut(uuid) {
                    memory.residents.retain(|resident| !std::ptr::eq(resident.turn, turn));
                }
            }
        }
        // SAFETY: the tenants that referred to the page were just removed.
        unsafe { libc::munmap(std::ptr::from_ref(container.limits).cast_mut().cast(), size_of::<LimitsPage>()) };
    }
}

/// Returns a tenant for each of the container's GPUs that it uses for the first time, also of its memory if that is overcommitted.
fn new_tenants(container: &mut Container, gpus: impl FnOnce() -> Vec<Uuid>) -> Vec<(Uuid, Tenant, Option<Resident>)> {
    let is_new = |uuid: Uuid| !container.known_gpus.contains(&uuid.0);
    if !container.gpus.is_empty() && !container.gpus.iter().any(|&gpu| is_new(gpu)) {
        return Vec::new();
    }
    let Some(accounts) = read_accounts(&container.region) else { return Vec::new() };
    container.asked_for = container.asked_for.saturating_sub(1);
    if container.gpus.is_empty() && container.asked_for == 0 && accounts.iter().filter_map(GpuAccount::uuid).any(is_new) {
        (container.gpus, container.asked_for) = (gpus(), SCANS_BETWEEN_QUESTIONS);
    }
    let mut tenants = Vec::new();
    for (index, account) in accounts.iter().enumerate() {
        let Some(uuid) = account.uuid().filter(|uuid| !container.known_gpus.contains(&uuid.0)) else { continue };
        let Some(nth) = container.gpus.iter().position(|gpu| *gpu == uuid) else { continue };
        let limit = container.limits.find(uuid, u32::try_from(nth).ok());
        let (Some(limit), Some(turn)) = (limit, container.limits.turn_for(uuid)) else { continue };
        let (Ok(region), Ok(again)) = (container.region.try_clone(), container.region.try_clone()) else { continue };
        container.known_gpus.insert(uuid.0);
        let is_overcommitted = limit.overcommit.load(Relaxed) != 0;
        let resident = is_overcommitted.then(|| Resident::new(container.limits, limit, turn, residency::Source::File(again, index)));
        let offset = offset_of!(Region, gpus) + index * size_of::<GpuAccount>() + offset_of!(GpuAccount, budget);
        tenants.push((uuid, Tenant::new(container.limits, limit, turn, Source::File(region, offset as u64)), resident));
    }
    tenants
}

fn open(dir: &Path) -> Option<Container> {
    let path = |name: &str| CString::new(dir.join(name).as_os_str().as_bytes()).ok();
    // Never waits for a process of the container that holds a lease on a file: it is opened at a later scan.
    let region = OpenOptions::new().read(true).custom_flags(map::WITHOUT_WAITING).open(dir.join("region")).ok()?;
    // The page is mapped last: a container whose page is mapped has both files open, and no lease can be taken on an open file.
    let limits = map::limits_for_change(&path("limits")?).ok()?;
    Some(Container { limits, region, gpus: Vec::new(), asked_for: 0, known_gpus: BTreeSet::new() })
}

/// Returns a copy of the accounts in a region, whatever they contain.
fn read_accounts(region: &File) -> Option<Box<[GpuAccount; MAX_GPUS]>> {
    // SAFETY: accounts consist of atomics and integers, for which every bit pattern is valid.
    let mut accounts: Box<[GpuAccount; MAX_GPUS]> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: the box owns these bytes, and nothing else refers to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut *accounts).cast::<u8>(), size_of_val(&*accounts)) };
    region.read_exact_at(bytes, offset_of!(Region, gpus) as u64).ok()?;
    Some(accounts)
}

#[cfg(test)]
mod tests;

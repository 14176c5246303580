//! Finds the containers, and runs one schedule for each GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use vgpu_region::MAX_GPUS;
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_region::region::{GpuAccount, Region};
use vgpu_region::uuid::Uuid;

use crate::scheduler::Scheduler;
use crate::tenant::{Source, Tenant};

/// How often to look for new containers, and for GPUs that a container uses for the first time.
const LOOK: Duration = Duration::from_millis(200);

struct Container {
    limits: &'static LimitsPage,
    region: File,
    known_gpus: BTreeSet<[u8; 16]>,
}

/// Runs until `stop` is set. `folder` holds a folder for each container, with `limits` and `region` in it.
pub fn run(folder: &Path, stop: &AtomicBool) {
    precise_sleep();
    let mut watch = Watch { folder: folder.to_owned(), containers: BTreeMap::new(), gpus: BTreeMap::new() };
    let (start, mut looked) = (Instant::now(), None::<Instant>);
    while !stop.load(Relaxed) {
        if looked.is_none_or(|looked| looked.elapsed() > LOOK) {
            watch.look();
            looked = Some(Instant::now());
        }
        // Never 0, which stands for "never seen".
        let now = start.elapsed().as_micros() as u64 + 1_000_000;
        let nap = watch.gpus.values_mut().map(|schedule| schedule.tick(now)).min();
        std::thread::sleep(nap.map_or(LOOK, Duration::from_micros).min(LOOK));
    }
    for seat in watch.gpus.values().flat_map(|schedule| &schedule.tenants) {
        seat.lend(0);
        seat.tell(vgpu_region::limits::Turn::FREE, 0);
    }
}

/// A turn is passed on by the microsecond; sleeping threads are late by 50 of them otherwise.
fn precise_sleep() {
    // SAFETY: sets this thread's own timer slack, in nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}

struct Watch {
    folder: PathBuf,
    containers: BTreeMap<PathBuf, Container>,
    gpus: BTreeMap<[u8; 16], Scheduler>,
}

impl Watch {
    fn look(&mut self) {
        let found: BTreeSet<PathBuf> =
            std::fs::read_dir(&self.folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
        let gone: Vec<PathBuf> = self.containers.keys().filter(|path| !found.contains(*path)).cloned().collect();
        for path in gone {
            self.leave(&path);
        }
        for path in found {
            if !self.containers.contains_key(&path)
                && let Some(container) = open(&path)
            {
                self.containers.insert(path, container);
            }
        }
        // MPS' clients run side by side.
        for container in self.containers.values_mut().filter(|container| !container.limits.is_mps()) {
            let Some(accounts) = accounts(&container.region) else { continue };
            for (place, account) in accounts.iter().enumerate() {
                let Some(uuid) = account.uuid().filter(|uuid| !container.known_gpus.contains(&uuid.0)) else { continue };
                // Entries by index are the container's own order, which only its processes know; they say by the UUID that they use it.
                let limit = container.limits.find(uuid, None).or_else(|| container.limits.gpus().next());
                let (Some(limit), Some(turn)) = (limit, container.limits.turn_for(uuid)) else { continue };
                let Ok(region) = container.region.try_clone() else { continue };
                container.known_gpus.insert(uuid.0);
                let offset = offset_of!(Region, gpus) + place * size_of::<GpuAccount>() + offset_of!(GpuAccount, budget);
                let seat = Tenant::new(limit, turn, Source::File(region, offset as u64), container.limits.priority());
                self.gpus.entry(uuid.0).or_default().replace_tenants(|_| true, vec![seat]);
            }
        }
    }

    /// A container is gone. Its page stays mapped until no seat refers to it.
    fn leave(&mut self, path: &Path) {
        let Some(container) = self.containers.remove(path) else { return };
        for uuid in &container.known_gpus {
            if let (Some(schedule), Some(turn)) = (self.gpus.get_mut(uuid), container.limits.turn(Uuid(*uuid))) {
                schedule.replace_tenants(|seat| !std::ptr::eq(seat.turn, turn), vec![]);
            }
        }
        // SAFETY: the tenants that referred to the page were just removed.
        unsafe { libc::munmap(std::ptr::from_ref(container.limits).cast_mut().cast(), size_of::<LimitsPage>()) };
    }
}

fn open(folder: &Path) -> Option<Container> {
    let path = |name: &str| CString::new(folder.join(name).as_os_str().as_bytes()).ok();
    let limits = map::limits_for_change(&path("limits")?).ok()?;
    let region = File::open(folder.join("region")).ok()?;
    Some(Container { limits, region, known_gpus: BTreeSet::new() })
}

/// A copy of the accounts in a region, whatever they hold.
fn accounts(region: &File) -> Option<Box<[GpuAccount; MAX_GPUS]>> {
    // SAFETY: accounts consist of atomics and integers, for which every pattern of bits is valid.
    let mut accounts: Box<[GpuAccount; MAX_GPUS]> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: the box's own bytes, which nobody else refers to.
    let bytes = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut *accounts).cast::<u8>(), size_of_val(&*accounts)) };
    region.read_exact_at(bytes, offset_of!(Region, gpus) as u64).ok()?;
    Some(accounts)
}

//! What a tenant says about its memory, in its region.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::map::Census;
use vgpu_region::region::{GpuAccount, Region, SLOTS, Slot};

/// Most pages that a tenant is believed to have: 512 GiB, more than a GPU has. How long it may take to leave depends on what it claims.
const MAX_PAGES: u64 = 1 << 27;

/// What a tenant says about its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of requests for room so far.
    pub room_wanted: u32,
    /// Sum of the calls of its living processes whose memory is on the GPU.
    pub calls: u32,
    /// The same of those whose memory is on the host: these calls wait.
    pub waiting_calls: u32,
    /// Pages on the GPU that may move, at most: those of processes whose memory is there, without contexts, modules and managed memory.
    pub resident: u64,
    /// Pages on the host.
    pub out: u64,
    /// Last order that each living process with memory has followed.
    pub left: Vec<u32>,
}

/// Source of a tenant's report.
#[derive(Debug)]
pub enum Source {
    /// Region file, and the GPU's index in it.
    File(File, usize),
    /// For tests.
    Memory(&'static std::sync::Mutex<Report>),
}

impl Source {
    /// Returns the report. A tenant whose region is unreadable has nothing to say.
    pub fn read(&self) -> Report {
        match self {
            Self::File(file, gpu) => read(file, *gpu).unwrap_or_default(),
            Self::Memory(report) => report.lock().map(|report| report.clone()).unwrap_or_default(),
        }
    }

    /// Returns the number of requests for room in the report, without the rest.
    pub fn room_wanted(&self) -> u32 {
        match self {
            Self::File(file, gpu) => room_wanted(file, *gpu).unwrap_or_default(),
            Self::Memory(report) => report.lock().map(|report| report.room_wanted).unwrap_or_default(),
        }
    }
}

/// Reads a word of a region.
fn word(file: &File, at: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at as u64).ok().map(|()| u32::from_ne_bytes(bytes))
}

fn room_wanted(file: &File, gpu: usize) -> Option<u32> {
    word(file, offset_of!(Region, gpus) + gpu * size_of::<GpuAccount>() + offset_of!(GpuAccount, room_wanted))
}

/// Reads a tenant's report from its region. Processes that have made no counted call have nothing that can move; what dead ones had, the
/// driver has freed.
pub fn read(file: &File, gpu: usize) -> Option<Report> {
    let mut report = Report { room_wanted: room_wanted(file, gpu)?, ..Report::default() };
    let used = word(file, offset_of!(Region, slots_used))?.min(SLOTS as u32);
    let census = Census::of(file.as_raw_fd());
    for (index, slot) in read_slots(file, used as usize)?.iter().enumerate() {
        let calls = slot.calls.load(Relaxed);
        let Some(charge) = slot.gpus.get(gpu).filter(|charge| calls != 0 && charge.charge.see().most() != 0) else { continue };
        if census.is_dead(index) {
            continue;
        }
        let out = u64::from(charge.out.load(Relaxed));
        let stays = u64::from(charge.overhead.load(Relaxed)) + u64::from(charge.managed.load(Relaxed));
        let sum = if out == 0 { &mut report.calls } else { &mut report.waiting_calls };
        *sum = sum.wrapping_add(calls);
        report.out = (report.out + out).min(MAX_PAGES);
        // A process moves all of its memory or none.
        if out == 0 {
            report.resident = (report.resident + charge.charge.see().most().saturating_sub(stays)).min(MAX_PAGES);
        }
        report.left.push(slot.left.load(Relaxed));
    }
    Some(report)
}

/// Returns a copy of the first slots of a region, whatever they contain.
fn read_slots(file: &File, count: usize) -> Option<Vec<Slot>> {
    // SAFETY: slots consist of atomics and integers, for which every bit pattern is valid.
    let mut slots: Vec<Slot> = (0..count).map(|_| unsafe { std::mem::zeroed() }).collect();
    // SAFETY: the vector owns these bytes, and nothing else refers to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(slots.as_mut_ptr().cast::<u8>(), size_of_val(&*slots)) };
    file.read_exact_at(bytes, offset_of!(Region, slots) as u64).ok()?;
    Some(slots)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use vgpu_region::map;

    use super::*;

    #[test]
    fn what_the_dead_had_is_not_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        map::format(File::create(&path).unwrap().as_raw_fd()).unwrap();
        let me = map::join(&CString::new(path.to_str().unwrap()).unwrap(), 1, 1).unwrap();
        me.region.slots_used.store(3, Relaxed);
        for (slot, out) in me.region.slots.iter().zip([0, 0, 30]) {
            slot.calls.store(5, Relaxed);
            slot.left.store(7, Relaxed);
            slot.gpus[0].charge.reserve(&me.region.gpus[0].total, 30, 100).unwrap();
            slot.gpus[0].overhead.store(4, Relaxed);
            slot.gpus[0].out.store(out, Relaxed);
        }
        let report = read(&File::open(&path).unwrap(), 0);
        assert_eq!(report, Some(Report { calls: 5, resident: 26, left: vec![7], ..Report::default() }));
    }

    #[test]
    fn a_region_with_any_content_is_a_report() {
        let path = std::env::temp_dir().join(format!("vgpu-residency-{}", std::process::id()));
        for (bytes, is_readable) in [(vec![0xff; vgpu_region::region::SIZE], true), (vec![0xff; 100], false), (vec![], false)] {
            std::fs::write(&path, bytes).unwrap();
            let report = read(&File::open(&path).unwrap(), 0);
            assert_eq!(report.is_some(), is_readable);
        }
        std::fs::remove_file(path).unwrap();
    }
}

//! Reader of a container's trace rings.
//!
//! The tenant can write and truncate the file at any time, so it is never mapped, and no figure in it is trusted. One pass copies at most the
//! capacity of the rings.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use vgpu_region::map::Census;
use vgpu_region::region::{Region, SLOTS};
use vgpu_region::trace::{
    CALL_LENGTH, CALLS, CAPACITY, Call, HEADER_SIZE, Header, Kind, MAGIC, NAME_LENGTH, NAMES, Name, RECORD_SIZE, Ring, TIMED, VERSION,
    What, offset,
};

use super::clock::Clocks;
use super::event::Event;

/// Records copied at a time.
const CHUNK: u64 = 1024;

/// Progress in one ring.
#[derive(Debug, Default)]
struct Progress {
    /// Number of the next record.
    next: Option<u64>,
    /// Number of the first record to be ignored.
    end: Option<u64>,
    calls: HashMap<u8, Arc<str>>,
    names: HashMap<u16, Arc<str>>,
}

/// Copy of a ring's header.
#[derive(Clone, Copy, Debug)]
struct Head {
    head: u64,
    since_1970: u64,
    pid: u32,
    calls: usize,
}

/// Trace rings of a container.
#[derive(Debug)]
pub struct Rings {
    file: File,
    census: Census,
    progress: Vec<Progress>,
    from_start: bool,
    clocks: Clocks,
    none: Arc<str>,
    /// Number of records that were overwritten before they were copied, or never completed.
    pub lost: u64,
}

/// Calls of one driver function by all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Number of calls.
    pub count: u64,
    /// Total time on the host in nanoseconds.
    pub took_ns: u64,
}

impl Rings {
    /// Opens the region at `path`. Skips existing records unless `from_start` is set.
    ///
    /// # Errors
    /// The region cannot be opened.
    pub fn open(path: &Path, from_start: bool) -> io::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
        let mut this = Self {
            file: File::open(path)?,
            census: Census::open(&name),
            progress: Vec::new(),
            from_start,
            clocks: Clocks::default(),
            none: Arc::from(""),
            lost: 0,
        };
        if !from_start {
            for slot in 0..this.slots() {
                let next = this.header(slot).map(|header| header.head);
                this.progress(slot).next = next;
            }
        }
        Ok(this)
    }

    fn slots(&self) -> usize {
        let mut bytes = [0; 4];
        let read = self.file.read_exact_at(&mut bytes, offset_of!(Region, slots_used) as u64);
        read.map_or(0, |()| u32::from_ne_bytes(bytes) as usize).min(SLOTS)
    }

    fn progress(&mut self, slot: usize) -> &mut Progress {
        while self.progress.len() <= slot {
            self.progress.push(Progress::default());
        }
        &mut self.progress[slot]
    }

    fn header(&self, slot: usize) -> Option<Head> {
        let mut bytes = [0; HEADER_SIZE];
        self.file.read_exact_at(&mut bytes, offset(slot)).ok()?;
        let long = |at: usize| bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let short = |at: usize| long(at) as u32;
        // The magic word is first, then version and capacity.
        let fits = long(0) == MAGIC && short(8) == VERSION && short(12) as usize == CAPACITY;
        fits.then(|| Head {
            head: long(offset_of!(Header, head)),
            since_1970: long(offset_of!(Header, since_1970)),
            pid: short(offset_of!(Header, pid)),
            calls: (short(offset_of!(Header, calls)) as usize).min(CALLS),
        })
    }

    /// Passes the records since the last call to `each`, ring by ring. Incomplete records wait for the next call, unless `is_last` is set, their
    /// process is dead, or they are about to be overwritten.
    pub fn drain(&mut self, is_last: bool, mut each: impl FnMut(Event)) {
        for slot in 0..self.slots() {
            let Some(mut head) = self.header(slot) else { continue };
            let from_start = self.from_start;
            let next = self.progress(slot).next.unwrap_or(if from_start { 0 } else { head.head.saturating_sub(CAPACITY as u64) });
            let oldest = head.head.saturating_sub(CAPACITY as u64);
            head.head = self.progress(slot).end.unwrap_or(u64::MAX).min(head.head).max(oldest);
            let mut at = next.clamp(oldest, head.head);
            self.lost += oldest.saturating_sub(next);
            let is_dead = is_last || self.census.is_dead(slot);
            while at < head.head {
                let consumed = self.copy(slot, head, at, is_dead, &mut each);
                if consumed == 0 {
                    break;
                }
                at += consumed;
            }
            self.progress(slot).next = Some(at);
        }
    }

    /// Copies records from number `at` on. Returns how many are consumed.
    fn copy(&mut self, slot: usize, head: Head, at: u64, is_dead: bool, each: &mut impl FnMut(Event)) -> u64 {
        let index = at % CAPACITY as u64;
        let count = CHUNK.min(head.head - at).min(CAPACITY as u64 - index);
        let mut bytes = vec![0; count as usize * RECORD_SIZE];
        let start = offset(slot) + offset_of!(Ring, records) as u64 + index * RECORD_SIZE as u64;
        if self.file.read_exact_at(&mut bytes, start).is_err() {
            return 0;
        }
        for (step, record) in bytes.chunks_exact(RECORD_SIZE).enumerate() {
            let number = at + step as u64;
            let words: Vec<u64> = record.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes)).collect();
            let [sequence, begin, took, thread_and_pid, what, rest @ ..] = words.as_slice() else { return count };
            let (what, pid) = (What::of(*what), *thread_and_pid as u32);
            let may_wait = !is_dead && head.head - number < CAPACITY as u64 / 2;
            if *sequence != number + 1 {
                // Incomplete, or overwritten.
                if *sequence == 0 && may_wait {
                    return step as u64;
                }
                self.lost += 1;
                continue;
            }
            let [place, amount, gpu_begin, gpu_took, ..] = *rest else { return count };
            if what.flags & TIMED != 0 && gpu_took == 0 && may_wait && pid == head.pid {
                return step as u64;
            }
            let Some(kind) = Kind::of(what.kind) else { continue };
            let begin = begin.wrapping_add(head.since_1970);
            let timed = what.flags & TIMED != 0 && gpu_took != 0;
            let gpu = timed.then(|| self.clocks.map_to_host((pid, what.context, place), begin, gpu_begin, gpu_took - 1)).flatten();
            let name = match kind {
                Kind::Kernel => self.name(slot, what.name),
                Kind::Start => text(&[place.to_ne_bytes(), amount.to_ne_bytes()].concat()).into(),
                _ => Arc::clone(&self.none),
            };
            let call = self.call(slot, what.call);
            each(Event { pid, thread: (*thread_and_pid >> 32) as u32, kind, what, call, name, begin, took: *took, place, amount, gpu });
        }
        count
    }

    fn read_name(&self, at: u64, length: usize) -> Option<Arc<str>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(text(&bytes)).filter(|text| !text.is_empty()).map(Arc::from)
    }

    fn call(&mut self, slot: usize, call: u8) -> Arc<str> {
        let Some(index) = usize::from(call).checked_sub(1).filter(|index| *index < CALLS) else { return Arc::clone(&self.none) };
        if let Some(known) = self.progress(slot).calls.get(&call) {
            return Arc::clone(known);
        }
        let at = offset(slot) + (offset_of!(Ring, calls) + index * size_of::<Call>() + offset_of!(Call, name)) as u64;
        let Some(found) = self.read_name(at, CALL_LENGTH) else { return Arc::clone(&self.none) };
        self.progress(slot).calls.insert(call, Arc::clone(&found));
        found
    }

    fn name(&mut self, slot: usize, name: u16) -> Arc<str> {
        let Some(index) = usize::from(name).checked_sub(1).filter(|index| *index < NAMES) else { return Arc::clone(&self.none) };
        if let Some(known) = self.progress(slot).names.get(&name) {
            return Arc::clone(known);
        }
        let at = offset(slot) + (offset_of!(Ring, names) + index * size_of::<Name>() + offset_of!(Name, text)) as u64;
        let Some(found) = self.read_name(at, NAME_LENGTH) else { return Arc::clone(&self.none) };
        self.progress(slot).names.insert(name, Arc::clone(&found));
        found
    }

    /// Ignores records made from now on.
    pub fn stop(&mut self) {
        for slot in 0..SLOTS {
            let end = if slot < self.slots() { self.header(slot).map_or(0, |header| header.head) } else { 0 };
            self.progress(slot).end.get_or_insert(end);
        }
    }

    /// Returns whether records are left for the next call.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        let behind = |(slot, progress): (usize, &Progress)| {
            let head = self.header(slot).map_or(0, |header| header.head).min(progress.end.unwrap_or(u64::MAX));
            progress.next.is_some_and(|next| next < head)
        };
        self.progress.iter().enumerate().any(behind)
    }

    /// Returns the calls of each driver function since the rings were created.
    #[must_use]
    pub fn totals(&self) -> HashMap<String, Total> {
        let mut totals: HashMap<String, Total> = HashMap::new();
        for slot in 0..self.slots() {
            let Some(head) = self.header(slot) else { continue };
            let mut bytes = vec![0; head.calls * size_of::<Call>()];
            if self.file.read_exact_at(&mut bytes, offset(slot) + offset_of!(Ring, calls) as u64).is_err() {
                continue;
            }
            for call in bytes.chunks_exact(size_of::<Call>()) {
                let long = |at: usize| call.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes);
                let total = totals.entry(text(call.get(offset_of!(Call, name)..).unwrap_or_default())).or_default();
                total.count = total.count.saturating_add(long(offset_of!(Call, count)));
                total.took_ns = total.took_ns.saturating_add(long(offset_of!(Call, took)));
            }
        }
        totals
    }
}

/// Returns the text up to the first zero byte, with control characters replaced.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned();
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

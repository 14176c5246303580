//! Reader of a container's trace rings.
//!
//! The tenant can write and truncate the file at any time, so it is never mapped, and no figure in it is trusted. One pass examines at most
//! 4096 records (`MAX_PER_PASS`) of at most [`TRACED_AT_ONCE`] rings, whatever their headers say; the last pass, and every pass of a trace
//! that an operator waits for, the capacity of these rings. What is overwritten before it is copied is counted as lost.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use vgpu_region::map::Census;
use vgpu_region::region::{Region, SLOTS};
use vgpu_region::trace::{
    CALL_LENGTH, CALLS, CAPACITY, Call, HEADER_SIZE, Header, Kind, MAGIC, NAME_LENGTH, NAMES, Name, RECORD_SIZE, Ring, TIMED,
    TRACED_AT_ONCE, VERSION, What, offset,
};

use super::clock::Clocks;
use super::event::Event;
use crate::shared_file;

/// Records copied at a time.
const CHUNK: u64 = 1024;

/// Most records that one pass examines. A record costs 2 to 4 µs with its lines in the logs, so that ten passes a second take about a tenth
/// of a core; that is enough for 40,000 records a second.
const MAX_PER_PASS: u64 = 4096;
/// Most records that there are in the rings that are read.
const ALL: u64 = (TRACED_AT_ONCE * CAPACITY) as u64;
/// Most names of kernels and functions that are remembered.
const MAX_NAMES: usize = 8 * NAMES;
/// Most functions in [`Rings::totals`]: several times those of the driver.
const MAX_TOTALS: usize = 8 * CALLS;

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
    /// Number of names remembered in `progress`.
    names: usize,
    /// Slot from which on the next pass looks for its first ring.
    first: usize,
    /// Most records that a pass examines.
    most: u64,
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
            file: shared_file::open(path)?,
            census: Census::open(&name),
            progress: Vec::new(),
            from_start,
            clocks: Clocks::default(),
            none: Arc::from(""),
            names: 0,
            first: 0,
            most: MAX_PER_PASS,
            lost: 0,
        };
        if !from_start {
            for (slot, header) in this.headers() {
                this.progress(slot).next = Some(header.head);
            }
        }
        Ok(this)
    }

    /// Lets each pass examine all records: for an operator who waits for the trace, not for logs that a tenant has asked for.
    #[must_use]
    pub fn in_full(mut self) -> Self {
        self.most = ALL;
        self
    }

    fn slots(&self) -> usize {
        let mut bytes = [0; 4];
        let read = self.file.read_exact_at(&mut bytes, offset_of!(Region, slots_used) as u64);
        read.map_or(0, |()| u32::from_ne_bytes(bytes) as usize).min(SLOTS)
    }

    /// Returns the headers of the rings in use, with their slots.
    fn headers(&self) -> Vec<(usize, Head)> {
        (0..self.slots()).filter_map(|slot| Some((slot, self.header(slot)?))).take(TRACED_AT_ONCE).collect()
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
        let mut left = if is_last { ALL } else { self.most };
        let mut headers = self.headers();
        // A ring that is never empty does not keep the others from being read.
        let first = headers.partition_point(|(slot, _)| *slot < self.first);
        headers.rotate_left(first);
        for (slot, head) in headers {
            self.first = slot + 1;
            left -= self.drain_ring(slot, head, left, is_last, &mut each);
            if left == 0 {
                return;
            }
        }
        self.first = 0;
    }

    /// Passes the new records of one ring to `each`, at most `most`. Returns how many it has examined.
    fn drain_ring(&mut self, slot: usize, mut head: Head, most: u64, is_last: bool, each: &mut impl FnMut(Event)) -> u64 {
        let oldest = head.head.saturating_sub(CAPACITY as u64);
        let next = self.progress(slot).next.unwrap_or(if self.from_start { 0 } else { oldest });
        head.head = self.progress(slot).end.unwrap_or(u64::MAX).min(head.head).max(oldest);
        let begin = next.clamp(oldest, head.head);
        let mut at = begin;
        self.lose(oldest.saturating_sub(next));
        let is_dead = is_last || self.census.is_dead(slot);
        let end = head.head.min(begin.saturating_add(most));
        while at < end {
            let consumed = self.copy(slot, head, at..end, is_dead, each);
            if consumed == 0 {
                break;
            }
            at += consumed;
        }
        self.progress(slot).next = Some(at);
        at - begin
    }

    fn lose(&mut self, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    /// Copies records from the beginning of `numbers` on. Returns how many are consumed.
    fn copy(&mut self, slot: usize, head: Head, numbers: Range<u64>, is_dead: bool, each: &mut impl FnMut(Event)) -> u64 {
        let at = numbers.start;
        let index = at % CAPACITY as u64;
        let count = CHUNK.min(numbers.end - at).min(CAPACITY as u64 - index);
        let mut bytes = vec![0; count as usize * RECORD_SIZE];
        let start = offset(slot) + offset_of!(Ring, records) as u64 + index * RECORD_SIZE as u64;
        if self.file.read_exact_at(&mut bytes, start).is_err() {
            return 0;
        }
        for (step, record) in bytes.chunks_exact(RECORD_SIZE).enumerate() {
            let number = at + step as u64;
            let mut words = [[0; 8]; RECORD_SIZE / 8];
            words.as_flattened_mut().copy_from_slice(record);
            let [sequence, begin, took, thread_and_pid, what, place, amount, gpu_begin, gpu_took, _] = words.map(u64::from_ne_bytes);
            let (what, pid) = (What::of(what), thread_and_pid as u32);
            let may_wait = !is_dead && head.head - number < CAPACITY as u64 / 2;
            if sequence != number + 1 {
                // Incomplete, or overwritten.
                if sequence == 0 && may_wait {
                    return step as u64;
                }
                self.lose(1);
                continue;
            }
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
            each(Event {
                pid,
                thread: (thread_and_pid >> 32) as u32,
                kind,
                what,
                call,
                name,
                begin_ns: begin,
                took_ns: took,
                target: place,
                size: amount,
                gpu,
            });
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
        self.remember().progress(slot).calls.insert(call, Arc::clone(&found));
        found
    }

    fn name(&mut self, slot: usize, name: u16) -> Arc<str> {
        let Some(index) = usize::from(name).checked_sub(1).filter(|index| *index < NAMES) else { return Arc::clone(&self.none) };
        if let Some(known) = self.progress(slot).names.get(&name) {
            return Arc::clone(known);
        }
        let at = offset(slot) + (offset_of!(Ring, names) + index * size_of::<Name>() + offset_of!(Name, text)) as u64;
        let Some(found) = self.read_name(at, NAME_LENGTH) else { return Arc::clone(&self.none) };
        self.remember().progress(slot).names.insert(name, Arc::clone(&found));
        found
    }

    /// Makes room for one more name: forgets all if there are too many.
    fn remember(&mut self) -> &mut Self {
        self.names += 1;
        if self.names > MAX_NAMES {
            for progress in &mut self.progress {
                progress.calls.clear();
                progress.names.clear();
            }
            self.names = 1;
        }
        self
    }

    /// Ignores records made from now on.
    pub fn stop(&mut self) {
        let headers: HashMap<usize, Head> = self.headers().into_iter().collect();
        for slot in 0..SLOTS {
            let end = headers.get(&slot).map_or(0, |header| header.head);
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

    /// Returns the calls of each driver function since the rings were created; of at most `MAX_TOTALS` functions.
    #[must_use]
    pub fn totals(&self) -> HashMap<String, Total> {
        let mut totals: HashMap<String, Total> = HashMap::new();
        for (slot, head) in self.headers() {
            let mut bytes = vec![0; head.calls * size_of::<Call>()];
            if self.file.read_exact_at(&mut bytes, offset(slot) + offset_of!(Ring, calls) as u64).is_err() {
                continue;
            }
            for call in bytes.chunks_exact(size_of::<Call>()) {
                let long = |at: usize| call.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes);
                let name = text(call.get(offset_of!(Call, name)..).unwrap_or_default());
                if totals.len() >= MAX_TOTALS && !totals.contains_key(&name) {
                    continue;
                }
                let total = totals.entry(name).or_default();
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

//! Copying out of a container's rings.
//!
//! As its accounts, the tenant can write and cut the file at any time: it is never mapped, and no figure in it is believed. A turn copies
//! at most what the rings hold.

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

/// What has been copied of one ring.
#[derive(Debug, Default)]
struct Seen {
    next: Option<u64>,
    /// Nothing from here on counts any more.
    end: Option<u64>,
    calls: HashMap<u8, Arc<str>>,
    names: HashMap<u16, Arc<str>>,
}

/// What a ring's header says.
#[derive(Clone, Copy, Debug)]
struct Head {
    head: u64,
    since_1970: u64,
    pid: u32,
    calls: usize,
}

/// A container's rings.
#[derive(Debug)]
pub struct Rings {
    file: File,
    census: Census,
    seen: Vec<Seen>,
    from_start: bool,
    clocks: Clocks,
    none: Arc<str>,
    /// Records that were overwritten before they were copied, or never completed.
    pub lost: u64,
}

/// How often one of the driver's functions was called, by all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// So often.
    pub count: u64,
    /// Nanoseconds on the host in all.
    pub took: u64,
}

impl Rings {
    /// Opens the region at `path`. What was recorded before counts only with `from_start`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path, from_start: bool) -> io::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
        let mut this = Self {
            file: File::open(path)?,
            census: Census::open(&name),
            seen: Vec::new(),
            from_start,
            clocks: Clocks::default(),
            none: Arc::from(""),
            lost: 0,
        };
        if !from_start {
            for slot in 0..this.slots() {
                let next = this.header(slot).map(|header| header.head);
                this.seen(slot).next = next;
            }
        }
        Ok(this)
    }

    fn slots(&self) -> usize {
        let mut bytes = [0; 4];
        let read = self.file.read_exact_at(&mut bytes, offset_of!(Region, slots_used) as u64);
        read.map_or(0, |()| u32::from_ne_bytes(bytes) as usize).min(SLOTS)
    }

    fn seen(&mut self, slot: usize) -> &mut Seen {
        while self.seen.len() <= slot {
            self.seen.push(Seen::default());
        }
        &mut self.seen[slot]
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

    /// Gives what has been recorded since the last time, ring by ring. What is still under way is left for the next time, unless this
    /// is the `last` one, or its process is gone, or it is about to be overwritten.
    pub fn drain(&mut self, last: bool, mut each: impl FnMut(Event)) {
        for slot in 0..self.slots() {
            let Some(mut head) = self.header(slot) else { continue };
            let from_start = self.from_start;
            let next = self.seen(slot).next.unwrap_or(if from_start { 0 } else { head.head.saturating_sub(CAPACITY as u64) });
            // Somebody who sets it back begins anew.
            let oldest = head.head.saturating_sub(CAPACITY as u64);
            head.head = self.seen(slot).end.unwrap_or(u64::MAX).min(head.head).max(oldest);
            let mut at = next.clamp(oldest, head.head);
            self.lost += oldest.saturating_sub(next);
            let gone = last || self.census.is_dead(slot);
            while at < head.head {
                let taken = self.copy(slot, head, at, gone, &mut each);
                if taken == 0 {
                    break;
                }
                at += taken;
            }
            self.seen(slot).next = Some(at);
        }
    }

    /// Copies some records from `at` on, and says how many are done with.
    fn copy(&mut self, slot: usize, head: Head, at: u64, gone: bool, each: &mut impl FnMut(Event)) -> u64 {
        let place = at % CAPACITY as u64;
        let count = CHUNK.min(head.head - at).min(CAPACITY as u64 - place);
        let mut bytes = vec![0; count as usize * RECORD_SIZE];
        let start = offset(slot) + offset_of!(Ring, records) as u64 + place * RECORD_SIZE as u64;
        if self.file.read_exact_at(&mut bytes, start).is_err() {
            return 0;
        }
        for (step, record) in bytes.chunks_exact(RECORD_SIZE).enumerate() {
            let number = at + step as u64;
            let words: Vec<u64> = record.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes)).collect();
            let [sequence, begin, took, who, what, rest @ ..] = words.as_slice() else { return count };
            let (what, pid) = (What::of(*what), *who as u32);
            let waits = !gone && head.head - number < CAPACITY as u64 / 2;
            if *sequence != number + 1 {
                // Being written, or never finished, or overwritten already.
                if *sequence == 0 && waits {
                    return step as u64;
                }
                self.lost += 1;
                continue;
            }
            let [place, amount, gpu_begin, gpu_took, ..] = *rest else { return count };
            if what.flags & TIMED != 0 && gpu_took == 0 && waits && pid == head.pid {
                return step as u64;
            }
            let Some(kind) = Kind::of(what.kind) else { continue };
            let begin = begin.wrapping_add(head.since_1970);
            let timed = what.flags & TIMED != 0 && gpu_took != 0;
            let gpu = timed.then(|| self.clocks.place((pid, what.context, place), begin, gpu_begin, gpu_took - 1)).flatten();
            let name = match kind {
                Kind::Kernel => self.name(slot, what.name),
                Kind::Start => text(&[place.to_ne_bytes(), amount.to_ne_bytes()].concat()).into(),
                _ => Arc::clone(&self.none),
            };
            let call = self.call(slot, what.call);
            each(Event { pid, thread: (*who >> 32) as u32, kind, what, call, name, begin, took: *took, place, amount, gpu });
        }
        count
    }

    fn read_text(&self, at: u64, length: usize) -> Option<Arc<str>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(text(&bytes)).filter(|text| !text.is_empty()).map(Arc::from)
    }

    fn call(&mut self, slot: usize, call: u8) -> Arc<str> {
        let Some(place) = usize::from(call).checked_sub(1).filter(|place| *place < CALLS) else { return Arc::clone(&self.none) };
        if let Some(known) = self.seen(slot).calls.get(&call) {
            return Arc::clone(known);
        }
        let at = offset(slot) + (offset_of!(Ring, calls) + place * size_of::<Call>() + offset_of!(Call, name)) as u64;
        let Some(found) = self.read_text(at, CALL_LENGTH) else { return Arc::clone(&self.none) };
        self.seen(slot).calls.insert(call, Arc::clone(&found));
        found
    }

    fn name(&mut self, slot: usize, name: u16) -> Arc<str> {
        let Some(place) = usize::from(name).checked_sub(1).filter(|place| *place < NAMES) else { return Arc::clone(&self.none) };
        if let Some(known) = self.seen(slot).names.get(&name) {
            return Arc::clone(known);
        }
        let at = offset(slot) + (offset_of!(Ring, names) + place * size_of::<Name>() + offset_of!(Name, text)) as u64;
        let Some(found) = self.read_text(at, NAME_LENGTH) else { return Arc::clone(&self.none) };
        self.seen(slot).names.insert(name, Arc::clone(&found));
        found
    }

    /// What is recorded from now on does not count any more.
    pub fn stop(&mut self) {
        for slot in 0..SLOTS {
            let end = if slot < self.slots() { self.header(slot).map_or(0, |header| header.head) } else { 0 };
            self.seen(slot).end.get_or_insert(end);
        }
    }

    /// Whether anything was left for the next time.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        let behind = |(slot, seen): (usize, &Seen)| {
            let head = self.header(slot).map_or(0, |header| header.head).min(seen.end.unwrap_or(u64::MAX));
            seen.next.is_some_and(|next| next < head)
        };
        self.seen.iter().enumerate().any(behind)
    }

    /// How often each of the driver's functions was called, as far back as the rings go.
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
                total.took = total.took.saturating_add(long(offset_of!(Call, took)));
            }
        }
        totals
    }
}

/// Text up to the first zero, with nothing in it that a terminal or a line of a log would take for something else.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned();
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

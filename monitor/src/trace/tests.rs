use std::ffi::CString;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use tempfile::TempDir;
use vgpu_oci_hook::state::{LIMITS, REGION};
use vgpu_region::map::{self, Membership};
use vgpu_region::region;
use vgpu_region::trace::{
    CALLS, CAPACITY, Direction, FILE_SIZE, HEADER_SIZE, Header, Kind, RING_SIZE, Ring, TIMED, TRACED_AT_ONCE, What, offset,
};

use super::chrome::Writer;
use super::rings::Rings;
use super::*;

/// Region file with rings, and this process as a member.
struct Region {
    folder: TempDir,
    membership: Membership,
    ring: &'static Ring,
}

impl Region {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let file = std::fs::File::create(folder.path().join(REGION)).unwrap();
        map::format(file.as_raw_fd()).unwrap();
        let path = CString::new(folder.path().join(REGION).as_os_str().as_bytes()).unwrap();
        let membership = map::join(&path, 77, 1).unwrap();
        assert!(map::ring(&path, membership.index).unwrap().is_none(), "tracing is off");
        file.set_len(FILE_SIZE).unwrap();
        let ring = map::ring(&path, membership.index).unwrap().unwrap();
        ring.header.begin(77, 1_000_000);
        Self { folder, membership, ring }
    }

    fn rings(&self, from_start: bool) -> Rings {
        Rings::open(&self.folder.path().join(REGION), from_start).unwrap().in_full()
    }

    /// Writes a record as the library does.
    fn push(&self, kind: Kind, what: What, begin: u64, values: [u64; 2]) -> u64 {
        let (number, record) = self.ring.take().unwrap();
        record.begin.store(begin, Relaxed);
        record.took.store(5, Relaxed);
        record.who.store(77 | 78 << 32, Relaxed);
        record.what.store(What { kind: kind as u8, ..what }.word(), Relaxed);
        record.place.store(values[0], Relaxed);
        record.amount.store(values[1], Relaxed);
        record.gpu_begin.store(0, Relaxed);
        record.gpu_took.store(0, Relaxed);
        record.sequence.store(number + 1, Release);
        number
    }
}

fn drained(rings: &mut Rings, last: bool) -> Vec<Event> {
    let mut found = Vec::new();
    rings.drain(last, |event| found.push(event));
    found
}

#[test]
fn records_are_read_once_and_in_order() {
    let region = Region::new();
    let call = region.ring.call(b"cuLaunchKernel");
    let name = region.ring.name(b"gemm");
    let mut rings = region.rings(true);
    let first = region.push(Kind::Kernel, What { call, name, flags: TIMED, ..What::default() }, 10, [7, 1]);
    region.push(Kind::Allocate, What::default(), 20, [0x1000, 4096]);
    // The first record's kernel is still running.
    assert_eq!(drained(&mut rings, false), []);
    region.ring.ran(first, 500, 100);
    let found = drained(&mut rings, false);
    let short: Vec<_> = found.iter().map(|event| (event.kind, event.begin_ns, event.target, event.size, event.gpu)).collect();
    let expected = [(Kind::Kernel, 1_000_010, 7, 1, Some((1_000_010, 100))), (Kind::Allocate, 1_000_020, 0x1000, 4096, None)];
    assert_eq!(short, expected);
    assert_eq!((&*found[0].call, &*found[0].name, found[0].pid, found[0].thread), ("cuLaunchKernel", "gemm", 77, 78));
    assert_eq!(drained(&mut rings, true), []);
    // A later reader gets existing records only on request.
    assert_eq!(drained(&mut region.rings(false), true), []);
    assert_eq!(drained(&mut region.rings(true), true).len(), 2);
}

#[test]
fn records_of_killed_processes_are_not_waited_for() {
    let region = Region::new();
    let mut rings = region.rings(true);
    region.push(Kind::Kernel, What { flags: TIMED, ..What::default() }, 10, [7, 1]);
    // The process is killed while it writes the second record.
    region.ring.take().unwrap();
    region.push(Kind::Free, What::default(), 20, [1, 0]);
    assert_eq!(drained(&mut rings, false), []);
    // SAFETY: the accounts are not used after this. Unmapping them releases the slot.
    unsafe { map::unmap(region.membership.region) };
    let kinds: Vec<_> = drained(&mut rings, false).iter().map(|event| (event.kind, event.gpu)).collect();
    // The ring's mapping belongs to another open file description, which holds no slot.
    assert_eq!(kinds, [(Kind::Kernel, None), (Kind::Free, None)]);
    assert_eq!(rings.lost, 1);
}

#[test]
fn records_about_to_be_overwritten_are_not_waited_for() {
    let region = Region::new();
    let mut rings = region.rings(true);
    let never = What { flags: TIMED, ..What::default() };
    for number in 0..CAPACITY as u64 + 10 {
        region.push(Kind::Kernel, never, number, [7, 1]);
    }
    let found = drained(&mut rings, false).len();
    assert_eq!((found, rings.lost), (CAPACITY / 2 + 1, 10));
}

/// Records in a pass.
const PASS: usize = 4096;

/// Forged heads make a pass examine no more records than it may, and every ring gets its turn.
#[test]
fn a_pass_is_bounded_and_fair() {
    let region = Region::new();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(region.folder.path().join(REGION)).unwrap();
    region.membership.region.slots_used.store(u32::MAX, Relaxed);
    for number in 0..CAPACITY as u64 {
        region.push(Kind::Free, What::default(), number, [number, 0]);
    }
    let mut ring = vec![0; RING_SIZE];
    file.read_exact_at(&mut ring, offset(0)).unwrap();
    let full = [0, 1, 5, TRACED_AT_ONCE];
    for slot in 1..=TRACED_AT_ONCE {
        let ring = if full.contains(&slot) { &ring[..] } else { &ring[..HEADER_SIZE] };
        file.write_all_at(ring, offset(slot)).unwrap();
    }
    for slot in (1..TRACED_AT_ONCE).filter(|slot| !full.contains(slot)) {
        file.write_all_at(&[0; 8], offset(slot) + offset_of!(Header, head) as u64).unwrap();
    }
    let mut rings = Rings::open(&region.folder.path().join(REGION), true).unwrap();
    let passes: Vec<Vec<Event>> = std::iter::repeat_with(|| drained(&mut rings, false)).take_while(|found| !found.is_empty()).collect();
    let (lengths, begins): (Vec<usize>, Vec<u64>) = passes.iter().map(|found| (found.len(), found[0].target)).unzip();
    assert_eq!(lengths, vec![PASS; (full.len() - 1) * CAPACITY / PASS], "no more rings than can be traced at once");
    assert_eq!(begins[..4], [0, 0, 0, PASS as u64], "each ring in its turn");
    assert_eq!(rings.lost, 0);
    // Heads that run away, with records that never come.
    for (step, head) in [1 << 40, u64::MAX / 2, u64::MAX - 1, u64::MAX].into_iter().enumerate() {
        let before = rings.lost;
        for slot in 0..TRACED_AT_ONCE {
            file.write_all_at(&u64::to_ne_bytes(head), offset(slot) + offset_of!(Header, head) as u64).unwrap();
        }
        let mut found = 0;
        rings.drain(false, |_| found += 1);
        assert_eq!(found, 0);
        assert!(rings.lost > before || rings.lost == u64::MAX, "step {step}");
    }
    assert!(rings.totals().len() <= CALLS);
}

/// Whatever a tenant writes, the reader terminates and returns at most the rings' capacity.
#[test]
fn garbage_is_read_safely() {
    let region = Region::new();
    let path = region.folder.path().join(REGION);
    let mut seed = 12345_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for number in 0..1000_u64 {
        let what = What::of(random());
        region.push(Kind::Kernel, what, random(), [random(), random()]);
        region.ring.ran(number, random(), random());
    }
    for head in [u64::MAX, 3, u64::MAX / 2, 0, random()] {
        let mut rings = region.rings(true);
        region.ring.header.head.store(head, Relaxed);
        region.ring.header.names.store(u32::MAX, Relaxed);
        region.ring.header.calls.store(u32::MAX, Relaxed);
        let mut out = Writer::new(Vec::new()).unwrap();
        for event in drained(&mut rings, true) {
            out.event(&event).unwrap();
            _ = alnair::timeline(&event);
        }
        assert!(drained(&mut rings, true).len() <= CAPACITY);
        assert!(!alnair::metrics(&rings.totals(), u64::MAX).is_empty());
        let text = String::from_utf8(out.finish().unwrap()).unwrap();
        assert!(serde_json::from_str::<Vec<serde_json::Value>>(&text).is_ok());
    }
    let mut rings = region.rings(true);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(region::SIZE as u64 + 100).unwrap();
    assert_eq!((drained(&mut rings, true), rings.totals().len()), (Vec::new(), 0));
}

fn event(kind: Kind, call: &str, name: &str, what: What, size: u64) -> Event {
    let (begin, gpu) = (1_663_174_503_143_895_116, (what.flags & TIMED != 0).then_some((1_663_174_503_143_900_000, 2_500)));
    Event {
        pid: 7,
        thread: 8,
        kind,
        what,
        call: call.into(),
        name: name.into(),
        begin_ns: begin,
        took_ns: 4_336_641_999,
        target: 16,
        size,
        gpu,
    }
}

#[test]
fn alnairs_logs_match_its_readme() {
    let copy = |direction: Direction| What { name: direction as u16, ..What::default() };
    for (event, expected) in [
        (event(Kind::Init, "cuInit", "", What::default(), 0), "name:cuInit, start:1663174503143895116, burst:4336641, bytes:0, kind:-1"),
        (
            event(Kind::Allocate, "cuMemAlloc_v2", "", What::default(), 2_097_152),
            "name:cuMemAlloc, start:1663174503143895116, burst:4336641, bytes:2097152, kind:-1",
        ),
        (
            event(Kind::Copy, "cuMemcpyHtoDAsync_v2", "", copy(Direction::ToDevice), 128),
            "name:cuMemcpyH2D_ASYNC, start:1663174503143895116, burst:4336641, bytes:128, kind:1",
        ),
        (
            event(Kind::Copy, "cuMemcpyAsync_ptsz", "", copy(Direction::ByAddress), 8),
            "name:cudaMemcpyAsync, start:1663174503143895116, burst:4336641, bytes:8, kind:4",
        ),
    ] {
        assert_eq!(alnair::timeline(&event).as_deref().map(str::trim_end), Some(expected));
    }
    // Alnair's profiler omits launches.
    assert_eq!(alnair::timeline(&event(Kind::Kernel, "cuLaunchKernel", "k", What::default(), 1)), None);
    let total = |count, took_ns| rings::Total { count, took_ns };
    let totals = [("cuLaunchKernel", total(2, 5_000)), ("cuLaunchKernelEx_ptsz", total(3, 5_999)), ("cuMemFree_v2", total(1, 900))];
    let totals = totals.map(|(call, total)| (call.to_owned(), total)).into_iter().collect();
    let lines = "name:mem_used,count:452984832\nname:cuInit,count:0,burst:0\nname:cuMemAlloc,count:0,burst:0\nname:cuMemFree,count:1,burst:0\n\
                 name:cuLaunchKernel,count:5,burst:10\nname:cuMemcpyH2D,count:0,burst:0\nname:cuMemcpyD2H,count:0,burst:0\n\
                 name:cuGetProcAddress,count:0,burst:0\nname:cuMemcpyH2D_ASYNC,count:0,burst:0\nname:cudaMemcpy,count:0,burst:0\n\
                 name:cudaMemcpyAsync,count:0,burst:0\n";
    assert_eq!(alnair::metrics(&totals, 452_984_832), lines);
}

#[test]
fn sessions_switch_tracing_in_the_page() {
    let host = crate::test_host::Host::new();
    host.container("c", "a", "p", &[]);
    let containers = crate::container::list(host.path(), &mut crate::account::Reader::default());
    let page = map::limits(&CString::new(host.dir("c").join(LIMITS).as_os_str().as_bytes()).unwrap()).unwrap();
    assert!(!page.is_traced());
    let before = page.generation.load(Relaxed);
    let session = TraceSession::start(&containers[0]).unwrap();
    assert!(page.is_traced() && page.generation.load(Relaxed) > before);
    assert_eq!(std::fs::metadata(host.dir("c").join(REGION)).unwrap().len(), FILE_SIZE);
    drop(session);
    assert!(!page.is_traced());
}

#[test]
fn traces_have_process_slices_and_arrows() {
    let mut out = Writer::new(Vec::new()).unwrap();
    out.event(&event(Kind::Start, "", "py\"thon", What::default(), 0)).unwrap();
    let timed = What { flags: TIMED, ..What::default() };
    out.event(&event(Kind::Kernel, "cuLaunchKernel", "void gemm<int>(float*)", timed, 1)).unwrap();
    let text = String::from_utf8(out.finish().unwrap()).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let phases: Vec<_> = events.iter().map(|event| event["ph"].as_str().unwrap()).collect();
    assert_eq!(phases, ["M", "M", "i", "X", "M", "X", "s", "f"]);
    assert_eq!((events[5]["name"].as_str(), events[5]["cat"].as_str()), (Some("void gemm<int>(float*)"), Some("kernel")));
    assert_eq!((events[5]["ts"].as_f64(), events[5]["dur"].as_f64()), (Some(6903143900.0), Some(2.5)));
    assert_eq!((&events[6]["id"], &events[6]["tid"]), (&events[7]["id"], &8.into()));
    assert_eq!(events[7]["tid"], events[5]["tid"]);
}

#[test]
fn traces_have_moves_with_their_memory() {
    let mut out = Writer::new(Vec::new()).unwrap();
    for (kind, bytes) in [(Kind::MoveOut, 4096), (Kind::MoveIn, 2048)] {
        let moved = event(kind, "", "", What::default(), bytes);
        assert_eq!(alnair::timeline(&moved), None);
        out.event(&moved).unwrap();
    }
    let text = String::from_utf8(out.finish().unwrap()).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let short = |event: &serde_json::Value| [&event["name"], &event["dur"], &event["args"]].map(serde_json::Value::clone);
    let expected = |name: &str, bytes: u64| [name.into(), 4_336_641.999.into(), serde_json::json!({ "bytes": bytes, "gpu": 16 })];
    assert_eq!(short(&events[1]), expected("memory to the host", 4096));
    assert_eq!(short(&events[2]), expected("memory to the GPU", 2048));
}

/// A newer library may record more.
#[test]
fn records_of_unknown_kinds_are_ignored() {
    let region = Region::new();
    let number = region.push(Kind::Free, What::default(), 10, [1, 0]);
    region.ring.records[number as usize].what.store(What { kind: u8::MAX, ..What::default() }.word(), Relaxed);
    region.push(Kind::MoveIn, What::default(), 20, [0, 4096]);
    let mut rings = region.rings(true);
    let found: Vec<_> = drained(&mut rings, true).iter().map(|event| (event.kind, event.size)).collect();
    assert_eq!((found, rings.lost), (vec![(Kind::MoveIn, 4096)], 0));
}

#[test]
fn empty_traces_have_one_event() {
    let text = String::from_utf8(Writer::new(Vec::new()).unwrap().finish().unwrap()).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!((events.len(), &events[0]["ph"], events[0]["args"]["labels"].is_string()), (1, &"M".into(), true));
}

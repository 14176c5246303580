use super::*;

fn ring() -> Box<Ring> {
    let layout = std::alloc::Layout::new::<Ring>();
    // SAFETY: an all-zero ring is valid (atomics and integers only), and the layout is the box's own.
    unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast::<Ring>()) }
}

#[test]
fn a_full_ring_overwrites_the_oldest_records() {
    let ring = ring();
    assert!(!ring.header.is_valid());
    ring.header.begin(7, 0);
    assert!(ring.header.is_valid());
    for number in 0..CAPACITY as u64 + 3 {
        let (taken, record) = ring.take().unwrap();
        assert_eq!(taken, number);
        record.amount.store(number, Relaxed);
        record.gpu_took.store(0, Relaxed);
        record.sequence.store(taken + 1, Release);
    }
    assert_eq!(ring.records[2].amount.load(Relaxed), CAPACITY as u64 + 2);
    // The GPU time of an overwritten record is ignored.
    ring.ran(2, 1, 1);
    assert_eq!(ring.records[2].gpu_took.load(Relaxed), 0);
    ring.ran(CAPACITY as u64 + 2, 5, 0);
    assert_eq!((ring.records[2].gpu_begin.load(Relaxed), ring.records[2].gpu_took.load(Relaxed)), (5, 1));
}

#[test]
fn each_name_has_one_place() {
    let ring = ring();
    let long = [b'x'; 2 * NAME_LENGTH];
    for _ in 0..2 {
        assert_eq!((ring.name(b"gemm"), ring.name(&long), ring.name(&long[1..])), (1, 2, 3));
        assert_eq!((ring.call(b"cuLaunchKernel"), ring.call(b"cuLaunchKernel_ptsz")), (1, 2));
    }
    for number in 0..2 * NAMES {
        ring.name(number.to_string().as_bytes());
    }
    assert_eq!((ring.name(b"one more"), ring.header.names.load(Relaxed)), (0, NAMES as u32));
}

#[test]
fn words_pack_and_unpack() {
    let what = What { kind: Kind::Copy as u8, flags: TIMED, context: 3, call: 254, name: 0xabcd };
    assert_eq!(What::of(what.word()), what);
    assert!(Kind::ALL.iter().all(|kind| Kind::of(*kind as u8) == Some(*kind)) && Kind::of(0).is_none());
}

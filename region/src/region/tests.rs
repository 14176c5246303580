use super::*;

/// Returns a new region on the heap, equal to a new mapped file.
pub(crate) fn fresh() -> Box<Region> {
    let layout = std::alloc::Layout::new::<Region>();
    // SAFETY: an all-zero region is valid (atomics and integers only), and the layout is the box's own.
    let region = unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast::<Region>()) };
    // SAFETY: the header is shorter than the region, and there is no other reference to it.
    unsafe { core::ptr::copy_nonoverlapping(header().as_ptr(), core::ptr::from_ref(&*region).cast_mut().cast(), 24) };
    region
}

#[test]
fn a_new_file_passes_its_own_check() {
    let region = fresh();
    assert_eq!(region.check(), Ok(()));
    region.version.store(9, Relaxed);
    assert_eq!(region.check(), Err(Invalid::Version(9)));
    region.magic.store(0, Relaxed);
    assert_eq!(region.check(), Err(Invalid::Magic));
}

#[test]
fn gpus_keep_their_indices() {
    let region = fresh();
    for round in 0..2 {
        for number in 0..MAX_GPUS as u8 {
            assert_eq!(region.gpu(Uuid([number; 16])), Some(usize::from(number)), "round {round}");
        }
    }
    assert_eq!(region.gpu(Uuid([99; 16])), None);
}

#[test]
fn a_half_written_account_is_skipped() {
    let region = fresh();
    region.gpus[0].claimed.store(1, Relaxed);
    assert_eq!(region.gpu(Uuid([7; 16])), Some(1));
    assert_eq!(region.gpu(Uuid([7; 16])), Some(1));
}

#[test]
fn uncharged_calls_are_held_back_or_counted() {
    let region = fresh();
    let gpu = region.gpu(Uuid([1; 16])).unwrap();
    let charge = &region.slots[0].gpus[gpu];
    region.slots_used.store(1, Relaxed);
    assert!(charge.begin_unclaimed(|| false), "it is not held back");
    assert_eq!(region.hold_back(gpu), 0, "a process without charges has none in progress");
    charge.charge.reserve(&region.gpus[gpu].total, 1, 100).unwrap();
    assert_eq!((region.hold_back(gpu), charge.makes_unclaimed_call(), charge.begin_unclaimed(|| true)), (1, true, false), "one at a time");
    charge.end_unclaimed(false);
    assert_eq!((region.hold_back(gpu), charge.makes_unclaimed_call()), (0, false));
    assert!(!charge.begin_unclaimed(|| false) && !charge.makes_unclaimed_call());
    // The limit is far, and near again before the call has begun.
    let asked = core::cell::Cell::new(0);
    assert!(!charge.begin_unclaimed(|| asked.replace(asked.get() + 1) == 0) && !charge.begin_unclaimed(|| false));
    // A process that comes near while the call begins sees it, and is seen.
    assert!(charge.begin_unclaimed(|| charge.makes_unclaimed_call() == (region.hold_back(gpu) == 1)));
    charge.end_unclaimed(true);
    assert!(!charge.begin_unclaimed(|| false) && charge.begin_unclaimed(|| true));
}

/// Limit of the test below, in pages.
const LIMIT: u64 = 100;

/// Returns a region with four slots that hold one page each, and the index of their GPU.
fn with_charged_slots() -> (Box<Region>, usize) {
    let region = fresh();
    let gpu = region.gpu(Uuid([1; 16])).unwrap();
    region.slots_used.store(4, Relaxed);
    region.slots[..4].iter().for_each(|slot| slot.gpus[gpu].charge.reserve(&region.gpus[gpu].total, 1, LIMIT).unwrap());
    (region, gpu)
}

/// Two threads make uncharged calls, two charge all the memory that they can. `truth` is what the driver has really allocated.
#[test]
fn uncharged_calls_never_exceed_the_limit() {
    let (region, gpu) = with_charged_slots();
    let total = &region.gpus[gpu].total;
    let [truth, taken, refused, most] = [4, 0, 0, 0].map(AtomicU64::new);
    let is_near = || LIMIT.saturating_sub(total.pages()) < 12;
    let take = || most.fetch_max(truth.fetch_add(4, SeqCst) + 4, Relaxed);
    let go_on = || most.load(Relaxed) <= LIMIT && (taken.load(Relaxed) < 100_000 || refused.load(Relaxed) < 1_000);
    let unclaimed = |charge: &GpuCharge| {
        for calls in 0_u32.. {
            if !go_on() {
                break;
            }
            if charge.begin_unclaimed(|| !is_near()) {
                // Most calls find room in the driver's pool.
                if calls % 4 != 0 {
                    charge.end_unclaimed(false);
                    continue;
                }
                take();
                charge.charge.reserve(total, 4, u64::MAX).unwrap();
                charge.end_unclaimed(true);
                taken.fetch_add(1, Relaxed);
                truth.fetch_sub(4, SeqCst);
                charge.charge.release(total, 4);
            }
        }
    };
    let claimed = |charge: &Charge| {
        let mut held = 0;
        while go_on() {
            if charge.begin(total, 4, LIMIT).is_err() {
                truth.fetch_sub(u64::from(held), SeqCst);
                charge.release(total, held);
                held = 0;
                continue;
            }
            // The total is read last: calls that end in between have charged by then.
            let has_room = |calls: u64| total.pages() + 4 * calls <= LIMIT;
            let room = !is_near() || has_room(region.hold_back(gpu));
            if room {
                take();
                held += 4;
            } else {
                refused.fetch_add(1, Relaxed);
            }
            charge.finish(total, 4, if room { 4 } else { 0 });
        }
        truth.fetch_sub(u64::from(held), SeqCst);
        charge.release(total, held);
    };
    std::thread::scope(|scope| {
        let [first, second, third, fourth] = [0, 1, 2, 3].map(|index| &region.slots[index].gpus[gpu]);
        scope.spawn(|| unclaimed(first));
        scope.spawn(|| unclaimed(second));
        scope.spawn(|| claimed(&third.charge));
        scope.spawn(|| claimed(&fourth.charge));
    });
    assert!(most.load(Relaxed) <= LIMIT, "{} of {LIMIT}", most.load(Relaxed));
    assert_eq!((region.hold_back(gpu), total.pages(), truth.load(SeqCst)), (0, 4, 4));
}

#[test]
fn memory_of_dead_processes_is_released() {
    let region = fresh();
    let gpu = region.gpu(Uuid([1; 16])).unwrap();
    region.slots_used.store(3, Relaxed);
    for slot in &region.slots[..3] {
        slot.gpus[gpu].charge.reserve(&region.gpus[gpu].total, 10, u64::MAX).unwrap();
        slot.gpus[gpu].spill.reserve(&region.gpus[gpu].spilled, 7, u64::MAX).unwrap();
    }
    assert!(!region.recover(gpu, |_, _, _| false));
    assert!(region.recover(gpu, |index, _, _| index == 1));
    assert_eq!((region.gpus[gpu].total.pages(), region.gpus[gpu].spilled.pages()), (20, 14));
    assert!(!region.recover(gpu, |index, _, _| index == 1));
}

#[test]
fn moves_are_added_up_by_direction() {
    let region = fresh();
    let account = &region.gpus[region.gpu(Uuid([1; 16])).unwrap()];
    account.moves_out.add(100, 7);
    account.moves_out.add(50, 5);
    account.moves_in.add(100, 9);
    let figures = |moves: &Moves| [&moves.count, &moves.bytes, &moves.took].map(|figure| figure.load(Relaxed));
    assert_eq!((figures(&account.moves_out), figures(&account.moves_in)), ([2, 150, 12], [1, 100, 9]));
}

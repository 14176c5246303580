use super::*;

const A: Uuid = Uuid([1; 16]);
const B: Uuid = Uuid([2; 16]);

fn entry(selector: Selector, memory: u64) -> GpuLimit {
    let entry = GpuLimit::new(selector);
    entry.memory.store(memory, Relaxed);
    entry
}

#[test]
fn the_most_specific_entry_wins() {
    let page = LimitsPage::new([entry(Selector::All, 1), entry(Selector::Index(1), 2), entry(Selector::Uuid(A), 3)]);
    let found = |uuid, index| page.find(uuid, index).map(|entry| entry.memory.load(Relaxed));
    assert_eq!(found(A, Some(1)), Some(3));
    assert_eq!(found(B, Some(1)), Some(2));
    assert_eq!(found(B, Some(0)), Some(1));
    assert_eq!(found(B, None), Some(1));
    assert_eq!(LimitsPage::new([]).find(A, Some(0)).map(|_| ()), None);
}

#[test]
fn a_page_read_from_its_bytes_is_equal() {
    let page = LimitsPage::new([entry(Selector::Uuid(B), 7)]).with_priority(0).with_hami_cache("/tmp/x.cache").unwrap();
    let mut copy = LimitsPage::new([]);
    // SAFETY: both are whole pages of plain old data.
    unsafe { core::ptr::copy_nonoverlapping(page.as_bytes().as_ptr(), (&raw mut copy).cast(), PAGE_SIZE) };
    assert_eq!(copy.check(), Ok(()));
    assert_eq!(copy.find(B, None).map(|entry| entry.memory.load(Relaxed)), Some(7));
    assert_eq!((copy.priority(), copy.hami_cache(), copy.trace_dir()), (0, &b"/tmp/x.cache"[..], &b""[..]));
}

#[test]
fn invalid_pages_are_rejected() {
    let mut page = LimitsPage::new([]);
    page.version = 2;
    assert_eq!(page.check(), Err(Invalid::Version(2)));
    page.version = VERSION;
    page.gpu_count = 17;
    assert_eq!(page.check(), Err(Invalid::Corrupt));
    page.magic = 0;
    assert_eq!(page.check(), Err(Invalid::Magic));
}

#[test]
fn bytes_take_precedence_over_percentages() {
    let limit = GpuLimit::new(Selector::All);
    assert_eq!((limit.memory_for(1000), limit.cores_limit()), (None, None));
    limit.memory_percent.store(25, Relaxed);
    assert_eq!(limit.memory_for(1 << 40), Some(1 << 38));
    limit.memory.store(5, Relaxed);
    assert_eq!(limit.memory_for(1 << 40), Some(5));
    limit.cores.store(100, Relaxed);
    assert_eq!(limit.cores_limit(), None);
    limit.cores.store(30, Relaxed);
    assert_eq!(limit.cores_limit(), Some(30));
}

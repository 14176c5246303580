//! Changes that a comparison with NVML must not see half done.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use vgpu_cuda_abi::cuda::{SUCCESS, Status};

/// Changes under way that touch more than one of: the driver's memory, the charge, the overhead.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// Number of changes that have ended. Between two equal readings with none under way, nothing changed. Claims are not counted: they are in
/// flight in the account.
static CHANGED: AtomicU32 = AtomicU32::new(0);

/// Makes a change of the driver's memory, the charge and the overhead as one: until it returns no comparison with NVML is certain.
#[inline]
pub fn together<T>(change: impl FnOnce() -> T) -> T {
    CHANGING.fetch_add(1, AcqRel);
    let result = change();
    CHANGED.fetch_add(1, AcqRel);
    CHANGING.fetch_sub(1, AcqRel);
    result
}

/// Returns the number of changes so far; `None` while one is under way.
pub fn quiet() -> Option<u32> {
    let changed = CHANGED.load(Acquire);
    (CHANGING.load(Acquire) == 0).then_some(changed)
}

/// Frees an object with `call`. The caller has taken its record out before (`removed`; `None` if the object is unknown), because the driver
/// may give the same handle or address to another thread at once. What the record was charged is given back after the call; if the driver
/// refused, the record is put back.
#[inline]
pub fn release<Record>(
    removed: Option<Record>,
    call: impl FnOnce() -> Status,
    give_back: impl FnOnce(Record),
    put_back: impl FnOnce(Record),
) -> Status {
    let status = call();
    match removed {
        Some(record) if status == SUCCESS => give_back(record),
        Some(record) => put_back(record),
        None => {}
    }
    status
}

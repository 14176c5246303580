//! Changes of driver, charge and overhead that belong together.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

/// Changes under way of what the driver, the charge and the overhead say together, and how many have ended: between two that are equal
/// nobody changed them. Claims are not among them: they are in flight.
static CHANGING: AtomicU32 = AtomicU32::new(0);
static CHANGED: AtomicU32 = AtomicU32::new(0);

/// Makes a change of the driver's, the charge and the overhead that belongs together: meanwhile no comparison with NVML is certain.
#[inline]
pub fn together<T>(change: impl FnOnce() -> T) -> T {
    CHANGING.fetch_add(1, AcqRel);
    let result = change();
    CHANGED.fetch_add(1, AcqRel);
    CHANGING.fetch_sub(1, AcqRel);
    result
}

/// How many changes there were, unless one is under way.
pub fn quiet() -> Option<u32> {
    let changed = CHANGED.load(Acquire);
    (CHANGING.load(Acquire) == 0).then_some(changed)
}

//! Counts of violations and of what was done about them.

use crate::enforce::Kind;

/// What has been done about violations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Violations found, by [`Kind::ALL`].
    pub found: [u64; 2],
    /// Violations that last, by [`Kind::ALL`].
    pub lasting: [u64; 2],
    /// Processes ended.
    pub ended: u64,
}

impl Tally {
    /// Where a kind is counted.
    #[must_use]
    pub fn place(kind: Kind) -> usize {
        Kind::ALL.iter().position(|known| *known == kind).unwrap_or(0)
    }
}

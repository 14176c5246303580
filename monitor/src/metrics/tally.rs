//! Counts of violations and of the responses to them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::violations::{Kind, Violation};

/// Counts of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Violations found so far, by [`Kind::ALL`].
    pub found: [u64; Kind::ALL.len()],
    /// Current violations, by [`Kind::ALL`].
    pub lasting: [u64; Kind::ALL.len()],
    /// Processes ended so far.
    pub ended: u64,
}

impl Tally {
    fn index(kind: Kind) -> usize {
        Kind::ALL.iter().position(|known| *known == kind).unwrap_or(0)
    }
}

/// Counts the violations of one sample, and the processes ended for them. `ended` has the container's directory name for each process.
pub fn count_violations(tallies: &mut HashMap<String, Tally>, violations: &[Violation], ended: &[String]) {
    tallies.values_mut().for_each(|tally| tally.lasting = [0; Kind::ALL.len()]);
    for violation in violations {
        let tally = tallies.entry(violation.dir_name.clone()).or_default();
        let index = Tally::index(violation.kind);
        if let Some(lasting) = tally.lasting.get_mut(index) {
            *lasting += 1;
        }
        if let Some(found) = tally.found.get_mut(index) {
            *found += u64::from(violation.is_new);
        }
    }
    for dir_name in ended {
        tallies.entry(dir_name.clone()).or_default().ended += 1;
    }
}

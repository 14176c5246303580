//! Pauses on the GPU's time line for which nothing was charged: what lay in another stream all along is known only when its batch ends.

/// So many are remembered.
const GAPS: usize = 64;

/// The last pauses.
#[derive(Debug)]
pub struct Gaps {
    /// From one time to another; no two overlap.
    gaps: [(u64, u64); GAPS],
    next: usize,
}

impl Gaps {
    /// None.
    pub const fn new() -> Self {
        Self { gaps: [(0, 0); GAPS], next: 0 }
    }

    /// Nothing was seen to run from one time to another.
    pub fn leave(&mut self, from: u64, to: u64) {
        if let Some(place) = self.gaps.get_mut(self.next % GAPS).filter(|_| from < to) {
            *place = (from, to);
            self.next += 1;
        }
    }

    /// Something ran from `from` on and past all of them: for how long it lay over them, which is no pause any more.
    pub fn fill(&mut self, from: u64) -> u64 {
        let over = self.gaps.iter_mut().filter(|(_, to)| *to > from).map(|(begun, to)| {
            let left = from.max(*begun);
            core::mem::replace(to, left) - left
        });
        over.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_filled_once() {
        let mut gaps = Gaps::new();
        gaps.leave(100, 200);
        gaps.leave(300, 500);
        gaps.leave(700, 700);
        assert_eq!(gaps.fill(600), 0, "it began later");
        assert_eq!(gaps.fill(400), 100);
        assert_eq!(gaps.fill(400), 0);
        assert_eq!(gaps.fill(150), 150, "what is left of both");
        assert_eq!((gaps.fill(0), gaps.fill(0)), (50, 0));
    }

    #[test]
    fn old_ones_are_forgotten() {
        let mut gaps = Gaps::new();
        (1..=1000).for_each(|number| gaps.leave(10 * number, 10 * number + 2));
        assert_eq!(gaps.fill(0), 2 * GAPS as u64);
    }
}

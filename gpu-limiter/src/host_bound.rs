//! Whether a stream's host keeps up with the GPU, or the GPU waits for the host.

/// How sure one can be.
const SURE: u16 = 256;
/// Of what was thought before, a part of so many goes with each new sign.
const PARTS: u16 = 4;
/// A host that waits for less than this part of the time keeps the GPU waiting for the rest of it.
const SELDOM: u64 = 4;

/// What is known of a stream's host. All zero is one that keeps up.
#[derive(Debug, Default)]
pub struct Host {
    /// Up to [`SURE`]: how sure it is that the GPU waits for it.
    behind: u16,
    /// When the program last went on after a wait, or after it was held back.
    went_on: u64,
    waits_since: u64,
}

impl Host {
    /// A batch begins, and the GPU had run out of work by then, or not.
    pub fn comes(&mut self, late: bool) {
        self.behind = self.behind - self.behind / PARTS + if late { SURE / PARTS } else { 0 };
    }

    /// The program begins to wait for what it launched.
    pub fn waits(&mut self, now: u64) {
        self.waits_since = now;
    }

    /// It has waited.
    pub fn has_waited(&mut self, now: u64) {
        let (worked, waited) = (self.waits_since.saturating_sub(self.went_on), now.saturating_sub(self.waits_since));
        self.comes(waited < worked / SELDOM);
        self.goes_on(now);
    }

    /// It was held back until now.
    pub fn goes_on(&mut self, now: u64) {
        self.went_on = now;
    }

    /// Whether the GPU waits for it most of the time.
    pub fn is_behind(&self) -> bool {
        self.behind > SURE / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_whom() {
        let mut host = Host::default();
        (0..3).for_each(|_| host.comes(true));
        assert!(host.is_behind(), "the GPU was idle before each of three batches");
        (0..2).for_each(|_| host.comes(false));
        assert!(!host.is_behind());
        // It launches for 1.3 ms, then waits for the last kernel.
        let mut now = 0;
        let mut rounds = |host: &mut Host, works: u64, waits: u64| {
            for _ in 0..4 {
                host.waits(now + works);
                host.has_waited(now + works + waits);
                now += works + waits;
            }
            host.is_behind()
        };
        assert!(rounds(&mut host, 1_300_000, 20_000));
        assert!(!rounds(&mut host, 20_000, 800_000), "it waits for its kernels");
        assert!(!rounds(&mut host, 5_000, 8_000), "nobody waits for long");
    }
}

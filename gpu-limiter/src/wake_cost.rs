//! What a host that does not keep up with the GPU loses in a burst until it is as quick as before its nap: its caches, its clock and, in a
//! virtual machine, its processor are others afterwards. It is learned from its own bursts: how long the first launches took, and how long
//! as many took later.

/// It is taken to be as quick as ever so long after a nap, and then looked at for as long as this at least, in nanoseconds (H200's hosts: 2 ms).
const EARLY: u64 = 4_000_000;
const LATE: u64 = 2_000_000;
/// What it loses before anything is known, and the most that is believed, in nanoseconds (H200's hosts: 0.4 to 1.5 ms). A program whose first
/// launches in a burst are others than those later gains as much at most.
const FIRST: i64 = 800_000;
const MOST: i64 = 1_500_000;
/// Each burst counts for one part of so many, as parts of a program differ.
const PARTS: i64 = 16;

/// A stream's host. All zero is one of which nothing is known.
#[derive(Debug, Default)]
pub struct Waking {
    /// When it was woken; 0 is unknown, or it has paused since.
    woke: u64,
    /// Launches since then.
    launches: u32,
    /// Until when they counted as the first ones, and how many that were; 0: they still do.
    early_until: u64,
    early: u32,
    /// What it loses beyond [`FIRST`].
    beyond: i64,
}

impl Waking {
    /// So many launches more.
    pub fn launched(&mut self, count: u32) {
        self.launches = self.launches.saturating_add(count);
    }

    /// It is at its next launches.
    pub fn goes_on(&mut self, now: u64) {
        if self.woke != 0 && self.early_until == 0 && now.saturating_sub(self.woke) >= EARLY {
            (self.early_until, self.early) = (now, self.launches);
        }
    }

    /// It has paused: how long its launches take does not show.
    pub fn pauses(&mut self) {
        self.woke = 0;
    }

    /// It was held back from one time to another.
    pub fn is_held(&mut self, from: u64, to: u64) {
        let (time, launches) = (from.saturating_sub(self.early_until), u64::from(self.launches - self.early));
        if self.woke != 0 && self.early_until != 0 && time >= LATE && launches != 0 {
            let usual = u64::from(self.early).saturating_mul(time) / launches;
            let lost = (self.early_until - self.woke) as i64 - usual.min(i64::MAX as u64) as i64;
            self.beyond += (lost.clamp(-MOST, MOST) - FIRST - self.beyond) / PARTS;
        }
        *self = Self { woke: to, beyond: self.beyond, ..Self::default() };
    }

    /// What it loses after a nap, in nanoseconds. `is_behind` says that the GPU waits for it most of the time: of another, launches that take
    /// longer may be waits for the GPU.
    pub fn loses(&self, is_behind: bool) -> u64 {
        (FIRST + self.beyond).clamp(0, if is_behind { MOST } else { FIRST }) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    /// Bursts of 2000 launches, of which the first 200 take longer.
    fn after(bursts: u64, first: u64, then: u64, pause: bool) -> u64 {
        let (mut waking, mut now) = (Waking::default(), 1);
        for _ in 0..bursts {
            waking.is_held(now, now + 10_000 * US);
            now += 10_000 * US;
            for batch in 0..40 {
                waking.goes_on(now);
                waking.launched(50);
                now += 50 * if batch < 4 { first } else { then };
            }
            if pause {
                waking.pauses();
            }
        }
        waking.loses(true)
    }

    #[test]
    fn it_is_what_the_first_launches_take_longer() {
        assert_eq!(after(1, 20 * US, 10 * US, false), FIRST as u64, "nothing is known");
        assert!(after(200, 10 * US, 10 * US, false) < US, "it loses nothing");
        assert!(after(200, 16 * US, 10 * US, false).abs_diff(1_200 * US) < US, "200 launches took 6 us longer");
        assert!(after(200, 40 * US, 10 * US, false).abs_diff(MOST as u64) < US, "so much is not believed");
        assert_eq!(after(200, 10 * US, 20 * US, false), 0, "it is slower later");
        assert_eq!(after(200, 16 * US, 10 * US, true), FIRST as u64, "who pauses is not looked at");
    }
}

//! Learns what waking costs a host that does not keep up with the GPU: the time it loses in a burst until it launches as fast as before its
//! nap. Its caches, its clock and, in a virtual machine, its processor differ afterwards. The cost is learned from the host's own
//! bursts: the time that the first launches took, compared with the time that as many launches took later.

/// The host counts as warm this long after a nap. In nanoseconds (hosts of H200s: 2 ms).
const WARM_UP_NS: u64 = 4_000_000;
/// Shortest time for which the warm host is observed, in nanoseconds.
const MIN_WARM_NS: u64 = 2_000_000;
/// Cost before anything was learned, in nanoseconds (hosts of H200s: 0.4 to 1.5 ms).
const INITIAL_NS: i64 = 800_000;
/// Highest cost, in nanoseconds. Bounds what a program gains whose first launches in a burst differ from the later ones.
const MAX_NS: i64 = 1_500_000;
/// Weight of one burst in the moving average, as a divisor: parts of a program differ.
const SMOOTHING: i64 = 16;

/// Wake-up cost of a stream's host. All zero is a host of which nothing is known.
#[derive(Debug, Default)]
pub struct WakeCost {
    /// Host time of the wake-up; 0 if unknown, or if the host has paused since.
    woke_at: u64,
    /// Launches since then.
    launches: u32,
    /// Host time at which the warm-up ended; 0 if it has not.
    warm_at: u64,
    /// Launches during the warm-up.
    warm_up_launches: u32,
    /// Learned cost minus [`INITIAL_NS`], in nanoseconds.
    above_initial_ns: i64,
}

impl WakeCost {
    /// Records `count` launches.
    pub fn add_launches(&mut self, count: u32) {
        self.launches = self.launches.saturating_add(count);
    }

    /// Records that the host goes on launching, without a pause.
    pub fn keep_launching(&mut self, now: u64) {
        if self.woke_at != 0 && self.warm_at == 0 && now.saturating_sub(self.woke_at) >= WARM_UP_NS {
            (self.warm_at, self.warm_up_launches) = (now, self.launches);
        }
    }

    /// Records a pause of the host: this burst does not show how long its launches take.
    pub fn pause(&mut self) {
        self.woke_at = 0;
    }

    /// Records a nap of the host, and learns from the burst before it.
    pub fn nap(&mut self, from: u64, to: u64) {
        let (warm_ns, warm_launches) = (from.saturating_sub(self.warm_at), u64::from(self.launches - self.warm_up_launches));
        if self.woke_at != 0 && self.warm_at != 0 && warm_ns >= MIN_WARM_NS && warm_launches != 0 {
            let usual_ns = u64::from(self.warm_up_launches).saturating_mul(warm_ns) / warm_launches;
            let lost_ns = (self.warm_at - self.woke_at) as i64 - usual_ns.min(i64::MAX as u64) as i64;
            self.above_initial_ns += (lost_ns.clamp(-MAX_NS, MAX_NS) - INITIAL_NS - self.above_initial_ns) / SMOOTHING;
        }
        *self = Self { woke_at: to, above_initial_ns: self.above_initial_ns, ..Self::default() };
    }

    /// Returns the time that the host loses after a nap, in nanoseconds. For a stream that is not host-bound it is at most
    /// [`INITIAL_NS`]: its longer launches may be waits for the GPU.
    pub fn lost_ns(&self, is_host_bound: bool) -> u64 {
        (INITIAL_NS + self.above_initial_ns).clamp(0, if is_host_bound { MAX_NS } else { INITIAL_NS }) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    /// Returns the cost learned from bursts of 2000 launches. The first 200 of each take `first_ns` each, the others `then_ns`.
    fn learned_ns(bursts: u64, first_ns: u64, then_ns: u64, pauses: bool) -> u64 {
        let (mut cost, mut now) = (WakeCost::default(), 1);
        for _ in 0..bursts {
            cost.nap(now, now + 10_000 * US);
            now += 10_000 * US;
            for batch in 0..40 {
                cost.keep_launching(now);
                cost.add_launches(50);
                now += 50 * if batch < 4 { first_ns } else { then_ns };
            }
            if pauses {
                cost.pause();
            }
        }
        cost.lost_ns(true)
    }

    #[test]
    fn cost_is_the_extra_time_of_the_first_launches() {
        assert_eq!(learned_ns(1, 20 * US, 10 * US, false), INITIAL_NS as u64, "nothing is known");
        assert!(learned_ns(200, 10 * US, 10 * US, false) < US, "it loses nothing");
        assert!(learned_ns(200, 16 * US, 10 * US, false).abs_diff(1_200 * US) < US, "200 launches took 6 us longer");
        assert!(learned_ns(200, 40 * US, 10 * US, false).abs_diff(MAX_NS as u64) < US, "the cost is bounded");
        assert_eq!(learned_ns(200, 10 * US, 20 * US, false), 0, "it is slower later");
        assert_eq!(learned_ns(200, 16 * US, 10 * US, true), INITIAL_NS as u64, "bursts with a pause are ignored");
    }
}

//! Detects host-bound streams: those whose host does not keep up, so that the GPU waits for it.

/// Highest confidence.
const MAX_CONFIDENCE: u16 = 256;
/// Weight of a new observation in the moving average, as a divisor.
const SMOOTHING: u16 = 4;
/// A host that waits for less than one part in this many of its working time is host-bound.
const MIN_WAIT_DIVISOR: u64 = 4;

/// Evidence of whether a stream is host-bound. All zero is a host that keeps up.
#[derive(Debug, Default)]
pub struct HostBound {
    /// Confidence that the GPU waits for the host, up to [`MAX_CONFIDENCE`].
    confidence: u16,
    /// Host time at which the program last resumed after a wait or a nap, in nanoseconds.
    resumed_at: u64,
    /// Host time at which the program began its current wait, in nanoseconds.
    wait_began_at: u64,
}

impl HostBound {
    /// Records an observation: whether the GPU had run out of work when a batch began.
    pub fn observe(&mut self, gpu_was_idle: bool) {
        self.confidence = self.confidence - self.confidence / SMOOTHING + if gpu_was_idle { MAX_CONFIDENCE / SMOOTHING } else { 0 };
    }

    /// Records that the program begins to wait for its work.
    pub fn begin_wait(&mut self, now: u64) {
        self.wait_began_at = now;
    }

    /// Records that the program's wait has ended.
    pub fn end_wait(&mut self, now: u64) {
        let (worked, waited) = (self.wait_began_at.saturating_sub(self.resumed_at), now.saturating_sub(self.wait_began_at));
        self.observe(waited < worked / MIN_WAIT_DIVISOR);
        self.resume(now);
    }

    /// Records that the program resumes, after a wait or after a launch was held back.
    pub fn resume(&mut self, now: u64) {
        self.resumed_at = now;
    }

    /// Returns true if the GPU waits for the host most of the time.
    pub fn is_host_bound(&self) -> bool {
        self.confidence > MAX_CONFIDENCE / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_gpu_and_short_waits_are_evidence_of_a_host_bound_stream() {
        let mut host = HostBound::default();
        (0..3).for_each(|_| host.observe(true));
        assert!(host.is_host_bound(), "the GPU was idle before each of three batches");
        (0..2).for_each(|_| host.observe(false));
        assert!(!host.is_host_bound());
        let mut now = 0;
        let mut work_and_wait = |host: &mut HostBound, works_ns: u64, waits_ns: u64| {
            for _ in 0..4 {
                host.begin_wait(now + works_ns);
                host.end_wait(now + works_ns + waits_ns);
                now += works_ns + waits_ns;
            }
            host.is_host_bound()
        };
        assert!(work_and_wait(&mut host, 1_300_000, 20_000), "it launches for 1.3 ms, then waits for the last kernel only");
        assert!(!work_and_wait(&mut host, 20_000, 800_000), "it waits for its kernels");
        assert!(!work_and_wait(&mut host, 5_000, 8_000), "work and wait are both short");
    }
}

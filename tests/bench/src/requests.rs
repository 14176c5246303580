//! A tenant that answers requests, which arrive at random times whether or not the last one is finished.

use std::time::{Duration, Instant};

use vgpu_test_programs::cuda;

use crate::kernel::{self, Kernels, Result};
use crate::tenant::{Job, now_ms, until};

/// Rest between the warm-up and the time from which requests can arrive, in ms.
const REST_MS: u128 = 500;
/// A request that could not begin within this time after the end of the measurement counts as never answered.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);
/// Time before an arrival that is spent awake, because sleeps end late.
const SPIN_BEFORE: Duration = Duration::from_micros(150);

/// Returns random times of arrival in seconds, `per_second` on average, sorted, the same in each run.
pub fn arrivals(per_second: f64, seconds: f64) -> Vec<f64> {
    let (mut random, mut time) = (88_172_645_463_325_252_u64, 0.0);
    let next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // In (0, 1): the upper 53 bits and a half.
        let uniform = ((random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        time -= uniform.ln() / per_second;
        (time < seconds).then_some(time)
    };
    std::iter::from_fn(next).collect()
}

/// Answers each request with launches back to back and a wait, and prints the time from its arrival to the end of the wait: a request that
/// finds another one has to wait for that, too.
///
/// # Errors
/// The driver's error.
pub fn requests(job: &Job) -> Result<()> {
    cuda::start(0)?;
    let (kernels, stream) = (Kernels::load()?, kernel::stream()?);
    let answer = || -> Result<()> {
        for _ in 0..job.launches {
            kernels.work(stream, job.rounds)?;
        }
        cuda::synchronize()
    };
    let arrivals = arrivals(job.per_second, job.seconds);
    // Servers warm up: they are busy before they answer.
    while now_ms() + REST_MS < job.start_ms {
        answer()?;
    }
    until(job.start_ms);
    let start = Instant::now();
    let mut latencies = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        let arrival = start + Duration::from_secs_f64(arrival);
        if start.elapsed().as_secs_f64() > job.seconds + GIVE_UP_AFTER.as_secs_f64() {
            latencies.push(f64::INFINITY);
            continue;
        }
        std::thread::sleep(arrival.saturating_duration_since(Instant::now()).saturating_sub(SPIN_BEFORE));
        while Instant::now() < arrival {
            std::hint::spin_loop();
        }
        answer()?;
        latencies.push(arrival.elapsed().as_secs_f64() * 1e6);
    }
    for latency in latencies {
        println!("wait {latency:.1}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::arrivals;

    #[test]
    fn arrivals_are_those_of_a_poisson_process() {
        let times = arrivals(200.0, 500.0);
        assert_eq!(times, arrivals(200.0, 500.0), "not the same in each run");
        assert!(times.is_sorted() && times.iter().all(|&time| (0.0..500.0).contains(&time)));
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        // 100,000 gaps: both are within 1.5% (over 4 standard errors) of the expected 5 ms.
        assert!((mean / 0.005 - 1.0).abs() < 0.015, "mean {mean}");
        assert!((deviation / 0.005 - 1.0).abs() < 0.015, "deviation {deviation}");
    }
}

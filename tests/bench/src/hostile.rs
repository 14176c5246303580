//! Tenants that mean harm, and what their neighbour gets beside each.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::contention::two;
use crate::kernel::{self, Kernels, Result};
use crate::run::{Arbiter, Side, Tenant, Told};
use crate::tenant::{self, Job};
use crate::{Bench, share_between};
use vgpu_test_programs::cuda;

/// A tenant at 50% beside a hostile one at 50%, each in its turn, and natively.
pub fn part(bench: &Bench<'_>) -> std::io::Result<()> {
    let job = bench.job(200.0, 1, 0);
    let solo = bench.solo(&job)?.0;
    let endless = Job { rounds: u32::MAX, streams: 1, ..bench.job(1e9, 1, 0) };
    let cases: [(&str, &str, Job, Option<i32>); 6] = [
        ("keeps to its limit", "busy", job.clone(), None),
        ("writes garbage into its region", "garbage", job.clone(), None),
        ("launches a kernel that does not end", "busy", endless, None),
        ("forks and kills its children", "forks", job.clone(), None),
        ("is stopped again and again, holding its turn", "busy", job.clone(), Some(libc::SIGSTOP)),
        ("is killed", "busy", job.clone(), Some(libc::SIGKILL)),
    ];
    for (name, what, theirs, signal) in cases {
        let native = beside(bench, [Side::Native, Side::Native], &job, (what, &theirs, signal))?;
        // Before the arbiter finds what an earlier case left.
        let sides = two(bench, 50, 50)?;
        let arbiter = Arbiter::start(&bench.folder.join("turns"));
        let ours = beside(bench, sides, &job, (what, &theirs, signal))?;
        arbiter.stop();
        let share = |told: &Told| share_between(told, 1e6, bench.end(), solo);
        let windows: Vec<f64> = ours.windows(1e6, bench.end(), 2.5e5).iter().map(|rate| rate * solo).collect();
        println!("50% beside one at 50% that {name}: {:.4} (native {:.4}); by quarter seconds {windows:.2?}", share(&ours), share(&native));
    }
    Ok(())
}

/// Runs both, does to the second what `signal` says, and returns what the first told.
fn beside(bench: &Bench<'_>, [good, bad]: [Side; 2], job: &Job, theirs: (&str, &Job, Option<i32>)) -> std::io::Result<Told> {
    let (what, job_of_bad, signal) = theirs;
    let begin = crate::soon(1500);
    let good = Tenant::start(&good, "busy", &Job { begin, ..job.clone() })?;
    let bad = Tenant::start(&bad, what, &Job { begin, ..job_of_bad.clone() })?;
    std::thread::sleep(Duration::from_millis(3500));
    let ends = Instant::now() + Duration::from_secs_f64((bench.options.seconds - 0.8).max(0.0));
    match signal {
        Some(libc::SIGKILL) => bad.signal(libc::SIGKILL),
        Some(_) => {
            // Odd times, so that it is hit at every point of a turn.
            while Instant::now() < ends {
                bad.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_micros(377_100));
                bad.signal(libc::SIGCONT);
                std::thread::sleep(Duration::from_micros(123_300));
            }
        }
        None => {}
    }
    let told = good.finish();
    bad.end();
    told
}

/// Keeps the GPU busy and writes random words into all that it can write of its container's files.
///
/// # Errors
/// What the driver says.
pub fn garbage(job: &Job) -> Result<()> {
    let folder = std::env::var_os("VGPU_DIR").map(std::path::PathBuf::from);
    // By the file, as any process of the container can.
    let region = folder.and_then(|folder| std::fs::OpenOptions::new().write(true).open(folder.join("region")).ok());
    std::thread::spawn(move || {
        let mut random = 88_172_645_463_325_252_u64;
        while let Some(region) = &region {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Behind the header and the accounts' names: budgets, turns, charges.
            let place = 64 + random % 4096 / 8 * 8;
            if place >= 128 {
                _ = region.write_at(&random.to_ne_bytes(), place);
            }
        }
    });
    tenant::busy(job)
}

/// Keeps the GPU busy in processes of its container that it starts and kills in the middle of what they do.
///
/// # Errors
/// What the driver says.
pub fn forks(job: &Job) -> Result<()> {
    let program = std::env::current_exe().map_err(|_| cuda::sys::CUresult::CUDA_ERROR_UNKNOWN)?;
    let start = Instant::now();
    let child = || {
        let words = [job.rounds.to_string(), job.length.to_string(), job.seconds.to_string()];
        std::process::Command::new(&program).args(["tenant", "busy"]).args(words).stdout(std::process::Stdio::null()).spawn().ok()
    };
    cuda::start(0)?;
    let (kernels, stream) = (Kernels::load()?, kernel::stream()?);
    while start.elapsed().as_secs_f64() < job.seconds + 2.0 {
        let children: Vec<_> = (0..3).filter_map(|_| child()).collect();
        for _ in 0..2000 {
            kernels.work(stream, job.rounds)?;
        }
        std::thread::sleep(Duration::from_millis(300));
        for mut child in children {
            _ = child.kill();
            _ = child.wait();
        }
        // A child that never calls exec, too: it keeps the mappings.
        // SAFETY: the child does nothing but sleep and end.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: as above.
            unsafe {
                libc::usleep(200_000);
                libc::_exit(0);
            }
        }
    }
    Ok(())
}

//! Hostile tenants, and the share of a neighbour of each.

use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use crate::bench::{Bench, in_millis, share_between};
use crate::kernel::{self, Kernels, Result};
use crate::run::{Arbiter, Output, Side, Tenant};
use crate::tenant::{self, Job};
use vgpu_test_programs::cuda;

/// Measures a tenant at 50% next to a hostile one at 50%, for each kind of hostile tenant, natively and with the library.
pub fn part(bench: &Bench<'_>) -> std::io::Result<()> {
    let job = bench.job(200.0, 1, 0);
    let solo = bench.solo(&job)?.0;
    let cases: [(&str, &str, Job, Option<i32>); 6] = [
        ("keeps to its limit", "busy", job.clone(), None),
        ("writes garbage into its region", "garbage", job.clone(), None),
        ("launches an endless kernel", "busy", bench.endless(), None),
        ("forks and kills its children", "forks", job.clone(), None),
        ("is stopped repeatedly, holding its turn", "busy", job.clone(), Some(libc::SIGSTOP)),
        ("is killed", "busy", job.clone(), Some(libc::SIGKILL)),
    ];
    for (name, what, theirs, signal) in cases {
        let native = next_to(bench, [Side::Native, Side::Native], &job, (what, &theirs, signal))?;
        // New files, before the arbiter finds those of the last case.
        let sides = bench.two(50, 50)?;
        let arbiter = Arbiter::start(&bench.folder.join("turns"));
        let ours = next_to(bench, sides, &job, (what, &theirs, signal))?;
        arbiter.stop();
        let share = |output: &Output| share_between(output, 1e6, bench.end(), solo);
        let windows: Vec<f64> = ours.windows(1e6, bench.end(), 2.5e5).iter().map(|rate| rate * solo).collect();
        println!(
            "50% next to one at 50% that {name}: {:.4} (native {:.4}); by quarter seconds {windows:.2?}",
            share(&ours),
            share(&native)
        );
    }
    Ok(())
}

/// Runs both tenants, sends `signal` to the second, and returns the output of the first.
fn next_to(bench: &Bench<'_>, [good, bad]: [Side; 2], job: &Job, theirs: (&str, &Job, Option<i32>)) -> std::io::Result<Output> {
    let (what, job_of_bad, signal) = theirs;
    let start_ms = in_millis(1500);
    let good = Tenant::start(&good, "busy", &Job { start_ms, ..job.clone() })?;
    let bad = Tenant::start(&bad, what, &Job { start_ms, ..job_of_bad.clone() })?;
    std::thread::sleep(Duration::from_millis(3500));
    let ends = Instant::now() + Duration::from_secs_f64((bench.options.seconds - 0.8).max(0.0));
    match signal {
        Some(libc::SIGKILL) => bad.signal(libc::SIGKILL),
        Some(_) => {
            // Odd intervals, so that it is stopped at every point of a turn.
            while Instant::now() < ends {
                bad.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_micros(377_100));
                bad.signal(libc::SIGCONT);
                std::thread::sleep(Duration::from_micros(123_300));
            }
        }
        None => {}
    }
    let output = good.finish();
    bad.end();
    output
}

/// Keeps the GPU busy and writes random words into all writable files of its container.
///
/// # Errors
/// The driver's error.
pub fn garbage(job: &Job) -> Result<()> {
    let folder = std::env::var_os("VGPU_DIR").map(std::path::PathBuf::from);
    // Through the file, which every process of the container can write.
    let region = folder.and_then(|folder| std::fs::OpenOptions::new().write(true).open(folder.join("region")).ok());
    std::thread::spawn(move || {
        let mut random = 88_172_645_463_325_252_u64;
        while let Some(region) = &region {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // After the header and the accounts' names: budgets, turns, charges.
            let offset = 64 + random % 4096 / 8 * 8;
            if offset >= 128 {
                _ = region.write_at(&random.to_ne_bytes(), offset);
            }
        }
    });
    tenant::busy(job)
}

/// Keeps the GPU busy with processes of its container, which it starts and kills while they work.
///
/// # Errors
/// The driver's error.
pub fn forks(job: &Job) -> Result<()> {
    let program = std::env::current_exe().map_err(|_| cuda::sys::CUresult::CUDA_ERROR_UNKNOWN)?;
    let start = Instant::now();
    let child = || {
        let words = [job.rounds.to_string(), job.length_us.to_string(), job.seconds.to_string()];
        let mut command = std::process::Command::new(&program);
        command.args(["tenant", "busy"]).args(words).stdout(std::process::Stdio::null());
        // SAFETY: `prctl` may be called between fork and exec. A child does not outlive this process, or it would work beside the next tenants.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        };
        command.spawn().ok()
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
        // A child that never calls exec keeps the mappings.
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

//! The process whose memory moves.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda;

use crate::context::Context;
use crate::worker::{Most, UNIT, Worker};

/// Time for which the threads work between two rests.
const WORK_TIME: Duration = Duration::from_millis(300);

/// Runs until the first line of input, then prints what was done, and ends with the second line.
pub fn run(arguments: &Arguments) -> ExitCode {
    let stop = AtomicBool::new(false);
    let (gpu, seed) = (arguments.number("gpu", 0) as i32, arguments.number("seed", 1));
    let most = Most {
        blocks: arguments.number("blocks", 8) as usize,
        sizes: arguments.number("smallest", UNIT)..=arguments.number("largest", 8 << 20),
    };
    let rest = Duration::from_millis(arguments.number("rest", 0));
    let mut line = String::new();
    let other = arguments.has("contexts").then(|| Context::create(gpu).expect("another context"));
    let result = std::thread::scope(|scope| {
        let start = |number| {
            let (stop, seed, most) = (&stop, seed * 100 + number, most.clone());
            scope.spawn(move || work(gpu, seed, most, other, rest, stop))
        };
        let threads: Vec<_> = (0..arguments.number("threads", 4)).map(start).collect();
        println!("ready");
        let _ = std::io::stdin().read_line(&mut line);
        stop.store(true, Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread panicked"))
            .try_fold((0, 0), |sum: (u64, u64), done| done.map(|(steps, checked)| (sum.0 + steps, sum.1 + checked)))
    });
    match result {
        Ok((steps, checked)) => {
            // Memory that seemed to be kept by an export is given back when somebody asks how much is free.
            let _ = cuda::start(gpu).and_then(|_| cuda::memory());
            println!("\"steps\":{steps},\"checked\":{checked}");
            let _ = std::io::stdin().read_line(&mut line);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("moves: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the time until the end of a rest, in which no thread works; `None` outside of one, and without rests.
fn rest_left(rest: Duration) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let into_period = Duration::from_nanos((now.as_nanos() % (rest + WORK_TIME).as_nanos()) as u64);
    rest.checked_sub(into_period).filter(|left| !left.is_zero())
}

/// Works until `stop`. Returns the numbers of steps and of checked words.
fn work(gpu: i32, seed: u64, most: Most, other: Option<Context>, rest: Duration, stop: &AtomicBool) -> Result<(u64, u64), String> {
    let failed = |what: &str, code| format!("seed {seed}: {what}: {}", cuda::name(code));
    let mut worker = Worker::new(gpu, seed, most).map_err(|code| failed("start", code))?;
    if let Some(other) = other {
        let (stream, event) = other.stream().map_err(|code| failed("another context", code))?;
        worker.other = Some((other, stream, event));
    }
    let mut steps = 0;
    let result = loop {
        if stop.load(Relaxed) {
            break worker.end().map_err(|code| failed("end", code));
        }
        if let Err((what, code)) = worker.step() {
            break Err(failed(what, code));
        }
        steps += 1;
        if steps % 50 == 0 {
            // Idle for a moment: memory may be away at the next step.
            std::thread::sleep(rest_left(rest).unwrap_or(Duration::from_micros(worker.random.below(3000))));
        }
    };
    if let Err(error) = &result {
        eprintln!("moves: {error}");
        std::process::exit(1);
    }
    result.map(|()| (steps, worker.checked))
}

//! Threads use device memory at random while it moves to the host and back, and check every word of it.
//!
//!     moves --library libvgpu.so [--moves N] [--threads T] [--blocks B] [--smallest BYTES] [--largest BYTES] [--limit BYTES]
//!           [--pause MICROSECONDS] [--rest MS] [--seed X] [--gpu ORDINAL] [--contexts]
//!     moves --library libvgpu.so --kills N [--victims V] [the same options]
//!     moves --child [--threads T] [--blocks B] [--smallest BYTES] [--largest BYTES] [--seed X] [--gpu ORDINAL] [--contexts]
//!
//! The program acts as the arbiter: it tells a second process, which runs under the library, N times (default: 1000) to move its memory
//! out, with pauses of up to `--pause` (default: 2000). Each call of that process that needs memory brings it back. Its T threads (default:
//! 4), with up to B blocks each (default: 8) of `--smallest` (default: 64K) to `--largest` bytes (default: 8M), allocate or map, fill, copy,
//! launch, replay graphs, ask about addresses and handles, verify and free, also while the GPU uses a block. With `--contexts`, which needs
//! memory that can move, they use blocks in a context that did not allocate them, and make and destroy contexts, too. With `--rest` all
//! threads rest together for so long after each 300 ms of work: after a second the process copies its memory ahead. At last the arbiter
//! leaves an order behind and is gone. At the end its account has to be that of a process without allocations. The last form is that
//! process alone, which works until its input ends.
//!
//! With `--kills` such a process, the witness, gets orders all the time, while others in V shares (default: 3) die N times at a random
//! moment of a move: a process is killed by SIGKILL, or, every fourth time, its arbiter is gone, and the process has to go on. The witness's
//! words have to be right. The accounts of all shares have to have nothing of the dead at the end, the GPU by NVML as much used memory as at
//! the begin, where nobody else may use it meanwhile, and the shares' folders no other file. `pending` counts killed processes that had not
//! followed an order yet, and `out` those with memory on the host or on its way back.
//!
//! Prints one line of JSON; `mean_ms` is the time from an order until `mean_mib` are out, with the calls and kernels that it waits for.
//! Status 1 if a word is wrong, a call fails, a process ends by itself, or an account is wrong.

mod context;
mod kills;
mod process;
mod work;
mod worker;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::share::{Moves, Orders, Share};

use process::Process;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return work::run(&arguments);
    }
    let seed = arguments.number("seed", u64::from(std::process::id()));
    let result = if arguments.has("kills") { kills::run(&arguments, seed) } else { run(&arguments, seed) };
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("moves: --seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the second process until it has moved often enough. Returns a line of JSON.
fn run(arguments: &Arguments, seed: u64) -> Result<String, String> {
    let wanted = arguments.number("moves", 1000);
    let share = Share::evictable(arguments.number("limit", 2 << 30))?;
    let mut process = Process::start(arguments, &share, seed)?;
    let (mut moves, begun) = (Moves::default(), Instant::now());
    while moves.count < wanted {
        let orders = Orders::start(&share, Duration::from_micros(arguments.number("pause", 2000)), seed + moves.count)?;
        std::thread::sleep(Duration::from_millis(500));
        let more = orders.end();
        moves = Moves { count: moves.count + more.count, bytes: moves.bytes + more.bytes, took: moves.took + more.took };
        process.check_runs().map_err(|error| format!("after {} moves: {error}", moves.count))?;
    }
    let took = begun.elapsed().as_secs_f64();
    let said = process.end_without_arbiter()?;
    let (count, mean, out_ms) =
        (moves.count, (moves.bytes / moves.count.max(1)) >> 20, moves.took.as_secs_f64() * 1e3 / moves.count.max(1) as f64);
    Ok(format!("{{\"seed\":{seed},\"moves\":{count},\"mean_mib\":{mean},\"mean_ms\":{out_ms:.1},\"seconds\":{took:.1},{said}}}"))
}

//! Threads use device memory at random while it moves to the host and back, and check every word of it.
//!
//!     moves --library libvgpu.so [--moves N] [--threads T] [--blocks B] [--smallest BYTES] [--largest BYTES] [--limit BYTES]
//!           [--pause MICROSECONDS] [--rest MS] [--seed X] [--gpu ORDINAL] [--contexts]
//!     moves --child [--threads T] [--blocks B] [--smallest BYTES] [--largest BYTES] [--seed X] [--gpu ORDINAL] [--contexts]
//!
//! The program acts as the arbiter: it tells a second process, which runs under the library, N times (default: 1000) to move its memory
//! out, with pauses of up to `--pause` (default: 2000). Each call of that process that needs memory brings it back. Its T threads (default:
//! 4), with up to B blocks each (default: 8) of `--smallest` (default: 64K) to `--largest` bytes (default: 8M), allocate or map, fill, copy,
//! launch, replay graphs, ask about addresses and handles, verify and free, also while the GPU uses a block. With `--contexts`, which needs
//! memory that can move, they use blocks in a context that did not allocate them, and make and destroy contexts, too. With `--rest` all
//! threads rest together for so long after each 300 ms of work: after a second the process copies its memory ahead. At last the arbiter
//! leaves an order behind and is gone. At the end its account has to be that of a process without allocations. The second form is that
//! process alone, which works until its input ends.
//!
//! Prints one line of JSON; `mean_ms` is the time from an order until `mean_mib` are out, with the calls and kernels that it waits for.
//! Status 1 if a word is wrong or a call fails.

mod context;
mod work;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::share::{Moves, Orders, Share};

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return work::run(&arguments);
    }
    match run(&arguments) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("moves: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the second process until it has moved often enough. Returns a line of JSON.
fn run(arguments: &Arguments) -> Result<String, String> {
    let library = arguments.value("library").ok_or("--library: expected a file")?;
    let (wanted, seed) = (arguments.number("moves", 1000), arguments.number("seed", u64::from(std::process::id())));
    let share = Share::evictable(arguments.number("limit", 2 << 30))?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("--child").args(std::env::args().skip(1)).args(["--seed", &seed.to_string()]);
    let mut child = share.limits(library, &mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut line = || lines.next().and_then(Result::ok).ok_or_else(|| format!("--seed {seed}: the second process ended"));
    let (mut moves, begun) = (Moves::default(), Instant::now());
    line()?;
    while moves.count < wanted {
        let orders = Orders::start(&share, Duration::from_micros(arguments.number("pause", 2000)), seed + moves.count)?;
        std::thread::sleep(Duration::from_millis(500));
        let more = orders.end();
        moves = Moves { count: moves.count + more.count, bytes: moves.bytes + more.bytes, took: moves.took + more.took };
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Err(format!("--seed {seed}: the second process ended after {} moves: {status}", moves.count));
        }
    }
    let took = begun.elapsed().as_secs_f64();
    // It must not wait for an arbiter that is gone.
    Orders::abandon(&share)?;
    std::thread::sleep(Duration::from_millis(200));
    let mut input = child.stdin.take().ok_or("no input")?;
    writeln!(input, "end").map_err(|error| error.to_string())?;
    let said = line()?;
    let account = share.ledger()?;
    let held: u64 = account.processes.iter().map(|held| held.bytes - held.overhead).sum();
    if held != 0 {
        return Err(format!("--seed {seed}: the account has {held} bytes after everything was freed: {account:?}"));
    }
    writeln!(input, "end").map_err(|error| error.to_string())?;
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("--seed {seed}: {status}"));
    }
    let (count, mean, out_ms) =
        (moves.count, (moves.bytes / moves.count.max(1)) >> 20, moves.took.as_secs_f64() * 1e3 / moves.count.max(1) as f64);
    Ok(format!("{{\"seed\":{seed},\"moves\":{count},\"mean_mib\":{mean},\"mean_ms\":{out_ms:.1},\"seconds\":{took:.1},{said}}}"))
}

//! Keeps the GPU busy with kernels of one length, and prints the share of time that they ran.
//!
//!     spin [--ns LENGTH] [--seconds S] [--streams N] [--gpu ORDINAL] [--wait]
//!
//! With --wait it prints `ready` and starts at the next line of its input. Prints `kernels wall_ns share`: the share is the kernels'
//! total length divided by the wall-clock time.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys::*};
use vgpu_test_programs::ptx::SPIN;

/// Launches, of all streams together, after which the host waits for an earlier one.
const AHEAD: usize = 64;

fn main() -> ExitCode {
    match run(&Arguments::of_process()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => {
            eprintln!("spin: {}", cuda::name(code));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), CUresult> {
    let ns = arguments.number("ns", 200_000);
    cuda::start(arguments.number("gpu", 0) as i32)?;
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the image is NUL-terminated and the out-pointers are valid.
    unsafe {
        check(cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()))?;
        check(cuModuleGetFunction(&raw mut function, module, c"spin".as_ptr()))?;
    }
    let mut streams = Vec::new();
    for _ in 0..arguments.number("streams", 1) {
        let mut stream = null_mut();
        // SAFETY: the out-pointer is valid.
        check(unsafe { cuStreamCreate(&raw mut stream, 1) })?;
        streams.push((stream, VecDeque::new()));
    }
    if arguments.has("wait") {
        println!("ready");
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    let begun = Instant::now();
    let until = begun + Duration::from_secs(arguments.number("seconds", 1));
    let mut launched = 0_u64;
    while Instant::now() < until {
        for (stream, marks) in &mut streams {
            launch(function, ns, *stream)?;
            launched += 1;
            if launched.is_multiple_of(AHEAD as u64 / 4) {
                pace(*stream, marks)?;
            }
        }
    }
    cuda::synchronize()?;
    let wall = begun.elapsed().as_nanos() as f64;
    println!("{launched} {wall} {:.4}", launched as f64 * ns as f64 / wall);
    Ok(())
}

fn launch(function: CUfunction, ns: u64, stream: CUstream) -> Result<(), CUresult> {
    let mut arguments = [(&raw const ns).cast_mut().cast()];
    // SAFETY: the argument is the one that `spin` takes, and is read before the call returns.
    check(unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut()) })
}

/// Records an event and waits for the one that was recorded [`AHEAD`] calls before it.
fn pace(stream: CUstream, marks: &mut VecDeque<CUevent>) -> Result<(), CUresult> {
    let mut event = null_mut();
    // SAFETY: the out-pointer is valid; each event is waited for and destroyed once.
    unsafe {
        check(cuEventCreate(&raw mut event, 2))?;
        check(cuEventRecord(event, stream))?;
        marks.push_back(event);
        if marks.len() > 4 {
            let oldest = marks.pop_front().unwrap_or(event);
            check(cuEventSynchronize(oldest))?;
            check(cuEventDestroy_v2(oldest))?;
        }
    }
    Ok(())
}

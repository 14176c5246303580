//! A program that needs more than its share; the excess may be spilled to the host.
//!
//!     oversub [--need BYTES] [--chunk BYTES] [--hold]
//!     oversub --library libvgpu.so [--limit BYTES] [--ceiling BYTES] [--need BYTES] [--chunk BYTES]
//!
//! The first form allocates what it needs (default: 3 GiB) by several calls, fills it by fills, copies and kernels, checks every word,
//! allocates more until it is refused, and prints one line of JSON. With --hold it allocates what it needs and waits for its input to
//! end.
//!
//! The second form runs the first under the library with a share of its own (default: 2 GiB, and 2 GiB on the host), samples NVML without
//! the library meanwhile, and prints a line for each trial; status 1 if a trial fails.

mod chunks;
mod kernels;
mod trials;
mod watch;

use std::process::ExitCode;

use chunks::Chunks;
use kernels::Kernels;
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, name, sys::CUresult};

const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let (need, chunk) = (arguments.number("need", 3 << 30), arguments.number("chunk", 64 * MIB));
    let outcome = match arguments.value("library") {
        Some(library) => trials::run(&trials::Sizes {
            library,
            limit: arguments.number("limit", 2 << 30),
            ceiling: arguments.number("ceiling", 2 << 30),
            need,
            chunk,
        }),
        None if arguments.has("hold") => hold(need, chunk).map(|()| true).map_err(name),
        None => work(need, chunk).map(|()| true).map_err(name),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("oversub: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(need: u64, chunk: u64) -> Result<(), CUresult> {
    cuda::start(0)?;
    let kernels = Kernels::load()?;
    let (before, total) = cuda::memory()?;
    let mut chunks = Chunks::new(chunk as usize);
    let needed = chunks.take(need);
    let (obtained, elsewhere) = (chunks.total(), chunks.elsewhere());
    chunks.work(&kernels)?;
    let wrong = chunks.wrong(&kernels)? + chunks.count(&kernels)?;
    let refused = match needed {
        Ok(()) => chunks.take(u64::MAX).err(),
        Err(code) => Some(code),
    };
    let (most, left) = (chunks.total(), cuda::memory()?.0);
    chunks.free()?;
    let after = cuda::memory()?.0;
    println!(
        "{{\"obtained\":{obtained},\"elsewhere\":{elsewhere},\"wrong\":{wrong},\"kernels\":{},\"most\":{most},\"refused\":\"{}\",\
         \"total\":{total},\"before\":{before},\"left\":{left},\"after\":{after}}}",
        kernels.run,
        refused.map_or_else(String::new, name),
    );
    Ok(())
}

fn hold(need: u64, chunk: u64) -> Result<(), CUresult> {
    cuda::start(0)?;
    let mut chunks = Chunks::new(chunk as usize);
    chunks.take(need)?;
    println!("held");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

//! Measures how long single calls take in this process.

use std::process::ExitCode;
use std::time::Instant;

use crate::cuda::{self, check, sys};
use crate::ptx;

/// Number of live allocations of 4 KiB.
const LIVE: usize = 10_000;

/// Sorts the figures and returns their median.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures every call and prints `name nanoseconds` for each.
#[must_use]
pub fn print() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => {
            eprintln!("{}", cuda::name(code));
            ExitCode::FAILURE
        }
    }
}

/// Prints the median of `figures`, in ns.
fn report(name: &str, mut figures: Vec<f64>) {
    println!("{name} {:.1}", median(&mut figures));
}

/// Times one call, in ns.
fn time(figures: &mut Vec<f64>, call: impl FnOnce() -> sys::CUresult) -> Result<(), sys::CUresult> {
    let begin = Instant::now();
    let code = call();
    figures.push(begin.elapsed().as_nanos() as f64);
    check(code)
}

fn measure() -> Result<(), sys::CUresult> {
    let begin = Instant::now();
    cuda::start(0)?;
    println!("first CUDA call and context {:.0}", begin.elapsed().as_nanos());
    info()?;
    linear()?;
    ordered()?;
    launch()
}

fn info() -> Result<(), sys::CUresult> {
    let mut figures = Vec::new();
    let (mut free, mut total) = (0, 0);
    for _ in 0..5000 {
        // SAFETY: both out-pointers are valid.
        time(&mut figures, || unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    }
    report("cuMemGetInfo", figures);
    Ok(())
}

/// Measures allocations of 4 KiB and of 4 MiB: while the number of live ones grows, while it is constant, and while it shrinks.
fn linear() -> Result<(), sys::CUresult> {
    for (what, bytes, live, pairs) in [("4 KiB", 4096, LIVE, 5000), ("4 MiB", 4 << 20, 500, 200)] {
        let (mut growing, mut shrinking, mut allocating, mut freeing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut addresses = vec![0; live];
        for address in &mut addresses {
            // SAFETY: the out-pointer is valid.
            time(&mut growing, || unsafe { sys::cuMemAlloc_v2(address, bytes) })?;
        }
        for _ in 0..pairs {
            let mut address = 0;
            // SAFETY: the out-pointer is valid; the address is freed once.
            time(&mut allocating, || unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
            // SAFETY: as above.
            time(&mut freeing, || unsafe { sys::cuMemFree_v2(address) })?;
        }
        for address in addresses {
            // SAFETY: each address was allocated above.
            time(&mut shrinking, || unsafe { sys::cuMemFree_v2(address) })?;
        }
        report(&format!("cuMemAlloc {what}, up to {live} live"), growing);
        report(&format!("cuMemAlloc {what}, {live} live"), allocating);
        report(&format!("cuMemFree {what}, {live} live"), freeing);
        report(&format!("cuMemFree {what}, down from {live} live"), shrinking);
    }
    Ok(())
}

fn ordered() -> Result<(), sys::CUresult> {
    let (mut stream, mut kept, mut figures) = (std::ptr::null_mut(), 0, Vec::new());
    // SAFETY: the stream and the addresses belong to this function; each address is freed once.
    unsafe {
        check(sys::cuStreamCreate(&raw mut stream, 0))?;
        // One live allocation makes the pool keep its memory.
        check(sys::cuMemAllocAsync(&raw mut kept, 2 << 20, stream))?;
        for round in 0..11_000 {
            let mut address = 0;
            let mut pair = Vec::new();
            time(&mut pair, || match sys::cuMemAllocAsync(&raw mut address, 2 << 20, stream) {
                sys::CUresult::CUDA_SUCCESS => sys::cuMemFreeAsync(address, stream),
                code => code,
            })?;
            if round >= 1000 {
                figures.append(&mut pair);
            }
        }
        check(sys::cuMemFreeAsync(kept, stream))?;
        check(sys::cuStreamDestroy_v2(stream))?;
    }
    report("cuMemAllocAsync + cuMemFreeAsync, 2 MiB", figures);
    Ok(())
}

/// Measures launches of an empty kernel, in series short enough for the driver's queue.
fn launch() -> Result<(), sys::CUresult> {
    let (mut module, mut function, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    let mut figures = Vec::new();
    // SAFETY: the handles belong to this function; the kernel takes no arguments.
    unsafe {
        check(sys::cuModuleLoadData(&raw mut module, ptx::SPIN.as_ptr().cast()))?;
        check(sys::cuModuleGetFunction(&raw mut function, module, c"empty".as_ptr()))?;
        check(sys::cuStreamCreate(&raw mut stream, 0))?;
        for _ in 0..60 {
            let begin = Instant::now();
            for _ in 0..300 {
                check(sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, std::ptr::null_mut(), std::ptr::null_mut()))?;
            }
            figures.push(begin.elapsed().as_nanos() as f64 / 300.0);
            check(sys::cuStreamSynchronize(stream))?;
        }
        report("cuLaunchKernel, empty", figures);
        let mut figures = Vec::new();
        for _ in 0..2000 {
            time(&mut figures, || {
                match sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, std::ptr::null_mut(), std::ptr::null_mut()) {
                    sys::CUresult::CUDA_SUCCESS => sys::cuStreamSynchronize(stream),
                    code => code,
                }
            })?;
        }
        report("cuLaunchKernel + cuStreamSynchronize", figures);
    }
    Ok(())
}

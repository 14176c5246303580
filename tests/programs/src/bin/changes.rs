//! Observes changes of its limits under load: one thread allocates and frees memory continuously, another launches kernels.
//!
//!     changes [--chunk BYTES] [--max BYTES] [--ns LENGTH] [--gpu ORDINAL]
//!
//! Prints `full BYTES` when no more memory is available. Then prints, with the CLOCK_MONOTONIC time in nanoseconds: `refused TIME BYTES`
//! when memory that it held before is refused, `grew TIME BYTES` when it gets more, and `kernel TIME` when a kernel has ended. Runs
//! until it is killed. With --max 0 it only launches kernels.

use std::process::ExitCode;
use std::ptr::null_mut;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys::*};
use vgpu_test_programs::ptx::SPIN;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let (chunk, max) = (arguments.number("chunk", 16 << 20) as usize, arguments.number("max", 8 << 30) as usize);
    let (ns, gpu) = (arguments.number("ns", 200_000), arguments.number("gpu", 0) as i32);
    let failed = std::thread::scope(|scope| {
        let kernels = scope.spawn(move || cuda::start(gpu).and_then(|_| launch(ns)));
        let memory = scope.spawn(move || cuda::start(gpu).and_then(|_| allocate(chunk, max)));
        [memory.join(), kernels.join()].into_iter().flatten().find_map(Result::err)
    });
    eprintln!("changes: {}", failed.map_or_else(|| "a thread ended".to_owned(), cuda::name));
    ExitCode::FAILURE
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds, which is the same inside and outside a container.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn allocate(chunk: usize, max: usize) -> Result<(), CUresult> {
    let mut held: Vec<CUdeviceptr> = Vec::new();
    let take = |held: &mut Vec<CUdeviceptr>| {
        let mut address = 0;
        // SAFETY: the out-pointer is valid.
        match unsafe { cuMemAlloc_v2(&raw mut address, chunk) } {
            CUresult::CUDA_SUCCESS => {
                held.push(address);
                Ok(true)
            }
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(false),
            other => Err(other),
        }
    };
    while held.len() * chunk < max && take(&mut held)? {}
    println!("full {}", held.len() * chunk);
    if max == 0 {
        loop {
            std::thread::park();
        }
    }
    let mut refused = false;
    loop {
        if !refused && let Some(address) = held.pop() {
            // SAFETY: the allocation belongs to this function and is freed once.
            check(unsafe { cuMemFree_v2(address) })?;
        }
        let got = take(&mut held)?;
        if !got && !refused {
            println!("refused {} {}", now(), held.len() * chunk);
        }
        let more = got && (refused || (held.len() * chunk < max && take(&mut held)?));
        if more {
            println!("grew {} {}", now(), held.len() * chunk);
        }
        refused = !got;
    }
}

fn launch(ns: u64) -> Result<(), CUresult> {
    let (mut module, mut function, mut stream) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the image is NUL-terminated, the out-pointers are valid, and the argument is the one that `spin` takes.
    unsafe {
        check(cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()))?;
        check(cuModuleGetFunction(&raw mut function, module, c"spin".as_ptr()))?;
        check(cuStreamCreate(&raw mut stream, 1))?;
        // Several kernels are in flight, so that the GPU is never idle.
        let mut marks = [null_mut(); 8];
        for mark in &mut marks {
            check(cuEventCreate(mark, 2))?;
        }
        for number in 0.. {
            let mark = marks[number % marks.len()];
            if number >= marks.len() {
                check(cuEventSynchronize(mark))?;
                println!("kernel {}", now());
            }
            let mut arguments = [(&raw const ns).cast_mut().cast()];
            check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut()))?;
            check(cuEventRecord(mark, stream))?;
        }
        Ok(())
    }
}

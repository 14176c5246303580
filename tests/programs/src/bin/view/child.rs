//! The work of one process on one GPU.

use std::process::ExitCode;

use vgpu_test_programs::cuda::sys::{self, CUresult};
use vgpu_test_programs::cuda::{self, check, name};

use crate::figures::Figures;

const MIB: u64 = 1 << 20;

/// Prints the bytes that it obtained and holds them until its standard input ends; or prints what is wrong.
pub fn run(uuid: &str, ordinal: i32, limit: u64) -> ExitCode {
    match fill(uuid, ordinal, limit) {
        Ok(obtained) => {
            println!("{obtained}");
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn fill(uuid: &str, ordinal: i32, limit: u64) -> Result<u64, String> {
    let text = |code: CUresult| name(code);
    cuda::start(ordinal).map_err(text)?;
    let figures = Figures::new(uuid, ordinal, limit)?;
    let empty = figures.check("empty", 0)?;
    let mut pool_bytes = 0;
    // The first half comes from a pool.
    let (mut stream, mut address) = (std::ptr::null_mut(), 0);
    // SAFETY: the out-pointers are valid.
    unsafe {
        check(sys::cuStreamCreate(&raw mut stream, 1)).map_err(text)?;
        while pool_bytes < limit / 4 && sys::cuMemAllocAsync(&raw mut address, 64 << 20, stream) == CUresult::CUDA_SUCCESS {
            pool_bytes += 64 * MIB;
        }
        check(sys::cuStreamSynchronize(stream)).map_err(text)?;
    }
    figures.check_pool(pool_bytes)?;
    let (mut obtained, mut size) = (pool_bytes, 64 * MIB);
    while size >= MIB {
        // SAFETY: as above.
        match unsafe { sys::cuMemAlloc_v2(&raw mut address, size as usize) } {
            CUresult::CUDA_SUCCESS => obtained += size,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => size /= 2,
            code => return Err(format!("cuMemAlloc: {}", name(code))),
        }
    }
    let full = figures.check("full", obtained)?;
    if full < empty + obtained / 2 {
        return Err(format!("{full} bytes used after allocating {obtained} on top of {empty}"));
    }
    Ok(obtained)
}

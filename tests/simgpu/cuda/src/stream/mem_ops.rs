//! Stream memory operations: write a value, wait for a value.

use cudarc::driver::sys::CUstream;

use super::submit::submit;
use crate::ffi::{CudaResult, INVALID_VALUE};
use crate::objects::Work;

fn write(stream: CUstream, address: u64, value: u64, is_64_bit: bool) -> CudaResult {
    check(address, is_64_bit)?;
    submit(stream, Work::WriteValue { address, value, is_64_bit })
}

fn wait(stream: CUstream, address: u64, value: u64, flags: u32, is_64_bit: bool) -> CudaResult {
    check(address, is_64_bit)?;
    submit(stream, Work::WaitValue { address, value, is_64_bit, comparison: flags })
}

fn check(address: u64, is_64_bit: bool) -> CudaResult {
    let alignment = if is_64_bit { 8 } else { 4 };
    if address == 0 || !address.is_multiple_of(alignment) { Err(INVALID_VALUE) } else { Ok(()) }
}

api! {
    fn cuStreamWriteValue32 [cuStreamWriteValue32_ptsz stream] (stream: CUstream, address: u64, value: u32, _flags: u32) {
        write(stream, address, u64::from(value), false)
    }
    fn cuStreamWriteValue32_v2 [cuStreamWriteValue32_v2_ptsz stream] (stream: CUstream, address: u64, value: u32, _flags: u32) {
        write(stream, address, u64::from(value), false)
    }
    fn cuStreamWriteValue64 [cuStreamWriteValue64_ptsz stream] (stream: CUstream, address: u64, value: u64, _flags: u32) {
        write(stream, address, value, true)
    }
    fn cuStreamWriteValue64_v2 [cuStreamWriteValue64_v2_ptsz stream] (stream: CUstream, address: u64, value: u64, _flags: u32) {
        write(stream, address, value, true)
    }
    fn cuStreamWaitValue32 [cuStreamWaitValue32_ptsz stream] (stream: CUstream, address: u64, value: u32, flags: u32) {
        wait(stream, address, u64::from(value), flags, false)
    }
    fn cuStreamWaitValue32_v2 [cuStreamWaitValue32_v2_ptsz stream] (stream: CUstream, address: u64, value: u32, flags: u32) {
        wait(stream, address, u64::from(value), flags, false)
    }
    fn cuStreamWaitValue64 [cuStreamWaitValue64_ptsz stream] (stream: CUstream, address: u64, value: u64, flags: u32) {
        wait(stream, address, value, flags, true)
    }
    fn cuStreamWaitValue64_v2 [cuStreamWaitValue64_v2_ptsz stream] (stream: CUstream, address: u64, value: u64, flags: u32) {
        wait(stream, address, value, flags, true)
    }
}

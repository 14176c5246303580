//! Pointer attributes.

use std::ffi::c_void;

use cudarc::driver::sys::CUresult;

use crate::driver::state;
use crate::ffi::{CudaResult, INVALID_VALUE, put, read_slice};
use crate::handles::as_pointer;
use crate::objects::{Allocation, GRANULE, Kind};

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// Writes one attribute of an address in an allocation.
fn put_attribute(out: *mut c_void, attribute: u32, address: u64, start: u64, found: &Allocation) -> CudaResult {
    let host = matches!(found.kind, Kind::Host { .. });
    let managed = matches!(found.kind, Kind::Managed { .. });
    match attribute {
        1 => put(out.cast::<*mut c_void>(), as_pointer(found.context)),
        2 => put(out.cast(), if host { HOST } else { DEVICE }),
        3 => put(out.cast(), address),
        4 => put(out.cast(), if host || managed { address } else { 0 }).and(if host || managed { Ok(()) } else { Err(INVALID_VALUE) }),
        5 => put(out.cast(), [0_u64; 2]),
        6 => put(out.cast(), 1_u32),
        7 => put(out.cast(), found.id),
        8 => put(out.cast(), u32::from(managed)),
        9 => put(out.cast(), found.ordinal),
        10 => put(out.cast(), u32::from(matches!(found.kind, Kind::Granules(_) | Kind::Small))),
        11 => put(out.cast(), start),
        12 => put(out.cast(), found.size as usize),
        13 => put(out.cast(), 1_u32),
        14 => put(out.cast(), 0_u64),
        15 => put(out.cast(), 1_u32),
        16 => put(out.cast(), 3_u32),
        18 => put(out.cast(), GRANULE as usize),
        19 => put(out.cast(), address - address % GRANULE),
        20 => put(out.cast(), found.id),
        17 => put(
            out.cast(),
            match found.kind {
                Kind::Pool(pool) => as_pointer::<c_void>(pool),
                _ => std::ptr::null_mut(),
            },
        ),
        _ => Err(INVALID_VALUE),
    }
}

/// Writes the value that `cuPointerGetAttributes` reports for an address outside of all allocations.
fn put_unknown_attribute(out: *mut c_void, attribute: u32) -> CudaResult {
    match attribute {
        1 | 4 | 17 => put(out.cast::<*mut c_void>(), std::ptr::null_mut()),
        3 | 7 | 11 | 12 | 14 => put(out.cast(), 0_u64),
        9 => put(out.cast(), -2_i32),
        2 | 6 | 8 | 10 | 13 | 15 | 16 => put(out.cast(), 0_u32),
        _ => Err(INVALID_VALUE),
    }
}

api! {
    fn cuPointerGetAttribute(out: *mut c_void, attribute: u32, address: u64) {
        let state = state()?;
        state.current()?;
        let (start, found) = state.memory.containing(address).ok_or(INVALID_VALUE)?;
        put_attribute(out, attribute, address, start, found)
    }

    fn cuPointerGetAttributes(count: u32, attributes: *const u32, out: *mut *mut c_void, address: u64) {
        let state = state()?;
        state.current()?;
        for (&attribute, &room) in read_slice(attributes, count as usize)?.iter().zip(read_slice(out.cast_const(), count as usize)?) {
            let written = match state.memory.containing(address) {
                Some((start, found)) => put_attribute(room, attribute, address, start, found),
                None => put_unknown_attribute(room, attribute),
            };
            if written.is_err() {
                put_unknown_attribute(room, attribute)?;
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: *const c_void, _attribute: u32, address: u64) {
        state()?.memory.containing(address).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

//! Copies, fills, prefetches and memory advice.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUcontext, CUmemorytype, CUstream};

use crate::driver::{State, state};
use crate::ffi::{CudaResult, INVALID_VALUE, get};
use crate::memory::managed::{advise_managed, migrate_on_gpu_access, migrate_to_gpu};
use crate::objects::{Kind, Row, Work};
use crate::stream::capture;
use crate::stream::resolve::resolve;
use crate::stream::submit::{submit, submit_and_wait};

const DEFAULT_STREAM: CUstream = std::ptr::null_mut();

/// Kind of memory at an address, as far as copies distinguish it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Location {
    Device,
    Pinned,
    Pageable,
}

fn locate(state: &State, address: u64, bytes: usize) -> CudaResult<Location> {
    let Some((start, allocation)) = state.memory.containing(address) else { return Ok(Location::Pageable) };
    // Mappings that lie side by side are one range, as PyTorch's expandable segments need it.
    let mut end = start + allocation.size;
    while end < address + bytes as u64 {
        let next = state.memory.containing(end).filter(|(_, next)| matches!(next.kind, Kind::Mapped(_)));
        end = next.filter(|_| matches!(allocation.kind, Kind::Mapped(_))).map(|(start, next)| start + next.size).ok_or(INVALID_VALUE)?;
    }
    Ok(if matches!(allocation.kind, Kind::Host { .. }) { Location::Pinned } else { Location::Device })
}

/// Makes the work for a copy of rows of equal shape, and tells whether pageable memory is involved. `device` (to, from) says which ends
/// must not be pageable.
fn copy_work(rows: Vec<Row>, device: (bool, bool)) -> CudaResult<(Work, bool)> {
    let state = state()?;
    let (mut by_gpu, mut pageable) = (true, false);
    for row in &rows {
        if row.to == 0 || row.from == 0 {
            return Err(INVALID_VALUE);
        }
        let locations = (locate(&state, row.to, row.bytes)?, locate(&state, row.from, row.bytes)?);
        if device.0 && locations.0 == Location::Pageable || device.1 && locations.1 == Location::Pageable {
            return Err(INVALID_VALUE);
        }
        by_gpu &= locations == (Location::Device, Location::Device);
        pageable |= locations.0 == Location::Pageable || locations.1 == Location::Pageable;
    }
    drop(state);
    rows.first().map_or(Ok(()), |row| migrate_on_gpu_access(row.to))?;
    Ok((Work::Copy { rows: rows.into(), by_gpu }, pageable))
}

fn copy_now(rows: Vec<Row>, device: (bool, bool)) -> CudaResult {
    state()?.current()?;
    if rows.iter().all(|row| row.bytes == 0) {
        return Ok(());
    }
    submit_and_wait(DEFAULT_STREAM, copy_work(rows, device)?.0)
}

/// Copies in stream order. Copies of pageable memory are synchronous: the program may reuse it once the call has returned.
fn copy_later(rows: Vec<Row>, device: (bool, bool), stream: CUstream) -> CudaResult {
    let key = resolve(stream)?;
    if rows.iter().all(|row| row.bytes == 0) {
        return Ok(());
    }
    let (work, pageable) = copy_work(rows, device)?;
    if pageable && !capture::is_capturing(key)? { submit_and_wait(stream, work) } else { submit(stream, work) }
}

fn single_row(to: u64, from: u64, bytes: usize) -> Vec<Row> {
    vec![Row { to, from, bytes }]
}

/// Makes the work for a fill of `height` rows of `width` elements.
pub fn fill_rows(address: u64, value: u32, element: usize, width: usize, height: usize, pitch: usize) -> CudaResult<Work> {
    let row_bytes = width.checked_mul(element).ok_or(INVALID_VALUE)?;
    if !address.is_multiple_of(element.max(1) as u64) || ![1, 2, 4].contains(&element) {
        return Err(INVALID_VALUE);
    }
    let rows = (0..height).map(|row| Row { to: address + (row * pitch) as u64, from: 0, bytes: row_bytes }).collect::<Vec<_>>();
    let state = state()?;
    for row in rows.iter().filter(|row| row.bytes > 0) {
        if locate(&state, row.to, row.bytes)? == Location::Pageable {
            return Err(INVALID_VALUE);
        }
    }
    drop(state);
    migrate_on_gpu_access(address)?;
    Ok(Work::Fill { rows: Arc::from(rows), pattern: value.to_le_bytes(), width: element })
}

fn fill_now(address: u64, value: u32, element: usize, width: usize, height: usize, pitch: usize) -> CudaResult {
    state()?.current()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    submit_and_wait(DEFAULT_STREAM, fill_rows(address, value, element, width, height, pitch)?)
}

fn fill_later(address: u64, value: u32, element: usize, width: usize, height: usize, pitch: usize, stream: CUstream) -> CudaResult {
    resolve(stream)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    submit(stream, fill_rows(address, value, element, width, height, pitch)?)
}

/// One end of a two- or three-dimensional copy.
struct Endpoint {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    offset: [usize; 3],
    pitch: usize,
    height: usize,
}

impl Endpoint {
    /// Returns the address of a row.
    fn row(&self, state: &State, y: usize, z: usize) -> CudaResult<u64> {
        let (base, pitch, height) = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => (self.host, self.pitch, self.height),
            CUmemorytype::CU_MEMORYTYPE_ARRAY => {
                let array = state.memory.arrays.get(self.array)?;
                (array.address, array.row_bytes as usize, array.rows_per_slice as usize)
            }
            _ => (self.device, self.pitch, self.height),
        };
        let rows = (self.offset[2] + z) * height.max(1) + self.offset[1] + y;
        Ok(base + (rows * pitch + self.offset[0]) as u64)
    }
}

fn rows_between(to: &Endpoint, from: &Endpoint, extent: [usize; 3]) -> CudaResult<(Vec<Row>, (bool, bool))> {
    let state = state()?;
    let mut rows = Vec::new();
    for z in 0..extent[2] {
        for y in 0..extent[1] {
            rows.push(Row { to: to.row(&state, y, z)?, from: from.row(&state, y, z)?, bytes: extent[0] });
        }
    }
    let device = |end: &Endpoint| end.kind == CUmemorytype::CU_MEMORYTYPE_DEVICE;
    Ok((rows, (device(to), device(from))))
}

fn rows_2d(params: *const CUDA_MEMCPY2D) -> CudaResult<(Vec<Row>, (bool, bool))> {
    let params = get(params)?;
    let to = Endpoint {
        kind: params.dstMemoryType,
        host: params.dstHost.expose_provenance() as u64,
        device: params.dstDevice,
        array: params.dstArray,
        offset: [params.dstXInBytes, params.dstY, 0],
        pitch: params.dstPitch.max(params.WidthInBytes),
        height: 1,
    };
    let from = Endpoint {
        kind: params.srcMemoryType,
        host: params.srcHost.expose_provenance() as u64,
        device: params.srcDevice,
        array: params.srcArray,
        offset: [params.srcXInBytes, params.srcY, 0],
        pitch: params.srcPitch.max(params.WidthInBytes),
        height: 1,
    };
    rows_between(&to, &from, [params.WidthInBytes, params.Height, 1])
}

fn rows_3d(params: &CUDA_MEMCPY3D) -> CudaResult<(Vec<Row>, (bool, bool))> {
    let to = Endpoint {
        kind: params.dstMemoryType,
        host: params.dstHost.expose_provenance() as u64,
        device: params.dstDevice,
        array: params.dstArray,
        offset: [params.dstXInBytes, params.dstY, params.dstZ],
        pitch: params.dstPitch.max(params.WidthInBytes),
        height: params.dstHeight.max(params.Height),
    };
    let from = Endpoint {
        kind: params.srcMemoryType,
        host: params.srcHost.expose_provenance() as u64,
        device: params.srcDevice,
        array: params.srcArray,
        offset: [params.srcXInBytes, params.srcY, params.srcZ],
        pitch: params.srcPitch.max(params.WidthInBytes),
        height: params.srcHeight.max(params.Height),
    };
    rows_between(&to, &from, [params.WidthInBytes, params.Height, params.Depth])
}

/// Makes the work for a three-dimensional copy in a graph.
pub fn copy_work_3d(params: &CUDA_MEMCPY3D) -> CudaResult<Work> {
    let (rows, device) = rows_3d(params)?;
    Ok(copy_work(rows, device)?.0)
}

fn host_address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

api! {
    fn cuMemcpy [cuMemcpy_ptds] (to: u64, from: u64, bytes: usize) { copy_now(single_row(to, from, bytes), (false, false)) }
    fn cuMemcpyAsync [cuMemcpyAsync_ptsz stream] (to: u64, from: u64, bytes: usize, stream: CUstream) {
        copy_later(single_row(to, from, bytes), (false, false), stream)
    }
    fn cuMemcpyWithAttributesAsync [cuMemcpyWithAttributesAsync_ptsz stream] (to: u64, from: u64, bytes: usize, _attributes: *const c_void,
        stream: CUstream) {
        copy_later(single_row(to, from, bytes), (false, false), stream)
    }
    fn cuMemcpyHtoD_v2 [cuMemcpyHtoD_v2_ptds] (to: u64, from: *const c_void, bytes: usize) {
        copy_now(single_row(to, host_address(from), bytes), (true, false))
    }
    fn cuMemcpyDtoH_v2 [cuMemcpyDtoH_v2_ptds] (to: *mut c_void, from: u64, bytes: usize) {
        copy_now(single_row(host_address(to), from, bytes), (false, true))
    }
    fn cuMemcpyDtoD_v2 [cuMemcpyDtoD_v2_ptds] (to: u64, from: u64, bytes: usize) { copy_now(single_row(to, from, bytes), (true, true)) }
    fn cuMemcpyHtoDAsync_v2 [cuMemcpyHtoDAsync_v2_ptsz stream] (to: u64, from: *const c_void, bytes: usize, stream: CUstream) {
        copy_later(single_row(to, host_address(from), bytes), (true, false), stream)
    }
    fn cuMemcpyDtoHAsync_v2 [cuMemcpyDtoHAsync_v2_ptsz stream] (to: *mut c_void, from: u64, bytes: usize, stream: CUstream) {
        copy_later(single_row(host_address(to), from, bytes), (false, true), stream)
    }
    fn cuMemcpyDtoDAsync_v2 [cuMemcpyDtoDAsync_v2_ptsz stream] (to: u64, from: u64, bytes: usize, stream: CUstream) {
        copy_later(single_row(to, from, bytes), (true, true), stream)
    }
    fn cuMemcpyPeer [cuMemcpyPeer_ptds] (to: u64, _to_context: CUcontext, from: u64, _from_context: CUcontext, bytes: usize) {
        copy_now(single_row(to, from, bytes), (true, true))
    }
    fn cuMemcpyPeerAsync [cuMemcpyPeerAsync_ptsz stream]
        (to: u64, _to_context: CUcontext, from: u64, _from_context: CUcontext, bytes: usize, stream: CUstream) {
        copy_later(single_row(to, from, bytes), (true, true), stream)
    }
    fn cuMemcpy2D_v2 [cuMemcpy2D_v2_ptds] (params: *const CUDA_MEMCPY2D) {
        let (rows, device) = rows_2d(params)?;
        copy_now(rows, device)
    }
    fn cuMemcpy2DUnaligned_v2 [cuMemcpy2DUnaligned_v2_ptds] (params: *const CUDA_MEMCPY2D) {
        let (rows, device) = rows_2d(params)?;
        copy_now(rows, device)
    }
    fn cuMemcpy2DAsync_v2 [cuMemcpy2DAsync_v2_ptsz stream] (params: *const CUDA_MEMCPY2D, stream: CUstream) {
        let (rows, device) = rows_2d(params)?;
        copy_later(rows, device, stream)
    }
    fn cuMemcpy3D_v2 [cuMemcpy3D_v2_ptds] (params: *const CUDA_MEMCPY3D) {
        let (rows, device) = rows_3d(&get(params)?)?;
        copy_now(rows, device)
    }
    fn cuMemcpy3DAsync_v2 [cuMemcpy3DAsync_v2_ptsz stream] (params: *const CUDA_MEMCPY3D, stream: CUstream) {
        let (rows, device) = rows_3d(&get(params)?)?;
        copy_later(rows, device, stream)
    }

    fn cuMemsetD8_v2 [cuMemsetD8_v2_ptds] (address: u64, value: u8, count: usize) { fill_now(address, u32::from(value), 1, count, 1, 0) }
    fn cuMemsetD16_v2 [cuMemsetD16_v2_ptds] (address: u64, value: u16, count: usize) { fill_now(address, u32::from(value), 2, count, 1, 0) }
    fn cuMemsetD32_v2 [cuMemsetD32_v2_ptds] (address: u64, value: u32, count: usize) { fill_now(address, value, 4, count, 1, 0) }
    fn cuMemsetD2D8_v2 [cuMemsetD2D8_v2_ptds] (address: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill_now(address, u32::from(value), 1, width, height, pitch)
    }
    fn cuMemsetD2D32_v2 [cuMemsetD2D32_v2_ptds] (address: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill_now(address, value, 4, width, height, pitch)
    }
    fn cuMemsetD8Async [cuMemsetD8Async_ptsz stream] (address: u64, value: u8, count: usize, stream: CUstream) {
        fill_later(address, u32::from(value), 1, count, 1, 0, stream)
    }
    fn cuMemsetD16Async [cuMemsetD16Async_ptsz stream] (address: u64, value: u16, count: usize, stream: CUstream) {
        fill_later(address, u32::from(value), 2, count, 1, 0, stream)
    }
    fn cuMemsetD32Async [cuMemsetD32Async_ptsz stream] (address: u64, value: u32, count: usize, stream: CUstream) {
        fill_later(address, value, 4, count, 1, 0, stream)
    }
    fn cuMemsetD2D8Async [cuMemsetD2D8Async_ptsz stream]
        (address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) {
        fill_later(address, u32::from(value), 1, width, height, pitch, stream)
    }

    fn cuMemPrefetchAsync [cuMemPrefetchAsync_ptsz stream] (address: u64, _bytes: usize, device: i32, stream: CUstream) {
        if device >= 0 { migrate_to_gpu(address)?; }
        submit(stream, Work::Marker)
    }
    fn cuMemPrefetchAsync_v2 [cuMemPrefetchAsync_v2_ptsz stream]
        (address: u64, _bytes: usize, location: cudarc::driver::sys::CUmemLocation, _flags: u32, stream: CUstream) {
        if location.type_ as u32 == 1 { migrate_to_gpu(address)?; }
        submit(stream, Work::Marker)
    }
    fn cuMemAdvise(address: u64, _bytes: usize, advice: u32, device: i32) { advise_managed(address, advice, device < 0) }
    fn cuMemAdvise_v2(address: u64, _bytes: usize, advice: u32, location: cudarc::driver::sys::CUmemLocation) {
        advise_managed(address, advice, location.type_ as u32 != 1)
    }
}

//! Copies and fills.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUcontext, CUmemorytype, CUstream};

use crate::driver::{World, world};
use crate::ffi::{Answer, INVALID_VALUE, get};
use crate::graph::capture;
use crate::memory::{Kind, advise_managed, move_managed, touch_managed};
use crate::stream::work::{Row, Work};
use crate::stream::{resolve, submit, submit_and_wait};

const DEFAULT: CUstream = std::ptr::null_mut();

/// What an address is for a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Device,
    Pinned,
    Pageable,
}

fn side(world: &World, address: u64, bytes: usize) -> Answer<Side> {
    let Some((start, allocation)) = world.memory.around(address) else { return Ok(Side::Pageable) };
    if address + bytes as u64 > start + allocation.size {
        return Err(INVALID_VALUE);
    }
    Ok(if matches!(allocation.kind, Kind::Host { .. }) { Side::Pinned } else { Side::Device })
}

/// A copy of rows of equal shape; which sides must be the GPU's is said by `device` (to, from).
fn copy(rows: Vec<Row>, device: (bool, bool)) -> Answer<(Work, bool)> {
    let world = world()?;
    let (mut by_gpu, mut pageable) = (true, false);
    for row in &rows {
        if row.to == 0 || row.from == 0 {
            return Err(INVALID_VALUE);
        }
        let sides = (side(&world, row.to, row.bytes)?, side(&world, row.from, row.bytes)?);
        if device.0 && sides.0 == Side::Pageable || device.1 && sides.1 == Side::Pageable {
            return Err(INVALID_VALUE);
        }
        by_gpu &= sides == (Side::Device, Side::Device);
        pageable |= sides.0 == Side::Pageable || sides.1 == Side::Pageable;
    }
    drop(world);
    rows.first().map_or(Ok(()), |row| touch_managed(row.to))?;
    Ok((Work::Copy { rows: rows.into(), by_gpu }, pageable))
}

fn now(rows: Vec<Row>, device: (bool, bool)) -> Answer {
    world()?.current()?;
    if rows.iter().all(|row| row.bytes == 0) {
        return Ok(());
    }
    submit_and_wait(DEFAULT, copy(rows, device)?.0)
}

/// The host's pageable memory may change or vanish once the call has returned, so such copies are waited for.
fn later(rows: Vec<Row>, device: (bool, bool), stream: CUstream) -> Answer {
    let key = resolve(stream)?;
    if rows.iter().all(|row| row.bytes == 0) {
        return Ok(());
    }
    let (work, pageable) = copy(rows, device)?;
    if pageable && !capture::is_capturing(key)? { submit_and_wait(stream, work) } else { submit(stream, work) }
}

fn one(to: u64, from: u64, bytes: usize) -> Vec<Row> {
    vec![Row { to, from, bytes }]
}

/// A fill of `height` rows of `width` elements.
pub fn set_rows(address: u64, value: u32, element: usize, width: usize, height: usize, pitch: usize) -> Answer<Work> {
    let row_bytes = width.checked_mul(element).ok_or(INVALID_VALUE)?;
    if !address.is_multiple_of(element.max(1) as u64) || ![1, 2, 4].contains(&element) {
        return Err(INVALID_VALUE);
    }
    let rows = (0..height).map(|row| Row { to: address + (row * pitch) as u64, from: 0, bytes: row_bytes }).collect::<Vec<_>>();
    let world = world()?;
    for row in rows.iter().filter(|row| row.bytes > 0) {
        if side(&world, row.to, row.bytes)? == Side::Pageable {
            return Err(INVALID_VALUE);
        }
    }
    drop(world);
    touch_managed(address)?;
    Ok(Work::Fill { rows: Arc::from(rows), pattern: value.to_le_bytes(), width: element })
}

fn set_now(address: u64, value: u32, element: usize, width: usize, height: usize, pitch: usize) -> Answer {
    world()?.current()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    submit_and_wait(DEFAULT, set_rows(address, value, element, width, height, pitch)?)
}

fn set_later(address: u64, value: u32, element: usize, width: usize, height: usize, pitch: usize, stream: CUstream) -> Answer {
    resolve(stream)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    submit(stream, set_rows(address, value, element, width, height, pitch)?)
}

/// One end of a copy of several dimensions.
struct End {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    offset: [usize; 3],
    pitch: usize,
    height: usize,
}

impl End {
    /// The address of a row.
    fn row(&self, world: &World, y: usize, z: usize) -> Answer<u64> {
        let (base, pitch, height) = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => (self.host, self.pitch, self.height),
            CUmemorytype::CU_MEMORYTYPE_ARRAY => {
                let array = world.memory.arrays.get(self.array)?;
                (array.address, array.row as usize, array.rows as usize)
            }
            _ => (self.device, self.pitch, self.height),
        };
        let rows = (self.offset[2] + z) * height.max(1) + self.offset[1] + y;
        Ok(base + (rows * pitch + self.offset[0]) as u64)
    }
}

fn rows_between(to: &End, from: &End, extent: [usize; 3]) -> Answer<(Vec<Row>, (bool, bool))> {
    let world = world()?;
    let mut rows = Vec::new();
    for z in 0..extent[2] {
        for y in 0..extent[1] {
            rows.push(Row { to: to.row(&world, y, z)?, from: from.row(&world, y, z)?, bytes: extent[0] });
        }
    }
    let device = |end: &End| end.kind == CUmemorytype::CU_MEMORYTYPE_DEVICE;
    Ok((rows, (device(to), device(from))))
}

fn rows_2d(asked: *const CUDA_MEMCPY2D) -> Answer<(Vec<Row>, (bool, bool))> {
    let asked = get(asked)?;
    let to = End {
        kind: asked.dstMemoryType,
        host: asked.dstHost.expose_provenance() as u64,
        device: asked.dstDevice,
        array: asked.dstArray,
        offset: [asked.dstXInBytes, asked.dstY, 0],
        pitch: asked.dstPitch.max(asked.WidthInBytes),
        height: 1,
    };
    let from = End {
        kind: asked.srcMemoryType,
        host: asked.srcHost.expose_provenance() as u64,
        device: asked.srcDevice,
        array: asked.srcArray,
        offset: [asked.srcXInBytes, asked.srcY, 0],
        pitch: asked.srcPitch.max(asked.WidthInBytes),
        height: 1,
    };
    rows_between(&to, &from, [asked.WidthInBytes, asked.Height, 1])
}

fn rows_of_3d(asked: &CUDA_MEMCPY3D) -> Answer<(Vec<Row>, (bool, bool))> {
    let to = End {
        kind: asked.dstMemoryType,
        host: asked.dstHost.expose_provenance() as u64,
        device: asked.dstDevice,
        array: asked.dstArray,
        offset: [asked.dstXInBytes, asked.dstY, asked.dstZ],
        pitch: asked.dstPitch.max(asked.WidthInBytes),
        height: asked.dstHeight.max(asked.Height),
    };
    let from = End {
        kind: asked.srcMemoryType,
        host: asked.srcHost.expose_provenance() as u64,
        device: asked.srcDevice,
        array: asked.srcArray,
        offset: [asked.srcXInBytes, asked.srcY, asked.srcZ],
        pitch: asked.srcPitch.max(asked.WidthInBytes),
        height: asked.srcHeight.max(asked.Height),
    };
    rows_between(&to, &from, [asked.WidthInBytes, asked.Height, asked.Depth])
}

/// A three-dimensional copy as work for a graph.
pub fn rows_3d(asked: &CUDA_MEMCPY3D) -> Answer<Work> {
    let (rows, device) = rows_of_3d(asked)?;
    Ok(copy(rows, device)?.0)
}

fn host(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

api! {
    fn cuMemcpy [cuMemcpy_ptds] (to: u64, from: u64, bytes: usize) { now(one(to, from, bytes), (false, false)) }
    fn cuMemcpyAsync [cuMemcpyAsync_ptsz stream] (to: u64, from: u64, bytes: usize, stream: CUstream) {
        later(one(to, from, bytes), (false, false), stream)
    }
    fn cuMemcpyHtoD_v2 [cuMemcpyHtoD_v2_ptds] (to: u64, from: *const c_void, bytes: usize) { now(one(to, host(from), bytes), (true, false)) }
    fn cuMemcpyDtoH_v2 [cuMemcpyDtoH_v2_ptds] (to: *mut c_void, from: u64, bytes: usize) { now(one(host(to), from, bytes), (false, true)) }
    fn cuMemcpyDtoD_v2 [cuMemcpyDtoD_v2_ptds] (to: u64, from: u64, bytes: usize) { now(one(to, from, bytes), (true, true)) }
    fn cuMemcpyHtoDAsync_v2 [cuMemcpyHtoDAsync_v2_ptsz stream] (to: u64, from: *const c_void, bytes: usize, stream: CUstream) {
        later(one(to, host(from), bytes), (true, false), stream)
    }
    fn cuMemcpyDtoHAsync_v2 [cuMemcpyDtoHAsync_v2_ptsz stream] (to: *mut c_void, from: u64, bytes: usize, stream: CUstream) {
        later(one(host(to), from, bytes), (false, true), stream)
    }
    fn cuMemcpyDtoDAsync_v2 [cuMemcpyDtoDAsync_v2_ptsz stream] (to: u64, from: u64, bytes: usize, stream: CUstream) {
        later(one(to, from, bytes), (true, true), stream)
    }
    fn cuMemcpyPeer [cuMemcpyPeer_ptds] (to: u64, _to_context: CUcontext, from: u64, _from_context: CUcontext, bytes: usize) {
        now(one(to, from, bytes), (true, true))
    }
    fn cuMemcpyPeerAsync [cuMemcpyPeerAsync_ptsz stream]
        (to: u64, _to_context: CUcontext, from: u64, _from_context: CUcontext, bytes: usize, stream: CUstream) {
        later(one(to, from, bytes), (true, true), stream)
    }
    fn cuMemcpy2D_v2 [cuMemcpy2D_v2_ptds] (asked: *const CUDA_MEMCPY2D) {
        let (rows, device) = rows_2d(asked)?;
        now(rows, device)
    }
    fn cuMemcpy2DUnaligned_v2 [cuMemcpy2DUnaligned_v2_ptds] (asked: *const CUDA_MEMCPY2D) {
        let (rows, device) = rows_2d(asked)?;
        now(rows, device)
    }
    fn cuMemcpy2DAsync_v2 [cuMemcpy2DAsync_v2_ptsz stream] (asked: *const CUDA_MEMCPY2D, stream: CUstream) {
        let (rows, device) = rows_2d(asked)?;
        later(rows, device, stream)
    }
    fn cuMemcpy3D_v2 [cuMemcpy3D_v2_ptds] (asked: *const CUDA_MEMCPY3D) {
        let (rows, device) = rows_of_3d(&get(asked)?)?;
        now(rows, device)
    }
    fn cuMemcpy3DAsync_v2 [cuMemcpy3DAsync_v2_ptsz stream] (asked: *const CUDA_MEMCPY3D, stream: CUstream) {
        let (rows, device) = rows_of_3d(&get(asked)?)?;
        later(rows, device, stream)
    }

    fn cuMemsetD8_v2 [cuMemsetD8_v2_ptds] (address: u64, value: u8, count: usize) { set_now(address, u32::from(value), 1, count, 1, 0) }
    fn cuMemsetD16_v2 [cuMemsetD16_v2_ptds] (address: u64, value: u16, count: usize) { set_now(address, u32::from(value), 2, count, 1, 0) }
    fn cuMemsetD32_v2 [cuMemsetD32_v2_ptds] (address: u64, value: u32, count: usize) { set_now(address, value, 4, count, 1, 0) }
    fn cuMemsetD2D8_v2 [cuMemsetD2D8_v2_ptds] (address: u64, pitch: usize, value: u8, width: usize, height: usize) {
        set_now(address, u32::from(value), 1, width, height, pitch)
    }
    fn cuMemsetD2D32_v2 [cuMemsetD2D32_v2_ptds] (address: u64, pitch: usize, value: u32, width: usize, height: usize) {
        set_now(address, value, 4, width, height, pitch)
    }
    fn cuMemsetD8Async [cuMemsetD8Async_ptsz stream] (address: u64, value: u8, count: usize, stream: CUstream) {
        set_later(address, u32::from(value), 1, count, 1, 0, stream)
    }
    fn cuMemsetD16Async [cuMemsetD16Async_ptsz stream] (address: u64, value: u16, count: usize, stream: CUstream) {
        set_later(address, u32::from(value), 2, count, 1, 0, stream)
    }
    fn cuMemsetD32Async [cuMemsetD32Async_ptsz stream] (address: u64, value: u32, count: usize, stream: CUstream) {
        set_later(address, value, 4, count, 1, 0, stream)
    }
    fn cuMemsetD2D8Async [cuMemsetD2D8Async_ptsz stream]
        (address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) {
        set_later(address, u32::from(value), 1, width, height, pitch, stream)
    }

    fn cuMemPrefetchAsync [cuMemPrefetchAsync_ptsz stream] (address: u64, _bytes: usize, device: i32, stream: CUstream) {
        if device >= 0 { move_managed(address)?; }
        submit(stream, Work::Marker)
    }
    fn cuMemPrefetchAsync_v2 [cuMemPrefetchAsync_v2_ptsz stream]
        (address: u64, _bytes: usize, location: cudarc::driver::sys::CUmemLocation, _flags: u32, stream: CUstream) {
        if location.type_ as u32 == 1 { move_managed(address)?; }
        submit(stream, Work::Marker)
    }
    fn cuMemAdvise(address: u64, _bytes: usize, advice: u32, device: i32) { advise_managed(address, advice, device < 0) }
    fn cuMemAdvise_v2(address: u64, _bytes: usize, advice: u32, location: cudarc::driver::sys::CUmemLocation) {
        advise_managed(address, advice, location.type_ as u32 != 1)
    }
}

//! CUDA arrays. Their layout is padded, so they take more memory than their elements.

use cudarc::driver::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUarrayMapInfo, CUmemOperationType,
    CUmipmappedArray, CUstream,
};

use crate::driver::{State, driver, state};
use crate::ffi::{CudaResult, INVALID_HANDLE, INVALID_VALUE, get, put};
use crate::handles::as_pointer;
use crate::objects::{Array, Kind};
use crate::stream::resolve::resolve;

/// `CUDA_ARRAY3D_LAYERED` or `CUDA_ARRAY3D_CUBEMAP`
const LAYERS: u32 = 0x01 | 0x04;
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;
/// Granularity of the reported memory requirements, in bytes. The memory taken is not rounded to it.
const PAGE: usize = 65536;

/// Rounds rows or slices up to whole blocks. The block size is the next power of two of `count`, within `least` and `most`.
fn round_to_blocks(count: u64, least: u64, most: u64) -> u64 {
    count.next_multiple_of(count.next_power_of_two().clamp(least, most))
}

/// Returns the padded size of one mipmap level: bytes per row, rows per slice, bytes in total.
fn padded_size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> CudaResult<(u64, u64, u64)> {
    let is_layered = descriptor.Flags & LAYERS != 0;
    let side = |side: usize| (side >> level).max(1) as u64;
    let element = match descriptor.Format as u32 {
        1 | 8 => 1,
        2 | 9 | 0x10 => 2,
        _ => 4_u64,
    };
    if descriptor.Width == 0 || ![1, 2, 4].contains(&descriptor.NumChannels) {
        return Err(INVALID_VALUE);
    }
    let row = (side(descriptor.Width) * element * u64::from(descriptor.NumChannels)).next_multiple_of(64);
    let (rows, depth) = if descriptor.Depth == 0 || is_layered {
        // Every level has all layers. Their layout was not measured on an H200.
        (round_to_blocks(side(descriptor.Height), 8, 128), descriptor.Depth.max(1) as u64)
    } else {
        // Blocks of 8 rows and 16 slices fit the H200's figures as well.
        (round_to_blocks(side(descriptor.Height), 8, 16), round_to_blocks(side(descriptor.Depth), 1, 8))
    };
    let bytes = row.checked_mul(rows).and_then(|slice| slice.checked_mul(depth)).ok_or(INVALID_VALUE)?;
    Ok((row, rows, bytes))
}

impl State {
    fn create_array(&mut self, descriptor: CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> CudaResult<usize> {
        let driver = driver()?;
        let context = self.current()?;
        let sizes = (0..levels).map(|level| padded_size(&descriptor, level)).collect::<CudaResult<Vec<_>>>()?;
        let bytes = sizes.iter().map(|size| size.2).sum();
        let address = if descriptor.Flags & (SPARSE | DEFERRED) != 0 {
            0
        } else {
            let address = self.allocate(driver, context, bytes)?;
            self.memory.retype(address, |kind| Kind::Global(Box::new(kind)));
            address
        };
        let (row_bytes, rows_per_slice, _) = sizes[0];
        Ok(self.memory.arrays.add(Array {
            descriptor,
            address,
            row_bytes,
            rows_per_slice,
            bytes,
            context,
            levels: Vec::new(),
            tiles: Vec::new(),
        }))
    }

    fn destroy_array(&mut self, handle: usize) -> CudaResult {
        let driver = driver()?;
        let array = self.memory.arrays.remove(as_pointer::<()>(handle))?;
        for level in array.levels {
            let _ = self.memory.arrays.remove(as_pointer::<()>(level));
        }
        array.tiles.into_iter().try_for_each(|handle| self.drop_mapping(driver, handle))?;
        if array.address == 0 {
            return Ok(());
        }
        self.memory.retype(array.address, |kind| if let Kind::Global(inner) = kind { *inner } else { kind });
        self.free(driver, array.address)
    }

    /// Destroys all arrays of a context.
    pub fn destroy_arrays_of(&mut self, context: usize) {
        let arrays = self.memory.arrays.iter().filter(|(_, array)| array.context == context).map(|(handle, _)| handle);
        for handle in arrays.collect::<Vec<_>>() {
            let _ = self.destroy_array(handle);
        }
    }
}

fn as_3d(descriptor: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: descriptor.Width,
        Height: descriptor.Height,
        Depth: 0,
        Format: descriptor.Format,
        NumChannels: descriptor.NumChannels,
        Flags: 0,
    }
}

fn require_out<T>(out: *mut T) -> CudaResult {
    if out.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
}

fn requirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, handle: usize) -> CudaResult {
    let state = state()?;
    let array = state.memory.arrays.find(handle).ok_or(INVALID_HANDLE)?;
    if array.address != 0 || array.descriptor.Flags & SPARSE != 0 {
        return Err(INVALID_VALUE);
    }
    put(out, CUDA_ARRAY_MEMORY_REQUIREMENTS { size: (array.bytes as usize).next_multiple_of(PAGE), alignment: PAGE, reserved: [0; 4] })
}

/// Maps physical memory into sparse arrays. Unmap operations are ignored: the array keeps the memory until it is destroyed.
fn map_tiles(list: *const CUarrayMapInfo, count: u32) -> CudaResult {
    for info in crate::ffi::read_slice(list, count as usize)? {
        if info.memOperationType != CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP {
            continue;
        }
        let mut state = state()?;
        // SAFETY: by CUDA's contract a map operation sets these union members.
        let (handle, array) = unsafe { (info.memHandle.memHandle, info.resource.array) };
        if state.memory.arrays.get(array)?.descriptor.Flags & SPARSE == 0 {
            return Err(INVALID_VALUE);
        }
        state.add_mapping(handle)?;
        state.memory.arrays.get_mut(array)?.tiles.push(handle as usize);
    }
    Ok(())
}

api! {
    fn cuMemMapArrayAsync [cuMemMapArrayAsync_ptsz stream] (list: *mut CUarrayMapInfo, count: u32, stream: CUstream) {
        resolve(stream)?;
        map_tiles(list, count)
    }

    fn cuArrayCreate_v2(out: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) {
        require_out(out)?;
        let array = state()?.create_array(as_3d(&get(descriptor)?), 1)?;
        put(out, as_pointer(array))
    }

    fn cuArray3DCreate_v2(out: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) {
        require_out(out)?;
        let array = state()?.create_array(get(descriptor)?, 1)?;
        put(out, as_pointer(array))
    }

    fn cuArrayDestroy(array: CUarray) { state()?.destroy_array(array.addr()) }

    fn cuArrayGetDescriptor_v2(out: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        let descriptor = state()?.memory.arrays.get(array)?.descriptor;
        put(out, CUDA_ARRAY_DESCRIPTOR {
            Width: descriptor.Width,
            Height: descriptor.Height,
            Format: descriptor.Format,
            NumChannels: descriptor.NumChannels,
        })
    }

    fn cuArray3DGetDescriptor_v2(out: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        put(out, state()?.memory.arrays.get(array)?.descriptor)
    }

    fn cuArrayGetMemoryRequirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, _device: i32) {
        requirements(out, array.addr())
    }

    fn cuMipmappedArrayCreate(out: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32) {
        let descriptor = get(descriptor)?;
        let depth = if descriptor.Flags & LAYERS == 0 { descriptor.Depth } else { 1 };
        let most = descriptor.Width.max(descriptor.Height).max(depth).max(1).ilog2() + 1;
        require_out(out)?;
        let array = state()?.create_array(descriptor, levels.clamp(1, most))?;
        put(out, as_pointer(array))
    }

    fn cuMipmappedArrayGetLevel(out: *mut CUarray, array: CUmipmappedArray, level: u32) {
        let mut state = state()?;
        let found = state.memory.arrays.get(array)?;
        let mut descriptor = found.descriptor;
        let (row_bytes, rows_per_slice, bytes) = padded_size(&descriptor, level)?;
        let before = (0..level).filter_map(|level| padded_size(&descriptor, level).ok()).map(|size| size.2).sum::<u64>();
        let (address, context) = (found.address + before, found.context);
        (descriptor.Width, descriptor.Height) = ((descriptor.Width >> level).max(1), descriptor.Height >> level);
        let view = Array { descriptor, address, row_bytes, rows_per_slice, bytes, context, levels: Vec::new(), tiles: Vec::new() };
        let view = state.memory.arrays.add(view);
        state.memory.arrays.get_mut(array)?.levels.push(view);
        put(out, as_pointer(view))
    }

    fn cuMipmappedArrayGetMemoryRequirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUmipmappedArray, _device: i32) {
        requirements(out, array.addr())
    }

    fn cuMipmappedArrayDestroy(array: CUmipmappedArray) { state()?.destroy_array(array.addr()) }
}

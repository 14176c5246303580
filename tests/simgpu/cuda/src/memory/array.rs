//! CUDA arrays. Their layout is padded, so they cost more than their elements.

use cudarc::driver::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUarrayMapInfo, CUmemOperationType,
    CUmipmappedArray, CUstream,
};

use super::Kind;
use crate::driver::{World, driver, world};
use crate::ffi::{Answer, INVALID_HANDLE, INVALID_VALUE, get, put};
use crate::handles::as_pointer;

/// `CUDA_ARRAY3D_LAYERED` or `CUDA_ARRAY3D_CUBEMAP`
const LAYERS: u32 = 0x01 | 0x04;
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;
/// What arrays ask for comes in these, in bytes; what they take does not.
const PAGE: usize = 65536;

/// An array, or a pyramid of them.
pub struct Array {
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    /// Zero when it has no memory of its own.
    pub address: u64,
    /// Bytes from row to row, and rows from slice to slice.
    pub row: u64,
    pub rows: u64,
    bytes: u64,
    context: usize,
    levels: Vec<usize>,
    /// Physical memory mapped into it, by handle.
    tiles: Vec<usize>,
}

/// Rows or slices in whole blocks: of so many at least and so many at most, and no larger than what there is.
fn in_blocks(count: u64, least: u64, most: u64) -> u64 {
    count.next_multiple_of(count.next_power_of_two().clamp(least, most))
}

/// Padded size of one level: bytes of a row, rows of a slice, bytes of all.
fn padded(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> Answer<(u64, u64, u64)> {
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
        // Every level has all layers. No H200 was asked how they lie.
        (in_blocks(side(descriptor.Height), 8, 128), descriptor.Depth.max(1) as u64)
    } else {
        // Or blocks of 8 rows and 16 slices: what an H200 was asked does not tell.
        (in_blocks(side(descriptor.Height), 8, 16), in_blocks(side(descriptor.Depth), 1, 8))
    };
    let bytes = row.checked_mul(rows).and_then(|slice| slice.checked_mul(depth)).ok_or(INVALID_VALUE)?;
    Ok((row, rows, bytes))
}

impl World {
    fn make_array(&mut self, descriptor: CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Answer<usize> {
        let driver = driver()?;
        let context = self.current()?;
        let sizes = (0..levels).map(|level| padded(&descriptor, level)).collect::<Answer<Vec<_>>>()?;
        let bytes = sizes.iter().map(|size| size.2).sum();
        let address = if descriptor.Flags & (SPARSE | DEFERRED) != 0 {
            0
        } else {
            let address = self.allocate(driver, context, bytes)?;
            self.memory.retype(address, |kind| Kind::Global(Box::new(kind)));
            address
        };
        let (row, rows, _) = sizes[0];
        Ok(self.memory.arrays.add(Array { descriptor, address, row, rows, bytes, context, levels: Vec::new(), tiles: Vec::new() }))
    }

    fn end_array(&mut self, handle: usize) -> Answer {
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

    /// Destroys the arrays of a context.
    pub fn end_arrays_of(&mut self, context: usize) {
        let arrays = self.memory.arrays.iter().filter(|(_, array)| array.context == context).map(|(handle, _)| handle);
        for handle in arrays.collect::<Vec<_>>() {
            let _ = self.end_array(handle);
        }
    }
}

fn flat(descriptor: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: descriptor.Width,
        Height: descriptor.Height,
        Depth: 0,
        Format: descriptor.Format,
        NumChannels: descriptor.NumChannels,
        Flags: 0,
    }
}

fn room_for<T>(out: *mut T) -> Answer {
    if out.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
}

fn requirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, handle: usize) -> Answer {
    let world = world()?;
    let array = world.memory.arrays.find(handle).ok_or(INVALID_HANDLE)?;
    if array.address != 0 || array.descriptor.Flags & SPARSE != 0 {
        return Err(INVALID_VALUE);
    }
    put(out, CUDA_ARRAY_MEMORY_REQUIREMENTS { size: (array.bytes as usize).next_multiple_of(PAGE), alignment: PAGE, reserved: [0; 4] })
}

/// Maps physical memory into sparse arrays. What is unmapped stays with the array until that is destroyed.
fn map_tiles(list: *const CUarrayMapInfo, count: u32) -> Answer {
    for info in crate::ffi::array(list, count as usize)? {
        if info.memOperationType != CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP {
            continue;
        }
        let mut world = world()?;
        // SAFETY: the C caller promises the members that go with a mapping.
        let (handle, array) = unsafe { (info.memHandle.memHandle, info.resource.array) };
        if world.memory.arrays.get(array)?.descriptor.Flags & SPARSE == 0 {
            return Err(INVALID_VALUE);
        }
        world.add_mapping(handle)?;
        world.memory.arrays.get_mut(array)?.tiles.push(handle as usize);
    }
    Ok(())
}

api! {
    fn cuMemMapArrayAsync [cuMemMapArrayAsync_ptsz stream] (list: *mut CUarrayMapInfo, count: u32, stream: CUstream) {
        crate::stream::resolve(stream)?;
        map_tiles(list, count)
    }

    fn cuArrayCreate_v2(out: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) {
        room_for(out)?;
        let array = world()?.make_array(flat(&get(descriptor)?), 1)?;
        put(out, as_pointer(array))
    }

    fn cuArray3DCreate_v2(out: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) {
        room_for(out)?;
        let array = world()?.make_array(get(descriptor)?, 1)?;
        put(out, as_pointer(array))
    }

    fn cuArrayDestroy(array: CUarray) { world()?.end_array(array.addr()) }

    fn cuArrayGetDescriptor_v2(out: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        let descriptor = world()?.memory.arrays.get(array)?.descriptor;
        put(out, CUDA_ARRAY_DESCRIPTOR {
            Width: descriptor.Width,
            Height: descriptor.Height,
            Format: descriptor.Format,
            NumChannels: descriptor.NumChannels,
        })
    }

    fn cuArray3DGetDescriptor_v2(out: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        put(out, world()?.memory.arrays.get(array)?.descriptor)
    }

    fn cuArrayGetMemoryRequirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, _device: i32) {
        requirements(out, array.addr())
    }

    fn cuMipmappedArrayCreate(out: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32) {
        let descriptor = get(descriptor)?;
        let depth = if descriptor.Flags & LAYERS == 0 { descriptor.Depth } else { 1 };
        let most = descriptor.Width.max(descriptor.Height).max(depth).max(1).ilog2() + 1;
        room_for(out)?;
        let array = world()?.make_array(descriptor, levels.clamp(1, most))?;
        put(out, as_pointer(array))
    }

    fn cuMipmappedArrayGetLevel(out: *mut CUarray, array: CUmipmappedArray, level: u32) {
        let mut world = world()?;
        let found = world.memory.arrays.get(array)?;
        let mut descriptor = found.descriptor;
        let (row, rows, bytes) = padded(&descriptor, level)?;
        let before = (0..level).filter_map(|level| padded(&descriptor, level).ok()).map(|size| size.2).sum::<u64>();
        let (address, context) = (found.address + before, found.context);
        (descriptor.Width, descriptor.Height) = ((descriptor.Width >> level).max(1), descriptor.Height >> level);
        let view = world.memory.arrays.add(Array { descriptor, address, row, rows, bytes, context, levels: Vec::new(), tiles: Vec::new() });
        world.memory.arrays.get_mut(array)?.levels.push(view);
        put(out, as_pointer(view))
    }

    fn cuMipmappedArrayGetMemoryRequirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUmipmappedArray, _device: i32) {
        requirements(out, array.addr())
    }

    fn cuMipmappedArrayDestroy(array: CUmipmappedArray) { world()?.end_array(array.addr()) }
}

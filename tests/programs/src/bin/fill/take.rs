//! One allocation by each of the driver's ways.

use std::mem::zeroed;
use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::check;
use vgpu_test_programs::cuda::sys::{self, *};

/// Which way, and what it needs.
pub enum Taker {
    Linear,
    Pitch,
    Managed,
    Async(CUstream),
    Pool(CUmemoryPool, CUstream),
    Vmm(CUmemAllocationProp),
    Array,
    Array3d,
    Mipmap,
    Graph(CUstream, CUmemPoolProps),
    Host,
}

impl Taker {
    /// The way with this name on a GPU, whose context is current. `None` if there is no such way, or the driver refuses what it needs.
    pub fn new(api: &str, ordinal: i32) -> Option<Taker> {
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal };
        // SAFETY: all-zero is valid for these structs of numbers and null pointers.
        let (mut pool, mut physical) = unsafe { (zeroed::<CUmemPoolProps>(), zeroed::<CUmemAllocationProp>()) };
        pool.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        pool.location = location;
        physical.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        physical.location = location;
        Some(match api {
            "cuMemAlloc" => Taker::Linear,
            "pitch" => Taker::Pitch,
            "managed" => Taker::Managed,
            "async" => Taker::Async(stream()?),
            "frompool" => {
                let mut made = null_mut();
                // SAFETY: the properties and the room for the answer live through the call.
                check(unsafe { sys::cuMemPoolCreate(&raw mut made, &raw const pool) }).ok()?;
                Taker::Pool(made, stream()?)
            }
            "vmm" => Taker::Vmm(physical),
            "array" => Taker::Array,
            "array3d" => Taker::Array3d,
            "mipmap" => Taker::Mipmap,
            "graph" => Taker::Graph(stream()?, pool),
            "host" => Taker::Host,
            _ => return None,
        })
    }

    /// Takes one chunk, and keeps it until the process ends.
    pub fn take(&mut self, bytes: usize) -> Result<(), CUresult> {
        let (mut address, mut pitch) = (0, 0);
        // SAFETY: every call gets room for its answers and arguments that live through it.
        unsafe {
            match self {
                Taker::Linear => check(sys::cuMemAlloc_v2(&raw mut address, bytes)),
                Taker::Pitch => check(sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, bytes.min(4096), bytes.div_ceil(4096), 4)),
                Taker::Managed => {
                    check(sys::cuMemAllocManaged(&raw mut address, bytes, 1))?;
                    check(sys::cuMemsetD8_v2(address, 1, bytes))?;
                    check(sys::cuCtxSynchronize())
                }
                Taker::Async(stream) => {
                    check(sys::cuMemAllocAsync(&raw mut address, bytes, *stream))?;
                    check(sys::cuStreamSynchronize(*stream))
                }
                Taker::Pool(pool, stream) => {
                    check(sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, *pool, *stream))?;
                    check(sys::cuStreamSynchronize(*stream))
                }
                Taker::Vmm(properties) => map(properties, bytes),
                Taker::Array => {
                    let descriptor = CUDA_ARRAY_DESCRIPTOR {
                        Width: bytes.min(16384) / 4,
                        Height: bytes.div_ceil(16384),
                        Format: CUarray_format::CU_AD_FORMAT_FLOAT,
                        NumChannels: 1,
                    };
                    check(sys::cuArrayCreate_v2(&mut null_mut(), &raw const descriptor))
                }
                Taker::Array3d => check(sys::cuArray3DCreate_v2(&mut null_mut(), &cube(bytes))),
                Taker::Mipmap => {
                    let mut made = null_mut();
                    check(sys::cuMipmappedArrayCreate(&raw mut made, &square(bytes), 1))
                }
                Taker::Graph(stream, pool) => launch_graph(*stream, *pool, bytes),
                Taker::Host => {
                    let mut pointer = null_mut();
                    check(sys::cuMemHostAlloc(&raw mut pointer, bytes, 0))
                }
            }
        }
    }
}

fn stream() -> Option<CUstream> {
    let mut stream = null_mut();
    // SAFETY: room for the answer.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) }).ok()?;
    Some(stream)
}

fn cube(bytes: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
    let mut descriptor = square(bytes.div_ceil(16));
    descriptor.Depth = 16;
    descriptor
}

fn square(bytes: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: bytes.min(16384) / 4,
        Height: bytes.div_ceil(16384),
        Depth: 0,
        Format: CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: 0,
    }
}

fn map(properties: &CUmemAllocationProp, bytes: usize) -> Result<(), CUresult> {
    let (mut handle, mut address, mut granularity) = (0, 0, 0);
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: every call gets room for its answers and arguments that live through it.
    unsafe {
        check(sys::cuMemGetAllocationGranularity(&raw mut granularity, properties, minimum))?;
        let bytes = bytes.next_multiple_of(granularity);
        check(sys::cuMemCreate(&raw mut handle, bytes, properties, 0))?;
        check(sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0))?;
        check(sys::cuMemMap(address, bytes, 0, handle, 0))
    }
}

fn launch_graph(stream: CUstream, pool: CUmemPoolProps, bytes: usize) -> Result<(), CUresult> {
    let (mut graph, mut node, mut exec) = (null_mut(), null_mut(), null_mut());
    // SAFETY: all-zero is valid for this struct of numbers and null pointers.
    let mut parameters = unsafe { zeroed::<CUDA_MEM_ALLOC_NODE_PARAMS>() };
    parameters.poolProps = pool;
    parameters.bytesize = bytes;
    // SAFETY: every call gets room for its answers and arguments that live through it.
    unsafe {
        check(sys::cuGraphCreate(&raw mut graph, 0))?;
        check(sys::cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut parameters))?;
        check(sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
        check(sys::cuGraphLaunch(exec, stream))?;
        check(sys::cuStreamSynchronize(stream))
    }
}

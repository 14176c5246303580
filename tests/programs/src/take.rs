//! Every way in which a program takes device memory, one chunk at a time.

mod arrays;
mod contexts;
pub mod foreign;
mod graphs;
mod images;
mod limits;
mod linear;
mod ordered;
mod physical;

use crate::cuda::sys::{self, CUresult};
use crate::cuda::{check, name};

/// Takes a chunk of so many bytes and keeps it until the process ends. Gives how many bytes it was in the end: 0 where nobody says.
pub type Taker = Box<dyn FnMut(usize) -> Result<u64, CUresult>>;

/// One way.
pub struct Way {
    /// What it is called on the command line.
    pub name: &'static str,
    /// CUDA's calls.
    pub calls: &'static str,
    /// In which chunks it is tried, in bytes; 0 where it has no size.
    pub chunks: &'static [u64],
    /// Whether the driver gives it in pieces so small that all memory can be had by it alone.
    pub exact: bool,
    /// Prepares it on a GPU, whose context is current.
    pub prepare: fn(i32) -> Result<Taker, CUresult>,
    /// What makes the driver really take what was only promised, when nothing else can be had any more.
    pub finish: fn() -> Result<(), CUresult>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Even pieces; pieces just above 1 MiB, of which each takes 2 MiB; just above 2 MiB, of which each takes 4.
const LARGE: &[u64] = &[64 * MIB, MIB + 4 * KIB, 2 * MIB + 512];
/// And small ones, which share.
const ALL: &[u64] = &[64 * MIB, MIB + 4 * KIB, 2 * MIB + 512, 4 * KIB];
/// What is left for a kernel that calls `malloc`.
const BESIDE: &[u64] = &[144 * MIB, 150 * MIB, 256 * MIB];
const NO_SIZE: &[u64] = &[0];

fn nothing() -> Result<(), CUresult> {
    Ok(())
}

const fn exact(name: &'static str, calls: &'static str, chunks: &'static [u64], prepare: fn(i32) -> Result<Taker, CUresult>) -> Way {
    Way { name, calls, chunks, exact: true, prepare, finish: nothing }
}

const fn coarse(name: &'static str, calls: &'static str, chunks: &'static [u64], prepare: fn(i32) -> Result<Taker, CUresult>) -> Way {
    Way { name, calls, chunks, exact: false, prepare, finish: nothing }
}

/// All of them.
pub const WAYS: &[Way] = &[
    exact("cuMemAlloc", "cuMemAlloc", ALL, linear::plain),
    exact("pitch", "cuMemAllocPitch", ALL, linear::pitch),
    exact("managed", "cuMemAllocManaged, touched", ALL, linear::managed),
    exact("async", "cuMemAllocAsync", ALL, ordered::usual),
    exact("frompool", "cuMemAllocFromPoolAsync, own pool", ALL, ordered::own),
    exact("setpool", "cuDeviceSetMemPool, cuMemAllocAsync", LARGE, ordered::set),
    coarse("keeppool", "own pool that keeps what is freed: each chunk freed and taken again", LARGE, ordered::kept),
    coarse("beside", "cuMemAllocAsync, while another stream is captured", LARGE, ordered::beside),
    exact("vmm", "cuMemCreate, cuMemMap, cuMemRelease", LARGE, physical::mapped),
    exact("handles", "cuMemCreate", LARGE, physical::handles),
    exact("array", "cuArrayCreate", ALL, arrays::flat),
    exact("array3d", "cuArray3DCreate", ALL, arrays::deep),
    exact("mipmap", "cuMipmappedArrayCreate, one level", ALL, arrays::mipmap),
    coarse("mipmaps", "cuMipmappedArrayCreate, all levels", LARGE, arrays::mipmaps),
    exact("arrayholes", "cuMemAlloc, after 100 in 12800 small arrays were left", &[64 * MIB], arrays::after_holes),
    exact("sparse", "sparse cuArray3DCreate, cuMemCreate, cuMemMapArrayAsync", LARGE, arrays::sparse),
    coarse("graph", "cuGraphAddMemAllocNode, cuGraphLaunch", ALL, graphs::node),
    coarse("graphany", "cuGraphAddNode, cuGraphUpload", LARGE, graphs::any_node),
    coarse("capture", "captured cuMemAllocAsync, cuGraphLaunch", LARGE, graphs::captured),
    coarse("captureown", "captured cuMemAllocAsync_ptsz, cuGraphLaunch", LARGE, graphs::captured_own),
    coarse("child", "cuGraphAddMemAllocNode in a graph that is moved into another", LARGE, graphs::child),
    coarse("import", "cuMemImportFromShareableHandle, another process's", LARGE, foreign::physical),
    coarse("ipc", "cuIpcOpenMemHandle", LARGE, foreign::linear),
    coarse("importpool", "cuMemPoolImportFromShareableHandle, cuMemPoolImportPointer", LARGE, foreign::pool),
    coarse("external", "cuImportExternalMemory of an exported cuMemCreate", LARGE, foreign::external),
    coarse("kept", "cuMemCreate, exported and released, its descriptor open", &[64 * MIB], foreign::kept),
    coarse("closed", "cuMemCreate, exported and released, its descriptor closed", &[64 * MIB], foreign::closed),
    coarse("context1", "cuCtxCreate", NO_SIZE, contexts::v1),
    coarse("context", "cuCtxCreate_v2", NO_SIZE, contexts::v2),
    coarse("context3", "cuCtxCreate_v3", NO_SIZE, contexts::v3),
    coarse("context4", "cuCtxCreate_v4", NO_SIZE, contexts::v4),
    coarse("green", "cuGreenCtxCreate", NO_SIZE, contexts::green),
    coarse("streams", "cuStreamCreate", NO_SIZE, contexts::streams),
    coarse("module", "cuModuleLoadData, large arrays", LARGE, images::module),
    coarse("moduleex", "cuModuleLoadDataEx, large arrays", LARGE, images::module_ex),
    coarse("modulefile", "cuModuleLoad, large arrays", LARGE, images::module_file),
    coarse("cubin", "cuLinkCreate, cuModuleLoadData of a cubin with large arrays", LARGE, images::cubin),
    coarse("library", "cuLibraryLoadData, large arrays, cuLibraryGetModule", LARGE, images::library),
    coarse("vectors", "cuLibraryLoadData, large arrays in PTX written otherwise, cuLibraryGetModule", LARGE, images::vectors),
    coarse("lazy", "cuLibraryLoadData, large arrays, launch of its kernel", LARGE, images::lazy),
    coarse("libraryfile", "cuLibraryLoadFromFile, large arrays, cuLibraryGetModule", LARGE, images::library_file),
    Way { finish: limits::use_heap, ..coarse("heap", "cuCtxSetLimit, malloc heap", &[4096 * MIB, 64 * MIB], limits::heap) },
    coarse("heapused", "cuCtxSetLimit, malloc heap, and a kernel that uses it", &[4096 * MIB, 64 * MIB], limits::heap_at_once),
    // A piece more takes 2 MiB. Natively the launch would find nothing left.
    Way {
        finish: limits::use_heap,
        ..coarse("devicemalloc", "cuMemAlloc, and a launch of a kernel that calls malloc", &[MIB + 4 * KIB], limits::heap_unset)
    },
    // What is left is enough for the code, but not for the heap; hardly for both; and for both.
    coarse("mallocmodule", "cuModuleLoadData, launch of its kernel that calls malloc", BESIDE, limits::malloc_module),
    coarse("malloclibrary", "cuLibraryLoadData, launch of its kernel that calls malloc", BESIDE, limits::malloc_library),
    Way { finish: limits::use_fifo, ..coarse("fifo", "cuCtxSetLimit, printf buffer", &[64 * MIB], limits::fifo) },
    // 64 KiB for each thread of an H200.
    coarse("stack", "cuCtxSetLimit, stack", &[16896 * MIB, 64 * MIB], limits::stack),
    coarse("local", "launches of kernels with more and more local memory", &[64 * MIB], limits::local),
    coarse("host", "cuMemHostAlloc", &[], linear::host),
];

/// The way with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Way> {
    WAYS.iter().find(|way| way.name == name)
}

/// Whether a code says that the driver or the GPU does not have this at all.
#[must_use]
pub fn is_missing(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_NOT_SUPPORTED
            | CUresult::CUDA_ERROR_INVALID_VALUE
            | CUresult::CUDA_ERROR_UNKNOWN
            | CUresult::CUDA_ERROR_NOT_PERMITTED
    ) || name(code).contains("JIT_COMPILER")
}

/// A stream that does not wait for the default one.
fn stream() -> Result<sys::CUstream, CUresult> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: room for the answer.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
    Ok(stream)
}

/// Memory of a GPU, as allocations name it.
fn location(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// A pool's properties.
#[must_use]
pub fn pool_properties(ordinal: i32) -> sys::CUmemPoolProps {
    // SAFETY: all-zero is valid for this struct of numbers and null pointers.
    let mut properties = unsafe { std::mem::zeroed::<sys::CUmemPoolProps>() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

/// Physical memory's properties.
#[must_use]
pub fn physical_properties(ordinal: i32) -> sys::CUmemAllocationProp {
    // SAFETY: all-zero is valid for this struct of numbers and null pointers.
    let mut properties = unsafe { std::mem::zeroed::<sys::CUmemAllocationProp>() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

/// `bytes` in whole pieces of physical memory.
///
/// # Errors
/// What the driver says.
pub fn granular(bytes: usize, properties: &sys::CUmemAllocationProp) -> Result<usize, CUresult> {
    let mut granularity = 0;
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the properties and the room for the answer live through the call.
    check(unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, properties, minimum) })?;
    Ok(bytes.next_multiple_of(granularity.max(1)))
}

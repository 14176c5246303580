//! Every way to allocate device memory, one chunk at a time.

mod arrays;
mod common;
mod contexts;
pub mod foreign;
mod graphs;
mod images;
mod limits;
mod linear;
mod ordered;
mod physical;

pub use common::{Allocate, granular, physical_properties, pool_properties};

use crate::cuda::name;
use crate::cuda::sys::CUresult;

/// One way to allocate device memory.
pub struct Method {
    /// Its name on the command line.
    pub name: &'static str,
    /// The CUDA calls it makes.
    pub calls: &'static str,
    /// The chunk sizes to try, in bytes; 0 for methods without a size.
    pub chunks: &'static [u64],
    /// Whether the driver allocates in pieces so small that this method alone can use up all memory.
    pub exact: bool,
    /// Prepares the method on a GPU, whose context is current.
    pub prepare: fn(i32) -> Result<Allocate, CUresult>,
    /// Makes the driver commit memory that was only promised; called when no more can be allocated.
    pub finish: fn() -> Result<(), CUresult>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Even chunks; chunks just above 1 MiB, which take 2 MiB each; chunks just above 2 MiB, which take 4 MiB each.
const LARGE: &[u64] = &[64 * MIB, MIB + 4 * KIB, 2 * MIB + 512];
/// The sizes of `LARGE` and a small one, which shares granules.
const ALL: &[u64] = &[64 * MIB, MIB + 4 * KIB, 2 * MIB + 512, 4 * KIB];
/// Bytes left for a kernel that calls `malloc`.
const NEAR_LIMIT: &[u64] = &[144 * MIB, 150 * MIB, 256 * MIB];
const NO_SIZE: &[u64] = &[0];

fn do_nothing() -> Result<(), CUresult> {
    Ok(())
}

const fn exact(name: &'static str, calls: &'static str, chunks: &'static [u64], prepare: fn(i32) -> Result<Allocate, CUresult>) -> Method {
    Method { name, calls, chunks, exact: true, prepare, finish: do_nothing }
}

const fn coarse(name: &'static str, calls: &'static str, chunks: &'static [u64], prepare: fn(i32) -> Result<Allocate, CUresult>) -> Method {
    Method { name, calls, chunks, exact: false, prepare, finish: do_nothing }
}

/// All methods.
pub const METHODS: &[Method] = &[
    exact("cuMemAlloc", "cuMemAlloc", ALL, linear::plain),
    exact("pitch", "cuMemAllocPitch", ALL, linear::pitch),
    exact("managed", "cuMemAllocManaged, touched", ALL, linear::managed),
    exact("async", "cuMemAllocAsync", ALL, ordered::default_pool),
    exact("frompool", "cuMemAllocFromPoolAsync, own pool", ALL, ordered::own_pool),
    exact("setpool", "cuDeviceSetMemPool, cuMemAllocAsync", LARGE, ordered::set_pool),
    coarse("keeppool", "own pool that keeps what is freed: each chunk freed and taken again", LARGE, ordered::retained),
    coarse("duringcapture", "cuMemAllocAsync, while another stream is captured", LARGE, ordered::during_capture),
    exact("vmm", "cuMemCreate, cuMemMap, cuMemRelease", LARGE, physical::mapped),
    coarse("expandable", "cuMemCreate, cuMemMap, cuMemSetAccess", LARGE, physical::expandable),
    exact("handles", "cuMemCreate", LARGE, physical::unmapped),
    exact("array", "cuArrayCreate", ALL, arrays::two_dimensional),
    exact("array3d", "cuArray3DCreate", ALL, arrays::three_dimensional),
    exact("mipmap", "cuMipmappedArrayCreate, one level", ALL, arrays::one_level),
    coarse("mipmaps", "cuMipmappedArrayCreate, all levels", LARGE, arrays::all_levels),
    exact("arrayholes", "cuMemAlloc, after 100 in 12800 small arrays were left", &[64 * MIB], arrays::fragmented),
    exact("sparse", "sparse cuArray3DCreate, cuMemCreate, cuMemMapArrayAsync", LARGE, arrays::sparse),
    coarse("graph", "cuGraphAddMemAllocNode, cuGraphLaunch", ALL, graphs::alloc_node),
    coarse("graphany", "cuGraphAddNode, cuGraphUpload", LARGE, graphs::any_node),
    coarse("capture", "captured cuMemAllocAsync, cuGraphLaunch", LARGE, graphs::captured),
    coarse("captureown", "captured cuMemAllocAsync_ptsz, cuGraphLaunch", LARGE, graphs::captured_per_thread),
    coarse("child", "cuGraphAddMemAllocNode in a graph that is moved into another", LARGE, graphs::child_graph),
    coarse("import", "cuMemImportFromShareableHandle, another process's", LARGE, foreign::import_physical),
    coarse("ipc", "cuIpcOpenMemHandle", LARGE, foreign::open_ipc),
    coarse("importpool", "cuMemPoolImportFromShareableHandle, cuMemPoolImportPointer", LARGE, foreign::import_pool),
    coarse("external", "cuImportExternalMemory of an exported cuMemCreate", LARGE, foreign::import_external),
    coarse("kept", "cuMemCreate, exported and released, its descriptor open", &[64 * MIB], foreign::descriptor_open),
    coarse("closed", "cuMemCreate, exported and released, its descriptor closed", &[64 * MIB], foreign::descriptor_closed),
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
    coarse("vectors", "cuLibraryLoadData, large arrays in PTX written otherwise, cuLibraryGetModule", LARGE, images::library_vectors),
    coarse("lazy", "cuLibraryLoadData, large arrays, launch of its kernel", LARGE, images::library_lazy),
    coarse("libraryfile", "cuLibraryLoadFromFile, large arrays, cuLibraryGetModule", LARGE, images::library_file),
    Method { finish: limits::use_heap, ..coarse("heap", "cuCtxSetLimit, malloc heap", &[4096 * MIB, 64 * MIB], limits::heap) },
    coarse("heapused", "cuCtxSetLimit, malloc heap, and a kernel that uses it", &[4096 * MIB, 64 * MIB], limits::heap_used),
    // One more chunk takes 2 MiB. Without a limit the launch would find no memory left.
    Method {
        finish: limits::use_heap,
        ..coarse("devicemalloc", "cuMemAlloc, and a launch of a kernel that calls malloc", &[MIB + 4 * KIB], limits::default_heap)
    },
    // The remaining memory is enough for the code only; for code and heap, just; for both with room to spare.
    coarse("mallocmodule", "cuModuleLoadData, launch of its kernel that calls malloc", NEAR_LIMIT, limits::malloc_module),
    coarse("malloclibrary", "cuLibraryLoadData, launch of its kernel that calls malloc", NEAR_LIMIT, limits::malloc_library),
    Method { finish: limits::use_printf_buffer, ..coarse("fifo", "cuCtxSetLimit, printf buffer", &[64 * MIB], limits::printf_buffer) },
    // 64 KiB for each thread of an H200.
    coarse("stack", "cuCtxSetLimit, stack", &[16896 * MIB, 64 * MIB], limits::stack),
    coarse("local", "launches of kernels with more and more local memory", &[64 * MIB], limits::local_memory),
    coarse("host", "cuMemHostAlloc", &[], linear::host),
];

/// Returns the method with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

/// Returns whether a code says that the driver or the GPU does not support the method at all.
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

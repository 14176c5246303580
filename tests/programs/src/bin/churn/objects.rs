//! The objects that a process can create, how it creates them, and how it releases them.

use std::ptr::{null, null_mut};

use vgpu_test_programs::crash_report::doing;
use vgpu_test_programs::cuda::sys::{self, *};
use vgpu_test_programs::cuda::{check, has, symbol, synchronize};
use vgpu_test_programs::methods::{granular, physical_properties, pool_properties};
use vgpu_test_programs::random::Random;

/// Signature of `cuCtxCreate_v2`.
type CreateContext = unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> CUresult;

/// The failed call and its code.
pub type Refused = (&'static str, CUresult);

/// An object that takes device memory.
#[derive(Debug)]
pub enum Object {
    Linear(u64),
    Managed(u64),
    /// An allocation from a pool; null is the device's default pool.
    Ordered {
        address: u64,
        pool: CUmemoryPool,
    },
    Array(CUarray),
    Pyramid(CUmipmappedArray),
    Handle(u64),
    Mapping {
        address: u64,
        bytes: usize,
    },
    Pool(CUmemoryPool),
    /// A graph that was launched once, so that its allocation is live.
    Graph {
        graph: CUgraph,
        exec: CUgraphExec,
        address: u64,
    },
    Module(CUmodule),
    Library(CUlibrary),
    /// A context with allocations in it, which are released with it.
    Context(CUcontext),
    Stream(CUstream),
}

impl Object {
    const fn action(&self) -> &'static str {
        match self {
            Object::Linear(_) => "freeing linear",
            Object::Managed(_) => "freeing managed",
            Object::Ordered { .. } => "freeing ordered",
            Object::Array(_) => "freeing array",
            Object::Pyramid(_) => "freeing pyramid",
            Object::Handle(_) => "freeing handle",
            Object::Mapping { .. } => "freeing mapping",
            Object::Pool(_) => "freeing pool",
            Object::Graph { .. } => "freeing graph",
            Object::Module(_) => "freeing module",
            Object::Library(_) => "freeing library",
            Object::Context(_) => "freeing context",
            Object::Stream(_) => "freeing stream",
        }
    }
}

/// Names that `--without` accepts: kinds of objects; other steps; freeing by another API's call (`crossed`); and destroying pools with
/// live allocations and contexts with mipmapped arrays in them (`orphans`). CUDA allows the last, but driver 580 corrupts its own
/// memory by it and crashes soon after, natively.
pub const KINDS: &[&str] = &[
    "linear",
    "managed",
    "ordered",
    "array",
    "pyramid",
    "physical",
    "pool",
    "graph",
    "image",
    "context",
    "stream",
    "crossed",
    "orphans",
    "invalid-free",
    "query",
    "trim",
    "over-limit",
];

/// Creates objects on a GPU.
pub struct Maker {
    pub ordinal: i32,
    without: Vec<&'static str>,
    stream: CUstream,
    /// Pools to allocate from; null where there is none.
    pools: [CUmemoryPool; 4],
}

/// Returns the kind of object that a number below 100 selects.
const fn kind_of(number: u64) -> &'static str {
    match number {
        0..=39 => "linear",
        40..=44 => "managed",
        45..=59 => "ordered",
        60..=71 => "array",
        72..=83 => "physical",
        84..=86 => "pool",
        87..=89 => "graph",
        90..=94 => "image",
        95..=96 => "context",
        _ => "stream",
    }
}

fn result(what: &'static str, code: CUresult) -> Result<(), Refused> {
    check(code).map_err(|code| (what, code))
}

impl Maker {
    pub fn new(ordinal: i32, without: Vec<&'static str>) -> Result<Maker, CUresult> {
        let mut stream = null_mut();
        // SAFETY: the out-pointer is valid.
        check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
        Ok(Maker { ordinal, without, stream, pools: [null_mut(); 4] })
    }

    /// Returns whether a kind is enabled.
    pub fn has(&self, kind: &str) -> bool {
        !self.without.contains(&kind)
    }

    /// Creates an object; `None` if the kind is left out. `kind` is below 100.
    pub fn make(&mut self, kind: u64, random: &mut Random) -> Result<Option<Object>, Refused> {
        let kind = kind_of(kind);
        if !self.has(kind) {
            return Ok(None);
        }
        doing(kind);
        self.make_one(kind, random).map(Some)
    }

    fn make_one(&mut self, kind: &str, random: &mut Random) -> Result<Object, Refused> {
        // SAFETY: the out-pointers are valid and the arguments live through the calls.
        unsafe {
            match kind {
                "linear" => linear(random),
                "managed" => managed(random),
                "ordered" => self.ordered(random),
                "array" => array(random, self.has("pyramid")),
                "physical" => self.physical(random),
                "pool" => self.pool(random),
                "graph" => self.graph(random),
                "image" => image(random),
                "context" => self.context(random),
                _ => {
                    let mut stream = null_mut();
                    result("cuStreamCreate", sys::cuStreamCreate(&raw mut stream, random.below(2) as u32))?;
                    Ok(Object::Stream(stream))
                }
            }
        }
    }

    unsafe fn ordered(&self, random: &mut Random) -> Result<Object, Refused> {
        let (mut address, bytes) = (0, random.size(25) as usize);
        let pool = self.pools[random.below(4) as usize];
        // SAFETY: as the caller guarantees.
        unsafe {
            if pool.is_null() {
                result("cuMemAllocAsync", sys::cuMemAllocAsync(&raw mut address, bytes, self.stream))?;
            } else {
                result("cuMemAllocFromPoolAsync", sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, self.stream))?;
            }
        }
        Ok(Object::Ordered { address, pool })
    }

    unsafe fn physical(&self, random: &mut Random) -> Result<Object, Refused> {
        let (mut handle, mut address) = (0, 0);
        let properties = physical_properties(self.ordinal);
        // SAFETY: as the caller guarantees; the handle is released once for each time that it was returned.
        unsafe {
            let bytes = granular(random.size(25) as usize, &properties).map_err(|code| ("granularity", code))?;
            result("cuMemCreate", sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0))?;
            if random.below(3) == 0 {
                return Ok(Object::Handle(handle));
            }
            result("cuMemAddressReserve", sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0))?;
            result("cuMemMap", sys::cuMemMap(address, bytes, 0, handle, 0))?;
            if random.below(2) == 0 {
                let mut again = 0;
                result("cuMemRetain", sys::cuMemRetainAllocationHandle(&raw mut again, address as *mut _))?;
                result("cuMemRelease", sys::cuMemRelease(again))?;
            }
            result("cuMemRelease", sys::cuMemRelease(handle))?;
            Ok(Object::Mapping { address, bytes })
        }
    }

    unsafe fn pool(&mut self, random: &mut Random) -> Result<Object, Refused> {
        let (mut pool, mut threshold) = (null_mut(), if random.below(2) == 0 { u64::MAX } else { random.size(28) });
        // SAFETY: as the caller guarantees.
        unsafe {
            result("cuMemPoolCreate", sys::cuMemPoolCreate(&raw mut pool, &pool_properties(self.ordinal)))?;
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result("threshold", sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()))?;
        }
        self.pools[random.below(4) as usize] = pool;
        Ok(Object::Pool(pool))
    }

    unsafe fn graph(&self, random: &mut Random) -> Result<Object, Refused> {
        let (mut graph, mut node, mut exec) = (null_mut(), null_mut(), null_mut());
        // SAFETY: as the caller guarantees; all-zero is valid for this struct of numbers and null pointers.
        let address = unsafe {
            let mut parameters = std::mem::zeroed::<CUDA_MEM_ALLOC_NODE_PARAMS>();
            parameters.poolProps = pool_properties(self.ordinal);
            parameters.bytesize = random.size(24) as usize;
            result("cuGraphCreate", sys::cuGraphCreate(&raw mut graph, 0))?;
            result("cuGraphAddMemAllocNode", sys::cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut parameters))?;
            result("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
            let code = sys::cuGraphLaunch(exec, self.stream);
            if code != CUresult::CUDA_SUCCESS {
                check(sys::cuGraphExecDestroy(exec)).and(check(sys::cuGraphDestroy(graph))).map_err(|code| ("cuGraphDestroy", code))?;
            }
            result("cuGraphLaunch", code)?;
            parameters.dptr
        };
        Ok(Object::Graph { graph, exec, address })
    }

    /// Creates a context with a few allocations in it.
    unsafe fn context(&self, random: &mut Random) -> Result<Object, Refused> {
        let mut context = null_mut();
        // SAFETY: as the caller guarantees; the context was just pushed.
        unsafe {
            let code = if has(c"cuCtxCreate_v4") {
                sys::cuCtxCreate_v4(&raw mut context, null_mut(), 0, self.ordinal)
            } else {
                // Drivers before CUDA 12.5.
                symbol::<CreateContext>(c"cuCtxCreate_v2")(&raw mut context, 0, self.ordinal)
            };
            result("cuCtxCreate", code)?;
            for _ in 0..random.below(20) {
                match if random.below(2) == 0 { linear(random) } else { array(random, self.has("pyramid") && self.has("orphans")) } {
                    Ok(_) | Err((_, CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {}
                    Err(refused) => return Err(refused),
                }
            }
            result("cuCtxPopCurrent", sys::cuCtxPopCurrent_v2(&raw mut context))?;
        }
        Ok(Object::Context(context))
    }

    /// Releases an object, by a random one of the calls that can do so.
    pub fn release(&mut self, object: Object, random: &mut Random) -> Result<(), CUresult> {
        let (ordered, crossed) = (random.below(2) == 0, self.has("crossed"));
        doing(object.action());
        // SAFETY: each object is released once.
        unsafe {
            match object {
                Object::Linear(address) if ordered && crossed => check(sys::cuMemFreeAsync(address, self.stream)),
                Object::Ordered { address, .. } if ordered || !crossed => check(sys::cuMemFreeAsync(address, self.stream)),
                Object::Linear(address) | Object::Managed(address) => check(sys::cuMemFree_v2(address)),
                Object::Ordered { address, .. } => synchronize().and(check(sys::cuMemFree_v2(address))),
                Object::Array(array) => check(sys::cuArrayDestroy(array)),
                Object::Pyramid(array) => check(sys::cuMipmappedArrayDestroy(array)),
                Object::Handle(handle) => check(sys::cuMemRelease(handle)),
                Object::Mapping { address, bytes } => {
                    check(sys::cuMemUnmap(address, bytes)).and(check(sys::cuMemAddressFree(address, bytes)))
                }
                Object::Pool(pool) => {
                    if !self.has("orphans") {
                        synchronize()?;
                    }
                    self.pools.iter_mut().filter(|known| **known == pool).for_each(|known| *known = null_mut());
                    check(sys::cuMemPoolDestroy(pool))
                }
                Object::Graph { graph, exec, address } => {
                    // The allocation outlives the graph: it has to be freed like any other.
                    if ordered || !crossed {
                        check(sys::cuMemFreeAsync(address, self.stream)).and(synchronize())?;
                    } else {
                        synchronize().and(check(sys::cuMemFree_v2(address)))?;
                    }
                    check(sys::cuGraphExecDestroy(exec)).and(check(sys::cuGraphDestroy(graph)))
                }
                Object::Module(module) => check(sys::cuModuleUnload(module)),
                Object::Library(library) => check(sys::cuLibraryUnload(library)),
                Object::Context(context) => check(sys::cuCtxDestroy_v2(context)),
                Object::Stream(stream) => check(sys::cuStreamDestroy_v2(stream)),
            }
        }
    }

    /// Trims a pool or the graphs' memory, waits, or changes the stack limit.
    pub fn trim(&mut self, random: &mut Random) -> Result<(), Refused> {
        doing("trimming");
        let (mut default_pool, pool) = (null_mut(), self.pools[random.below(4) as usize]);
        // SAFETY: the out-pointers are valid, and so is the pool.
        unsafe {
            match random.below(5) {
                0 => result("cuDeviceGraphMemTrim", sys::cuDeviceGraphMemTrim(self.ordinal)),
                1 => result("cuCtxSynchronize", sys::cuCtxSynchronize()),
                2 => result("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream)),
                3 if !pool.is_null() => result("cuMemPoolTrimTo", sys::cuMemPoolTrimTo(pool, random.size(26) as usize)),
                3 => {
                    result("cuDeviceGetMemPool", sys::cuDeviceGetMemPool(&raw mut default_pool, self.ordinal))?;
                    result("cuMemPoolTrimTo", sys::cuMemPoolTrimTo(default_pool, 0))
                }
                _ => match sys::cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 1024 + 16 * random.below(32) as usize) {
                    CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(()),
                    code => result("cuCtxSetLimit", code),
                },
            }
        }
    }
}

unsafe fn linear(random: &mut Random) -> Result<Object, Refused> {
    let (mut address, mut pitch, bytes) = (0, 0, random.size(25) as usize);
    // SAFETY: the out-pointers are valid.
    unsafe {
        if random.below(8) == 0 {
            result("cuMemAllocPitch", sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, bytes.min(5000), bytes.div_ceil(5000), 4))?;
        } else {
            result("cuMemAlloc", sys::cuMemAlloc_v2(&raw mut address, bytes))?;
        }
    }
    Ok(Object::Linear(address))
}

unsafe fn managed(random: &mut Random) -> Result<Object, Refused> {
    let (mut address, bytes) = (0, random.size(24) as usize);
    // SAFETY: the out-pointer is valid; the fill stays within the allocation.
    unsafe {
        result("cuMemAllocManaged", sys::cuMemAllocManaged(&raw mut address, bytes, 1))?;
        result("cuMemsetD8", sys::cuMemsetD8_v2(address, 1, bytes))?;
    }
    Ok(Object::Managed(address))
}

unsafe fn array(random: &mut Random, with_mipmaps: bool) -> Result<Object, Refused> {
    let (mut array, mut pyramid) = (null_mut(), null_mut());
    let side = |random: &mut Random, bits| random.size(bits) as usize;
    let mut descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: side(random, 11),
        Height: side(random, 11),
        Depth: 0,
        Format: CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: [1, 2, 4][random.below(3) as usize],
        Flags: 0,
    };
    // SAFETY: the descriptor and the out-pointers are valid.
    unsafe {
        match random.below(3) {
            0 if with_mipmaps => {
                let levels = random.below(4) as u32 + 1;
                result("cuMipmappedArrayCreate", sys::cuMipmappedArrayCreate(&raw mut pyramid, &raw const descriptor, levels))?;
                return Ok(Object::Pyramid(pyramid));
            }
            1 => (descriptor.Width, descriptor.Height, descriptor.Depth) = (side(random, 7), side(random, 7), side(random, 6)),
            _ => {}
        }
        result("cuArray3DCreate", sys::cuArray3DCreate_v2(&raw mut array, &raw const descriptor))?;
    }
    Ok(Object::Array(array))
}

unsafe fn image(random: &mut Random) -> Result<Object, Refused> {
    let text = vgpu_test_programs::ptx::array(random.size(24) as usize);
    let (mut module, mut library) = (null_mut(), null_mut());
    // SAFETY: the text is NUL-terminated and the out-pointers are valid; there are no options.
    unsafe {
        if random.below(2) == 0 {
            result("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
            return Ok(Object::Module(module));
        }
        let (none, nothing) = (null_mut(), null_mut());
        result("cuLibraryLoadData", {
            sys::cuLibraryLoadData(&raw mut library, text.as_ptr().cast(), none, nothing, 0, null_mut(), null_mut(), 0)
        })?;
        match sys::cuLibraryGetModule(&raw mut module, library) {
            CUresult::CUDA_SUCCESS => Ok(Object::Library(library)),
            code => {
                result("cuLibraryUnload", sys::cuLibraryUnload(library))?;
                Err(("cuLibraryGetModule", code))
            }
        }
    }
}

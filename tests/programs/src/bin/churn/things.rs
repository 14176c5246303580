//! What a process can have, how it comes by it, and how it gives it back.

use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::sys::{self, *};
use vgpu_test_programs::cuda::{check, synchronize};
use vgpu_test_programs::last_words::doing;
use vgpu_test_programs::random::Random;
use vgpu_test_programs::take::{granular, physical_properties, pool_properties};

/// The call that was refused, and how.
pub type Refused = (&'static str, CUresult);

/// Something that takes memory.
#[derive(Debug)]
pub enum Thing {
    Linear(u64),
    Managed(u64),
    /// From a pool, or, where that is null, from the device's own.
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
    /// Launched once, so that its allocation lives.
    Graph {
        graph: CUgraph,
        exec: CUgraphExec,
        address: u64,
    },
    Module(CUmodule),
    Library(CUlibrary),
    /// With allocations in it, which go with it.
    Context(CUcontext),
    Stream(CUstream),
}

impl Thing {
    const fn given_back(&self) -> &'static str {
        match self {
            Thing::Linear(_) => "giving back linear",
            Thing::Managed(_) => "giving back managed",
            Thing::Ordered { .. } => "giving back ordered",
            Thing::Array(_) => "giving back array",
            Thing::Pyramid(_) => "giving back pyramid",
            Thing::Handle(_) => "giving back handle",
            Thing::Mapping { .. } => "giving back mapping",
            Thing::Pool(_) => "giving back pool",
            Thing::Graph { .. } => "giving back graph",
            Thing::Module(_) => "giving back module",
            Thing::Library(_) => "giving back library",
            Thing::Context(_) => "giving back context",
            Thing::Stream(_) => "giving back stream",
        }
    }
}

/// What `--without` can leave out: kinds of things, other steps, giving back by another API's call (`crossed`), and destroying pools of
/// which something is left and contexts with mipmapped arrays in them (`orphans`): CUDA allows that, but driver 580 corrupts its own
/// memory by it and crashes soon after, natively.
pub const KINDS: &[&str] = &[
    "linear", "managed", "ordered", "array", "pyramid", "physical", "pool", "graph", "image", "context", "stream", "crossed", "orphans",
    "nobodys", "look", "trim", "toomuch",
];

/// Makes things on a GPU.
pub struct Maker {
    pub ordinal: i32,
    without: Vec<&'static str>,
    stream: CUstream,
    /// A few pools to take from; null where there is none.
    pools: [CUmemoryPool; 4],
}

/// The kind of thing that a number below 100 stands for.
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
        // SAFETY: room for the answer.
        check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
        Ok(Maker { ordinal, without, stream, pools: [null_mut(); 4] })
    }

    /// Whether this is part of it.
    pub fn has(&self, kind: &str) -> bool {
        !self.without.contains(&kind)
    }

    /// Makes something; `None` if that kind is left out. `kind` is below 100.
    pub fn make(&mut self, kind: u64, random: &mut Random) -> Result<Option<Thing>, Refused> {
        let kind = kind_of(kind);
        if !self.has(kind) {
            return Ok(None);
        }
        doing(kind);
        self.make_one(kind, random).map(Some)
    }

    fn make_one(&mut self, kind: &str, random: &mut Random) -> Result<Thing, Refused> {
        // SAFETY: every call gets room for its answers, and arguments that live through it.
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
                    Ok(Thing::Stream(stream))
                }
            }
        }
    }

    unsafe fn ordered(&self, random: &mut Random) -> Result<Thing, Refused> {
        let (mut address, bytes) = (0, random.size(25) as usize);
        let pool = self.pools[random.below(4) as usize];
        // SAFETY: as the caller promises.
        unsafe {
            if pool.is_null() {
                result("cuMemAllocAsync", sys::cuMemAllocAsync(&raw mut address, bytes, self.stream))?;
            } else {
                result("cuMemAllocFromPoolAsync", sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, self.stream))?;
            }
        }
        Ok(Thing::Ordered { address, pool })
    }

    unsafe fn physical(&self, random: &mut Random) -> Result<Thing, Refused> {
        let (mut handle, mut address) = (0, 0);
        let properties = physical_properties(self.ordinal);
        // SAFETY: as the caller promises; the handle is released once for each time that it was given.
        unsafe {
            let bytes = granular(random.size(25) as usize, &properties).map_err(|code| ("granularity", code))?;
            result("cuMemCreate", sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0))?;
            if random.below(3) == 0 {
                return Ok(Thing::Handle(handle));
            }
            result("cuMemAddressReserve", sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0))?;
            result("cuMemMap", sys::cuMemMap(address, bytes, 0, handle, 0))?;
            if random.below(2) == 0 {
                let mut again = 0;
                result("cuMemRetain", sys::cuMemRetainAllocationHandle(&raw mut again, address as *mut _))?;
                result("cuMemRelease", sys::cuMemRelease(again))?;
            }
            result("cuMemRelease", sys::cuMemRelease(handle))?;
            Ok(Thing::Mapping { address, bytes })
        }
    }

    unsafe fn pool(&mut self, random: &mut Random) -> Result<Thing, Refused> {
        let (mut pool, mut threshold) = (null_mut(), if random.below(2) == 0 { u64::MAX } else { random.size(28) });
        // SAFETY: as the caller promises.
        unsafe {
            result("cuMemPoolCreate", sys::cuMemPoolCreate(&raw mut pool, &pool_properties(self.ordinal)))?;
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result("threshold", sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()))?;
        }
        self.pools[random.below(4) as usize] = pool;
        Ok(Thing::Pool(pool))
    }

    unsafe fn graph(&self, random: &mut Random) -> Result<Thing, Refused> {
        let (mut graph, mut node, mut exec) = (null_mut(), null_mut(), null_mut());
        // SAFETY: as the caller promises; all-zero is valid for this struct of numbers and null pointers.
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
        Ok(Thing::Graph { graph, exec, address })
    }

    /// A context, and a few allocations in it.
    unsafe fn context(&self, random: &mut Random) -> Result<Thing, Refused> {
        let mut context = null_mut();
        // SAFETY: as the caller promises; the context was just pushed.
        unsafe {
            result("cuCtxCreate", sys::cuCtxCreate_v4(&raw mut context, null_mut(), 0, self.ordinal))?;
            for _ in 0..random.below(20) {
                match if random.below(2) == 0 { linear(random) } else { array(random, self.has("pyramid") && self.has("orphans")) } {
                    Ok(_) | Err((_, CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {}
                    Err(refused) => return Err(refused),
                }
            }
            result("cuCtxPopCurrent", sys::cuCtxPopCurrent_v2(&raw mut context))?;
        }
        Ok(Thing::Context(context))
    }

    /// Gives something back, if there are several calls for that by any of them.
    pub fn give_back(&mut self, thing: Thing, random: &mut Random) -> Result<(), CUresult> {
        let (ordered, crossed) = (random.below(2) == 0, self.has("crossed"));
        doing(thing.given_back());
        // SAFETY: each thing is given back once.
        unsafe {
            match thing {
                Thing::Linear(address) if ordered && crossed => check(sys::cuMemFreeAsync(address, self.stream)),
                Thing::Ordered { address, .. } if ordered || !crossed => check(sys::cuMemFreeAsync(address, self.stream)),
                Thing::Linear(address) | Thing::Managed(address) => check(sys::cuMemFree_v2(address)),
                Thing::Ordered { address, .. } => synchronize().and(check(sys::cuMemFree_v2(address))),
                Thing::Array(array) => check(sys::cuArrayDestroy(array)),
                Thing::Pyramid(array) => check(sys::cuMipmappedArrayDestroy(array)),
                Thing::Handle(handle) => check(sys::cuMemRelease(handle)),
                Thing::Mapping { address, bytes } => {
                    check(sys::cuMemUnmap(address, bytes)).and(check(sys::cuMemAddressFree(address, bytes)))
                }
                Thing::Pool(pool) => {
                    if !self.has("orphans") {
                        synchronize()?;
                    }
                    self.pools.iter_mut().filter(|known| **known == pool).for_each(|known| *known = null_mut());
                    check(sys::cuMemPoolDestroy(pool))
                }
                Thing::Graph { graph, exec, address } => {
                    // The allocation does not go with the graph: it has to be freed like any other.
                    if ordered || !crossed {
                        check(sys::cuMemFreeAsync(address, self.stream)).and(synchronize())?;
                    } else {
                        synchronize().and(check(sys::cuMemFree_v2(address)))?;
                    }
                    check(sys::cuGraphExecDestroy(exec)).and(check(sys::cuGraphDestroy(graph)))
                }
                Thing::Module(module) => check(sys::cuModuleUnload(module)),
                Thing::Library(library) => check(sys::cuLibraryUnload(library)),
                Thing::Context(context) => check(sys::cuCtxDestroy_v2(context)),
                Thing::Stream(stream) => check(sys::cuStreamDestroy_v2(stream)),
            }
        }
    }

    /// Trims a pool or the graphs' memory, waits, or changes the stack limit.
    pub fn trim(&mut self, random: &mut Random) -> Result<(), Refused> {
        doing("trimming");
        let (mut usual, pool) = (null_mut(), self.pools[random.below(4) as usize]);
        // SAFETY: plain calls with room for their answers; the pool lives.
        unsafe {
            match random.below(5) {
                0 => result("cuDeviceGraphMemTrim", sys::cuDeviceGraphMemTrim(self.ordinal)),
                1 => result("cuCtxSynchronize", sys::cuCtxSynchronize()),
                2 => result("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream)),
                3 if !pool.is_null() => result("cuMemPoolTrimTo", sys::cuMemPoolTrimTo(pool, random.size(26) as usize)),
                3 => {
                    result("cuDeviceGetMemPool", sys::cuDeviceGetMemPool(&raw mut usual, self.ordinal))?;
                    result("cuMemPoolTrimTo", sys::cuMemPoolTrimTo(usual, 0))
                }
                _ => match sys::cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 1024 + 16 * random.below(32) as usize) {
                    CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(()),
                    code => result("cuCtxSetLimit", code),
                },
            }
        }
    }
}

unsafe fn linear(random: &mut Random) -> Result<Thing, Refused> {
    let (mut address, mut pitch, bytes) = (0, 0, random.size(25) as usize);
    // SAFETY: room for the answers.
    unsafe {
        if random.below(8) == 0 {
            result("cuMemAllocPitch", sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, bytes.min(5000), bytes.div_ceil(5000), 4))?;
        } else {
            result("cuMemAlloc", sys::cuMemAlloc_v2(&raw mut address, bytes))?;
        }
    }
    Ok(Thing::Linear(address))
}

unsafe fn managed(random: &mut Random) -> Result<Thing, Refused> {
    let (mut address, bytes) = (0, random.size(24) as usize);
    // SAFETY: room for the answer; what is set is as long as was asked for.
    unsafe {
        result("cuMemAllocManaged", sys::cuMemAllocManaged(&raw mut address, bytes, 1))?;
        result("cuMemsetD8", sys::cuMemsetD8_v2(address, 1, bytes))?;
    }
    Ok(Thing::Managed(address))
}

unsafe fn array(random: &mut Random, pyramids: bool) -> Result<Thing, Refused> {
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
    // SAFETY: the descriptor and the room for the answers live through the calls.
    unsafe {
        match random.below(3) {
            0 if pyramids => {
                let levels = random.below(4) as u32 + 1;
                result("cuMipmappedArrayCreate", sys::cuMipmappedArrayCreate(&raw mut pyramid, &raw const descriptor, levels))?;
                return Ok(Thing::Pyramid(pyramid));
            }
            1 => (descriptor.Width, descriptor.Height, descriptor.Depth) = (side(random, 7), side(random, 7), side(random, 6)),
            _ => {}
        }
        result("cuArray3DCreate", sys::cuArray3DCreate_v2(&raw mut array, &raw const descriptor))?;
    }
    Ok(Thing::Array(array))
}

unsafe fn image(random: &mut Random) -> Result<Thing, Refused> {
    let text = vgpu_test_programs::ptx::array(random.size(24) as usize);
    let (mut module, mut library) = (null_mut(), null_mut());
    // SAFETY: a text with an end, room for the answers, and no options.
    unsafe {
        if random.below(2) == 0 {
            result("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
            return Ok(Thing::Module(module));
        }
        let (none, nothing) = (null_mut(), null_mut());
        result("cuLibraryLoadData", {
            sys::cuLibraryLoadData(&raw mut library, text.as_ptr().cast(), none, nothing, 0, null_mut(), null_mut(), 0)
        })?;
        match sys::cuLibraryGetModule(&raw mut module, library) {
            CUresult::CUDA_SUCCESS => Ok(Thing::Library(library)),
            code => {
                result("cuLibraryUnload", sys::cuLibraryUnload(library))?;
                Err(("cuLibraryGetModule", code))
            }
        }
    }
}

//! The methods. Each returns the total length of the kernels that it ran, in nanoseconds.

use std::ffi::c_void;
use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, check, sys::*};
use vgpu_test_programs::ptx::SPIN;

type NanosResult = Result<u64, CUresult>;

/// Names of the methods.
pub const NAMES: [&str; 19] = [
    "plain",
    "ex",
    "cooperative",
    "own-default",
    "default-streams",
    "threads",
    "streams",
    "graph",
    "graph-updated",
    "graphs-new",
    "captured",
    "host-function",
    "mem-ops",
    "waiting",
    "context-destroyed",
    "context-reset",
    "forked",
    "no-memory",
    "polled",
];

const MS: u64 = 1_000_000;
/// Length of most kernels, in nanoseconds.
const LENGTH: u64 = 2 * MS;
/// A number of streams above what the library tracks individually.
const MANY_STREAMS: usize = 300;

/// A kernel and the stream to launch it in.
#[derive(Clone, Copy)]
struct Gpu {
    spin: CUfunction,
    stream: CUstream,
}

// SAFETY: the driver's handles are valid in every thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Loads the kernel into the current context and creates a stream.
    fn in_current_context() -> Result<Self, CUresult> {
        let (mut module, mut spin) = (null_mut(), null_mut());
        // SAFETY: the image is NUL-terminated and the out-pointers are valid.
        unsafe {
            check(cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()))?;
            check(cuModuleGetFunction(&raw mut spin, module, c"spin".as_ptr()))?;
        }
        Ok(Self { spin, stream: stream()? })
    }

    fn in_stream(self, stream: CUstream) -> Self {
        Self { stream, ..self }
    }

    /// Launches the kernel by one of the driver's functions.
    fn launch_by(self, method: &str, ns: u64) -> NanosResult {
        type Own =
            unsafe extern "C" fn(CUfunction, u32, u32, u32, u32, u32, u32, u32, CUstream, *mut *mut c_void, *mut *mut c_void) -> CUresult;
        let mut arguments = [(&raw const ns).cast_mut().cast()];
        let (spin, stream, arguments) = (self.spin, self.stream, arguments.as_mut_ptr());
        // SAFETY: the argument is the one that `spin` takes, and is read before the call returns; all-zero is a valid configuration.
        check(unsafe {
            match method {
                "ex" => {
                    let mut config = std::mem::zeroed::<CUlaunchConfig>();
                    (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
                    (config.blockDimX, config.blockDimY, config.blockDimZ, config.hStream) = (1, 1, 1, stream);
                    cuLaunchKernelEx(&raw const config, spin, arguments, null_mut())
                }
                "cooperative" => cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments),
                "own-default" => cuda::symbol::<Own>(c"cuLaunchKernel_ptsz")(spin, 1, 1, 1, 1, 1, 1, 0, null_mut(), arguments, null_mut()),
                _ => cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, null_mut()),
            }
        })?;
        Ok(ns)
    }

    fn launch(self, ns: u64) -> NanosResult {
        self.launch_by("plain", ns)
    }

    /// Launches `count` kernels and waits for them.
    fn launch_many(self, method: &str, count: u64) -> NanosResult {
        let took = (0..count).map(|_| self.launch_by(method, LENGTH)).sum::<NanosResult>()?;
        cuda::synchronize()?;
        Ok(took)
    }

    /// Captures a graph of `kernels` kernels.
    fn captured(self, kernels: u64, ns: u64) -> Result<CUgraph, CUresult> {
        let mut graph = null_mut();
        // SAFETY: the out-pointer is valid.
        unsafe {
            check(cuStreamBeginCapture_v2(self.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))?;
            for _ in 0..kernels {
                self.launch(ns)?;
            }
            check(cuStreamEndCapture(self.stream, &raw mut graph))?;
        }
        Ok(graph)
    }
}

fn stream() -> Result<CUstream, CUresult> {
    let mut stream = null_mut();
    // SAFETY: the out-pointer is valid; the stream does not wait for the default stream.
    check(unsafe { cuStreamCreate(&raw mut stream, 1) })?;
    Ok(stream)
}

/// Runs a method on a GPU.
///
/// # Errors
/// The driver's error.
pub fn run(method: &str, ordinal: i32) -> NanosResult {
    if method == "forked" {
        return forked(ordinal);
    }
    let context = cuda::start(ordinal)?;
    let gpu = Gpu::in_current_context()?;
    match method {
        "default-streams" => default_streams(ordinal, context),
        "threads" => threads(gpu, context),
        "streams" => streams(gpu),
        "graph" => graph(gpu, false),
        "graph-updated" => graph(gpu, true),
        "graphs-new" => graphs_new(gpu),
        "captured" => gpu.captured(50, LENGTH).map(|_| 0),
        "host-function" => host_function(gpu),
        "mem-ops" => mem_ops(gpu),
        "waiting" => waiting(gpu),
        "context-destroyed" => context_destroyed(ordinal),
        "context-reset" => {
            gpu.launch(10 * MS)?;
            cuda::synchronize()?;
            gpu.launch(300 * MS)?;
            // SAFETY: nothing of the context is used afterwards.
            check(unsafe { cuDevicePrimaryCtxReset_v2(ordinal) })?;
            Ok(310 * MS)
        }
        "no-memory" => no_memory(gpu),
        "polled" => polled(gpu),
        _ => gpu.launch_many(method, 50),
    }
}

fn threads(gpu: Gpu, context: CUcontext) -> NanosResult {
    let context = context as usize;
    let one = move || {
        // SAFETY: the context lives as long as the process.
        check(unsafe { cuCtxSetCurrent(context as CUcontext) })?;
        gpu.in_stream(stream()?).launch_many("plain", 30)
    };
    // One thread at a time: overlapped work is charged once.
    let serial = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let _turn = serial.lock();
                    one()
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN))).sum()
    })
}

/// Launches into many streams, one after the other.
fn streams(gpu: Gpu) -> NanosResult {
    let mut took = 0;
    let streams: Vec<CUstream> = (0..MANY_STREAMS).map(|_| stream()).collect::<Result<_, _>>()?;
    // Each stream once, so that the library has a slot for each. Then pairs of the last two, in which the short kernel ends long
    // before the other one.
    for stream in &streams {
        took += gpu.in_stream(*stream).launch(MS / 10)?;
        cuda::synchronize()?;
    }
    for _ in 0..200 {
        took += gpu.in_stream(streams[MANY_STREAMS - 1]).launch(MS / 2)?;
        gpu.in_stream(streams[MANY_STREAMS - 2]).launch(MS / 50)?;
        cuda::synchronize()?;
    }
    Ok(took)
}

fn graph(gpu: Gpu, updated: bool) -> NanosResult {
    let mut exec = null_mut();
    // SAFETY: the out-pointers are valid; the graphs live as long as the process.
    unsafe {
        check(cuGraphInstantiateWithFlags(&raw mut exec, gpu.captured(3, MS)?, 0))?;
        let each = if updated {
            let mut result = std::mem::zeroed::<CUgraphExecUpdateResultInfo>();
            check(cuGraphExecUpdate_v2(exec, gpu.captured(3, 5 * MS)?, &raw mut result))?;
            15 * MS
        } else {
            3 * MS
        };
        for _ in 0..20 {
            check(cuGraphLaunch(exec, gpu.stream))?;
        }
        cuda::synchronize()?;
        Ok(20 * each)
    }
}

/// Launches graphs of many short kernels once each: the driver uploads a graph as it launches it.
fn graphs_new(gpu: Gpu) -> NanosResult {
    const KERNELS: u64 = 400;
    const EACH: u64 = MS / 50;
    let graph = gpu.captured(KERNELS, EACH)?;
    let mut exec = null_mut();
    for _ in 0..20 {
        // SAFETY: the out-pointer is valid; the executable graph is destroyed when it has run.
        unsafe {
            check(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
            check(cuGraphLaunch(exec, gpu.stream))?;
            cuda::synchronize()?;
            check(cuGraphExecDestroy(exec))?;
        }
    }
    Ok(20 * KERNELS * EACH)
}

unsafe extern "C" fn do_nothing(_data: *mut c_void) {}

fn host_function(gpu: Gpu) -> NanosResult {
    let mut took = 0;
    for _ in 0..50 {
        took += gpu.launch(LENGTH)?;
        // SAFETY: the function ignores its argument.
        check(unsafe { cuLaunchHostFunc(gpu.stream, Some(do_nothing), null_mut()) })?;
    }
    cuda::synchronize()?;
    Ok(took)
}

/// Allocates a word that the GPU can write and wait for.
fn word() -> Result<(*mut u32, CUdeviceptr), CUresult> {
    let (mut host, mut device) = (null_mut(), 0);
    // SAFETY: the out-pointers are valid.
    unsafe {
        check(cuMemHostAlloc(&raw mut host, 4096, 2))?;
        check(cuMemHostGetDevicePointer_v2(&raw mut device, host, 0))?;
    }
    Ok((host.cast(), device))
}

fn mem_ops(gpu: Gpu) -> NanosResult {
    let (_, device) = word()?;
    let mut took = 0;
    for number in 0..50_u32 {
        took += gpu.launch(LENGTH)?;
        // SAFETY: a list of one operation with all its fields set; the address is valid for a word.
        unsafe {
            let mut operation = std::mem::zeroed::<CUstreamBatchMemOpParams>();
            operation.writeValue.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32;
            operation.writeValue.address = device;
            operation.writeValue.__bindgen_anon_1.value = number;
            check(cuStreamBatchMemOp_v2(gpu.stream, 1, &raw mut operation, 0))?;
        }
    }
    cuda::synchronize()?;
    Ok(took)
}

/// Waits in a stream for the host, which does not use the GPU.
fn waiting(gpu: Gpu) -> NanosResult {
    let (host, device) = word()?;
    // SAFETY: the address is valid for a word on the host and on the device.
    unsafe {
        host.write_volatile(0);
        check(cuStreamWaitValue32_v2(gpu.stream, device, 1, 0))?;
    }
    gpu.launch(LENGTH)?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    // SAFETY: as above.
    unsafe { host.write_volatile(1) };
    cuda::synchronize()?;
    Ok(LENGTH)
}

/// Destroys contexts while a kernel of unknown length runs in them.
fn context_destroyed(ordinal: i32) -> NanosResult {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult;
    let mut took = 0;
    for _ in 0..3 {
        let mut context = null_mut();
        // SAFETY: the out-pointer is valid; the context is not used after it is destroyed.
        unsafe {
            check(cuda::symbol::<Create>(c"cuCtxCreate_v2")(&raw mut context, 0, ordinal))?;
            took += Gpu::in_current_context()?.launch(200 * MS)?;
            check(cuCtxDestroy_v2(context))?;
        }
    }
    Ok(took)
}

/// Launches into the default streams of one context, and of others that are created and destroyed meanwhile.
fn default_streams(ordinal: i32, first: CUcontext) -> NanosResult {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult;
    let default = || Gpu::in_current_context().map(|gpu| gpu.in_stream(null_mut()));
    let mut took = default()?.launch_many("plain", 10)?;
    for _ in 0..3 {
        let mut other = null_mut();
        // SAFETY: the out-pointer is valid; the context is not used after it is destroyed.
        unsafe {
            check(cuda::symbol::<Create>(c"cuCtxCreate_v2")(&raw mut other, 0, ordinal))?;
            for context in [other, first, other] {
                check(cuCtxSetCurrent(context))?;
                took += default()?.launch_many("plain", 10)?;
            }
            check(cuCtxDestroy_v2(other))?;
            check(cuCtxSetCurrent(first))?;
        }
        took += default()?.launch_many("plain", 10)?;
    }
    Ok(took)
}

/// Launches in forked processes; the parent never initialises the driver.
fn forked(ordinal: i32) -> NanosResult {
    const CHILDREN: u64 = 3;
    for _ in 0..CHILDREN {
        // SAFETY: there is one thread; the child launches kernels and ends.
        if unsafe { libc::fork() } == 0 {
            let done = cuda::start(ordinal).and_then(|_| Gpu::in_current_context()?.launch_many("plain", 20));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        let mut status = 0;
        // SAFETY: the out-pointer is valid. The children run one after the other: overlap is tested elsewhere.
        unsafe { libc::wait(&raw mut status) };
        if status != 0 {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
    }
    Ok(CHILDREN * 20 * LENGTH)
}

/// The first launch fails because the process can map no memory; later launches succeed.
fn no_memory(gpu: Gpu) -> NanosResult {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the arguments are valid structs of this function.
    unsafe {
        libc::getrlimit(libc::RLIMIT_AS, &raw mut before);
        libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: 1 << 20, ..before });
    }
    let refused = gpu.launch(100 * MS);
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const before) };
    if refused != Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
        return Err(refused.err().unwrap_or(CUresult::CUDA_ERROR_ASSERT));
    }
    gpu.launch_many("plain", 50)
}

/// Polls the stream instead of waiting for it.
fn polled(gpu: Gpu) -> NanosResult {
    // Many launches: the library gets no notice of the end of the last ones.
    let took = (0..200).map(|_| gpu.launch(LENGTH)).sum::<NanosResult>()?;
    loop {
        // SAFETY: the stream lives as long as the process.
        match unsafe { cuStreamQuery(gpu.stream) } {
            CUresult::CUDA_ERROR_NOT_READY => std::thread::sleep(std::time::Duration::from_millis(1)),
            code => return check(code).map(|()| took),
        }
    }
}

//! A kernel with a fixed amount of work: it counts multiplications, not time, so a preempted tenant makes no progress.

use std::ffi::c_void;

use vgpu_test_programs::cuda::{LaunchKernel, check, sys};

/// `spin(u64 rounds, u64 sink)` does 8 dependent multiplications per round, and takes a nanosecond per round on the simulated GPU, which
/// knows the name. It counts in 32 bits. `empty()` does nothing.
const PTX: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry empty()
{
    ret;
}
.visible .entry spin(.param .u64 rounds, .param .u64 sink)
{
    .reg .u32 %i, %n;
    .reg .f32 %f, %g;
    .reg .u64 %s, %r;
    .reg .pred %p;
    ld.param.u64 %r, [rounds];
    cvt.u32.u64 %n, %r;
    ld.param.u64 %s, [sink];
    mov.u32 %i, 0;
    mov.f32 %f, 0f3F800000;
    mov.f32 %g, 0f3F7FFFFF;
again:
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    add.u32 %i, %i, 1;
    setp.lt.u32 %p, %i, %n;
    @%p bra again;
    setp.eq.f32 %p, %f, 0f00000000;
    @%p st.global.f32 [%s], %f;
    ret;
}
\0";

/// Result of a driver call.
pub type Result<T> = std::result::Result<T, sys::CUresult>;

/// The loaded kernels.
#[derive(Clone, Copy)]
pub struct Kernels {
    work: sys::CUfunction,
    empty: sys::CUfunction,
    sink: sys::CUdeviceptr,
}

// SAFETY: the driver's handles are valid in every thread.
unsafe impl Send for Kernels {}

impl Kernels {
    /// Loads the kernels into the current context.
    ///
    /// # Errors
    /// The driver's error.
    pub fn load() -> Result<Self> {
        let mut module = std::ptr::null_mut();
        let mut kernels = Self { work: std::ptr::null_mut(), empty: std::ptr::null_mut(), sink: 0 };
        // SAFETY: the image is NUL-terminated and the out-pointers are valid.
        unsafe {
            check(sys::cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()))?;
            check(sys::cuModuleGetFunction(&raw mut kernels.work, module, c"spin".as_ptr()))?;
            check(sys::cuModuleGetFunction(&raw mut kernels.empty, module, c"empty".as_ptr()))?;
            check(sys::cuMemAlloc_v2(&raw mut kernels.sink, 4096))?;
        }
        Ok(kernels)
    }

    /// Launches `rounds` of work on every multiprocessor.
    ///
    /// # Errors
    /// The driver's error.
    pub fn work(&self, stream: sys::CUstream, rounds: u32) -> Result<()> {
        let (mut rounds, mut sink) = (u64::from(rounds), self.sink);
        let mut parameters: [*mut c_void; 2] = [(&raw mut rounds).cast(), (&raw mut sink).cast()];
        // SAFETY: the parameters are those of the kernel.
        check(unsafe { sys::cuLaunchKernel(self.work, 132, 1, 1, 128, 1, 1, 0, stream, parameters.as_mut_ptr(), std::ptr::null_mut()) })
    }

    /// Launches the empty kernel.
    ///
    /// # Errors
    /// The driver's error.
    pub fn empty(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the kernel has no parameters.
        check(unsafe { sys::cuLaunchKernel(self.empty, 1, 1, 1, 1, 1, 1, 0, stream, std::ptr::null_mut(), std::ptr::null_mut()) })
    }

    /// Launches the empty kernel by this function.
    ///
    /// # Errors
    /// The driver's error.
    pub fn empty_by(&self, launch: LaunchKernel, stream: sys::CUstream) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { launch(self.empty, 1, 1, 1, 1, 1, 1, 0, stream, std::ptr::null_mut(), std::ptr::null_mut()) })
    }
}

/// Creates a non-blocking stream.
///
/// # Errors
/// The driver's error.
pub fn stream() -> Result<sys::CUstream> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the out-pointer is valid; 1 is CU_STREAM_NON_BLOCKING.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
    Ok(stream)
}

/// Creates an event whose wait does not spin, so that a tenant's CPU time is that of its launches and of the limit.
///
/// # Errors
/// The driver's error.
pub fn event() -> Result<sys::CUevent> {
    let mut event = std::ptr::null_mut();
    // SAFETY: the out-pointer is valid; 3 is blocking wait without timing.
    check(unsafe { sys::cuEventCreate(&raw mut event, 3) })?;
    Ok(event)
}

/// Creates a graph of `count` consecutive launches.
///
/// # Errors
/// The driver's error.
pub fn graph(kernels: Kernels, stream: sys::CUstream, count: u32, rounds: u32) -> Result<sys::CUgraphExec> {
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the out-pointers are valid; the stream is captured in relaxed mode and ended.
    unsafe {
        check(sys::cuStreamBeginCapture_v2(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
        for _ in 0..count {
            kernels.work(stream, rounds)?;
        }
        check(sys::cuStreamEndCapture(stream, &raw mut graph))?;
        check(sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
    }
    Ok(exec)
}

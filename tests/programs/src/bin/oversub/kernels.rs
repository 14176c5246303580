//! Kernels that work on the memory. A simulated GPU runs no kernels; then their results are not expected either.

use std::ffi::c_void;
use std::ptr::null_mut;

use vgpu_test_programs::cuda::check;
use vgpu_test_programs::cuda::sys::{self, CUfunction, CUresult};

/// `step(at, words, add)` multiplies every word by three and adds its index and `add`. `count(at, pages)` increments the first word of
/// every 4 KiB, atomically for the whole system.
const CODE: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 first, .param .u64 words, .param .u32 more)
{
    .reg .u64 %first, %words, %place, %stride, %address;
    .reg .u32 %more, %value, %block, %width, %thread;
    .reg .pred %over;
    ld.param.u64 %first, [first];
    ld.param.u64 %words, [words];
    ld.param.u32 %more, [more];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %place, %block, %width;
    cvt.u64.u32 %address, %thread;
    add.u64 %place, %place, %address;
    mov.u32 %block, %nctaid.x;
    mul.wide.u32 %stride, %block, %width;
again:
    setp.ge.u64 %over, %place, %words;
    @%over bra done;
    shl.b64 %address, %place, 2;
    add.u64 %address, %address, %first;
    ld.global.u32 %value, [%address];
    mul.lo.u32 %value, %value, 3;
    cvt.u32.u64 %thread, %place;
    add.u32 %value, %value, %thread;
    add.u32 %value, %value, %more;
    st.global.u32 [%address], %value;
    add.u64 %place, %place, %stride;
    bra again;
done:
    ret;
}
.visible .entry count(.param .u64 first, .param .u64 pages)
{
    .reg .u64 %first, %pages, %place, %address;
    .reg .u32 %value, %block, %width, %thread;
    .reg .pred %over;
    ld.param.u64 %first, [first];
    ld.param.u64 %pages, [pages];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %place, %block, %width;
    cvt.u64.u32 %address, %thread;
    add.u64 %place, %place, %address;
    setp.ge.u64 %over, %place, %pages;
    @%over bra done;
    shl.b64 %address, %place, 12;
    add.u64 %address, %address, %first;
    atom.global.sys.add.u32 %value, [%address], 1;
done:
    ret;
}
\0";

/// The loaded kernels.
pub struct Kernels {
    step: CUfunction,
    count: CUfunction,
    /// Whether this GPU runs kernels.
    pub run: bool,
}

impl Kernels {
    /// Loads the kernels into the current context and tries one.
    pub fn load() -> Result<Self, CUresult> {
        let (mut module, mut step, mut count, mut address, mut seen) = (null_mut(), null_mut(), null_mut(), 0, 1_u32);
        // SAFETY: the image is NUL-terminated and the out-pointers are valid.
        unsafe {
            check(sys::cuModuleLoadData(&raw mut module, CODE.as_ptr().cast()))?;
            check(sys::cuModuleGetFunction(&raw mut step, module, c"step".as_ptr()))?;
            check(sys::cuModuleGetFunction(&raw mut count, module, c"count".as_ptr()))?;
            check(sys::cuMemAlloc_v2(&raw mut address, 4096))?;
            check(sys::cuMemsetD32_v2(address, 0, 1024))?;
        }
        let mut kernels = Self { step, count, run: false };
        kernels.step(address, 1, 5)?;
        // SAFETY: the out-pointer is valid; the memory belongs to this function.
        unsafe {
            check(sys::cuMemcpyDtoH_v2((&raw mut seen).cast(), address, 4))?;
            check(sys::cuMemFree_v2(address))?;
        }
        kernels.run = seen == 5;
        Ok(kernels)
    }

    /// Queues a step over `words` words.
    pub fn step(&self, mut address: u64, mut words: u64, mut add: u32) -> Result<(), CUresult> {
        let mut arguments: [*mut c_void; 3] = [(&raw mut address).cast(), (&raw mut words).cast(), (&raw mut add).cast()];
        launch(self.step, 1024, &mut arguments)
    }

    /// Queues a count over `pages` pages.
    pub fn count(&self, mut address: u64, mut pages: u64) -> Result<(), CUresult> {
        let mut arguments: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut pages).cast()];
        launch(self.count, pages.div_ceil(256) as u32, &mut arguments)
    }
}

fn launch(function: CUfunction, blocks: u32, arguments: &mut [*mut c_void]) -> Result<(), CUresult> {
    // SAFETY: the caller passes as many arguments as the kernel has.
    check(unsafe { sys::cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut()) })
}

//! Kernels by name, and how many kernels are in a graph.

use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vgpu_region::trace::Ring;

use crate::loader::driver;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS};

const PLACES: usize = 4096;

/// From a kernel's handle to its name's place in the ring, which is in the upper 16 bits: handles are below 2^47. All zero is empty.
pub struct Names([AtomicU64; PLACES]);

fn place(handle: u64) -> usize {
    (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % PLACES
}

impl Names {
    /// What [`Ring::name`] gives for a kernel's name.
    pub fn of(&self, ring: &Ring, handle: u64) -> u16 {
        let Some(known) = self.0.get(place(handle)) else { return 0 };
        let found = known.load(Relaxed);
        if found << 16 >> 16 == handle && found != 0 {
            return (found >> 48) as u16;
        }
        let name = of_kernel(handle as Handle).map_or(0, |name| ring.name(name.to_bytes()));
        // Of two kernels in one place each is asked for in turn, which is slow and right.
        if handle >> 48 == 0 {
            known.store(u64::from(name) << 48 | handle, Relaxed);
        }
        name
    }

    /// Handles may mean other kernels from now on.
    pub fn forget(&self) {
        self.0.iter().for_each(|known| known.store(0, Relaxed));
    }
}

/// A kernel's name, by the handle that it is launched by.
pub fn of_kernel(handle: Handle) -> Option<&'static CStr> {
    let _capture = driver::CaptureRelaxed::enter();
    let mut name: *const c_char = core::ptr::null();
    // SAFETY: the driver writes a pointer to a text that lives as long as the kernel, or fails for what is none. A launch takes a
    // function or a kernel; drivers before 12.3 tell no names.
    unsafe {
        let known = driver::function_name(&raw mut name, handle) == SUCCESS || driver::kernel_name(&raw mut name, handle) == SUCCESS;
        (known && !name.is_null()).then(|| CStr::from_ptr(name))
    }
}

/// Kernels in instantiated graphs: handle and number. A graph may push another one out; then nothing is known of that.
static GRAPHS: [[AtomicU64; 2]; PLACES] = [const { [const { AtomicU64::new(0) }; 2] }; PLACES];

/// Notes how many kernels are in a graph that was just instantiated or updated.
pub fn note_graph(exec: Handle, kernels: u64) {
    let [key, value] = &GRAPHS[place(exec as u64)];
    key.store(0, Relaxed);
    value.store(kernels, Release);
    key.store(exec as u64, Release);
}

/// How many kernels are in a graph; 0 where that is not known.
pub fn kernels_in(exec: Handle) -> u64 {
    let [key, value] = &GRAPHS[place(exec as u64)];
    if key.load(Acquire) == exec as u64 { value.load(Acquire) } else { 0 }
}

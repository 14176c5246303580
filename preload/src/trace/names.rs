//! Names of kernels, and the number of kernels in a graph.

use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vgpu_region::trace::Ring;

use crate::loader::driver;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS};

/// Number of places in each table.
const PLACES: usize = 4096;

/// Table from a kernel's handle to its name's place in the ring. The place is in the upper 16 bits: handles are below 2^47. All zero is
/// empty.
pub struct Names([AtomicU64; PLACES]);

/// Returns a handle's place in a table.
fn place(handle: u64) -> usize {
    (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % PLACES
}

impl Names {
    /// Returns the place of a kernel's name in the ring, as [`Ring::name`] does.
    pub fn of(&self, ring: &Ring, handle: u64) -> u16 {
        let Some(known) = self.0.get(place(handle)) else { return 0 };
        let found = known.load(Relaxed);
        if found << 16 >> 16 == handle && found != 0 {
            return (found >> 48) as u16;
        }
        let name = of_kernel(handle as Handle).map_or(0, |name| ring.name(name.to_bytes()));
        // Two kernels with one place displace each other: slow, but correct.
        if handle >> 48 == 0 {
            known.store(u64::from(name) << 48 | handle, Relaxed);
        }
        name
    }

    /// Forgets all names: handles may stand for other kernels from now on.
    pub fn forget(&self) {
        self.0.iter().for_each(|known| known.store(0, Relaxed));
    }
}

/// Returns a kernel's name by the handle that launches it. Drivers before 12.3 have no names.
pub fn of_kernel(handle: Handle) -> Option<&'static CStr> {
    let _capture = driver::CaptureRelaxed::enter();
    let mut name: *const c_char = core::ptr::null();
    // SAFETY: the driver writes a pointer to a text that lives as long as the kernel, or fails for another handle. A launch takes a
    // function or a kernel.
    unsafe {
        let known = driver::function_name(&raw mut name, handle) == SUCCESS || driver::kernel_name(&raw mut name, handle) == SUCCESS;
        (known && !name.is_null()).then(|| CStr::from_ptr(name))
    }
}

/// Number of kernels in instantiated graphs: handle and number. A graph may displace another one, whose number is then unknown.
static GRAPHS: [[AtomicU64; 2]; PLACES] = [const { [const { AtomicU64::new(0) }; 2] }; PLACES];

/// Records the number of kernels in a graph that was just instantiated or updated.
pub fn record_graph(exec: Handle, kernels: u64) {
    let [key, value] = &GRAPHS[place(exec as u64)];
    key.store(0, Relaxed);
    value.store(kernels, Release);
    key.store(exec as u64, Release);
}

/// Returns the number of kernels in a graph; 0 if it is unknown.
pub fn kernels_in(exec: Handle) -> u64 {
    let [key, value] = &GRAPHS[place(exec as u64)];
    if key.load(Acquire) == exec as u64 { value.load(Acquire) } else { 0 }
}

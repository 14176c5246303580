//! `libvgpu.so`: preloaded into every process of a limited container, between the program and the CUDA driver and NVML.
//!
//! * `table`: the intercepted functions, each once. `entry_points`: their names.
//! * `dispatch`: the exported functions, `dlsym` and `cuGetProcAddress`, which call the `hooks`.
//! * `memory` and `compute`: the limits that the hooks enforce. `image`: the memory that program images declare.
//! * `residency`: memory that moves to the host while others need the GPU's.
//! * `channels`: what the process tells the GPU's own scheduler.
//! * `session`: this process's limits and accounts. `loader` and `nvml_query`: the real functions.
//! * `trace`: records of calls and GPU work, while the process is traced. `os`: services of the kernel and the C library.
//!
//! There is no `std`: it would load libpthread and libdl, which alone costs a process that never uses CUDA 100 µs, and it would unwind.
//! Nothing runs before the first CUDA or NVML call: no constructor, no thread, no file.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(dead_code))]
#![cfg_attr(not(test), warn(clippy::missing_docs_in_private_items))]

mod channels;
mod compute;
mod dispatch;
mod entry_points;
mod hooks;
mod image;
mod loader;
mod memory;
mod nvml_query;
mod os;
mod residency;
mod session;
mod table;
mod trace;

/// Aborts. A bug in the library must not unwind through the program's frames.
#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    os::log::line(vgpu_region::limits::LogLevel::Error, format_args!("bug: {info}"));
    // SAFETY: abort takes nothing and does not return.
    unsafe { libc::abort() }
}

/// Symbol that `core`'s unwind tables refer to. Nothing here unwinds.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

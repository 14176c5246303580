//! `libvgpu.so`: preloaded into every process of a limited container, it stands between the program and the CUDA driver and NVML.
//!
//! * [`table`]: every entry point we stand in for, once.
//! * [`intercept`]: how a call gets here: exported symbols, `dlsym`, `cuGetProcAddress`.
//! * [`driver`]: the real functions. [`session`]: this process's limits and accounts.
//! * [`memory`], [`compute`], [`nvml`]: what the hooks do. [`trace`]: recording it, while somebody on the host wants that.
//!
//! There is no `std` in here: it would pull in libpthread and libdl, whose loading alone costs a process that never touches CUDA
//! 100 µs, and it would unwind. Nothing runs before the first CUDA or NVML call: no constructor, no thread, no file.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(dead_code))]

mod compute;
mod dispatch;
mod entry_points;
mod hooks;
mod image;
mod loader;
mod memory;
mod nvml_query;
mod os;
mod session;
mod table;
mod trace;

/// A bug of ours must not unwind through the program's frames; there is nothing to return to.
#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    os::log::line(vgpu_region::limits::LogLevel::Error, format_args!("bug: {info}"));
    // SAFETY: abort takes nothing and does not return.
    unsafe { libc::abort() }
}

/// Referred to by `core`'s unwind tables, which were built to unwind; nothing here does.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

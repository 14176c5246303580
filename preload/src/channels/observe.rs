//! Sees the channel groups that `libcuda` makes: stands in for `ioctl` in `libcuda`'s relocations.
//!
//! Only `libcuda`'s own calls come here. They are rare: a launch makes none.

use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_cuda_abi::resource_manager as rm;
use vgpu_region::limits::LogLevel;

use crate::channels::control::{ORIGINAL, ioctl};
use crate::channels::groups;
use crate::entry_points::library::Library;
use crate::loader::{relocations, symbols};
use crate::os::log;

/// Begins to observe. Called before the driver is initialised; later calls do nothing.
pub fn begin() {
    if !ORIGINAL.load(Acquire).is_null() {
        return;
    }
    let init = symbols::look_up(Library::Cuda, c"cuInit");
    relocations::redirect(init, c"ioctl", observed_ioctl as *mut c_void, &ORIGINAL);
    if ORIGINAL.load(Relaxed).is_null() {
        log::line(LogLevel::Info, format_args!("libcuda does not refer to ioctl: its channel groups stay unknown"));
    }
}

/// Returns the number and the parameters' size of a request of the resource manager; `None` for other requests.
fn parts(request: c_ulong) -> Option<(u8, usize)> {
    // As _IOC_TYPE, _IOC_NR and _IOC_SIZE of the kernel's ioctl.h.
    ((request >> 8) as u8 == rm::IOCTL_TYPE).then_some((request as u8, (request >> 16) as usize & 0x3fff))
}

/// `ioctl` as `libcuda` calls it.
unsafe extern "C" fn observed_ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some((mut number, mut size)) = parts(request).filter(|_| !argument.is_null()) else {
        // SAFETY: libcuda's own call.
        return unsafe { ioctl(descriptor, request, argument) };
    };
    let mut parameters = argument;
    if number == rm::TRANSFER && size == size_of::<rm::Transfer>() {
        // SAFETY: the request's parameters have this type.
        let transfer = unsafe { &*argument.cast::<rm::Transfer>() };
        (number, size, parameters) = (transfer.number as u8, transfer.size as usize, transfer.parameters);
    }
    if number == rm::FREE && size >= size_of::<rm::Free>() {
        // SAFETY: as above; libcuda filled them.
        let free = unsafe { &*parameters.cast::<rm::Free>() };
        // Before the call: an object that is freed while its channels are off waits for them without end.
        groups::forget(free.client, free.object);
    }
    // SAFETY: libcuda's own call.
    let result = unsafe { ioctl(descriptor, request, argument) };
    if result == 0 {
        // SAFETY: as above; the driver has filled them.
        unsafe { record(descriptor, number, size, parameters) };
    }
    result
}

/// Records what a call that the kernel accepted has made.
unsafe fn record(descriptor: c_int, number: u8, size: usize, parameters: *mut c_void) {
    // SAFETY: the kernel checks the parameters' size, which tells their type.
    unsafe {
        match (number, size) {
            (rm::ALLOC, 48) => {
                let made = &*parameters.cast::<rm::Allocation>();
                if made.status == rm::RM_OK {
                    allocated(descriptor, (made.client, made.parent, made.object), made.class, made.parameters);
                }
            }
            (rm::ALLOC, 32) => {
                let made = &*parameters.cast::<rm::ShortAllocation>();
                if made.status == rm::RM_OK {
                    allocated(descriptor, (made.client, made.parent, made.object), made.class, made.parameters);
                }
            }
            (rm::CONTROL, 32) => {
                let control = &*parameters.cast::<rm::Control>();
                if control.command == rm::SET_TIMESLICE && control.status == rm::RM_OK {
                    groups::slice_was_set(control.client, control.object);
                }
            }
            _ => {}
        }
    }
}

/// Records a new object: its client, parent and own handle.
unsafe fn allocated(descriptor: c_int, (client, parent, object): (u32, u32, u32), class: u32, parameters: *mut c_void) {
    match class {
        rm::SUBDEVICE => groups::add_subdevice(descriptor, client, parent, object),
        // SAFETY: parameters of this class begin so; null for none.
        rm::CHANNEL_GROUP => match unsafe { parameters.cast::<rm::ChannelGroupParameters>().as_ref() } {
            Some(group) if group.engine == rm::COMPUTE_ENGINE => groups::add_group(descriptor, client, parent, object),
            Some(group) if rm::is_copy_engine(group.engine) => groups::shorten_slice(descriptor, client, object),
            _ => {}
        },
        class if rm::is_channel(class) => groups::add_channel(client, parent, object),
        _ => {}
    }
}

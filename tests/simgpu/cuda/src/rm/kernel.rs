//! The kernel's side of the resource manager: answers the ioctls of this process.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use simgpu_device::{MAX_GPUS, config};

use super::abi::{self, Alloc, Control, DisableChannels, Escape, Free, GidInfo, status};
use super::got;
use super::objects::{Kind, Objects, RmResult};
use crate::driver::{Driver, driver};

/// Runs when the library is loaded, before any other library can replace the entry for `ioctl`: whoever does later calls the value that it
/// found, which is the simulated kernel.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = intercept;

/// The function that the dynamic linker had found for `ioctl`: the C library's, or one that the program defines. 0 before [`intercept`].
static LINKED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn intercept() {
    let function = rm_ioctl as *const () as usize;
    // SAFETY: on x86-64 a function with three arguments of integer type may be called as one with variable arguments.
    if let Some(before) = unsafe { got::replace(function, c"ioctl", function) } {
        LINKED.store(before, Ordering::Relaxed);
    }
}

/// Calls `ioctl` as it would be called without the simulated kernel.
fn linked_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: a function of this type, or null.
    let linked = unsafe {
        std::mem::transmute::<usize, Option<unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int>>(LINKED.load(Ordering::Relaxed))
    };
    // SAFETY: the arguments of libcuda, or of a library that controls its channels.
    unsafe { linked.map_or_else(|| libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int, |linked| linked(fd, request, argument)) }
}

/// Makes a control's system call on the descriptor, which stands for the driver's. Returns false if the kernel or the program refuses it: the
/// result is then that of a real driver's call. `/dev/null` knows no such request.
fn is_let_through(fd: c_int, request: c_ulong, argument: *mut c_void) -> bool {
    // SAFETY: the address of the calling thread's errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    if linked_ioctl(fd, request, argument) != 0 && *errno != libc::ENOTTY {
        return false;
    }
    *errno = before;
    true
}

/// State of the kernel. Its lock is held during a control, as that of the real one.
struct Kernel {
    objects: Objects,
    /// By GPU: number of contexts whose work must end although channels are off.
    draining: [u32; MAX_GPUS],
    /// By GPU: the process is off.
    is_off: [bool; MAX_GPUS],
}

static KERNEL: Mutex<Kernel> = Mutex::new(Kernel { objects: Objects::new(), draining: [0; MAX_GPUS], is_off: [false; MAX_GPUS] });

fn kernel() -> MutexGuard<'static, Kernel> {
    KERNEL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `ioctl` of this library. Requests that are not the resource manager's go to the real kernel.
unsafe extern "C" fn rm_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request as u32 >> 8 & 0xff != abi::TYPE {
        return linked_ioctl(fd, request, argument);
    }
    if request == abi::request::<Control>() && !is_let_through(fd, request, argument) {
        return -1;
    }
    let error = if argument.is_null() {
        libc::EFAULT
    } else if request == abi::request::<Alloc>() {
        return answer(argument, |request: &mut Alloc, driver| {
            let params = Params { pointer: request.params, bytes: request.params_size };
            request.new = kernel().allocate(driver, request, &params)?;
            Ok(())
        });
    } else if request == abi::request::<Control>() {
        return answer(argument, |request: &mut Control, driver| {
            let params = Params { pointer: request.params, bytes: request.params_size };
            if driver.device().config().refuse_controls != 0 {
                return Err(status::INSUFFICIENT_PERMISSIONS);
            }
            kernel().control(driver, request, &params)
        });
    } else if request == abi::request::<Free>() {
        return answer(argument, |request: &mut Free, driver| kernel().free(driver, request));
    } else {
        libc::EINVAL
    };
    // SAFETY: the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Answers an ioctl with the parameters at `argument`. In a forked child, which has no driver, no client is known.
fn answer<T: Escape + Copy>(argument: *mut c_void, body: impl FnOnce(&mut T, &'static Driver) -> RmResult) -> c_int {
    let argument = argument.cast::<T>();
    // SAFETY: not null, and by the request the caller passes parameters of this type, which only this thread uses now.
    let mut parameters = unsafe { argument.read_unaligned() };
    let result = driver().map_err(|_| status::INVALID_CLIENT).and_then(|driver| body(&mut parameters, driver));
    parameters.set_status(result.err().unwrap_or(status::OK));
    // SAFETY: as above.
    unsafe { argument.write_unaligned(parameters) };
    0
}

/// Parameters of an object or a control.
struct Params {
    pointer: *mut c_void,
    bytes: u32,
}

impl Params {
    /// Returns a word of parameters that have at least this word.
    fn word(&self, index: usize) -> RmResult<u32> {
        if self.pointer.is_null() || (self.bytes as usize) < (index + 1) * 4 {
            return Err(status::INVALID_ARGUMENT);
        }
        // SAFETY: the caller passes as many bytes.
        Ok(unsafe { self.pointer.cast::<u32>().add(index).read_unaligned() })
    }

    fn read<T: Copy>(&self) -> RmResult<T> {
        if self.pointer.is_null() || self.bytes as usize != size_of::<T>() {
            return Err(status::INVALID_ARGUMENT);
        }
        // SAFETY: the caller passes as many bytes, and all `T` here consist of integers.
        Ok(unsafe { self.pointer.cast::<T>().read_unaligned() })
    }

    /// Writes parameters of the type that was read.
    fn write<T: Copy>(&self, value: T) -> RmResult {
        self.read::<T>()?;
        // SAFETY: as in `read`, which checked the size.
        unsafe { self.pointer.cast::<T>().write_unaligned(value) };
        Ok(())
    }
}

impl Kernel {
    fn allocate(&mut self, driver: &Driver, request: &Alloc, params: &Params) -> RmResult<u32> {
        if request.class == abi::CLASS_DEVICE && params.word(0)? as usize >= driver.device().gpus() {
            return Err(status::INVALID_ARGUMENT);
        }
        let process = u32::try_from(driver.slot.index()).unwrap_or(0);
        let handle = self.objects.allocate(request, process, |index| params.word(index))?;
        // A new channel is on.
        self.update_all(driver);
        Ok(handle)
    }

    fn free(&mut self, driver: &Driver, request: &Free) -> RmResult {
        self.objects.free(request.root, request.old)?;
        self.update_all(driver);
        Ok(())
    }

    fn control(&mut self, driver: &Driver, request: &Control, params: &Params) -> RmResult {
        match (request.command, self.objects.kind(request.client, request.object)?) {
            (abi::SET_TIMESLICE, _) => {
                let slice_us = params.read::<u64>()?;
                let (gpu, engine) = self.objects.set_slice(request.client, request.object, slice_us)?;
                if engine == abi::ENGINE_COMPUTE {
                    // The driver's own slice is the one that the machine was configured with.
                    let slice_ns = Some(slice_us).filter(|&us| us != abi::COMPUTE_SLICE_US).map(|us| us * 1000);
                    driver.slot.set_slice(gpu, slice_ns);
                }
                self.update_all(driver);
                Ok(())
            }
            (abi::GET_TIMESLICE, Kind::Group { slice_us, .. }) => params.write(slice_us),
            (abi::DISABLE_CHANNELS, Kind::Subdevice { gpu }) => self.disable(driver, gpu, &params.read()?),
            (abi::GET_GID_INFO, Kind::Subdevice { gpu }) => {
                let mut info = params.read::<GidInfo>()?;
                if info.index != 0 || info.flags != abi::GID_BINARY {
                    return Err(status::NOT_SUPPORTED);
                }
                let uuid = config::uuid(gpu);
                info.length = uuid.len() as u32;
                info.data[..uuid.len()].copy_from_slice(&uuid);
                params.write(info)
            }
            _ => Err(status::NOT_SUPPORTED),
        }
    }

    fn disable(&mut self, driver: &Driver, gpu: usize, list: &DisableChannels) -> RmResult {
        self.objects.disable(gpu, list)?;
        let config = driver.device().config();
        let cost_ns = if list.disable == 0 { config.enable_ns } else { config.disable_ns };
        let was_off = self.is_off[gpu];
        self.is_off[gpu] = self.must_be_off(gpu);
        match (list.disable != 0, was_off, self.is_off[gpu]) {
            (true, _, true) => driver.slot.switch_off(gpu, cost_ns, list.only_scheduling != 0),
            (_, true, false) => driver.slot.switch_on(gpu, cost_ns),
            // The call takes its time also for channels that compute nothing.
            _ => std::thread::sleep(Duration::from_nanos(cost_ns)),
        }
        Ok(())
    }

    fn must_be_off(&self, gpu: usize) -> bool {
        self.draining[gpu] == 0 && self.objects.is_off(gpu)
    }

    /// Switches the process off or on after a change that takes no time.
    fn update_all(&mut self, driver: &Driver) {
        for gpu in 0..driver.device().gpus() {
            let must_be_off = self.must_be_off(gpu);
            if std::mem::replace(&mut self.is_off[gpu], must_be_off) != must_be_off {
                if must_be_off { driver.slot.switch_off(gpu, 0, false) } else { driver.slot.switch_on(gpu, 0) }
            }
            driver.slot.publish_copy_slice(gpu, self.objects.copy_slice_us(gpu) * 1000);
        }
    }
}

/// Lets the work of this process on a GPU end while a context is destroyed, also if its channels are off. A real driver hangs.
pub struct Drain {
    driver: &'static Driver,
    gpu: usize,
}

impl Drain {
    pub fn begin(driver: &'static Driver, gpu: usize) -> Drain {
        let mut kernel = kernel();
        kernel.draining[gpu] += 1;
        kernel.update_all(driver);
        Drain { driver, gpu }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        let mut kernel = kernel();
        kernel.draining[self.gpu] -= 1;
        kernel.update_all(self.driver);
    }
}

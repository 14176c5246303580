//! The ioctls of libcuda and the controls, as a library sees them that replaces libcuda's entry for `ioctl`.
//!
//! Each test runs in a process of its own with a machine of its own: the driver's state is global.

use std::ffi::{c_int, c_ulong, c_void};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use cudarc::driver::sys::CUresult::{self, CUDA_ERROR_NOT_READY, CUDA_SUCCESS};
use cudarc::driver::sys::{CUcontext, CUstream};
use simgpu_device::{Config, Device, config};

use super::abi::{self, Alloc, Control, DisableChannels, Free, GidInfo, status};
use super::got;
use crate::driver::driver;
use crate::handles::as_pointer;

// The exported functions, as a program calls them.
unsafe extern "C" {
    fn cuInit(flags: u32) -> CUresult;
    fn cuCtxCreate_v2(out: *mut CUcontext, flags: u32, device: i32) -> CUresult;
    fn cuCtxDestroy_v2(context: CUcontext) -> CUresult;
    fn cuCtxSynchronize() -> CUresult;
    fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: i32) -> CUresult;
    fn cuDevicePrimaryCtxRelease_v2(device: i32) -> CUresult;
    fn cuMemAlloc_v2(out: *mut u64, size: usize) -> CUresult;
    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: CUstream) -> CUresult;
    fn cuStreamCreate(out: *mut CUstream, flags: u32) -> CUresult;
    fn cuStreamQuery(stream: CUstream) -> CUresult;
}

/// A request with its result, as seen after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Alloc { class: u32, client: u32, parent: u32, handle: u32, engine: u32 },
    Control { object: u32, command: u32, value: u64, status: u32 },
    Free { handle: u32 },
}

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
/// libcuda's descriptor.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// Calls what the entry held before.
fn call<T>(fd: c_int, request: c_ulong, parameters: *mut T) -> c_int {
    // SAFETY: the entry held a function that takes these arguments.
    let original = unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int>(ORIGINAL.load(Ordering::Relaxed))
    };
    // SAFETY: the parameters live through the call.
    unsafe { original(fd, request, parameters.cast()) }
}

unsafe extern "C" fn interposer(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    assert!(fd >= 0);
    DESCRIPTOR.store(fd, Ordering::Relaxed);
    let result = call(fd, request, argument);
    assert_eq!(result, 0);
    // SAFETY: the request says what the parameters are.
    let seen = unsafe {
        if request == abi::request::<Alloc>() {
            let made = *argument.cast::<Alloc>();
            assert_eq!(made.status, status::OK);
            let engine = if made.class == abi::CLASS_GROUP { *made.params.cast::<u32>().add(3) } else { 0 };
            Seen::Alloc { class: made.class, client: made.root, parent: made.parent, handle: made.new, engine }
        } else if request == abi::request::<Control>() {
            let made = *argument.cast::<Control>();
            let value = made.params.cast::<u64>().read();
            Seen::Control { object: made.object, command: made.command, value, status: made.status }
        } else {
            assert_eq!(request, abi::request::<Free>());
            Seen::Free { handle: (*argument.cast::<Free>()).old }
        }
    };
    SEEN.lock().unwrap().push(seen);
    0
}

/// Runs the test `name` in a process with a new machine.
fn in_process(name: &str, settings: &[(&str, &str)], body: fn()) {
    if std::env::var("SIMGPU_TEST").is_ok_and(|running| running == name) {
        let function = interposer as *const () as usize;
        // SAFETY: the interposer takes the arguments of the callers in this program.
        let before = unsafe { got::replace(function, c"ioctl", function) }.expect("libcuda has no entry for ioctl");
        ORIGINAL.store(before, Ordering::Relaxed);
        // SAFETY: no pointers.
        assert_eq!(unsafe { cuInit(0) }, CUDA_SUCCESS);
        body();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu");
    let mut machine = Config::default();
    for (name, value) in settings {
        machine.set(name, value).unwrap();
    }
    Device::create(&path, &machine).unwrap();
    let name = name.to_owned();
    // Twice: the second process uses the slot of the first.
    for _ in 0..2 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("rm::tests::{name}"), "--exact"]).env("SIMGPU_STATE", &path).env("SIMGPU_TEST", &name);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn take_seen() -> Vec<Seen> {
    std::mem::take(&mut *SEEN.lock().unwrap())
}

fn create_context() -> usize {
    let mut handle = std::ptr::null_mut();
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { cuCtxCreate_v2(&raw mut handle, 0, 0) }, CUDA_SUCCESS);
    handle.addr()
}

fn destroy_context(handle: usize) {
    // SAFETY: handles are not dereferenced.
    assert_eq!(unsafe { cuCtxDestroy_v2(as_pointer(handle)) }, CUDA_SUCCESS);
}

/// Objects of a context, from what was seen.
struct Made {
    client: u32,
    subdevice: u32,
    /// Compute group.
    group: u32,
    /// All channels.
    channels: Vec<u32>,
}

fn made(seen: &[Seen]) -> Made {
    let mut made = Made { client: 0, subdevice: 0, group: 0, channels: Vec::new() };
    for &one in seen {
        match one {
            Seen::Alloc { class: abi::CLASS_ROOT, handle, .. } => made.client = handle,
            Seen::Alloc { class: abi::CLASS_SUBDEVICE, handle, .. } => made.subdevice = handle,
            Seen::Alloc { class: abi::CLASS_GROUP, engine: abi::ENGINE_COMPUTE, handle, .. } => made.group = handle,
            Seen::Alloc { class: abi::CLASS_CHANNEL, handle, .. } => made.channels.push(handle),
            _ => {}
        }
    }
    made
}

fn control<T>(client: u32, object: u32, command: u32, params: &mut T) -> u32 {
    let params_size = size_of::<T>() as u32;
    let mut request = Control { client, object, command, flags: 0, params: std::ptr::from_mut(params).cast(), params_size, status: 0xdead };
    assert_eq!(call(DESCRIPTOR.load(Ordering::Relaxed), abi::request::<Control>(), &raw mut request), 0);
    request.status
}

fn switch(made: &Made, off: bool, channels: &[u32]) -> u32 {
    let mut list = DisableChannels {
        disable: off.into(),
        count: channels.len() as u32,
        only_scheduling: 0,
        rewind: 0,
        event: 0,
        clients: [made.client; 64],
        channels: [0; 64],
    };
    list.channels[..channels.len()].copy_from_slice(channels);
    control(made.client, made.subdevice, abi::DISABLE_CHANNELS, &mut list)
}

/// Submits work for the GPU to the legacy stream.
fn submit() {
    let mut address = 0;
    // SAFETY: the pointer is valid, and the allocation is as long as the range that is filled.
    unsafe {
        assert_eq!(cuMemAlloc_v2(&raw mut address, 1 << 20), CUDA_SUCCESS);
        assert_eq!(cuMemsetD8Async(address, 7, 1 << 20, std::ptr::null_mut()), CUDA_SUCCESS);
    }
}

fn query() -> CUresult {
    // SAFETY: handles are not dereferenced.
    unsafe { cuStreamQuery(std::ptr::null_mut()) }
}

fn synchronize() {
    // SAFETY: no arguments.
    assert_eq!(unsafe { cuCtxSynchronize() }, CUDA_SUCCESS);
}

/// Returns the process' slice in µs, whether it is off, and how often it was switched off.
fn state() -> (u64, bool, u64) {
    let process = driver().unwrap().device().processes(0)[0];
    (process.slice_ns / 1000, process.is_off, process.times_off)
}

#[test]
fn a_context_makes_its_channel_groups() {
    in_process("a_context_makes_its_channel_groups", &[], || {
        let count =
            |seen: &[Seen], wanted: u32| seen.iter().filter(|one| matches!(one, Seen::Alloc { class, .. } if *class == wanted)).count();
        let classes = [abi::CLASS_ROOT, abi::CLASS_DEVICE, abi::CLASS_SUBDEVICE, abi::CLASS_GROUP, abi::CLASS_CHANNEL];
        assert_eq!(take_seen(), [], "cuInit makes none");
        let first = create_context();
        let seen = take_seen();
        assert_eq!(classes.map(|class| count(&seen, class)), [1, 1, 1, 4, 20]);
        let groups = seen.iter().filter_map(|one| match *one {
            Seen::Alloc { class: abi::CLASS_GROUP, handle, engine, .. } => Some((handle, engine)),
            _ => None,
        });
        let channels_of = |group: u32| {
            let of_group = |one: &&Seen| matches!(one, Seen::Alloc { class: abi::CLASS_CHANNEL, parent, .. } if *parent == group);
            seen.iter().filter(of_group).count()
        };
        let groups = groups.map(|(group, engine)| (engine, channels_of(group))).collect::<Vec<_>>();
        assert_eq!(groups, [(1, 8), (11, 4), (12, 4), (13, 4)]);
        let controls = seen.iter().filter(|one| matches!(one, Seen::Control { .. })).copied().collect::<Vec<_>>();
        let own = made(&seen);
        assert_eq!(controls, [Seen::Control { object: own.group, command: abi::SET_TIMESLICE, value: 2048, status: status::OK }]);

        let second = create_context();
        let seen = take_seen();
        assert_eq!(classes.map(|class| count(&seen, class)), [0, 0, 0, 4, 20]);
        assert!(seen.iter().all(|one| !matches!(one, Seen::Alloc { client, .. } if *client != own.client)));
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { cuStreamCreate(&raw mut stream, 0) }, CUDA_SUCCESS);
        assert_eq!(take_seen(), [], "a stream makes none");

        destroy_context(second);
        destroy_context(first);
        let freed = take_seen().iter().filter(|one| matches!(one, Seen::Free { .. })).count();
        assert_eq!(freed, 48);
        // SAFETY: the pointer is valid.
        unsafe {
            let mut context = std::ptr::null_mut();
            assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), CUDA_SUCCESS);
            assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), CUDA_SUCCESS);
            assert_eq!(take_seen().len(), 25, "a primary context makes them once");
            assert_eq!([cuDevicePrimaryCtxRelease_v2(0), cuDevicePrimaryCtxRelease_v2(0)], [CUDA_SUCCESS; 2]);
            assert_eq!(take_seen().len(), 24);
        }
    });
}

#[test]
fn slices_and_the_uuid_are_controlled_by_handle() {
    in_process("slices_and_the_uuid_are_controlled_by_handle", &[("slice_ns", "3000000")], || {
        create_context();
        let made = made(&take_seen());
        assert_eq!(state(), (3000, false, 0), "the driver's own slice is that of the machine");
        let slice = |client, object, us: u64| control(client, object, abi::SET_TIMESLICE, &mut { us });
        assert_eq!(slice(made.client, made.group, 100), status::OK);
        assert_eq!(state().0, 100);
        let mut us = 0_u64;
        assert_eq!((control(made.client, made.group, abi::GET_TIMESLICE, &mut us), us), (status::OK, 100));
        assert_eq!(slice(made.client, made.group, 2048), status::OK);
        assert_eq!(state().0, 3000);
        let refused = [
            slice(made.client + 1, made.group, 5),
            slice(made.client, 77, 5),
            slice(made.client, made.group, abi::LONGEST_SLICE_US + 1),
            slice(made.client, made.subdevice, 5),
            control(made.client, made.group, abi::SET_TIMESLICE, &mut 5_u32),
            control(made.client, made.group, 0xa06c_0105, &mut 0_u64),
        ];
        let expected = [
            status::INVALID_CLIENT,
            status::NOT_FOUND,
            status::INVALID_ARGUMENT,
            status::NOT_SUPPORTED,
            status::INVALID_ARGUMENT,
            status::NOT_SUPPORTED,
        ];
        assert_eq!((refused, state().0), (expected, 3000));

        let mut info = GidInfo { index: 0, flags: abi::GID_BINARY, length: 0, data: [0; 256] };
        assert_eq!(control(made.client, made.subdevice, abi::GET_GID_INFO, &mut info), status::OK);
        assert_eq!((info.length, &info.data[..16]), (16, &config::uuid(0)[..]));
    });
}

#[test]
fn disabled_channels_execute_nothing() {
    in_process("disabled_channels_execute_nothing", &[], || {
        let context = create_context();
        let own = made(&take_seen());
        submit();
        synchronize();
        let mut wrong = own.channels.clone();
        wrong[19] = 77;
        assert_eq!((switch(&own, true, &wrong), state().1), (status::NOT_FOUND, false), "all or none");
        assert_eq!((switch(&own, true, &own.channels[..7]), state().1), (status::OK, false), "one compute channel is on");
        assert_eq!((switch(&own, true, &own.channels), state().1, state().2), (status::OK, true, 1));
        submit();
        submit();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(query(), CUDA_ERROR_NOT_READY);
        assert_eq!((switch(&own, false, &own.channels), state().1), (status::OK, false));
        synchronize();
        assert_eq!(query(), CUDA_SUCCESS);

        // A new context is on; the process is off again when all are.
        assert_eq!((switch(&own, true, &own.channels), state().1), (status::OK, true));
        let second = create_context();
        let other = Made { client: own.client, subdevice: own.subdevice, ..made(&take_seen()) };
        assert!(!state().1);
        assert_eq!((switch(&other, true, &other.channels), state().1), (status::OK, true));
        submit();
        destroy_context(second);
        assert!(state().1, "the other context is still off");
        destroy_context(context);
        // The process ends while it is off; the next one with this slot is on.
        create_context();
        let last = Made { client: own.client, subdevice: own.subdevice, ..made(&take_seen()) };
        assert_eq!((switch(&last, true, &last.channels), state().1), (status::OK, true));
        submit();
    });
}

#[test]
fn only_its_own_ioctls_are_simulated() {
    in_process("only_its_own_ioctls_are_simulated", &[], || {
        let mut pipe = [0; 2];
        let mut bytes = -1;
        // SAFETY: the array and the text live through the calls.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            assert_eq!(libc::write(pipe[1], c"abc".as_ptr().cast(), 3), 3);
        }
        assert_eq!((call(pipe[0], libc::FIONREAD, &raw mut bytes), bytes), (0, 3));
        assert_eq!(call(pipe[0], abi::request::<Control>() + 1, &raw mut bytes), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    });
}

#[test]
fn refused_controls_change_nothing() {
    in_process("refused_controls_change_nothing", &[("refuse_controls", "1")], || {
        create_context();
        let seen = take_seen();
        let made = made(&seen);
        assert!(seen.iter().any(|one| matches!(one, Seen::Control { status: status::INSUFFICIENT_PERMISSIONS, .. })));
        assert_eq!(control(made.client, made.group, abi::SET_TIMESLICE, &mut 100_u64), 27);
        assert_eq!(switch(&made, true, &made.channels), 27);
        assert_eq!(state(), (Config::default().slice_ns / 1000, false, 0));
    });
}

#[test]
fn controls_need_the_descriptor() {
    in_process("controls_need_the_descriptor", &[], || {
        create_context();
        let made = made(&take_seen());
        // SAFETY: libcuda makes no more calls in this process.
        unsafe { libc::close(DESCRIPTOR.load(Ordering::Relaxed)) };
        let mut slice_us = 100_u64;
        let (params, params_size) = ((&raw mut slice_us).cast(), 8);
        let mut request =
            Control { client: made.client, object: made.group, command: abi::SET_TIMESLICE, flags: 0, params, params_size, status: 7 };
        assert_eq!(call(DESCRIPTOR.load(Ordering::Relaxed), abi::request::<Control>(), &raw mut request), -1);
        assert_eq!((std::io::Error::last_os_error().raw_os_error(), request.status), (Some(libc::EBADF), 7));
        assert_eq!(state(), (Config::default().slice_ns / 1000, false, 0));
    });
}

#[test]
fn a_machine_can_be_without_ioctls() {
    in_process("a_machine_can_be_without_ioctls", &[("no_ioctls", "1")], || {
        let context = create_context();
        submit();
        destroy_context(context);
        assert_eq!(take_seen(), []);
    });
}

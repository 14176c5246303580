//! Builds a session: maps the files, takes a slot, and finds the GPUs.

use core::ffi::CStr;

use vgpu_region::limits::{LimitsPage, LogLevel};
use vgpu_region::map::Membership;
use vgpu_region::uuid::Uuid;
use vgpu_region::{MAX_GPUS, map, paths};

use super::files;
use super::model::{Gpu, Session};
use crate::loader::driver;
use crate::nvml_query;
use crate::os::clock::realtime;
use crate::os::log;
use crate::os::mmap::allocate;
use vgpu_cuda_abi::cuda::SUCCESS;

/// Builds the session of a process that sees `count` devices.
///
/// # Errors
/// Returns the file that could not be used, and why.
pub fn build(count: usize) -> Result<*mut Session, (&'static CStr, map::Error)> {
    let (limits_path, region_path) = files::choose();
    log::set_level_by_environment(LogLevel::Warn);
    let limits = map::limits(limits_path).map_err(|error| (limits_path, error))?;
    log::set_level_by_environment(limits.log_level());
    // SAFETY: the call takes nothing.
    let pid = unsafe { libc::getpid() } as u32;
    let membership = map::join(region_path, pid, realtime()).map_err(|error| (region_path, error))?;
    let failed = |call| (region_path, map::Error::System { call, errno: libc::ENODEV });
    let unused = Gpu {
        device: 0,
        uuid: Uuid::default(),
        total: 0,
        place: 0,
        limit: None,
        account: membership.region.gpus.first().ok_or(failed("region"))?,
        charge: membership.slot().gpus.first().ok_or(failed("region"))?,
    };
    let session: *mut Session = allocate();
    if session.is_null() || count > MAX_GPUS {
        return Err(failed("more than 16 GPUs"));
    }
    let mut gpus = [unused; MAX_GPUS];
    for (ordinal, gpu) in gpus.iter_mut().enumerate().take(count) {
        *gpu = find_gpu(ordinal as i32, limits, membership).ok_or(failed("device"))?;
        log::line(LogLevel::Info, format_args!("device {ordinal} is {}, limit {:?} bytes of {}", gpu.uuid, gpu.memory_limit(), gpu.total));
    }
    // SAFETY: freshly mapped, large and aligned enough.
    unsafe { session.write(Session { limits, membership, count, gpus, mps_percent: mps_percent(limits) }) };
    Ok(session)
}

/// Returns the process's MPS share in percent; 0 unless the runtime has set MPS up.
///
/// The variables are read before the driver is initialised. That the driver does not read them again later, so that changes by the program
/// have no effect, is assumed and was not verified: no MPS daemon was available.
fn mps_percent(limits: &LimitsPage) -> u32 {
    if !limits.is_mps() {
        return 0;
    }
    // SAFETY: C strings; the results of getenv are read at once.
    unsafe {
        let pipes = libc::getenv(c"CUDA_MPS_PIPE_DIRECTORY".as_ptr());
        let percent = libc::getenv(c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".as_ptr());
        if pipes.is_null()
            || percent.is_null()
            || libc::strcmp(pipes, paths::MPS_C.as_ptr()) != 0
            || libc::access(paths::MPS_CONTROL_C.as_ptr(), libc::F_OK) != 0
        {
            return 0;
        }
        // 0 for a text that is not a number: then the library limits.
        u32::try_from(libc::atoi(percent)).unwrap_or(0)
    }
}

/// Finds a device's identity, limits and accounts.
fn find_gpu(ordinal: i32, limits: &'static LimitsPage, membership: Membership) -> Option<Gpu> {
    let (mut device, mut uuid, mut total) = (0, [0; 16], 0);
    // SAFETY: the driver writes into variables of the documented types.
    unsafe {
        if driver::device_get(&raw mut device, ordinal) != SUCCESS
            || driver::device_total(&raw mut total, device) != SUCCESS
            || (driver::device_uuid(&raw mut uuid, device) != SUCCESS && driver::device_uuid_v1(&raw mut uuid, device) != SUCCESS)
        {
            return None;
        }
    }
    let uuid = Uuid(uuid);
    let index = if limits.has_index_entries() { nvml_query::index_of(uuid) } else { None };
    let place = map::account(files::chosen().1, membership.region, uuid).ok()?;
    let account = membership.region.gpus.get(place)?;
    let charge = membership.slot().gpus.get(place)?;
    Some(Gpu { device, uuid, total: total as u64, place, limit: limits.find(uuid, index), account, charge })
}

//! The library's own queries of NVML.

use core::ffi::c_char;
use core::fmt::Write;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::uuid::Uuid;

use crate::loader::driver;
use crate::os::list::List;
use vgpu_cuda_abi::cuda::{Handle, Status};
use vgpu_cuda_abi::nvml;
use vgpu_gpu_limiter::engine::Power;

/// Whether this library has initialised NVML: 0 not tried, 1 yes, 2 failed.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// Initialises NVML at the first call. Returns false if that failed.
fn is_started() -> bool {
    match STARTED.load(Acquire) {
        0 => {
            // SAFETY: the call takes nothing and may be repeated.
            let is_started = unsafe { driver::nvml_init() } == nvml::SUCCESS;
            STARTED.store(if is_started { 1 } else { 2 }, Release);
            is_started
        }
        state => state == 1,
    }
}

/// C string under construction.
struct Text {
    /// The text; zeros after it.
    bytes: [u8; 64],
    /// Length in bytes.
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for &byte in text.as_bytes() {
            // The last byte stays zero, as NVML reads a C string.
            *self.bytes.get_mut(self.length).filter(|_| self.length < 63).ok_or(core::fmt::Error)? = byte;
            self.length += 1;
        }
        Ok(())
    }
}

/// Cached handle of a GPU.
struct Cached {
    /// One of the states below.
    state: AtomicU32,
    /// Halves of the UUID; written once, before the place is valid.
    uuid: [AtomicU64; 2],
    /// NVML's handle; null if it has to be looked up.
    handle: AtomicPtr<core::ffi::c_void>,
}

/// The place has no GPU.
const FREE: u32 = 0;
/// A thread is writing the UUID.
const WRITING: u32 = 1;
/// The place has a GPU.
const VALID: u32 = 2;

/// Cached handles.
static HANDLES: [Cached; vgpu_region::MAX_GPUS] = [const {
    Cached { state: AtomicU32::new(FREE), uuid: [const { AtomicU64::new(0) }; 2], handle: AtomicPtr::new(core::ptr::null_mut()) }
}; vgpu_region::MAX_GPUS];

/// Returns the place for a GPU's handle. `None` if other GPUs have taken all places, or while another thread takes one: the handle is
/// not cached then.
fn cached(uuid: Uuid) -> Option<&'static AtomicPtr<core::ffi::c_void>> {
    let whole = u128::from_le_bytes(uuid.0);
    let halves = [whole as u64, (whole >> 64) as u64];
    for place in &HANDLES {
        match place.state.compare_exchange(FREE, WRITING, AcqRel, Acquire) {
            Ok(_) => {
                place.uuid.iter().zip(halves).for_each(|(word, half)| word.store(half, Relaxed));
                place.state.store(VALID, Release);
                return Some(&place.handle);
            }
            Err(VALID) if place.uuid.iter().zip(halves).all(|(word, half)| word.load(Relaxed) == half) => return Some(&place.handle),
            Err(VALID) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Queries NVML about a GPU. NVML counts initialisations and shutdowns for the whole process, so a program that shuts it down once too
/// often shuts it down for this library too. Then it is initialised again.
fn query(uuid: Uuid, mut call: impl FnMut(Handle) -> Status) -> Option<()> {
    let mut once = || match is_started() {
        true => handle(uuid).map_or_else(|status| status, &mut call),
        false => nvml::FUNCTION_NOT_FOUND,
    };
    let mut status = once();
    if status == nvml::UNINITIALIZED {
        STARTED.store(0, Release);
        HANDLES.iter().for_each(|place| place.handle.store(core::ptr::null_mut(), Release));
        status = once();
    }
    (status == nvml::SUCCESS).then_some(())
}

/// Returns NVML's handle of a GPU.
fn handle(uuid: Uuid) -> Result<Handle, Status> {
    let cached = cached(uuid);
    if let Some(handle) = cached.map(|cached| cached.load(Acquire)).filter(|handle| !handle.is_null()) {
        return Ok(handle);
    }
    let mut handle = core::ptr::null_mut();
    // The UUID of a MIG device has another prefix.
    for prefix in ["GPU", "MIG"] {
        let mut text = Text { bytes: [0; 64], length: 0 };
        let written = write!(text, "{uuid}").is_ok();
        let Some(start) = text.bytes.get_mut(..3).filter(|_| written) else { return Err(nvml::NOT_FOUND) };
        start.copy_from_slice(prefix.as_bytes());
        // SAFETY: a C string, and a variable for the answer.
        match unsafe { driver::nvml_by_uuid(text.bytes.as_ptr().cast(), &raw mut handle) } {
            nvml::SUCCESS => break,
            nvml::UNINITIALIZED => return Err(nvml::UNINITIALIZED),
            status if prefix == "MIG" => return Err(status),
            _ => {}
        }
    }
    if let Some(cached) = cached {
        cached.store(handle, Release);
    }
    Ok(handle)
}

/// Returns the GPU's index in NVML's order, which is the container's and does not depend on `CUDA_VISIBLE_DEVICES`.
pub fn index_of(uuid: Uuid) -> Option<u32> {
    let mut index = 0;
    // SAFETY: a handle from NVML, and a variable for the answer.
    query(uuid, |device| unsafe { driver::nvml_index(device, &raw mut index) })?;
    Some(index)
}

/// Returns the power of a GPU; `None` if NVML does not report it, as for MIG devices.
pub fn power(uuid: Uuid) -> Option<Power> {
    let (mut limit, mut usual, mut drawn) = (0, 0, nvml::FieldValue { field: nvml::POWER_AVERAGE, ..nvml::FieldValue::default() });
    let first_error = |statuses: [Status; 3]| statuses.into_iter().find(|&status| status != nvml::SUCCESS).unwrap_or(nvml::SUCCESS);
    // SAFETY: a handle from NVML, and a variable for each answer.
    query(uuid, |device| unsafe {
        first_error([
            driver::nvml_fields(device, 1, &raw mut drawn),
            driver::nvml_power_limit(device, &raw mut limit),
            driver::nvml_usual_power_limit(device, &raw mut usual),
        ])
    })?;
    (drawn.status == nvml::SUCCESS).then_some(Power { drawn_mw: drawn.value as u32, limit_mw: limit, default_limit_mw: usual })
}

/// Returns the GPU's utilization by all processes in NVML's last sample period, a second or less, in percent.
pub fn busy(uuid: Uuid) -> Option<u32> {
    let mut rates = nvml::UtilizationRates::default();
    // SAFETY: a handle from NVML, and a variable for the answer.
    query(uuid, |device| unsafe { driver::nvml_utilization(device, &raw mut rates) })?;
    Some(rates.gpu)
}

/// Fills `list` with the processes on a GPU.
pub fn compute_processes<const MOST: usize>(uuid: Uuid, list: &mut List<nvml::Process, MOST>) -> Option<()> {
    let (room, mut count) = (list.room()?, 0);
    // SAFETY: NVML writes at most `count` entries and updates the count.
    unsafe {
        query(uuid, |device| {
            count = MOST as u32;
            match driver::nvml_compute_processes(device, &raw mut count, room) {
                nvml::FUNCTION_NOT_FOUND => driver::nvml_compute_processes_v2(device, &raw mut count, room),
                status => status,
            }
        })?;
        list.set_count(count as usize);
    }
    Some(())
}

/// Returns the UUID of a program's NVML handle.
pub fn uuid_of(device: Handle) -> Option<Uuid> {
    let mut text = [0u8; 96];
    // SAFETY: NVML writes at most the given length, including the zero.
    if unsafe { driver::nvml_uuid(device, text.as_mut_ptr().cast::<c_char>(), text.len() as u32) } != nvml::SUCCESS {
        return None;
    }
    let text = core::ffi::CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    Uuid::parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_with_one_half_in_common_have_places_of_their_own() {
        let uuid = |first, last| Uuid([first, 0x6d, 0x67, 0x70, 0x75, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, last]);
        let place = |first, last| cached(uuid(first, last)).unwrap() as *const _;
        let places = [place(1, 1), place(1, 2), place(2, 1)];
        assert!(places[0] != places[1] && places[0] != places[2] && places[1] != places[2]);
        assert_eq!([place(1, 1), place(1, 2), place(2, 1)], places);
    }
}

//! The host's NVML, loaded at run time. Machines without a driver lack it.

mod places;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlMemory_t};
use places::LIBRARY;

/// Attempts at a list that grows between the call for its length and the call for its content.
const ATTEMPTS: u32 = 5;

/// Path or name of the library that was loaded last.
static LOADED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Loads and initialises NVML: the one on the loader's search path, else the first one that works of those in the places where drivers
/// install it. The driver may be a container that came later, so a later call may succeed where one has failed.
///
/// # Errors
/// There is no driver, or it does not work. The error is that of the first library that could be loaded.
pub fn load() -> Result<Nvml, NvmlError> {
    let mut failed = match open(Path::new(LIBRARY)) {
        Err(error) => error,
        loaded => return loaded,
    };
    for path in places::known(Path::new("/")).filter_map(Result::ok) {
        match open(&path) {
            Err(error) if matches!(failed, NvmlError::LibloadingError(_)) => failed = error,
            Err(_) => {}
            loaded => return loaded,
        }
    }
    Err(failed)
}

fn open(library: &Path) -> Result<Nvml, NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = Some(library.to_owned());
    Ok(nvml)
}

/// Returns the total and the used memory of a GPU in bytes.
///
/// # Errors
/// NVML fails.
pub fn memory(nvml: &Nvml, device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Err(NvmlError::FailedToLoadSymbol(name)) => memory_v1(nvml, device).ok_or(NvmlError::FailedToLoadSymbol(name)),
        other => other.map(|memory| (memory.total, memory.used)),
    }
}

/// As [`memory`], by the version of the call that drivers before 510 have.
fn memory_v1(nvml: &Nvml, device: &Device<'_>) -> Option<(u64, u64)> {
    let Raw { lib, .. } = raw(nvml)?;
    lib.nvmlDeviceGetMemoryInfo.as_ref().ok()?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: NVML gave the handle, and the output is valid for writes.
    let status = unsafe { lib.nvmlDeviceGetMemoryInfo(device.handle(), &raw mut memory) };
    (status == 0).then_some((memory.total, memory.used))
}

/// Returns the processes with a context on a GPU, each once: those that compute, and those that draw.
///
/// # Errors
/// NVML fails, or the list grows faster than it can be read.
pub(crate) fn processes(device: &Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let mut found = match list(|| device.running_compute_processes()) {
        // Drivers before 510.
        Err(NvmlError::FailedToLoadSymbol(_)) => list(|| device.running_compute_processes_v2()),
        other => other,
    }?;
    let drawing = match list(|| device.running_graphics_processes()) {
        Err(NvmlError::FailedToLoadSymbol(_)) => list(|| device.running_graphics_processes_v2()),
        other => other,
    };
    // A GPU or a driver that cannot draw may refuse to tell. What computes is known all the same.
    let computing = found.len();
    for process in drawing.unwrap_or_default() {
        if found.iter().take(computing).all(|known| known.pid != process.pid) {
            found.push(process);
        }
    }
    Ok(found)
}

/// Returns a list for which `ask` asks NVML, again if it grew meanwhile.
///
/// # Errors
/// NVML fails, or the list grows faster than it can be read.
pub(crate) fn list<T>(ask: impl Fn() -> Result<Vec<T>, NvmlError>) -> Result<Vec<T>, NvmlError> {
    for _ in 1..ATTEMPTS {
        match ask() {
            Err(NvmlError::InsufficientSize(_)) => {}
            other => return other,
        }
    }
    ask()
}

/// Returns NVML's raw functions, for what nvml-wrapper lacks. `_initialized` keeps the library loaded and initialised for `'a`.
pub(crate) fn raw<'a>(_initialized: &'a Nvml) -> Option<Raw<'a>> {
    let library = LOADED.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    // SAFETY: the library is loaded already, so its initialisers have run; this only counts one more reference.
    let lib = unsafe { NvmlLib::new(&library) }.ok()?;
    Some(Raw { lib, _initialized })
}

/// NVML's raw functions, while NVML is initialised.
pub(crate) struct Raw<'a> {
    pub lib: NvmlLib,
    _initialized: &'a Nvml,
}

/// Describes why NVML is unavailable, for users.
#[must_use]
pub fn explain(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => {
            let refused = places::known(Path::new("/")).find_map(Result::err);
            refused.unwrap_or_else(|| format!("{LIBRARY} cannot be loaded, so there may be no driver"))
        }
        other => other.to_string(),
    }
}

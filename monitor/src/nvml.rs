//! The host's NVML, loaded at run time. Machines without a driver lack it.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::NvmlLib;

/// Name of the library. The unversioned one comes with development packages only.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Attempts at a list that grows between the call for its length and the call for its content.
const ATTEMPTS: u32 = 5;

/// Loads and initialises NVML.
///
/// # Errors
/// There is no driver, or it does not work.
pub fn load() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(LIBRARY.as_ref()).init()
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
    // SAFETY: the library is loaded already, so its initialisers have run; this only counts one more reference.
    let lib = unsafe { NvmlLib::new(LIBRARY) }.ok()?;
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
        NvmlError::LibloadingError(_) => format!("{LIBRARY} cannot be loaded, so there may be no driver"),
        other => other.to_string(),
    }
}

//! Paths of the limits page and the region.

use core::ffi::CStr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

use vgpu_region::paths;

use crate::loader::elf;
use crate::os::mmap::allocate;

/// Paths below `VGPU_DIR`, zero-terminated.
struct Paths {
    /// Limits page.
    limits: [u8; 256],
    /// Region.
    region: [u8; 256],
}

/// Paths of a process outside any limited container (benchmarks, tests); null for the fixed ones.
static PATHS: AtomicPtr<Paths> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the paths of limits page and region that [`choose`] has chosen.
pub fn chosen() -> (&'static CStr, &'static CStr) {
    // SAFETY: set once, to a mapping that is never removed.
    if let Some(paths) = unsafe { PATHS.load(Acquire).as_ref() } {
        let text = |bytes: &'static [u8; 256]| CStr::from_bytes_until_nul(bytes).unwrap_or_default();
        return (text(&paths.limits), text(&paths.region));
    }
    (paths::LIMITS_C, paths::REGION_C)
}

/// Chooses and returns the paths of limits page and region. In a limited container these are the mounted files, whatever the environment
/// says, also if they cannot be seen (after a chroot, for example). Elsewhere `VGPU_DIR` names their folder.
pub fn choose() -> (&'static CStr, &'static CStr) {
    if !elf::is_loaded_from(paths::DIR) {
        use_folder_from_environment();
    }
    chosen()
}

/// Uses the files in `VGPU_DIR`, unless the fixed files exist.
fn use_folder_from_environment() {
    // SAFETY: C strings; the result of getenv is read at once, before any limit is in force.
    unsafe {
        if libc::access(paths::LIMITS_C.as_ptr(), libc::F_OK) == 0 || *libc::__errno_location() != libc::ENOENT {
            return;
        }
        let folder = libc::getenv(c"VGPU_DIR".as_ptr());
        let paths: *mut Paths = allocate();
        if folder.is_null() || paths.is_null() || libc::strlen(folder) > paths::MAX_DIR_LEN {
            return;
        }
        for (path, name) in [((*paths).limits.as_mut_ptr(), c"/limits"), ((*paths).region.as_mut_ptr(), c"/region")] {
            libc::strcpy(path.cast(), folder);
            libc::strcat(path.cast(), name.as_ptr());
        }
        PATHS.store(paths, Release);
    }
}

//! Redirects the calls that one loaded library makes of a function of the C library.
//!
//! The library's relocations name the function; the words that they fill are what its calls go through. Other libraries' calls are not
//! changed, and it does not matter in which order the libraries were loaded.

use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::elf::{self, Tables};

/// Relocations of a function's address: `R_X86_64_64`, `R_X86_64_GLOB_DAT`.
#[cfg(target_arch = "x86_64")]
pub(super) const BOUND_AT_ONCE: [u32; 2] = [1, 6];
/// Relocation that may be bound at the first call: `R_X86_64_JUMP_SLOT`.
#[cfg(target_arch = "x86_64")]
pub(super) const BOUND_LATE: u32 = 7;
/// Relocations of a function's address: `R_AARCH64_ABS64`, `R_AARCH64_GLOB_DAT`.
#[cfg(target_arch = "aarch64")]
pub(super) const BOUND_AT_ONCE: [u32; 2] = [257, 1025];
/// Relocation that may be bound at the first call: `R_AARCH64_JUMP_SLOT`.
#[cfg(target_arch = "aarch64")]
pub(super) const BOUND_LATE: u32 = 1026;

/// Search for a library's relocations.
pub(super) struct Search<'a> {
    /// Address in the library.
    pub within: usize,
    /// Name of the function.
    pub name: &'static CStr,
    /// Function to call instead.
    pub function: *mut c_void,
    /// Where the function that was called before is stored.
    pub original: &'a AtomicPtr<c_void>,
}

/// Redirects the calls of `name` by the library that contains the address `within` to `function`. Stores the function that was called before
/// in `original` first; it stays null if the library makes no such calls.
pub fn redirect(within: *mut c_void, name: &'static CStr, function: *mut c_void, original: &AtomicPtr<c_void>) {
    let search = Search { within: within as usize, name, function, original };
    elf::each_object(|info| {
        // SAFETY: the object is loaded.
        unsafe {
            let is_searched = elf::contains(info, search.within);
            if is_searched {
                search.replace_all(info);
            }
            is_searched
        }
    });
}

impl Search<'_> {
    /// Replaces the function in all words that the object's relocations fill with it.
    pub unsafe fn replace_all(&self, info: &libc::dl_phdr_info) {
        // SAFETY: the object is loaded. Its tables of relocations are mapped, and DT_RELASZ or DT_PLTRELSZ is their size in bytes.
        unsafe {
            let Some(tables) = Tables::of(info) else { return };
            for (start, bytes) in tables.relocations.into_iter().filter(|(start, _)| *start != 0) {
                let entries = core::slice::from_raw_parts(start as *const libc::Elf64_Rela, bytes / size_of::<libc::Elf64_Rela>());
                for entry in entries.iter().filter(|entry| tables.is_named((entry.r_info >> 32) as usize, self.name)) {
                    self.replace(info, entry);
                }
            }
        }
    }

    /// Replaces the function in the word that a relocation fills.
    unsafe fn replace(&self, info: &libc::dl_phdr_info, entry: &libc::Elf64_Rela) {
        let kind = entry.r_info as u32;
        if kind != BOUND_LATE && !BOUND_AT_ONCE.contains(&kind) {
            return;
        }
        let address = info.dlpi_addr as usize + entry.r_offset as usize;
        // SAFETY: the word is in the object's data, aligned, and lives as long as the object.
        let word = unsafe { AtomicPtr::from_ptr(address as *mut *mut c_void) };
        let current = word.load(Acquire);
        // SAFETY: the loader's description.
        let is_unbound = kind == BOUND_LATE && unsafe { elf::contains(info, current as usize) };
        let function = if is_unbound { elf::in_libc(self.name) } else { current };
        if function.is_null() || function == self.function {
            return;
        }
        _ = self.original.compare_exchange(core::ptr::null_mut(), function, Release, Relaxed);
        let page = address & !4095;
        // The word may be in a page that the loader made read-only after it had filled it. A word does not cross pages, as it is aligned.
        // SAFETY: the page belongs to the object's data. If the kernel refuses, nothing was changed.
        if unsafe { libc::mprotect(page as *mut c_void, 4096, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
            word.store(self.function, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stands in for `getppid` in this test program.
    extern "C" fn other() -> libc::pid_t {
        -7
    }

    #[test]
    fn calls_of_one_object_are_redirected() {
        let original = AtomicPtr::new(core::ptr::null_mut());
        // SAFETY: the call takes nothing.
        let before = unsafe { libc::getppid() };
        redirect(other as *mut c_void, c"getppid", other as *mut c_void, &original);
        // SAFETY: as above.
        let after = unsafe { libc::getppid() };
        let found = original.load(Relaxed);
        assert!(!found.is_null(), "the test program calls getppid");
        // SAFETY: the C library's function of this name.
        let real = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> libc::pid_t>(found) }();
        assert_eq!((real, after), (before, -7));
        let none = AtomicPtr::new(core::ptr::null_mut());
        redirect(other as *mut c_void, c"no_such_function", other as *mut c_void, &none);
        assert!(none.load(Relaxed).is_null());
    }
}

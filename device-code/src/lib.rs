//! Reads what device code takes before the driver loads it: the size of its global arrays, and whether its kernels call `malloc`. An image of
//! device code is PTX text, a cubin, or a fat binary of both, compressed or not.
//!
//! Anything that is not understood counts as nothing here and marks the result as incomplete; its user measures the memory after the image is
//! loaded. Images come from the program that loads them, and may be damaged: nothing is read beyond an image's end.
#![cfg_attr(not(test), no_std)]

mod cubin;
mod fatbin;
mod globals;
mod ptx;
mod unpack;

use core::ffi::{c_char, c_void};

pub use globals::Globals;
use globals::{ELF, starts_with};
use ptx::text_globals;

/// Magic number of a fat binary.
const FATBIN: u32 = 0xba55_ed50;
/// Magic number of a wrapper around a fat binary.
const WRAPPER: u32 = 0x4662_43b1;

/// Reads an image. The result is the largest for any GPU of `capabilities`: compute capabilities times ten. If the list is empty, or the
/// program prefers PTX, any image of a fat binary counts.
///
/// # Safety
/// As for `cuModuleLoadData`: `image` is null, a zero-terminated PTX text, a cubin, a fat binary, or a wrapper around one.
pub unsafe fn at<C: AsRef<[u32]>>(image: *const c_void, capabilities: impl FnOnce() -> C) -> Globals {
    if image.is_null() {
        return Globals::NONE;
    }
    let bytes = image.cast::<u8>();
    // SAFETY: every image is at least four bytes long, or ends with a zero before that.
    if unsafe { starts_with(bytes, &WRAPPER.to_le_bytes()) } {
        // SAFETY: a wrapper consists of its magic number, a version, and a pointer to the fat binary.
        return unsafe {
            let fatbin = bytes.add(8).cast::<*const u8>().read_unaligned();
            if fatbin.is_null() { Globals::UNKNOWN } else { within(fatbin, usize::MAX, capabilities) }
        };
    }
    // SAFETY: the caller's promise; text ends with a zero, and the other kinds hold their length.
    unsafe { within(bytes, usize::MAX, capabilities) }
}

/// Reads an image in a file, as [`at`].
///
/// # Safety
/// `path` is null or a C string.
pub unsafe fn in_file<C: AsRef<[u32]>>(path: *const c_char, capabilities: impl FnOnce() -> C) -> Globals {
    // SAFETY: a C string. The mapping is as long as the file; a file that shrinks while the program loads it is the program's bug.
    unsafe {
        let descriptor = if path.is_null() { -1 } else { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) };
        let mut about: libc::stat = core::mem::zeroed();
        let is_open = descriptor >= 0 && libc::fstat(descriptor, &raw mut about) == 0 && about.st_size > 4;
        let length = if is_open { about.st_size as usize } else { 0 };
        let start = if is_open {
            libc::mmap(core::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, descriptor, 0)
        } else {
            libc::MAP_FAILED
        };
        if descriptor >= 0 {
            libc::close(descriptor);
        }
        if start == libc::MAP_FAILED {
            return Globals::UNKNOWN;
        }
        let bytes = within(start.cast(), length, capabilities);
        libc::munmap(start, length);
        bytes
    }
}

/// Reads an image by its magic number.
///
/// # Safety
/// The image is at least four bytes long and at most `room`.
pub unsafe fn within<C: AsRef<[u32]>>(bytes: *const u8, room: usize, capabilities: impl FnOnce() -> C) -> Globals {
    // SAFETY: the caller's promise.
    unsafe {
        if starts_with(bytes, ELF) {
            return cubin::globals(bytes, room);
        }
        if starts_with(bytes, &FATBIN.to_le_bytes()) {
            return fatbin::globals(bytes, room, capabilities().as_ref());
        }
        text_globals(bytes, room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No capabilities are known.
    fn none() -> [u32; 0] {
        []
    }

    #[test]
    fn text_is_read_from_memory_and_from_a_file() {
        let known = |bytes| Globals { bytes, ..Globals::NONE };
        let cases = [
            (".version 7.0\n.target sm_70\n.visible .entry f(){ ret; }", known(0)),
            (".version 7.0\n.visible .global .align 8 .b8 big[268435456];\n.visible .entry f(){ret;}", known(268_435_456)),
            (".version 7.0\n.global .b8 some[1 + 1];", Globals::UNKNOWN),
            ("\x02\x03 something new", Globals::UNKNOWN),
        ];
        for (text, expected) in cases {
            let zero_terminated = std::ffi::CString::new(text).unwrap();
            // SAFETY: a zero-terminated text.
            assert_eq!(unsafe { at(zero_terminated.as_ptr().cast(), none) }, expected, "{text}");
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
            // SAFETY: a zero-terminated path.
            assert_eq!(unsafe { in_file(path.as_ptr(), none) }, expected, "{text}, in a file");
        }
    }

    #[test]
    fn cubins_are_read_alone_and_in_fat_binaries() {
        let cubin = cubin::tests::cubin(1 << 26);
        let mut fatbin = FATBIN.to_le_bytes().to_vec();
        fatbin.extend_from_slice(&(16_u32 << 16).to_le_bytes());
        fatbin.extend_from_slice(&(64 + cubin.len() as u64).to_le_bytes());
        fatbin.extend_from_slice(&[2, 0, 0, 0, 64, 0, 0, 0]);
        fatbin.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
        fatbin.resize(16 + 64, 0);
        fatbin.extend_from_slice(&cubin);
        for image in [&cubin, &fatbin] {
            // SAFETY: images that hold their length; then images that end too early, read to their end.
            unsafe {
                assert_eq!(at(image.as_ptr().cast(), none), Globals { bytes: 1 << 26, ..Globals::NONE });
                for room in 4..image.len() {
                    let globals = within(image[..room].to_vec().as_ptr(), room, none);
                    assert!(!globals.exact || globals.bytes == 1 << 26, "{room} bytes: {globals:?}");
                }
            }
        }
    }

    #[test]
    fn null_is_no_image() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { at(core::ptr::null(), none) }, Globals::NONE);
    }
}

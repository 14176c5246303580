//! Reads the size of an image's global arrays, and whether its kernels call `malloc`: PTX text, a cubin, or a fat binary of both,
//! compressed or not.
//!
//! Anything that is not understood counts as nothing here, marks the result as incomplete, and is measured after the image is loaded.

use core::ffi::{c_char, c_void};

use crate::image::globals::{ELF, Globals, starts_with};
use crate::image::ptx::text_globals;
use crate::image::{cubin, fatbin};
use crate::loader::driver;
use crate::session;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR, SUCCESS};

/// Calls `read`, which takes time, under a memory limit; otherwise returns [`Globals::NONE`].
pub fn if_limited(read: impl FnOnce() -> Globals) -> Globals {
    if session::is_memory_limited() { read() } else { Globals::NONE }
}

/// Magic number of a fat binary.
const FATBIN: u32 = 0xba55_ed50;
/// Magic number of a wrapper around a fat binary.
const WRAPPER: u32 = 0x4662_43b1;

/// Reads an image. The result is the largest for any GPU of the process.
///
/// # Safety
/// As for `cuModuleLoadData`: `image` is null, a zero-terminated PTX text, a cubin, a fat binary, or a wrapper around one.
pub unsafe fn image_at(image: *const c_void) -> Globals {
    if image.is_null() {
        return Globals::NONE;
    }
    let bytes = image.cast::<u8>();
    // SAFETY: every image is at least four bytes long, or ends with a zero before that.
    if unsafe { starts_with(bytes, &WRAPPER.to_le_bytes()) } {
        // SAFETY: a wrapper consists of its magic number, a version, and a pointer to the fat binary.
        return unsafe {
            let fatbin = bytes.add(8).cast::<*const u8>().read_unaligned();
            if fatbin.is_null() { Globals::UNKNOWN } else { globals_within(fatbin, usize::MAX) }
        };
    }
    // SAFETY: the caller's promise; text ends with a zero, and the other kinds hold their length.
    unsafe { globals_within(bytes, usize::MAX) }
}

/// Reads an image in a file, as [`image_at`].
///
/// # Safety
/// `path` is null or a C string.
pub unsafe fn image_in_file(path: *const c_char) -> Globals {
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
        let bytes = globals_within(start.cast(), length);
        libc::munmap(start, length);
        bytes
    }
}

/// Reads an image by its magic number.
///
/// # Safety
/// The image is at least four bytes long and at most `room`.
unsafe fn globals_within(bytes: *const u8, room: usize) -> Globals {
    // SAFETY: the caller's promise.
    unsafe {
        if starts_with(bytes, ELF) {
            return cubin::globals(bytes, room);
        }
        if starts_with(bytes, &FATBIN.to_le_bytes()) {
            let (list, count) = capabilities();
            return fatbin::globals(bytes, room, list.get(..count).unwrap_or_default());
        }
        text_globals(bytes, room)
    }
}

/// Compute capabilities of GPUs, times ten.
type Capabilities = [u32; vgpu_region::MAX_GPUS];

/// Returns the compute capabilities of the process's GPUs, and their number; 0 if one of them is unknown.
fn capabilities() -> (Capabilities, usize) {
    let gpus = session::ready().map_or(&[][..], |session| session.gpus());
    let mut list = Capabilities::default();
    for (place, gpu) in list.iter_mut().zip(gpus) {
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the driver writes one integer.
            (unsafe { driver::device_attribute(&raw mut value, attribute, gpu.device) } == SUCCESS).then_some(value as u32)
        };
        match (attribute(ATTRIBUTE_CAPABILITY_MAJOR), attribute(ATTRIBUTE_CAPABILITY_MINOR)) {
            (Some(major), Some(minor)) => *place = major * 10 + minor,
            _ => return (list, 0),
        }
    }
    (list, gpus.len().min(list.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(unsafe { image_at(zero_terminated.as_ptr().cast()) }, expected, "{text}");
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
            // SAFETY: a zero-terminated path.
            assert_eq!(unsafe { image_in_file(path.as_ptr()) }, expected, "{text}, in a file");
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
                assert_eq!(image_at(image.as_ptr().cast()), Globals { bytes: 1 << 26, ..Globals::NONE });
                for room in 4..image.len() {
                    let globals = globals_within(image[..room].to_vec().as_ptr(), room);
                    assert!(!globals.exact || globals.bytes == 1 << 26, "{room} bytes: {globals:?}");
                }
            }
        }
    }

    #[test]
    fn null_is_no_image() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { image_at(core::ptr::null()) }, Globals::NONE);
    }
}

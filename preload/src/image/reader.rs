//! How much an image's global arrays take, and whether its kernels call `malloc`, where it can be read off: PTX text, a cubin, a fat
//! binary with either, compressed or not.
//!
//! Whatever is not understood counts as nothing here, is said to be there, and is measured after it is loaded.

use core::ffi::{c_char, c_void};

use crate::image::globals::{ELF, Globals, starts_with};
use crate::image::ptx::text_globals;
use crate::image::{cubin, fatbin};
use crate::loader::driver;
use crate::session;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR, SUCCESS};

/// What `read` tells, which takes time, where a limit makes it worth knowing.
pub fn if_limited(read: impl FnOnce() -> Globals) -> Globals {
    if session::is_memory_limited() { read() } else { Globals::NONE }
}

const FATBIN: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;

/// What the image's global arrays will take, on whichever GPU of the process that is most.
///
/// # Safety
/// As `cuModuleLoadData` has it: null, a zero-terminated PTX text, a cubin, a fat binary, or a wrapper around one.
pub unsafe fn globals(image: *const c_void) -> Globals {
    if image.is_null() {
        return Globals::NONE;
    }
    let bytes = image.cast::<u8>();
    // SAFETY: every kind of image is at least four bytes long or ends with a zero before.
    if unsafe { starts_with(bytes, &WRAPPER.to_le_bytes()) } {
        // SAFETY: behind a wrapper's magic and version stands where the fat binary is.
        return unsafe {
            let fatbin = bytes.add(8).cast::<*const u8>().read_unaligned();
            if fatbin.is_null() { Globals::UNKNOWN } else { globals_within(fatbin, usize::MAX) }
        };
    }
    // SAFETY: as the caller promises; text ends with a zero, and the other kinds say how long they are.
    unsafe { globals_within(bytes, usize::MAX) }
}

/// The same for an image in a file.
///
/// # Safety
/// A zero-terminated path.
pub unsafe fn globals_in_file(path: *const c_char) -> Globals {
    // SAFETY: a C string; the descriptor is ours, and the mapping is as long as the file was, which nobody should cut while it is loaded.
    unsafe {
        let descriptor = if path.is_null() { -1 } else { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) };
        let mut about: libc::stat = core::mem::zeroed();
        let known = descriptor >= 0 && libc::fstat(descriptor, &raw mut about) == 0 && about.st_size > 4;
        let length = if known { about.st_size as usize } else { 0 };
        let start = if known {
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

/// Of an image that is at most `room` bytes long, and at least four.
unsafe fn globals_within(bytes: *const u8, room: usize) -> Globals {
    // SAFETY: as the caller promises.
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

/// Compute capabilities times ten.
type Capabilities = [u32; vgpu_region::MAX_GPUS];

/// Those of the process's GPUs, and how many they are.
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
    use crate::image::globals::Globals;

    #[test]
    fn arrays_in_text_by_itself_and_in_a_file() {
        let known = |bytes| Globals { bytes, ..Globals::NONE };
        let cases = [
            (".version 7.0\n.target sm_70\n.visible .entry f(){ ret; }", known(0)),
            (".version 7.0\n.visible .global .align 8 .b8 big[268435456];\n.visible .entry f(){ret;}", known(268_435_456)),
            (".version 7.0\n.global .b8 some[1 + 1];", Globals::UNKNOWN),
            ("\x02\x03 something new", Globals::UNKNOWN),
        ];
        for (text, globals_of_it) in cases {
            let zero_terminated = std::ffi::CString::new(text).unwrap();
            // SAFETY: a zero-terminated text.
            assert_eq!(unsafe { globals(zero_terminated.as_ptr().cast()) }, globals_of_it, "{text}");
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
            // SAFETY: a zero-terminated path.
            assert_eq!(unsafe { globals_in_file(path.as_ptr()) }, globals_of_it, "{text}, in a file");
        }
    }

    #[test]
    fn arrays_in_cubins_by_themselves_and_in_fat_binaries() {
        let cubin = cubin::tests::cubin(1 << 26);
        let mut fatbin = FATBIN.to_le_bytes().to_vec();
        fatbin.extend_from_slice(&(16_u32 << 16).to_le_bytes());
        fatbin.extend_from_slice(&(64 + cubin.len() as u64).to_le_bytes());
        fatbin.extend_from_slice(&[2, 0, 0, 0, 64, 0, 0, 0]);
        fatbin.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
        fatbin.resize(16 + 64, 0);
        fatbin.extend_from_slice(&cubin);
        for image in [&cubin, &fatbin] {
            // SAFETY: images that say how long they are; then ones that end too early, read no further than that.
            unsafe {
                assert_eq!(globals(image.as_ptr().cast()), Globals { bytes: 1 << 26, ..Globals::NONE });
                for room in 4..image.len() {
                    let globals = globals_within(image[..room].to_vec().as_ptr(), room);
                    assert!(!globals.exact || globals.bytes == 1 << 26, "{room} bytes: {globals:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_nothing() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { globals(core::ptr::null()) }, Globals::NONE);
    }
}

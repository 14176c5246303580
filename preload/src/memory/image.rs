//! How much an image's global arrays take, where it can be read off: PTX text, a cubin, a fat binary with either uncompressed.
//!
//! Whatever is not understood counts as nothing here, and is measured after it is loaded.

use core::ffi::{c_char, c_void};

const ELF: &[u8] = b"\x7fELF";
const FATBIN: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;
/// No image's text is looked at beyond this.
const LONGEST: usize = 64 << 20;

/// Bytes of device memory that the image's global arrays will take.
///
/// # Safety
/// As `cuModuleLoadData` has it: null, a zero-terminated PTX text, a cubin, a fat binary, or a wrapper around one.
pub unsafe fn globals(image: *const c_void) -> u64 {
    if image.is_null() {
        return 0;
    }
    let bytes = image.cast::<u8>();
    // SAFETY: every kind of image is at least four bytes long or ends with a zero before.
    if unsafe { starts_with(bytes, &WRAPPER.to_le_bytes()) } {
        // SAFETY: behind a wrapper's magic and version stands where the image is.
        return unsafe { globals(bytes.add(8).cast::<*const c_void>().read_unaligned()) };
    }
    // SAFETY: as the caller promises; text ends with a zero, and the other kinds say how long they are.
    unsafe { globals_within(bytes, usize::MAX) }
}

/// The same for an image in a file.
///
/// # Safety
/// A zero-terminated path.
pub unsafe fn globals_in_file(path: *const c_char) -> u64 {
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
            return 0;
        }
        let bytes = globals_within(start.cast(), length);
        libc::munmap(start, length);
        bytes
    }
}

/// Of an image that is at most `room` bytes long, and at least four.
unsafe fn globals_within(bytes: *const u8, room: usize) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        if starts_with(bytes, ELF) {
            return elf_globals(bytes, room);
        }
        if starts_with(bytes, &FATBIN.to_le_bytes()) {
            return fatbin_globals(bytes, room);
        }
        let length = libc::strnlen(bytes.cast(), LONGEST.min(room));
        ptx_globals(core::slice::from_raw_parts(bytes, length))
    }
}

unsafe fn starts_with(bytes: *const u8, magic: &[u8]) -> bool {
    // SAFETY: the caller's promise; a difference ends the comparison before the end of a shorter text.
    unsafe { magic.iter().enumerate().all(|(at, &byte)| *bytes.add(at) == byte) }
}

/// Reads what lies at an offset; `None` beyond the image's end.
unsafe fn read<T: Copy>(image: *const u8, at: usize, room: usize) -> Option<T> {
    // SAFETY: the image is that long.
    (at.checked_add(size_of::<T>())? <= room).then(|| unsafe { image.add(at).cast::<T>().read_unaligned() })
}

/// Sizes of the sections that become global memory: `.nv.global` and `.nv.global.init`.
unsafe fn elf_globals(elf: *const u8, room: usize) -> u64 {
    const NAME: &[u8; 10] = b".nv.global";
    // SAFETY: a cubin's section table lies where its header says, with as many entries; nothing beyond `room` is read.
    unsafe {
        let Some(header) = read::<libc::Elf64_Ehdr>(elf, 0, room) else { return 0 };
        if header.e_shoff == 0 || usize::from(header.e_shentsize) != size_of::<libc::Elf64_Shdr>() {
            return 0;
        }
        let section = |index: u16| {
            let at = (header.e_shoff as usize).checked_add(usize::from(index) * size_of::<libc::Elf64_Shdr>())?;
            read::<libc::Elf64_Shdr>(elf, at, room)
        };
        let Some(names) = section(header.e_shstrndx) else { return 0 };
        let is_global = |section: &libc::Elf64_Shdr| {
            let at = (names.sh_offset as usize).saturating_add(section.sh_name as usize);
            read::<[u8; NAME.len()]>(elf, at, room).is_some_and(|name| name == *NAME)
        };
        let globals = (0..header.e_shnum).filter_map(section).filter(is_global);
        globals.fold(0, |sum: u64, section| sum.saturating_add(section.sh_size))
    }
}

/// The largest of the entries that can be read: the driver loads one of them.
unsafe fn fatbin_globals(fatbin: *const u8, room: usize) -> u64 {
    // SAFETY: a fat binary's header tells its own length and that of what follows; each entry tells its own; nothing beyond is read.
    unsafe {
        let (Some(header), Some(body)) = (read::<u32>(fatbin, 4, room), read::<u64>(fatbin, 8, room)) else { return 0 };
        let header = (header >> 16) as usize;
        let end = header.saturating_add(body as usize).min(room);
        let (mut at, mut most) = (header, 0);
        while at + 64 <= end.min(LONGEST) {
            let word = |offset: usize| fatbin.add(at + offset).cast::<u32>().read_unaligned();
            let (entry_header, payload) = (word(4) as usize, fatbin.add(at + 8).cast::<u64>().read_unaligned() as usize);
            let compressed = word(16);
            let next = at.saturating_add(entry_header).saturating_add(payload);
            if entry_header == 0 || next > end {
                break;
            }
            if compressed == 0 && payload > 4 {
                most = most.max(globals_within(fatbin.add(at + entry_header), payload));
            }
            at = next;
        }
        most
    }
}

/// Adds up `.global … name[count]` declarations. Initialised or not, a global takes its element's size times its extents.
fn ptx_globals(text: &[u8]) -> u64 {
    let mut sum = 0u64;
    for statement in text.split(|&byte| matches!(byte, b';' | b'{' | b'}')) {
        let declaration = statement.split(|&byte| byte == b'=').next().unwrap_or_default();
        let mut words = declaration.split(|byte| byte.is_ascii_whitespace() || *byte == b'[').filter(|word| !word.is_empty());
        if !words.clone().any(|word| word == b".global") || words.clone().any(|word| word == b".extern") {
            continue;
        }
        let Some(element) = words.find_map(element_size) else { continue };
        let extents = declaration.split(|&byte| byte == b'[').skip(1).map(|extent| {
            let digits = extent.split(|&byte| byte == b']').next().unwrap_or_default();
            number(digits.trim_ascii()).unwrap_or(0)
        });
        sum = sum.saturating_add(extents.fold(element, u64::saturating_mul));
    }
    sum
}

fn element_size(word: &[u8]) -> Option<u64> {
    let bits = word
        .strip_prefix(b".")
        .and_then(|word| word.strip_prefix(b"b").or(word.strip_prefix(b"u")).or(word.strip_prefix(b"s")).or(word.strip_prefix(b"f")))?;
    number(bits).map(|bits| bits / 8).filter(|&bytes| matches!(bytes, 1 | 2 | 4 | 8 | 16))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_suffix(b"U").unwrap_or(digits);
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_in_ptx() {
        let cases: [(&str, &str, u64); 7] = [
            ("none", ".version 7.0\n.target sm_70\n.visible .entry f(){ ret; }", 0),
            ("bytes", ".visible .global .align 8 .b8 big[268435456];\n.visible .entry f(){ret;}", 268_435_456),
            ("after a function", ".entry f(){ret;}\n.global .align 4 .f32 a[10][20];", 800),
            ("initialised", ".global .u64 table[4] = {1, 2, 3, 4};", 32),
            ("a scalar", ".global .u32 count;", 4),
            ("somebody else's", ".extern .global .b8 other[4096];", 0),
            ("loads are no declarations", ".entry f(){ ld.global.u32 %r1, [%rd1]; st.global.f32 [%rd2], %f1; }", 0),
        ];
        for (what, text, bytes) in cases {
            assert_eq!(ptx_globals(text.as_bytes()), bytes, "{what}");
            let text = std::ffi::CString::new(text).unwrap();
            // SAFETY: a zero-terminated text.
            assert_eq!(unsafe { globals(text.as_ptr().cast()) }, bytes, "{what}");
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
            // SAFETY: a zero-terminated path.
            assert_eq!(unsafe { globals_in_file(path.as_ptr()) }, bytes, "{what}, in a file");
        }
    }

    /// A cubin's header, a table of three sections, and their names; the second section is `.nv.global` of this many bytes.
    fn cubin(bytes: u64) -> Vec<u8> {
        // SAFETY: all-zero is valid for these structs of numbers, and each is written out as plain bytes.
        unsafe {
            let (mut header, mut sections) = (core::mem::zeroed::<libc::Elf64_Ehdr>(), core::mem::zeroed::<[libc::Elf64_Shdr; 3]>());
            header.e_ident[..4].copy_from_slice(ELF);
            header.e_shoff = size_of::<libc::Elf64_Ehdr>() as u64;
            header.e_shentsize = size_of::<libc::Elf64_Shdr>() as u16;
            (header.e_shnum, header.e_shstrndx) = (3, 2);
            (sections[1].sh_name, sections[1].sh_size) = (1, bytes);
            sections[2].sh_offset = (size_of_val(&header) + size_of_val(&sections)) as u64;
            let plain = |start: *const u8, length: usize| core::slice::from_raw_parts(start, length);
            let mut cubin = plain((&raw const header).cast(), size_of_val(&header)).to_vec();
            cubin.extend_from_slice(plain(sections.as_ptr().cast(), size_of_val(&sections)));
            cubin.extend_from_slice(b"\0.nv.global\0.shstrtab\0");
            cubin
        }
    }

    #[test]
    fn arrays_in_cubins_by_themselves_and_in_fat_binaries() {
        let cubin = cubin(1 << 26);
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
                assert_eq!(globals(image.as_ptr().cast()), 1 << 26);
                for room in 4..image.len() {
                    assert!([0, 1 << 26].contains(&globals_within(image[..room].to_vec().as_ptr(), room)));
                }
            }
        }
    }

    #[test]
    fn nothing_is_nothing() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { globals(core::ptr::null()) }, 0);
    }
}

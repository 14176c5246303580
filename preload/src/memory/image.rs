//! How much an image's global arrays take, where it can be read off: PTX text, a cubin, a fat binary with either uncompressed.
//!
//! Whatever is not understood counts as nothing here, and is measured after it is loaded.

use core::ffi::c_void;

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
    // SAFETY: every kind of image is at least four bytes long or ends with a zero before; headers are as their magic says.
    unsafe {
        if starts_with(bytes, ELF) {
            return elf_globals(bytes);
        }
        if starts_with(bytes, &FATBIN.to_le_bytes()) {
            return fatbin_globals(bytes);
        }
        if starts_with(bytes, &WRAPPER.to_le_bytes()) {
            return globals(bytes.add(8).cast::<*const c_void>().read_unaligned());
        }
        let length = libc::strnlen(bytes.cast(), LONGEST);
        ptx_globals(core::slice::from_raw_parts(bytes, length))
    }
}

unsafe fn starts_with(bytes: *const u8, magic: &[u8]) -> bool {
    // SAFETY: the caller's promise; a difference ends the comparison before the end of a shorter text.
    unsafe { magic.iter().enumerate().all(|(at, &byte)| *bytes.add(at) == byte) }
}

/// Sizes of the sections that become global memory: `.nv.global` and `.nv.global.init`.
unsafe fn elf_globals(elf: *const u8) -> u64 {
    // SAFETY: a cubin's section table lies where its header says, with as many entries.
    unsafe {
        let header = elf.cast::<libc::Elf64_Ehdr>().read_unaligned();
        if header.e_shoff == 0 || usize::from(header.e_shentsize) != size_of::<libc::Elf64_Shdr>() {
            return 0;
        }
        let section = |index: u16| {
            let at = header.e_shoff as usize + usize::from(index) * size_of::<libc::Elf64_Shdr>();
            elf.add(at).cast::<libc::Elf64_Shdr>().read_unaligned()
        };
        let names = elf.add(section(header.e_shstrndx).sh_offset as usize);
        let is_global = |section: &libc::Elf64_Shdr| starts_with(names.add(section.sh_name as usize), b".nv.global");
        (0..header.e_shnum).map(section).filter(is_global).fold(0, |sum: u64, section| sum.saturating_add(section.sh_size))
    }
}

/// The largest of the entries that can be read: the driver loads one of them.
unsafe fn fatbin_globals(fatbin: *const u8) -> u64 {
    // SAFETY: a fat binary's header tells its own length and that of what follows; each entry tells its own.
    unsafe {
        let word = |at: usize| fatbin.add(at).cast::<u32>().read_unaligned();
        let header = (word(4) >> 16) as usize;
        let end = header + fatbin.add(8).cast::<u64>().read_unaligned() as usize;
        let (mut at, mut most) = (header, 0);
        while at + 64 <= end.min(LONGEST) {
            let (entry_header, payload) = (word(at + 4) as usize, fatbin.add(at + 8).cast::<u64>().read_unaligned() as usize);
            let compressed = word(at + 16);
            if entry_header == 0 || at + entry_header + payload > end {
                break;
            }
            let data = fatbin.add(at + entry_header);
            if compressed == 0 {
                let text = || ptx_globals(core::slice::from_raw_parts(data, payload));
                most = most.max(if starts_with(data, ELF) { elf_globals(data) } else { text() });
            }
            at += entry_header + payload;
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
        }
    }

    #[test]
    fn nothing_is_nothing() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { globals(core::ptr::null()) }, 0);
    }
}

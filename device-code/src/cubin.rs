//! Cubins, as ptxas 13 writes them: the sections for global memory, and the functions that the driver provides.

use crate::globals::{Globals, MALLOCS, read};

/// Reads a cubin: adds up the sections that become global memory, `.nv.global` and `.nv.global.init`.
///
/// # Safety
/// `elf` is an ELF file at most `room` bytes long.
pub unsafe fn globals(elf: *const u8, room: usize) -> Globals {
    const NAME: &[u8; 10] = b".nv.global";
    // SAFETY: the section table and its entries are read at the offsets in the header, and nothing beyond `room` is read.
    unsafe {
        let Some(header) = read::<libc::Elf64_Ehdr>(elf, 0, room) else { return Globals::UNKNOWN };
        if header.e_shoff == 0 || usize::from(header.e_shentsize) != size_of::<libc::Elf64_Shdr>() {
            return Globals::UNKNOWN;
        }
        // A cubin with more sections than fit into these fields has both numbers elsewhere.
        if header.e_shstrndx >= header.e_shnum {
            return Globals::UNKNOWN;
        }
        let section = |index: u16| {
            let at = (header.e_shoff as usize).checked_add(usize::from(index) * size_of::<libc::Elf64_Shdr>())?;
            read::<libc::Elf64_Shdr>(elf, at, room)
        };
        let Some(names) = section(header.e_shstrndx) else { return Globals::UNKNOWN };
        let name = |section: libc::Elf64_Shdr| {
            let at = (names.sh_offset as usize).saturating_add(section.sh_name as usize);
            read::<[u8; NAME.len()]>(elf, at, room).map(|name| (name, section))
        };
        let mut globals = Globals::NONE;
        let mut has_symbols = false;
        for index in 0..header.e_shnum {
            match section(index).and_then(name) {
                Some((name, section)) if name == *NAME => globals.bytes = globals.bytes.saturating_add(section.sh_size),
                // An ELF file has one symbol table. Reading any number of them would take a hostile file quadratic time.
                Some((_, symbols)) if symbols.sh_type == SYMBOLS && has_symbols => globals.exact = false,
                Some((_, symbols)) if symbols.sh_type == SYMBOLS => {
                    has_symbols = true;
                    let names = u16::try_from(symbols.sh_link).ok().and_then(section);
                    globals.mallocs |= names.is_some_and(|names| needs_malloc(elf, room, &symbols, &names));
                }
                Some(_) => {}
                None => globals.exact = false,
            }
        }
        globals
    }
}

/// `SHT_SYMTAB`
const SYMBOLS: u32 = 2;
/// `SHN_UNDEF`
const UNDEFINED: u16 = 0;

/// Returns whether a cubin refers to `malloc` without defining it.
///
/// # Safety
/// As [`globals`].
unsafe fn needs_malloc(elf: *const u8, room: usize, symbols: &libc::Elf64_Shdr, names: &libc::Elf64_Shdr) -> bool {
    let start = symbols.sh_offset as usize;
    // The table ends with the file at the latest.
    let end = start.saturating_add(symbols.sh_size as usize).min(room);
    // SAFETY: nothing beyond `end`, or `room`, is read.
    let mut table = (start..end).step_by(size_of::<libc::Elf64_Sym>()).map_while(|at| unsafe { read::<libc::Elf64_Sym>(elf, at, end) });
    table.any(|symbol| {
        let at = (names.sh_offset as usize).saturating_add(symbol.st_name as usize);
        symbol.st_shndx == UNDEFINED
            && MALLOCS.iter().any(|name| {
                // SAFETY: as above.
                name.iter()
                    .chain(&[0])
                    .enumerate()
                    .all(|(index, &letter)| unsafe { read(elf, at.saturating_add(index), room) } == Some(letter))
            })
    })
}

#[cfg(test)]
pub mod tests {
    use crate::globals;

    /// Returns a cubin with a header, three sections and their names; the second section is `.nv.global` of `bytes` bytes.
    pub fn cubin(bytes: u64) -> Vec<u8> {
        // SAFETY: all-zero is valid for these structs of numbers, and each is written out as plain bytes.
        unsafe {
            let (mut header, mut sections) = (core::mem::zeroed::<libc::Elf64_Ehdr>(), core::mem::zeroed::<[libc::Elf64_Shdr; 3]>());
            header.e_ident[..4].copy_from_slice(globals::ELF);
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
    fn only_one_symbol_table_is_read() {
        let mut image = cubin(64);
        let read = |image: &[u8]| {
            // SAFETY: the length is the image's.
            unsafe { super::globals(image.as_ptr(), image.len()) }
        };
        let kind = |section: usize| size_of::<libc::Elf64_Ehdr>() + section * size_of::<libc::Elf64_Shdr>() + 4;
        image[kind(0)] = super::SYMBOLS as u8;
        assert!(read(&image).exact);
        image[kind(2)] = super::SYMBOLS as u8;
        assert!(!read(&image).exact, "a second table is not read");
    }
}

//! Finds a function in a loaded library by reading the library's symbol table.
//!
//! This library exports `dlsym` and `dlvsym`, so a look-up of the real ones by name would return its own. It does not link `libdl`, which a
//! process that never uses CUDA need not load; where glibc has a separate `libdl`, a program that calls `dlsym` has loaded it.

use core::ffi::{CStr, c_int, c_void};

/// Tag of the classic hash table.
const DT_HASH: i64 = 4;
/// Tag of the string table.
const DT_STRTAB: i64 = 5;
/// Tag of the symbol table.
const DT_SYMTAB: i64 = 6;
/// Tag of the table of relocations.
const DT_RELA: i64 = 7;
/// Tag of its size in bytes.
const DT_RELASZ: i64 = 8;
/// Tag of the size in bytes of the relocations of functions that may be bound late.
const DT_PLTRELSZ: i64 = 2;
/// Tag of the table of these relocations.
const DT_JMPREL: i64 = 23;
/// Tag of the GNU hash table.
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    /// `d_tag`
    tag: i64,
    /// `d_val` or `d_ptr`
    value: usize,
}

/// Calls `visit` with the description of each loaded object until it returns true. The objects stay loaded during the call.
pub(super) fn each_object<F: FnMut(&libc::dl_phdr_info) -> bool>(mut visit: F) {
    unsafe extern "C" fn forward<F: FnMut(&libc::dl_phdr_info) -> bool>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description, and `each_object` its own closure, which nobody else uses meanwhile.
        unsafe { c_int::from((*visit.cast::<F>())(&*info)) }
    }
    // SAFETY: the callback gets the pointer to `visit`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(forward::<F>), (&raw mut visit).cast()) };
}

/// Returns the path of a loaded object; empty if it has none.
fn path(info: &libc::dl_phdr_info) -> &[u8] {
    // SAFETY: a loaded object's name is a C string or null.
    unsafe { if info.dlpi_name.is_null() { &[] } else { CStr::from_ptr(info.dlpi_name).to_bytes() } }
}

/// Returns the address of a function that glibc exports, from `libc`, `libdl` or `libpthread`; null if it is not loaded.
pub fn in_libc(name: &'static CStr) -> *mut c_void {
    let mut found = core::ptr::null_mut();
    each_object(|info| {
        let path = path(info);
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        if [&b"libc.so."[..], b"libdl.so.", b"libpthread.so."].iter().any(|library| file.starts_with(library)) {
            // SAFETY: the object is loaded.
            found = unsafe { find(info, name) };
        }
        !found.is_null()
    });
    found
}

/// Returns whether an address lies in this library.
pub fn is_ours(address: *const c_void) -> bool {
    let (here, mut is_ours) = (path as *const () as usize, false);
    each_object(|info| {
        // SAFETY: the object is loaded.
        let is_this = unsafe { contains(info, here) };
        // SAFETY: as above.
        is_ours |= is_this && unsafe { contains(info, address as usize) };
        is_this
    });
    is_ours
}

/// Returns whether this library was loaded from a path below `folder`.
pub fn is_loaded_from(folder: &'static str) -> bool {
    let (here, mut is_below) = (path as *const () as usize, false);
    each_object(|info| {
        // SAFETY: the object is loaded.
        let is_ours = unsafe { contains(info, here) };
        is_below |= is_ours && path(info).starts_with(folder.as_bytes());
        is_ours
    });
    is_below
}

/// Addresses of the tables in an object's dynamic section; 0 for those that it lacks.
#[derive(Default)]
pub(super) struct Tables {
    /// The classic hash table.
    hash: usize,
    /// The GNU hash table.
    gnu_hash: usize,
    /// The string table.
    strings: usize,
    /// The symbol table.
    symbols: usize,
    /// The two tables of relocations: address, and size in bytes.
    pub relocations: [(usize, usize); 2],
}

impl Tables {
    /// Reads the dynamic section of a loaded object. `None` if it has none.
    pub(super) unsafe fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        let mut tables = Self::default();
        // SAFETY: the program headers and the dynamic section are mapped and laid out by the ELF specification.
        unsafe {
            let headers = core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
            let mut entry = (base + dynamic.p_vaddr as usize) as *const Dynamic;
            while (*entry).tag != 0 {
                let value = (*entry).value;
                // glibc relocates these in place. An address below the base was not relocated.
                let address = if value < base { base + value } else { value };
                match (*entry).tag {
                    DT_HASH => tables.hash = address,
                    DT_GNU_HASH => tables.gnu_hash = address,
                    DT_STRTAB => tables.strings = address,
                    DT_SYMTAB => tables.symbols = address,
                    DT_RELA => tables.relocations[0].0 = address,
                    DT_RELASZ => tables.relocations[0].1 = value,
                    DT_JMPREL => tables.relocations[1].0 = address,
                    DT_PLTRELSZ => tables.relocations[1].1 = value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        (tables.strings != 0 && tables.symbols != 0).then_some(tables)
    }

    /// Returns true if the symbol at an index has this name.
    pub(super) unsafe fn is_named(&self, index: usize, name: &CStr) -> bool {
        // SAFETY: the caller's index is one of a relocation, so within the symbol table, whose names lie in the string table.
        unsafe {
            let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(index);
            CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _) == name
        }
    }
}

/// Looks up a function in one loaded object; null if the object does not define it.
pub(super) unsafe fn find(info: &libc::dl_phdr_info, name: &CStr) -> *mut c_void {
    // SAFETY: the tables are mapped and laid out by the ELF specification and the GNU hash format; indices stay within the counts in them.
    unsafe {
        let Some(tables) = Tables::of(info) else { return core::ptr::null_mut() };
        let base = info.dlpi_addr as usize;
        let table = Table { base, strings: tables.strings, symbols: tables.symbols as *const libc::Elf64_Sym };
        match (tables.gnu_hash, tables.hash) {
            (0, 0) => core::ptr::null_mut(),
            (0, hash) => table.by_count(hash as *const u32, name),
            (gnu_hash, _) => table.by_gnu_hash(gnu_hash as *const u32, name),
        }
    }
}

/// Returns true if an address lies in a loaded object's mappings.
pub(super) unsafe fn contains(info: &libc::dl_phdr_info, address: usize) -> bool {
    // SAFETY: a loaded object's program headers are mapped, `dlpi_phnum` of them.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    headers.iter().any(|header| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&address)
    })
}

/// Symbol table of a loaded object.
struct Table {
    /// Load address of the object.
    base: usize,
    /// Address of the string table.
    strings: usize,
    /// The symbols.
    symbols: *const libc::Elf64_Sym,
}

impl Table {
    /// Returns the address of a symbol if it is a defined function with this name.
    unsafe fn defined(&self, index: u32, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the caller's index is within the symbol table, whose names lie in the string table.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            let is_function = symbol.st_info & 0xf == 2 && symbol.st_shndx != 0;
            let matches = is_function && CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _) == name;
            matches.then(|| (self.base + symbol.st_value as usize) as *mut c_void)
        }
    }

    /// Looks up a function by the GNU hash table.
    unsafe fn by_gnu_hash(&self, table: *const u32, name: &CStr) -> *mut c_void {
        let wanted = name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // SAFETY: a header of four words, a Bloom filter of 64-bit words, buckets, then one hash for each symbol from `first` on; the
        // lowest bit marks the last of a chain.
        unsafe {
            let (buckets, first, filter) = (*table, *table.add(1), *table.add(2) as usize);
            if buckets == 0 {
                return core::ptr::null_mut();
            }
            let bucket_table = table.add(4 + filter * 2);
            let chain = bucket_table.add(buckets as usize);
            let mut index = *bucket_table.add((wanted % buckets) as usize);
            while index >= first {
                let hash = *chain.add((index - first) as usize);
                if let Some(address) = (hash | 1 == wanted | 1).then(|| self.defined(index, name)).flatten() {
                    return address;
                }
                if hash & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        core::ptr::null_mut()
    }

    /// Looks up a function by trying all symbols; the classic hash table holds their number.
    unsafe fn by_count(&self, table: *const u32, name: &CStr) -> *mut c_void {
        // SAFETY: the second word of a classic hash table is the number of symbols.
        unsafe { (0..*table.add(1)).find_map(|index| self.defined(index, name)).unwrap_or(core::ptr::null_mut()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_match_the_loaders() {
        for name in [c"dlsym", c"dlvsym", c"dlopen", c"getpid"] {
            // SAFETY: plain look-up.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(in_libc(name), expected, "{name:?}");
        }
        assert!(in_libc(c"no_such_function_in_libc").is_null());
    }
}

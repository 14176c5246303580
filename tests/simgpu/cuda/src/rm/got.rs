//! Sends the calls that a loaded object makes through its global offset table to another function.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
/// Relocations that store the address of a symbol: `R_X86_64_GLOB_DAT` and `R_X86_64_JUMP_SLOT`.
const ADDRESS_RELOCATIONS: [u64; 2] = [6, 7];

/// `Elf64_Rela`
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// What to replace, and what was there.
struct Search<'a> {
    /// Address in the object.
    inside: usize,
    name: &'a CStr,
    function: usize,
    before: Option<usize>,
}

/// Replaces all entries for the symbol `name` in the object that contains the address `inside`. Returns the last one's former value.
///
/// # Safety
/// `function` has the type that callers of the symbol expect.
pub unsafe fn replace(inside: usize, name: &CStr, function: usize) -> Option<usize> {
    let mut search = Search { inside, name, function, before: None };
    // SAFETY: the callback gets the pointer to `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.before
}

/// Callback of `dl_iterate_phdr`: ends the iteration at the object that is sought.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description, and `replace` its own search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: a loaded object has `dlpi_phnum` program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let contains = |header: &libc::Elf64_Phdr, address: usize| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        (start..start + header.p_memsz as usize).contains(&address)
    };
    if !headers.iter().any(|header| header.p_type == libc::PT_LOAD && contains(header, search.inside)) {
        return 0;
    }
    let relro = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
    if let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) {
        // SAFETY: the dynamic section of a loaded object is mapped and complete.
        let entries = unsafe { entries(info.dlpi_addr, (info.dlpi_addr + dynamic.p_vaddr) as *const [u64; 2], search.name) };
        for entry in entries {
            let is_read_only = relro.is_some_and(|relro| contains(relro, entry));
            // SAFETY: the entry is in the object's table, and `replace`'s caller vouches for the function.
            search.before = Some(unsafe { write(entry, search.function, is_read_only) });
        }
    }
    1
}

/// Returns the addresses of the entries for a symbol in the object with this dynamic section.
///
/// # Safety
/// `base` and `dynamic` are those of a loaded object.
unsafe fn entries(base: u64, mut dynamic: *const [u64; 2], name: &CStr) -> Vec<usize> {
    let mut values = [0_u64; 24];
    // SAFETY: the section ends with tag 0.
    unsafe {
        while (*dynamic)[0] != 0 {
            let [tag, value] = *dynamic;
            if let Some(slot) = values.get_mut(tag as usize) {
                *slot = value;
            }
            dynamic = dynamic.add(1);
        }
    }
    // glibc relocates the addresses in place. One below the base was not relocated.
    let address = |tag: u64| Some(values[tag as usize]).filter(|&value| value != 0).map(|at| if at < base { at + base } else { at });
    let (Some(strings), Some(symbols)) = (address(DT_STRTAB), address(DT_SYMTAB)) else { return Vec::new() };
    let mut found = Vec::new();
    for (table, size) in [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)] {
        let Some(table) = address(table) else { continue };
        let count = values[size as usize] as usize / size_of::<Relocation>();
        // SAFETY: the tables of a loaded object are mapped; indices of symbols and names are within them by the ELF specification.
        unsafe {
            for relocation in std::slice::from_raw_parts(table as *const Relocation, count) {
                let symbol = (symbols as *const libc::Elf64_Sym).add((relocation.info >> 32) as usize);
                let symbol_name = (strings + u64::from((*symbol).st_name)) as *const std::ffi::c_char;
                if ADDRESS_RELOCATIONS.contains(&(relocation.info & u64::from(u32::MAX))) && CStr::from_ptr(symbol_name) == name {
                    found.push((base + relocation.offset) as usize);
                }
            }
        }
    }
    found
}

/// Writes an entry, which is read-only after the object was loaded if `is_read_only`. Returns the former value.
///
/// # Safety
/// `entry` is an entry of a loaded object's table.
unsafe fn write(entry: usize, function: usize, is_read_only: bool) -> usize {
    // SAFETY: sysconf takes any name.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let page = (entry / page_bytes * page_bytes) as *mut c_void;
    // SAFETY: the page belongs to the object, and is as before afterwards; the entry is aligned, and other threads only read it.
    unsafe {
        if is_read_only {
            libc::mprotect(page, page_bytes, libc::PROT_READ | libc::PROT_WRITE);
        }
        let before = AtomicUsize::from_ptr(entry as *mut usize).swap(function, Ordering::AcqRel);
        if is_read_only {
            libc::mprotect(page, page_bytes, libc::PROT_READ);
        }
        before
    }
}

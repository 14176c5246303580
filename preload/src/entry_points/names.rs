//! Index from a symbol's name to its entry: a hash table made at compile time, without a relocation.

use core::ffi::CStr;

use super::library::Library;
use crate::table::entry_points;

/// Makes the entries and their names from all rows.
macro_rules! names {
    ($($library:ident $handler:path $([$($passed:expr),*])? => $arguments:tt $([$trace:expr])?: $($symbol:ident),+ $(| $($own:ident),+)?;)*) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        /// Entry points by their place in the table.
        pub enum Entry {
            $($(#[doc = stringify!($symbol)] $symbol,)+ $($(#[doc = stringify!($own)] $own,)+)?)*
            /// Number of entries.
            Count
        }

        /// Number of entry points.
        pub const COUNT: usize = Entry::Count as usize;

        /// Names of all entries, zero-terminated, in one text: a table of pointers would be relocated in every process.
        pub static NAMES: &str = concat!($($(stringify!($symbol), "\0",)+ $($(stringify!($own), "\0",)+)?)*);

        /// Library of each entry.
        static LIBRARIES: [Library; COUNT] = [$($({ _ = Entry::$symbol; Library::$library },)+ $($({ _ = Entry::$own; Library::$library },)+)?)*];
    };
}

entry_points!(names);

/// Returns an entry's name.
pub fn name_of(entry: usize) -> &'static CStr {
    // SAFETY: the names are terminated.
    unsafe { CStr::from_ptr(name(entry)) }
}

/// Returns an entry's library.
pub fn library(entry: usize) -> Library {
    LIBRARIES.get(entry).copied().unwrap_or(Library::Cuda)
}

/// Number of places in [`INDEX`].
const SIZE: usize = 1024;
const _: () = assert!(COUNT * 2 < SIZE);

/// Adds a byte to an FNV-1a hash.
const fn hash_byte(hash: u32, byte: u8) -> u32 {
    (hash ^ byte as u32).wrapping_mul(0x0100_0193)
}

/// FNV-1a hash of an empty name.
const SEED: u32 = 0x811c_9dc5;

/// Offset of each name in [`NAMES`].
static STARTS: [u16; COUNT] = {
    let (mut starts, bytes) = ([0; COUNT], NAMES.as_bytes());
    let (mut at, mut entry) = (0, 0);
    while entry < COUNT {
        starts[entry] = at as u16;
        while bytes[at] != 0 {
            at += 1;
        }
        (at, entry) = (at + 1, entry + 1);
    }
    starts
};

/// Hash table of entries plus one, with linear probing; 0 is empty.
static INDEX: [u16; SIZE] = {
    let (mut index, bytes) = ([0; SIZE], NAMES.as_bytes());
    let mut entry = 0;
    while entry < COUNT {
        let (mut hash, mut at) = (SEED, STARTS[entry] as usize);
        while bytes[at] != 0 {
            hash = hash_byte(hash, bytes[at]);
            at += 1;
        }
        let mut place = hash as usize % SIZE;
        while index[place] != 0 {
            place = (place + 1) % SIZE;
        }
        index[place] = entry as u16 + 1;
        entry += 1;
    }
    index
};

/// Returns the name of an entry, zero-terminated.
pub fn name(entry: usize) -> *const core::ffi::c_char {
    let start = STARTS.get(entry).copied().unwrap_or(0);
    NAMES.as_ptr().wrapping_add(usize::from(start)).cast()
}

/// Returns the entry with a name; `None` if the function is not intercepted.
///
/// # Safety
/// `wanted` is a C string.
pub unsafe fn find(wanted: *const core::ffi::c_char) -> Option<usize> {
    // SAFETY: the caller's promise.
    find_joined(unsafe { CStr::from_ptr(wanted) }.to_bytes(), b"")
}

/// Returns the entry whose name is `stem` followed by `suffix`.
pub fn find_joined(stem: &[u8], suffix: &[u8]) -> Option<usize> {
    let bytes = || stem.iter().chain(suffix).copied();
    let mut place = bytes().fold(SEED, hash_byte) as usize % SIZE;
    loop {
        let entry = usize::from(*INDEX.get(place)?).checked_sub(1)?;
        if name_of(entry).to_bytes().iter().copied().eq(bytes()) {
            return Some(entry);
        }
        place = (place + 1) % SIZE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn every_name_finds_itself_and_only_itself() {
        let names: Vec<&str> = NAMES.split_terminator('\0').collect();
        assert_eq!(names.len(), COUNT);
        for (entry, text) in names.iter().enumerate() {
            let wanted = CString::new(*text).unwrap();
            // SAFETY: both are C strings.
            unsafe {
                assert_eq!(find(wanted.as_ptr()), Some(entry), "{text} is in the table twice");
                assert_eq!(CStr::from_ptr(name(entry)), wanted.as_c_str());
            }
        }
        for other in [c"", c"curl_easy_init", c"cublasCreate_v2", c"cuMemAlloc_v", c"cuMemAlloc_v22", c"nvtxMarkA"] {
            // SAFETY: a C string.
            assert_eq!(unsafe { find(other.as_ptr()) }, None);
        }
    }
}

//! Loaded libraries: what each takes in a context, and the contexts that it is in.

use crate::image::Globals;
use crate::memory::objects::context_table::Current;
use crate::memory::objects::handle_map::Table;
use vgpu_cuda_abi::cuda::Handle;

/// Declared bytes of global arrays by library, and [`MALLOCS`].
pub static GLOBALS: Table = Table::new();
/// Bit of a library whose kernels call `malloc`.
const MALLOCS: u64 = 1 << 63;
/// Libraries by kernel.
pub static KERNELS: Table = Table::new();
/// Libraries in contexts, both in the key ([`key`]).
pub static LOADED: Table = Table::new();

/// Packs the globals of a library into a word.
pub fn pack(globals: Globals) -> u64 {
    globals.bytes.min(MALLOCS - 1) | if globals.mallocs { MALLOCS } else { 0 }
}

/// Undoes [`pack`].
pub fn unpack(word: u64) -> Globals {
    Globals { bytes: word & !MALLOCS, mallocs: word & MALLOCS != 0, ..Globals::NONE }
}

/// Returns the key of a library in a context. Handles are addresses of 47 bits.
pub fn key(library: Handle, context: u8) -> u64 {
    library as u64 | (u64::from(context) + 1) << 48
}

/// Returns true if a library is in the current context. Contexts beyond the table share a place, which tells nothing about each.
pub fn is_in(library: Handle, current: Current) -> bool {
    current.context.is_some() && LOADED.get(key(library, current.id)).is_some()
}

/// Removes the libraries of a destroyed context.
pub fn forget_context(id: u8) {
    let loaded = LOADED.iter().map(|(key, _)| key).filter(|key| key >> 48 == u64::from(id) + 1);
    loaded.for_each(|key| _ = LOADED.remove(key));
}

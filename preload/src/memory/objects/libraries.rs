//! Libraries that were loaded: what each takes in a context, and where it is loaded.

use crate::image::globals::Globals;
use crate::memory::objects::context_table::Current;
use crate::memory::objects::handle_map::Table;
use vgpu_cuda_abi::cuda::Handle;

/// Bytes of global arrays by library, as far as they are in plain sight, and [`MALLOCS`].
pub static GLOBALS: Table = Table::new();
/// Its kernels call `malloc`.
const MALLOCS: u64 = 1 << 63;
/// Kernels to their libraries.
pub static KERNELS: Table = Table::new();
/// Libraries that are in a context: both in the key.
pub static LOADED: Table = Table::new();

pub fn pack(globals: Globals) -> u64 {
    globals.bytes.min(MALLOCS - 1) | if globals.mallocs { MALLOCS } else { 0 }
}

pub fn unpack(word: u64) -> Globals {
    Globals { bytes: word & !MALLOCS, mallocs: word & MALLOCS != 0, ..Globals::NONE }
}

/// A library in a context. Handles are addresses of 47 bits.
pub fn key(library: Handle, context: u8) -> u64 {
    library as u64 | (u64::from(context) + 1) << 48
}

/// Whether a library is in the current context. Those beyond the table share a place, which tells nothing about each.
pub fn is_in(library: Handle, current: Current) -> bool {
    current.known.is_some() && LOADED.get(key(library, current.id)).is_some()
}

/// A context is gone, and what was loaded into it.
pub fn forget_context(id: u8) {
    let loaded = LOADED.iter().map(|(key, _)| key).filter(|key| key >> 48 == u64::from(id) + 1);
    loaded.for_each(|key| _ = LOADED.remove(key));
}

//! Modules, libraries and their kernels.

use std::collections::HashMap;

use super::ptx::{Entry, Image};

/// Module in a context.
pub struct Module {
    pub context: usize,
    pub image: Image,
    /// Address and size of each global.
    pub globals: HashMap<String, (u64, u64)>,
    pub functions: HashMap<String, usize>,
}

/// Kernel of a module or library.
#[derive(Clone)]
pub struct Function {
    pub name: String,
    /// Handle of the module or library.
    pub owner: usize,
    /// Context that it belongs to; `None` for a kernel of a library.
    pub context: Option<usize>,
    pub entry: Entry,
    /// True if the image calls `malloc` on the GPU.
    pub uses_malloc: bool,
}

/// Library, with its kernels by name and its module in each context that uses it.
pub struct Library {
    pub image: Image,
    pub kernels: HashMap<String, usize>,
    pub modules: HashMap<usize, usize>,
}

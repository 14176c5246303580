//! Records of the objects of this process (contexts, allocations, pools, graphs, arrays, physical memory) and their charges.

pub mod address_map;
pub mod array_layout;
pub mod arrays;
pub mod captures;
pub mod checked_functions;
pub mod context_limits;
pub mod context_table;
pub mod exports;
pub mod graph_memory;
pub mod handle_map;
pub mod heap;
pub mod libraries;
pub mod linear;
pub mod orphans;
pub mod pending_frees;
pub mod physical;
pub mod physical_counts;
pub mod pool_table;
pub mod reservoir;
pub mod reservoirs;
pub mod slots;
pub mod small_arrays;
pub mod usual_pool;
pub mod virtual_handles;

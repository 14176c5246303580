//! Handlers of the intercepted entry points. The rows of [`crate::table`] name them; rows of one kind share a handler.
//!
//! Most get the program's call as a closure and the arguments that they need. A handler is `unsafe` if it reads or writes through such an
//! argument: a pointer that the program passes to the driver in the same call, so it is null or as CUDA documents, and is valid once the
//! call succeeded.

pub mod alloc;
pub mod arrays;
pub mod capture;
pub mod context_end;
pub mod contexts;
pub mod copy;
pub mod graph_contents;
pub mod graph_nodes;
pub mod graphs;
pub mod green_contexts;
pub mod handles;
pub mod host_moves;
pub mod init;
pub mod ipc;
pub mod launch;
pub mod libraries;
pub mod local_memory;
pub mod memory_info;
pub mod modules;
pub mod movable;
pub mod multicast;
pub mod nvml_memory;
pub mod nvml_processes;
pub mod nvml_utilization;
pub mod ordered;
pub mod pools;
pub mod set_limit;
pub mod spill;
pub mod stream_order;
pub mod streams;
pub mod sync;
pub mod vmm;

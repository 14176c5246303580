//! Memory beyond the card: the memory of an evictable container moves to the host while others need the GPU's, and comes back to the same
//! addresses before the next call that needs it.
//!
//! * [`block`]: memory that can move: physical memory, mapped at an address that stays reserved while it is away.
//! * [`blocks`]: linear memory that can move, which the library makes of such blocks, and all blocks.
//! * [`mappings`]: memory of the program's own virtual memory management that can move.
//! * [`gate`]: no call that may touch device memory runs while memory is away. Calls count themselves in and out.
//! * [`mover`]: the thread that moves memory out and in, as the arbiter says and as calls need it, and copies it ahead while it is idle.
//! * [`transfer`]: copies of blocks to the host and back.
//! * [`within`]: work in one of the process's contexts, or in all.
//! * [`host_memory`]: how much host memory is made, and when. [`store`]: that memory.
//! * [`orders`]: the arbiter's orders for this process.
//! * [`counters`]: figures about moves.
//! * [`room`]: asks the arbiter for room when the device is full, though the container's limit is not.
//! * [`heart`]: whether the arbiter lives. What a dead one has ordered is void.
//!
//! Invariants:
//! * A block is unmapped only after every call has left the gate, the GPU has finished its work in every context, and its copy has
//!   succeeded.
//! * What was copied ahead counts only if no call has entered the gate since the GPU's work had ended before the copy.
//! * While the mover uses contexts, none is ended; while one is being ended, nothing moves.
//! * The gate opens only when everything is back. A block that cannot be copied to the host stays; one that cannot be copied back is not
//!   mapped, so that the program gets a fault and no wrong word.
//! * A process that comes back keeps a part of its memory on the device only while others leave for it, as the arbiter says; at any other
//!   time it takes all or nothing. So two that come back never wait for each other.
//!
//! What does not move stays charged and on the device: contexts, modules, arrays, small allocations, pools, managed memory, and physical
//! memory of the program's that is exported, or has not one mapping.

mod block;
pub mod blocks;
mod counters;
pub mod gate;
mod heart;
mod host_memory;
mod mappings;
pub mod mover;
mod orders;
pub mod room;
mod store;
mod transfer;
pub mod within;

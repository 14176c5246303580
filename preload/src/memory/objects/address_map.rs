//! A map of the address space in blocks of 2 MiB, the size in which the driver places device memory: one word a block. Small allocations
//! share a block, which counts them; a large one is recorded at its first block.
//!
//! The words are in a two-level table whose leaves are made when first needed, so a look-up is two loads.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU64};

use crate::os::mmap;

/// Logarithm of a block's size in bytes.
const SHIFT: u32 = 21;
/// Number of blocks in a leaf.
const LEAF: usize = 1 << 13;
/// Number of leaves: together they cover addresses of 47 bits.
const ROOT: usize = 1 << 13;
/// Words of adjacent blocks.
type Leaf = [AtomicU64; LEAF];
/// The leaves; null where nothing was recorded yet.
static TABLE: [AtomicPtr<Leaf>; ROOT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; ROOT];

/// The record of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of allocations in it; 1 for a large one.
    pub count: u32,
    /// Size in granules: 1 if shared, the whole size of a large allocation.
    pub granules: u32,
    /// Context that it was allocated in, by its place in [`super::context_table`].
    pub context: u8,
    /// Kind of memory.
    pub kind: Kind,
}

/// Kind of memory in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Allocations of less than a granule, together.
    Shared = 1,
    /// One larger allocation.
    Large = 2,
    /// Managed memory, shared or not: NVML does not list it by process.
    Managed = 3,
    /// Managed memory that lies on the host, shared or not: see `hooks::spill`.
    Spilled = 4,
    /// A mapping of physical memory; its handle is in [`super::physical`].
    Mapping = 5,
}

impl Block {
    /// Returns the block as a word of the table.
    fn pack(self) -> u64 {
        u64::from(self.kind as u8) << 60
            | u64::from(self.context) << 52
            | u64::from(self.granules & 0xfff_ffff) << 16
            | u64::from(self.count & 0xffff)
    }

    /// Returns the block of a word; `None` if the word records none.
    fn unpack(word: u64) -> Option<Self> {
        let kind = match word >> 60 {
            1 => Kind::Shared,
            2 => Kind::Large,
            3 => Kind::Managed,
            4 => Kind::Spilled,
            5 => Kind::Mapping,
            _ => return None,
        };
        Some(Self { count: (word & 0xffff) as u32, granules: (word >> 16 & 0xfff_ffff) as u32, context: (word >> 52) as u8, kind })
    }
}

/// Returns the word of the block that an address lies in; `None` if its leaf was not made yet.
#[inline]
fn word(address: u64) -> Option<&'static AtomicU64> {
    let block = (address >> SHIFT) as usize;
    // SAFETY: null or a leaf that is never removed.
    unsafe { TABLE.get(block / LEAF)?.load(Acquire).as_ref()?.get(block % LEAF) }
}

/// Returns the word of the block that an address lies in, and makes its leaf. `None` without memory, or beyond the table.
fn word_made(address: u64) -> Option<&'static AtomicU64> {
    let root = TABLE.get((address >> SHIFT) as usize / LEAF)?;
    if root.load(Relaxed).is_null() {
        let leaf = mmap::allocate::<Leaf>();
        if !leaf.is_null() && root.compare_exchange(core::ptr::null_mut(), leaf, AcqRel, Acquire).is_err() {
            // SAFETY: a mapping that no other thread has seen.
            unsafe { libc::munmap(leaf.cast(), size_of::<Leaf>()) };
        }
    }
    word(address)
}

/// Returns the block that an address lies in.
#[inline]
pub fn get(address: u64) -> Option<Block> {
    Block::unpack(word(address)?.load(Acquire))
}

/// A block in one word, as in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed(u64);

impl Packed {
    /// Returns the block.
    pub fn block(self) -> Option<Block> {
        Block::unpack(self.0)
    }
}

/// Result of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The block was not recorded: its granules are new.
    New,
    /// As [`Entered::New`]; it replaced the block of a context that is being destroyed, whose charge the caller must give back.
    InsteadOf(Packed),
    /// The block was recorded: the driver found room in it.
    Joined,
    /// The address cannot be recorded.
    NoRoom,
}

/// Bits of the count.
const COUNT: u64 = 0xffff;
/// Bits of kind and granules.
const LIKE: u64 = 0xf << 60 | 0xfff_ffff << 16;
/// Bits of the context.
const CONTEXT: u64 = 0xff << 52;

/// Records an allocation at `address`.
pub fn enter(address: u64, block: Block) -> Entered {
    let Some(word) = word_made(address) else { return Entered::NoRoom };
    let fresh = block.pack();
    let shares = block.granules == 1 && block.kind != Kind::Large;
    let mut seen = word.load(Acquire);
    loop {
        let joins = shares && seen & COUNT != COUNT && ((seen ^ fresh) & (LIKE | CONTEXT) == 0 || are_managed(seen, fresh));
        let next = if joins { seen + 1 } else { fresh };
        match word.compare_exchange_weak(seen, next, AcqRel, Acquire) {
            Ok(_) if joins => return Entered::Joined,
            Ok(_) => return instead_of(seen, block),
            Err(now) => seen = now,
        }
    }
}

/// Counts one more small allocation in the block at `address`. Returns false if it is not a shared block of this context.
#[inline]
pub fn join(address: u64, context: u8) -> bool {
    let Some(word) = word(address) else { return false };
    let like = Block { count: 0, granules: 1, context, kind: Kind::Shared }.pack();
    let mut seen = word.load(Acquire);
    while seen & !COUNT == like && seen & COUNT != COUNT {
        match word.compare_exchange_weak(seen, seen + 1, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// Returns [`Entered::InsteadOf`] if the word held the block of another context. Contexts share no granules (seen on driver 580), and
/// mappings, which belong to no context, share none with them, so that context is being destroyed.
fn instead_of(seen: u64, new: Block) -> Entered {
    let is_anothers = |block: &Block| block.context != new.context || new.kind == Kind::Mapping;
    let linear = |block: &Block| is_anothers(block) && matches!(block.kind, Kind::Shared | Kind::Large);
    Block::unpack(seen).filter(linear).map_or(Entered::New, |_| Entered::InsteadOf(Packed(seen)))
}

/// Returns true if both are shared blocks of managed memory, which may be on the device or the host.
#[cold]
fn are_managed(one: u64, other: u64) -> bool {
    let is = |word| Block::unpack(word).is_some_and(|block| block.granules == 1 && matches!(block.kind, Kind::Managed | Kind::Spilled));
    is(one) && is(other)
}

/// Removes one allocation from the block at `address`. Called before the driver frees it, as the driver may give the address to another
/// thread at once. Returns the block with the count that is left. [`put_back`] undoes it.
#[inline]
pub fn leave(address: u64) -> Option<Block> {
    let word = word(address)?;
    let mut seen = word.load(Acquire);
    loop {
        let block = Block::unpack(seen)?;
        if block.kind == Kind::Mapping {
            return None;
        }
        // A block in use counts at least one.
        match word.compare_exchange_weak(seen, if block.count == 1 { 0 } else { seen - 1 }, AcqRel, Acquire) {
            Ok(_) => return Some(Block { count: block.count - 1, ..block }),
            Err(now) => seen = now,
        }
    }
}

/// Undoes [`leave`] after the driver refused the free.
pub fn put_back(address: u64, block: Block) {
    enter(address, Block { count: 1, ..block });
}

/// Removes the whole block at `address` if it is of this kind.
pub fn take(address: u64, kind: Kind) -> Option<Block> {
    let word = word(address)?;
    let seen = word.load(Acquire);
    let block = Block::unpack(seen).filter(|block| block.kind == kind)?;
    word.compare_exchange(seen, 0, AcqRel, Acquire).ok().map(|_| block)
}

/// Removes the whole block at `address` if it is of this context.
pub fn take_of(address: u64, context: u8) -> Option<Block> {
    let is = |word| Block::unpack(word).is_some_and(|block| block.context == context && block.kind != Kind::Mapping);
    let taken = word(address)?.fetch_update(AcqRel, Acquire, |word| is(word).then_some(0)).ok()?;
    Block::unpack(taken)
}

/// Calls `visit` with every recorded block and its first address.
pub fn for_each(mut visit: impl FnMut(u64, Block)) {
    for (high, root) in TABLE.iter().enumerate() {
        // SAFETY: null or a leaf that is never removed.
        let Some(leaf) = (unsafe { root.load(Acquire).as_ref() }) else { continue };
        for (low, word) in leaf.iter().enumerate() {
            if let Some(block) = Block::unpack(word.load(Acquire)) {
                visit(((high * LEAF + low) as u64) << SHIFT, block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SHARED: Block = Block { count: 1, granules: 1, context: 3, kind: Kind::Shared };

    #[test]
    fn small_allocations_share_a_block_that_counts_them() {
        let at = 0x7f00_0020_0000;
        assert!(!join(at, 3), "no block is recorded");
        assert_eq!(enter(at, SHARED), Entered::New);
        assert_eq!(enter(at + 512, SHARED), Entered::Joined);
        assert_eq!(get(at + 0x1f_ffff), Some(Block { count: 2, ..SHARED }));
        assert!(join(at + 1024, 3) && !join(at + 1024, 4) && leave(at + 1024).is_some());
        assert_eq!(leave(at + 512).map(|block| block.count), Some(1));
        assert_eq!(leave(at).map(|block| block.count), Some(0));
        assert_eq!(leave(at), None);
        assert!(!join(at, 3), "the block is gone");
        let (full, large) = (Block { count: 0xffff, ..SHARED }, Block { kind: Kind::Large, ..SHARED });
        assert_eq!((enter(at, full), join(at, 3), enter(at + GIB, large), join(at + GIB, 3)), (Entered::New, false, Entered::New, false));
    }

    #[test]
    fn a_failed_free_is_undone() {
        let at = 0x7f01_0020_0000;
        let large = Block { count: 1, granules: 1000, context: 0, kind: Kind::Large };
        assert_eq!(enter(at, large), Entered::New);
        let left = leave(at).unwrap();
        assert_eq!(get(at), None);
        put_back(at, left);
        assert_eq!(get(at), Some(large));
        assert_eq!(take(at, Kind::Shared), None);
        assert_eq!(take(at, Kind::Large), Some(large));
    }

    #[test]
    fn a_block_of_a_context_being_destroyed_is_replaced() {
        let at = 0x7f02_0020_0000;
        assert_eq!((enter(at, SHARED), enter(at + 512, SHARED)), (Entered::New, Entered::Joined));
        let other = Block { context: 4, ..SHARED };
        assert_eq!(enter(at + 512, other), Entered::InsteadOf(Packed(Block { count: 2, ..SHARED }.pack())));
        assert_eq!(get(at), Some(other));
        let large = Block { granules: 3, kind: Kind::Large, ..SHARED };
        assert_eq!(enter(at, large), Entered::InsteadOf(Packed(other.pack())));
        let mapping = Block { kind: Kind::Mapping, ..large };
        assert_eq!(enter(at, mapping), Entered::InsteadOf(Packed(large.pack())), "mappings belong to no context");
        assert_eq!(enter(at, mapping), Entered::New);
        let managed = Block { kind: Kind::Managed, ..SHARED };
        assert_eq!((enter(at + GIB, managed), enter(at + GIB, Block { context: 4, ..managed })), (Entered::New, Entered::Joined));
    }

    #[test]
    fn addresses_beyond_user_space_are_not_recorded() {
        assert_eq!(get(u64::MAX), None);
        assert_eq!(leave(1 << 47), None);
        assert_eq!(enter(u64::MAX, SHARED), Entered::NoRoom);
    }
}

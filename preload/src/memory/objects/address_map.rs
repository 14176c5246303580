//! What lies at each 2 MiB of the address space: the driver places device memory in blocks of that size, so one word for each tells
//! what an address belongs to. Small allocations share a block, which counts them; a large one is known by its first block.
//!
//! The words stand in a two-level table, leaves made when first needed, so looking one up is two loads.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU64};

use crate::os::mmap;

const SHIFT: u32 = 21;
const LEAF: usize = 1 << 13;
const ROOT: usize = 1 << 13;
type Leaf = [AtomicU64; LEAF];
static TABLE: [AtomicPtr<Leaf>; ROOT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; ROOT];

/// What a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// How many allocations are in it; 1 for a large one.
    pub count: u32,
    /// Granules that it stands for: 1 if shared, the whole size of a large one.
    pub granules: u32,
    /// The context that it was allocated in, by its place in [`super::known`].
    pub context: u8,
    /// What kind of memory.
    pub kind: Kind,
}

/// What kind of memory a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Allocations of less than a granule, together.
    Shared = 1,
    /// One larger allocation.
    Large = 2,
    /// Managed memory, shared or not: NVML does not list it by process.
    Managed = 3,
    /// Managed memory that lies on the host, shared or not: see [`super::spill`].
    Spilled = 4,
    /// A mapping of physical memory; `granules` is its size, its handle is in [`super::physical`].
    Mapping = 5,
}

impl Block {
    fn pack(self) -> u64 {
        u64::from(self.kind as u8) << 60
            | u64::from(self.context) << 52
            | u64::from(self.granules & 0xfff_ffff) << 16
            | u64::from(self.count & 0xffff)
    }

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

#[inline]
fn word(address: u64) -> Option<&'static AtomicU64> {
    let block = (address >> SHIFT) as usize;
    // SAFETY: null or a leaf that is never removed.
    unsafe { TABLE.get(block / LEAF)?.load(Acquire).as_ref()?.get(block % LEAF) }
}

fn word_made(address: u64) -> Option<&'static AtomicU64> {
    let root = TABLE.get((address >> SHIFT) as usize / LEAF)?;
    if root.load(Relaxed).is_null() {
        let leaf = mmap::allocate::<Leaf>();
        if !leaf.is_null() && root.compare_exchange(core::ptr::null_mut(), leaf, AcqRel, Acquire).is_err() {
            // SAFETY: ours, and seen by nobody.
            unsafe { libc::munmap(leaf.cast(), size_of::<Leaf>()) };
        }
    }
    word(address)
}

/// The block that an address lies in.
#[inline]
pub fn get(address: u64) -> Option<Block> {
    Block::unpack(word(address)?.load(Acquire))
}

/// A block in one word, as it stands in the table: small allocations, which are many, hand it around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed(u64);

impl Packed {
    /// What it says.
    pub fn block(self) -> Option<Block> {
        Block::unpack(self.0)
    }
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The block was not known: its granules are new.
    New,
    /// The same; a block was known there of a context that is being destroyed, and is gone: what it cost is to be given back.
    InsteadOf(Packed),
    /// The block was there: the driver found room in it.
    Joined,
    /// There is no place to note it.
    NoRoom,
}

const COUNT: u64 = 0xffff;
/// Kind and granules.
const LIKE: u64 = 0xf << 60 | 0xfff_ffff << 16;
const CONTEXT: u64 = 0xff << 52;

/// Notes an allocation at `address`.
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

/// Counts one more small allocation in the block at `address`, if it is one of this context's blocks for them.
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

/// What a new block came in the place of, if anything: contexts share no granules (seen on driver 580), nor do mappings, which are no
/// context's, so another's is on its way out.
fn instead_of(seen: u64, new: Block) -> Entered {
    let is_anothers = |block: &Block| block.context != new.context || new.kind == Kind::Mapping;
    let linear = |block: &Block| is_anothers(block) && matches!(block.kind, Kind::Shared | Kind::Large);
    Block::unpack(seen).filter(linear).map_or(Entered::New, |_| Entered::InsteadOf(Packed(seen)))
}

/// Small allocations of managed memory share blocks, wherever they lie.
#[cold]
fn are_managed(one: u64, other: u64) -> bool {
    let is = |word| Block::unpack(word).is_some_and(|block| block.granules == 1 && matches!(block.kind, Kind::Managed | Kind::Spilled));
    is(one) && is(other)
}

/// Takes one allocation out of the block at `address`, before the driver is asked to free it: afterwards another thread may be given
/// the same address. Gives the block with the count that is left. [`put_back`] undoes it.
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

/// The driver did not free it after all.
pub fn put_back(address: u64, block: Block) {
    enter(address, Block { count: 1, ..block });
}

/// Takes out the whole block at `address`, if it is of this kind.
pub fn take(address: u64, kind: Kind) -> Option<Block> {
    let word = word(address)?;
    let seen = word.load(Acquire);
    let block = Block::unpack(seen).filter(|block| block.kind == kind)?;
    word.compare_exchange(seen, 0, AcqRel, Acquire).ok().map(|_| block)
}

/// Takes out the whole block at `address`, if it is of this context.
pub fn take_of(address: u64, context: u8) -> Option<Block> {
    let is = |word| Block::unpack(word).is_some_and(|block| block.context == context && block.kind != Kind::Mapping);
    let taken = word(address)?.fetch_update(AcqRel, Acquire, |word| is(word).then_some(0)).ok()?;
    Block::unpack(taken)
}

/// Calls `visit` with every known block's first address.
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
    fn small_ones_share_and_the_last_one_out_is_told() {
        let at = 0x7f00_0020_0000;
        assert!(!join(at, 3), "nothing is known there");
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
    fn a_context_on_its_way_out_leaves_its_blocks_to_whoever_is_given_them() {
        let at = 0x7f02_0020_0000;
        assert_eq!((enter(at, SHARED), enter(at + 512, SHARED)), (Entered::New, Entered::Joined));
        let other = Block { context: 4, ..SHARED };
        assert_eq!(enter(at + 512, other), Entered::InsteadOf(Packed(Block { count: 2, ..SHARED }.pack())));
        assert_eq!(get(at), Some(other));
        let large = Block { granules: 3, kind: Kind::Large, ..SHARED };
        assert_eq!(enter(at, large), Entered::InsteadOf(Packed(other.pack())));
        let mapping = Block { kind: Kind::Mapping, ..large };
        assert_eq!(enter(at, mapping), Entered::InsteadOf(Packed(large.pack())), "a mapping is no context's, whatever stands there");
        assert_eq!(enter(at, mapping), Entered::New);
        let managed = Block { kind: Kind::Managed, ..SHARED };
        assert_eq!((enter(at + GIB, managed), enter(at + GIB, Block { context: 4, ..managed })), (Entered::New, Entered::Joined));
    }

    #[test]
    fn addresses_beyond_user_space_are_nobodys() {
        assert_eq!(get(u64::MAX), None);
        assert_eq!(leave(1 << 47), None);
        assert_eq!(enter(u64::MAX, SHARED), Entered::NoRoom);
    }
}

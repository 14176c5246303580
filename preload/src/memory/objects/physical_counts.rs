//! The record of physical memory in one word: its size and its reference counts.

use vgpu_cuda_abi::cuda::Device;

/// Physical memory.
#[derive(Clone, Copy)]
pub struct Physical {
    /// Size in granules; 0 if it is charged elsewhere, or has no memory of its own.
    pub granules: u32,
    /// Device of the memory.
    pub device: Device,
    /// Number of handles.
    pub handles: u32,
    /// Number of mappings and other keepers.
    pub mappings: u32,
}

/// Bits of each of granules, handles and mappings.
const BITS: u32 = 20;
/// Highest count; a call that would exceed it is refused.
pub const MOST: u32 = (1 << BITS) - 1;
const _: () = assert!(vgpu_region::MAX_GPUS <= 1 << (u64::BITS - 3 * BITS));

/// Kind of reference that keeps memory alive.
#[derive(Clone, Copy)]
pub enum By {
    /// A handle.
    Handle,
    /// A mapping, or another keeper that is counted as one.
    Mapping,
}

impl Physical {
    /// Packs it into one word.
    pub fn pack(self) -> u64 {
        let bits = |count: u32, place: u32| u64::from(count & MOST) << (place * BITS);
        (self.device as u64) << (3 * BITS) | bits(self.granules, 2) | bits(self.handles, 1) | bits(self.mappings, 0)
    }

    /// Undoes [`Physical::pack`].
    pub fn unpack(word: u64) -> Self {
        let bits = |place: u32| (word >> (place * BITS)) as u32 & MOST;
        Self { granules: bits(2), device: (word >> (3 * BITS)) as Device, handles: bits(1), mappings: bits(0) }
    }

    /// Returns the count of one kind of reference.
    pub fn count(&mut self, by: By) -> &mut u32 {
        match by {
            By::Handle => &mut self.handles,
            By::Mapping => &mut self.mappings,
        }
    }

    /// Returns true if nothing refers to it any more.
    pub fn is_unreferenced(self) -> bool {
        self.handles == 0 && self.mappings == 0
    }

    /// Returns true if it has no memory of its own: a multicast object, or an import, which may be one.
    pub fn is_object(self) -> bool {
        self.granules == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_every_count() {
        let word = Physical { granules: 0xabcde, device: 15, handles: 0x12345, mappings: 0x54321 }.pack();
        let Physical { granules, device, handles, mappings } = Physical::unpack(word);
        assert_eq!((granules, device, handles, mappings), (0xabcde, 15, 0x12345, 0x54321));
    }
}

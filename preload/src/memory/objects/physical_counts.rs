//! What is known of physical memory, in one word: its size, and how many things keep it.

use vgpu_cuda_abi::cuda::Device;

/// Physical memory.
#[derive(Clone, Copy)]
pub struct Physical {
    /// Its size; 0 if it is charged elsewhere, or has none of its own.
    pub granules: u32,
    /// Whose memory it is.
    pub device: Device,
    /// How many handles it has.
    pub handles: u32,
    /// How many mappings, and whatever else keeps it.
    pub mappings: u32,
}

/// Granules, handles and mappings are kept in so many bits each.
const BITS: u32 = 20;
/// No count goes higher: what cannot be counted is refused.
pub const MOST: u32 = (1 << BITS) - 1;
const _: () = assert!(vgpu_region::MAX_GPUS <= 1 << (u64::BITS - 3 * BITS));

/// What keeps memory alive.
#[derive(Clone, Copy)]
pub enum By {
    /// A handle.
    Handle,
    /// A mapping, or something else that is noted as one.
    Mapping,
}

impl Physical {
    /// In one word.
    pub fn pack(self) -> u64 {
        let bits = |count: u32, place: u32| u64::from(count & MOST) << (place * BITS);
        (self.device as u64) << (3 * BITS) | bits(self.granules, 2) | bits(self.handles, 1) | bits(self.mappings, 0)
    }

    /// Undoes [`Physical::pack`].
    pub fn unpack(word: u64) -> Self {
        let bits = |place: u32| (word >> (place * BITS)) as u32 & MOST;
        Self { granules: bits(2), device: (word >> (3 * BITS)) as Device, handles: bits(1), mappings: bits(0) }
    }

    /// How many of these there are.
    pub fn count(&mut self, by: By) -> &mut u32 {
        match by {
            By::Handle => &mut self.handles,
            By::Mapping => &mut self.mappings,
        }
    }

    /// Whether nothing keeps it any more.
    pub fn is_gone(self) -> bool {
        self.handles == 0 && self.mappings == 0
    }

    /// Without memory of its own: a multicast object, or what was imported, which may be one.
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

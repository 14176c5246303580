//! Unpacks what fat binaries have compressed, into memory that is mapped for it and gone afterwards.

use core::ffi::c_void;

use crate::os::mmap;

/// How something is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstd,
    /// By something newer.
    Unknown,
}

/// Nothing larger is unpacked.
const LONGEST: usize = 1 << 30;

/// Unpacks `bytes` bytes and lets `read` see them. `None` if that cannot be done.
pub fn with<T>(packed: &[u8], bytes: usize, how: Packing, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    if bytes > LONGEST {
        return None;
    }
    let own = match how {
        // SAFETY: the call only tells a number.
        Packing::Zstd => unsafe { zstd_sys::ZSTD_estimateDCtxSize() }.next_multiple_of(64),
        Packing::Lz4 => 0,
        Packing::Unknown => return None,
    };
    let start = mmap::map_anonymous(own + bytes);
    if start.is_null() {
        return None;
    }
    // SAFETY: a mapping of that length, which nobody else has, for as long as the slice is used.
    unsafe {
        let unpacked = core::slice::from_raw_parts_mut(start.cast::<u8>().add(own), bytes);
        let length = match how {
            Packing::Lz4 => unpack_lz4(packed, unpacked),
            _ => unpack_zstd(start, own, packed, unpacked),
        };
        let answer = length.filter(|&length| length == bytes).map(|_| read(unpacked));
        libc::munmap(start, own + bytes);
        answer
    }
}

fn unpack_lz4(packed: &[u8], unpacked: &mut [u8]) -> Option<usize> {
    let lengths = (i32::try_from(packed.len()).ok()?, i32::try_from(unpacked.len()).ok()?);
    // SAFETY: the unpacker keeps to what it is given to read, and to where it shall write.
    let length = unsafe { lz4_sys::LZ4_decompress_safe(packed.as_ptr().cast(), unpacked.as_mut_ptr().cast(), lengths.0, lengths.1) };
    usize::try_from(length).ok()
}

/// # Safety
/// `own` bytes at `start` are the unpacker's, and as many as it wants.
unsafe fn unpack_zstd(start: *mut c_void, own: usize, packed: &[u8], unpacked: &mut [u8]) -> Option<usize> {
    // SAFETY: the unpacker keeps to its own memory, to what it is given to read, and to where it shall write.
    unsafe {
        let unpacker = zstd_sys::ZSTD_initStaticDCtx(start, own);
        if unpacker.is_null() {
            return None;
        }
        let (to, from) = (unpacked.as_mut_ptr().cast(), packed.as_ptr().cast());
        let length = zstd_sys::ZSTD_decompressDCtx(unpacker, to, unpacked.len(), from, packed.len());
        (zstd_sys::ZSTD_isError(length) == 0).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_compressed_data_is_none() {
        for how in [Packing::Lz4, Packing::Zstd, Packing::Unknown] {
            assert_eq!(with(&[0xff; 100], 1000, how, |_| ()), None);
            assert_eq!(with(&[], 1000, how, |_| ()), None);
            assert_eq!(with(&[0; 10], usize::MAX, how, |_| ()), None);
        }
        // A thousand sevens: one as it is, the rest by looking back, and five more as they are.
        let packed = [0x1f, 7, 1, 0, 255, 255, 255, 210, 0x50, 7, 7, 7, 7, 7];
        assert_eq!(with(&packed, 1000, Packing::Lz4, |bytes| bytes == [7; 1000]), Some(true));
        assert_eq!(with(&packed, 999, Packing::Lz4, |_| ()), None, "more than was said");
    }
}

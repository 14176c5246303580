//! Decompresses images of fat binaries into memory that is mapped for that and unmapped afterwards.

use core::ffi::c_void;

/// Compression of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstd,
    /// An algorithm that is not known.
    Unknown,
}

/// Largest image that is decompressed, in bytes.
const LONGEST: usize = 1 << 30;

/// Decompresses an image of `bytes` bytes and passes it to `read`. `None` if the data is damaged or memory is short.
pub fn with<T>(packed: &[u8], bytes: usize, packing: Packing, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    if bytes > LONGEST {
        return None;
    }
    let state = match packing {
        // SAFETY: the call takes nothing and returns a number.
        Packing::Zstd => unsafe { zstd_sys::ZSTD_estimateDCtxSize() }.next_multiple_of(64),
        Packing::Lz4 => 0,
        Packing::Unknown => return None,
    };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), state + bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: a fresh mapping of that length, which outlives the slice.
    unsafe {
        let unpacked = core::slice::from_raw_parts_mut(start.cast::<u8>().add(state), bytes);
        let length = match packing {
            Packing::Lz4 => unpack_lz4(packed, unpacked),
            _ => unpack_zstd(start, state, packed, unpacked),
        };
        let answer = length.filter(|&length| length == bytes).map(|_| read(unpacked));
        libc::munmap(start, state + bytes);
        answer
    }
}

/// Decompresses an LZ4 block and returns its length in bytes.
fn unpack_lz4(packed: &[u8], unpacked: &mut [u8]) -> Option<usize> {
    let lengths = (i32::try_from(packed.len()).ok()?, i32::try_from(unpacked.len()).ok()?);
    // SAFETY: the function stays within both buffers.
    let length = unsafe { lz4_sys::LZ4_decompress_safe(packed.as_ptr().cast(), unpacked.as_mut_ptr().cast(), lengths.0, lengths.1) };
    usize::try_from(length).ok()
}

/// Decompresses a Zstandard frame and returns its length in bytes.
///
/// # Safety
/// `state` bytes at `start` are free for the decompressor's state.
unsafe fn unpack_zstd(start: *mut c_void, state: usize, packed: &[u8], unpacked: &mut [u8]) -> Option<usize> {
    // SAFETY: the function stays within its state and both buffers.
    unsafe {
        let unpacker = zstd_sys::ZSTD_initStaticDCtx(start, state);
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
    fn damaged_data_is_refused() {
        for packing in [Packing::Lz4, Packing::Zstd, Packing::Unknown] {
            assert_eq!(with(&[0xff; 100], 1000, packing, |_| ()), None);
            assert_eq!(with(&[], 1000, packing, |_| ()), None);
            assert_eq!(with(&[0; 10], usize::MAX, packing, |_| ()), None);
        }
        // A thousand sevens: one literal, a match for the rest, and five more literals.
        let packed = [0x1f, 7, 1, 0, 255, 255, 255, 210, 0x50, 7, 7, 7, 7, 7];
        assert_eq!(with(&packed, 1000, Packing::Lz4, |bytes| bytes == [7; 1000]), Some(true));
        assert_eq!(with(&packed, 999, Packing::Lz4, |_| ()), None, "longer than announced");
    }
}

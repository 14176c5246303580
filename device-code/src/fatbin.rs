//! Fat binaries, as nvcc and fatbinary 13.0 write them: several images of one program, of which the driver loads one that fits the GPU. By
//! default PTX is compressed and cubins are not.

use crate::globals::{Globals, read};
use crate::unpack::Packing;
use crate::{cubin, globals, ptx, unpack};

/// Kind of an entry: PTX text.
const PTX: u16 = 1;
/// Kind of an entry: a cubin.
const CUBIN: u16 = 2;
/// Flag of an entry: compressed with LZ4.
const LZ4: u64 = 0x2000;
/// Flag of an entry: compressed with Zstandard.
const ZSTD: u64 = 0x8000;

/// Image of a fat binary.
struct Entry {
    /// [`PTX`], [`CUBIN`] or another kind.
    kind: u16,
    /// Compute capability times ten.
    capability: u32,
    /// The image.
    image: *const u8,
    /// Size of the image in the file, in bytes.
    bytes: usize,
    /// Compression, and the size after decompression in bytes; `None` if the image is not compressed.
    packed: Option<(Packing, usize)>,
}

impl Entry {
    /// Reads the entry at the offset `at`, and returns the offset of the next one. `None` if it is damaged.
    ///
    /// # Safety
    /// The fat binary is `end` bytes long.
    unsafe fn at(fatbin: *const u8, at: usize, end: usize) -> Option<(Entry, usize)> {
        // SAFETY: the caller's promise.
        unsafe {
            let word = |offset: usize| read::<u32>(fatbin, at.checked_add(offset)?, end);
            let long = |offset: usize| read::<u64>(fatbin, at.checked_add(offset)?, end);
            let (header, payload) = (word(4)? as usize, long(8)? as usize);
            let start = at.checked_add(header)?;
            let next = start.checked_add(payload)?;
            if header < 64 || next > end {
                return None;
            }
            let (packed_bytes, flags, unpacked) = (word(16)? as usize, long(40)?, long(56)? as usize);
            let packed = match flags & (LZ4 | ZSTD) {
                0 if packed_bytes == 0 => None,
                LZ4 => Some((Packing::Lz4, unpacked)),
                ZSTD => Some((Packing::Zstd, unpacked)),
                _ => Some((Packing::Unknown, unpacked)),
            };
            let bytes = if packed.is_some() { packed_bytes.min(payload) } else { payload };
            Some((Entry { kind: word(0)? as u16, capability: word(28)?, image: fatbin.add(start), bytes, packed }, next))
        }
    }

    /// Returns the rank of the image for a GPU of the compute capability `gpu`, times ten; `None` if it does not fit. The driver prefers
    /// cubins to PTX, and newer images to older ones.
    fn rank(&self, gpu: u32) -> Option<(bool, u32)> {
        let fits = self.capability <= gpu
            && match self.kind {
                CUBIN => self.capability / 10 == gpu / 10,
                kind => kind == PTX,
            };
        fits.then_some((self.kind == CUBIN, self.capability))
    }

    /// Reads an image after decompression.
    ///
    /// # Safety
    /// `image` has `bytes` bytes.
    unsafe fn globals_in(&self, image: *const u8, bytes: usize) -> Globals {
        // SAFETY: the caller's promise.
        unsafe {
            match self.kind {
                _ if bytes <= 4 => Globals::UNKNOWN,
                CUBIN if globals::starts_with(image, globals::ELF) => cubin::globals(image, bytes),
                PTX => ptx::text_globals(image, bytes),
                _ => Globals::UNKNOWN,
            }
        }
    }

    /// Reads the image.
    ///
    /// # Safety
    /// The fat binary is still there.
    unsafe fn globals(&self) -> Globals {
        // SAFETY: the image has as many bytes as the entry says.
        unsafe {
            match self.packed {
                None => self.globals_in(self.image, self.bytes),
                Some((how, bytes)) => {
                    let packed = core::slice::from_raw_parts(self.image, self.bytes);
                    let within = |image: &[u8]| self.globals_in(image.as_ptr(), image.len());
                    unpack::with(packed, bytes, how, within).unwrap_or(Globals::UNKNOWN)
                }
            }
        }
    }
}

/// Reads a fat binary: returns the most that the images take that the driver would load on GPUs of these compute capabilities, times ten.
/// If the list is empty, or the program prefers PTX, any image counts.
///
/// # Safety
/// `fatbin` is a fat binary at most `room` bytes long.
pub unsafe fn globals(fatbin: *const u8, room: usize, capabilities: &[u32]) -> Globals {
    // SAFETY: the header holds its own size and that of the entries, each entry its own; nothing beyond `room` is read.
    unsafe {
        let (Some(header), Some(body)) = (read::<u32>(fatbin, 4, room), read::<u64>(fatbin, 8, room)) else { return Globals::UNKNOWN };
        let header = (header >> 16) as usize;
        let end = header.saturating_add(body as usize);
        let mut most = Globals { exact: end <= room, ..Globals::NONE };
        let end = end.min(room);
        let mut add = |globals: Globals| {
            most.bytes = most.bytes.max(globals.bytes);
            most.exact &= globals.exact;
            most.mallocs |= globals.mallocs;
        };
        if capabilities.is_empty() || prefers_ptx() {
            let (mut at, mut found) = (header, false);
            while at < end {
                let Some((entry, next)) = Entry::at(fatbin, at, end) else {
                    add(Globals::UNKNOWN);
                    return most;
                };
                if matches!(entry.kind, PTX | CUBIN) {
                    add(entry.globals());
                    found = true;
                }
                at = next;
            }
            // Other kinds (LTO-IR) cannot be read.
            if !found {
                add(Globals::UNKNOWN);
            }
        }
        for &gpu in capabilities {
            match best_for(fatbin, (header, end), gpu) {
                Some(entry) => add(entry.globals()),
                None => add(Globals::UNKNOWN),
            }
        }
        most
    }
}

/// Returns the image that the driver loads on a GPU. `None` if there is none, or the fat binary is damaged.
///
/// # Safety
/// As for the function [`globals`](fn@globals).
unsafe fn best_for(fatbin: *const u8, (mut at, end): (usize, usize), gpu: u32) -> Option<Entry> {
    let mut best: Option<Entry> = None;
    while at < end {
        // SAFETY: as in `globals`.
        let (entry, next) = unsafe { Entry::at(fatbin, at, end) }?;
        if entry.rank(gpu) > best.as_ref().and_then(|best| best.rank(gpu)) {
            best = Some(entry);
        }
        at = next;
    }
    best
}

/// Returns whether `CUDA_FORCE_PTX_JIT` is set.
fn prefers_ptx() -> bool {
    // SAFETY: a C string; the result is only compared with null.
    unsafe { !libc::getenv(c"CUDA_FORCE_PTX_JIT".as_ptr()).is_null() }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Output of fatbinary 13.0.88 with `-compress-all` (the second with `-compress-mode=speed`), from a PTX text for sm_90 and its cubin:
    /// an array of 256 MiB, and 64 initialised words.
    const BY_ZSTD: &[u8] = include_bytes!("testdata/zstd.fatbin");
    const BY_LZ4: &[u8] = include_bytes!("testdata/lz4.fatbin");
    const BYTES: u64 = (256 << 20) + 256;

    #[test]
    fn compressed_images_are_read() {
        for fatbin in [BY_ZSTD, BY_LZ4] {
            for (capabilities, exact) in [(&[][..], true), (&[90], true), (&[100], true), (&[80, 100], false)] {
                // SAFETY: the length is the image's.
                let globals = unsafe { globals(fatbin.as_ptr(), fatbin.len(), capabilities) };
                assert_eq!(globals, Globals { bytes: BYTES, exact, mallocs: false }, "{capabilities:?}");
            }
            // SAFETY: as above.
            let none = unsafe { globals(fatbin.as_ptr(), fatbin.len(), &[80]) };
            assert_eq!(none, Globals::UNKNOWN, "nothing in it is for sm_80");
        }
    }

    /// Output of fatbinary 13.5.37 with `-compress-all`, from a PTX text for sm_90 whose kernel calls `malloc`, and its cubin.
    const WITH_MALLOC: &[u8] = include_bytes!("testdata/malloc.fatbin");

    #[test]
    fn malloc_is_found_in_ptx_and_in_cubins() {
        // The cubin, the text, and both.
        for capabilities in [&[90][..], &[100], &[]] {
            // SAFETY: the length is the image's.
            let globals = unsafe { globals(WITH_MALLOC.as_ptr(), WITH_MALLOC.len(), capabilities) };
            assert_eq!(globals, Globals { bytes: 8, exact: true, mallocs: true }, "{capabilities:?}");
        }
        // SAFETY: as above.
        let mut code = unsafe {
            let (entry, _) = Entry::at(WITH_MALLOC.as_ptr(), 16, WITH_MALLOC.len()).unwrap();
            let (how, bytes) = entry.packed.unwrap();
            assert_eq!(entry.kind, CUBIN);
            unpack::with(core::slice::from_raw_parts(entry.image, entry.bytes), bytes, how, <[u8]>::to_vec).unwrap()
        };
        let at = |code: &[u8]| code.windows(8).position(|there| there == b"\0malloc\0");
        for end in 4..code.len() {
            let short = code[..end].to_vec();
            // SAFETY: the length is the image's.
            assert!(!unsafe { cubin::globals(short.as_ptr(), end) }.mallocs || at(&short).is_some(), "{end} bytes");
        }
        let name = at(&code).unwrap() + 1;
        code[name] = b'M';
        // SAFETY: the length is the image's.
        assert!(!unsafe { cubin::globals(code.as_ptr(), code.len()) }.mallocs, "another function");
    }

    #[test]
    fn damaged_images_are_unknown_and_never_read_past_the_end() {
        for fatbin in [BY_ZSTD, BY_LZ4, WITH_MALLOC] {
            for end in 4..fatbin.len() {
                let short = fatbin[..end].to_vec();
                for capabilities in [&[][..], &[90]] {
                    // SAFETY: the length is the image's.
                    let globals = unsafe { globals(short.as_ptr(), end, capabilities) };
                    assert!(!globals.exact, "{end} bytes");
                }
            }
            let mut random = 1_u32;
            for _ in 0..2000 {
                let mut damaged = fatbin.to_vec();
                for _ in 0..4 {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // After the first entry's header, so that decompression gets arbitrary bytes.
                    let at = 80 + random as usize % (damaged.len() - 80);
                    damaged[at] ^= (random >> 24) as u8;
                }
                // SAFETY: the length is the image's.
                unsafe {
                    globals(damaged.as_ptr(), damaged.len(), &[90]);
                    globals(damaged.as_ptr(), damaged.len(), &[]);
                }
            }
        }
    }
}

//! Fat binaries: several images of one program, of which the driver takes one that fits the GPU. Compressed or not, as nvcc and fatbinary
//! 13.0 write them: PTX is compressed unless they are told otherwise, cubins if they are told so.

use crate::image::globals::{Globals, read};
use crate::image::unpack::Packing;
use crate::image::{cubin, globals, ptx, unpack};

/// `kind` of an entry.
const PTX: u16 = 1;
const CUBIN: u16 = 2;
/// Bits of an entry's flags.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

/// One image: its header, which lies before it.
struct Entry {
    kind: u16,
    /// Compute capability times ten.
    capability: u32,
    image: *const u8,
    bytes: usize,
    /// How it is compressed, if it is, and how many bytes it is without that.
    packed: Option<(Packing, usize)>,
}

impl Entry {
    /// The entry at an offset, and the offset of the next.
    unsafe fn at(fatbin: *const u8, at: usize, end: usize) -> Option<(Entry, usize)> {
        // SAFETY: the fat binary is that long.
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

    /// Whether a GPU can get it; and the higher this is, the rather it does: cubins before PTX, newer ones before older ones.
    fn fitness(&self, own: u32) -> Option<(bool, u32)> {
        let fits = self.capability <= own
            && match self.kind {
                CUBIN => self.capability / 10 == own / 10,
                kind => kind == PTX,
            };
        fits.then_some((self.kind == CUBIN, self.capability))
    }

    unsafe fn globals_in(&self, image: *const u8, bytes: usize) -> Globals {
        // SAFETY: an image of that many bytes.
        unsafe {
            match self.kind {
                _ if bytes <= 4 => Globals::UNKNOWN,
                CUBIN if globals::starts_with(image, globals::ELF) => cubin::globals(image, bytes),
                PTX => ptx::text_globals(image, bytes),
                _ => Globals::UNKNOWN,
            }
        }
    }

    unsafe fn globals(&self) -> Globals {
        // SAFETY: the image is that long.
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

/// The most that any image takes that a GPU of one of these compute capabilities, times ten, gets. Where none is known, or a program says
/// that it would rather have PTX, it may be any image.
///
/// # Safety
/// A fat binary at most `room` bytes long.
pub unsafe fn globals(fatbin: *const u8, room: usize, capabilities: &[u32]) -> Globals {
    // SAFETY: a fat binary's header tells its own length and that of what follows; each entry tells its own; nothing beyond is read.
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
            // Of other kinds (LTO-IR) nothing is known.
            if !found {
                add(Globals::UNKNOWN);
            }
        }
        for &own in capabilities {
            match best_for(fatbin, (header, end), own) {
                Some(entry) => add(entry.globals()),
                None => add(Globals::UNKNOWN),
            }
        }
        most
    }
}

/// The image that a GPU gets. `None` if there is none, or a damaged one.
unsafe fn best_for(fatbin: *const u8, (mut at, end): (usize, usize), own: u32) -> Option<Entry> {
    let mut best: Option<Entry> = None;
    while at < end {
        // SAFETY: as in `globals`.
        let (entry, next) = unsafe { Entry::at(fatbin, at, end) }?;
        if entry.fitness(own) > best.as_ref().and_then(|best| best.fitness(own)) {
            best = Some(entry);
        }
        at = next;
    }
    best
}

/// `CUDA_FORCE_PTX_JIT`
fn prefers_ptx() -> bool {
    // SAFETY: a C string, and the answer is only compared.
    unsafe { !libc::getenv(c"CUDA_FORCE_PTX_JIT".as_ptr()).is_null() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::cubin;
    use crate::image::globals::Globals;
    use crate::image::unpack;

    /// What fatbinary 13.0.88 made, with `-compress-all` and `-compress-mode=speed`, of a PTX text for sm_90 and of the cubin that ptxas
    /// made of that: an array of 256 MiB, and 64 words with a value.
    const BY_ZSTD: &[u8] = include_bytes!("testdata/zstd.fatbin");
    const BY_LZ4: &[u8] = include_bytes!("testdata/lz4.fatbin");
    const BYTES: u64 = (256 << 20) + 256;

    #[test]
    fn compressed_images_are_read() {
        for fatbin in [BY_ZSTD, BY_LZ4] {
            for (capabilities, exact) in [(&[][..], true), (&[90], true), (&[100], true), (&[80, 100], false)] {
                // SAFETY: as long as it is.
                let globals = unsafe { globals(fatbin.as_ptr(), fatbin.len(), capabilities) };
                assert_eq!(globals, Globals { bytes: BYTES, exact, mallocs: false }, "{capabilities:?}");
            }
            // SAFETY: as above.
            let none = unsafe { globals(fatbin.as_ptr(), fatbin.len(), &[80]) };
            assert_eq!(none, Globals::UNKNOWN, "nothing in it is for sm_80");
        }
    }

    /// What fatbinary 13.5.37 made, with `-compress-all`, of a PTX text for sm_90 whose kernel calls `malloc`, and of its cubin.
    const WITH_MALLOC: &[u8] = include_bytes!("testdata/malloc.fatbin");

    #[test]
    fn malloc_is_seen_in_text_and_in_code() {
        // The cubin, the text, and both.
        for capabilities in [&[90][..], &[100], &[]] {
            // SAFETY: as long as it is.
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
            // SAFETY: as long as it is.
            assert!(!unsafe { cubin::globals(short.as_ptr(), end) }.mallocs || at(&short).is_some(), "{end} bytes");
        }
        let name = at(&code).unwrap() + 1;
        code[name] = b'M';
        // SAFETY: as long as it is.
        assert!(!unsafe { cubin::globals(code.as_ptr(), code.len()) }.mallocs, "another function");
    }

    #[test]
    fn what_is_damaged_is_not_known_and_never_read_beyond_its_end() {
        for fatbin in [BY_ZSTD, BY_LZ4, WITH_MALLOC] {
            for end in 4..fatbin.len() {
                let short = fatbin[..end].to_vec();
                for capabilities in [&[][..], &[90]] {
                    // SAFETY: as long as it is.
                    let globals = unsafe { globals(short.as_ptr(), end, capabilities) };
                    assert!(!globals.exact, "{end} bytes");
                }
            }
            let mut random = 1_u32;
            for _ in 0..2000 {
                let mut damaged = fatbin.to_vec();
                for _ in 0..4 {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Behind the first entry's header: what is unpacked may be anything.
                    let at = 80 + random as usize % (damaged.len() - 80);
                    damaged[at] ^= (random >> 24) as u8;
                }
                // SAFETY: as long as it is.
                unsafe {
                    globals(damaged.as_ptr(), damaged.len(), &[90]);
                    globals(damaged.as_ptr(), damaged.len(), &[]);
                }
            }
        }
    }
}

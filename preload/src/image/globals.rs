//! What an image takes that can be told before it is loaded.

/// What an image takes that can be told before it is loaded: its global arrays, and what comes with `malloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Globals {
    /// Bytes of device memory, as far as they are known.
    pub bytes: u64,
    /// Whether there is no more than that.
    pub exact: bool,
    /// Whether a kernel calls `malloc`, as far as that is known.
    pub mallocs: bool,
}

impl Globals {
    /// Nothing.
    pub const NONE: Self = Self { bytes: 0, exact: true, mallocs: false };
    pub const UNKNOWN: Self = Self { exact: false, ..Self::NONE };
}

/// Functions of the driver's that take from the heap: `malloc`, which `new` is too, and what both call for aligned memory.
pub const MALLOCS: [&[u8]; 2] = [b"malloc", b"__cuda_syscall_aligned_malloc"];
pub const ELF: &[u8] = b"\x7fELF";
/// No image's text is looked at beyond this.
pub const LONGEST: usize = 64 << 20;

pub unsafe fn starts_with(bytes: *const u8, magic: &[u8]) -> bool {
    // SAFETY: the caller's promise; a difference ends the comparison before the end of a shorter text.
    unsafe { magic.iter().enumerate().all(|(at, &byte)| *bytes.add(at) == byte) }
}

/// Reads what lies at an offset; `None` beyond the image's end.
pub unsafe fn read<T: Copy>(image: *const u8, at: usize, room: usize) -> Option<T> {
    // SAFETY: the image is that long.
    (at.checked_add(size_of::<T>())? <= room).then(|| unsafe { image.add(at).cast::<T>().read_unaligned() })
}

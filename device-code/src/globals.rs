//! Memory that an image declares, and helpers to read images.

/// Memory that an image declares: its global arrays, and whether it needs a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Globals {
    /// Size of the global arrays in bytes, as far as it is known.
    pub bytes: u64,
    /// Whether `bytes` and `mallocs` are complete.
    pub exact: bool,
    /// Whether a kernel calls `malloc`, as far as it is known.
    pub mallocs: bool,
}

impl Globals {
    /// An image without global arrays.
    pub const NONE: Self = Self { bytes: 0, exact: true, mallocs: false };
    /// An image that could not be read.
    pub const UNKNOWN: Self = Self { exact: false, ..Self::NONE };
}

/// Device functions that allocate from the heap: `malloc`, which `new` calls, and the form of both for aligned memory.
pub const MALLOCS: [&[u8]; 2] = [b"malloc", b"__cuda_syscall_aligned_malloc"];
/// Magic number of an ELF file.
pub const ELF: &[u8] = b"\x7fELF";
/// Largest PTX text that is read, in bytes.
pub const LONGEST: usize = 64 << 20;

/// Returns whether an image starts with `magic`.
///
/// # Safety
/// `bytes` is as long as `magic`, or differs from it before its end.
pub unsafe fn starts_with(bytes: *const u8, magic: &[u8]) -> bool {
    // SAFETY: the caller's promise; the comparison stops at the first difference.
    unsafe { magic.iter().enumerate().all(|(at, &byte)| *bytes.add(at) == byte) }
}

/// Reads a value at the offset `at` of an image of `room` bytes; `None` beyond its end.
///
/// # Safety
/// The image is that long, and any bytes are a valid `T`.
pub unsafe fn read<T: Copy>(image: *const u8, at: usize, room: usize) -> Option<T> {
    // SAFETY: the caller's promise.
    (at.checked_add(size_of::<T>())? <= room).then(|| unsafe { image.add(at).cast::<T>().read_unaligned() })
}

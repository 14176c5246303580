//! Operations of streams and their effects.

use std::sync::Arc;

use cudarc::driver::sys::CUhostFn;

/// Operation of a stream.
#[derive(Clone)]
pub enum Work {
    /// Runs a kernel that occupies `share_permille` thousandths of the GPU for `ns`.
    Kernel { function: usize, ns: u64, share_permille: u32 },
    /// Copies ranges with a copy engine, or with the GPU itself if `by_gpu`.
    Copy { rows: Arc<[Row]>, by_gpu: bool },
    /// Fills ranges with a repeated pattern of `width` (1, 2 or 4) bytes.
    Fill { rows: Arc<[Row]>, pattern: [u8; 4], width: usize },
    /// Completes recording `number` of an event; occupies the GPU for `ns`.
    RecordEvent { event: usize, number: u64, ns: u64 },
    /// Waits for recording `number` of an event.
    WaitEvent { event: usize, number: u64 },
    /// Calls a host function.
    HostCall(HostCall),
    /// Writes a value to memory.
    WriteValue { address: u64, value: u64, is_64_bit: bool },
    /// Waits until a value in memory satisfies `comparison`: 0 greater or equal, 1 equal, 2 and, 3 nor.
    WaitValue { address: u64, value: u64, is_64_bit: bool, comparison: u32 },
    /// Does nothing; callers wait for it.
    Marker,
}

/// Contiguous range to write, and its source.
#[derive(Clone, Copy)]
pub struct Row {
    pub to: u64,
    pub from: u64,
    pub bytes: usize,
}

/// Host function of the program with its argument.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: CUhostFn,
    pub data: usize,
}

// SAFETY: by CUDA's contract the function may be called with its data on another thread.
unsafe impl Send for HostCall {}

/// Bytes after which a fill stops writing. Tests do not read further, and the host has less memory than a GPU.
const MAX_FILL_BYTES: usize = 4 << 30;

impl Work {
    /// Returns how long the operation occupies the GPU, ns; `None` if it does not.
    pub fn gpu_ns(&self) -> Option<u64> {
        match self {
            Work::Kernel { ns, .. } => Some(*ns),
            Work::RecordEvent { ns, .. } if *ns > 0 => Some(*ns),
            Work::Copy { rows, by_gpu: true } => Some(1_500 + total_bytes(rows) / 2_000),
            Work::Fill { rows, .. } => Some(1_500 + total_bytes(rows) / 3_000),
            _ => None,
        }
    }

    /// Returns the share of the GPU that the operation occupies, in thousandths.
    pub fn share_permille(&self) -> u32 {
        match self {
            Work::Kernel { share_permille, .. } => *share_permille,
            Work::Copy { by_gpu: true, .. } | Work::Fill { .. } => 500,
            _ => 0,
        }
    }

    /// Returns how long the operation occupies a copy engine, ns; `None` if it does not.
    pub fn copy_ns(&self) -> Option<u64> {
        match self {
            Work::Copy { rows, by_gpu: false } => Some(2_000 + total_bytes(rows) / 50),
            _ => None,
        }
    }

    /// Returns false if the operation waits for a value that memory does not have yet.
    pub fn wait_is_satisfied(&self) -> bool {
        let &Work::WaitValue { address, value, is_64_bit, comparison } = self else { return true };
        let mask = if is_64_bit { u64::MAX } else { u64::from(u32::MAX) };
        let seen = read(address, is_64_bit);
        match comparison & 3 {
            0 if is_64_bit => seen.wrapping_sub(value).cast_signed() >= 0,
            0 => (seen as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            1 => seen == value & mask,
            2 => seen & value & mask != 0,
            _ => !(seen | value) & mask != 0,
        }
    }

    /// Performs the memory accesses of the operation.
    pub fn perform(&self) {
        match self {
            Work::Copy { rows, .. } => rows.iter().for_each(copy),
            Work::Fill { rows, pattern, width } => rows.iter().for_each(|row| fill(row, &pattern[..*width])),
            &Work::WriteValue { address, value, is_64_bit } => write(address, value, is_64_bit),
            _ => {}
        }
    }
}

fn total_bytes(rows: &[Row]) -> u64 {
    rows.iter().map(|row| row.bytes as u64).sum()
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn copy(row: &Row) {
    // SAFETY: both ranges were checked against the allocations, or are the program's own memory by CUDA's contract.
    unsafe { std::ptr::copy(pointer(row.from), pointer(row.to), row.bytes) };
}

fn fill(row: &Row, pattern: &[u8]) {
    let bytes = row.bytes.min(MAX_FILL_BYTES);
    if let [byte] = pattern {
        // SAFETY: the range was checked against the allocations.
        unsafe { pointer(row.to).write_bytes(*byte, bytes) };
        return;
    }
    for offset in (0..bytes).step_by(pattern.len()) {
        // SAFETY: as above; the length is a multiple of the pattern.
        unsafe { pointer(row.to + offset as u64).copy_from_nonoverlapping(pattern.as_ptr(), pattern.len()) };
    }
}

fn read(address: u64, is_64_bit: bool) -> u64 {
    // SAFETY: by CUDA's contract the address is aligned and stays valid while the operation is queued.
    unsafe {
        if is_64_bit { pointer(address).cast::<u64>().read_volatile() } else { u64::from(pointer(address).cast::<u32>().read_volatile()) }
    }
}

fn write(address: u64, value: u64, is_64_bit: bool) {
    // SAFETY: as in `read`.
    unsafe {
        if is_64_bit {
            pointer(address).cast::<u64>().write_volatile(value)
        } else {
            pointer(address).cast::<u32>().write_volatile(value as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_comparisons_match_cuda() {
        let value = 0b1100_u64;
        let waits = |wanted: u64, comparison: u32| {
            Work::WaitValue { address: (&raw const value).expose_provenance() as u64, value: wanted, is_64_bit: true, comparison }
                .wait_is_satisfied()
        };
        assert_eq!([waits(12, 0), waits(13, 0), waits(12, 1), waits(4, 1)], [true, false, true, false]);
        assert_eq!([waits(0b0100, 2), waits(0b0011, 2), waits(u64::MAX, 3)], [true, false, false]);
    }

    #[test]
    fn fill_repeats_its_pattern() {
        let mut memory = [0_u8; 8];
        let row = Row { to: memory.as_mut_ptr().expose_provenance() as u64, from: 0, bytes: 6 };
        Work::Fill { rows: Arc::new([row]), pattern: [1, 2, 0, 0], width: 2 }.perform();
        assert_eq!(memory, [1, 2, 1, 2, 1, 2, 0, 0]);
    }
}

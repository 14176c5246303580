//! What can stand in a stream, and what it does when its turn comes.

use std::sync::Arc;

use cudarc::driver::sys::CUhostFn;

/// One operation.
#[derive(Clone)]
pub enum Work {
    /// Keeps so many thousandths of the GPU busy for so many ns; by which function.
    Kernel { function: usize, ns: u64, share_permille: u32 },
    /// Copies ranges, by a copy engine or by the GPU itself.
    Copy { rows: Arc<[Row]>, by_gpu: bool },
    /// Fills ranges with a repeated pattern of 1, 2 or 4 bytes.
    Fill { rows: Arc<[Row]>, pattern: [u8; 4], width: usize },
    /// Marks an event (its handle, which recording of it this is), which keeps the GPU busy for so many ns.
    RecordEvent { event: usize, number: u64, ns: u64 },
    /// Waits for an event.
    WaitEvent { event: usize, number: u64 },
    /// Calls the program.
    HostCall(HostCall),
    /// Writes a value where the host or the GPU may read it.
    WriteValue { address: u64, value: u64, is_64_bit: bool },
    /// Waits until a value compares as the flags say: 0 at least, 1 equal, 2 and, 3 nor.
    WaitValue { address: u64, value: u64, is_64_bit: bool, comparison: u32 },
    /// Nothing, for whoever waits behind it.
    Marker,
}

/// A range to be written, from where.
#[derive(Clone, Copy)]
pub struct Row {
    pub to: u64,
    pub from: u64,
    pub bytes: usize,
}

/// A function of the program.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: CUhostFn,
    pub data: usize,
}

// SAFETY: the program hands the function and its data over to be called on another thread.
unsafe impl Send for HostCall {}

/// More than this is not really written by a fill: nobody looks at it all, and the machine has less memory than a GPU.
const MAX_FILL_BYTES: usize = 4 << 30;

impl Work {
    /// How long the GPU itself is busy with it, ns; `None` when it is not.
    pub fn gpu_ns(&self) -> Option<u64> {
        match self {
            Work::Kernel { ns, .. } => Some(*ns),
            Work::RecordEvent { ns, .. } if *ns > 0 => Some(*ns),
            Work::Copy { rows, by_gpu: true } => Some(1_500 + total_bytes(rows) / 2_000),
            Work::Fill { rows, .. } => Some(1_500 + total_bytes(rows) / 3_000),
            _ => None,
        }
    }

    /// How many thousandths of the GPU it takes meanwhile.
    pub fn share_permille(&self) -> u32 {
        match self {
            Work::Kernel { share_permille, .. } => *share_permille,
            Work::Copy { by_gpu: true, .. } | Work::Fill { .. } => 500,
            _ => 0,
        }
    }

    /// How long a copy engine is busy with it, ns.
    pub fn copy_ns(&self) -> Option<u64> {
        match self {
            Work::Copy { rows, by_gpu: false } => Some(2_000 + total_bytes(rows) / 50),
            _ => None,
        }
    }

    /// Whether it can go on now, as far as memory says.
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

    /// Does what it does to memory.
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
    // SAFETY: both ranges were checked against what is allocated, or are the program's own by its promise.
    unsafe { std::ptr::copy(pointer(row.from), pointer(row.to), row.bytes) };
}

fn fill(row: &Row, pattern: &[u8]) {
    let bytes = row.bytes.min(MAX_FILL_BYTES);
    if let [byte] = pattern {
        // SAFETY: the range was checked against what is allocated.
        unsafe { pointer(row.to).write_bytes(*byte, bytes) };
        return;
    }
    for offset in (0..bytes).step_by(pattern.len()) {
        // SAFETY: as above; the range is a multiple of the pattern.
        unsafe { pointer(row.to + offset as u64).copy_from_nonoverlapping(pattern.as_ptr(), pattern.len()) };
    }
}

fn read(address: u64, is_64_bit: bool) -> u64 {
    // SAFETY: the program promises an aligned address that stays valid while the operation is queued.
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
    fn values_compare_as_cuda_says() {
        let value = 0b1100_u64;
        let waits = |wanted: u64, comparison: u32| {
            Work::WaitValue { address: (&raw const value).expose_provenance() as u64, value: wanted, is_64_bit: true, comparison }
                .wait_is_satisfied()
        };
        assert_eq!([waits(12, 0), waits(13, 0), waits(12, 1), waits(4, 1)], [true, false, true, false]);
        assert_eq!([waits(0b0100, 2), waits(0b0011, 2), waits(u64::MAX, 3)], [true, false, false]);
    }

    #[test]
    fn fills_repeat_their_pattern() {
        let mut memory = [0_u8; 8];
        let row = Row { to: memory.as_mut_ptr().expose_provenance() as u64, from: 0, bytes: 6 };
        Work::Fill { rows: Arc::new([row]), pattern: [1, 2, 0, 0], width: 2 }.perform();
        assert_eq!(memory, [1, 2, 1, 2, 1, 2, 0, 0]);
    }
}

//! Physical memory and reserved address ranges.

use std::collections::BTreeMap;

use cudarc::driver::sys::CUmemAllocationProp;

use crate::handles::Handles;

/// Physical memory. It exists while a handle or a mapping refers to it.
pub struct Physical {
    pub properties: CUmemAllocationProp,
    pub size: u64,
    /// Bytes charged to the GPU: 0 for host memory and for memory of another process.
    pub charged: u64,
    pub handles: u64,
    pub mappings: u64,
    /// Address of its backing pages, which all mappings share.
    pub backing: u64,
    /// Descriptors that it was exported as.
    pub exports: Vec<Descriptor>,
}

/// File descriptor with the inode of its file, to detect reuse of the number.
#[derive(Clone, Copy)]
pub struct Descriptor {
    number: i32,
    file: u64,
}

impl Descriptor {
    /// Describes an open descriptor.
    pub fn of(number: i32) -> Descriptor {
        // SAFETY: all-zero is a valid stat, which the call fills.
        unsafe {
            let mut about = std::mem::zeroed::<libc::stat>();
            let known = libc::fstat(number, &raw mut about) == 0;
            Descriptor { number, file: if known { about.st_ino } else { 0 } }
        }
    }

    /// Returns whether the descriptor is still open on the same file.
    pub fn is_open(self) -> bool {
        self.file != 0 && Descriptor::of(self.number).file == self.file
    }
}

/// Memory that only exported descriptors keep alive. NVML attributes it to no process.
pub struct ExportedMemory {
    pub descriptors: Vec<Descriptor>,
    pub ordinal: i32,
    pub bytes: u64,
}

// SAFETY: its only pointer is the Windows security attribute among the properties, which is never dereferenced.
unsafe impl Send for Physical {}

/// Physical memory by handle, and reserved address ranges by start.
#[derive(Default)]
pub struct Vmm {
    pub live: Handles<Physical>,
    pub reserved: BTreeMap<u64, u64>,
    /// Flags of access by start of the mapping and device.
    pub access: BTreeMap<(u64, i32), u64>,
    pub exported: Vec<ExportedMemory>,
}

//! Chunks of memory of equal size, allocated by several calls, and their expected contents.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::sys::{self, CUmem_advise, CUmemLocation, CUmemLocationType, CUpointer_attribute, CUresult};
use vgpu_test_programs::cuda::{check, synchronize};

use crate::kernels::Kernels;

/// A call whose memory may lie on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Linear,
    Pitched,
    Managed,
    Ordered,
}

/// The order in which the calls are used, repeatedly.
const WAYS: [Way; 6] = [Way::Linear, Way::Pitched, Way::Linear, Way::Ordered, Way::Linear, Way::Managed];

/// Number of words at the beginning of each chunk that are copied from the host.
const HEADER: usize = 1024;

/// One allocation.
pub struct Chunk {
    address: u64,
    way: Way,
}

/// All allocations.
pub struct Chunks {
    list: Vec<Chunk>,
    bytes: usize,
}

impl Chunks {
    /// Creates an empty list of chunks of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self { list: Vec::new(), bytes }
    }

    /// Returns the total size in bytes.
    pub fn total(&self) -> u64 {
        (self.list.len() * self.bytes) as u64
    }

    /// Allocates chunks until there are `need` bytes or an allocation fails.
    pub fn take(&mut self, need: u64) -> Result<(), CUresult> {
        while self.total() < need {
            let way = WAYS[self.list.len() % WAYS.len()];
            let address = way.take(self.bytes)?;
            self.list.push(Chunk { address, way });
        }
        Ok(())
    }

    /// Returns the bytes that were requested as device memory and are managed memory.
    pub fn elsewhere(&self) -> u64 {
        let others = self.list.iter().filter(|chunk| chunk.way != Way::Managed && is_managed(chunk.address));
        (others.count() * self.bytes) as u64
    }

    /// Writes to all chunks in every way: fills, copies from the host and on the device, kernels. In between, prefetches and advises
    /// them to the device, which must not change the contents.
    pub fn work(&self, kernels: &Kernels) -> Result<(), CUresult> {
        let words = self.bytes / 4;
        for (number, chunk) in self.list.iter().enumerate() {
            let header: Vec<u32> = (0..HEADER as u32).map(|place| place ^ seed(number)).collect();
            // SAFETY: the ranges lie in the chunk; the host's memory has the given length.
            unsafe {
                check(sys::cuMemsetD32_v2(chunk.address, seed(number), words))?;
                check(sys::cuMemcpyHtoD_v2(chunk.address, header.as_ptr().cast(), HEADER * 4))?;
            }
            kernels.step(chunk.address, words as u64, number as u32)?;
        }
        let part = self.bytes / 4;
        for pair in self.list.windows(2) {
            // SAFETY: the ranges are a quarter of a chunk each.
            check(unsafe { sys::cuMemcpyDtoDAsync_v2(pair[1].address + part as u64, pair[0].address, part, null_mut()) })?;
        }
        self.list.iter().for_each(|chunk| prefetch(chunk.address, self.bytes));
        for chunk in &self.list {
            kernels.step(chunk.address, words as u64, LAST)?;
        }
        synchronize()
    }

    /// Returns the number of words with wrong contents.
    pub fn wrong(&self, kernels: &Kernels) -> Result<u64, CUresult> {
        let words = self.bytes / 4;
        let mut seen = vec![0_u32; words];
        let mut wrong = 0;
        for (number, chunk) in self.list.iter().enumerate() {
            // SAFETY: the destination has as many bytes as are copied.
            check(unsafe { sys::cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), chunk.address, self.bytes) })?;
            wrong += (0..words).filter(|&place| seen[place] != expected(number, place, words, kernels.run)).count() as u64;
        }
        Ok(wrong)
    }

    /// Counts on every page of the last spilled chunk with system-wide atomic operations. Returns the number of pages with a wrong count.
    pub fn count(&self, kernels: &Kernels) -> Result<u64, CUresult> {
        let Some(chunk) = self.list.iter().rfind(|chunk| chunk.way != Way::Managed && is_managed(chunk.address)) else { return Ok(0) };
        let pages = self.bytes / 4096;
        // SAFETY: the chunk has the given length.
        check(unsafe { sys::cuMemsetD32_v2(chunk.address, 0, self.bytes / 4) })?;
        kernels.count(chunk.address, pages as u64)?;
        let mut seen = vec![0_u32; self.bytes / 4];
        // SAFETY: the destination has as many bytes as are copied.
        check(unsafe { sys::cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), chunk.address, self.bytes) })?;
        Ok(seen.iter().step_by(1024).filter(|&&count| count != u32::from(kernels.run)).count() as u64)
    }

    /// Frees every chunk, each by the call that belongs to its allocation.
    pub fn free(&mut self) -> Result<(), CUresult> {
        for chunk in self.list.drain(..) {
            // SAFETY: the chunk was allocated above and is not used afterwards.
            check(unsafe {
                if chunk.way == Way::Ordered { sys::cuMemFreeAsync(chunk.address, null_mut()) } else { sys::cuMemFree_v2(chunk.address) }
            })?;
        }
        synchronize()
    }
}

impl Way {
    fn take(self, bytes: usize) -> Result<u64, CUresult> {
        let (mut address, mut pitch) = (0, 0);
        // SAFETY: the out-pointers are valid.
        check(unsafe {
            match self {
                Self::Linear => sys::cuMemAlloc_v2(&raw mut address, bytes),
                Self::Pitched => sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 4096, bytes / 4096, 4),
                Self::Managed => sys::cuMemAllocManaged(&raw mut address, bytes, 1),
                Self::Ordered => sys::cuMemAllocAsync(&raw mut address, bytes, null_mut()),
            }
        })?;
        assert!(self != Self::Pitched || pitch == 4096, "pitch: {pitch}, expected 4096");
        Ok(address)
    }
}

/// Added to every word by the last step.
const LAST: u32 = 7;

fn seed(number: usize) -> u32 {
    (number as u32 + 1).wrapping_mul(0x9e37_79b9)
}

/// Returns the expected final contents of a word.
fn expected(number: usize, place: usize, words: usize, kernels: bool) -> u32 {
    let step = |value: u32, place: usize, add: u32| {
        if kernels { value.wrapping_mul(3).wrapping_add(place as u32).wrapping_add(add) } else { value }
    };
    let first = |number: usize, place: usize| {
        let value = if place < HEADER { place as u32 ^ seed(number) } else { seed(number) };
        step(value, place, number as u32)
    };
    let part = words / 4;
    let copied = number > 0 && (part..2 * part).contains(&place);
    step(if copied { first(number - 1, place - part) } else { first(number, place) }, place, LAST)
}

fn is_managed(address: u64) -> bool {
    let mut managed = 0_u32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
    // SAFETY: the out-pointer is valid.
    unsafe { sys::cuPointerGetAttribute((&raw mut managed).cast(), attribute, address) == CUresult::CUDA_SUCCESS && managed != 0 }
}

/// Prefetches and advises a range, which would move managed memory to the device. The driver refuses this for other memory.
fn prefetch(address: u64, bytes: usize) {
    let device = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    // SAFETY: the range is a chunk.
    unsafe {
        sys::cuMemAdvise_v2(address, bytes, CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
        sys::cuMemPrefetchAsync_v2(address, bytes, device, 0, null_mut());
    }
}

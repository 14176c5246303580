//! A thread that allocates, uses and checks memory at random.

use std::ops::RangeInclusive;
use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, check, sys::*};
use vgpu_test_programs::mapping::Mapping;
use vgpu_test_programs::ptx::SPIN;
use vgpu_test_programs::random::Random;

use crate::context::Context;

/// Unit of the blocks' sizes in bytes. Small blocks share a granule, and do not move.
pub const UNIT: u64 = 64 << 10;
/// Size in bytes above which a block can be used in every context.
const SHARED_ABOVE: usize = 2 << 20;

/// An allocation that has one word throughout, or as many as it is long.
struct Block {
    address: u64,
    words: usize,
    value: u32,
    /// Whether each word is the value with its index, so that a part in a wrong place is found.
    is_indexed: bool,
    /// What it was mapped with, unless the driver has allocated it.
    mapping: Option<Mapping>,
}

impl Block {
    /// Returns the word that is right at an index.
    fn word(&self, at: usize) -> u32 {
        if self.is_indexed { self.value ^ at as u32 } else { self.value }
    }

    /// Records that it has one word throughout.
    fn set(&mut self, value: u32) {
        (self.value, self.is_indexed) = (value, false);
    }

    /// Frees it. If it is mapped, nothing uses it any more.
    fn free(self) -> Result<(), CUresult> {
        // SAFETY: an allocation of this program's.
        self.mapping.map_or_else(|| check(unsafe { cuMemFree_v2(self.address) }), Mapping::end)
    }
}

/// How much a thread takes.
#[derive(Clone)]
pub struct Most {
    /// Number of blocks.
    pub blocks: usize,
    /// Their sizes in bytes.
    pub sizes: RangeInclusive<u64>,
}

/// What a thread uses.
pub struct Worker {
    gpu: i32,
    pub random: Random,
    most: Most,
    blocks: Vec<Block>,
    stream: CUstream,
    event: CUevent,
    /// Another context, with a stream and an event.
    pub other: Option<(Context, CUstream, CUevent)>,
    function: CUfunction,
    /// Replayed fill of a block: its address, and the value.
    graph: Option<(CUgraphExec, u64, u32)>,
    /// Number of words checked.
    pub checked: u64,
}

impl Worker {
    pub fn new(gpu: i32, seed: u64, most: Most) -> Result<Self, CUresult> {
        cuda::start(gpu)?;
        let (mut stream, mut event, mut module, mut function) = (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: the out-pointers are valid, and the image is NUL-terminated.
        unsafe {
            check(cuStreamCreate(&raw mut stream, 1))?;
            check(cuEventCreate(&raw mut event, 2))?;
            check(cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()))?;
            check(cuModuleGetFunction(&raw mut function, module, c"spin".as_ptr()))?;
        }
        Ok(Self { gpu, random: Random::new(seed), most, blocks: Vec::new(), stream, event, other: None, function, graph: None, checked: 0 })
    }

    /// Does something at random.
    pub fn step(&mut self) -> Result<(), (&'static str, CUresult)> {
        let of = |what| move |code| (what, code);
        if self.blocks.is_empty() {
            return self.allocate().map_err(of("allocate"));
        }
        match self.random.below(12) {
            0..=2 if self.blocks.len() < self.most.blocks => self.allocate().map_err(of("allocate")),
            0 => self.free().map_err(of("free")),
            1 | 2 => self.fill().map_err(of("fill")),
            3 => self.copy().map_err(of("copy")),
            4 => self.upload().map_err(of("upload")),
            5 => self.launch().map_err(of("launch")),
            6 => self.replay().map_err(of("replay")),
            7 => self.ask().map_err(of("ask about an address")),
            8 if self.other.is_some() && self.random.below(8) == 0 => Context::make_and_end(self.gpu).map_err(of("end a context")),
            8 => self.fill_elsewhere().map_err(of("fill in another context")),
            9 => self.free_in_flight().map_err(of("free with work in flight")),
            _ => self.verify_one().map_err(of("verify")),
        }
    }

    /// Returns the place of a block at random.
    fn any(&mut self) -> usize {
        self.random.below(self.blocks.len() as u64) as usize
    }

    fn allocate(&mut self) -> Result<(), CUresult> {
        let (least, most) = (self.most.sizes.start() / UNIT, self.most.sizes.end() / UNIT);
        let bytes = (self.random.below(most - least + 1) + least) * UNIT;
        let (value, words) = (self.random.draw() as u32, bytes as usize / 4);
        let made = if self.random.below(3) == 0 { self.map(bytes as usize) } else { Self::take(bytes as usize) };
        let (address, mapping) = match made {
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => return if self.blocks.is_empty() { Ok(()) } else { self.free() },
            made => made?,
        };
        self.blocks.push(Block { address, words, value, is_indexed: false, mapping });
        // SAFETY: the block is as long as the fill.
        check(unsafe { cuMemsetD32Async(address, value, words, self.stream) })
    }

    /// Allocates memory.
    fn take(bytes: usize) -> Result<(u64, Option<Mapping>), CUresult> {
        let mut address = 0;
        // SAFETY: the out-pointer is valid.
        check(unsafe { cuMemAlloc_v2(&raw mut address, bytes) })?;
        Ok((address, None))
    }

    /// Maps memory. Some keep its handle, as PyTorch does, some release it, as llama.cpp does, and a few export it, which then stays.
    fn map(&mut self, bytes: usize) -> Result<(u64, Option<Mapping>), CUresult> {
        let mut mapping = Mapping::make(self.gpu, bytes)?;
        match self.random.below(8) {
            0..3 => mapping.release()?,
            3 => mapping.share()?,
            _ => {}
        }
        Ok((mapping.address, Some(mapping)))
    }

    fn free(&mut self) -> Result<(), CUresult> {
        let place = self.any();
        let block = self.blocks.swap_remove(place);
        self.verify(&block)?;
        self.drop_graph(&block)?;
        block.free()
    }

    fn fill(&mut self) -> Result<(), CUresult> {
        let (place, value) = (self.any(), self.random.draw() as u32);
        let block = &mut self.blocks[place];
        block.set(value);
        // SAFETY: a block of this thread's, of this length.
        check(unsafe { cuMemsetD32Async(block.address, value, block.words, self.stream) })
    }

    /// Fills a block from another context than the one that allocated it. The fill follows a kernel, and only the thread's own stream waits for it.
    fn fill_elsewhere(&mut self) -> Result<(), CUresult> {
        let (place, value, event, own) = (self.any(), self.random.draw() as u32, self.event, self.stream);
        let block = &mut self.blocks[place];
        let Some((other, stream, done)) = self.other.filter(|_| block.words * 4 > SHARED_ABOVE) else { return Ok(()) };
        block.set(value);
        let (address, words) = (block.address, block.words);
        self.spin(own)?;
        // SAFETY: a block of this thread's, of this length; the events say what comes after what.
        unsafe {
            check(cuEventRecord(event, own))?;
            other.run(|| {
                check(cuStreamWaitEvent(stream, event, 0))?;
                check(cuMemsetD32Async(address, value, words, stream))?;
                check(cuEventRecord(done, stream))
            })?;
            check(cuStreamWaitEvent(own, done, 0))
        }
    }

    /// Frees a block that a kernel and a fill still use, with another context current if there is one: the call waits for both.
    fn free_in_flight(&mut self) -> Result<(), CUresult> {
        let place = self.any();
        if self.blocks[place].mapping.is_some() {
            return Ok(());
        }
        let block = self.blocks.swap_remove(place);
        self.drop_graph(&block)?;
        self.spin(self.stream)?;
        // SAFETY: a block of this thread's, of this length, which is not used afterwards.
        unsafe {
            check(cuMemsetD32Async(block.address, block.value, block.words, self.stream))?;
            let free = || check(cuMemFree_v2(block.address));
            match self.other {
                Some((other, ..)) if block.words * 4 > SHARED_ABOVE => other.run(free),
                _ => free(),
            }
        }
    }

    /// Destroys the graph that fills a block, if there is one.
    fn drop_graph(&mut self, block: &Block) -> Result<(), CUresult> {
        match self.graph.take_if(|(_, address, _)| *address == block.address) {
            // SAFETY: a graph of this thread's.
            Some((exec, ..)) => check(unsafe { cuGraphExecDestroy(exec) }),
            None => Ok(()),
        }
    }

    /// Launches a kernel of up to 200 µs.
    fn spin(&mut self, stream: CUstream) -> Result<(), CUresult> {
        let ns = self.random.below(200_000);
        let mut arguments = [(&raw const ns).cast_mut().cast()];
        // SAFETY: the argument is the one that `spin` takes.
        check(unsafe { cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut()) })
    }

    /// Makes two blocks equal as far as the shorter one reaches, and the rest of the longer one too.
    fn copy(&mut self) -> Result<(), CUresult> {
        let (to, from) = (self.any(), self.any());
        if to == from {
            return Ok(());
        }
        let words = self.blocks[to].words.min(self.blocks[from].words);
        let (value, target, source) = (self.blocks[from].value, self.blocks[to].address, self.blocks[from].address);
        let rest = self.blocks[to].words - words;
        if rest != 0 && self.blocks[from].is_indexed {
            return Ok(());
        }
        (self.blocks[to].value, self.blocks[to].is_indexed) = (value, self.blocks[from].is_indexed);
        // SAFETY: blocks of this thread's, which are at least as long.
        unsafe {
            check(cuMemcpyDtoDAsync_v2(target, source, words * 4, self.stream))?;
            if rest == 0 { Ok(()) } else { check(cuMemsetD32Async(target + words as u64 * 4, value, rest, self.stream)) }
        }
    }

    fn upload(&mut self) -> Result<(), CUresult> {
        let (place, value) = (self.any(), self.random.draw() as u32);
        (self.blocks[place].value, self.blocks[place].is_indexed) = (value, true);
        let words: Vec<u32> = (0..self.blocks[place].words).map(|at| self.blocks[place].word(at)).collect();
        // In the thread's stream: `cuMemcpyHtoD` of pageable memory may return before its last part has arrived, and nothing in another stream
        // waits for that.
        // SAFETY: a block of this thread's, of this length; the words live until they were copied.
        unsafe {
            check(cuMemcpyHtoDAsync_v2(self.blocks[place].address, words.as_ptr().cast(), words.len() * 4, self.stream))?;
            check(cuStreamSynchronize(self.stream))
        }
    }

    fn launch(&mut self) -> Result<(), CUresult> {
        self.spin(self.stream)?;
        // SAFETY: this thread's own event and stream.
        unsafe {
            check(cuEventRecord(self.event, self.stream))?;
            check(cuEventSynchronize(self.event))
        }
    }

    /// Replays a graph that fills a block, or makes it. Another block is freed in the middle of the capture, which may not end it.
    fn replay(&mut self) -> Result<(), CUresult> {
        let Some((exec, address, value)) = self.graph else {
            let place = self.any();
            let freed = if self.blocks.len() > 1 && self.blocks[place].mapping.is_none() {
                let block = self.blocks.swap_remove(place);
                self.verify(&block)?;
                block.address
            } else {
                0
            };
            let (place, value) = (self.any(), self.random.draw() as u32);
            let (address, words) = (self.blocks[place].address, self.blocks[place].words);
            let (mut graph, mut exec) = (null_mut(), null_mut());
            // SAFETY: a block of this thread's, of this length; the out-pointers are valid. Other threads may allocate meanwhile.
            unsafe {
                check(cuStreamBeginCapture_v2(self.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
                check(cuMemsetD32Async(address, value, words, self.stream))?;
                check(cuMemFree_v2(freed))?;
                check(cuStreamEndCapture(self.stream, &raw mut graph))?;
                check(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
                check(cuGraphDestroy(graph))?;
            }
            self.graph = Some((exec, address, value));
            return Ok(());
        };
        let Some(block) = self.blocks.iter_mut().find(|block| block.address == address) else { return Ok(()) };
        block.set(value);
        // SAFETY: a graph of this thread's, which fills a living block.
        check(unsafe { cuGraphLaunch(exec, self.stream) })
    }

    /// Asks what the driver tells only of memory that is there. It tells the size that was allocated.
    fn ask(&mut self) -> Result<(), CUresult> {
        let place = self.any();
        let Block { address, words, mapping, .. } = &self.blocks[place];
        let inside = address + self.random.below(*words as u64 * 4);
        let (mut kind, mut base, mut size, mut start, mut length) = (0_i32, 0, 0, 0_u64, 0_u64);
        let mut asked = [CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE];
        let mut answers = [(&raw mut start).cast(), (&raw mut length).cast()];
        // SAFETY: the out-pointers are valid.
        unsafe {
            check(cuPointerGetAttribute((&raw mut kind).cast(), CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside))?;
            check(cuPointerGetAttributes(2, asked.as_mut_ptr(), answers.as_mut_ptr(), inside))?;
            check(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, inside))?;
        }
        let bytes = mapping.as_ref().map_or(words * 4, |mapping| mapping.bytes);
        if kind != 2 || (base, size) != (*address, bytes) || (start, length as usize) != (*address, bytes) {
            eprintln!("range of {inside:#x}: {base:#x} {size} and {start:#x} {length}, expected {address:#x} {bytes}");
            return Err(CUresult::CUDA_ERROR_ASSERT);
        }
        mapping.as_ref().map_or(Ok(()), Mapping::ask)
    }

    fn verify_one(&mut self) -> Result<(), CUresult> {
        let place = self.any();
        let block = self.blocks.swap_remove(place);
        self.verify(&block)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Checks each word of a block.
    fn verify(&mut self, block: &Block) -> Result<(), CUresult> {
        let mut words = vec![0_u32; block.words];
        // SAFETY: a block of this thread's, and room for it.
        unsafe {
            check(cuStreamSynchronize(self.stream))?;
            check(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), block.address, block.words * 4))?;
        }
        self.checked += words.len() as u64;
        let wrong: Vec<usize> = (0..words.len()).filter(|&at| words[at] != block.word(at)).collect();
        if let (Some(&first), Some(&last)) = (wrong.first(), wrong.last()) {
            let Block { address, value, is_indexed, mapping, .. } = block;
            eprintln!(
                "{} words of {} at {address:#x} are wrong, the first at {first}: {:#x}, expected {:#x}; the last at {last}: {:#x}; value {value:#x}, \
                 indexed {is_indexed}, {mapping:?}",
                wrong.len(),
                words.len(),
                words[first],
                block.word(first),
                words[last]
            );
            return Err(CUresult::CUDA_ERROR_ASSERT);
        }
        Ok(())
    }

    /// Verifies and frees everything.
    pub fn end(&mut self) -> Result<(), CUresult> {
        while !self.blocks.is_empty() {
            self.free()?;
        }
        // SAFETY: this thread's own objects, whose work has finished.
        unsafe {
            if let Some((_, stream, event)) = self.other {
                check(cuEventDestroy_v2(event))?;
                check(cuStreamDestroy_v2(stream))?;
            }
            check(cuEventDestroy_v2(self.event))?;
            check(cuStreamDestroy_v2(self.stream))
        }
    }
}

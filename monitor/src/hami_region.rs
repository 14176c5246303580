//! HAMi's shared region, version 1, for HAMi's monitor and tools that read it.
//!
//! `CUDA_DEVICE_MEMORY_SHARED_CACHE` requests it at a path in the container. Only a file that is empty or already such a region is touched,
//! and it is written, never mapped or cut short.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use crate::container_files;
use crate::snapshot::{ContainerState, Share};

/// Size of the file in bytes.
pub const SIZE: usize = 2_008_952;
const MAGIC: i32 = 19_920_718;
const DEVICES: usize = 16;
const PROCESSES: usize = 1024;
const COUNT_AT: usize = 56;
const UUIDS_AT: usize = 64;
const UUID_SIZE: usize = 96;
const LIMITS_AT: usize = 1600;
const SM_LIMITS_AT: usize = LIMITS_AT + 8 * DEVICES;
const PROCESSES_AT: usize = 1856;
const PROCESS_SIZE: usize = 1960;
const MEMORY_SIZE: usize = 64;
const HELD_AT: usize = 8 + MEMORY_SIZE * DEVICES;
const UTILIZATION_AT: usize = HELD_AT + 8 * DEVICES;
const UTILIZATION_SIZE: usize = 48;
const STATUS_AT: usize = UTILIZATION_AT + UTILIZATION_SIZE * DEVICES;
const PROCESS_COUNT_AT: usize = 2_008_896;
const PRIORITY_AT: usize = 2_008_908;
const LAST_KERNEL_AT: usize = 2_008_912;

/// Content to write, as offsets and bytes. The rest of the file stays, such as the switches that HAMi's monitor sets.
type Parts = Vec<(usize, Vec<u8>)>;

/// Returns a container's state in HAMi's layout. The magic number comes last, so that a reader never takes a partial region for a whole one.
fn parts(container: &ContainerState) -> Parts {
    let gpus = container.gpus.get(..DEVICES).unwrap_or(&container.gpus);
    let mut head = vec![0; PROCESSES_AT - COUNT_AT];
    let mut put = |at: usize, bytes: &[u8]| head[at - COUNT_AT..][..bytes.len()].copy_from_slice(bytes);
    put(COUNT_AT, &(gpus.len() as u64).to_ne_bytes());
    for (index, share) in gpus.iter().enumerate() {
        let uuid = share.uuid.as_bytes();
        put(UUIDS_AT + index * UUID_SIZE, uuid.get(..UUID_SIZE - 1).unwrap_or(uuid));
        put(LIMITS_AT + 8 * index, &share.memory_limit.unwrap_or(0).to_ne_bytes());
        put(SM_LIMITS_AT + 8 * index, &u64::from(share.cores.unwrap_or(100)).to_ne_bytes());
    }
    let processes = processes(gpus);
    let last_kernel = gpus.iter().filter_map(|share| share.last_kernel).fold(0.0, f64::max) as i64;
    vec![
        (COUNT_AT, head),
        (PROCESSES_AT, processes.concat()),
        (PROCESS_COUNT_AT, (processes.len() as i32).to_ne_bytes().to_vec()),
        (PRIORITY_AT, (container.priority as i32).to_ne_bytes().to_vec()),
        (LAST_KERNEL_AT, last_kernel.to_ne_bytes().to_vec()),
        (0, [MAGIC, 1, 1, 1].map(i32::to_ne_bytes).concat()),
    ]
}

/// Returns the process table, with one entry for each PID in the container.
fn processes(gpus: &[Share]) -> Vec<Vec<u8>> {
    let mut found: Vec<(u32, Vec<u8>)> = Vec::new();
    for (index, share) in gpus.iter().enumerate() {
        for (nth, process) in share.processes.iter().enumerate() {
            let known = found.iter().position(|(inner_pid, _)| *inner_pid == process.inner_pid);
            let at = known.unwrap_or_else(|| {
                found.push((process.inner_pid, vec![0; PROCESS_SIZE]));
                found.len() - 1
            });
            let bytes = &mut found[at].1;
            let mut put = |at: usize, value: &[u8]| bytes[at..][..value.len()].copy_from_slice(value);
            put(0, &(process.inner_pid as i32).to_ne_bytes());
            put(4, &(process.pid.unwrap_or(0) as i32).to_ne_bytes());
            put(STATUS_AT, &1_i32.to_ne_bytes());
            let total = process.charged.or(process.held).unwrap_or(0);
            let context = process.overhead.min(total);
            let memory = [context, 0, total - context, 0, total];
            put(8 + index * MEMORY_SIZE, &memory.map(u64::to_ne_bytes).concat());
            put(HELD_AT + 8 * index, &process.held.unwrap_or(0).to_ne_bytes());
            // The reader sums over processes, so the container's utilization is stored in one of them.
            let busy = if nth == 0 { share.utilization.unwrap_or(0.0).round() as u64 } else { 0 };
            put(UTILIZATION_AT + index * UTILIZATION_SIZE + 16, &busy.to_ne_bytes());
        }
    }
    found.truncate(PROCESSES);
    found.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Region of one container that requests one.
#[derive(Debug)]
pub struct RegionFile {
    file: File,
    /// Content written last.
    written: Parts,
}

impl RegionFile {
    /// Opens or creates the region at `path` below `root`.
    ///
    /// # Errors
    /// The file cannot be opened, or is neither empty nor such a region.
    pub fn open(root: &File, path: &str) -> io::Result<Self> {
        let file = container_files::open_file(root, path, OFlags::empty(), is_ours)?;
        Ok(Self { file, written: Parts::new() })
    }

    /// Writes the parts that differ from those written last.
    ///
    /// # Errors
    /// Writing fails, or the file has grown.
    pub fn update(&mut self, container: &ContainerState) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length > SIZE as u64 {
            return Err(container_files::unexpected_file());
        }
        if length < SIZE as u64 {
            self.file.set_len(SIZE as u64)?;
        }
        let parts = parts(container);
        for (at, bytes) in parts.iter().filter(|part| !self.written.contains(part)) {
            self.file.write_all_at(bytes, *at as u64)?;
        }
        self.written = parts;
        Ok(())
    }
}

/// Returns whether a file is empty, or has a region's size and its magic number or none yet.
fn is_ours(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    if length != SIZE as u64 {
        return Ok(length == 0);
    }
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0)?;
    Ok([MAGIC, 0].contains(&i32::from_ne_bytes(magic)))
}

#[cfg(test)]
mod tests;

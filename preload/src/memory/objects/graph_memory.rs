//! Graph memory of each device, and the instantiated graphs with memory nodes.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::MAX_GPUS;

use crate::loader::driver;
use crate::memory::ledger::account::Claim;
use crate::memory::objects::handle_map::Table;
use crate::memory::objects::reservoir;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Device, GRAPH_RESERVED_CURRENT, Handle, SUCCESS};

/// Instantiated graphs with memory nodes, by device ([`key`]): requested bytes, and [`RESIDENT`].
pub static EXECS: Table = Table::new();
/// Bit of a graph that has been launched: its memory is reserved until the device's graph memory is trimmed.
pub const RESIDENT: u64 = 1 << 63;
/// Graph memory that is charged for each device, in the form of the records of pools.
static RESERVED: [AtomicU64; MAX_GPUS] = [const { AtomicU64::new(0) }; MAX_GPUS];

/// Returns the key of a graph on a device. Handles are addresses of 47 bits.
pub fn key(exec: Handle, device: Device) -> u64 {
    exec as u64 | (device as u64 + 1) << 48
}

/// Returns the bytes that the driver has reserved on a device for the memory of graphs.
fn reserved(device: Device) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word.
    (unsafe { driver::device_graph_memory(device, GRAPH_RESERVED_CURRENT, &raw mut value) } == SUCCESS).then_some(value)
}

/// Settles the graph memory of a device.
pub fn settle(gpu: &Gpu) {
    if !EXECS.is_unused() {
        settle_claim(gpu, None);
    }
}

/// As [`settle`], with a claim for its growth.
pub fn settle_claim(gpu: &Gpu, claim: Option<Claim<'_>>) {
    if let Some(record) = RESERVED.get(gpu.device as usize) {
        reservoir::settle(gpu, record, claim, || reserved(gpu.device));
    }
}

/// Records that graph memory was trimmed: the next launches may grow it again.
pub fn trimmed() {
    for (_, record) in EXECS.iter() {
        record.fetch_and(!RESIDENT, AcqRel);
    }
}

/// Gives unused graph memory back to the device.
pub fn trim_idle(gpu: &Gpu) {
    let held = RESERVED.get(gpu.device as usize).is_some_and(|record| record.load(Relaxed) as u32 != 0);
    // SAFETY: a plain call.
    if held && unsafe { driver::trim_graphs(gpu.device) } == SUCCESS {
        trimmed();
    }
}

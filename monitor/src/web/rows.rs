//! Rows of the page as JSON.

use serde::Serialize;

use super::events::{Event, Key};
use crate::account::Moves;
use crate::metrics::Tally;
use crate::snapshot::{ContainerState, Gpu, Share, Unlimited};
use crate::violations::Kind;

/// Characters of a text that a tenant chooses, at most.
const MAX_TEXT: usize = 200;
/// Unlimited processes of a GPU that are listed, those with most memory.
const MAX_UNLIMITED: usize = 50;

/// Returns a text of bounded length.
pub fn bounded(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned() + "…",
        None => text.to_owned(),
    }
}

#[derive(Serialize)]
struct GpuRow<'a> {
    id: u64,
    index: u32,
    name: &'a str,
    uuid: &'a str,
    memory: u64,
    memory_used: Option<u64>,
    /// Percent.
    busy: Option<u32>,
    processes_known: bool,
    unlimited: Vec<&'a Unlimited>,
    unlimited_count: usize,
}

/// Returns a GPU's row.
pub fn gpu(id: u64, gpu: &Gpu) -> String {
    let mut unlimited: Vec<&Unlimited> = gpu.unlimited.iter().collect();
    unlimited.sort_by_key(|process| std::cmp::Reverse(process.held));
    unlimited.truncate(MAX_UNLIMITED);
    json(&GpuRow {
        id,
        index: gpu.index,
        name: &gpu.name,
        uuid: &gpu.uuid,
        memory: gpu.memory,
        memory_used: gpu.memory_used,
        busy: gpu.utilization,
        processes_known: gpu.processes_known,
        unlimited,
        unlimited_count: gpu.unlimited.len(),
    })
}

#[derive(Serialize)]
struct ShareRow<'a> {
    id: u64,
    name: String,
    container_id: String,
    /// NVML's index of the GPU.
    gpu: Option<u32>,
    uuid: Option<&'a str>,
    created: u64,
    priority: u32,
    changes: u64,
    damaged: Option<String>,
    /// Current violations.
    violations: Vec<&'static str>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

/// Figures of a share. Memory in bytes, time in percent of the GPU's.
#[derive(Serialize)]
struct Figures {
    memory: u64,
    memory_limit: Option<u64>,
    charged: u64,
    held: Option<u64>,
    spilled: u64,
    moved_out: u64,
    moves_out: Moves,
    moves_in: Moves,
    time: Option<f64>,
    time_limit: Option<u32>,
    time_soft: Option<u32>,
    lent: u32,
    waits: Option<f64>,
    refused: u64,
    first_refusal: Option<f64>,
    processes: usize,
    is_mps: bool,
}

/// Returns the row of a container's share; without `share` that of a container of which no GPU is known.
pub fn share(id: u64, container: &ContainerState, share: Option<&Share>, index: Option<u32>, tally: Tally) -> String {
    let lasting = Kind::ALL.into_iter().zip(tally.lasting).filter(|(_, count)| *count > 0);
    let figures = |share: &Share| Figures {
        memory: memory(share),
        memory_limit: share.memory_limit,
        charged: share.charged,
        held: share.held,
        spilled: share.spilled,
        moved_out: share.moved_out,
        moves_out: share.moves_out,
        moves_in: share.moves_in,
        time: share.utilization.map(f64::round),
        time_limit: share.cores,
        time_soft: share.cores_soft,
        lent: share.lent,
        waits: share.throttled.map(f64::round),
        refused: share.refused,
        first_refusal: share.first_refusal,
        processes: share.processes.len(),
        is_mps: container.is_mps,
    };
    json(&ShareRow {
        id,
        name: bounded(&container.name()),
        container_id: bounded(&container.id),
        gpu: index,
        uuid: share.map(|share| share.uuid.as_str()),
        created: container.created,
        priority: container.priority,
        changes: container.changes,
        damaged: container.damaged.as_deref().map(bounded),
        violations: lasting.map(|(kind, _)| kind.name()).collect(),
        figures: share.map(figures),
    })
}

/// Returns the memory of a share in bytes: the larger of NVML's figure and the account's.
pub fn memory(share: &Share) -> u64 {
    share.held.unwrap_or(0).max(share.charged)
}

#[derive(Serialize)]
struct EventRow<'a> {
    id: u64,
    kind: &'static str,
    name: &'a str,
    gpu: Option<u32>,
    first: f64,
    last: f64,
    /// How often. For how many seconds, if the container was held back.
    count: u64,
}

/// Returns an event's row. `index` is NVML's index of the GPU.
pub fn event(key: &Key, event: &Event, index: Option<u32>) -> String {
    let (first, last) = event.between;
    let count = if key.3 == super::events::Kind::HeldBack { event.count / 1_000_000_000 } else { event.count };
    let round = |time: f64| time.round();
    json(&EventRow { id: event.number, kind: key.3.name(), name: &event.name, gpu: index, first: round(first), last: round(last), count })
}

/// Returns a row as JSON.
fn json(row: &impl Serialize) -> String {
    // Numbers that JSON lacks become null, and nothing else can fail.
    serde_json::to_string(row).unwrap_or_else(|_| "null".to_owned())
}

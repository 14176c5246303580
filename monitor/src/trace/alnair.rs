//! Alnair's two logs, in the format that the last versions of its profiler write and its README shows: fields separated by commas. The
//! earlier format has one line for each field, lacks bytes and kinds, and is read by no tool in Alnair's tree: its notebook splits lines at
//! commas. Alnair's exporter reads another `metrics.log`, of its limiter, which has no profile.

use std::collections::HashMap;
use std::fmt::Write;

use vgpu_region::trace::{Direction, Kind};

use super::event::Event;
use super::rings::Total;

/// Start of every `metrics.log`.
pub const METRICS_HEAD: &[u8] = b"name:mem_used,count:";
/// Start of every `timeline.log` with an event.
pub const TIMELINE_HEAD: &[u8] = b"name:cu";

/// Names in Alnair's logs, in its order.
pub const NAMES: [&str; 10] = [
    "cuInit",
    "cuMemAlloc",
    "cuMemFree",
    "cuLaunchKernel",
    "cuMemcpyH2D",
    "cuMemcpyD2H",
    "cuGetProcAddress",
    "cuMemcpyH2D_ASYNC",
    "cudaMemcpy",
    "cudaMemcpyAsync",
];

/// Returns the name of a driver function in Alnair's logs. Alnair counts copies by the calls of the CUDA runtime; these are counted by the
/// driver calls that the runtime makes.
#[must_use]
pub fn name(call: &str) -> Option<&'static str> {
    let is_async = call.contains("Async") || call.contains("Batch");
    let wanted = match call {
        "cuInit" => "cuInit",
        _ if call.starts_with("cuMemAlloc") => "cuMemAlloc",
        _ if call.starts_with("cuMemFree") => "cuMemFree",
        _ if call.starts_with("cuLaunch") && !call.starts_with("cuLaunchHostFunc") => "cuLaunchKernel",
        _ if call.starts_with("cuGetProcAddress") => "cuGetProcAddress",
        _ if call.starts_with("cuMemcpyHtoDAsync") => "cuMemcpyH2D_ASYNC",
        _ if call.starts_with("cuMemcpyHtoD") => "cuMemcpyH2D",
        _ if call.starts_with("cuMemcpyDtoH") && !is_async => "cuMemcpyD2H",
        _ if call.starts_with("cuMemcpy") && is_async => "cudaMemcpyAsync",
        _ if call.starts_with("cuMemcpy") => "cudaMemcpy",
        _ => return None,
    };
    NAMES.into_iter().find(|name| *name == wanted)
}

/// Returns `metrics.log`: the memory that the container holds, in bytes, and for each function its calls and total microseconds.
#[must_use]
pub fn metrics(totals: &HashMap<String, Total>, held_bytes: u64) -> String {
    let mut text = format!("name:mem_used,count:{held_bytes}\n");
    for wanted in NAMES {
        let (mut count, mut took_ns) = (0_u64, 0_u64);
        for (_, total) in totals.iter().filter(|(call, _)| name(call) == Some(wanted)) {
            (count, took_ns) = (count.saturating_add(total.count), took_ns.saturating_add(total.took_ns));
        }
        _ = writeln!(text, "name:{wanted},count:{count},burst:{}", took_ns / 1000);
    }
    text
}

/// Returns an event's line of `timeline.log`. `None` for launches and symbol look-ups, which Alnair omits.
#[must_use]
pub fn timeline(event: &Event) -> Option<String> {
    let kind = match event.kind {
        Kind::Init | Kind::Allocate | Kind::Free => -1,
        Kind::Copy if event.what.name == Direction::ByAddress as u16 => 4,
        Kind::Copy => i32::from(event.what.name.min(4)),
        _ => return None,
    };
    let name = if event.kind == Kind::Init { Some("cuInit") } else { name(&event.call) }?;
    let bytes = if event.kind == Kind::Free { 0 } else { event.size };
    Some(format!("name:{name}, start:{}, burst:{}, bytes:{bytes}, kind:{kind}\n", event.begin_ns, event.took_ns / 1000))
}

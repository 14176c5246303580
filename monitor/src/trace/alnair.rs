//! Alnair's two logs, in the form that its profiler's last versions write and its README shows: fields with commas between them. The earlier
//! form, a line for each field, carries less (no bytes, no kinds) and is what no tool in its tree reads any more: its notebook splits
//! lines at commas. Its exporter reads a `metrics.log` of its limiter's, which has nothing of a profile in it.

use std::collections::HashMap;
use std::fmt::Write;

use vgpu_region::trace::{Direction, Kind};

use super::event::Event;
use super::rings::Total;

/// The names that Alnair counts under, in its order.
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

/// The name that Alnair counts one of the driver's functions under. It counts copies where programs call the CUDA runtime for them; here
/// they are seen where the runtime calls the driver.
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

/// `metrics.log`: what the container holds, in bytes, and how often each function was called, for how many microseconds in all.
#[must_use]
pub fn metrics(totals: &HashMap<String, Total>, held: u64) -> String {
    let mut text = format!("name:mem_used,count:{held}\n");
    for wanted in NAMES {
        let (mut count, mut took) = (0_u64, 0_u64);
        for (_, total) in totals.iter().filter(|(call, _)| name(call) == Some(wanted)) {
            (count, took) = (count.saturating_add(total.count), took.saturating_add(total.took));
        }
        _ = writeln!(text, "name:{wanted},count:{count},burst:{}", took / 1000);
    }
    text
}

/// A line of `timeline.log`; Alnair leaves launches and look-ups out of it.
#[must_use]
pub fn timeline(event: &Event) -> Option<String> {
    let kind = match event.kind {
        Kind::Init | Kind::Allocate | Kind::Free => -1,
        Kind::Copy if event.what.name == Direction::ByAddress as u16 => 4,
        Kind::Copy => i32::from(event.what.name.min(4)),
        _ => return None,
    };
    let name = if event.kind == Kind::Init { Some("cuInit") } else { name(&event.call) }?;
    let bytes = if event.kind == Kind::Free { 0 } else { event.amount };
    Some(format!("name:{name}, start:{}, burst:{}, bytes:{bytes}, kind:{kind}\n", event.begin, event.took / 1000))
}

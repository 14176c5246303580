//! Graphs. A device's graph memory grows when a graph with memory nodes is first launched or uploaded. A graph with kernels that need local
//! memory takes that like a launch of each kernel.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vgpu_region::MAX_GPUS;
use vgpu_region::limits::LogLevel;

use crate::compute::pacing;
use crate::hooks::graph_contents::{Contents, Unfit};
use crate::hooks::local_memory;
use crate::hooks::local_memory::Growth;
use crate::loader::driver;
use crate::memory::admission::claim::claim;
use crate::memory::admission::{guard, near_limit};
use crate::memory::granules::{POOL_STEP, rounded_pages};
use crate::memory::ledger::account::Claim;
use crate::memory::objects::graph_memory::{EXECS, RESIDENT, key, settle, settle_claim, trim_idle};
use crate::memory::objects::handle_map::Table;
use crate::memory::objects::{captures, context_table};
use crate::memory::reconcile::overhead;
use crate::os::log;
use crate::os::log::Throttle;
use crate::session;
use crate::session::{Gpu, Session, State};
use crate::trace::names;
use vgpu_cuda_abi::cuda::{Handle, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status};

/// Local memory of instantiated graphs whose kernels need more than every context has: bytes for each thread, by graph.
static LOCAL: Table = Table::new();
/// Default local memory of a context's threads, in bytes (seen on driver 580).
const DEFAULT_STACK: u64 = 1024;

/// Reads a graph that is about to be instantiated, and claims the local memory that this may take. Both are `None` where the graph cannot
/// be read and no memory limit makes that matter.
///
/// # Errors
/// Returns the status to refuse the call with.
fn contents(graph: Handle) -> Result<(Option<Contents>, Option<Growth>), Status> {
    static UNREADABLE: Throttle = Throttle::new();
    // SAFETY: the program's own handle.
    match unsafe { Contents::read(graph) } {
        Ok(contents) => {
            let current = context_table::current().ok();
            let growth = current.map(|current| local_memory::claim_for_threads(current.gpu, contents.local)).transpose()?;
            Ok((Some(contents), growth))
        }
        Err(Unfit::Refused(status)) => Err(status),
        Err(Unfit::Unreadable) if !session::is_memory_limited() => Ok((None, None)),
        Err(Unfit::Unreadable) => {
            if UNREADABLE.allow() {
                log::line(LogLevel::Error, format_args!("refused a graph that is too large or too deep to read: its memory is unknown"));
            }
            Err(OUT_OF_MEMORY)
        }
    }
}

/// Records what an instantiated graph takes. Returns false if the tables are full.
fn record(exec: Handle, contents: &Contents) -> bool {
    names::record_graph(exec, contents.kernels);
    pacing::renew_graph(exec, contents.collective);
    forget(exec);
    let gpus = session::ready().map_or(&[][..], Session::gpus);
    let kept = gpus.iter().map(|gpu| (gpu.device, contents.bytes_on(gpu.device))).filter(|&(_, bytes)| bytes != 0);
    let mut kept = kept.map(|(device, bytes)| EXECS.insert(key(exec, device), bytes));
    kept.all(|kept| kept) && (contents.local <= DEFAULT_STACK || LOCAL.insert(exec as u64, contents.local))
}

/// Removes the records of an instantiated graph.
fn forget(exec: Handle) {
    if !EXECS.is_unused() {
        session::ready().map_or(&[][..], Session::gpus).iter().for_each(|gpu| _ = EXECS.remove(key(exec, gpu.device)));
    }
    if !LOCAL.is_unused() {
        LOCAL.remove(exec as u64);
    }
}

/// Instantiates a graph.
pub unsafe fn instantiate(call: impl FnOnce() -> Status, exec: *mut Handle, graph: Handle) -> Status {
    if exec.is_null() {
        return call();
    }
    let (contents, growth) = match contents(graph) {
        Ok(read) => read,
        Err(status) => return status,
    };
    let undo = || {
        // SAFETY: the graph was just instantiated, and the program has not seen it.
        unsafe {
            forget(*exec);
            driver::discard(exec, driver::graph_exec_destroy);
        }
    };
    let status = match context_table::current() {
        Ok(current) => guard::guard(current.gpu, call, undo),
        Err(_) => call(),
    };
    growth.map(Growth::end);
    // SAFETY: the driver has written the handle.
    if status != SUCCESS || contents.is_none_or(|contents| record(unsafe { *exec }, &contents)) {
        return status;
    }
    // Fail closed: a graph without a record is refused.
    undo();
    OUT_OF_MEMORY
}

/// Updates an instantiated graph. Its nodes may be others afterwards, and its next launch may grow the graph memory again.
pub fn update(call: impl FnOnce() -> Status, exec: Handle, graph: Handle) -> Status {
    let (contents, growth) = match contents(graph) {
        Ok(read) => read,
        Err(status) => return status,
    };
    let status = call();
    growth.map(Growth::end);
    if status == SUCCESS
        && let Some(contents) = contents
    {
        record(exec, &contents);
    }
    status
}

/// Records that an instantiated graph has a kernel whose threads need `bytes` bytes of local memory.
pub fn needs_local(exec: Handle, bytes: u64) {
    match LOCAL.get(exec as u64) {
        _ if bytes <= DEFAULT_STACK => {}
        Some(most) => _ = most.fetch_max(bytes, AcqRel),
        None => _ = LOCAL.insert(exec as u64, bytes),
    }
}

/// Launches or uploads an instantiated graph: claims the graph memory and local memory that it takes.
#[inline]
pub fn run(call: impl FnOnce() -> Status, exec: Handle) -> Status {
    let local = if LOCAL.is_unused() { None } else { LOCAL.get(exec as u64) };
    match local.and_then(|bytes| Some((bytes, context_table::current().ok()?))) {
        Some((bytes, current)) => with_local(|| with_nodes(call, exec), current.gpu, bytes),
        None => with_nodes(call, exec),
    }
}

/// Makes a call that runs kernels whose threads need `bytes` bytes of local memory.
fn with_local(call: impl FnOnce() -> Status, gpu: &'static Gpu, bytes: &AtomicU64) -> Status {
    let growth = match local_memory::claim_for_threads(gpu, bytes.load(Relaxed)) {
        Ok(growth) => growth,
        Err(status) => return status,
    };
    let status = call();
    if !growth.end() && status == SUCCESS {
        // The stack limit does not show what the driver took for a graph. NVML does, once for all launches of the graph.
        bytes.store(0, Relaxed);
        overhead::reconcile(gpu);
    }
    status
}

/// Makes a call that runs memory nodes: claims on every GPU that they use, and settles all claims after the call.
#[inline]
fn with_nodes(call: impl FnOnce() -> Status, exec: Handle) -> Status {
    if EXECS.is_unused() {
        return call();
    }
    let session = match session::current() {
        State::Ready(session) => session,
        State::NotYet => return call(),
        State::Refused => return OPERATING_SYSTEM,
    };
    let mut claims = [const { None }; MAX_GPUS];
    for (gpu, place) in session.gpus().iter().zip(&mut claims) {
        let wanted = EXECS.get(key(exec, gpu.device)).map(|record| record.load(Acquire)).filter(|wanted| wanted & RESIDENT == 0);
        match wanted.map(|wanted| claim_graph_memory(gpu, rounded_pages(wanted, POOL_STEP))).transpose() {
            Ok(claim) => *place = claim,
            Err(status) => {
                claims.into_iter().flatten().for_each(Claim::drop_all);
                return status;
            }
        }
    }
    let status = call();
    for (gpu, claim) in session.gpus().iter().zip(claims) {
        if let Some(record) = EXECS.get(key(exec, gpu.device)) {
            if status == SUCCESS {
                record.fetch_or(RESIDENT, Relaxed);
            }
            settle_claim(gpu, claim);
        } else if let Some(claim) = claim {
            claim.drop_all();
        }
    }
    status
}

/// Claims what a graph's first launch takes. If that does not fit, the memory that other graphs left idle is given back first, as the
/// driver would use it for this graph.
fn claim_graph_memory(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    if let Some(claim) = near_limit::try_claim(gpu, pages) {
        return Ok(claim);
    }
    if captures::wait_for_context().is_some() {
        trim_idle(gpu);
        settle(gpu);
    }
    claim(gpu, pages)
}

/// Destroys an instantiated graph. Its memory stays in the device's graph memory until that is trimmed.
pub fn destroy(call: impl FnOnce() -> Status, exec: Handle) -> Status {
    // Removed before the call: afterwards another thread may be given the same handle.
    forget(exec);
    call()
}

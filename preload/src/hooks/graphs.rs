//! Graphs with memory nodes: a device's graph memory grows when such a graph is first launched or uploaded. And graphs with kernels that
//! need local memory, which the driver takes for their launch as for any other.

use core::ffi::{c_char, c_void};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vgpu_region::MAX_GPUS;

use crate::compute::pacing;
use crate::hooks::graph_contents::{Contents, Unfit};
use crate::hooks::local_memory;
use crate::hooks::local_memory::Growth;
use crate::loader::driver;
pub use crate::memory::admission::{claim, guard, near_limit};
use crate::memory::granules::{POOL_STEP, rounded_pages};
use crate::memory::ledger::account::Claim;
use crate::memory::objects::graph_memory::{EXECS, RESIDENT, key, settle, settle_claim, trim_idle};
use crate::memory::objects::handle_map::Table;
use crate::memory::objects::{captures, context_table};
use crate::memory::reconcile::overhead;
use crate::os::log;
use crate::os::log::Seldom;
use crate::session;
use crate::session::{Gpu, Session, State};
use crate::trace::names;
use vgpu_cuda_abi::cuda::{Handle, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status};

/// Instantiated graphs with kernels that need more local memory than every context has: bytes for each thread.
static LOCAL: Table = Table::new();
/// What every context's threads have by default, in bytes (seen on driver 580).
const USUAL_STACK: u64 = 1024;

/// What is in a graph that is to be made launchable, and the local memory that this may take: read before the driver makes room for it.
unsafe fn contents(graph: Handle) -> Result<(Option<Contents>, Option<Growth>), Status> {
    static SAID: Seldom = Seldom::new();
    // SAFETY: the program's own handle.
    match unsafe { Contents::read(graph) } {
        Ok(contents) => {
            let growth =
                context_table::current().ok().map(|current| local_memory::before_threads_of(current.gpu, contents.local)).transpose()?;
            Ok((Some(contents), growth))
        }
        Err(Unfit::Refused(status)) => Err(status),
        Err(Unfit::Unreadable) if !session::is_memory_limited() => Ok((None, None)),
        Err(Unfit::Unreadable) => {
            if SAID.now() {
                log::line(
                    vgpu_region::limits::LogLevel::Error,
                    format_args!("refused a graph that cannot be read to its end: what memory it takes is not known"),
                );
            }
            Err(OUT_OF_MEMORY)
        }
    }
}

/// Notes what an instantiated graph will take. `false` if that cannot be kept.
fn note(exec: Handle, contents: Contents) -> bool {
    names::note_graph(exec, contents.kernels);
    pacing::renew_graph(exec, contents.collective);
    forget(exec);
    let gpus = session::ready().map_or(&[][..], Session::gpus);
    let kept = gpus.iter().map(|gpu| (gpu.device, contents.bytes_on(gpu.device))).filter(|&(_, bytes)| bytes != 0);
    let mut kept = kept.map(|(device, bytes)| EXECS.insert(key(exec, device), bytes));
    kept.all(|kept| kept) && (contents.local <= USUAL_STACK || LOCAL.insert(exec as u64, contents.local))
}

fn forget(exec: Handle) {
    if !EXECS.is_unused() {
        session::ready().map_or(&[][..], Session::gpus).iter().for_each(|gpu| _ = EXECS.remove(key(exec, gpu.device)));
    }
    if !LOCAL.is_unused() {
        LOCAL.remove(exec as u64);
    }
}

/// Instantiates with `call`.
unsafe fn make_exec(exec: *mut Handle, graph: Handle, call: impl Fn() -> Status) -> Status {
    if exec.is_null() {
        return call();
    }
    // SAFETY: the program's own arguments; the handle is read only after the driver wrote it, and destroyed only if the program will not
    // hear of it.
    unsafe {
        let (contents, growth) = match contents(graph) {
            Ok(read) => read,
            Err(status) => return status,
        };
        let undo = || {
            forget(*exec);
            driver::graph_exec_destroy(*exec);
            *exec = core::ptr::null_mut();
        };
        let status = match context_table::current() {
            Ok(current) => guard::guard(current.gpu, &call, undo),
            Err(_) => call(),
        };
        growth.map(Growth::end);
        if status != SUCCESS || contents.is_none_or(|contents| note(*exec, contents)) {
            return status;
        }
        // What cannot be watched cannot be had.
        undo();
        OUT_OF_MEMORY
    }
}

/// `cuGraphInstantiateWithFlags`
pub unsafe fn instantiate(
    real: unsafe extern "C" fn(*mut Handle, Handle, u64) -> Status,
    exec: *mut Handle,
    graph: Handle,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { make_exec(exec, graph, || real(exec, graph, flags)) }
}

/// `cuGraphInstantiate` and `_v2`
pub unsafe fn instantiate_v2(
    real: unsafe extern "C" fn(*mut Handle, Handle, *mut Handle, *mut c_char, usize) -> Status,
    exec: *mut Handle,
    graph: Handle,
    node: *mut Handle,
    log: *mut c_char,
    size: usize,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { make_exec(exec, graph, || real(exec, graph, node, log, size)) }
}

/// `cuGraphInstantiateWithParams`
pub unsafe fn instantiate_with(
    real: unsafe extern "C" fn(*mut Handle, Handle, *mut c_void) -> Status,
    exec: *mut Handle,
    graph: Handle,
    parameters: *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { make_exec(exec, graph, || real(exec, graph, parameters)) }
}

/// Updates with `call`: the nodes of an updated graph may be others now, and launched anew it may grow the graph memory again.
unsafe fn update_with(exec: Handle, graph: Handle, call: impl FnOnce() -> Status) -> Status {
    // SAFETY: the program's own handle.
    let (contents, growth) = match unsafe { contents(graph) } {
        Ok(read) => read,
        Err(status) => return status,
    };
    let status = call();
    growth.map(Growth::end);
    if status == SUCCESS
        && let Some(contents) = contents
    {
        note(exec, contents);
    }
    status
}

/// `cuGraphExecUpdate_v2`
pub unsafe fn update(
    real: unsafe extern "C" fn(Handle, Handle, *mut c_void) -> Status,
    exec: Handle,
    graph: Handle,
    result: *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { update_with(exec, graph, || real(exec, graph, result)) }
}

/// `cuGraphExecUpdate`
pub unsafe fn update_v1(
    real: unsafe extern "C" fn(Handle, Handle, *mut Handle, *mut i32) -> Status,
    exec: Handle,
    graph: Handle,
    node: *mut Handle,
    result: *mut i32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { update_with(exec, graph, || real(exec, graph, node, result)) }
}

/// `cuGraphLaunch`
#[inline]
pub unsafe fn launch(real: unsafe extern "C" fn(Handle, Handle) -> Status, exec: Handle, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_memory(exec, || real(exec, stream)) }
}

/// `cuGraphUpload`
pub unsafe fn upload(real: unsafe extern "C" fn(Handle, Handle) -> Status, exec: Handle, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_memory(exec, || real(exec, stream)) }
}

/// A kernel that needs so much local memory, in bytes for each thread, is in an instantiated graph now.
pub fn needs_local(exec: Handle, bytes: u64) {
    match LOCAL.get(exec as u64) {
        _ if bytes <= USUAL_STACK => {}
        Some(most) => _ = most.fetch_max(bytes, AcqRel),
        None => _ = LOCAL.insert(exec as u64, bytes),
    }
}

unsafe fn with_memory(exec: Handle, call: impl FnOnce() -> Status) -> Status {
    let needs = if LOCAL.is_unused() { None } else { LOCAL.get(exec as u64) };
    match needs.and_then(|bytes| Some((bytes, context_table::current().ok()?))) {
        // SAFETY: as this function.
        Some((bytes, current)) => with_local(current.gpu, bytes, || unsafe { with_nodes(exec, call) }),
        // SAFETY: as above.
        None => unsafe { with_nodes(exec, call) },
    }
}

/// Launches with `call` what has kernels that need `bytes` of local memory for each thread.
fn with_local(gpu: &'static Gpu, bytes: &AtomicU64, call: impl FnOnce() -> Status) -> Status {
    let growth = match local_memory::before_threads_of(gpu, bytes.load(Relaxed)) {
        Ok(growth) => growth,
        Err(status) => return status,
    };
    let status = call();
    if !growth.end() && status == SUCCESS {
        // What the driver took for a graph it does not tell by its limit: NVML does, once and for all its launches.
        bytes.store(0, Relaxed);
        overhead::reconcile(gpu);
    }
    status
}

unsafe fn with_nodes(exec: Handle, call: impl FnOnce() -> Status) -> Status {
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
        match wanted.map(|wanted| claim(gpu, rounded_pages(wanted, POOL_STEP))).transpose() {
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

/// Takes what a graph's first launch takes. If that does not fit, what other graphs left idle is given up first, as the driver would use
/// it for this one.
fn claim(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    if let Some(claim) = near_limit::try_claim(gpu, pages) {
        return Ok(claim);
    }
    if !captures::may_go_on() {
        // SAFETY: waiting is what the driver does when it is out of memory.
        unsafe { driver::context_synchronize() };
        trim_idle(gpu);
        settle(gpu);
    }
    claim::claim(gpu, pages)
}

/// `cuGraphExecDestroy`: its memory stays in the device's graph memory until that is trimmed.
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, exec: Handle) -> Status {
    // From here on another thread may be given the same handle.
    forget(exec);
    // SAFETY: the program's own argument.
    unsafe { real(exec) }
}

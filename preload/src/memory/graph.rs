//! Graphs with memory nodes: a device's graph memory grows when such a graph is first launched or uploaded. And graphs with kernels that
//! need local memory, which the driver takes for their launch as for any other.

mod contents;
pub mod kernels;

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use vgpu_region::MAX_GPUS;

use self::contents::{Contents, Unfit};
use super::account::{self, Claim};
use super::local::{self, Growth};
use super::table::Table;
use super::{POOL_STEP, capture, context, known, near, pools, rounded_pages, truth};
use crate::cuda::{Device, GRAPH_RESERVED_CURRENT, Handle, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status};
use crate::log::{self, Seldom};
use crate::session::{self, Gpu, Session, State};
use crate::{compute, driver, trace};

/// Instantiated graphs with memory nodes, by device ([`key`]): what those ask for in bytes, and [`RESIDENT`].
static EXECS: Table = Table::new();
/// It has been launched: its memory is there, until the device's graph memory is trimmed.
const RESIDENT: u64 = 1 << 63;
/// Instantiated graphs with kernels that need more local memory than every context has: bytes for each thread.
static LOCAL: Table = Table::new();
/// What every context's threads have by default, in bytes (seen on driver 580).
const USUAL_STACK: u64 = 1024;

/// The graph memory charged for each device; as the records of pools.
static RESERVED: [AtomicU64; MAX_GPUS] = [const { AtomicU64::new(0) }; MAX_GPUS];

/// A graph's memory on a device. Handles are addresses of 47 bits.
fn key(exec: Handle, device: Device) -> u64 {
    exec as u64 | (device as u64 + 1) << 48
}

fn reserved(device: Device) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word.
    (unsafe { driver::device_graph_memory(device, GRAPH_RESERVED_CURRENT, &raw mut value) } == SUCCESS).then_some(value)
}

/// Brings a device's graph memory in line.
pub fn settle(gpu: &Gpu) {
    if !EXECS.is_unused() {
        settle_claim(gpu, None);
    }
}

fn settle_claim(gpu: &Gpu, claim: Option<Claim<'_>>) {
    if let Some(record) = RESERVED.get(gpu.device as usize) {
        pools::settle(gpu, record, claim, || reserved(gpu.device));
    }
}

/// The device's graph memory was trimmed: what is launched next may grow it again.
pub fn trimmed() {
    for (_, record) in EXECS.iter() {
        record.fetch_and(!RESIDENT, AcqRel);
    }
}

/// What is in a graph that is to be made launchable, and the local memory that this may take: read before the driver makes room for it.
unsafe fn contents(graph: Handle) -> Result<(Option<Contents>, Option<Growth>), Status> {
    static SAID: Seldom = Seldom::new();
    // SAFETY: the program's own handle.
    match unsafe { Contents::read(graph) } {
        Ok(contents) => {
            let growth = known::current().ok().map(|current| local::before_threads_of(current.gpu, contents.local)).transpose()?;
            Ok((Some(contents), growth))
        }
        Err(Unfit::Refused(status)) => Err(status),
        Err(Unfit::Unreadable) if !context::is_limited() => Ok((None, None)),
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
    trace::names::note_graph(exec, contents.kernels);
    compute::hooks::renew_graph(exec, contents.collective);
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
        let status = match known::current() {
            Ok(current) => near::guard(current.gpu, &call, undo),
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
fn needs_local(exec: Handle, bytes: u64) {
    match LOCAL.get(exec as u64) {
        _ if bytes <= USUAL_STACK => {}
        Some(most) => _ = most.fetch_max(bytes, AcqRel),
        None => _ = LOCAL.insert(exec as u64, bytes),
    }
}

unsafe fn with_memory(exec: Handle, call: impl FnOnce() -> Status) -> Status {
    let needs = if LOCAL.is_unused() { None } else { LOCAL.get(exec as u64) };
    match needs.and_then(|bytes| Some((bytes, known::current().ok()?))) {
        // SAFETY: as this function.
        Some((bytes, current)) => with_local(current.gpu, bytes, || unsafe { with_nodes(exec, call) }),
        // SAFETY: as above.
        None => unsafe { with_nodes(exec, call) },
    }
}

/// Launches with `call` what has kernels that need `bytes` of local memory for each thread.
fn with_local(gpu: &'static Gpu, bytes: &AtomicU64, call: impl FnOnce() -> Status) -> Status {
    let growth = match local::before_threads_of(gpu, bytes.load(Relaxed)) {
        Ok(growth) => growth,
        Err(status) => return status,
    };
    let status = call();
    if !growth.end() && status == SUCCESS {
        // What the driver took for a graph it does not tell by its limit: NVML does, once and for all its launches.
        bytes.store(0, Relaxed);
        truth::reconcile(gpu);
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
    if let Some(claim) = account::try_claim(gpu, pages) {
        return Ok(claim);
    }
    if !capture::may_go_on() {
        // SAFETY: waiting is what the driver does when it is out of memory.
        unsafe { driver::context_synchronize() };
        trim_idle(gpu);
        settle(gpu);
    }
    account::claim(gpu, pages)
}

/// Gives back to the device what no graph uses now.
pub fn trim_idle(gpu: &Gpu) {
    let held = RESERVED.get(gpu.device as usize).is_some_and(|record| record.load(Relaxed) as u32 != 0);
    // SAFETY: a plain call.
    if held && unsafe { driver::trim_graphs(gpu.device) } == SUCCESS {
        trimmed();
    }
}

/// `cuGraphExecDestroy`: its memory stays in the device's graph memory until that is trimmed.
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, exec: Handle) -> Status {
    // From here on another thread may be given the same handle.
    forget(exec);
    // SAFETY: the program's own argument.
    unsafe { real(exec) }
}

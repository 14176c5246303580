//! Events: recording, querying, elapsed time.

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use super::capture;
use super::queues::{lock_queues, wait};
use super::resolve::resolve;
use super::submit::{reclaim_after_wait, submit};
use crate::driver::state;
use crate::ffi::{CudaResult, INVALID_HANDLE, INVALID_VALUE, put};
use crate::handles::as_pointer;
use crate::objects::{Event, Work};

const DISABLE_TIMING: u32 = 2;

fn record(event: CUevent, stream: CUstream) -> CudaResult {
    let key = resolve(stream)?;
    let event_ns = crate::driver::driver()?.device().config().event_ns;
    let (number, ns) = {
        let mut queues = lock_queues()?;
        let queue = queues.streams.get(&key);
        let (context, capturing) = (queue.map(|queue| queue.context), queue.is_some_and(|queue| queue.capture.is_some()));
        let event = queues.events.get_mut(event)?;
        // Documented by CUDA: event and stream must belong to the same context.
        if context.is_some_and(|context| context != event.context) {
            return Err(INVALID_HANDLE);
        }
        if !capturing {
            event.recorded += 1;
            event.captured = None;
        }
        (event.recorded, if event.timing { event_ns } else { 0 })
    };
    submit(stream, Work::RecordEvent { event: event.addr(), number, ns })
}

fn destroy(event: CUevent) -> CudaResult {
    lock_queues()?.events.remove(event).map(|_| ())
}

fn elapsed(out: *mut f32, start: CUevent, end: CUevent) -> CudaResult {
    let queues = lock_queues()?;
    let (start, end) = (queues.events.get(start)?, queues.events.get(end)?);
    if !start.timing || !end.timing || start.recorded == 0 || end.recorded == 0 {
        return Err(INVALID_HANDLE);
    }
    if start.completed < start.recorded || end.completed < end.recorded {
        return Err(CUresult::CUDA_ERROR_NOT_READY);
    }
    let ns = end.time_ns.cast_signed() - start.time_ns.cast_signed();
    put(out, (ns as f64 / 1e6) as f32)
}

api! {
    fn cuEventCreate(out: *mut CUevent, flags: u32) {
        let context = state()?.current()?;
        if out.is_null() || flags & !7 != 0 {
            return Err(INVALID_VALUE);
        }
        let event = Event { context, timing: flags & DISABLE_TIMING == 0, ..Event::default() };
        put(out, as_pointer(lock_queues()?.events.add(event)))
    }

    fn cuEventDestroy(event: CUevent) { destroy(event) }
    fn cuEventDestroy_v2(event: CUevent) { destroy(event) }
    fn cuEventRecord [cuEventRecord_ptsz stream] (event: CUevent, stream: CUstream) { record(event, stream) }
    fn cuEventRecordWithFlags [cuEventRecordWithFlags_ptsz stream] (event: CUevent, stream: CUstream, _flags: u32) { record(event, stream) }

    fn cuEventQuery(event: CUevent) {
        capture::reject_captured_event(&mut *lock_queues()?, event)?;
        capture::reject_unsafe_call()?;
        let queues = lock_queues()?;
        let event = queues.events.get(event)?;
        if event.completed >= event.recorded { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuEventSynchronize(event: CUevent) {
        let mut queues = lock_queues()?;
        let number = queues.events.get(event)?.recorded;
        capture::reject_captured_event(&mut queues, event)?;
        while queues.events.get(event).is_ok_and(|event| event.completed < number) {
            queues = wait(queues)?;
        }
        drop(queues);
        reclaim_after_wait()
    }

    fn cuEventElapsedTime(out: *mut f32, start: CUevent, end: CUevent) { elapsed(out, start, end) }
    fn cuEventElapsedTime_v2(out: *mut f32, start: CUevent, end: CUevent) { elapsed(out, start, end) }
}

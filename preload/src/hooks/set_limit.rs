//! `cuCtxSetLimit`: stack, heap and printf buffer are device memory whose size is known before.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::pages;

use crate::memory::admission::acquire::{Estimate, Operation, Taken, acquire};
use crate::memory::ledger::account;
use crate::memory::objects::context_limits::{limit_now, resident_threads};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::{checked_functions, context_table, heap};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{LIMIT_MALLOC_HEAP_SIZE, LIMIT_PRINTF_FIFO_SIZE, LIMIT_STACK_SIZE, OUT_OF_MEMORY, Status};

/// Sets a limit of the current context with `call`; `value` is in bytes.
pub fn set_limit(call: impl FnOnce() -> Status, limit: i32, value: usize) -> Status {
    let Ok(Current { gpu, context, .. }) = context_table::current() else { return call() };
    let value = value as u64;
    match (limit, context) {
        (LIMIT_STACK_SIZE, _) => set_stack(call, gpu, value),
        (LIMIT_MALLOC_HEAP_SIZE, Some(context)) => set_promise(call, gpu, &context.promised[0], heap::EXTRA, limit, value),
        (LIMIT_PRINTF_FIFO_SIZE, Some(context)) => set_promise(call, gpu, &context.promised[1], 0, limit, value),
        // A context beyond the table has no record of its promises. Fail closed.
        (LIMIT_MALLOC_HEAP_SIZE | LIMIT_PRINTF_FIFO_SIZE, None) if value > limit_now(limit) => OUT_OF_MEMORY,
        _ => call(),
    }
}

/// Claims up to `most` pages and makes `call`. `change` then returns the pages that were taken and given back.
fn resize(call: impl FnOnce() -> Status, gpu: &Gpu, most: u32, change: impl FnOnce() -> (u32, u32)) -> Status {
    let record = || {
        let (taken, given_back) = change();
        account::add_overhead(gpu, taken);
        account::release_overhead(gpu, given_back);
        Some(Taken::Object(taken))
    };
    acquire(gpu, Operation { estimate: Estimate::AtMost(most), call, record, undo: || {} })
}

/// Sets the stack size. The driver takes stacks at once, one for each thread that the device can hold.
fn set_stack(call: impl FnOnce() -> Status, gpu: &Gpu, value: u64) -> Status {
    let (before, threads) = (limit_now(LIMIT_STACK_SIZE), resident_threads(gpu.device));
    let stacks = |bytes: u64| pages(bytes.saturating_mul(threads));
    resize(call, gpu, stacks(value.saturating_sub(before)), || {
        checked_functions::forget();
        let after = limit_now(LIMIT_STACK_SIZE);
        (stacks(after.saturating_sub(before)), stacks(before.saturating_sub(after)))
    })
}

/// Sets the size of the heap or the printf buffer. The driver takes either whole, and `extra` pages, when a kernel first uses it. No call
/// could be refused then, so the memory is charged now.
fn set_promise(call: impl FnOnce() -> Status, gpu: &Gpu, promised: &AtomicU32, extra: u32, limit: i32, value: u64) -> Status {
    let before = promised.load(Relaxed);
    let whole = |value: u64| pages(value).saturating_add(extra);
    resize(call, gpu, whole(value).saturating_sub(before), || {
        let after = whole(limit_now(limit));
        promised.store(after, Relaxed);
        (after.saturating_sub(before), before.saturating_sub(after))
    })
}

//! NVML's lists of processes, reduced to the container's own: those with a slot in its region. In a PID namespace of its own a container
//! sees no others anyway; in a shared one the others are removed.

use vgpu_region::map;
use vgpu_region::map::Census;
use vgpu_region::region::SLOTS;

use crate::hooks::nvml_memory::{View, view};
use crate::os::list::List;
use crate::session;
use vgpu_cuda_abi::cuda::{Handle, Status};
use vgpu_cuda_abi::nvml::{
    INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, OPERATING_SYSTEM, Process, ProcessDetail, ProcessDetails, ProcessUtilization,
    ProcessV1, SUCCESS, UtilizationSample, Utilizations,
};

/// Number of entries that NVML is asked for. The container has no more processes than the region has slots.
const MOST: usize = SLOTS;

/// Entry of a list.
pub trait OfProcess: Copy {
    /// Returns the process, in this PID namespace.
    fn pid(&self) -> u32;
}

/// Implements [`OfProcess`] for structures with a `pid`.
macro_rules! of_process {
    ($($type:ty),+) => { $(impl OfProcess for $type { fn pid(&self) -> u32 { self.pid } })+ };
}

of_process!(Process, ProcessV1, ProcessDetail, UtilizationSample, ProcessUtilization);

impl OfProcess for u32 {
    fn pid(&self) -> u32 {
        *self
    }
}

/// The PIDs in the region's living slots.
pub struct Own(List<u32, SLOTS>);

impl Own {
    /// Reads the region.
    pub(super) fn read(view: &View) -> Self {
        let mut own = List::new();
        let census = Census::open(session::region_path());
        for (_, slot) in map::living(view.region, &census) {
            own.push(slot.pid.load(core::sync::atomic::Ordering::Relaxed));
        }
        Self(own)
    }

    /// Returns whether a process is the container's.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.0.as_slice().contains(&pid)
    }

    /// Moves the container's own entries to the front, and returns their number.
    fn keep<T: OfProcess>(&self, list: &mut [T]) -> usize {
        let mut kept = 0;
        for place in 0..list.len() {
            if let Some(&entry) = list.get(place).filter(|entry| self.has(entry.pid()))
                && let Some(target) = list.get_mut(kept)
            {
                *target = entry;
                kept += 1;
            }
        }
        kept
    }
}

/// Copies entries to the program by NVML's rule: `count` is the room and becomes the number of entries; too little room is an error.
///
/// # Safety
/// `count` is valid, and `list` is null or has as much room as `count` says.
unsafe fn give<T: OfProcess>(entries: &[T], count: *mut u32, list: *mut T) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        let room = count.replace(entries.len() as u32);
        if (room as usize) < entries.len() {
            return INSUFFICIENT_SIZE;
        }
        if !entries.is_empty() && list.is_null() {
            return INVALID_ARGUMENT;
        }
        core::ptr::copy_nonoverlapping(entries.as_ptr(), list, entries.len());
    }
    SUCCESS
}

/// Reads NVML's list with `call` and returns the container's own entries.
///
/// # Errors
/// Returns NVML's status, or the status to refuse the call with.
///
/// # Safety
/// `call` writes as many entries as it counts, at most `MOST`.
unsafe fn own_of<T: OfProcess>(call: impl FnOnce(&mut u32, *mut T) -> Status) -> Result<List<T, MOST>, Status> {
    let view = view().ok_or(OPERATING_SYSTEM)?;
    let (mut list, mut count) = (List::<T, MOST>::new(), MOST as u32);
    match call(&mut count, list.room().ok_or(OPERATING_SYSTEM)?) {
        SUCCESS => {}
        status => return Err(status),
    }
    // SAFETY: the caller's promise; then the list only gets shorter.
    unsafe {
        list.set_count(count as usize);
        let kept = Own::read(view).keep(list.as_mut_slice());
        list.set_count(kept);
    }
    Ok(list)
}

/// Reads NVML's list with `read` and gives the program the container's own entries, or `if_empty` if there are none.
///
/// # Safety
/// `read` writes as many entries as it counts. `count` is valid, and `list` is null or has as much room as `count` says.
unsafe fn give_own<T: OfProcess>(read: impl FnOnce(&mut u32, *mut T) -> Status, count: *mut u32, list: *mut T, if_empty: Status) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        match own_of(read) {
            Ok(own) if own.as_slice().is_empty() && if_empty != SUCCESS => if_empty,
            Ok(own) => give(own.as_slice(), count, list),
            Err(status) => status,
        }
    }
}

/// `nvmlDeviceGetComputeRunningProcesses`, `…Graphics…`, `…MPSCompute…`, all versions; `nvmlDeviceGetAccountingPids`
pub unsafe fn list<T: OfProcess>(
    real: unsafe extern "C" fn(Handle, *mut u32, *mut T) -> Status,
    device: Handle,
    count: *mut u32,
    out: *mut T,
) -> Status {
    // SAFETY: the program's own arguments; without a count they are for NVML to refuse.
    unsafe {
        if count.is_null() {
            return real(device, count, out);
        }
        give_own(|count, list| real(device, count, list), count, out, SUCCESS)
    }
}

/// A structure that holds the room in a list, or its length, and the list.
pub trait ListRequest: Copy {
    /// Entry of the list.
    type Entry: OfProcess;
    /// Status that NVML returns for an empty list.
    const IF_EMPTY: Status;
    /// Returns the count and the list.
    fn list(&mut self) -> (&mut u32, &mut *mut Self::Entry);
}

impl ListRequest for ProcessDetails {
    type Entry = ProcessDetail;
    const IF_EMPTY: Status = SUCCESS;
    fn list(&mut self) -> (&mut u32, &mut *mut ProcessDetail) {
        (&mut self.count, &mut self.entries)
    }
}

impl ListRequest for Utilizations {
    type Entry = ProcessUtilization;
    const IF_EMPTY: Status = NOT_FOUND;
    fn list(&mut self) -> (&mut u32, &mut *mut ProcessUtilization) {
        (&mut self.count, &mut self.entries)
    }
}

/// `nvmlDeviceGetRunningProcessDetailList`, `nvmlDeviceGetProcessesUtilizationInfo`
pub unsafe fn described_list<T: ListRequest>(real: unsafe extern "C" fn(Handle, *mut T) -> Status, device: Handle, out: *mut T) -> Status {
    // SAFETY: the program's own argument: null or a whole structure.
    let Some(request) = (unsafe { out.as_mut() }) else {
        // SAFETY: for NVML to refuse.
        return unsafe { real(device, out) };
    };
    let mut own_request = *request;
    let read = |count: &mut u32, entries| {
        let (room, list) = own_request.list();
        (*room, *list) = (*count, entries);
        // SAFETY: a whole structure, with room for as many entries as it says.
        let status = unsafe { real(device, &raw mut own_request) };
        *count = *own_request.list().0;
        status
    };
    let (count, list) = request.list();
    // SAFETY: NVML has written as many entries as it says; then the program's own pointers.
    unsafe { give_own(read, count, *list, T::IF_EMPTY) }
}

/// `nvmlDeviceGetProcessUtilization`
pub unsafe fn utilization(
    real: unsafe extern "C" fn(Handle, *mut UtilizationSample, *mut u32, u64) -> Status,
    device: Handle,
    out: *mut UtilizationSample,
    count: *mut u32,
    since: u64,
) -> Status {
    // SAFETY: as in `list`.
    unsafe {
        if count.is_null() {
            return real(device, out, count, since);
        }
        give_own(|count, list| real(device, list, count, since), count, out, NOT_FOUND)
    }
}

/// Returns a process's accounting statistics if the process is the container's own.
pub fn accounting(call: impl FnOnce() -> Status, pid: u32) -> Status {
    match view() {
        Some(view) if Own::read(view).has(pid) => call(),
        Some(_) => NOT_FOUND,
        None => OPERATING_SYSTEM,
    }
}

/// `nvmlDeviceGetAccountingStats_v2`, which names the process in the first field of its structure
///
/// # Safety
/// `statistics` is null or points to a whole structure.
pub unsafe fn accounting_v2(call: impl FnOnce() -> Status, statistics: *const u32) -> Status {
    // SAFETY: the caller's promise.
    match unsafe { statistics.as_ref() } {
        Some(&pid) => accounting(call, pid),
        None => call(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(pids: &[u32]) -> Own {
        let mut own = List::new();
        assert!(pids.iter().all(|&pid| own.push(pid)));
        Own(own)
    }

    fn process(pid: u32) -> Process {
        Process { pid, used: u64::from(pid), gpu_instance: 0, compute_instance: 0 }
    }

    #[test]
    fn own_entries_stay_in_order() {
        let mut list = [9, 1, 8, 2, 3].map(process);
        assert_eq!(own(&[1, 3, 8]).keep(&mut list), 3);
        assert_eq!(list.map(|entry| entry.pid)[..3], [1, 8, 3]);
        assert_eq!(own(&[]).keep(&mut list), 0);
        assert_eq!(own(&[0]).keep::<Process>(&mut []), 0);
    }

    #[test]
    fn entries_are_copied_by_nvmls_rule() {
        let entries = [process(4), process(5)];
        let mut room = [Process::default(); 2];
        // SAFETY: the test's own counts and room.
        unsafe {
            for (offered, out, status) in [
                (0, core::ptr::null_mut(), INSUFFICIENT_SIZE),
                (1, room.as_mut_ptr(), INSUFFICIENT_SIZE),
                (2, core::ptr::null_mut(), INVALID_ARGUMENT),
                (2, room.as_mut_ptr(), SUCCESS),
            ] {
                let mut count = offered;
                assert_eq!((give(&entries, &raw mut count, out), count), (status, 2), "room for {offered}");
            }
            let mut none = 0;
            assert_eq!(give::<Process>(&[], &raw mut none, core::ptr::null_mut()), SUCCESS);
        }
        assert_eq!(room.map(|entry| entry.used), [4, 5]);
    }
}

//! Lists of processes: only the container's own, which is to say those with a slot in its region. Where the container has a PID namespace
//! of its own NVML lists no others anyway; where it shares one, others' are left out.

use core::ffi::c_void;

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

/// As many entries are asked of NVML. More processes than slots cannot be the container's.
const MOST: usize = SLOTS;

/// An entry of a list.
pub trait OfProcess: Copy {
    /// Whose it is.
    fn pid(&self) -> u32;
}

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
    pub(super) fn read(view: &View) -> Self {
        let mut own = List::new();
        let census = Census::open(session::region_path());
        for (_, slot) in map::living(view.region, &census) {
            own.push(slot.pid.load(core::sync::atomic::Ordering::Relaxed));
        }
        Self(own)
    }

    pub(super) fn has(&self, pid: u32) -> bool {
        self.0.as_slice().contains(&pid)
    }

    /// Moves the container's own entries to the front, and tells how many they are.
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

/// Gives the program its entries by NVML's rule: `count` says the room and gets the number there is; too little is an error.
unsafe fn give<T: OfProcess>(entries: &[T], count: *mut u32, list: *mut T) -> Status {
    // SAFETY: the program's own pointers: the count has been checked, and the list has as much room as it says.
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

/// Reads NVML's list with `call`, which says how many it has written, and leaves the container's own entries.
unsafe fn own_of<T: OfProcess>(call: impl FnOnce(&mut u32, *mut T) -> Status) -> Result<List<T, MOST>, Status> {
    let view = view().ok_or(OPERATING_SYSTEM)?;
    let (mut list, mut count) = (List::<T, MOST>::new(), MOST as u32);
    match call(&mut count, list.room().ok_or(OPERATING_SYSTEM)?) {
        SUCCESS => {}
        status => return Err(status),
    }
    // SAFETY: the call has written as many as it says; then there are not more than before.
    unsafe {
        list.set_count(count as usize);
        let kept = Own::read(view).keep(list.as_mut_slice());
        list.set_count(kept);
    }
    Ok(list)
}

/// `nvmlDeviceGetComputeRunningProcesses`, `…Graphics…`, `…MPSCompute…`, all versions; `nvmlDeviceGetAccountingPids`
pub unsafe fn list<T: OfProcess>(
    real: unsafe extern "C" fn(Handle, *mut u32, *mut T) -> Status,
    device: Handle,
    count: *mut u32,
    out: *mut T,
) -> Status {
    if count.is_null() {
        // SAFETY: the program's own arguments, for NVML to refuse.
        return unsafe { real(device, count, out) };
    }
    // SAFETY: room for as many entries as the count says; then the program's own pointers.
    unsafe {
        match own_of(|count, list| real(device, count, list)) {
            Ok(kept) => give(kept.as_slice(), count, out),
            Err(status) => status,
        }
    }
}

/// `nvmlDeviceGetRunningProcessDetailList`
pub unsafe fn details(
    real: unsafe extern "C" fn(Handle, *mut ProcessDetails) -> Status,
    device: Handle,
    out: *mut ProcessDetails,
) -> Status {
    // SAFETY: the program's own argument: null or a whole structure.
    let Some(asked) = (unsafe { out.as_mut() }) else {
        // SAFETY: for NVML to refuse.
        return unsafe { real(device, out) };
    };
    // SAFETY: as in `list`.
    unsafe {
        let ours = own_of(|count, entries| {
            let mut whole = ProcessDetails { count: *count, entries, ..*asked };
            let status = real(device, &raw mut whole);
            *count = whole.count;
            status
        });
        match ours {
            Ok(kept) => give(kept.as_slice(), &raw mut asked.count, asked.entries),
            Err(status) => status,
        }
    }
}

/// `nvmlDeviceGetProcessUtilization`
pub unsafe fn utilization(
    real: unsafe extern "C" fn(Handle, *mut UtilizationSample, *mut u32, u64) -> Status,
    device: Handle,
    out: *mut UtilizationSample,
    count: *mut u32,
    since: u64,
) -> Status {
    if count.is_null() {
        // SAFETY: the program's own arguments, for NVML to refuse.
        return unsafe { real(device, out, count, since) };
    }
    // SAFETY: as in `list`.
    unsafe {
        match own_of(|count, list| real(device, list, count, since)) {
            Ok(kept) if kept.as_slice().is_empty() => NOT_FOUND,
            Ok(kept) => give(kept.as_slice(), count, out),
            Err(status) => status,
        }
    }
}

/// `nvmlDeviceGetProcessesUtilizationInfo`
pub unsafe fn utilization_info(
    real: unsafe extern "C" fn(Handle, *mut Utilizations) -> Status,
    device: Handle,
    out: *mut Utilizations,
) -> Status {
    // SAFETY: the program's own argument: null or a whole structure.
    let Some(asked) = (unsafe { out.as_mut() }) else {
        // SAFETY: for NVML to refuse.
        return unsafe { real(device, out) };
    };
    // SAFETY: as in `list`.
    unsafe {
        let ours = own_of(|count, entries| {
            let mut whole = Utilizations { count: *count, entries, ..*asked };
            let status = real(device, &raw mut whole);
            *count = whole.count;
            status
        });
        match ours {
            Ok(kept) if kept.as_slice().is_empty() => NOT_FOUND,
            Ok(kept) => give(kept.as_slice(), &raw mut asked.count, asked.entries),
            Err(status) => status,
        }
    }
}

/// `nvmlDeviceGetAccountingStats`: of the container's own processes.
pub unsafe fn accounting(
    real: unsafe extern "C" fn(Handle, u32, *mut c_void) -> Status,
    device: Handle,
    pid: u32,
    statistics: *mut c_void,
) -> Status {
    match view() {
        // SAFETY: the program's own arguments.
        Some(view) if Own::read(view).has(pid) => unsafe { real(device, pid, statistics) },
        Some(_) => NOT_FOUND,
        None => OPERATING_SYSTEM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::list::List;
    use vgpu_cuda_abi::nvml::INSUFFICIENT_SIZE;
    use vgpu_cuda_abi::nvml::INVALID_ARGUMENT;
    use vgpu_cuda_abi::nvml::Process;
    use vgpu_cuda_abi::nvml::SUCCESS;

    fn own(pids: &[u32]) -> Own {
        let mut own = List::new();
        assert!(pids.iter().all(|&pid| own.push(pid)));
        Own(own)
    }

    fn process(pid: u32) -> Process {
        Process { pid, used: u64::from(pid), gpu_instance: 0, compute_instance: 0 }
    }

    #[test]
    fn only_own_entries_stay_and_in_order() {
        let mut list = [9, 1, 8, 2, 3].map(process);
        assert_eq!(own(&[1, 3, 8]).keep(&mut list), 3);
        assert_eq!(list.map(|entry| entry.pid)[..3], [1, 8, 3]);
        assert_eq!(own(&[]).keep(&mut list), 0);
        assert_eq!(own(&[0]).keep::<Process>(&mut []), 0);
    }

    #[test]
    fn entries_are_given_by_nvmls_rule() {
        let entries = [process(4), process(5)];
        let mut room = [Process::default(); 2];
        // SAFETY: counts and room of our own.
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

//! Adds a GPU's account to a container's region.

use core::ffi::CStr;

use super::file::{Error, File};
use crate::region::{Region, SLOTS};
use crate::uuid::Uuid;

/// Byte after those of the slots. Locked by a process that adds an account.
const ACCOUNTS_BYTE: usize = SLOTS;

/// Returns the index of a GPU in the container's region, which is added if it is new. Adding takes a lock, so that two processes that come first
/// do not add two accounts, each with the whole limit. The kernel releases the lock of a killed process.
///
/// # Errors
/// The file cannot be opened, or [`Error::NoAccount`].
pub fn account(path: &CStr, region: &Region, uuid: Uuid) -> Result<usize, Error> {
    if let Some(place) = region.find(uuid) {
        return Ok(place);
    }
    let file = File::open(path, libc::O_RDWR)?;
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    for _ in 0..1000 {
        if file.lock(libc::F_OFD_SETLK, ACCOUNTS_BYTE).is_some() {
            let place = region.gpu(uuid);
            // Released explicitly: a child that was forked meanwhile has the same open file.
            file.change_lock(libc::F_OFD_SETLK, libc::F_UNLCK, ACCOUNTS_BYTE);
            return place.ok_or(Error::NoAccount);
        }
        // SAFETY: the structure is valid; the rest of an interrupted sleep is not needed.
        unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
    }
    Err(Error::NoAccount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{format, region};
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_gpu_gets_one_account_however_long_adding_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let new = std::fs::File::create(&path).unwrap();
        format(std::os::fd::AsRawFd::as_raw_fd(&new)).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let (ours, theirs) = (region(&path).unwrap(), region(&path).unwrap());
        let uuid = Uuid([7; 16]);

        let maker = File::open(&path, libc::O_RDWR).unwrap();
        assert!(maker.lock(libc::F_OFD_SETLK, ACCOUNTS_BYTE).is_some());
        ours.gpus[0].claimed.store(1, Relaxed);
        let other = std::thread::spawn({
            let path = path.clone();
            move || account(&path, theirs, uuid)
        });
        // Gives the other thread time to reach the lock. The test passes in either order.
        std::thread::sleep(std::time::Duration::from_millis(50));
        ours.gpus[0].claimed.store(0, Relaxed);
        assert_eq!(ours.gpu(uuid), Some(0));
        drop(maker);
        assert_eq!(other.join().unwrap(), Ok(0));
        assert_eq!((account(&path, ours, uuid), ours.gpus[1].uuid()), (Ok(0), None));
    }

    #[test]
    fn a_stuck_process_delays_only_processes_that_need_a_new_account() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let new = std::fs::File::create(&path).unwrap();
        format(std::os::fd::AsRawFd::as_raw_fd(&new)).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let region = region(&path).unwrap();
        assert_eq!(account(&path, region, Uuid([1; 16])), Ok(0));
        let stuck = File::open(&path, libc::O_RDWR).unwrap();
        assert!(stuck.lock(libc::F_OFD_SETLK, ACCOUNTS_BYTE).is_some());
        assert_eq!(account(&path, region, Uuid([1; 16])), Ok(0));
        assert_eq!(account(&path, region, Uuid([2; 16])), Err(Error::NoAccount));
        drop(stuck);
        assert_eq!(account(&path, region, Uuid([2; 16])), Ok(1));
    }
}

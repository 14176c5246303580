//! Giving a GPU its account in a container's region.

use core::ffi::CStr;

use super::{Error, File};
use crate::region::{Region, SLOTS};
use crate::uuid::Uuid;

/// The byte behind the slots': whoever gives a GPU its account has it locked.
const ACCOUNTS: usize = SLOTS;

/// The place of a GPU in the container's region, taken now if it is new. Only then is there a lock, so that two who come first at the same
/// time do not make two accounts, each with the whole limit. It goes with whoever has it.
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
        if file.lock(libc::F_OFD_SETLK, ACCOUNTS).is_some() {
            let place = region.gpu(uuid);
            // A child that was forked meanwhile has the same open file.
            file.change_lock(libc::F_OFD_SETLK, libc::F_UNLCK, ACCOUNTS);
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
    fn one_gpu_gets_one_account_however_long_its_maker_takes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let new = std::fs::File::create(&path).unwrap();
        format(std::os::fd::AsRawFd::as_raw_fd(&new)).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let (ours, theirs) = (region(&path).unwrap(), region(&path).unwrap());
        let uuid = Uuid([7; 16]);

        let maker = File::open(&path, libc::O_RDWR).unwrap();
        assert!(maker.lock(libc::F_OFD_SETLK, ACCOUNTS).is_some());
        ours.gpus[0].claimed.store(1, Relaxed);
        let other = std::thread::spawn({
            let path = path.clone();
            move || account(&path, theirs, uuid)
        });
        // Not before the other is seen to wait for us would it be too late.
        std::thread::sleep(std::time::Duration::from_millis(50));
        ours.gpus[0].claimed.store(0, Relaxed);
        assert_eq!(ours.gpu(uuid), Some(0));
        drop(maker);
        assert_eq!(other.join().unwrap(), Ok(0));
        assert_eq!((account(&path, ours, uuid), ours.gpus[1].uuid()), (Ok(0), None));
    }

    #[test]
    fn whoever_makes_an_account_and_never_ends_is_waited_for_a_while_only_by_those_who_need_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let new = std::fs::File::create(&path).unwrap();
        format(std::os::fd::AsRawFd::as_raw_fd(&new)).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let region = region(&path).unwrap();
        assert_eq!(account(&path, region, Uuid([1; 16])), Ok(0));
        let stuck = File::open(&path, libc::O_RDWR).unwrap();
        assert!(stuck.lock(libc::F_OFD_SETLK, ACCOUNTS).is_some());
        assert_eq!(account(&path, region, Uuid([1; 16])), Ok(0));
        assert_eq!(account(&path, region, Uuid([2; 16])), Err(Error::NoAccount));
        drop(stuck);
        assert_eq!(account(&path, region, Uuid([2; 16])), Ok(1));
    }
}

//! Latest value of one process for others, in a file in memory.
//!
//! The writer replaces the value and never waits. A reader that is behind misses values, and one that dies, stops or is hostile disturbs
//! nobody. The value outlives the processes on both sides, as their supervisor keeps the file open.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Size of the header in bytes: the sequence number, which is odd while the value is replaced, and the value's length.
const HEADER_SIZE: usize = 16;
/// Maximum size of a value in bytes.
const MAX_SIZE: u64 = 256 << 20;
/// Number of times that a reader looks again while the value is replaced.
const ATTEMPTS: usize = 100;

/// Writing end, and owner of the file.
#[derive(Debug)]
pub struct Mailbox<T> {
    file: File,
    value: PhantomData<fn() -> T>,
}

/// Reading end, which cannot write.
#[derive(Debug)]
pub struct Reader<T> {
    file: File,
    seen: u64,
    value: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Mailbox<T> {
    /// Creates an empty mailbox. Only this user may open it again.
    ///
    /// # Errors
    /// The kernel refuses the file.
    pub fn create() -> io::Result<Self> {
        let file = memfd_create("vgpu-mailbox", MemfdFlags::CLOEXEC)?;
        fchmod(&file, Mode::from_raw_mode(0o600))?;
        Ok(Self::from(file))
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// The value cannot be serialized, or memory is short.
    pub fn write(&self, value: &T) -> io::Result<()> {
        let text = serde_json::to_vec(value)?;
        let (sequence, _) = header(&self.file)?;
        // A writer that was killed in between left an odd number.
        let replacing = sequence.wrapping_add(1) | 1;
        self.file.write_all_at(&replacing.to_ne_bytes(), 0)?;
        fence(Ordering::SeqCst);
        self.file.write_all_at(&text, HEADER_SIZE as u64)?;
        fence(Ordering::SeqCst);
        let head = [replacing.wrapping_add(1), text.len() as u64].map(u64::to_ne_bytes).concat();
        self.file.write_all_at(&head, 0)
    }

    /// Returns a reading end for this process or one that inherits it.
    ///
    /// # Errors
    /// The file cannot be opened again.
    pub fn reader(&self) -> io::Result<Reader<T>> {
        let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok(Reader::from(OwnedFd::from(file)))
    }
}

impl<T> From<OwnedFd> for Mailbox<T> {
    fn from(file: OwnedFd) -> Self {
        Self { file: file.into(), value: PhantomData }
    }
}

impl<T> From<OwnedFd> for Reader<T> {
    fn from(file: OwnedFd) -> Self {
        Self { file: file.into(), seen: 0, value: PhantomData }
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<T> AsFd for Reader<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<T: DeserializeOwned> Reader<T> {
    /// Returns the value if it is not the one that the last call returned. `None` also if it is just replaced, or damaged.
    pub fn read(&mut self) -> Option<T> {
        for _ in 0..ATTEMPTS {
            let (sequence, length) = header(&self.file).ok()?;
            if sequence == self.seen || sequence == 0 {
                return None;
            }
            let is_complete = sequence % 2 == 0 && length <= MAX_SIZE;
            let mut text = vec![0; if is_complete { length as usize } else { 0 }];
            fence(Ordering::SeqCst);
            let copied = self.file.read_exact_at(&mut text, HEADER_SIZE as u64);
            fence(Ordering::SeqCst);
            if is_complete && copied.is_ok() && header(&self.file).ok()?.0 == sequence {
                self.seen = sequence;
                return serde_json::from_slice(&text).ok();
            }
            std::thread::yield_now();
        }
        None
    }
}

/// Returns the sequence number and the length. Both are 0 in a new file.
fn header(file: &File) -> io::Result<(u64, u64)> {
    let mut bytes = [0; HEADER_SIZE];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    let [sequence, length] = [0, 8].map(|at| bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_ne_bytes));
    Ok((sequence, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_the_latest_value_once() {
        let mailbox = Mailbox::<Vec<u32>>::create().unwrap();
        let mut reader = mailbox.reader().unwrap();
        assert_eq!(reader.read(), None);
        mailbox.write(&vec![1; 1000]).unwrap();
        mailbox.write(&vec![2, 3]).unwrap();
        assert_eq!(reader.read(), Some(vec![2, 3]));
        assert_eq!(reader.read(), None);
        // Another incarnation of the reader starts with the value that is there.
        assert_eq!(mailbox.reader().unwrap().read(), Some(vec![2, 3]));
    }

    #[test]
    fn a_writer_that_died_in_between_is_survived() {
        let mailbox = Mailbox::<u32>::create().unwrap();
        let mut reader = mailbox.reader().unwrap();
        mailbox.write(&7).unwrap();
        mailbox.file.write_all_at(&3_u64.to_ne_bytes(), 0).unwrap();
        mailbox.file.write_all_at(b"garbage", HEADER_SIZE as u64).unwrap();
        assert_eq!(reader.read(), None);
        Mailbox::from(mailbox.file.try_clone().map(OwnedFd::from).unwrap()).write(&8_u32).unwrap();
        assert_eq!(reader.read(), Some(8));
    }

    #[test]
    fn readers_cannot_write() {
        let mailbox = Mailbox::<u32>::create().unwrap();
        assert!(mailbox.reader().unwrap().file.write_all_at(b"x", 0).is_err());
    }

    /// Values are never mixed, however reader and writer meet.
    #[test]
    fn values_are_whole() {
        let mailbox = Mailbox::<Vec<u64>>::create().unwrap();
        let mut reader = mailbox.reader().unwrap();
        let last = 2000;
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=last).for_each(|number| mailbox.write(&vec![number; 1 + number as usize % 3000]).unwrap()));
            let mut newest = 0;
            while newest < last {
                let Some(value) = reader.read() else { continue };
                assert!(value[0] > newest && value.iter().all(|number| *number == value[0]));
                assert_eq!(value.len(), 1 + value[0] as usize % 3000);
                newest = value[0];
            }
        });
    }
}

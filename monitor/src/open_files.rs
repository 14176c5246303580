//! Files that containers share with the host, kept open between two looks.
//!
//! A container's files belong to it as long as its record does: `vgpu-runtime` writes all of them before the directory gets its name, and a
//! container that replaces another one under its name has another record. Nobody else can replace them, as only root gets through the
//! directory. As long as a file is open here, no process can take a lease that keeps the host from reading it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use vgpu_oci_hook::state::{LIMITS, REGION, Record};

use crate::shared_file;

/// Part of the descriptors that this process may open that are kept at most. Files beyond are opened at each look.
const DESCRIPTOR_SHARE: u64 = 4;
/// Files of each container.
const FILES: u64 = 2;

/// Files of one container.
#[derive(Debug)]
pub struct OpenFiles {
    /// The limits page.
    pub limits: File,
    /// The region.
    pub region: File,
}

impl OpenFiles {
    /// Opens the files in a container's directory.
    fn open(dir: &Path) -> io::Result<Self> {
        Ok(Self { limits: shared_file::open(&dir.join(LIMITS))?, region: shared_file::open(&dir.join(REGION))? })
    }
}

/// Open files by the container's directory.
#[derive(Debug)]
pub struct OpenFileCache {
    known: HashMap<OsString, (Arc<Record>, OpenFiles)>,
    asked: HashMap<OsString, (Arc<Record>, OpenFiles)>,
    /// Most containers whose files are kept.
    most: usize,
}

impl Default for OpenFileCache {
    fn default() -> Self {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / DESCRIPTOR_SHARE / FILES;
        Self { known: HashMap::new(), asked: HashMap::new(), most: usize::try_from(most).unwrap_or(usize::MAX) }
    }
}

impl OpenFileCache {
    /// Calls `read` with the files of the container in a directory, which has this record. `None` if they cannot be kept open.
    pub fn with<T>(&mut self, dir: &Path, record: &Arc<Record>, read: impl FnOnce(&OpenFiles) -> T) -> Option<T> {
        let known = self.known.remove_entry(dir.as_os_str()).filter(|(_, (of, _))| Arc::ptr_eq(of, record));
        let (dir, entry) = match known {
            Some(entry) => entry,
            None if self.asked.len() >= self.most => return None,
            None => (dir.as_os_str().to_owned(), (Arc::clone(record), OpenFiles::open(dir).ok()?)),
        };
        let result = read(&entry.1);
        self.asked.insert(dir, entry);
        Some(result)
    }

    /// Closes the files that nobody asked for since the last call.
    pub fn forget_others(&mut self) {
        self.known = std::mem::take(&mut self.asked);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::test_host::Host;

    #[test]
    fn files_are_kept_open_until_the_record_changes() {
        let host = Host::new();
        host.container("c", "a", "p", &[]);
        let (dir, first) = (host.dir("c"), Arc::new(host.record("c")));
        let mut cache = OpenFileCache::default();
        let mut text = |record: &Arc<Record>| {
            let mut text = String::new();
            let found = cache.with(&dir, record, |files| (&files.limits).read_to_string(&mut text).is_ok());
            cache.forget_others();
            found.map(|_| text)
        };
        std::fs::write(dir.join(LIMITS), "one").unwrap();
        assert_eq!(text(&first).as_deref(), Some("one"));
        assert_eq!(text(&first).as_deref(), Some(""), "the same open file");
        std::fs::remove_file(dir.join(LIMITS)).unwrap();
        std::fs::write(dir.join(LIMITS), "two").unwrap();
        assert_eq!(text(&Arc::new(host.record("c"))).as_deref(), Some("two"), "those of another container under the name");
        std::fs::remove_file(dir.join(REGION)).unwrap();
        assert_eq!(text(&first), None);
    }

    #[test]
    fn no_more_files_are_kept_than_there_is_room_for() {
        let host = Host::new();
        let mut cache = OpenFileCache { most: 1, ..OpenFileCache::default() };
        for (id, is_kept) in [("a", true), ("b", false)] {
            host.container(id, id, "p", &[]);
            assert_eq!(cache.with(&host.dir(id), &Arc::new(host.record(id)), |_| ()).is_some(), is_kept);
        }
    }
}

//! Containers' records, which rarely change: they are parsed once.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vgpu_oci_hook::state::{LIMITS, RECORD, Record};

/// What tells one version of a file from another: device, inode, size and time of the last change. Records are replaced by rename.
type Version = (u64, u64, u64, i64, i64);

fn version(file: &Metadata) -> Version {
    (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec())
}

/// Records by the container's directory.
#[derive(Debug, Default)]
pub struct RecordCache {
    known: HashMap<PathBuf, (Version, Arc<Record>)>,
    asked: HashMap<PathBuf, (Version, Arc<Record>)>,
}

impl RecordCache {
    /// Returns the record in a container's directory. `None` if there is none: the directory is not a container's, or is being removed.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn get(&mut self, dir: &Path) -> Option<io::Result<Arc<Record>>> {
        let path = dir.join(RECORD);
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !dir.join(LIMITS).exists() => None,
            found => Some(found.and_then(|file| self.get_version(dir, &path, version(&file)))),
        }
    }

    /// Returns the record of this version in the file `path` of a container's directory.
    fn get_version(&mut self, dir: &Path, path: &Path, version: Version) -> io::Result<Arc<Record>> {
        let known = self.known.remove_entry(dir).filter(|(_, (known, _))| *known == version);
        let (dir, entry) = match known {
            Some(entry) => entry,
            None => (dir.to_owned(), (version, Arc::new(serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)?))),
        };
        let record = Arc::clone(&entry.1);
        self.asked.insert(dir, entry);
        Ok(record)
    }

    /// Forgets the records that nobody asked for since the last call.
    pub fn forget_others(&mut self) {
        self.known = std::mem::take(&mut self.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::Host;

    #[test]
    fn records_are_read_again_when_they_change() {
        let host = Host::new();
        host.container("c", "a", "p", &[]);
        let (dir, mut cache) = (host.dir("c"), RecordCache::default());
        let mut look = || {
            let found = cache.get(&dir);
            cache.forget_others();
            found.map(Result::unwrap)
        };
        let first = look().unwrap();
        assert!(Arc::ptr_eq(&first, &look().unwrap()));
        let changed = serde_json::to_vec(&Record { created: 7, ..(*first).clone() }).unwrap();
        crate::atomic_file::replace(&dir.join(RECORD), &changed).unwrap();
        assert_eq!(look().unwrap().created, 7);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(look(), None);
    }
}

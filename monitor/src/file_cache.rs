//! JSON files in containers' directories, which rarely change: each version is parsed once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

/// What tells one version of a file from another: device, inode, size and time of the last change. The files are replaced by rename.
pub(crate) type Version = (u64, u64, u64, i64, i64);

/// Returns the version of a file.
pub(crate) fn version(file: &Metadata) -> Version {
    (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec())
}

/// Parsed files of one name, by the container's directory.
#[derive(Debug)]
pub struct FileCache<T> {
    name: &'static str,
    known: HashMap<OsString, (Version, Arc<T>)>,
    asked: HashMap<OsString, (Version, Arc<T>)>,
}

impl<T: DeserializeOwned> FileCache<T> {
    /// Returns an empty cache for files of this name.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, known: HashMap::new(), asked: HashMap::new() }
    }

    /// Returns the content of the file in a container's directory. `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn get(&mut self, dir: &Path) -> Option<io::Result<Arc<T>>> {
        let path = dir.join(self.name);
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            found => Some(found.and_then(|file| self.get_version(dir, &path, version(&file)))),
        }
    }

    /// Returns the content of the file `path` of a container's directory, which has this version.
    fn get_version(&mut self, dir: &Path, path: &Path, version: Version) -> io::Result<Arc<T>> {
        let known = self.known.remove_entry(dir.as_os_str()).filter(|(_, (known, _))| *known == version);
        let (dir, entry) = match known {
            Some(entry) => entry,
            None => (dir.as_os_str().to_owned(), (version, Arc::new(serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)?))),
        };
        let content = Arc::clone(&entry.1);
        self.asked.insert(dir, entry);
        Ok(content)
    }

    /// Forgets the files that nobody asked for since the last call.
    pub fn forget_others(&mut self) {
        self.known = std::mem::take(&mut self.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::Host;
    use vgpu_oci_hook::state::{RECORD, Record};

    #[test]
    fn files_are_read_again_when_they_change() {
        let host = Host::new();
        host.container("c", "a", "p", &[]);
        let (dir, mut cache) = (host.dir("c"), FileCache::<Record>::new(RECORD));
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

//! What the process's control group may still take of the host's memory.

use core::ffi::CStr;

/// The files of a version of control groups, as a container sees its own (the kernel's `admin-guide/cgroup-v2.rst` and
/// `cgroup-v1/memory.rst`).
struct Files {
    /// Limit in bytes.
    limit: &'static CStr,
    /// Bytes in use.
    used: &'static CStr,
    /// A line for each kind of memory: its name and its bytes.
    details: &'static CStr,
    /// The name of the page cache.
    cache: &'static str,
    /// The name of the shared memory, which the page cache includes.
    shared: &'static str,
}

/// Version 2, then version 1.
const VERSIONS: [Files; 2] = [
    Files {
        limit: c"/sys/fs/cgroup/memory.max",
        used: c"/sys/fs/cgroup/memory.current",
        details: c"/sys/fs/cgroup/memory.stat",
        cache: "file",
        shared: "shmem",
    },
    Files {
        limit: c"/sys/fs/cgroup/memory/memory.limit_in_bytes",
        used: c"/sys/fs/cgroup/memory/memory.usage_in_bytes",
        details: c"/sys/fs/cgroup/memory/memory.stat",
        cache: "total_cache",
        shared: "total_shmem",
    },
];

/// Returns the bytes that the control group may still take, with the page cache that the kernel would give up for them; `u64::MAX` without a
/// limit, or where the container does not see its own.
pub fn memory_left() -> u64 {
    let left = VERSIONS.iter().find_map(|files| {
        let (mut limit, mut used, mut details) = ([0; 64], [0; 64], [0; 4096]);
        let (limit, used) = (read(files.limit, &mut limit)?, read(files.used, &mut used)?);
        left(limit, used, read(files.details, &mut details).unwrap_or_default(), files)
    });
    left.unwrap_or(u64::MAX)
}

/// The same by the texts of the files. `None` without a limit.
fn left(limit: &str, used: &str, details: &str, files: &Files) -> Option<u64> {
    let (limit, used): (u64, u64) = (limit.trim().parse().ok()?, used.trim().parse().ok()?);
    let detail = |name: &str| {
        let words = details.lines().filter_map(|line| line.split_once(' '));
        words.filter(|&(key, _)| key == name).find_map(|(_, value)| value.parse::<u64>().ok()).unwrap_or(0)
    };
    let reclaimable = detail(files.cache).saturating_sub(detail(files.shared));
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// Reads the first part of a file, as much as fits.
fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    // SAFETY: the path ends with 0, the buffer is as long as the call is told, and the descriptor is this function's own.
    let count = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let count = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(file);
        count
    };
    core::str::from_utf8(buffer.get(..usize::try_from(count).ok()?)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_counts_as_free_and_shared_memory_does_not() {
        let details = "anon 5000\nfile 3000\nkernel 10\nshmem 1000\nfile_mapped 70\n";
        assert_eq!(left("10000\n", "9000\n", details, &VERSIONS[0]), Some(3000));
        let older = "cache 1\ntotal_cache 3000\ntotal_shmem 1000\n";
        assert_eq!(left("10000\n", "9000\n", older, &VERSIONS[1]), Some(3000));
        assert_eq!(left("10000", "12000", "", &VERSIONS[0]), Some(0));
        assert_eq!(left("max\n", "9000\n", details, &VERSIONS[0]), None);
    }
}

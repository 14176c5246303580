//! What the process's control group may still take of the host's memory.

use core::ffi::CStr;

/// Names of the page cache, and of the shared memory that it includes, among the details of a version of control groups.
#[derive(Clone, Copy)]
struct Names {
    /// The page cache.
    cache: &'static str,
    /// Its shared memory.
    shared: &'static str,
}

/// Returns the bytes that the control group may still take, with the page cache that the kernel would give up for them; `u64::MAX` without a
/// limit, or where the container does not see its own. By the kernel's `admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.
pub fn memory_left() -> u64 {
    let second = || {
        let names = Names { cache: "file", shared: "shmem" };
        left_by_files(c"/sys/fs/cgroup/memory.max", c"/sys/fs/cgroup/memory.current", c"/sys/fs/cgroup/memory.stat", names)
    };
    let first = || {
        let limit = c"/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let used = c"/sys/fs/cgroup/memory/memory.usage_in_bytes";
        left_by_files(limit, used, c"/sys/fs/cgroup/memory/memory.stat", Names { cache: "total_cache", shared: "total_shmem" })
    };
    second().or_else(first).unwrap_or(u64::MAX)
}

/// The same by the files of one version. `None` without a limit.
fn left_by_files(limit: &CStr, used: &CStr, details: &CStr, names: Names) -> Option<u64> {
    let (mut limit_text, mut used_text, mut details_text) = ([0; 64], [0; 64], [0; 4096]);
    let (limit, used) = (read(limit, &mut limit_text)?, read(used, &mut used_text)?);
    left(limit, used, read(details, &mut details_text).unwrap_or_default(), names)
}

/// The same by the texts of the files: limit and use in bytes, and a line for each kind of memory with its name and bytes.
fn left(limit: &[u8], used: &[u8], details: &[u8], names: Names) -> Option<u64> {
    let detail = |name: &str| {
        let lines = details.split(|&byte| byte == b'\n');
        lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b" ")).find_map(number).unwrap_or(0)
    };
    let reclaimable = detail(names.cache).saturating_sub(detail(names.shared));
    Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(reclaimable)))
}

/// Returns the number that a text begins with.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |number: Option<u64>, byte| Some(number.unwrap_or(0).wrapping_mul(10).wrapping_add(u64::from(byte - b'0'))))
}

/// Reads the first part of a file, as much as fits.
fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
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
    buffer.get(..usize::try_from(count).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_counts_as_free_and_shared_memory_does_not() {
        let names = Names { cache: "file", shared: "shmem" };
        let details = b"anon 5000\nfile_mapped 70\nfile 3000\nkernel 10\nshmem 1000\n";
        assert_eq!(left(b"10000\n", b"9000\n", details, names), Some(3000));
        let (older, old_names) = (b"cache 1\ntotal_cache 3000\ntotal_shmem 1000\n", Names { cache: "total_cache", shared: "total_shmem" });
        assert_eq!(left(b"10000\n", b"9000\n", older, old_names), Some(3000));
        assert_eq!(left(b"10000", b"12000", b"", names), Some(0));
        assert_eq!(left(b"max\n", b"9000\n", details, names), None);
    }
}

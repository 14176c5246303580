//! The library that containers get. The loader ignores a library that it cannot load, and the program would run without limits. So a file
//! that is certainly no such library stops the container.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use vgpu_config::Policy;

use crate::error::{Error, Result};
use crate::process;

/// Length of a 64-bit ELF file's header in bytes.
const HEADER: usize = 64;
/// Length of a program header in bytes.
const SEGMENT: usize = 56;
/// Most program headers that are looked at. The library has about ten.
const MAX_SEGMENTS: u16 = 64;
/// Magic number, 64 bits, little-endian.
const MAGIC: [u8; 6] = *b"\x7fELF\x02\x01";
/// `ET_DYN`: a file that can be loaded at any address, as each library is.
const DYNAMIC: u16 = 3;
/// `PT_LOAD`: a part of the file that is mapped into memory.
const LOADED: u32 = 1;
/// This program's machine, which is the containers': the name, and ELF's number.
const MACHINE: (&str, u16) = if cfg!(target_arch = "aarch64") { ("aarch64", 183) } else { ("x86_64", 62) };

/// Returns the file of the policy's library with symbolic links resolved. A container keeps the file that it was started with, so an
/// upgrade does not affect it.
///
/// # Errors
/// There is no such file, users other than root and this process's may write it, or programs cannot load it.
pub fn find(policy: &Policy) -> Result<PathBuf> {
    let path = policy.library.canonicalize().map_err(Error::io("find the library", &policy.library))?;
    let found = std::fs::metadata(&path).map_err(Error::io("stat the library", &path))?;
    let refused = |expected: &str| Err(Error::refused("library", path.display().to_string(), expected));
    let owners = [0, rustix::process::geteuid().as_raw()];
    // In a user namespace, files of the host's root have the overflow UID.
    let is_host_roots = || process::rootless_user().is_some() && Some(found.uid()) == process::overflow_user();
    let is_trusted = (owners.contains(&found.uid()) || is_host_roots()) && found.mode() & 0o022 == 0;
    if !found.is_file() || !is_trusted {
        return refused("a regular file that belongs to root and that no other user may write (the policy's key library)");
    }
    if found.mode() & 0o004 == 0 {
        return refused("a library that every user can read, as programs of others would run without limits (chmod a+r)");
    }
    match flaw(&path, found.len()) {
        Ok(None) => Ok(path),
        Ok(Some(expected)) => refused(&format!("{expected}, as programs would run without limits (reinstall the vgpu package)")),
        Err(why) => Err(Error::io("read the library", &path)(why)),
    }
}

/// Returns what is expected of the file instead, if the loader refuses it. `length` is the file's, in bytes.
///
/// # Errors
/// The file cannot be read.
pub fn flaw(path: &Path, length: u64) -> std::io::Result<Option<String>> {
    let not_elf = || Ok(Some("a 64-bit ELF library".to_owned()));
    if length < HEADER as u64 {
        return not_elf();
    }
    let file = File::open(path)?;
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    let (count, size) = (half(&header, 56), half(&header, 54));
    if header[..MAGIC.len()] != MAGIC || half(&header, 16) != DYNAMIC || usize::from(size) != SEGMENT || count > MAX_SEGMENTS {
        return not_elf();
    }
    let (machine, number) = MACHINE;
    if half(&header, 18) != number {
        return Ok(Some(format!("a library for {machine}")));
    }
    let mut segments = vec![0; usize::from(count) * SEGMENT];
    let start = long(&header, 32);
    let mut end = start.saturating_add(segments.len() as u64);
    if end <= length {
        file.read_exact_at(&mut segments, start)?;
    }
    let loaded = || segments.chunks_exact(SEGMENT).filter(|segment| word(segment, 0) == LOADED);
    end = loaded().map(|segment| long(segment, 8).saturating_add(long(segment, 32))).fold(end, u64::max);
    if end > length {
        return Ok(Some(format!("a complete library of at least {end} bytes, but it has {length}")));
    }
    if loaded().next().is_none() { not_elf() } else { Ok(None) }
}

/// Reads a number of 16 bits.
fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a number of 32 bits.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

/// Reads a number of 64 bits.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A library with one segment, from which a test breaks one thing.
    fn library() -> Vec<u8> {
        let mut bytes = vec![0; HEADER + SEGMENT + 8];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        let mut put = |at: usize, number: u64, length: usize| bytes[at..at + length].copy_from_slice(&number.to_le_bytes()[..length]);
        put(16, DYNAMIC.into(), 2);
        put(18, MACHINE.1.into(), 2);
        put(32, HEADER as u64, 8);
        put(54, SEGMENT as u64, 2);
        put(56, 1, 2);
        put(HEADER, LOADED.into(), 4);
        put(HEADER + 32, (HEADER + SEGMENT + 8) as u64, 8);
        bytes
    }

    #[test]
    fn a_file_that_the_loader_would_ignore_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libvgpu.so");
        let policy = Policy::parse(&format!("library = {path:?}")).unwrap();
        let refusal = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
            find(&policy).err().map(|why| why.to_string())
        };
        assert_eq!(refusal(&library()), None);
        let changed = |at: usize, byte: u8| {
            let mut bytes = library();
            bytes[at] = byte;
            bytes
        };
        for (description, bytes, expected) in [
            ("empty", Vec::new(), "a 64-bit ELF library"),
            ("a text", b"a text\n".repeat(20), "a 64-bit ELF library"),
            ("32 bits", changed(4, 1), "a 64-bit ELF library"),
            ("big-endian", changed(5, 2), "a 64-bit ELF library"),
            ("an object file", changed(16, 1), "a 64-bit ELF library"),
            ("another machine", changed(18, 8), &format!("a library for {}", MACHINE.0)),
            ("no segment is loaded", changed(HEADER, 2), "a 64-bit ELF library"),
            ("the headers alone", library()[..HEADER].to_vec(), "a complete library of at least 120 bytes, but it has 64"),
            ("cut off", library()[..HEADER + SEGMENT + 7].to_vec(), "a complete library of at least 128 bytes, but it has 127"),
            ("a huge segment", changed(HEADER + 39, 255), "a complete library of at least "),
            ("headers beyond the end", changed(39, 255), "a complete library of at least "),
        ] {
            let refusal = refusal(&bytes).unwrap_or_else(|| panic!("{description}: accepted"));
            assert!(refusal.contains(&format!("expected {expected}")), "{description}: {refusal}");
            assert!(refusal.ends_with("as programs would run without limits (reinstall the vgpu package)"), "{description}: {refusal}");
        }
    }

    #[test]
    fn a_real_library_is_accepted() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-")).unwrap();
        let length = std::fs::metadata(libc).unwrap().len();
        assert_eq!(flaw(Path::new(libc), length).unwrap(), None, "{libc}");
    }
}

//! The library that goes into the containers: whether any of them can load it, and nobody can change it.

use super::machine::Machine;
use super::report::Report;
use super::system;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const LIBRARY: &str = "library";
/// CentOS 7's, and older than any image with a CUDA that our drivers run.
const BASELINE: [u32; 2] = [2, 17];
const REINSTALL: &str = "install the vgpu package again";

pub(super) fn library(machine: &Machine, path: &Path, report: &mut Report) {
    let name = path.display();
    let file = machine.path(path);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) => return report.fail(LIBRARY, format!("{name}: {error}"), REINSTALL),
    };
    match needs(&bytes) {
        Err(error) => report.fail(LIBRARY, format!("{name} is not a library for this machine: {error}"), REINSTALL),
        Ok(needs) if needs.glibc > BASELINE.to_vec() => {
            report.fail(LIBRARY, format!("{name} needs glibc {}; older images could not load it", dotted(&needs.glibc)), REINSTALL);
        }
        Ok(needs) if needs.libraries.iter().any(|one| one != "libc.so.6") => {
            let libraries = needs.libraries.join(", ");
            report.fail(LIBRARY, format!("{name} needs {libraries}; an image without them would run unlimited"), REINSTALL);
        }
        Ok(needs) => {
            let real = std::fs::canonicalize(&file).unwrap_or(file.clone());
            let real = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let real = if path.ends_with(&real) { String::new() } else { format!(" -> {real}") };
            report.ok(LIBRARY, format!("{name}{real}, for glibc {} and later", dotted(&needs.glibc)));
        }
    }
    if let Some(why) = exposed(&file) {
        report.fail(LIBRARY, format!("{name}: {why}"), format!("chown root:root and chmod go-w; {REINSTALL}"));
    }
    let mounts = system::mounts(machine);
    let mount = mounts.iter().filter(|mount| path.starts_with(&mount.at)).max_by_key(|mount| mount.at.len());
    if mount.is_some_and(|mount| mount.options.iter().any(|option| option == "noexec")) {
        report.fail(
            LIBRARY,
            format!("{name} is on a file system mounted noexec"),
            "set library in the policy file to a place without noexec",
        );
    }
}

/// What keeps a file from being trusted, or from being read by a container's users.
fn exposed(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    let folder = std::fs::metadata(path.parent()?).ok()?;
    match () {
        () if file.uid() != 0 => Some(format!("belongs to user {}", file.uid())),
        () if file.mode() & 0o022 != 0 => Some("others than root may write it".into()),
        () if folder.uid() != 0 || folder.mode() & 0o022 != 0 => Some("others than root may write its folder".into()),
        () if file.mode() & 0o444 != 0o444 => Some("not everybody may read it, so programs of other users would run unlimited".into()),
        () => None,
    }
}

fn dotted(version: &[u32]) -> String {
    version.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// What a library asks of the system that loads it.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    /// The newest glibc version that a symbol of it needs.
    glibc: Vec<u32>,
    /// The libraries that it is linked to.
    libraries: Vec<String>,
}

fn needs(bytes: &[u8]) -> Result<Needs, object::Error> {
    let file = ElfFile64::<LE>::parse(bytes)?;
    let (endian, header) = (file.endian(), file.elf_header());
    let sections = header.sections(endian, bytes)?;
    let mut found = Needs { glibc: Vec::new(), libraries: Vec::new() };
    if let Some((mut entries, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = entries.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?);
                if let Some(numbers) = name.strip_prefix("GLIBC_") {
                    found.glibc = found.glibc.max(super::machine::leading(numbers));
                }
            }
        }
    }
    if let Some((entries, link)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries {
            if entry.d_tag.get(endian) == u64::from(elf::DT_NEEDED) {
                let offset = u32::try_from(entry.d_val.get(endian)).unwrap_or(u32::MAX);
                let name = strings.get(offset).unwrap_or_default();
                found.libraries.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_libs_needs_are_read() {
        // This test program itself: built here, for this machine's glibc.
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = needs(&bytes).unwrap();
        assert!(needs.libraries.iter().any(|one| one == "libc.so.6"), "{needs:?}");
        assert!(needs.glibc > BASELINE.to_vec() && needs.glibc < vec![3], "{needs:?}");
        assert!(super::needs(b"not an ELF file").is_err());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let said = || {
            let mut report = Report::default();
            library(&machine, Path::new("/libvgpu.so"), &mut report);
            report.0.into_iter().map(|f| f.says).collect::<Vec<_>>().join("\n")
        };
        assert!(said().contains("No such file"));
        let path = dir.path().join("libvgpu.so");
        std::fs::write(&path, "text").unwrap();
        assert!(said().contains("not a library"));
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        assert!(said().contains("older images could not load it"), "{}", said());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        assert!(said().contains("may write it") || said().contains("belongs to user"), "{}", said());
    }
}

//! Checks of libvgpu.so: every image can load it, and only root can change it.

use super::machine::Machine;
use super::report::Report;
use super::system;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vgpu_oci_hook::library::flaw;

const LIBRARY: &str = "library";
/// glibc version of CentOS 7. No image with a CUDA that current drivers support has an older one.
const BASELINE: [u32; 2] = [2, 17];
const REINSTALL: &str = "reinstall the vgpu package";

/// Checks the library at `path`.
pub(super) fn check_library(machine: &Machine, path: &Path, report: &mut Report) {
    let name = path.display();
    let file = machine.path(path);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) => return report.fail(LIBRARY, format!("{name}: {error}"), REINSTALL),
    };
    let flaw = flaw(&file, bytes.len() as u64).ok().flatten();
    match requirements(&bytes) {
        _ if flaw.is_some() => report.fail(LIBRARY, format!("{name}: expected {}", flaw.unwrap_or_default()), REINSTALL),
        Err(error) => report.fail(LIBRARY, format!("{name}: expected a 64-bit ELF library: {error}"), REINSTALL),
        Ok(required) if required.glibc > BASELINE.to_vec() => {
            report.fail(
                LIBRARY,
                format!("{name} requires glibc {}: expected 2.17 or older, which every image can load", dotted(&required.glibc)),
                REINSTALL,
            );
        }
        Ok(required) if required.libraries.iter().any(|one| one != "libc.so.6") => {
            let libraries = required.libraries.join(", ");
            report.fail(
                LIBRARY,
                format!("{name} requires {libraries}: expected libc.so.6 only; programs in images without them would run without limits"),
                REINSTALL,
            );
        }
        Ok(required) => {
            let real = std::fs::canonicalize(&file).unwrap_or(file.clone());
            let real = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let real = if path.ends_with(&real) { String::new() } else { format!(" -> {real}") };
            report.ok(LIBRARY, format!("{name}{real}, for glibc {} and later", dotted(&required.glibc)));
        }
    }
    for (problem, remedy) in permission_problems(&file) {
        report.fail(LIBRARY, format!("{name} {problem}"), remedy.replace("FILE", &name.to_string()));
    }
    let mounts = system::mounts(machine);
    let mount = mounts.iter().filter(|mount| path.starts_with(&mount.at)).max_by_key(|mount| mount.at.len());
    if mount.is_some_and(|mount| mount.options.iter().any(|option| option == "noexec")) {
        report.fail(
            LIBRARY,
            format!("{name} is on a file system mounted noexec"),
            "set `library` in the policy file to a path on a file system without noexec",
        );
    }
}

/// Returns why a file cannot be trusted, or cannot be read by every user of a container, each with the remedy for `FILE`.
fn permission_problems(path: &Path) -> Vec<(String, &'static str)> {
    let status = |path: Option<&Path>| std::fs::metadata(path?).ok();
    let (Some(file), Some(folder)) = (status(Some(path)), status(path.parent())) else { return Vec::new() };
    let folder_problem = "is in a folder that users other than root can write to";
    let read_problem = "is not readable by all users; programs of other users would run without limits";
    [
        (file.uid() != 0, format!("is owned by user {}: expected root", file.uid()), "chown root:root FILE"),
        (file.mode() & 0o022 != 0, "is writable by users other than root".to_owned(), "chmod go-w FILE"),
        (
            folder.uid() != 0 || folder.mode() & 0o022 != 0,
            folder_problem.to_owned(),
            "chown root:root and chmod go-w the folder of FILE, or set `library` in the policy file to a path in another one",
        ),
        (file.mode() & 0o444 != 0o444, read_problem.to_owned(), "chmod a+r FILE"),
    ]
    .into_iter()
    .filter_map(|(is_found, problem, remedy)| is_found.then_some((problem, remedy)))
    .collect()
}

/// Formats a version as numbers between dots.
fn dotted(version: &[u32]) -> String {
    version.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// Requirements of a library on the system that loads it.
#[derive(Debug, PartialEq, Eq)]
struct Requirements {
    /// Newest glibc version of the symbols that it imports.
    glibc: Vec<u32>,
    /// Libraries that it is linked to (`DT_NEEDED`).
    libraries: Vec<String>,
}

/// Reads the requirements of a 64-bit little-endian ELF file.
fn requirements(bytes: &[u8]) -> Result<Requirements, object::Error> {
    let file = ElfFile64::<LE>::parse(bytes)?;
    let (endian, header) = (file.endian(), file.elf_header());
    let sections = header.sections(endian, bytes)?;
    let mut found = Requirements { glibc: Vec::new(), libraries: Vec::new() };
    if let Some((mut entries, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = entries.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?);
                if let Some(numbers) = name.strip_prefix("GLIBC_") {
                    found.glibc = found.glibc.max(super::machine::version_numbers(numbers));
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
    fn requirements_of_a_real_program_are_read() {
        // This test program, which was built for this machine's glibc.
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let required = requirements(&bytes).unwrap();
        assert!(required.libraries.iter().any(|one| one == "libc.so.6"), "{required:?}");
        assert!(required.glibc > BASELINE.to_vec() && required.glibc < vec![3], "{required:?}");
        assert!(super::requirements(b"not an ELF file").is_err());
    }

    #[test]
    fn problems_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let messages = || {
            let mut report = Report::default();
            check_library(&machine, Path::new("/libvgpu.so"), &mut report);
            report.0.into_iter().map(|f| f.message).collect::<Vec<_>>().join("\n")
        };
        assert!(messages().contains("No such file"));
        let path = dir.path().join("libvgpu.so");
        std::fs::write(&path, "text").unwrap();
        assert!(messages().contains("expected a 64-bit ELF library"));
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        assert!(messages().contains("expected 2.17 or older"), "{}", messages());
        let remedies = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            permission_problems(&path)
                .into_iter()
                .map(|(_, remedy)| remedy)
                .filter(|remedy| remedy.starts_with("chmod"))
                .collect::<Vec<_>>()
        };
        assert_eq!(remedies(0o644), [] as [&str; 0]);
        assert_eq!(remedies(0o600), ["chmod a+r FILE"]);
        assert_eq!(remedies(0o622), ["chmod go-w FILE", "chmod a+r FILE"]);
        let cut_off = std::fs::read(&path).unwrap()[..4096].to_vec();
        std::fs::write(&path, cut_off).unwrap();
        assert!(messages().contains("expected a complete library"), "{}", messages());
    }
}

//! Checks that a program can be limited: the dynamic loader loads the library into it.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::ReadCache;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{Access, access, getxattr};

/// Scripts whose interpreter is a script, and so on: as many as the kernel follows.
const MAX_SCRIPTS: usize = 5;

/// Finds a program: a path, or a name in `PATH`.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, String> {
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let expected = || format!("{}: expected a program", name.to_string_lossy().escape_debug());
    if name.as_bytes().contains(&b'/') {
        let path = std::path::absolute(name).map_err(|_| expected())?;
        return if is_program(&path) { Ok(path) } else { Err(expected()) };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&dirs).filter_map(|dir| std::path::absolute(dir.join(name)).ok()).find(|path| is_program(path));
    found.ok_or_else(|| format!("{} in PATH", expected()))
}

/// Refuses a program into which the loader does not load the library. Of a script, its interpreter is checked.
pub(super) fn check(path: &Path, library: &Path, preload: &OsStr) -> Result<(), Box<dyn Error>> {
    let mut program = path.to_owned();
    for _ in 0..MAX_SCRIPTS {
        let at = |error| format!("{}: {error}", program.display());
        let found = std::fs::metadata(&program).map_err(at)?;
        // The loader ignores LD_PRELOAD for a program with other privileges than its caller's.
        if found.mode() & 0o6000 != 0 || getxattr(&program, "security.capability", &mut [0_u8; 64]).is_ok() {
            let expected = "expected a program without setuid, setgid and file capabilities, for which the loader ignores LD_PRELOAD";
            return Err(format!("{}: {expected}", program.display()).into());
        }
        let mut start = Vec::new();
        File::open(&program).and_then(|file| file.take(256).read_to_end(&mut start)).map_err(at)?;
        match script_interpreter(&start) {
            Some(interpreter) => program = interpreter,
            None => return check_loader(&program, library, preload),
        }
    }
    Err(format!("{}: expected at most {MAX_SCRIPTS} scripts that are interpreted by one another", path.display()).into())
}

/// Returns the interpreter in the first line of a script. `None` if this is no script.
fn script_interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(OsString::from_vec(word.to_vec()).into())
}

/// Refuses an ELF file into which its loader does not load the library. Its loader is asked, and does not start the program.
fn check_loader(program: &Path, library: &Path, preload: &OsStr) -> Result<(), Box<dyn Error>> {
    let name = program.display();
    let loader = loader(program).map_err(|error| format!("{name}: expected a 64-bit ELF program, or a script with #!: {error}"))?;
    let expected = format!("{name}: expected a dynamically linked program: the library cannot be loaded into a static one");
    let loader = loader.ok_or(expected)?;
    let mut list = Command::new(&loader);
    list.arg("--list").arg(program).env("LD_PRELOAD", preload).stdin(Stdio::null());
    let output = list.output().map_err(|error| format!("{}: {error}", loader.display()))?;
    let mut words = output.stdout.split(u8::is_ascii_whitespace);
    if words.any(|word| word == library.as_os_str().as_bytes()) {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).escape_debug().to_string();
    Err(format!("{name}: expected a program into which its loader loads {}: {errors}", library.display()).into())
}

/// Returns the loader that an ELF file names. `None` if it is linked statically.
fn loader(program: &Path) -> Result<Option<PathBuf>, Box<dyn Error>> {
    let file = ReadCache::new(File::open(program)?);
    let header = FileHeader64::<object::Endianness>::parse(&file)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, &file)? {
        if let Some(path) = segment.interpreter(endian, &file)? {
            return Ok(Some(OsString::from_vec(path.to_vec()).into()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A library that every program of this machine can load.
    fn library() -> PathBuf {
        let libraries = Command::new("ldd").arg("/bin/sh").output().unwrap();
        let text = String::from_utf8(libraries.stdout).unwrap();
        let path = text.split_whitespace().find(|word| word.starts_with('/') && word.contains("libc.so")).unwrap();
        path.into()
    }

    fn message(path: &Path, library: &Path) -> String {
        check(path, library, library.as_os_str()).unwrap_err().to_string()
    }

    #[test]
    fn programs_are_found() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        for absent in ["no-such-program-at-all", "/etc/passwd", "/nowhere/x", "/bin"] {
            assert!(find(OsStr::new(absent)).is_err(), "{absent}");
        }
    }

    #[test]
    fn programs_and_scripts_that_load_the_library_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#! /bin/sh -e\n:").unwrap();
        let outer = dir.path().join("outer");
        std::fs::write(&outer, format!("#!{}\n:", script.display())).unwrap();
        for path in [Path::new("/bin/sh"), &script, &outer] {
            check(path, &library(), library().as_os_str()).unwrap();
        }
    }

    #[test]
    fn programs_that_cannot_be_limited_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let library = library();
        std::fs::write(&path, "text").unwrap();
        assert!(message(&path, &library).contains("expected a 64-bit ELF program"), "{}", message(&path, &library));
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        assert!(message(&path, &library).contains("expected at most 5 scripts"), "{}", message(&path, &library));
        std::fs::copy("/bin/sh", &path).unwrap();
        let absent = dir.path().join("absent.so");
        assert!(message(&path, &absent).contains("absent.so"), "{}", message(&path, &absent));
        let text = dir.path().join("text.so");
        std::fs::write(&text, "text").unwrap();
        assert!(message(&path, &text).contains("cannot be preloaded"), "{}", message(&path, &text));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(message(&path, &library).contains("setuid"), "{}", message(&path, &library));
    }
}

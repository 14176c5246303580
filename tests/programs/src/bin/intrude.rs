//! What a hostile process does to files that the host shares with its container.
//!
//!     intrude lease read|write PATH     takes a lease on the file, and keeps it until the process is killed
//!     intrude handle VIA PATH           opens PATH for writing by its handle, on the file system of the mount VIA
//!
//! The output is one line: "leased", "opened", or the error.

use std::ffi::CString;
use std::io::Error;

/// A file handle as the kernel lays it out, with room for every file system's.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    content: [u8; 128],
}

fn open(path: &str, flags: i32) -> Result<i32, Error> {
    let path = CString::new(path)?;
    // SAFETY: the path is a C string.
    match unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) } {
        -1 => Err(Error::last_os_error()),
        descriptor => Ok(descriptor),
    }
}

/// Takes a lease. Breaking it sends SIGIO, which is ignored.
fn lease(kind: &str, path: &str) -> Result<(), Error> {
    let kind = if kind == "write" { libc::F_WRLCK } else { libc::F_RDLCK };
    let file = open(path, libc::O_RDONLY)?;
    // SAFETY: the calls take no pointers.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        match libc::fcntl(file, libc::F_SETLEASE, kind) {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

fn open_by_handle(via: &str, path: &str) -> Result<(), Error> {
    let (via, path) = (open(via, libc::O_RDONLY)?, CString::new(path)?);
    let mut handle = Handle { bytes: 128, kind: 0, content: [0; 128] };
    let mut mount = 0;
    // SAFETY: the kernel writes an integer and a handle of at most the given size, and reads the handle.
    let opened = unsafe {
        let named = libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &raw mut handle, &raw mut mount, 0);
        if named != 0 {
            return Err(Error::last_os_error());
        }
        libc::syscall(libc::SYS_open_by_handle_at, via, &raw mut handle, libc::O_RDWR | libc::O_CLOEXEC)
    };
    if opened == -1 { Err(Error::last_os_error()) } else { Ok(()) }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (done, word) = match words[..] {
        ["lease", kind, path] => (lease(kind, path), "leased"),
        ["handle", via, path] => (open_by_handle(via, path), "opened"),
        _ => {
            eprintln!("intrude: expected lease read|write PATH, or handle VIA PATH");
            std::process::exit(2);
        }
    };
    match done {
        Ok(()) => println!("{word}"),
        Err(error) => println!("{error}"),
    }
    if words[0] == "lease" {
        loop {
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
    }
}

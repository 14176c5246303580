//! The driver that the libraries play: its versions, and the functions that it lacks. `face.py` writes them into the built libraries.

use std::hint::black_box;

/// What `face.py` finds by `mark` and replaces.
#[repr(C)]
struct Face {
    mark: [u8; 16],
    cuda_version: i32,
    /// Zero-terminated.
    driver: [u8; 12],
    /// Names with a zero between them.
    lacking: [u8; 16 << 10],
}

static FACE: Face = Face { mark: *b"simgpu face 1\0\0\0", cuda_version: 13_000, driver: *b"580.00.00\0\0\0", lacking: [0; 16 << 10] };

/// Returns the face in the file, which the compiler does not know.
fn face() -> &'static Face {
    let face = black_box(&FACE);
    black_box(&face.mark);
    face
}

/// Returns the CUDA version that `cuDriverGetVersion` and NVML report.
#[must_use]
pub fn cuda_version() -> i32 {
    face().cuda_version
}

/// Returns the driver's version.
#[must_use]
pub fn driver_version() -> &'static str {
    std::str::from_utf8(&face().driver).unwrap_or("").trim_end_matches('\0')
}

/// Returns whether the driver lacks a function that the library contains.
#[must_use]
pub fn lacks(function: &str) -> bool {
    face().lacking.split(|&byte| byte == 0).any(|name| name == function.as_bytes())
}

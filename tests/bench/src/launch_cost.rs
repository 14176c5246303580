//! Measures the cost of a launch beyond the driver's, to a few nanoseconds on the simulated GPU and about 40 ns on an H200. One process
//! launches by the driver's function and by the library's, in alternating bursts: two processes, or one machine at two times, differ by
//! more than that.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use vgpu_region::map;
use vgpu_test_programs::cuda::{self, LaunchKernel, check, sys};

use crate::kernel::{self, Kernels, Result};

/// The argument that selects the default stream.
pub const DEFAULT: &str = "default";
/// The sides, and the limits in percent of those with the library: none, and one with spare budget.
const SIDES: [(&str, Option<u32>); 3] = [("native", None), ("ours, no limit", Some(0)), ("ours, 90%", Some(90))];
/// Number of bursts of each side.
const BURSTS: usize = 80;
/// Number of launches in a burst.
const LAUNCHES: usize = 900;
/// Number of launches at the start of a burst that find cold caches, natively too.
const COLD: usize = 50;
/// Pause after a burst.
const PAUSE: Duration = Duration::from_millis(12);

type Synchronize = unsafe extern "C" fn(sys::CUstream) -> sys::CUresult;
type Retain = unsafe extern "C" fn(*mut sys::CUcontext, sys::CUdevice) -> sys::CUresult;

/// Launches into a stream of the program's own, or into the default stream. This process opens the library, which must not be preloaded;
/// its container is in `folder`, which `VGPU_DIR` must name, too. Prints for each side the median and the 99th percentile of all launches,
/// and the difference of each burst to the native one of the same round: median and quartiles.
///
/// # Errors
/// The driver's error; `CUDA_ERROR_INVALID_VALUE` if there is no library or no container.
pub fn measure(library: &Path, folder: &Path, in_default_stream: bool) -> Result<()> {
    const INVALID: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
    let name = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| INVALID);
    let page = map::limits_for_change(&name(&folder.join("limits"))?).map_err(|_| INVALID)?;
    // SAFETY: the library may be loaded into any process.
    let library = unsafe { libc::dlopen(name(library)?.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    // SAFETY: the library exports these functions of the driver with their signatures.
    let (retain, ours): (Option<Retain>, (Option<LaunchKernel>, Option<Synchronize>)) =
        unsafe { (find(library, c"cuDevicePrimaryCtxRetain"), (find(library, c"cuLaunchKernel"), find(library, c"cuStreamSynchronize"))) };
    let (Some(retain), (Some(launch), Some(synchronize))) = (retain, ours) else { return Err(INVALID) };
    // SAFETY: the driver exports these functions with these signatures.
    let native: (LaunchKernel, Synchronize) = unsafe { (cuda::symbol(c"cuLaunchKernel"), cuda::symbol(c"cuStreamSynchronize")) };
    let mut context = null_mut();
    cuda::start(0)?;
    // SAFETY: the out-pointer is valid. From here on the library has a record of the context.
    check(unsafe { retain(&raw mut context, 0) })?;
    let kernels = Kernels::load()?;
    let stream = if in_default_stream { null_mut() } else { kernel::stream()? };
    let mut seen = SIDES.map(|_| Vec::new());
    for round in 0..BURSTS + 2 {
        for position in 0..SIDES.len() {
            // The order is reversed in every other round: a machine that slows down slows all sides.
            let side = if round % 2 == 0 { position } else { SIDES.len() - 1 - position };
            let (launch, synchronize) = match SIDES[side].1 {
                None => native,
                Some(percent) => {
                    page.gpus().for_each(|limit| limit.cores.store(percent, Relaxed));
                    page.notify();
                    (launch, synchronize)
                }
            };
            let nanos = burst(launch, synchronize, kernels, stream)?;
            // In the first rounds the library learns the cost of the kernel.
            if round >= 2 {
                seen[side].push(nanos);
            }
        }
    }
    report(&seen, if in_default_stream { "the default stream" } else { "a stream of its own" });
    Ok(())
}

/// Looks up a function of a library; `None` if it has no such function.
///
/// # Safety
/// `F` must be a function pointer type that matches the symbol's ABI.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    // SAFETY: the handle is a library's and the name is NUL-terminated.
    let found = if library.is_null() { null_mut() } else { unsafe { libc::dlsym(library, name.as_ptr()) } };
    // SAFETY: the caller guarantees the type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// Runs a burst and returns the time of each launch in ns, sorted.
fn burst(launch: LaunchKernel, synchronize: Synchronize, kernels: Kernels, stream: sys::CUstream) -> Result<Vec<f64>> {
    let mut nanos = Vec::with_capacity(LAUNCHES);
    for number in 0..LAUNCHES {
        let begin = Instant::now();
        kernels.empty_by(launch, stream)?;
        if number > COLD {
            nanos.push(begin.elapsed().as_nanos() as f64);
        }
    }
    // SAFETY: a live stream.
    check(unsafe { synchronize(stream) })?;
    std::thread::sleep(PAUSE);
    nanos.sort_by(f64::total_cmp);
    Ok(nanos)
}

/// Prints the results of all sides.
fn report(seen: &[Vec<Vec<f64>>; SIDES.len()], stream: &str) {
    println!(
        "an empty launch into {stream}, three sides in alternating bursts of one process, in ns: median, 99th percentile; difference of a burst to native [quartiles]"
    );
    let percentile = |sorted: &[f64], percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or(f64::NAN);
    let [native, ..] = seen;
    for ((name, _), bursts) in SIDES.iter().zip(seen) {
        let mut all = bursts.concat();
        all.sort_by(f64::total_cmp);
        let difference = |percent| {
            let differences = bursts.iter().zip(native).map(|(ours, native)| percentile(ours, percent) - percentile(native, percent));
            let mut differences: Vec<f64> = differences.collect();
            differences.sort_by(f64::total_cmp);
            format!("{:+.0} [{:+.0}..{:+.0}]", percentile(&differences, 50), percentile(&differences, 25), percentile(&differences, 75))
        };
        println!("  {name:<16} {:.0} {:.0}; {}, {}", percentile(&all, 50), percentile(&all, 99), difference(50), difference(99));
    }
}

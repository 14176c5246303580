//! What a launch costs beyond what the driver takes, to a few nanoseconds on the simulated GPU and some forty on an H200: one process launches
//! by the driver's function and by the library's, burst by burst in turn. Two processes, or one machine now and later, differ by more than what is
//! looked for.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use vgpu_region::map;
use vgpu_test_programs::cuda::{self, LaunchKernel, check, sys};

use crate::kernel::{self, Kernels, Result};

/// How a child is told to launch into the default stream.
pub const DEFAULT: &str = "default";
/// The sides, and the limits of those that are ours: none, and one with budget to spare.
const SIDES: [(&str, Option<u32>); 3] = [("native", None), ("ours, no limit", Some(0)), ("ours, 90%", Some(90))];
/// Bursts of each side, and launches in each; the first ones find cold caches, natively too.
const BURSTS: usize = 80;
const LAUNCHES: usize = 900;
const COLD: usize = 50;
const PAUSE: Duration = Duration::from_millis(12);

type Synchronize = unsafe extern "C" fn(sys::CUstream) -> sys::CUresult;
type Retain = unsafe extern "C" fn(*mut sys::CUcontext, sys::CUdevice) -> sys::CUresult;

/// Launches into a stream of the program's own, or into the default stream. The library is opened by this process, which has it not preloaded,
/// and is that of the container in `folder`, as `VGPU_DIR` has to say. Prints for each side the median and the 99th percentile of all launches, and
/// how far those of a burst are from the native ones beside it: the median of that, and half of the bursts.
///
/// # Errors
/// What the driver says; `CUDA_ERROR_INVALID_VALUE` if there is no library or no container.
pub fn launches(library: &Path, folder: &Path, in_default_stream: bool) -> Result<()> {
    const WRONG: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
    let name = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| WRONG);
    let page = map::limits_for_change(&name(&folder.join("limits"))?).map_err(|_| WRONG)?;
    // SAFETY: a library that is made for any process.
    let library = unsafe { libc::dlopen(name(library)?.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    // SAFETY: the library has these of the driver's functions under their names.
    let (retain, ours): (Option<Retain>, (Option<LaunchKernel>, Option<Synchronize>)) =
        unsafe { (find(library, c"cuDevicePrimaryCtxRetain"), (find(library, c"cuLaunchKernel"), find(library, c"cuStreamSynchronize"))) };
    let (Some(retain), (Some(launch), Some(synchronize))) = (retain, ours) else { return Err(WRONG) };
    // SAFETY: the driver's own, with their signatures.
    let native: (LaunchKernel, Synchronize) = unsafe { (cuda::symbol(c"cuLaunchKernel"), cuda::symbol(c"cuStreamSynchronize")) };
    let mut context = null_mut();
    cuda::start(0)?;
    // SAFETY: room for the answer. The library knows of the context from then on.
    check(unsafe { retain(&raw mut context, 0) })?;
    let kernels = Kernels::load()?;
    let stream = if in_default_stream { null_mut() } else { kernel::stream()? };
    let mut seen = SIDES.map(|_| Vec::new());
    for round in 0..BURSTS + 2 {
        for place in 0..SIDES.len() {
            // There and back again: a machine that becomes slower does so for all of them.
            let side = if round % 2 == 0 { place } else { SIDES.len() - 1 - place };
            let (launch, synchronize) = match SIDES[side].1 {
                None => native,
                Some(percent) => {
                    page.gpus().for_each(|limit| limit.cores.store(percent, Relaxed));
                    page.tell();
                    (launch, synchronize)
                }
            };
            let nanos = burst(launch, synchronize, kernels, stream)?;
            // The first ones learn.
            if round >= 2 {
                seen[side].push(nanos);
            }
        }
    }
    tell(&seen, if in_default_stream { "the default stream" } else { "a stream of its own" });
    Ok(())
}

/// # Safety
/// `F` is a function pointer that fits the symbol.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    // SAFETY: a library's handle, or null, where nothing is found that is not the program's; a terminated name.
    let found = if library.is_null() { null_mut() } else { unsafe { libc::dlsym(library, name.as_ptr()) } };
    // SAFETY: as the caller promises.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// How long each launch of a burst took, in ns, the least first.
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

fn tell(seen: &[Vec<Vec<f64>>; SIDES.len()], stream: &str) {
    println!(
        "an empty launch into {stream}, three sides burst by burst in one process, in ns: median, 99th percentile; of a burst beyond native, [half of the bursts]"
    );
    let percentile = |sorted: &[f64], percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or(f64::NAN);
    let [native, ..] = seen;
    for ((name, _), bursts) in SIDES.iter().zip(seen) {
        let mut all = bursts.concat();
        all.sort_by(f64::total_cmp);
        let beyond = |percent| {
            let far = bursts.iter().zip(native).map(|(ours, native)| percentile(ours, percent) - percentile(native, percent));
            let mut far: Vec<f64> = far.collect();
            far.sort_by(f64::total_cmp);
            format!("{:+.0} [{:+.0}..{:+.0}]", percentile(&far, 50), percentile(&far, 25), percentile(&far, 75))
        };
        println!("  {name:<16} {:.0} {:.0}; {}, {}", percentile(&all, 50), percentile(&all, 99), beyond(50), beyond(99));
    }
}

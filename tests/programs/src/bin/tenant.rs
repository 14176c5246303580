//! A tenant of a shared GPU that launches kernels of one length, in one of several ways.
//!
//!     tenant [busy|threads|periodic|closes|contexts|exits|forks-first|forks] [--ns LENGTH] [--seconds S]
//!
//! * `busy` (default): always.
//! * `threads`: eight threads launch their first kernel at once; then as `busy`.
//! * `periodic`: one kernel after another for `--work` ns, every `--every` ms, and waits for them.
//! * `closes`: as `busy`, and closes all descriptors from 3 on after the first kernel.
//! * `contexts`: launches 50 ms of work in a context, and destroys it at once, again and again.
//! * `exits`: as `busy`, and exits at the end without waiting for its work. With `--kills` it kills itself.
//! * `forks-first`: forks, then both processes initialize the driver and are busy.
//! * `forks`: as `busy`, and forks after the first kernel, again and again. The children exit by turns at once, after 30 ms, and by executing
//!   `/bin/true`.
//!
//! Prints `working` after the first kernel, and at the end `launches wall_ns share`: the share is the kernels' total length divided by the
//! wall-clock time. A child of `forks-first` prints nothing.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys::*};
use vgpu_test_programs::ptx::SPIN;

/// Launches between two marks, and marks that the program may be ahead of the GPU.
const AHEAD: (u64, usize) = (8, 3);

fn main() -> ExitCode {
    let way = std::env::args().nth(1).filter(|word| !word.starts_with('-')).unwrap_or_else(|| "busy".to_owned());
    match run(&way, &Arguments::of_process()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => {
            eprintln!("tenant: {}", cuda::name(code));
            ExitCode::FAILURE
        }
    }
}

fn run(way: &str, arguments: &Arguments) -> Result<(), CUresult> {
    let (ns, seconds) = (arguments.number("ns", 1_000_000), arguments.number("seconds", 1));
    let mut child = 0;
    if way == "forks-first" {
        // SAFETY: this process has one thread.
        child = unsafe { libc::fork() };
    }
    let is_child = way == "forks-first" && child == 0;
    let context = cuda::start(arguments.number("gpu", 0) as i32)?;
    if way == "threads" {
        threads(context as usize, ns)?;
    }
    let mut work = Work::new(ns)?;
    work.launch()?;
    cuda::synchronize()?;
    if !is_child {
        println!("working");
    }
    if way == "closes" {
        // SAFETY: closes descriptors of libraries, which is what is tested.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    }
    let (begun, mut forked) = (Instant::now(), Vec::new());
    let until = begun + Duration::from_secs(seconds);
    while Instant::now() < until {
        match way {
            "periodic" => periodic(&mut work, arguments)?,
            "contexts" => work.launched += in_context(ns)?,
            _ => work.launch()?,
        }
        if way == "forks" && work.launched.is_multiple_of(16) {
            forked.push(fork(forked.len()));
        }
    }
    if way == "exits" {
        if arguments.has("kills") {
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        std::process::exit(0);
    }
    cuda::synchronize()?;
    let wall = begun.elapsed().as_nanos() as f64;
    for child in forked.into_iter().chain(Some(child).filter(|&child| child > 0)) {
        let mut status = 0;
        // SAFETY: a child of this process; the pointer is valid.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "a child of {} failed", std::process::id());
    }
    if !is_child {
        println!("{} {wall} {:.4}", work.launched, work.launched as f64 * ns as f64 / wall);
    }
    Ok(())
}

/// Starts eight threads that launch a kernel at once, and then sleep.
fn threads(context: usize, ns: u64) -> Result<(), CUresult> {
    let (barrier, (send, receive)) = (Arc::new(Barrier::new(8)), mpsc::channel());
    for _ in 0..8 {
        let (barrier, send) = (Arc::clone(&barrier), send.clone());
        std::thread::spawn(move || {
            // SAFETY: the context of the process, which is not destroyed.
            let current = check(unsafe { cuCtxSetCurrent(context as CUcontext) });
            let work = current.and_then(|()| Work::new(ns));
            barrier.wait();
            let _ = send.send(work.and_then(|mut work| work.launch_now()));
            std::thread::park();
        });
    }
    receive.iter().take(8).collect()
}

/// Works for a while, and rests for the rest of a period.
fn periodic(work: &mut Work, arguments: &Arguments) -> Result<(), CUresult> {
    let begun = Instant::now();
    for _ in 0..arguments.number("work", work.ns) / work.ns {
        work.launch()?;
    }
    cuda::synchronize()?;
    std::thread::sleep(Duration::from_millis(arguments.number("every", 50)).saturating_sub(begun.elapsed()));
    Ok(())
}

/// Destroys a context while its work runs. Returns the number of launches.
fn in_context(ns: u64) -> Result<u64, CUresult> {
    let mut context = null_mut();
    // SAFETY: the function has this signature; the out-pointer is valid, and the context is destroyed once.
    unsafe {
        let create: unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> CUresult = cuda::symbol(c"cuCtxCreate_v2");
        check(create(&raw mut context, 0, 0))?;
        let mut work = Work::new(ns)?;
        while work.launched * ns < 50_000_000 {
            work.launch_now()?;
        }
        check(cuCtxDestroy_v2(context))?;
        Ok(work.launched)
    }
}

/// Forks a child that ends in one of three ways.
fn fork(count: usize) -> libc::pid_t {
    // SAFETY: the child only makes system calls.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            if count % 3 == 1 {
                libc::usleep(30_000);
            } else if count % 3 == 2 {
                libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), std::ptr::null::<libc::c_char>());
            }
            libc::_exit(0);
        }
        child
    }
}

/// The kernel, and a stream for it.
struct Work {
    function: CUfunction,
    stream: CUstream,
    ns: u64,
    launched: u64,
    marks: VecDeque<CUevent>,
}

impl Work {
    fn new(ns: u64) -> Result<Self, CUresult> {
        let (mut module, mut function, mut stream) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the image is NUL-terminated and the out-pointers are valid.
        unsafe {
            check(cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()))?;
            check(cuModuleGetFunction(&raw mut function, module, c"spin".as_ptr()))?;
            check(cuStreamCreate(&raw mut stream, 1))?;
        }
        Ok(Self { function, stream, ns, launched: 0, marks: VecDeque::new() })
    }

    fn launch_now(&mut self) -> Result<(), CUresult> {
        self.launched += 1;
        let mut arguments = [(&raw const self.ns).cast_mut().cast()];
        // SAFETY: the argument is the one that `spin` takes, and is read before the call returns.
        check(unsafe { cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, self.stream, arguments.as_mut_ptr(), null_mut()) })
    }

    /// Launches a kernel, unless the program is far ahead of the GPU: then waits first.
    fn launch(&mut self) -> Result<(), CUresult> {
        self.launch_now()?;
        if !self.launched.is_multiple_of(AHEAD.0) {
            return Ok(());
        }
        let mut event = null_mut();
        // SAFETY: the out-pointer is valid; each event is waited for and destroyed once.
        unsafe {
            check(cuEventCreate(&raw mut event, 2))?;
            check(cuEventRecord(event, self.stream))?;
            self.marks.push_back(event);
            if self.marks.len() > AHEAD.1 {
                let oldest = self.marks.pop_front().unwrap_or(event);
                check(cuEventSynchronize(oldest))?;
                check(cuEventDestroy_v2(oldest))?;
            }
        }
        Ok(())
    }
}

//! Counts the instructions that a call executes inside libvgpu.so, once it is warm.
//!
//!     instructions --library libvgpu.so [--samples]
//!
//! Starts itself under the library, without and with a limit on the GPU's time, and traces that process: between two markers it runs one
//! instruction at a time. Instructions of the driver, of libc and of the kernel do not count. Prints a line `CALL<tab>INSTRUCTIONS` for each call,
//! the median of [`SAMPLES`] calls; `--samples` adds the counts of all of them. Needs an x86-64 processor and the right to use ptrace.
//!
//! The processor's counter, and with it the clock, stands still for the process in a call that is counted: otherwise that would seem to take
//! milliseconds. Still a few calls find that something is due, such as the end of a batch of launches. The median leaves them out: of short
//! launches under a limit on the time it is one that does not ask what time it is, as 15 of 16 do not, and of long ones one that does.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys};
use vgpu_test_programs::ptx;
use vgpu_test_programs::share::Share;

/// Counted calls of each kind.
const SAMPLES: u64 = 21;
/// Calls at full speed before each that is counted: rounds, each of so many calls and a wait for their work. Launches that are counted take long,
/// and what comes next has to be as before.
const ROUNDS: u64 = 4;
const WARM_UP: u64 = 100;
/// Memory limit in bytes, which no call here comes near to.
const MEMORY: u64 = 64 << 30;
/// Limit of the GPU's time in percent. The launches here use less than a tenth of it.
const PERCENT: u32 = 90;

/// What `rax` holds at a marker: [`BEGIN`] plus the call's place in [`CALLS`], or [`END`].
const BEGIN: u64 = 0x7667_7075_6265_6700;
const END: u64 = 0x7667_7075_656e_6400;

/// Length of a kernel that is launched alone, in nanoseconds: the library asks for the time before each of them.
const LONG: u64 = 100_000;
/// Ticks of the processor's counter from one reading to the next in a counted call.
const TICKS: u64 = 50;

const CALLS: [&str; 10] = [
    "cuLaunchKernel, 1 us",
    "cuLaunchKernel, 100 us",
    "cuMemAlloc_v2, 4 KiB",
    "cuMemFree_v2, 4 KiB",
    "cuMemAlloc_v2, 64 MiB",
    "cuMemFree_v2, 64 MiB",
    "cuMemAllocAsync, 2 MiB",
    "cuMemFreeAsync, 2 MiB",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
];

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let result = if arguments.has("child") { calls().map_err(|code| cuda::name(code).into()) } else { count(&arguments) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

type Error = Box<dyn std::error::Error>;

fn count(arguments: &Arguments) -> Result<(), Error> {
    let library = fs::canonicalize(arguments.value("library").ok_or("expected --library libvgpu.so")?)?;
    let library = library.to_str().ok_or("--library: expected UTF-8")?;
    println!("call\tinstructions");
    for (percent, suffix) in [(0, String::new()), (PERCENT, format!(", {PERCENT}% of the time"))] {
        let limit = GpuLimit::new(Selector::All);
        limit.memory.store(MEMORY, Relaxed);
        limit.cores.store(percent, Relaxed);
        let share = Share::with([limit])?;
        let mut command = Command::new(std::env::current_exe()?);
        let counts = trace(share.limits(library, command.arg("--child")), library)?;
        for (call, mut counts) in CALLS.iter().zip(counts) {
            if counts.len() as u64 != SAMPLES {
                return Err(format!("{call}: expected {SAMPLES} counted calls, found {}", counts.len()).into());
            }
            let samples = if arguments.has("samples") { format!("\t{counts:?}") } else { String::new() };
            counts.sort_unstable();
            let median = counts[counts.len() / 2];
            if median == 0 {
                return Err(format!("{call}: the library was not called").into());
            }
            println!("{call}{suffix}\t{median}{samples}");
        }
    }
    Ok(())
}

/// Runs a program that is under the library at `path` to its end. Returns the counts of each call in [`CALLS`].
fn trace(command: &mut Command, path: &str) -> Result<Vec<Vec<u64>>, Error> {
    // SAFETY: one system call, in the child before it executes the program.
    unsafe { command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0, 0)) };
    let child = command.spawn().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => format!("ptrace is not permitted here: {error}"),
        _ => error.to_string(),
    })?;
    let tracee = Tracee(child.id() as libc::pid_t, Cell::new(0));
    let mut counts = vec![Vec::new(); CALLS.len()];
    let mut text = 0..0;
    // The first stop is that of `execve`.
    let mut signal = tracee.wait()?;
    ptrace(libc::PTRACE_SETOPTIONS, tracee.0, 0, libc::PTRACE_O_EXITKILL as usize)?;
    while let Some(stopped) = signal {
        let mut pass_on = stopped;
        if stopped == libc::SIGTRAP {
            pass_on = 0;
            let place = tracee.registers()?.rax.wrapping_sub(BEGIN);
            if let Some(counts) = usize::try_from(place).ok().and_then(|place| counts.get_mut(place)) {
                if text.is_empty() {
                    text = tracee.text(path)?;
                }
                counts.push(tracee.step_to_end(&text)?);
            }
        }
        ptrace(libc::PTRACE_CONT, tracee.0, 0, pass_on as usize)?;
        signal = tracee.wait()?;
    }
    Ok(counts)
}

/// A traced process that is stopped, and what its processor's counter is taken to show.
struct Tracee(libc::pid_t, Cell<u64>);

impl Tracee {
    /// Waits for the next stop. Returns its signal; `None` if the process has ended with status 0.
    fn wait(&self) -> Result<Option<c_int>, Error> {
        let mut status = 0;
        // SAFETY: room for the status.
        if unsafe { libc::waitpid(self.0, &raw mut status, 0) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        if libc::WIFSTOPPED(status) {
            return Ok(Some(libc::WSTOPSIG(status)));
        }
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            Ok(None)
        } else {
            Err(format!("the traced process failed: {status:#x}").into())
        }
    }

    fn registers(&self) -> Result<libc::user_regs_struct, Error> {
        // SAFETY: all zero is valid.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.0, 0, (&raw mut registers) as usize)?;
        Ok(registers)
    }

    /// Addresses of the library's instructions.
    fn text(&self, path: &str) -> Result<Range<u64>, Error> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0))?;
        let line = maps.lines().find(|line| line.ends_with(path) && line.split(' ').nth(1).is_some_and(|mode| mode.contains('x')));
        let (from, to) = line.and_then(|line| line.split_once(' ')?.0.split_once('-')).ok_or("the library is not mapped")?;
        Ok(u64::from_str_radix(from, 16)?..u64::from_str_radix(to, 16)?)
    }

    /// Runs to the next [`END`], one instruction at a time. Returns the number of instructions in `text`. What the library calls is run at full
    /// speed: it would take most of the time, and the library would find that much had passed.
    fn step_to_end(&self, text: &Range<u64>) -> Result<u64, Error> {
        let (mut count, mut signal) = (0, 0);
        let mut registers = self.registers()?;
        self.1.set(registers.rdi);
        while registers.rax != END {
            let was_inside = text.contains(&registers.rip);
            count += u64::from(was_inside);
            ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, signal as usize)?;
            signal = self.stop_in_call()?;
            registers = self.registers()?;
            if was_inside && !text.contains(&registers.rip) {
                let back = self.read(registers.rsp)?;
                if text.contains(&back) {
                    registers = self.run_to(back, registers.rsp)?;
                }
            }
        }
        Ok(count)
    }

    /// Waits for the next stop in a call. Returns the signal to pass on, if any.
    fn stop_in_call(&self) -> Result<c_int, Error> {
        match self.wait()?.ok_or("the traced process ended in a call")? {
            libc::SIGTRAP => Ok(0),
            libc::SIGSEGV if self.tell_time()? => Ok(0),
            other => Ok(other),
        }
    }

    /// Executes an instruction that reads the processor's counter, if that is what the process has stopped at.
    fn tell_time(&self) -> Result<bool, Error> {
        let mut registers = self.registers()?;
        let length = match self.read(registers.rip)?.to_le_bytes() {
            [0x0f, 0x31, ..] => 2,
            [0x0f, 0x01, 0xf9, ..] => 3,
            _ => return Ok(false),
        };
        self.1.set(self.1.get() + TICKS);
        (registers.rax, registers.rdx, registers.rip) = (self.1.get() & 0xffff_ffff, self.1.get() >> 32, registers.rip + length);
        if length == 3 {
            registers.rcx = 0;
        }
        ptrace(libc::PTRACE_SETREGS, self.0, 0, (&raw mut registers) as usize)?;
        Ok(true)
    }

    /// Runs at full speed to the instruction at `address`, when the stack above `stack` is as it was.
    fn run_to(&self, address: u64, stack: u64) -> Result<libc::user_regs_struct, Error> {
        let instruction = self.read(address)?;
        loop {
            ptrace(libc::PTRACE_POKETEXT, self.0, address, (instruction & !0xff | 0xcc) as usize)?;
            let mut signal = 0;
            let mut registers = loop {
                ptrace(libc::PTRACE_CONT, self.0, 0, signal as usize)?;
                signal = self.stop_in_call()?;
                let registers = self.registers()?;
                if signal == 0 && registers.rip == address + 1 {
                    break registers;
                }
            };
            ptrace(libc::PTRACE_POKETEXT, self.0, address, instruction as usize)?;
            registers.rip = address;
            ptrace(libc::PTRACE_SETREGS, self.0, 0, (&raw mut registers) as usize)?;
            if registers.rsp > stack {
                return Ok(registers);
            }
            // The same place in a call further in.
            ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, 0)?;
            self.stop_in_call()?;
        }
    }

    fn read(&self, address: u64) -> Result<u64, Error> {
        let mut word = [0; 8];
        fs::File::open(format!("/proc/{}/mem", self.0))?.read_exact_at(&mut word, address)?;
        Ok(u64::from_ne_bytes(word))
    }
}

fn ptrace(request: libc::c_uint, pid: libc::pid_t, address: u64, data: usize) -> io::Result<()> {
    // SAFETY: of the requests made here only those for registers touch memory of this process, for which the caller has room.
    let answer = unsafe { libc::ptrace(request, pid, address as *mut c_void, data as *mut c_void) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a call that the tracer counts. Without one the process ends.
fn counted(place: u64, call: impl FnOnce() -> sys::CUresult) -> Result<(), sys::CUresult> {
    // SAFETY: every x86-64 processor has the instruction.
    let ticks = unsafe { std::arch::x86_64::_rdtsc() };
    set_counter(libc::PR_TSC_SIGSEGV);
    // SAFETY: the tracer continues after the instruction with registers and memory as they were.
    unsafe { std::arch::asm!("int3", in("rax") BEGIN + place, in("rdi") ticks) };
    let code = call();
    // SAFETY: as above.
    unsafe { std::arch::asm!("int3", in("rax") END) };
    set_counter(libc::PR_TSC_ENABLE);
    check(code)
}

/// Says whether this thread may read the processor's counter, or the tracer does it.
fn set_counter(mode: c_int) {
    // SAFETY: a system call that reads and writes no memory.
    let answer = unsafe { libc::prctl(libc::PR_SET_TSC, mode) };
    assert_eq!(answer, 0, "PR_SET_TSC: {}", io::Error::last_os_error());
}

/// Calls `call` at full speed and then once to be counted, [`SAMPLES`] times. `undo` follows each, and is counted as the call after it.
fn repeat(
    place: u64,
    mut call: impl FnMut() -> sys::CUresult,
    mut undo: Option<&mut dyn FnMut() -> sys::CUresult>,
) -> Result<(), sys::CUresult> {
    for sample in 0..SAMPLES {
        for round in 0..ROUNDS {
            // Not as many before each that is counted, as one launch in sixteen is not like the others.
            for _ in 0..WARM_UP + if round == ROUNDS - 1 { sample } else { 0 } {
                check(call())?;
                undo.as_mut().map_or(Ok(()), |undo| check(undo()))?;
            }
            if round != ROUNDS - 1 {
                cuda::synchronize()?;
            }
        }
        counted(place, &mut call)?;
        if let Some(undo) = &mut undo {
            counted(place + 1, undo)?;
        }
        cuda::synchronize()?;
    }
    Ok(())
}

fn calls() -> Result<(), sys::CUresult> {
    cuda::start(0)?;
    let (mut module, mut empty, mut spin, mut stream) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: room for the handles; the module's text is terminated.
    unsafe {
        check(sys::cuModuleLoadData(&raw mut module, ptx::SPIN.as_ptr().cast()))?;
        check(sys::cuModuleGetFunction(&raw mut empty, module, c"empty".as_ptr()))?;
        check(sys::cuModuleGetFunction(&raw mut spin, module, c"spin".as_ptr()))?;
        check(sys::cuStreamCreate(&raw mut stream, 0))?;
    }
    // SAFETY: handles of this function's own; the kernel takes no arguments.
    let launch = || unsafe { sys::cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) };
    let mut length = LONG;
    let mut arguments = [(&raw mut length).cast()];
    // SAFETY: as above; the kernel takes a number.
    let launch_long = || unsafe { sys::cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut()) };
    // For as long as it takes the library to learn what a launch costs and how fast the processor's counter runs.
    for _ in 0..100 {
        (0..WARM_UP).try_for_each(|_| check(launch()))?;
        cuda::synchronize()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    repeat(0, launch, None)?;
    repeat(1, launch_long, None)?;
    for (place, bytes) in [(2, 4 << 10), (4, 64 << 20)] {
        let address = Cell::new(0);
        // SAFETY: room for the address.
        let allocate = || unsafe { sys::cuMemAlloc_v2(address.as_ptr(), bytes) };
        // SAFETY: it was allocated just before.
        repeat(place, allocate, Some(&mut || unsafe { sys::cuMemFree_v2(address.get()) }))?;
    }
    let (mut kept, address) = (0, Cell::new(0));
    // One that stays, so that the pool keeps its memory.
    // SAFETY: room for the address.
    check(unsafe { sys::cuMemAllocAsync(&raw mut kept, 2 << 20, stream) })?;
    // SAFETY: room for the address.
    let allocate = || unsafe { sys::cuMemAllocAsync(address.as_ptr(), 2 << 20, stream) };
    // SAFETY: it was allocated just before.
    repeat(6, allocate, Some(&mut || unsafe { sys::cuMemFreeAsync(address.get(), stream) }))?;
    // SAFETY: no arguments.
    repeat(8, || unsafe { sys::cuCtxSynchronize() }, None)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: room for both answers.
    repeat(9, || unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, None)
}

//! Shows which process is charged for memory that two processes share. Prints after each step what NVML lists for each process, and
//! the free memory of the device, in MiB.
//!
//!     sharing
//!
//! Natively this shows what the driver does. Under a limit of 2 GiB no step may take the two processes together past it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use vgpu_test_programs::cuda::{self, name, sys};
use vgpu_test_programs::nvml::Nvml;

const MIB: usize = 1 << 20;
const PHYSICAL: usize = 512 * MIB;
const LINEAR: usize = 256 * MIB;
const POSIX: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Creates physical memory and a file descriptor for it.
fn shareable() -> (u64, i32, String) {
    let (mut handle, mut descriptor) = (0, -1);
    // SAFETY: all-zero is a valid value; the driver reads the properties and writes a handle and a descriptor.
    unsafe {
        let mut properties = std::mem::zeroed::<sys::CUmemAllocationProp>();
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = POSIX;
        properties.location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
        let made = sys::cuMemCreate(&raw mut handle, PHYSICAL, &raw const properties, 0);
        let exported = sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0);
        (handle, descriptor, format!("{} {}", name(made), name(exported)))
    }
}

/// The other process: creates memory, prints how to import it, and releases it on request.
fn maker() {
    cuda::start(0).expect("a context");
    let (handle, descriptor, codes) = shareable();
    eprintln!("# maker: {codes}");
    let mut address = 0;
    // SAFETY: all-zero is a valid handle; the driver writes an address and a handle of 64 bytes.
    let ipc: [u8; 64] = unsafe {
        let mut ipc = std::mem::zeroed::<sys::CUipcMemHandle>();
        let made = sys::cuMemAlloc_v2(&raw mut address, LINEAR);
        eprintln!("# maker: {} {}", name(made), name(sys::cuIpcGetMemHandle(&raw mut ipc, address)));
        std::mem::transmute(ipc)
    };
    let bytes: Vec<String> = ipc.iter().map(u8::to_string).collect();
    println!("{descriptor} {}", bytes.join(" "));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        // SAFETY: each is released once.
        let code = unsafe { if line == "release" { sys::cuMemRelease(handle) } else { sys::cuMemFree_v2(address) } };
        println!("{}", name(code));
    }
}

struct Maker {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    descriptor: i32,
    ipc: [u8; 64],
}

impl Maker {
    fn start() -> Maker {
        let own = std::env::current_exe().expect("this program has a path");
        let mut process = Command::new(own).arg("maker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (input, output) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).expect("an answer");
        let mut words = line.split_whitespace();
        let descriptor: i32 = words.next().and_then(|word| word.parse().ok()).expect("a descriptor");
        let mut ipc = [0; 64];
        ipc.iter_mut().zip(words).for_each(|(byte, word)| *byte = word.parse().expect("a byte"));
        // SAFETY: plain system calls on a descriptor of a child process.
        let descriptor = unsafe {
            let pid = libc::syscall(libc::SYS_pidfd_open, process.id(), 0);
            libc::syscall(libc::SYS_pidfd_getfd, pid, descriptor, 0) as i32
        };
        Maker { process, input, output, descriptor, ipc }
    }

    fn send(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").expect("a pipe");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        line.trim().to_owned()
    }

    fn import(&self) -> (u64, String) {
        let mut handle = 0;
        let descriptor = std::ptr::without_provenance_mut(self.descriptor as usize);
        // SAFETY: the driver writes a handle.
        let code = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, descriptor, POSIX) };
        // SAFETY: the descriptor belongs to this process and is not used afterwards.
        unsafe { libc::close(self.descriptor) };
        (handle, name(code))
    }
}

fn main() {
    if std::env::args().nth(1).is_some() {
        return maker();
    }
    cuda::start(0).expect("a context");
    let nvml = Nvml::open(0).expect("NVML");
    let report = |maker: u32, what: &str, code: &str| {
        let list = nvml.processes();
        let of = |pid| list.iter().find(|process| process.0 == pid).map_or(0, |process| process.1 >> 20);
        let free = cuda::memory().map_or(0, |memory| memory.0 / MIB);
        println!("{what}: {code}: importer {} maker {} free {free}", of(std::process::id()), of(maker));
    };
    let released = |handle| {
        // SAFETY: the handle belongs to this process and is released once.
        name(unsafe { sys::cuMemRelease(handle) })
    };

    let (handle, descriptor, codes) = shareable();
    report(0, "created and exported", &codes);
    report(0, "released, a descriptor open", &released(handle));
    // SAFETY: the descriptor belongs to this process and is not used afterwards.
    unsafe { libc::close(descriptor) };
    report(0, "descriptor closed", "");

    let mut other = Maker::start();
    let pid = other.process.id();
    report(pid, "another process created 512 and 256", "");
    let (handle, code) = other.import();
    report(pid, "imported 512", &code);
    let code = other.send("release");
    report(pid, "released by its maker", &code);
    report(pid, "released by the importer", &released(handle));
    let mut address = 0;
    // SAFETY: both are 64 plain bytes; the driver writes an address.
    let code = unsafe {
        let ipc = std::mem::transmute::<[u8; 64], sys::CUipcMemHandle>(other.ipc);
        sys::cuIpcOpenMemHandle_v2(&raw mut address, ipc, 1)
    };
    report(pid, "opened 256", &name(code));
    let code = other.send("free");
    report(pid, "freed by its maker", &code);
    // SAFETY: the address was opened.
    report(pid, "closed", &name(unsafe { sys::cuIpcCloseMemHandle(address) }));
    drop(other.input);
    _ = other.process.wait();

    let mut other = Maker::start();
    let pid = other.process.id();
    let (handle, code) = other.import();
    report(pid, "imported 512 of another process", &code);
    _ = other.process.kill();
    _ = other.process.wait();
    report(pid, "its maker died", "");
    report(pid, "released", &released(handle));
}

//! Memory that another process exports and this one imports. The exporter is this program, started with `--maker`; it keeps its memory
//! until this process ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::ptr::null_mut;

use super::common::{Allocate, granular, physical_properties, pool_properties, stream};
use crate::cuda::sys::{self, CUmemoryPool, CUresult, CUstream};
use crate::cuda::{self, check, name};

const POSIX: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// State of the exporter.
struct Makes {
    pool: Option<(CUmemoryPool, CUstream)>,
    ordinal: i32,
}

/// Runs the exporter: answers each line `WHAT BYTES` with `ok` and what an import needs, or with the name of an error code.
#[must_use]
pub fn maker(ordinal: i32) -> ExitCode {
    let mut makes = Makes { pool: None, ordinal };
    let started = cuda::start(ordinal);
    println!("{}", started.err().map_or("ok".into(), name));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (what, bytes) = line.split_once(' ').unwrap_or((&line, "0"));
        let answer = makes.make(what, bytes.parse().unwrap_or(0));
        println!("{}", answer.map_or_else(name, |answer| format!("ok {answer}")));
    }
    ExitCode::SUCCESS
}

fn words(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes a value of plain bytes that the exporter encoded.
fn parsed<T: Copy>(text: &str) -> Option<T> {
    let bytes: Vec<u8> = (0..text.len() / 2).filter_map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()).collect();
    // SAFETY: `T` is a C struct of plain bytes, and there are as many bytes as it has.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

impl Makes {
    fn make(&mut self, what: &str, bytes: usize) -> Result<String, CUresult> {
        let (mut address, mut descriptor) = (0, -1);
        // SAFETY: the out-pointers are valid and the arguments live through the calls; all-zero is valid for the plain structs.
        unsafe {
            match what {
                "physical" => {
                    let handle = exportable(self.ordinal, bytes)?;
                    check(sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0))?;
                    Ok(descriptor.to_string())
                }
                "linear" => {
                    let mut handle = std::mem::zeroed::<sys::CUipcMemHandle>();
                    check(sys::cuMemAlloc_v2(&raw mut address, bytes))?;
                    check(sys::cuIpcGetMemHandle(&raw mut handle, address))?;
                    Ok(words(&std::mem::transmute::<sys::CUipcMemHandle, [u8; 64]>(handle)))
                }
                "pool" => {
                    let (mut pool, mut properties) = (null_mut(), pool_properties(self.ordinal));
                    properties.handleTypes = POSIX;
                    check(sys::cuMemPoolCreate(&raw mut pool, &raw const properties))?;
                    check(sys::cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, POSIX, 0))?;
                    self.pool = Some((pool, stream()?));
                    Ok(descriptor.to_string())
                }
                _ => {
                    let (pool, stream) = self.pool.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
                    let mut data = std::mem::zeroed::<sys::CUmemPoolPtrExportData>();
                    check(sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, stream))?;
                    check(sys::cuStreamSynchronize(stream))?;
                    check(sys::cuMemPoolExportPointer(&raw mut data, address))?;
                    Ok(words(&std::mem::transmute::<sys::CUmemPoolPtrExportData, [u8; 64]>(data)))
                }
            }
        }
    }
}

/// Creates physical memory that can be exported as a file descriptor.
fn exportable(ordinal: i32, bytes: usize) -> Result<u64, CUresult> {
    let mut properties = physical_properties(ordinal);
    properties.requestedHandleTypes = POSIX;
    super::physical::create(bytes, &properties).map(|(handle, _)| handle)
}

/// The exporter, as its parent sees it.
struct Maker {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Maker {
    fn start(ordinal: i32) -> Result<Maker, CUresult> {
        let failed = |_| CUresult::CUDA_ERROR_OPERATING_SYSTEM;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["--maker", "--gpu", &ordinal.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        let mut maker = Maker { process, input, output: BufReader::new(output) };
        maker.answer()?;
        Ok(maker)
    }

    fn answer(&mut self) -> Result<String, CUresult> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        let line = line.trim();
        match line.strip_prefix("ok") {
            Some(answer) => Ok(answer.trim().to_owned()),
            None if line == "CUDA_ERROR_OUT_OF_MEMORY" => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            None if line == "CUDA_ERROR_NOT_SUPPORTED" => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            None => Err(CUresult::CUDA_ERROR_UNKNOWN),
        }
    }

    fn make(&mut self, what: &str, bytes: usize) -> Result<String, CUresult> {
        writeln!(self.input, "{what} {bytes}").map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        self.answer()
    }

    /// Returns the exporter's file descriptor, as one of this process.
    fn descriptor(&mut self, what: &str, bytes: usize) -> Result<i32, CUresult> {
        let theirs: i32 = self.make(what, bytes)?.parse().map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        // SAFETY: plain system calls on a descriptor of a child process.
        let own = unsafe {
            let pid = libc::syscall(libc::SYS_pidfd_open, self.process.id(), 0);
            let own = libc::syscall(libc::SYS_pidfd_getfd, pid, theirs, 0) as i32;
            libc::close(pid as i32);
            own
        };
        if own < 0 { Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM) } else { Ok(own) }
    }
}

pub(super) fn import_physical(ordinal: i32) -> Result<Allocate, CUresult> {
    let mut maker = Maker::start(ordinal)?;
    let properties = physical_properties(ordinal);
    Ok(Box::new(move |bytes| {
        let bytes = granular(bytes, &properties)?;
        let descriptor = maker.descriptor("physical", bytes)?;
        let mut handle = 0;
        // SAFETY: the descriptor belongs to this process and is not used afterwards; the out-pointer is valid.
        let code = unsafe {
            let code = sys::cuMemImportFromShareableHandle(&raw mut handle, std::ptr::without_provenance_mut(descriptor as usize), POSIX);
            libc::close(descriptor);
            code
        };
        check(code).map(|()| bytes as u64)
    }))
}

pub(super) fn open_ipc(ordinal: i32) -> Result<Allocate, CUresult> {
    let mut maker = Maker::start(ordinal)?;
    Ok(Box::new(move |bytes| {
        let handle = parsed::<sys::CUipcMemHandle>(&maker.make("linear", bytes)?).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        let mut address = 0;
        // SAFETY: the exporter's driver wrote the handle; the out-pointer is valid.
        check(unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, 1) })?;
        Ok(bytes as u64)
    }))
}

pub(super) fn import_pool(ordinal: i32) -> Result<Allocate, CUresult> {
    let mut maker = Maker::start(ordinal)?;
    let (descriptor, mut pool) = (maker.descriptor("pool", 0)?, null_mut());
    // SAFETY: the descriptor belongs to this process; the out-pointer is valid.
    check(unsafe {
        sys::cuMemPoolImportFromShareableHandle(&raw mut pool, std::ptr::without_provenance_mut(descriptor as usize), POSIX, 0)
    })?;
    Ok(Box::new(move |bytes| {
        let mut data = parsed::<sys::CUmemPoolPtrExportData>(&maker.make("pointer", bytes)?).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        let mut address = 0;
        // SAFETY: the exporter's driver wrote the data; the out-pointer is valid.
        check(unsafe { sys::cuMemPoolImportPointer(&raw mut address, pool, &raw mut data) })?;
        Ok(bytes as u64)
    }))
}

/// Exports memory and releases it; then only the descriptor keeps it, which stays open if `keep` is set.
fn released(ordinal: i32, keep: bool) -> Allocate {
    /// Bytes that show that closed memory is free again.
    const MOST: u64 = 8 << 30;
    let (properties, mut sum) = (physical_properties(ordinal), 0);
    Box::new(move |bytes| {
        if sum >= MOST {
            return Err(CUresult::CUDA_SUCCESS);
        }
        let (bytes, mut descriptor) = (granular(bytes, &properties)?, -1);
        let handle = exportable(ordinal, bytes)?;
        // SAFETY: the out-pointer is valid; the descriptor is closed once and the handle released once.
        unsafe {
            check(sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0))?;
            check(sys::cuMemRelease(handle))?;
            if !keep {
                libc::close(descriptor);
            }
        }
        sum += bytes as u64;
        Ok(if keep { bytes as u64 } else { 0 })
    })
}

pub(super) fn descriptor_open(ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(released(ordinal, true))
}

pub(super) fn descriptor_closed(ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(released(ordinal, false))
}

/// Imports the process's own memory as external memory. The handle is released, so only the import keeps it.
pub(super) fn import_external(ordinal: i32) -> Result<Allocate, CUresult> {
    let properties = physical_properties(ordinal);
    Ok(Box::new(move |bytes| {
        let bytes = granular(bytes, &properties)?;
        let handle = exportable(ordinal, bytes)?;
        let (mut descriptor, mut memory) = (-1, null_mut());
        // SAFETY: the description lives through the call; the driver owns the descriptor after the import.
        unsafe {
            check(sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0))?;
            let description = sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                type_: sys::CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
                handle: sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 { fd: descriptor },
                size: bytes as u64,
                flags: 0,
                reserved: [0; 16],
            };
            let code = sys::cuImportExternalMemory(&raw mut memory, &raw const description);
            check(sys::cuMemRelease(handle))?;
            check(code)?;
        }
        Ok(bytes as u64)
    }))
}

//! Makes the same calls in every round and counts them, so that a trace can be checked against the counts.
//!
//!     steps [--rounds N] [--gpu ORDINAL] [--wait]
//!
//! Prints the counts so far after each round, as JSON. Without --rounds it runs until it is killed. With --wait it prints `ready` and
//! starts at the next line of its input.

use std::io::Write;
use std::process::ExitCode;
use std::ptr::null_mut;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, LaunchKernel, check, sys::*};
use vgpu_test_programs::ptx::SPIN;

const MIB: usize = 1 << 20;
/// Kernels in the graph that each round launches.
const IN_GRAPH: u64 = 3;
/// Length of each kernel, in nanoseconds.
const LENGTH: u64 = 20_000;

fn main() -> ExitCode {
    match run(&Arguments::of_process()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => {
            eprintln!("steps: {}", cuda::name(code));
            ExitCode::FAILURE
        }
    }
}

/// Numbers of successful calls.
#[derive(Default)]
struct Counts {
    kernels: u64,
    graphs: u64,
    copies: u64,
    fills: u64,
    allocations: u64,
    frees: u64,
}

struct Step {
    spin: CUfunction,
    stream: CUstream,
    graph: CUgraphExec,
    counts: Counts,
}

fn run(arguments: &Arguments) -> Result<(), CUresult> {
    cuda::start(arguments.number("gpu", 0) as i32)?;
    let (mut module, mut spin, mut stream) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the image is NUL-terminated and the out-pointers are valid.
    unsafe {
        check(cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()))?;
        check(cuModuleGetFunction(&raw mut spin, module, c"spin".as_ptr()))?;
        check(cuStreamCreate(&raw mut stream, 1))?;
    }
    if arguments.has("wait") {
        println!("ready");
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    let mut step = Step { spin, stream, graph: null_mut(), counts: Counts::default() };
    step.graph = step.capture()?;
    let rounds = arguments.number("rounds", u64::MAX);
    for round in 1..=rounds {
        step.round()?;
        let Counts { kernels, graphs, copies, fills, allocations, frees } = step.counts;
        let graph_kernels = graphs * IN_GRAPH;
        println!(
            r#"{{"round":{round},"kernels":{kernels},"graphs":{graphs},"graph_kernels":{graph_kernels},"copies":{copies},"fills":{fills},"allocations":{allocations},"frees":{frees}}}"#
        );
        let _ = std::io::stdout().flush();
    }
    Ok(())
}

impl Step {
    /// Launches a kernel by one of the driver's launch functions, which `way` selects.
    fn launch(&self, way: u64) -> Result<(), CUresult> {
        let ns = LENGTH;
        let mut arguments = [(&raw const ns).cast_mut().cast()];
        let (spin, stream, arguments) = (self.spin, self.stream, arguments.as_mut_ptr());
        // SAFETY: the argument is the one that `spin` takes, and is read before the call returns; all-zero is a valid configuration.
        unsafe {
            check(match way {
                0 => cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, null_mut()),
                1 => {
                    let mut config = std::mem::zeroed::<CUlaunchConfig>();
                    (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
                    (config.blockDimX, config.blockDimY, config.blockDimZ, config.hStream) = (1, 1, 1, stream);
                    cuLaunchKernelEx(&raw const config, spin, arguments, null_mut())
                }
                2 => cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments),
                _ => cuda::symbol::<LaunchKernel>(c"cuLaunchKernel_ptsz")(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, null_mut()),
            })
        }
    }

    /// Captures a graph of three kernels; captured launches do not run.
    fn capture(&self) -> Result<CUgraphExec, CUresult> {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: the out-pointers are valid.
        unsafe {
            check(cuStreamBeginCapture_v2(self.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))?;
            for _ in 0..IN_GRAPH {
                self.launch(0)?;
            }
            check(cuStreamEndCapture(self.stream, &raw mut graph))?;
            check(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
        }
        Ok(exec)
    }

    fn round(&mut self) -> Result<(), CUresult> {
        let (mut address, mut host) = (0, vec![7_u8; 4096]);
        // SAFETY: the addresses are valid for these sizes until all work is done.
        unsafe {
            check(cuMemAlloc_v2(&raw mut address, MIB))?;
            check(cuMemcpyHtoDAsync_v2(address, host.as_ptr().cast(), host.len(), self.stream))?;
            check(cuMemsetD8Async(address + 4096, 1, 4096, self.stream))?;
            for way in 0..4 {
                self.launch(way)?;
            }
            check(cuGraphLaunch(self.graph, self.stream))?;
            check(cuStreamSynchronize(self.stream))?;
            check(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, host.len()))?;
            check(cuMemFree_v2(address))?;
        }
        let counts = &mut self.counts;
        (counts.kernels, counts.graphs, counts.copies) = (counts.kernels + 4, counts.graphs + 1, counts.copies + 2);
        (counts.fills, counts.allocations, counts.frees) = (counts.fills + 1, counts.allocations + 1, counts.frees + 1);
        Ok(())
    }
}

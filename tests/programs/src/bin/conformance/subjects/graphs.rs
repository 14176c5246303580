//! Graphs.

use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::{self, sys::*};

use super::modules::{Kernels, kernels};
use crate::report::Report;
use crate::setup::require;

const MIB: usize = 1 << 20;

fn memory(report: &mut Report, what: &str) {
    use CUgraphMem_attribute::*;
    let all = [
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
    ];
    let values = all.map(|which| {
        let mut value = 0_u64;
        // SAFETY: these attributes have 64 bits.
        require("attribute", unsafe { cuDeviceGetGraphMemAttribute(0, which, (&raw mut value).cast()) });
        value
    });
    report.answer(format!("{what}: used, high, reserved, high"), format!("{values:?}"));
    report.growth(format!("{what} costs"));
}

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    let kernels = kernels();
    report.measure();
    let (mut stream, mut graph, mut exec, mut node) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: all-zero is valid for the structs; out-pointers are valid; handles are used while they live.
    unsafe {
        require("stream", cuStreamCreate(&raw mut stream, 1));
        report.measure();
        report.code("create with flags", cuGraphCreate(&raw mut graph, 1));
        report.code("create", cuGraphCreate(&raw mut graph, 0));
        let mut asked = std::mem::zeroed::<CUDA_MEM_ALLOC_NODE_PARAMS>();
        report.code("memory node with nothing said", cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut asked));
        asked.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        asked.poolProps.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        report.code("memory node of 0", cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut asked));
        asked.bytesize = 100 * MIB;
        report.code("memory node of 100M", cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut asked));
        report.answer("has an address", asked.dptr != 0);
        memory(report, "added");
        let mut free = null_mut();
        report.code("free node", cuGraphAddMemFreeNode(&raw mut free, graph, &raw const node, 1, asked.dptr));
        let mut count = 0;
        report.code("nodes", cuGraphGetNodes(graph, null_mut(), &raw mut count));
        report.answer("count", count);
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        report.code("type", cuGraphNodeGetType(node, &raw mut kind));
        report.answer("is", kind as u32);
        report.code("clone of a graph with memory", cuGraphClone(&mut null_mut(), graph));
        report.code("instantiate", cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        memory(report, "instantiated");
        let mut second = null_mut();
        report.code("instantiate again", cuGraphInstantiateWithFlags(&raw mut second, graph, 0));
        report.code("upload", cuGraphUpload(exec, stream));
        require("synchronize", cuStreamSynchronize(stream));
        memory(report, "uploaded");
        report.code("launch", cuGraphLaunch(exec, stream));
        report.code("launch again", cuGraphLaunch(exec, stream));
        require("synchronize", cuStreamSynchronize(stream));
        memory(report, "launched");
        report.code("trim", cuDeviceGraphMemTrim(0));
        memory(report, "trimmed while it lives");
        report.code("destroy the launchable", cuGraphExecDestroy(exec));
        memory(report, "destroyed");
        report.code("trim", cuDeviceGraphMemTrim(0));
        memory(report, "trimmed");
        report.code("destroy", cuGraphDestroy(graph));
        report.code("destroy of null", cuGraphDestroy(null_mut()));
        report.code("launch of null", cuGraphLaunch(null_mut(), stream));
    }
    captured(report, &kernels, stream);
}

/// A graph captured from stream-ordered calls.
fn captured(report: &mut Report, kernels: &Kernels, stream: CUstream) {
    let (mut graph, mut exec, mut count) = (null_mut(), null_mut(), 0);
    // SAFETY: out-pointers are valid; handles are used while they live.
    unsafe {
        let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut address = 0;
        require("begin", cuStreamBeginCapture_v2(stream, global));
        report.code("captured alloc", cuMemAllocAsync(&raw mut address, 50 * MIB, stream));
        kernels.spin(5_000_000, stream);
        report.code("captured set", cuMemsetD8Async(address, 1, 4096, stream));
        report.code("captured free", cuMemFreeAsync(address, stream));
        report.code("end", cuStreamEndCapture(stream, &raw mut graph));
        require("nodes", cuGraphGetNodes(graph, null_mut(), &raw mut count));
        report.answer("nodes", count);
        report.code("query during nothing", cuStreamQuery(stream));
        report.code("instantiate", cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        memory(report, "captured");
        report.code("launch", cuGraphLaunch(exec, stream));
        report.code("query", cuStreamQuery(stream));
        require("synchronize", cuStreamSynchronize(stream));
        memory(report, "captured and launched");
        require("destroy", cuGraphExecDestroy(exec));
        require("destroy", cuGraphDestroy(graph));
        require("trim", cuDeviceGraphMemTrim(0));
        memory(report, "in the end");
    }
}

//! Graphs.

use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::{self, sys::*};

use super::modules::kernels;
use super::{Report, need};

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
        // SAFETY: these attributes are 64 bits long.
        need("attribute", unsafe { cuDeviceGetGraphMemAttribute(0, which, (&raw mut value).cast()) });
        value
    });
    report.say(format!("{what}: used, high, reserved, high"), format!("{values:?}"));
    report.grown(format!("{what} costs"));
}

pub fn ask(report: &mut Report) {
    need("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    let kernels = kernels();
    report.measure();
    let (mut stream, mut graph, mut exec, mut node) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: all-zero is valid for the structs; every call gets room for its answers; handles are used while they live.
    unsafe {
        need("stream", cuStreamCreate(&raw mut stream, 1));
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
        report.say("has an address", asked.dptr != 0);
        memory(report, "added");
        let mut free = null_mut();
        report.code("free node", cuGraphAddMemFreeNode(&raw mut free, graph, &raw const node, 1, asked.dptr));
        let mut count = 0;
        report.code("nodes", cuGraphGetNodes(graph, null_mut(), &raw mut count));
        report.say("count", count);
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        report.code("type", cuGraphNodeGetType(node, &raw mut kind));
        report.say("is", kind as u32);
        report.code("clone of a graph with memory", cuGraphClone(&mut null_mut(), graph));
        report.code("instantiate", cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        memory(report, "instantiated");
        let mut second = null_mut();
        report.code("instantiate again", cuGraphInstantiateWithFlags(&raw mut second, graph, 0));
        report.code("upload", cuGraphUpload(exec, stream));
        need("synchronize", cuStreamSynchronize(stream));
        memory(report, "uploaded");
        report.code("launch", cuGraphLaunch(exec, stream));
        report.code("launch again", cuGraphLaunch(exec, stream));
        need("synchronize", cuStreamSynchronize(stream));
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

        let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut address = 0;
        need("begin", cuStreamBeginCapture_v2(stream, global));
        report.code("captured alloc", cuMemAllocAsync(&raw mut address, 50 * MIB, stream));
        kernels.spin(5_000_000, stream);
        report.code("captured set", cuMemsetD8Async(address, 1, 4096, stream));
        report.code("captured free", cuMemFreeAsync(address, stream));
        report.code("end", cuStreamEndCapture(stream, &raw mut graph));
        need("nodes", cuGraphGetNodes(graph, null_mut(), &raw mut count));
        report.say("nodes", count);
        report.code("query during nothing", cuStreamQuery(stream));
        report.code("instantiate", cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        memory(report, "captured");
        report.code("launch", cuGraphLaunch(exec, stream));
        report.code("query", cuStreamQuery(stream));
        need("synchronize", cuStreamSynchronize(stream));
        memory(report, "captured and launched");
        need("destroy", cuGraphExecDestroy(exec));
        need("destroy", cuGraphDestroy(graph));
        need("trim", cuDeviceGraphMemTrim(0));
        memory(report, "in the end");
    }
}

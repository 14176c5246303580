#!/usr/bin/env python3
"""Compares vgpu's trace of a training step with PyTorch's profiler.

    torch_trace.py run [--steps N] [--graph]    runs in the traced process: trains, prints the profiler's counts as one line of JSON
    torch_trace.py compare COUNTS TRACE         compares them with a trace; ends with status 1 if they differ

The profiler counts the kernels of some steps; our trace has those of the whole process. Two fills of a unique size mark the start and
the end of the profiled steps in it.
"""
import collections
import ctypes
import json
import sys

# Elements of the fills that mark start and end; no other fill has this size.
MARK = 1234567


def run(steps, graph):
    import loops
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(32 * 32 * 32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=graph)
    images, labels = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    mark = torch.empty(MARK, dtype=torch.uint8, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    loops.warm(step, 4)
    one = loops.capture(step)[0].replay if graph else step
    one()
    torch.cuda.synchronize()

    # A fill by the driver, which the profiler does not count as a kernel.
    driver = ctypes.CDLL("libcuda.so.1")

    def fill():
        return driver.cuMemsetD8_v2(ctypes.c_uint64(mark.data_ptr()), ctypes.c_ubyte(1), ctypes.c_size_t(MARK))

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        assert fill() == 0
        for _ in range(steps):
            one()
        assert fill() == 0
        torch.cuda.synchronize()
    profiler.export_chrome_trace("/tmp/torch_trace.profile.json")
    with open("/tmp/torch_trace.profile.json") as file:
        events = json.load(file)["traceEvents"]
    kernels = collections.Counter(event["name"] for event in events if event.get("cat") == "kernel")
    times = collections.defaultdict(float)
    for event in events:
        if event.get("cat") == "kernel":
            times[event["name"]] += event["dur"]
    print(json.dumps({"steps": steps, "graph": graph, "kernels": sum(kernels.values()), "by_name": kernels, "micros": times}))


def compare(counts, trace):
    with open(counts) as file:
        theirs = json.loads([line for line in file if line.startswith("{")][-1])
    with open(trace) as file:
        text = file.read().rstrip()
    # The closing bracket may be missing while the process runs.
    events = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")
    marks = [event["ts"] for event in events
             if event["ph"] == "X" and event.get("cat") == "driver" and event["args"].get("elements") == MARK]
    if len(marks) != 2:
        sys.exit(f"{len(marks)} marks in the trace, expected 2: it may be a trace of another run")
    ours, in_graphs, unknown = collections.Counter(), 0, 0
    times = collections.defaultdict(float)
    for event in events:
        if event["ph"] != "X" or not marks[0] < event["ts"]:
            continue
        if event.get("cat") == "driver" and event["ts"] < marks[1] and not event["args"].get("failed") and not event["args"].get("captured"):
            if "kernel" in event["args"]:
                ours[event["args"]["kernel"]] += event["args"]["kernels"]
            elif "kernels" in event["args"]:
                in_graphs += event["args"]["kernels"]
                unknown += event["args"]["kernels"] == 0
        elif event.get("cat") == "kernel":
            times[event["name"]] += event["dur"]
    total = sum(ours.values()) + in_graphs
    print(f"| | kernels |\n|---|---|\n| PyTorch's profiler | {theirs['kernels']} |\n| our trace | {total} ({in_graphs} in graphs) |")
    print(f"\nGPU time of kernels, ms: {sum(theirs['micros'].values()) / 1000:.3f} by the profiler, {sum(times.values()) / 1000:.3f} by our trace's events")
    if unknown:
        print(f"{unknown} graphs whose kernels were not counted")
    # Their names are demangled and ours are not, so only the counts are compared.
    if not theirs["graph"] and sorted(ours.values()) != sorted(theirs["by_name"].values()):
        print("by name, ours:", sorted(ours.values()), "theirs:", sorted(theirs["by_name"].values()))
    sys.exit(0 if total == theirs["kernels"] and not unknown else 1)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        steps = int(arguments[arguments.index("--steps") + 1]) if "--steps" in arguments else 5
        run(steps, "--graph" in arguments)
    elif arguments[:1] == ["compare"] and len(arguments) == 3:
        compare(*arguments[1:])
    else:
        sys.exit(__doc__)

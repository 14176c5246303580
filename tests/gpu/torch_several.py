#!/usr/bin/env python3
"""Checks two GPUs in one container: 4 GiB and 25% of the first, 8 GiB and 60% of the second.

    torch_several.py check FOLDER    creates the containers' files in FOLDER, runs the parts below and prints a table

Parts, each in a process of its own: fill, hidden, share, reduce, train.
"""
import json
import os
import subprocess
import sys
import time

GIB = 1 << 30
LIMITS = [(4 * GIB, 25), (8 * GIB, 60)]
CHUNK = 32 << 20
SECONDS = 3.0
# Elements of the tensor in `reduce`: more than fit into one of NCCL's buffers.
ELEMENTS = 1 << 24
STEPS = 40


def fill():
    """Copies from one GPU to the other, fills both in turn, and waits while the host reads NVML."""
    import torch
    source = torch.arange(1 << 20, device="cuda:0")
    moved = source.to("cuda:1")
    result = {"equal": bool((moved.cpu() == source.cpu()).all()), "total": [torch.cuda.mem_get_info(gpu)[1] for gpu in (0, 1)]}
    kept, refused = [], [None, None]
    while None in refused:
        for gpu in (0, 1):
            try:
                refused[gpu] or kept.append(torch.empty(CHUNK, dtype=torch.uint8, device=f"cuda:{gpu}"))
            except torch.OutOfMemoryError:
                refused[gpu] = torch.cuda.mem_get_info(gpu)[0]
    result["free"] = refused
    print(json.dumps(result), flush=True)
    sys.stdin.readline()


def hidden():
    """Prints the total memory of each ordinal."""
    import torch
    print(json.dumps([torch.cuda.mem_get_info(gpu)[1] for gpu in range(torch.cuda.device_count())]))


def share(gpu):
    """Prints matrix products per second on one GPU. The products are small enough not to lower the clock."""
    import torch
    matrix = torch.randn(2048, 2048, device=f"cuda:{gpu}")
    def run(seconds):
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            for _ in range(4):
                torch.mm(matrix, matrix)
            torch.cuda.synchronize(gpu)
            count += 4
        return count / (time.monotonic() - begin)
    run(1.0)
    print(json.dumps(run(SECONDS)))


def group_of_two(rank):
    """Initialises PyTorch with NCCL between two processes, one on each GPU."""
    import torch
    import torch.distributed as group
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK=str(rank), WORLD_SIZE="2")
    torch.cuda.set_device(rank)
    group.init_process_group("nccl", device_id=torch.device("cuda", rank))
    return torch, group


def reduce(rank, captured):
    """Sums a tensor a hundred times, directly or in a graph. Each process waits in its kernels while the other is throttled."""
    torch, group = group_of_two(rank)
    tensor = torch.full((ELEMENTS,), float(rank + 1), device="cuda")
    group.all_reduce(torch.zeros(1, device="cuda"))

    def sum_up():
        group.all_reduce(tensor)
        tensor.div_(3).mul_(rank + 1)

    again = sum_up
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            sum_up()
        again = graph.replay
    for _ in range(100):
        again()
    group.all_reduce(tensor)
    torch.cuda.synchronize()
    print(json.dumps([tensor.min().item(), tensor.max().item()]), flush=True)
    if captured:
        # NCCL would wait for the graph.
        graph.reset()
    group.destroy_process_group()


def train(rank):
    """Trains one model on both GPUs, which sums gradients during the backward pass. Prints steps per second."""
    torch, group = group_of_two(rank)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda()
    model = torch.nn.parallel.DistributedDataParallel(layers, device_ids=[rank])
    optimizer, batch = torch.optim.SGD(model.parameters(), 1e-3), torch.randn(4096, 4096, device="cuda")

    def run(steps):
        begin = time.monotonic()
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return steps / (time.monotonic() - begin)

    run(10)
    print(json.dumps(run(STEPS)), flush=True)
    group.destroy_process_group()


def start(part, *arguments, folder=None, visible=None):
    environment = dict(os.environ, NCCL_NVLS_ENABLE="0")
    if folder:
        environment.update(VGPU_DIR=folder, LD_PRELOAD=f"{os.path.dirname(folder)}/libvgpu.so")
    if visible:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return subprocess.Popen([sys.executable, __file__, part, *map(str, arguments)], env=environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def output(process):
    """Returns the last output of a process; None if it failed or took more than a minute."""
    try:
        lines = [line for line in process.communicate(timeout=60)[0].splitlines() if line.startswith(("[", "{")) or line[:1].isdigit()]
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return json.loads(lines[-1]) if lines else None


def listed_by_nvml():
    """Returns the MiB that NVML lists for processes on each GPU, in its order."""
    def ask(query):
        text = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True).stdout
        return [line.split(", ") for line in text.splitlines()]
    held = {uuid: 0 for uuid, in ask("--query-gpu=uuid")}
    for uuid, used in ask("--query-compute-apps=gpu_uuid,used_memory"):
        held[uuid] += int(used)
    return list(held.values())


def check(work):
    wrong = 0

    def row(what, seen, right):
        nonlocal wrong
        wrong += not right
        print(f"| {what} | {seen} | {'ok' if right else '**wrong**'} |", flush=True)

    def container(name):
        folder = f"{work}/{name}"
        subprocess.run([f"{work}/mkshare", folder, *(str(figure) for pair in LIMITS for figure in pair)], check=True, stdout=sys.stderr)
        return folder

    print("| check | seen | |\n|---|---|---|", flush=True)
    process = start("fill", folder=container("fill"))
    result = json.loads(process.stdout.readline())
    held = listed_by_nvml()
    process.communicate("\n")
    row("a copy between the GPUs", result["equal"], result["equal"])
    row("totals, MiB", [total >> 20 for total in result["total"]], result["total"] == [memory for memory, _ in LIMITS])
    row("free when refused 32 MiB, MiB", [free >> 20 for free in result["free"]], all(free < CHUNK for free in result["free"]))
    row("NVML meanwhile, MiB", held, all(memory - 2 * CHUNK <= mib << 20 <= memory for mib, (memory, _) in zip(held, LIMITS)))
    for visible in ("1", "1,0"):
        seen = output(start("hidden", folder=container("hidden" + visible), visible=visible))
        row(f"totals with CUDA_VISIBLE_DEVICES={visible}, GiB", [total // GIB for total in seen],
            seen == [LIMITS[int(gpu)][0] for gpu in visible.split(",")])
    native = [output(process) for process in [start("share", gpu) for gpu in (0, 1)]]
    folder = container("share")
    limited = [output(process) for process in [start("share", gpu, folder=folder) for gpu in (0, 1)]]
    shares = [ours / alone for ours, alone in zip(limited, native)]
    row("shares of 25 and 60%, both busy", [f"{share:.3f}" for share in shares],
        all(abs(share - cores / 100) < 0.03 for share, (_, cores) in zip(shares, LIMITS)))

    def both(part, *arguments, folder=None):
        return [output(process) for process in [start(part, rank, *arguments, folder=folder) for rank in (0, 1)]]

    folder = container("together")
    for captured, how in enumerate(("", ", in a graph")):
        alone, ours = both("reduce", captured), both("reduce", captured, folder=folder)
        row(f"NCCL sums{how}, natively and limited", f"{alone} {ours}", None not in alone and alone == ours)
    alone, ours = both("train"), both("train", folder=folder)
    shares = [limited / native for limited, native in zip(ours, alone)] if None not in alone + ours else []
    least = min(cores for _, cores in LIMITS) / 100
    row("shares of a training step on both, limited by the lower limit", [f"{share:.3f}" for share in shares],
        bool(shares) and all(least * 0.7 < share < least + 0.03 for share in shares))
    return wrong != 0


if __name__ == "__main__":
    part, arguments = globals()[sys.argv[1]], sys.argv[2:]
    sys.exit(part(*arguments) if sys.argv[1] == "check" else part(*map(int, arguments)))

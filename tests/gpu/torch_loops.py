"""Throughput of four PyTorch loops, one line each: name, iterations per second after the first second, the first second's.

Run it natively, then limited (`vgpu-bench container DIR 50; VGPU_DIR=DIR LD_PRELOAD=libvgpu.so python3 torch_loops.py`), and compare.
"""

import sys
import time

import torch


def loop(name, step, seconds):
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    start, count, first = time.perf_counter(), 0, None
    while True:
        for _ in range(4):
            step()
        count += 4
        torch.cuda.synchronize()
        passed = time.perf_counter() - start
        if first is None and passed >= 1.0:
            first, after, at = count / passed, count, passed
        if passed >= seconds + 1.0:
            break
    print(f"{name} {(count - after) / (passed - at):.2f} first {first:.2f}", flush=True)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    torch.manual_seed(0)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    loop("matmul", lambda: torch.mm(a, a), seconds)
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda().to(torch.bfloat16)
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def forward():
        model(x)

    loop("mlp", forward, seconds)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def train():
        optimizer.zero_grad(set_to_none=False)
        model(x).float().pow(2).mean().backward()
        optimizer.step()

    loop("train", train, seconds)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    loop("train-graph", graph.replay, seconds)


main()

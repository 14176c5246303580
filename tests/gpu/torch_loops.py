"""Prints the throughput of four PyTorch loops, one line each: name, iterations per second after the first second and in it.

Run it natively, then limited (`vgpu-bench container DIR 50; VGPU_DIR=DIR LD_PRELOAD=libvgpu.so python3 torch_loops.py`), and compare.
"""

import sys
import time

import loops
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
    for name, step in loops.make().items():
        loop(name, step(), seconds)


main()

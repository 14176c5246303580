#!/usr/bin/env python3
"""Measures PyTorch loops beside each other, with limits and the arbiter, and requests beside a training step.

    torch_pairs.py check FOLDER KIT [PART]    creates the containers' files in FOLDER, runs `pairs` and `requests`, or one of them, and prints
                                              tables
    torch_pairs.py run LOOP START SECONDS    a tenant: prints the steps per second from START + 2 s on (seconds since 1970)

KIT has libvgpu.so, mkshare and vgpu-bench.
"""
import json
import os
import subprocess
import sys
import time

SECONDS = 6.0
LEAD = 2.0
# Time for a process to load PyTorch and to warm up.
START_IN = 9.0
LOOPS = ("train", "matmul")
PAIRS = [("train", "train"), ("matmul", "matmul"), ("train", "matmul")]
LIMITS = [(30, 70), (50, 50)]
# Requests of 1 ms, 50 a second, and of .5 ms, 200 a second: kernels of 50 us, their number, requests a second.
KERNEL_US = 50.0
REQUESTS = [(20, 50.0), (10, 200.0)]


def run(loop, start, seconds):
    """Runs a loop whose steps are each waited for, as a loss that is looked at is."""
    import loops
    import torch
    step = loops.make()[loop]()
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    times = []
    while time.time() < start + LEAD + seconds:
        for _ in range(1 if loop == "train" else 8):
            step()
        torch.cuda.synchronize()
        times.append(time.time())
    within = [at for at in times if at >= start + LEAD]
    per_turn = 1 if loop == "train" else 8
    print(json.dumps(per_turn * (len(within) - 1) / (within[-1] - within[0])))


def tenants(commands, folders, kit):
    """Starts commands, in these containers' folders or natively (None), and returns them."""
    started = []
    for command, folder in zip(commands, folders):
        env = dict(os.environ)
        if folder:
            env.update(VGPU_DIR=folder, LD_PRELOAD=f"{kit}/libvgpu.so")
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    return started


def loop_command(loop, start, seconds=SECONDS):
    return [sys.executable, __file__, "run", loop, str(start), str(seconds)]


def last_line(process):
    return process.communicate()[0].strip().splitlines()[-1]


def limited(work, kit, limits):
    """Creates containers with these limits and starts an arbiter. Returns their folders, and the arbiter."""
    root = f"{work}/{time.monotonic_ns()}"
    folders = [f"{root}/{n}" for n in range(len(limits))]
    for folder, limit in zip(folders, limits):
        subprocess.run([f"{kit}/mkshare", folder, "0", str(limit)], check=True)
    return folders, subprocess.Popen([f"{kit}/vgpu-bench", "arbiter", root], stdin=subprocess.PIPE)


def check(work, kit, part):
    alone = {}
    for loop in LOOPS:
        process, = tenants([loop_command(loop, time.time() + START_IN)], [None], kit)
        alone[loop] = json.loads(last_line(process))
    if part != "requests":
        pairs(work, kit, alone)
    if part != "pairs":
        requests(work, kit, alone["train"])


def pairs(work, kit, alone):
    print("| loops | limits | shares | sum |\n|---|---|---|---|", flush=True)
    for pair in PAIRS:
        for limits in [None] + LIMITS:
            folders, arbiter = limited(work, kit, limits) if limits else ([None, None], None)
            start = time.time() + START_IN
            running = tenants([loop_command(loop, start) for loop in pair], folders, kit)
            shares = [json.loads(last_line(process)) / alone[loop] for process, loop in zip(running, pair)]
            if arbiter:
                arbiter.communicate()
            print(f"| {pair[0]} + {pair[1]} | {limits or 'native'} | {shares[0]:.4f} + {shares[1]:.4f} | {sum(shares):.4f} |", flush=True)


def requests(work, kit, alone):
    bench = f"{kit}/vgpu-bench"
    calibrated = subprocess.run([bench, "tenant", "calibrate"], capture_output=True, text=True, check=True).stdout
    rounds = int(float(calibrated.split()[1]) * KERNEL_US)
    print("| requests | p50 | p90 | p99 | the training step |\n|---|---|---|---|---|", flush=True)
    for launches, per_second in REQUESTS:
        for name, neighbour, limits in [("alone", False, None), ("beside train, native", True, None), ("beside train, 30 / 70", True, (30, 70))]:
            folders, arbiter = limited(work, kit, limits) if limits else ([None, None], None)
            start = time.time() + (START_IN if neighbour else 1.0)
            request = [bench, "tenant", "requests", rounds, KERNEL_US, 2 * SECONDS, 1, 0, 0, int((start + LEAD) * 1000), launches, per_second]
            commands = [list(map(str, request))] + ([loop_command("train", start, 2 * SECONDS)] if neighbour else [])
            running = tenants(commands, folders, kit)
            waits = sorted(float(line.split()[1]) for line in running[0].communicate()[0].splitlines() if line.startswith("wait"))
            share = f"{json.loads(last_line(running[1])) / alone:.4f}" if neighbour else ""
            if arbiter:
                arbiter.communicate()
            at = [waits[min(len(waits) - 1, int(part * len(waits)))] / 1000 for part in (0.5, 0.9, 0.99)]
            print(f"| {per_second:.0f} a second, {name} | {at[0]:.2f} | {at[1]:.2f} | {at[2]:.2f} | {share} |", flush=True)


if sys.argv[1] == "run":
    run(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
else:
    check(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)

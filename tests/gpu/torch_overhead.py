"""Measures the overhead of the library without a limit on the PyTorch loops: processes with and without it run in turn, for a fraction of
a second each.

`vgpu-bench container DIR 0; python3 torch_overhead.py DIR LIBRARY [SECONDS] [ROUNDS] [LOOP...]`

Only one process has work at a time, and all are bound to one core: the GPU's clock and temperature and the core are about the same in
consecutive turns, so each round compares neighbours. There are many processes of each side, because the speed of a process is fixed at its
start, perhaps by the location of its memory. Their spread is the error of the comparison.
"""

import os
import statistics
import subprocess
import sys
import time

# Length of the start of a turn that is not measured, in seconds.
SETTLE = 0.06
# A balanced order: no side has the earlier processes.
SIDES = ("native", "library", "library", "native") * 4


def serve():
    """Runs one process: reads lines with a loop's name and seconds, prints steps per second."""
    import loops
    import torch

    makers, steps = loops.make(), {}
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    print("ready", flush=True)
    for line in sys.stdin:
        name, seconds = line.split()
        step = steps[name] = steps.get(name) or makers[name]()

        def run(length):
            start, count = time.perf_counter(), 0
            while True:
                for _ in range(4):
                    step()
                torch.cuda.synchronize()
                count += 4
                passed = time.perf_counter() - start
                if passed >= length:
                    return count / passed

        run(SETTLE)
        print(run(float(seconds)), flush=True)


def start(side, folder, library):
    environment = dict(os.environ, VGPU_DIR=folder, LD_PRELOAD=library) if side == "library" else None
    return subprocess.Popen([sys.executable, __file__, "--serve"], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def report(name, rounds):
    """Prints the comparison. `rounds` has the rates of all processes, in the order of `SIDES`."""
    parts = [[100 * (rate / statistics.mean(rates) - 1) for rate in rates] for rates in rounds]
    own = [statistics.median(process) for process in zip(*parts)]
    by_side = {side: [part for part, of in zip(own, SIDES) if of == side] for side in ("native", "library")}
    print(f"{name}: {statistics.mean(rate for rates in rounds for rate in rates):.1f}/s; difference from the mean, in percent:")
    for side, each in by_side.items():
        print(f"  {side}: " + ", ".join(f"{part:+.2f}" for part in sorted(each)))
    gain = statistics.mean(by_side["library"]) - statistics.mean(by_side["native"])
    error = sum(statistics.variance(each) / len(each) for each in by_side.values()) ** 0.5
    print(f"  with the library: {gain:+.3f} +- {error:.3f}%", flush=True)


def main():
    folder, library = sys.argv[1:3]
    seconds, rounds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.25, int(sys.argv[4]) if len(sys.argv) > 4 else 4
    processes = [start(side, folder, os.path.abspath(library)) for side in SIDES]

    def ask(process, name, length):
        process.stdin.write(f"{name} {length}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    for process in processes:
        process.stdout.readline()
    for name in sys.argv[5:] or ("matmul", "train-graph", "mlp", "train"):
        for process in processes:
            ask(process, name, 0.3)
        seen = []
        for first in range(rounds):
            # Each round starts with another process.
            rates = [0.0] * len(processes)
            for place in range(len(processes)):
                number = (first + place) % len(processes)
                rates[number] = ask(processes[number], name, seconds)
            seen.append(rates)
        report(name, seen)
    for process in processes:
        process.stdin.close()
        process.wait()


if sys.argv[1:] == ["--serve"]:
    serve()
else:
    main()

"""Measures the share of four PyTorch loops at 25, 50 and 75%, relative to their mean rate without a limit, in one process.

`vgpu-bench container DIR 0; VGPU_DIR=DIR LD_PRELOAD=libvgpu.so python3 torch_shares.py DIR [SECONDS] [ROUNDS] [LOOP...]`

On a core shared with other virtual machines, host work at times takes 1.6 times as long, for one or a few seconds, which determines the
rate of small kernels. So the limits run in turn, in another order each round. Host-bound loops also time a little work without a GPU after
every few steps, and their share is printed a second time, relative to the rate without a limit at the same host speed. For them many short
rounds are more accurate than a few long ones. They are throttled for up to 0.1 s at a time, so a measurement is cut to begin and end with a
throttled period. The limit is changed in the page that the library reads, as `vgpu set` does. NVML's clock and power after each share show
whether the power limit slowed the GPU.
"""

import math
import mmap
import statistics
import struct
import sys
import time

import loops
import torch

# Offsets of the generation and of the first entry's cores in the limits page (region/src/limits.rs).
GENERATION, CORES = 32, 64 + 44
# Seconds of a run before each measurement. It is as long as the measurement itself for loops at the power limit: the power draw is known
# after a second and stable after a few.
SETTLE = 0.15
POWER_LIMITED = ("matmul",)
HOST_BOUND = ("mlp", "train")
# Host speeds count as equal within this factor.
SAME_SPEED = 1.1
# Steps launched before a wait.
STEPS = 4
# A group of steps was throttled if it took this many times the median and this many seconds more.
THROTTLED = (2.5, 0.004)


def host_work():
    """Does work without a GPU. Returns how long it took, in seconds."""
    start, total = time.perf_counter(), 0
    for number in range(1500):
        total += number * number
    return time.perf_counter() - start


def deviation(rates):
    return statistics.stdev(rates) if len(rates) > 1 else 0.0


def speed_class(took):
    """Returns the class of host speeds for a time of `host_work`."""
    return round(math.log(took) / math.log(SAME_SPEED))


def cut_to_throttling(runs):
    """Cuts limited runs to what lies between their first and last throttled group: steps, seconds, groups."""
    usual = statistics.median(length for _, _, seen in runs[0] for length, _ in seen)

    def cut(run):
        throttled = [place for place, (length, _) in enumerate(run[2]) if length > THROTTLED[0] * usual and length > THROTTLED[1] + usual]
        seen = run[2][throttled[0] + 1 : throttled[-1] + 1] if len(throttled) > 1 else run[2]
        return STEPS * len(seen), sum(length for length, _ in seen), seen

    return {percent: [cut(run) for run in each] if percent else each for percent, each in runs.items()}


def report(name, runs, notes):
    of_all = {percent: sum(count for count, _, _ in each) / sum(length for _, length, _ in each) for percent, each in runs.items()}
    if name in HOST_BOUND:
        runs = cut_to_throttling(runs)
    rates = {percent: [count / length for count, length, _ in each] for percent, each in runs.items()}
    alone = {}
    for _, _, seen in runs[0]:
        for length, took in seen:
            alone.setdefault(speed_class(took), []).append(length)
    alone = {key: (statistics.mean(lengths), len(lengths)) for key, lengths in sorted(alone.items())}
    native = rates.pop(0)
    mean = statistics.mean(native)
    print(f"{name}: {mean:.0f}/s without a limit ({min(native):.0f} to {max(native):.0f}; {notes[0]})")
    if alone:
        classes = (f"{SAME_SPEED**key * 1e6:.0f} us: {STEPS / length:.0f}/s in {count}" for key, (length, count) in alone.items())
        print("  by the time of the work without a GPU:", ", ".join(classes))
    for percent, seen in rates.items():
        # Error of the quotient of two means.
        error = math.hypot(*(deviation(each) / statistics.mean(each) for each in (seen, native))) / math.sqrt(len(seen))
        share = statistics.mean(seen) / mean
        print(f"  {percent}%: {share:.4f} +- {share * error:.4f} ({min(seen):.0f} to {max(seen):.0f}/s; {notes[percent]})", end="")
        if alone:
            def solo(took):
                return alone[min(alone, key=lambda key: abs(key - speed_class(took)))][0]

            shares = [sum(solo(took) for _, took in seen) / length for _, length, seen in runs[percent]]
            print(f"; at the same host speed {statistics.mean(shares):.4f} +- {deviation(shares) / math.sqrt(len(shares)):.4f}", end="")
            print(f"; uncut and not corrected for host speed {of_all[percent] / of_all[0]:.4f}", end="")
        print(flush=True)


def main():
    folder, seconds, rounds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0, int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with open(f"{folder}/limits", "r+b") as file:
        page = mmap.mmap(file.fileno(), 4096)

    def limit(percent):
        struct.pack_into("<I", page, CORES, percent)
        struct.pack_into("<Q", page, GENERATION, struct.unpack_from("<Q", page, GENERATION)[0] + 1)

    def run(step, length, probed):
        """Runs steps. Returns their number, the seconds, and for each group of steps its time and that of the host work after it."""
        start, count, seen = time.perf_counter(), 0, []
        before = start
        while before - start < length:
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            count += STEPS
            took = host_work() if probed else 0.0
            now = time.perf_counter()
            if probed:
                seen.append((now - before, took))
            before = now
        return count, before - start, seen

    def measure(name, step):
        runs, notes = {0: [], 25: [], 50: [], 75: []}, {}
        settle = max(SETTLE, seconds) if name in POWER_LIMITED else SETTLE
        probed = name in HOST_BOUND
        limit(0)
        run(step, max(SETTLE, 0.5), probed)
        for first in range(rounds):
            for place in range(len(runs)):
                percent = list(runs)[(first + place) % len(runs)]
                limit(percent)
                run(step, settle, probed)
                runs[percent].append(run(step, seconds, probed))
                notes[percent] = f"{torch.cuda.clock_rate()} MHz {torch.cuda.power_draw() / 1000:.0f} W"
        limit(0)
        report(name, runs, notes)

    steps = loops.make()
    for name in sys.argv[4:] or steps:
        measure(name, steps[name]())


main()

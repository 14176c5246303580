"""Four PyTorch loops, each without a limit and at 25, 50 and 75% in turn, in one process: what each gets of the mean rate without.

What runs on a processor shared with other machines takes at times 1.6 times as long, for a second or a few, and that decides how quick small
kernels come. So the limits take turns, in another order each round, and loops that are bound by the host time a little work without any
GPU after every few steps: what they get is told a second time, of what they get without a limit on as quick a processor. Of the same
time, many short rounds tell more of them than a few long ones; as they are held back for up to 0.1 s at a time, what is measured begins and ends
with that. The limit is changed in the page that the library reads, as `vgpu set` does it:
`vgpu-bench container DIR 0; VGPU_DIR=DIR LD_PRELOAD=libvgpu.so python3 torch_shares.py DIR [SECONDS] [ROUNDS] [LOOP...]`.
NVML's clock and power beside each share tell whether the card was held back by its power limit.
"""

import math
import mmap
import statistics
import struct
import sys
import time

import loops
import torch

# Where the page has its generation and the first entry's cores (region/src/limits.rs).
GENERATION, CORES = 32, 64 + 44
# Before each measurement goes a run of so many seconds; as long a one as is measured where the card is at its power limit, as what it draws is
# known after a second and believed after a few.
SETTLE = 0.15
POWER_LIMITED = ("matmul",)
HOST_BOUND = ("mlp", "train")
# Processors count as equally quick where the work without a GPU takes the same but for so much.
ALIKE = 1.1
# So many steps are launched before a wait.
FEW = 4
# What takes so many times as long as usual, and so many seconds longer, was held back.
HELD = (2.5, 0.004)


def work():
    """Something without a GPU. How long it took, in seconds."""
    start, total = time.perf_counter(), 0
    for number in range(1500):
        total += number * number
    return time.perf_counter() - start


def deviation(rates):
    return statistics.stdev(rates) if len(rates) > 1 else 0.0


def quickness(took):
    return round(math.log(took) / math.log(ALIKE))


def whole(runs):
    """Of runs with a limit what lies between the first and the last time that they were held back: so many steps in so many seconds."""
    usual = statistics.median(length for _, _, seen in runs[0] for length, _ in seen)

    def cut(run):
        held = [place for place, (length, _) in enumerate(run[2]) if length > HELD[0] * usual and length > HELD[1] + usual]
        seen = run[2][held[0] + 1 : held[-1] + 1] if len(held) > 1 else run[2]
        return FEW * len(seen), sum(length for length, _ in seen), seen

    return {percent: [cut(run) for run in each] if percent else each for percent, each in runs.items()}


def tell(name, runs, notes):
    of_all = {percent: sum(count for count, _, _ in each) / sum(length for _, length, _ in each) for percent, each in runs.items()}
    if name in HOST_BOUND:
        runs = whole(runs)
    rates = {percent: [count / length for count, length, _ in each] for percent, each in runs.items()}
    alone = {}
    for _, _, seen in runs[0]:
        for length, took in seen:
            alone.setdefault(quickness(took), []).append(length)
    alone = {key: (statistics.mean(lengths), len(lengths)) for key, lengths in sorted(alone.items())}
    native = rates.pop(0)
    mean = statistics.mean(native)
    print(f"{name}: {mean:.0f}/s without a limit ({min(native):.0f} to {max(native):.0f}; {notes[0]})")
    if alone:
        told = (f"{ALIKE**key * 1e6:.0f} us: {FEW / length:.0f}/s in {count}" for key, (length, count) in alone.items())
        print("  by what the work without a GPU took:", ", ".join(told))
    for percent, seen in rates.items():
        # Of the quotient of two means that each have an error of their own.
        error = math.hypot(*(deviation(each) / statistics.mean(each) for each in (seen, native))) / math.sqrt(len(seen))
        share = statistics.mean(seen) / mean
        print(f"  {percent}%: {share:.4f} +- {share * error:.4f} ({min(seen):.0f} to {max(seen):.0f}/s; {notes[percent]})", end="")
        if alone:
            def solo(took):
                return alone[min(alone, key=lambda key: abs(key - quickness(took)))][0]

            shares = [sum(solo(took) for _, took in seen) / length for _, length, seen in runs[percent]]
            print(f"; on as quick a processor {statistics.mean(shares):.4f} +- {deviation(shares) / math.sqrt(len(shares)):.4f}", end="")
            print(f"; as measured, with parts of times held back, {of_all[percent] / of_all[0]:.4f}", end="")
        print(flush=True)


def main():
    folder, seconds, rounds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0, int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with open(f"{folder}/limits", "r+b") as file:
        page = mmap.mmap(file.fileno(), 4096)

    def limit(percent):
        struct.pack_into("<I", page, CORES, percent)
        struct.pack_into("<Q", page, GENERATION, struct.unpack_from("<Q", page, GENERATION)[0] + 1)

    def run(step, length, probed):
        """How many steps were made in how many seconds, and of every few of them how long they and the work after them took."""
        start, count, seen = time.perf_counter(), 0, []
        before = start
        while before - start < length:
            for _ in range(FEW):
                step()
            torch.cuda.synchronize()
            count += FEW
            took = work() if probed else 0.0
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
        tell(name, runs, notes)

    steps = loops.make()
    for name in sys.argv[4:] or steps:
        measure(name, steps[name]())


main()

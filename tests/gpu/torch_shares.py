"""Four PyTorch loops, each without a limit and at 25, 50 and 75% in turn, in one process: what each gets of the rate just before without.

The host's pace changes from minute to minute and decides how quick small kernels come, so only neighbouring figures are compared. The
limit is changed in the page that the library reads, as `vgpu set` does it:
`vgpu-bench container DIR 0; VGPU_DIR=DIR LD_PRELOAD=libvgpu.so python3 torch_shares.py DIR [SECONDS] [ROUNDS] [LOOP...]`.
NVML's clock and power beside each share tell whether the card was held back by its power limit.
"""

import mmap
import struct
import sys
import time

import loops
import torch

# Where the page has its generation and the first entry's cores (region/src/limits.rs).
GENERATION, CORES = 32, 64 + 44
# Before each measurement goes as long a run, and no less than this, in seconds: what a matmul draws is known after a second and believed after
# a few.
SETTLE = 0.5


def main():
    folder, seconds, rounds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0, int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with open(f"{folder}/limits", "r+b") as file:
        page = mmap.mmap(file.fileno(), 4096)

    def limit(percent):
        struct.pack_into("<I", page, CORES, percent)
        struct.pack_into("<Q", page, GENERATION, struct.unpack_from("<Q", page, GENERATION)[0] + 1)

    def rate(step, length):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < length:
            for _ in range(4):
                step()
            count += 4
            torch.cuda.synchronize()
        return count / (time.perf_counter() - start)

    def measure(name, step):
        shares, native, notes = {25: [], 50: [], 75: []}, [], {}
        limit(0)
        rate(step, SETTLE)
        for _ in range(rounds):
            for percent in (0, *shares):
                limit(percent)
                rate(step, max(SETTLE, seconds))
                got = rate(step, seconds)
                notes[percent] = f"{torch.cuda.clock_rate()} MHz {torch.cuda.power_draw() / 1000:.0f} W"
                if percent == 0:
                    native.append(got)
                else:
                    shares[percent].append(got / native[-1])
        limit(0)
        print(f"{name}: {sum(native) / rounds:.0f}/s without a limit ({min(native):.0f} to {max(native):.0f}; {notes[0]})")
        for percent, seen in shares.items():
            print(f"  {percent}%: {sum(seen) / rounds:.4f} ({min(seen):.3f} to {max(seen):.3f}; {notes[percent]})", flush=True)

    steps = loops.make()
    for name in sys.argv[4:] or steps:
        measure(name, steps[name]())


main()

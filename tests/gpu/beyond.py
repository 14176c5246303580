#!/usr/bin/env python3
"""Measures PyTorch programs whose memory moves to the host while others need the GPU's.

    beyond.py check FOLDER [PART]...    creates the containers' files in FOLDER, runs the parts (default: all) and prints tables
    beyond.py worker                    a program: reads commands from its input, and answers each with a line of JSON
    beyond.py JAX | CuPy                a program: works with pauses, and prints a result

Parts: `idle` moves an idle program of 16 GiB for another one, with each of two allocators. `two`, `expandable` and `three` run training
programs, of which one fits, and compare their results with those that they have alone. `notebooks` and `eight` run programs, two of which fit, that
each work for a second now and then. `peers` moves a program that uses two GPUs. `swap` lets two programs of 40 GiB, one of which fits, work in turn. `frameworks` compares what programs
of other frameworks print natively and while their memory moves; the variable LLAMA may have the command of one more. `fits` compares a program
that may move with one that may not, while nothing moves. A program without the library takes the rest of the GPU in all but `idle` and `fits`.
FOLDER/kit has libvgpu.so, mkshare and vgpu-bench.
"""
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time

GIB = 1 << 30
WORDS = 16 << 20
# Offset of the counters of moves on the first GPU, each way: number, bytes, nanoseconds (region/src/region.rs).
MOVES = 64 + 1024
PARTS = ("idle", "two", "expandable", "three", "notebooks", "swap", "frameworks", "fits")  # without `eight` and `peers`, which need more than usual


class Worker:
    """A program, and the commands that it obeys."""

    def __init__(self):
        import torch
        self.torch, self.blocks = torch, []
        self.small = torch.zeros(1, device="cuda")
        self.step = None

    def fill(self, number, device="cuda"):
        return self.torch.arange(WORDS, dtype=self.torch.int32, device=device).mul_(number + 1)

    def take(self, gib):
        """Takes memory in blocks of 64 MiB. Returns the longest time that one took."""
        longest = 0.0
        for _ in range(int(float(gib) * GIB / WORDS / 4)):
            begin = time.monotonic()
            self.blocks.append(self.fill(len(self.blocks)))
            self.torch.cuda.synchronize()
            longest = max(longest, time.monotonic() - begin)
        return longest

    def span(self, gib):
        """Takes memory in blocks of 64 MiB, one on the first GPU, the next on the second."""
        self.blocks = [self.fill(number, f"cuda:{number % 2}") for number in range(int(float(gib) * GIB / WORDS / 4))]

    def exchange(self, seconds):
        """Copies blocks to the other GPU. Returns the number of copies, and of those with a wrong word."""
        copies, wrong, end = 0, 0, time.monotonic() + float(seconds)
        while time.monotonic() < end:
            number, copies = copies % len(self.blocks), copies + 1
            other = f"cuda:{(number + 1) % 2}"
            wrong += not bool((self.blocks[number].to(other) == self.fill(number, other)).all())
        return copies, wrong

    def touch(self):
        self.small.add_(1).item()

    def free(self):
        self.blocks.clear()
        self.torch.cuda.empty_cache()

    def check(self):
        """Returns the number of blocks with a wrong word."""
        return sum(not bool((block == self.fill(number, block.device)).all()) for number, block in enumerate(self.blocks))

    def work(self, seconds):
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            self.blocks[0].add_(1).sub_(1)
            self.torch.cuda.synchronize()

    def train(self, mode, steps):
        """Trains, changing one block in each step. Returns the loss, and the sum of the block that was changed last."""
        import loops
        torch = self.torch
        if self.step is None:
            made = loops.make()
            self.step = made["train-graph" if mode == "graph" else "train"]()
        for number in range(int(steps)):
            self.step()
            self.blocks[number % len(self.blocks)].add_(number)
            torch.cuda.synchronize()
        return [float(self.blocks[0].double().sum()), float(self.blocks[-1].double().sum())]

    def costs(self):
        """Returns the time in µs of an allocation with its free (2 and 64 MiB), a launch, and a training step; medians of many."""
        import ctypes
        import loops
        torch, cuda, at = self.torch, ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()

        def allocate(size):
            cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
            cuda.cuMemFree_v2(at)

        step = loops.make()["train"]()

        def train():
            step()
            torch.cuda.synchronize()

        def median(work, count):
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
            return sorted(times)[count // 2] * 1e6

        small = self.small
        result = []
        for work, count in [(lambda: allocate(2 << 20), 1000), (lambda: allocate(64 << 20), 500), (lambda: small.add_(1), 5000), (train, 300)]:
            median(work, 20)
            torch.cuda.synchronize()
            result.append(median(work, count))
            torch.cuda.synchronize()
        return result


def rounds(step, wait, result):
    """Works for a moment, and pauses for longer than it takes to count as idle, six times."""
    for _ in range(6):
        for _ in range(50):
            step()
        wait()
        time.sleep(0.6)
    print(result(), flush=True)


def with_jax():
    import jax
    import jax.numpy as jnp
    held = [jax.random.normal(jax.random.key(seed), (1 << 28,)) for seed in range(4)]
    state = {"x": jnp.zeros((1 << 28,))}
    add = jax.jit(lambda x, y: x * 0.5 + y)

    def step(number=iter(range(1 << 30))):
        state["x"] = add(state["x"], held[next(number) % 4])

    rounds(step, lambda: state["x"].block_until_ready(), lambda: [float(part) for part in state["x"][:: 1 << 24]])


def with_cupy():
    import cupy
    held = [cupy.arange(seed, seed + (1 << 28), dtype=cupy.float32) for seed in range(16)]
    state = {"x": cupy.zeros(1 << 28, dtype=cupy.float32)}

    def step(number=iter(range(1 << 30))):
        state["x"] = state["x"] * cupy.float32(0.5) + held[next(number) % 16]

    rounds(step, cupy.cuda.Device().synchronize, lambda: state["x"][:: 1 << 24].tolist())


FRAMEWORKS = {"JAX": with_jax, "CuPy": with_cupy}


def worker():
    program = Worker()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        word, *arguments = line.split()
        begin = time.monotonic()
        try:
            answer = getattr(program, word)(*arguments)
        except Exception as error:
            answer = f"{type(error).__name__}: {str(error)[:80]}"
        print(json.dumps({"answer": answer, "seconds": time.monotonic() - begin}), flush=True)


class Program:
    """A worker, or another program, from outside."""

    def __init__(self, work, name, gib=None, evictable=True, mode="caching", gpu=None, command=(sys.executable, __file__, "worker")):
        env, self.region = dict(os.environ), None
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = str(gpu)
        if mode == "expandable":
            env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        if gib:
            folder = f"{work}/containers/{name}"
            subprocess.run([f"{work}/kit/mkshare", folder, str(int(gib * GIB)), "0"], check=True, env=env | ({"VGPU_EVICTABLE": "1"} if evictable else {}))
            self.region = f"{folder}/region"
            env.update(VGPU_DIR=folder, LD_PRELOAD=f"{work}/kit/libvgpu.so")
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ready(self):
        self.process.stdout.readline()
        return self

    def ask(self, *words):
        self.tell(*words)
        return self.hear()

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"answer": "ended", "seconds": float("nan")}

    def moves(self):
        """Formats how often, and how fast, its memory has moved so far."""
        with open(self.region, "rb") as region:
            figures = struct.unpack_from("<6Q", region.read(MOVES + 48), MOVES)
        return ", ".join(f"{name} {count} times, {size / GIB:.1f} GiB in {took / 1e9:.2f} s"
                         for name, (count, size, took) in (("out", figures[:3]), ("in", figures[3:])))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def start(work, count, gib, modes=("caching",), **options):
    """Starts so many programs with each allocator at the same time."""
    programs = [Program(work, f"{time.monotonic_ns()}", gib, mode=mode, **options) for mode in modes for _ in range(count)]
    return [program.ready() for program in programs]


def free_gib(gpu=os.environ.get("CUDA_VISIBLE_DEVICES", "0")):
    words = ["nvidia-smi", "-i", str(gpu), "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]) / 1024


def idle(work):
    print("| allocator, move | out for another's allocation, s | first call afterwards, s | the same while resident, s |\n|---|---|---|---|", flush=True)
    return sum(idle_with(work, mode) for mode in ("caching", "expandable"))


def idle_with(work, mode):
    free = free_gib()
    (one,), (other,) = start(work, 1, 40, [mode]), start(work, 1, free)
    one.ask("take", 16)
    resident = min(one.ask("touch")["seconds"] for _ in range(20))
    for move in range(4):
        time.sleep(9 if move == 0 else 3)
        out = other.ask("take", free - 8)["answer"]
        other.ask("free")
        back = one.ask("touch")["seconds"]
        print(f"| {mode}, {move + 1} | {out if isinstance(out, str) else f'{out:.3f}'} | {back:.3f} | {resident:.6f} |", flush=True)
    wrong = one.ask("check")["answer"]
    print(f"\nMoves: {one.moves()}.", flush=True)
    print(f"\nBlocks with a wrong word: {wrong}", flush=True)
    one.end(), other.end()
    return wrong != 0


def filler(work, gib):
    """Takes all but so much of the GPU, without the library."""
    program = Program(work, "filler").ready()
    program.ask("take", free_gib() - gib)
    return program


def two(work):
    return train(work, ("caching", "graph"), 16)


def expandable(work):
    return train(work, ("expandable", "expandable"), 16)


def three(work):
    return train(work, ("caching", "graph", "expandable"), 20)


def train(work, modes, seconds):
    each, room = 20, 34
    rest = filler(work, room)
    alone, results, steps = 0.0, [], []
    for program, mode in zip(start(work, 1, None, modes), modes):
        program.ask("take", each)
        program.ask("train", mode, 5)
        steps.append(int(seconds * 20 / program.ask("train", mode, 20)["seconds"]))
        answer = program.ask("train", mode, steps[-1])
        alone += answer["seconds"]
        results.append(answer["answer"])
        program.end()
    programs = start(work, 1, 30, modes)
    for program, mode in zip(programs, modes):
        for command in (("take", each), ("train", mode, 5), ("train", mode, 20)):
            program.ask(*command)
    begin = time.monotonic()
    for program, mode, count in zip(programs, modes, steps):
        program.tell("train", mode, count)
    answers = [program.hear()["answer"] for program in programs]
    together = time.monotonic() - begin
    print(f"\nTraining programs ({', '.join(modes)}) with {each} GiB each where {room} GiB are left: alone one after the other {alone:.1f} s, "
          f"together {together:.1f} s, ratio {alone / together:.3f}; results as alone: {answers == results}", flush=True)
    for program in programs:
        print(f"* {program.moves()}")
    if answers != results:
        print(answers, results)
    for program in programs + [rest]:
        program.end()
    return answers != results


def notebooks(work):
    return ask_now_and_then(work, 6, 8, 22, pause=12, seconds=45)


def eight(work):
    """Needs 256 GiB of host memory."""
    return ask_now_and_then(work, 8, 28, 62, pause=59, seconds=200)


def ask_now_and_then(work, count, each, room, pause, seconds):
    rest = filler(work, room)
    programs = start(work, count, each + 8)
    for program in programs:
        program.ask("take", each)
    programs[-1].ask("touch")
    resident = programs[-1].ask("touch")["seconds"]
    # Each makes its host memory while it is idle.
    time.sleep(12)
    waits, end, lock = [], time.monotonic() + seconds, threading.Lock()

    def use(program, seed):
        chance = random.Random(seed)
        while time.monotonic() + (rests := chance.expovariate(1 / pause)) < end:
            time.sleep(rests)
            wait = program.ask("touch")["seconds"]
            program.ask("work", 1)
            with lock:
                waits.append(wait)

    threads = [threading.Thread(target=use, args=(program, seed)) for seed, program in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = sum(program.ask("check")["answer"] != 0 for program in programs)
    waits.sort()
    at = [waits[min(len(waits) - 1, int(part * len(waits)))] for part in (0.5, 0.95, 1)]
    print(f"\n{count} notebooks of {each} GiB where {room} GiB are left, a second of work each {pause + 1} s: {len(waits)} waits for memory, median "
          f"{at[0]:.3f} s, 95th percentile {at[1]:.3f}, longest {at[2]:.3f}; resident {resident:.6f}; programs with a wrong word: {wrong}", flush=True)
    for program in programs:
        print(f"* {program.moves()}")
    for program in programs + [rest]:
        program.end()
    return wrong


def peers(work):
    """Needs two GPUs."""
    one, = start(work, 1, 24)
    one.ask("span", 16)
    others = [start(work, 1, free_gib(gpu) + 8, gpu=gpu)[0] for gpu in (0, 1)]
    copies = wrong = 0
    for number in range(8):
        answer = one.ask("exchange", 1)["answer"]
        copies, wrong = copies + answer[0], wrong + answer[1]
        time.sleep(2)
        other = others[number % 2]
        other.ask("take", free_gib(number % 2) + 4)
        other.ask("free")
    wrong += one.ask("check")["answer"]
    print(f"\nA program with 8 GiB on each of two GPUs, one of which another needs: {copies} copies between the two, with a wrong word: {wrong}")
    print(f"* on the first: {one.moves()}")
    for program in [one] + others:
        program.end()
    return wrong


def swap(work):
    each, room = 40, 46
    rest = filler(work, room)
    programs = start(work, 2, 60)
    for program in programs:
        program.ask("take", each)
    waits = []
    for number in range(8):
        # At first longer than host memory takes to make.
        time.sleep(14 if number == 0 else 4)
        waits.append(programs[number % 2].ask("touch")["seconds"])
    wrong = sum(program.ask("check")["answer"] != 0 for program in programs)
    print(f"\nTwo programs of {each} GiB where {room} GiB are left, in turn: waits of {', '.join(f'{wait:.2f}' for wait in waits)} s; programs with "
          f"a wrong word: {wrong}")
    for program in programs:
        print(f"* {program.moves()}", flush=True)
    for program in programs + [rest]:
        program.end()
    return wrong


def frameworks(work):
    commands = {name: [sys.executable, __file__, name] for name in FRAMEWORKS}
    if "LLAMA" in os.environ:
        commands["llama.cpp"] = os.environ["LLAMA"].split()
    wrong, rest = 0, filler(work, 34)
    other, = start(work, 1, 40)
    print("\n| program | as natively | moves |\n|---|---|---|")
    for name, command in commands.items():
        native = Program(work, name, command=command).process.communicate()[0]
        program = Program(work, name, 30, command=command)
        while program.process.poll() is None:
            other.ask("take", 32)
            other.ask("free")
            time.sleep(0.3)
        same, moves = native == program.process.stdout.read() != "", program.moves()
        wrong += not same or moves.startswith("out 0 times")
        print(f"| {name} | {same} | {moves} |", flush=True)
    other.end(), rest.end()
    return wrong


def fits(work):
    print("\n| program | allocate and free 2 MiB, us | 64 MiB, us | a launch, us | training step, us |\n|---|---|---|---|---|", flush=True)
    for _ in range(3):
        for name, options in (("not evictable", {"evictable": False}), ("evictable", {})):
            program, = start(work, 1, 30, **options)
            figures = program.ask("costs")["answer"]
            print(f"| {name} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |", flush=True)
            program.end()
    return 0


def check(work, *parts):
    os.makedirs(f"{work}/containers")
    arbiter = subprocess.Popen([f"{work}/kit/vgpu-bench", "arbiter", f"{work}/containers"], stdin=subprocess.PIPE)
    wrong = sum(globals()[part](work) for part in parts or PARTS)
    arbiter.communicate()
    return wrong != 0


if __name__ == "__main__":
    sys.exit(check(*sys.argv[2:]) if sys.argv[1] == "check" else (FRAMEWORKS | {"worker": worker})[sys.argv[1]]())

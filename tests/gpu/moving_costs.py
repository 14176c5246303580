#!/usr/bin/env python3
"""Measures what moving memory costs beside other work, on a machine with a GPU.

    moving_costs.py mapping        mapping memory while other processes copy. Set LD_PRELOAD and VGPU_DIR to measure with the library
    moving_costs.py registering    registering host memory beside a training loop (PyTorch), natively
"""
import ctypes
import multiprocessing
import sys
import threading
import time

cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
MIB, GIB = 1 << 20, 1 << 30
SIZE, ADDRESS, POINTER = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p


class Properties(ctypes.Structure):
    """CUmemAllocationProp of pinned memory on the first device."""
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int * 2), ("rest", ctypes.c_ubyte * 48)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""
    _fields_ = [("location", ctypes.c_int * 2), ("flags", ctypes.c_int)]


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


def begin():
    device, context = ctypes.c_int(), POINTER()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)


def copier(ways, ready, end, rate):
    """Copies 2 GiB to the host ("out"), to the GPU ("in"), or both ways, again and again. Tells how fast."""
    begin()
    size, sides = 2 * GIB, []
    for _ in ways:
        host, memory, stream = POINTER(), ADDRESS(), POINTER()
        call("cuMemHostAlloc", ctypes.byref(host), SIZE(size), 1)
        call("cuMemAlloc_v2", ctypes.byref(memory), SIZE(size))
        call("cuStreamCreate", ctypes.byref(stream), 1)
        sides.append((host.value, memory.value, stream))
    ready.set()
    copied, since = 0, time.monotonic()
    while not end.is_set():
        for at in range(0, size, 256 * MIB):
            for way, (host, memory, stream) in zip(ways, sides):
                if way == "out":
                    call("cuMemcpyDtoHAsync_v2", POINTER(host + at), ADDRESS(memory + at), SIZE(256 * MIB), stream)
                else:
                    call("cuMemcpyHtoDAsync_v2", ADDRESS(memory + at), POINTER(host + at), SIZE(256 * MIB), stream)
        call("cuCtxSynchronize")
        copied += size
    rate.put(copied / (time.monotonic() - since) / 1e9)


def map_blocks(size, total, rounds=3):
    """Creates, maps and releases blocks. Returns median and maximum of what cuMemSetAccess takes, in µs."""
    properties, access, start, times = Properties(1, 0, (1, 0)), Access((1, 0), 3), ADDRESS(), []
    call("cuMemAddressReserve", ctypes.byref(start), SIZE(total), SIZE(0), ADDRESS(0), ADDRESS(0))
    for _ in range(rounds):
        handles = []
        for at in range(start.value, start.value + total, size):
            handles.append(ADDRESS())
            call("cuMemCreate", ctypes.byref(handles[-1]), SIZE(size), ctypes.byref(properties), ADDRESS(0))
            call("cuMemMap", ADDRESS(at), SIZE(size), SIZE(0), handles[-1], ADDRESS(0))
            since = time.perf_counter()
            call("cuMemSetAccess", ADDRESS(at), SIZE(size), ctypes.byref(access), SIZE(1))
            times.append(time.perf_counter() - since)
        for number, handle in enumerate(handles):
            call("cuMemUnmap", ADDRESS(start.value + number * size), SIZE(size))
            call("cuMemRelease", handle)
    call("cuMemAddressFree", start, SIZE(total))
    return sorted(times)[len(times) // 2] * 1e6, max(times) * 1e6


def mapping():
    multiprocessing.set_start_method("spawn")
    begin()
    print("| other processes copy | access to a block of 64 MiB, us (median, maximum) | of 2 MiB | they copy, GB/s each way |\n|---|---|---|---|")
    for others in ((), ("out",), ("out in",), ("out", "out")):
        copiers = []
        for ways in others:
            ready, end, rate = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Queue()
            process = multiprocessing.Process(target=copier, args=(ways.split(), ready, end, rate))
            process.start()
            ready.wait()
            copiers.append((process, end, rate))
        figures = [map_blocks(size, total) for size, total in ((64 * MIB, 4 * GIB), (2 * MIB, GIB))]
        for _, end, _ in copiers:
            end.set()
        rates = ", ".join(f"{rate.get():.1f}" for *_, rate in copiers)
        for process, *_ in copiers:
            process.join()
        cells = " | ".join(f"{median:.0f}, {longest:.0f}" for median, longest in figures)
        print(f"| {' and '.join(others) or 'nothing'} | {cells} | {rates} |", flush=True)


def registering():
    import loops
    import torch
    step, count, is_over = loops.make()["train"](), [0], threading.Event()

    def train():
        torch.cuda.set_device(0)
        while not is_over.is_set():
            step()
            torch.cuda.synchronize()
            count[0] += 1

    def rate(work):
        steps, since = count[0], time.monotonic()
        work()
        return (count[0] - steps) / (time.monotonic() - since), time.monotonic() - since

    libc.mmap.restype = POINTER
    libc.mmap.argtypes = [POINTER, SIZE] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.madvise.argtypes = [POINTER, SIZE, ctypes.c_int]
    libc.memset.argtypes = [POINTER, ctypes.c_int, SIZE]
    for _ in range(50):
        step()
    thread = threading.Thread(target=train)
    thread.start()
    print("| 10 GiB of host memory | s | steps a second before | meanwhile |\n|---|---|---|---|")
    for name, touches in (("registered", False), ("touched and registered", True)) * 2:
        # Private, anonymous, huge pages.
        start = libc.mmap(None, 10 * GIB, 3, 0x22, -1, 0)
        libc.madvise(start, 10 * GIB, 14)

        def register():
            for at in range(start, start + 10 * GIB, 64 * MIB):
                if touches:
                    libc.memset(at, 0, 64 * MIB)
                call("cuMemHostRegister_v2", POINTER(at), SIZE(64 * MIB), 1)

        before, _ = rate(lambda: time.sleep(1))
        meanwhile, seconds = rate(register)
        print(f"| {name} | {seconds:.2f} | {before:.0f} | {meanwhile:.0f} |", flush=True)
        for at in range(start, start + 10 * GIB, 64 * MIB):
            call("cuMemHostUnregister", POINTER(at))
        libc.munmap(POINTER(start), SIZE(10 * GIB))
    is_over.set()
    thread.join()


if __name__ == "__main__":
    {"mapping": mapping, "registering": registering}[sys.argv[1]]()

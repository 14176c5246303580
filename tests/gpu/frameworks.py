#!/usr/bin/env python3
"""Frameworks that reach the driver in different ways: linked, by dlopen, by cuGetProcAddress, with kernels compiled at run time.

    frameworks.py check FOLDER [PART]...    runs the parts natively and limited, with the containers' files in FOLDER, and prints a table
    frameworks.py PART                      computes, works for a while, allocates until refused; prints one line of JSON, then waits

A part returns functions: one step of work, wait for all steps, allocate a number of bytes, the exception for out of memory, the result of
the steps, and the total memory (or None).
"""
import json
import os
import subprocess
import sys
import time

GIB = 1 << 30
LIMIT, PERCENT = 4 * GIB, 50
CHUNK = 32 << 20
SECONDS = 2.0
SIZE = 2048


def with_jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "1.0"
    import jax
    import jax.numpy as jnp
    matrix = jax.random.normal(jax.random.key(0), (SIZE, SIZE))

    def chain(x):
        for _ in range(8):
            x = (x @ matrix) * 2e-2
        return x

    # Several products in one step: XLA takes longer on the host for a step than the GPU for one product.
    product = jax.jit(chain)
    state = {"x": matrix}

    def step():
        state["x"] = product(matrix)

    return step, lambda: state["x"].block_until_ready(), lambda size: jnp.zeros(size, jnp.uint8).block_until_ready(), \
        jax.errors.JaxRuntimeError, lambda: float(state["x"][0, 0]), None


def with_cupy():
    import cupy
    add = cupy.RawKernel('extern "C" __global__ void add(float *x, int n) {'
                         ' int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) for (int k = 0; k < 500; k++) x[i] = x[i] * 0.5f + 1; }', "add")
    x = cupy.arange(1 << 22, dtype=cupy.float32)
    return lambda: add(((1 << 22) // 256,), (256,), (x, 1 << 22)), cupy.cuda.Device().synchronize, \
        lambda size: cupy.empty(size, cupy.uint8), cupy.cuda.memory.OutOfMemoryError, lambda: float(x[5]), lambda: cupy.cuda.Device().mem_info[1]


def with_numba():
    import numpy
    # numba still uses this alias.
    numpy.row_stack = numpy.vstack
    from numba import cuda

    @cuda.jit
    def add(x):
        i = cuda.grid(1)
        if i < x.size:
            for _ in range(500):
                x[i] = x[i] * numpy.float32(0.5) + numpy.float32(1)

    x = cuda.to_device(numpy.arange(1 << 22, dtype=numpy.float32))
    return lambda: add[(1 << 22) // 256, 256](x), cuda.synchronize, lambda size: cuda.device_array(size, numpy.uint8), \
        Exception, lambda: float(x.copy_to_host()[5]), lambda: cuda.current_context().get_memory_info()[1]


def with_triton():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        value = tl.load(x + at, mask=at < n)
        for _ in range(500):
            value = value * 0.5 + 1
        tl.store(x + at, value, mask=at < n)

    x = torch.arange(1 << 25, dtype=torch.float32, device="cuda")
    return lambda: add[(triton.cdiv(1 << 25, 1024),)](x, 1 << 25, block=1024), torch.cuda.synchronize, \
        lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"), torch.OutOfMemoryError, lambda: float(x[5]), \
        lambda: torch.cuda.mem_get_info()[1]


def with_bindings():
    from cuda.bindings import driver

    def check(answer):
        if answer[0] != driver.CUresult.CUDA_SUCCESS:
            raise MemoryError(answer[0].name)
        return answer[1] if len(answer) == 2 else answer[1:]

    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    size = 1 << 28
    one, other = (check(driver.cuMemAlloc(size)) for _ in range(2))
    check(driver.cuMemsetD8(one, 7, size))
    result = bytearray(4)

    def value():
        check(driver.cuMemcpyDtoH(result, other, 4))
        return float(result[0])

    return lambda: check(driver.cuMemcpyDtoDAsync(other, one, size, 0)), lambda: check(driver.cuCtxSynchronize()), \
        lambda bytes: check(driver.cuMemAlloc(bytes)), MemoryError, value, lambda: check(driver.cuMemGetInfo())[1]


PARTS = {"JAX": with_jax, "CuPy": with_cupy, "Numba": with_numba, "Triton": with_triton, "cuda.bindings": with_bindings}


def work(part):
    step, wait, take, refusal, value, total = PARTS[part]()

    def rate(seconds):
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            for _ in range(8):
                step()
            wait()
            count += 8
        return count / (time.monotonic() - begin)

    rate(1.0)
    output = {"rate": rate(SECONDS), "value": value(), "total": total and total(), "refused": "no"}
    kept = []
    # Natively the GPU need not be filled.
    while len(kept) * CHUNK < 2 * LIMIT:
        try:
            kept.append(take(CHUNK))
        except refusal as error:
            output["refused"] = f"{type(error).__name__}: {str(error)[:40]}"
            break
    output["obtained"] = len(kept) * CHUNK
    print(json.dumps(output), flush=True)
    sys.stdin.readline()


def held():
    """Returns the MiB that NVML lists for all processes."""
    words = ["nvidia-smi", "--query-compute-apps=used_memory", "--format=csv,noheader,nounits"]
    return sum(int(line) for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def run(part, folder=None):
    """Runs a part. Returns its output and the MiB that NVML listed while it held its memory."""
    environment = dict(os.environ)
    if folder:
        environment.update(VGPU_DIR=folder, LD_PRELOAD=f"{os.path.dirname(folder)}/libvgpu.so")
    process = subprocess.Popen([sys.executable, __file__, part], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    line = next((line for line in process.stdout if line.startswith("{")), None)
    seen = held() if line else 0
    process.communicate("\n")
    return (json.loads(line) if line else {}), seen


def check(work, *parts):
    wrong = 0
    print("| | result natively, limited | total, MiB | share of 50% | obtained, MiB | NVML, MiB | error | |\n|---|---|---|---|---|---|---|---|")
    for part in parts or PARTS:
        folder = f"{work}/{part}"
        subprocess.run([f"{work}/mkshare", folder, str(LIMIT), str(PERCENT)], check=True, stdout=sys.stderr)
        (native, _), (ours, seen) = run(part), run(part, folder)
        share = ours.get("rate", 0) / native.get("rate", 1)
        # Matrix products keep an H200 at its power limit natively, so half the time does more than half of the work.
        max_share = 0.61 if part == "JAX" else 0.56
        # NVML may list less than the limit: the remainder when 32 MiB are refused, and memory that the framework reserves.
        right = native and ours and native["value"] == ours["value"] and ours["total"] in (None, LIMIT) and 0.44 < share < max_share \
            and ours["refused"] != "no" and (LIMIT >> 20) - 160 <= seen <= LIMIT >> 20
        wrong += not right
        print(f"| {part} | {native.get('value')}, {ours.get('value')} | {(ours.get('total') or 0) >> 20 or '-'} | {share:.3f} | "
              f"{ours.get('obtained', 0) >> 20} | {seen} | {ours.get('refused')} | {'ok' if right else '**wrong**'} |", flush=True)
    return wrong != 0


if __name__ == "__main__":
    sys.exit(check(*sys.argv[2:]) if sys.argv[1] == "check" else work(sys.argv[1]))

#!/usr/bin/env python3
"""Trains with one of PyTorch's memory backends, then allocates until refused, and trains again.

    torch_train.py MODE [--fill]    MODE: caching, expandable, async or graph. Prints one line of JSON.

The loss must not depend on a limit. With --fill it allocates the remaining memory and prints the error and the free memory.
"""
import json
import os
import sys

MODES = {"caching": "", "graph": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
STEPS = 50
CHUNK = 16 << 20

mode = sys.argv[1]
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = MODES[mode]
import loops
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
inputs, targets = torch.randn(4096, 2048, device="cuda"), torch.randn(4096, 2048, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=False)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


if mode == "graph":
    loops.warm(step, 3)
    graph, loss = loops.capture(step)
    for _ in range(STEPS - 3):
        graph.replay()
else:
    for i in range(STEPS):
        # Temporary tensors of changing sizes make the allocator split, grow and release memory.
        temporary = torch.empty((i % 7 + 1) << 22, device="cuda")
        loss = step()
        del temporary
torch.cuda.synchronize()
output = {"mode": mode, "loss": loss.item(), "reserved": torch.cuda.memory_reserved()}
if "--fill" in sys.argv:
    kept = []
    try:
        while len(kept) * CHUNK < 16 << 30:
            kept.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
        output["refused"] = "no"
    except Exception as refused:
        output["refused"] = type(refused).__name__
    output["obtained"], output["free"] = len(kept) * CHUNK, torch.cuda.mem_get_info()[0]
    kept.clear()
    torch.cuda.empty_cache()
    output["after"] = step().item()
print(json.dumps(output))

"""A PyTorch program: queries the memory, computes something, and allocates until it is refused.

Prints one line of JSON like the test program `fill`, in bytes.
"""

import json

import torch

CHUNK = 16 << 20

before, total = torch.cuda.mem_get_info()
a = torch.arange(1 << 16, device="cuda", dtype=torch.float32)
right = bool((a * 2).sum().item() == 2 * sum(range(1 << 16)))
kept, error, message = [], "none", ""
try:
    while len(kept) * CHUNK < 4 << 30:
        kept.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as refused:
    error, message = type(refused).__name__, str(refused)
obtained = len(kept) * CHUNK
# Its memory must still work after the refusal, and freed memory can be allocated again.
kept[0].fill_(7)
alive = kept[0][-1].item() == 7
half = len(kept) // 2
del kept[half:]
torch.cuda.empty_cache()
again = torch.empty((len(range(half)) // 2) * CHUNK, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info()
print(json.dumps({
    "api": f"PyTorch {torch.__version__}", "obtained": obtained, "error": error, "free": free, "free_before": before, "total": total,
    "property_total": torch.cuda.get_device_properties(0).total_memory, "works": right and alive, "message": message,
}))

#!/usr/bin/env python3
"""since.py: writes since.txt, the functions that came after CUDA 11.4 with the CUDA version that brought them, times 1000. face.py reads it.

The versions of the driver's functions are those of the types PFN_cuNAME_vVERSION in cudaTypedefs.h of CUDA 13.5: the newest is the type of the
form with the highest _vN. Those of NVML are by nvidia-ml-py 11.470.66 and 12.535.133, which name the functions of drivers 470 and 535."""

import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
SURFACE = HERE.parent / "surface"
sys.path.insert(0, str(SURFACE))
import newer  # noqa: E402

NVML = {
    name: 12020
    for name in [
        "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetRunningProcessDetailList",
    ]
}
# Functions of a driver newer than all that vgpu knows, which only the simulated one has.
TOMORROW = ["cuLaunchTomorrow", "cuMemAlloc_v3", "cuTomorrow", "nvmlDeviceGetMemoryInfo_v3"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        text = newer.header("nvidia-cuda-runtime", "cudaTypedefs.h", newer.VERSIONS[-1], pathlib.Path(folder))
    versions = {}
    for name, version in re.findall(r"\bPFN_(cu\w+?)_v(\d{4,5})\)", text):
        versions.setdefault(name, set()).add(int(version))
    forms = {}
    for path in [SURFACE / "driver-580" / "cuda.txt", SURFACE / "cuda-13.5" / "cuda.txt"]:
        for name in (line.split()[0] for line in path.read_text().splitlines()):
            base, number = re.fullmatch(r"(\w+?)(?:_v(\d))?(?:_pt[sd][sz])?", name).groups()
            forms.setdefault(base, {}).setdefault(int(number or 1), []).append(name)
    since = dict(NVML) | {name: 13060 for name in TOMORROW}
    for base, numbers in forms.items():
        for number, version in zip(sorted(numbers, reverse=True), sorted(versions.get(base, ()), reverse=True)):
            since |= {name: version for name in numbers[number] if version > 11040}
    (HERE / "since.txt").write_text("".join(f"{name} {version}\n" for name, version in sorted(since.items())))


if __name__ == "__main__":
    main()

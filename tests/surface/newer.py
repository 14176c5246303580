#!/usr/bin/env python3
"""newer.py [FOLDER]: lists the functions that the headers of CUDA 13.1 and later declare and driver 580 does not export, with the first CUDA
version that declares them, in FOLDER/cuda.txt and FOLDER/nvml.txt (default: the folder cuda-13.5 beside this script).

The headers come from the packages nvidia-cuda-runtime and nvidia-nvml-dev of the Python registry, by pip. For a later CUDA: add its version
to VERSIONS, run this with a new folder, name that folder in src/main.rs, and classify what `cargo run -p vgpu-surface -- check` lists."""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

VERSIONS = ["13.1", "13.2", "13.3", "13.4", "13.5"]
HEADERS = {"cuda": ("nvidia-cuda-runtime", "cuda.h"), "nvml": ("nvidia-nvml-dev", "nvml.h")}
HERE = pathlib.Path(__file__).parent


def header(package, name, version, folder):
    """Returns the text of a header of the last package of a CUDA version."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    subprocess.run([*command, "--platform=manylinux2014_x86_64", f"{package}=={version}.*"], check=True, stdout=subprocess.DEVNULL)
    wheel = next(folder.glob(f"{package.replace('-', '_')}-{version}.*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(member for member in archive.namelist() if member.endswith(f"/include/{name}"))
        return archive.read(member).decode()


def functions(library, text):
    """Returns the names of the symbols that a header's functions have."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    if library == "nvml":
        return set(re.findall(r"\bDECLDIR\s+(nvml\w+)\s*\(", text))
    names = set(re.findall(r"\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(", text))
    for kind, name in re.findall(r"__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)", text):
        names.add(f"{name}_{kind.lower()}")
    return names


def main():
    to = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "cuda-13.5"
    to.mkdir(exist_ok=True)
    for library, (package, name) in HEADERS.items():
        known = set((HERE / "driver-580" / f"{library}.txt").read_text().split())
        lines = []
        with tempfile.TemporaryDirectory() as folder:
            for version in VERSIONS:
                new = functions(library, header(package, name, version, pathlib.Path(folder))) - known
                known |= new
                lines += [f"{function} {version}" for function in sorted(new)]
        (to / f"{library}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

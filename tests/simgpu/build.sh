#!/bin/sh
# Builds the simulated GPU and the test programs for glibc 2.17 and copies them into one folder, under the names that programs load, and
# for each other driver that it plays (face.py) into FOLDER-DRIVER:
#     tests/simgpu/build.sh [FOLDER]     (default: target/simgpu)
# Run a program on it with LD_LIBRARY_PATH=FOLDER; set SIMGPU_STATE=FILE to use a separate machine.
set -eu
cd "$(dirname "$0")/../.."
. scripts/tools.sh
zigbuild
triple=x86_64-unknown-linux-gnu
built=$CARGO_TARGET_DIR
folder=${1:-$built/simgpu}
cargo zigbuild --quiet --release --target $triple.2.17 -p simgpu-cuda -p simgpu-nvml -p simgpu-device -p vgpu-test-programs
packages python3:python3
mkdir -p "$folder" "$folder/built"
for pair in libsimgpu_cuda.so:built/libcuda.so.1 libsimgpu_nvml.so:built/libnvidia-ml.so.1 simgpu-ctl:simgpu-ctl fill:fill race:race spin:spin conformance:conformance; do
    # Replaced by rename, so that a process that has the old file mapped keeps it.
    cp "$built/$triple/release/${pair%%:*}" "$folder/.new"
    mv "$folder/.new" "$folder/${pair##*:}"
done
tests/simgpu/face.py 580 "$folder/built" "$folder"
for driver in 470 535 next; do
    tests/simgpu/face.py $driver "$folder/built" "$folder-$driver"
    for program in simgpu-ctl fill race spin conformance; do
        ln -f "$folder/$program" "$folder-$driver"
    done
done
rm -r "$folder/built"
echo "$folder"

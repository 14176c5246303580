#!/bin/sh
# Builds the simulated GPU and the test programs for glibc 2.17 and copies them into one folder, under the names that programs load:
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
mkdir -p "$folder"
for pair in libsimgpu_cuda.so:libcuda.so.1 libsimgpu_nvml.so:libnvidia-ml.so.1 simgpu-ctl:simgpu-ctl fill:fill race:race spin:spin conformance:conformance; do
    # Replaced by rename, so that a process that has the old file mapped keeps it.
    cp "$built/$triple/release/${pair%%:*}" "$folder/.${pair##*:}.new"
    mv "$folder/.${pair##*:}.new" "$folder/${pair##*:}"
done
echo "$folder"

#!/bin/sh
# scale.sh [CONTAINERS...]: measures the host's side with many containers on a simulated GPU (default: 10, 100, 500 and 1000), as root with
# runc. Writes a table in Markdown to stdout and to tests/e2e/results/scale.md. 1,000 containers take about ten minutes and 8 GiB.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc:runc
kit=$(scripts/build.sh)
cargo build --quiet --release -p vgpu-cli -p vgpu-e2e --bin vgpu --bin vgpu-scale
cargo build --quiet --release -p vgpu-monitor --example look
cp "$target/release/vgpu" "$kit/.new"
mv "$kit/.new" "$kit/vgpu"
mkdir -p tests/e2e/results
{
    results_header 'The host with many containers' 'make scale' "load $(cut -d ' ' -f 1 /proc/loadavg) at the start" \
        "$(runc --version | head -n 1)"
    VGPU_TEST_KIT=$kit "$target/release/vgpu-scale" "$target/release/examples/look" "$@"
} | tee tests/e2e/results/scale.md

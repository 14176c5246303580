#!/bin/sh
# Runs the conformance program on the simulated driver and diffs its answers against those recorded from an H200. The H200 is right.
#     tests/simgpu/conformance.sh [RECORDED]     (default: tests/gpu/results/conformance-h200.txt)
set -eu
cd "$(dirname "$0")/../.."
recorded=${1:-tests/gpu/results/conformance-h200.txt}
folder=$(tests/simgpu/build.sh)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
LD_LIBRARY_PATH=$folder SIMGPU_STATE=$scratch/gpu "$folder/conformance" | grep -v '^# ' >"$scratch/here"
grep -v '^# ' "$recorded" >"$scratch/there"
diff -u --label "$recorded" --label simulator "$scratch/there" "$scratch/here"

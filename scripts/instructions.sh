#!/bin/sh
# instructions.sh BASE: counts the instructions that calls execute inside libvgpu.so, with the library of the git revision BASE and with this
# tree's, on the simulated GPU (tests/programs/src/bin/instructions.rs). Prints both, and exits with 1 if any count grew. Everything but the
# library is this tree's for both. Needs an x86-64 machine, and ptrace.
set -eu
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: $0 BASE" >&2; exit 2; }
base=$(git rev-parse --verify "$1^{commit}")
. scripts/tools.sh
packages cc:gcc libc6-dev
zigbuild

folder=$target/instructions
remove() {
    git worktree remove --force "$folder/tree" 2>/dev/null || rm -rf "$folder/tree"
}
mkdir -p "$folder/base" "$folder/now" "$folder/simgpu"
remove
trap remove EXIT
git worktree add --quiet --force --detach "$folder/tree" "$base"

echo "building the libraries" >&2
library
cp "$target/x86_64-unknown-linux-gnu/release/libvgpu.so" "$folder/now"
# In a folder of its own: cargo would take the build of one tree for the other's.
(cd "$folder/tree" && CARGO_TARGET_DIR="$folder/target-base" library)
cp "$folder/target-base/x86_64-unknown-linux-gnu/release/libvgpu.so" "$folder/base"
echo "building the simulated GPU and the program" >&2
built=$folder/target-tools
CARGO_TARGET_DIR=$built CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    cargo build --quiet --release -p simgpu-cuda -p simgpu-nvml -p vgpu-test-programs --lib --bin instructions
cp "$built/release/libsimgpu_cuda.so" "$folder/simgpu/libcuda.so.1"
cp "$built/release/libsimgpu_nvml.so" "$folder/simgpu/libnvidia-ml.so.1"

for name in base now; do
    rm -f "$folder/state"
    LD_LIBRARY_PATH="$folder/simgpu" SIMGPU_STATE="$folder/state" \
        "$built/release/instructions" --library "$folder/$name/libvgpu.so" >"$folder/$name.txt" || exit 2
done
paste "$folder/base.txt" "$folder/now.txt" | awk -F '\t' '
    $1 != $3 { print "the tables have other calls: " $1 ", " $3; exit 2 }
    { printf "%-45s %12s %12s  %s\n", $1, NR == 1 ? "base" : $2, NR == 1 ? "now" : $4, NR == 1 || $4 == $2 ? "" : sprintf("%+d", $4 - $2) }
    NR > 1 && $4 > $2 { grew++ }
    END { if (grew) { print grew " grew"; exit 1 } }'

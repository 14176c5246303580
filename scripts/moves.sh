#!/bin/sh
# moves.sh [MOVES]: moves a program's memory to the host and back, on the simulated GPU, while its threads check each word.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
VGPU_TEST_KIT=$(scripts/build.sh) VGPU_TEST_MOVES=${1:-10000} cargo test --release -p vgpu-e2e --test moves -- --nocapture every_word

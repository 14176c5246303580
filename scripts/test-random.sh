#!/bin/sh
# test-random.sh: runs the tests that draw their steps at random, with a seed from the clock. A failure prints the seed.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc:runc crun:crun busybox-static
export VGPU_TEST_SEED=random
cargo test -p vgpu-gpu-limiter --lib sim::properties
cargo test -p vgpu-config --lib decide::properties
VGPU_TEST_KIT=$(scripts/build.sh) cargo test -p vgpu-e2e --test accounts --test moves --test storm

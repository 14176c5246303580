#!/bin/sh
# demo.sh: builds the demonstration, which runs a container with limits on a GPU.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc:runc busybox-static
scripts/build.sh >/dev/null
cargo build --quiet -p vgpu-e2e --bin vgpu-demo
echo
exec "$target/debug/vgpu-demo"

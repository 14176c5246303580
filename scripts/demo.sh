#!/bin/sh
# demo.sh: builds what is needed, then starts a container with a share of a GPU and shows what that means.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc:runc busybox-static
scripts/build.sh >/dev/null
cargo build --quiet -p vgpu-e2e --bin vgpu-demo
echo
exec "$target/debug/vgpu-demo"

#!/bin/sh
# quickstarts.sh SUITE [SYSTEM…]: runs the book's quickstarts on a clean system of this release of Debian or Ubuntu, with a package of the
# tree. MIRROR is the release's archive. Requires root. `make test` does this with Debian.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages debootstrap:debootstrap busybox-static ip:iproute2 python3:python3
clean=$target/clean/$1
suite=$1
shift
[ -e "$clean/done" ] || packaging/clean.sh "$suite" "$clean"
rm -f packaging/out/vgpu_*_amd64.deb
cargo build --quiet -p vgpu-cli -p vgpu-dra
BUILT=$target/debug packaging/build.sh
packaging/package.sh deb
packaging/test-quickstarts.sh packaging/out/vgpu_*_amd64.deb "$clean" "$@"

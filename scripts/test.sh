#!/bin/sh
# test.sh: everything that CI runs. Quick the second time.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc crun busybox-static binutils
step() {
    echo
    echo "== $1"
}

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --quiet --workspace --all-targets -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps

step "build"
kit=$(scripts/build.sh)
echo "$kit"

step "the library loads anywhere"
scripts/check-library.sh "$kit/libvgpu.so"

step "tests"
# Those of real daemons install Docker, containerd and Podman, and run by themselves: tests/daemons.
export VGPU_TEST_KIT="$kit"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace --no-fail-fast
else
    cargo test --quiet --workspace --no-fail-fast
fi

#!/bin/sh
# test.sh: runs everything that CI runs. Later runs reuse the downloads and builds of the first.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc:runc crun:crun objdump:binutils busybox-static
# The daemons that vgpu registers with. Each test starts its own, with private folders.
packages containerd:containerd dockerd:docker.io podman:podman newuidmap:uidmap iptables:iptables containernetworking-plugins
packages debootstrap:debootstrap jq:jq ip:iproute2
helm
perfetto
browser
# A clean system for the packages, of the Debian whose Docker knows the annotations that the book shows. Its glibc is this machine's or a
# newer one, so it runs the programs that the tests ran. It is made meanwhile, as it mostly waits for the network.
suite=${SUITE:-trixie}
clean=$target/clean/$suite
[ -e "$clean/done" ] || packaging/clean.sh "$suite" "$clean" >"$target/clean-$suite.log" 2>&1 &
step() {
    echo
    echo "== $1"
}

step "format"
cargo fmt --all --check

step "charts"
scripts/charts.py --check

step "dependencies"
scripts/audit.py --self-test
scripts/audit.py
scripts/sbom.py --self-test

step "lints"
cargo clippy --quiet --workspace --all-targets -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
# libvgpu.so exports no Rust items, so its documentation is that of its private items.
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps -p vgpu-preload --document-private-items

step "book"
scripts/book.sh
packaging/quickstarts.py --check

step "build"
kit=$(scripts/build.sh)
echo "$kit"

step "library requirements"
scripts/check-library.sh "$kit/libvgpu.so"

step "conformance of the simulated GPU"
tests/simgpu/conformance.sh
echo "all results match tests/gpu/results/conformance-h200.txt"

# An older and a newer glibc, for tests with older and newer images. Without them, these tests are skipped.
glibcs=
for suite in bullseye trixie; do
    folder=$target/glibc/$suite
    if [ ! -e "$folder/done" ] && tests/daemons/newer.sh $suite "$folder" libc6 dash >"$target/glibc-$suite.log" 2>&1; then
        touch "$folder/done"
    fi
    [ ! -e "$folder/done" ] || glibcs=$glibcs:$folder
done

# A Docker with --annotation, and containerd 1.7 and 2. Without them, only the distribution's releases are tested.
releases=
for wanted in trixie:containerd,docker.io,docker-cli forky:containerd; do
    folder=$target/releases/${wanted%%:*}
    if [ ! -e "$folder/done" ] && tests/daemons/newer.sh "${wanted%%:*}" "$folder" $(echo "${wanted#*:}" | tr , ' ') >"$target/releases-${wanted%%:*}.log" 2>&1; then
        # A later suite may require a newer glibc than this machine's.
        ! "$folder/usr/bin/containerd" --version >>"$target/releases-${wanted%%:*}.log" 2>&1 || touch "$folder/done"
    fi
    [ ! -e "$folder/done" ] || releases=$releases${releases:+:}$folder
done
[ -n "$releases" ] || echo "SKIPPED: newer releases of the daemons; see $target/releases-*.log"

step "tests"
# Tests that need root and the daemons are ignored by default. Here all tests run.
export VGPU_TEST_KIT="$kit" VGPU_PROGRAMS="$kit" VGPU_TEST_GLIBCS="$glibcs" VGPU_TEST_RELEASES="$releases"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace --no-fail-fast --run-ignored all
else
    cargo test --quiet --workspace --no-fail-fast -- --include-ignored
fi

step "tests with an older and a newer driver"
# All tests with containers, but those that do the same with every driver. All functions that these call are in all of these drivers:
#   storm                        processes that are killed: whether the account gets their memory back
#   racing_*, threads_that_*     processes and threads that allocate at the same time: whether the account's total is exact
same="binary(storm) | test(=racing_processes_never_exceed_the_limit) | test(=racing_threads_that_share_granules_never_exceed_the_limit)
    | test(=threads_that_start_together_stay_within_the_limit)"
# `cargo test` takes no such expression, and runs a part.
every_test() {
    if cargo nextest --version >/dev/null 2>&1; then
        with_driver "$1" -p vgpu-e2e -E "not ($same)"
    else
        with_driver "$1" -p vgpu-e2e --test interception --test gpu_time --test memory --test runtime
    fi
}
with_driver() {
    driver=$1
    shift
    echo "driver $driver: $*"
    if cargo nextest --version >/dev/null 2>&1; then
        VGPU_TEST_DRIVER=$driver cargo nextest run --no-fail-fast --run-ignored all "$@"
    else
        VGPU_TEST_DRIVER=$driver cargo test --quiet --no-fail-fast "$@" -- --include-ignored
    fi
}
# The test programs need functions of CUDA 12, which driver 470 lacks, but for those that load the driver in each way.
with_driver 470 -p vgpu-e2e --test interception
with_driver 470 -p vgpu-cli --test check --test monitor
every_test 535
every_test next

step "package on a clean system"
# Without debootstrap's mirror, these tests are skipped.
wait
if [ -e "$clean/done" ]; then
    BUILT=$target/debug packaging/build.sh
    packaging/package.sh deb
    packaging/test-deb.sh packaging/out/vgpu_*_amd64.deb "$clean/root"
    packaging/test-repository.sh "$clean/root"
    step "the book's quickstarts on clean systems"
    packaging/test-quickstarts.sh packaging/out/vgpu_*_amd64.deb "$clean"
else
    echo "SKIPPED: debootstrap failed; see $target/clean-$suite.log"
fi

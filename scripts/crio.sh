#!/bin/sh
# crio.sh SOURCE: builds CRI-O from the checkout of its sources in the folder SOURCE, and runs pods in it through vgpu's handler and hooks,
# with runc and crun, on a simulated GPU and with each version of cgroups (tests/crio). As root. What is built stays in the target folder;
# the checkout is not changed. If all checks pass, the table is written to tests/crio/results.md.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
source=${1:-}
[ -n "$source" ] || {
    echo "expected CRIO_SOURCE, the folder of a checkout of CRI-O's sources (make test-crio CRIO_SOURCE=PATH)" >&2
    exit 2
}
for file in cmd/crio/main.go pinns/src/pinns.c vendor/modules.txt; do
    [ -f "$source/$file" ] || {
        echo "$source/$file not found: expected a checkout of CRI-O's sources, as of its tag v1.36.3 (CRIO_SOURCE)" >&2
        exit 2
    }
done
[ "$(id -u)" = 0 ] || { echo "test-crio needs root" >&2; exit 2; }
packages runc:runc crun:crun busybox-static conmon:conmon podman:podman cc:gcc libc6-dev pkg-config libseccomp-dev libsqlite3-dev
golang

# CRI-O, from its own vendored packages, without C libraries that these tests do not need. SQLite is the system's: the one among the
# vendored packages is a file of nine megabytes, which a mirror of the sources may lack.
out=$target/crio
tags="seccomp libsqlite3 exclude_graphdriver_btrfs btrfs_noversion containers_image_ostree_stub containers_image_openpgp"
mkdir -p "$out"
echo "building CRI-O in $out" >&2
(
    cd "$source"
    export GOCACHE="$out/cache" GOFLAGS=-mod=vendor GOTOOLCHAIN=local GOPROXY=off
    go build -trimpath -buildvcs=false -tags "$tags" -o "$out/crio" ./cmd/crio
)
cc -std=c99 -Os -o "$out/pinns" "$source"/pinns/src/*.c

kit=$(scripts/build.sh)
cargo build --quiet -p vgpu-cli --bin vgpu
cargo build --quiet -p vgpu-crio-tests
cp "$target/debug/vgpu" "$kit/.new"
mv "$kit/.new" "$kit/vgpu"

# Nothing is left on the machine, also after a failure: the mounts and processes are in namespaces that end, and empty cgroups are removed.
clean_up() {
    rm -rf /run/vgpu-crio-*
    find /sys/fs/cgroup -depth -type d \( -name crio -o -name 'crio-*' \) -exec rmdir {} + 2>/dev/null || true
}
trap clean_up EXIT

# with_cgroups VERSION: runs the checks in mount and PID namespaces of their own, in which only this version is mounted.
with_cgroups() {
    all=/sys/fs/cgroup
    case $1 in
        1)
            setup="if [ -d $all/unified ]; then umount $all/unified; fi"
            note=
            ;;
        2)
            setup="umount --recursive $all && mount -t cgroup2 cgroup2 $all"
            note=", without the controllers, which version 1 has on this machine"
            ;;
    esac
    if [ -f $all/cgroup.controllers ]; then
        [ "$1" = 2 ] || { echo "SKIPPED: cgroups version 1, as this machine has only version 2" >&2; return 0; }
        setup=: note=
    fi
    printf '\n## cgroups version %s%s\n\n' "$1" "$note"
    VGPU_TEST_KIT=$kit unshare --mount --pid --fork --kill-child --mount-proc \
        sh -c "$setup"' && exec "$@"' sh "$target/debug/vgpu-crio-tests" "$out"
}

begun=$(date +%s)
status=0
(
    # shellcheck disable=SC2046 # Words.
    results_header 'Pods of CRI-O' 'make test-crio CRIO_SOURCE=PATH' "CRI-O $("$out/crio" --version | cut -d ' ' -f 3 | head -n 1)" \
        "built with $(go version | cut -d ' ' -f 3)" "$(conmon --version | head -n 1)" "$(runc --version | head -n 1)" \
        "$(crun --version | head -n 1)"
    echo 'Containers are real, the GPU is simulated. Each figure is the time of a check that passed.'
    with_cgroups 1 || status=1
    with_cgroups 2 || status=1
    printf '\n%s s in all.\n' $(($(date +%s) - begun))
    exit "$status"
) >"$out/report.md" || status=$?
cat "$out/report.md"
[ "$status" = 0 ] && cp "$out/report.md" tests/crio/results.md
exit "$status"

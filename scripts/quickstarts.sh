#!/bin/sh
# quickstarts.sh SUITE [SYSTEM…]: runs the book's quickstarts on a clean system of this release of Debian or Ubuntu, with a package of the
# tree. MIRROR is the release's archive. Requires root. `make test` does this with Debian. A run of all systems writes the section of this
# release in tests/e2e/results/quickstarts.md.
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
log=$target/clean/$suite.log
status=0
{ packaging/test-quickstarts.sh packaging/out/vgpu_*_amd64.deb "$clean" "$@" || echo "failed: $suite"; } 2>&1 | tee "$log"
! grep -q "^failed: $suite\$" "$log" || status=1
[ $# = 0 ] || exit $status

# The section of this release is written again, the others stay.
results=tests/e2e/results/quickstarts.md
release=$(. "$clean/root/etc/os-release" && echo "$PRETTY_NAME")
version() { find "$clean/archives" -name "$1_*.deb" | sed "s,.*/$1_,,; s,^[0-9]*%3a,,; s,[_~+-].*,,; s,^,$1 ,"; }
{
    printf '# Quickstarts on clean systems\n\nEach system is a copy of the smallest one of the release (debootstrap), with a simulated GPU. On it, the commands of the pages that\n'
    printf '`packaging/quickstarts.py` lists for it ran one after the other, as the book shows them.\n'
    awk -v this="## $release" '/^## / { keep = $0 != this } keep' "$results" 2>/dev/null || true
    echo
    results_header "$release" "make quickstarts SUITE=$suite" "$(version docker.io)" "$(version podman)" "$(version containerd)" | sed 's/^# /## /'
    echo '| system | commands | took, s | result |'
    echo '|---|---|---|---|'
    awk '/^quickstart: / { show(); system_ = $2; run = ms = 0; result = "ok" }
        /^[0-9]+ ms: / { run++; ms += $1 }
        /^FAILED: / { result = "failed at " substr($2, 1, length($2) - 1) }
        END { show() }
        function show() { if (system_) printf "| %s | %d | %.0f | %s |\n", system_, run, ms / 1000, result }' "$log"
} >"$results.new"
mv "$results.new" "$results"
exit $status

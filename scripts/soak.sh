#!/bin/sh
# soak.sh [-t SECONDS] [-c CONTAINERS] [-s SEED] [-d FOLDER]: starts, changes, pauses, kills and deletes containers on a simulated GPU at
# random (default: 7200 s, about 50 containers, a seed from the clock), as root with runc, and with crun if it is installed. The monitor
# is killed every minute. Writes a report in Markdown to tests/e2e/results/soak.md, and all checkpoints to FOLDER/log. The programs are
# copied to FOLDER (default: soak in the target folder) first, so builds do not disturb the run. Exits with 1 if something was found.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
seconds=7200 containers=50 seed=$(date +%s) folder=$target/soak
while getopts t:c:s:d: option; do
    case $option in
        t) seconds=$OPTARG ;;
        c) containers=$OPTARG ;;
        s) seed=$OPTARG ;;
        d) folder=$OPTARG ;;
        *) echo "usage: soak.sh [-t SECONDS] [-c CONTAINERS] [-s SEED] [-d FOLDER]" >&2; exit 2 ;;
    esac
done
packages runc:runc busybox-static
kit=$(scripts/build.sh)
cargo build --quiet --release -p vgpu-cli -p vgpu-e2e --bin vgpu --bin vgpu-soak
mkdir -p "$folder/tmp"
rm -rf "$folder/kit"
cp -r "$kit" "$folder/kit"
cp "$target/release/vgpu" "$folder/kit/vgpu"
cp "$target/release/vgpu-soak" "$folder/vgpu-soak"
mkdir -p tests/e2e/results
status=0
{
    results_header 'A soak' 'make soak' "$(runc --version | head -n 1)"
    TMPDIR=$folder/tmp VGPU_TEST_KIT=$folder/kit "$folder/vgpu-soak" --seconds "$seconds" --containers "$containers" --seed "$seed" \
        --log "$folder/log" 2>"$folder/progress"
} >"$folder/report.md" || status=$?
cp "$folder/report.md" tests/e2e/results/soak.md
cat "$folder/report.md"
exit "$status"

#!/bin/sh
# page.sh cost [CONTAINERS]:    measures the monitor's web page beside CONTAINERS (default: 1000) on a simulated GPU. Writes a table in
#                               Markdown to stdout and to tests/e2e/results/page.md. 1,000 containers take ten minutes and 8 GiB.
# page.sh pictures [SECONDS]:   runs containers for SECONDS (default: 1800), and draws the page into docs/images.
# Both run as root with runc and Chromium.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages runc:runc chromium:chromium pngquant:pngquant
kit=$(scripts/build.sh)
cargo build --quiet --release -p vgpu-cli -p vgpu-e2e --bin vgpu --bin vgpu-page
folder=$target/page
rm -rf "$folder"
mkdir -p "$folder"
# A copy, so that builds do not disturb the run.
cp -r "$kit" "$folder/kit"
cp "$target/release/vgpu" "$folder/kit/vgpu"
cp "$target/release/vgpu-page" "$folder/vgpu-page"
case ${1:-} in
    cost)
        {
            results_header 'The web page of the monitor' 'scripts/page.sh cost' "load $(cut -d ' ' -f 1 /proc/loadavg) at the start" \
                "$(runc --version | head -n 1)" "$(chromium --version 2>/dev/null | cut -d ' ' -f 1-2)"
            VGPU_TEST_KIT=$folder/kit "$folder/vgpu-page" cost "${2:-1000}"
        } | tee "$folder/page.md"
        cp "$folder/page.md" tests/e2e/results/page.md
        ;;
    pictures)
        VGPU_TEST_KIT=$folder/kit "$folder/vgpu-page" pictures "$folder" "${2:-1800}"
        pngquant --force --ext .png --strip "$folder"/page-*.png
        cp "$folder"/page-*.png docs/images/
        ;;
    *)
        echo "usage: page.sh cost [CONTAINERS] | pictures [SECONDS]" >&2
        exit 2
        ;;
esac

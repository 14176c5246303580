#!/bin/sh
# fronts.sh FOLDER: builds the two libraries that are mounted over the driver's (policy intercept = "replace" or "both").
# They contain no code. Each has the name of a driver library, and depends on libvgpu.so and then on the driver's own library,
# by their paths in a container. A program that loads a front gets vgpu's functions first, then the driver's others.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
zigbuild
folder=$1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Folder of the libraries in a container, as in region/src/paths.rs.
inside=/usr/local/vgpu

link() {
    soname=$1
    shift
    python3 -m ziglang cc -target x86_64-linux-gnu.2.17 -shared -nostdlib -Wl,--no-as-needed -Wl,--hash-style=both -s \
        "-Wl,-soname,$soname" "$@" "$made/nothing.c"
}
echo >"$made/nothing.c"
mkdir -p "$folder"
# Empty libraries to link to; only their names matter.
link "$inside/libvgpu.so" -o "$made/libvgpu.so"
for name in libcuda.so.1 libnvidia-ml.so.1; do
    link "$inside/driver/$name" -o "$made/driver-$name"
    link "$name" -o "$folder/.$name.new" "$made/libvgpu.so" "$made/driver-$name"
    mv "$folder/.$name.new" "$folder/$name"
done

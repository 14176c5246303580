#!/bin/sh
# fronts.sh FOLDER: makes the two libraries that can be mounted over the driver's (policy intercept = "replace" or "both").
# There is no code in them. Each bears the driver's name, and needs our library first and the driver's own second, both by the paths
# that they have in a container: a program that finds the front finds our functions, and behind them all that are only the driver's.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
zigbuild
folder=$1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Only the address of the library's folder in a container is known here; region/src/paths.rs has the same.
inside=/usr/local/vgpu

link() {
    soname=$1
    shift
    python3 -m ziglang cc -target x86_64-linux-gnu.2.17 -shared -nostdlib -Wl,--no-as-needed -Wl,--hash-style=both -s \
        "-Wl,-soname,$soname" "$@" "$made/nothing.c"
}
echo >"$made/nothing.c"
mkdir -p "$folder"
# Stand-ins for what the fronts need, of which only the name counts.
link "$inside/libvgpu.so" -o "$made/libvgpu.so"
for name in libcuda.so.1 libnvidia-ml.so.1; do
    link "$inside/driver/$name" -o "$made/driver-$name"
    link "$name" -o "$folder/.$name.new" "$made/libvgpu.so" "$made/driver-$name"
    mv "$folder/.$name.new" "$folder/$name"
done

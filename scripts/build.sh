#!/bin/sh
# build.sh [static|library]: builds the release files and the test programs, or only a part, in target/kit:
#   libvgpu.so, front/                      for glibc 2.17 and later
#   vgpu-runtime, vgpu-hook                 static
#   simgpu/                                 the simulated driver
#   programs/                               programs that tests run in containers
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages cc:gcc libc6-dev
zigbuild

kit=$target/kit
built=$target/x86_64-unknown-linux-gnu/release

part=${1:-all}
mkdir -p "$kit/programs"
[ "$part" = static ] || library
if [ "$part" = all ]; then
    scripts/fronts.sh "$kit/front"
    tests/simgpu/build.sh "$kit/simgpu" >/dev/null
fi
# vgpu-runtime and vgpu-hook start with every container. glibc executes CPUID at startup, which traps to the host in a virtual
# machine: 0.65 of the 0.75 ms of an empty static program. musl does not. opt-level s: small programs load faster.
static() {
    CARGO_PROFILE_RELEASE_OPT_LEVEL=s \
        CARGO_ENCODED_RUSTFLAGS="-Ctarget-feature=+crt-static${1:+$(printf '\037%s' "$1")}${remap:+$(printf '\037')$remap}" \
        cargo build --quiet --release --target x86_64-unknown-linux-gnu --target-dir "$target/static" -p vgpu-oci-hook
}
if [ "$part" != library ] && ! static "-Clinker=$PWD/scripts/musl/cc"; then
    echo "vgpu-runtime and vgpu-hook cannot be linked with musl; linking them with glibc, which starts more slowly" >&2
    static
fi
static=$target/static/x86_64-unknown-linux-gnu/release

# put FILE FOLDER: copies and renames the file, so that processes that have the old file open keep it.
put() {
    cp "$1" "$2/.new"
    chmod 755 "$2/.new"
    mv "$2/.new" "$2/$(basename "$1")"
}
[ "$part" = static ] || put "$built/libvgpu.so" "$kit"
if [ "$part" != library ]; then
    put "$static/vgpu-runtime" "$kit"
    put "$static/vgpu-hook" "$kit"
fi
[ "$part" = all ] || exit 0
for program in changes charged churn fill race held intrude moves oversub spin steps storm tenant view ways; do
    put "$built/$program" "$kit/programs"
done
for source in scripts/loads.sh tests/programs/src/load.c tests/programs/src/runtime.c tests/programs/src/ioctl.c; do
    # It is the last one that the script builds.
    if [ ! "$kit/programs/ioctl.so" -nt "$source" ]; then
        scripts/loads.sh "$kit/programs" "$kit/simgpu/libcuda.so.1"
    fi
done
echo "$kit"

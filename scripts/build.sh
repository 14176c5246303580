#!/bin/sh
# build.sh: builds what the tests and the demonstration run, as it is shipped, and lays it out in target/kit:
#   libvgpu.so, front/, vgpu-runtime, vgpu-hook     for any distribution: glibc 2.17, and static
#   simgpu/                                 the simulated driver
#   programs/                               what is run in containers
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages cc:gcc libc6-dev
zigbuild

kit=$target/kit
built=$target/x86_64-unknown-linux-gnu/release

library
mkdir -p "$kit/programs"
scripts/fronts.sh "$kit/front"
tests/simgpu/build.sh "$kit/simgpu" >/dev/null
# They start with each container. glibc asks the processor what it is when a program starts, and in a virtual machine each question goes
# to the host: of an empty static program's 0.75 ms that was 0.65. musl does not ask. Small code is read in sooner.
static() {
    CARGO_PROFILE_RELEASE_OPT_LEVEL=s CARGO_ENCODED_RUSTFLAGS="-Ctarget-feature=+crt-static${1:+$(printf '\037%s' "$1")}" \
        cargo build --quiet --release --target x86_64-unknown-linux-gnu --target-dir "$target/static" -p vgpu-oci-hook
}
if ! static "-Clinker=$PWD/scripts/musl/cc"; then
    echo "vgpu-runtime and vgpu-hook cannot be linked with musl; they start later with glibc" >&2
    static
fi
static=$target/static/x86_64-unknown-linux-gnu/release

# put FILE FOLDER: by rename, as whoever has the old file open keeps it.
put() {
    cp "$1" "$2/.new"
    chmod 755 "$2/.new"
    mv "$2/.new" "$2/$(basename "$1")"
}
put "$built/libvgpu.so" "$kit"
put "$static/vgpu-runtime" "$kit"
put "$static/vgpu-hook" "$kit"
for program in changes charged churn fill race held oversub spin steps storm view ways; do
    put "$built/$program" "$kit/programs"
done
if [ ! "$kit/programs/plugin.so" -nt tests/programs/src/load.c ]; then
    scripts/loads.sh "$kit/programs" "$kit/simgpu/libcuda.so.1"
fi
echo "$kit"

#!/bin/sh
# package.sh [deb|rpm|tar|image]…: makes the packages below packaging/out from what build.sh has staged; deb, rpm and tar
# unless told. Needs cargo-generate-rpm for rpm, docker or podman for the image; cargo-deb it gets by itself.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
stage=packaging/stage
version=$(cat "$stage/VERSION")
out=packaging/out
mkdir -p "$out"
[ $# -gt 0 ] || set -- deb rpm tar
for kind in "$@"; do
    case $kind in
    # The programs are built and stripped already.
    deb)
        cargo_deb
        cargo deb -p vgpu-cli --no-build --no-strip --output "$out/vgpu_${version}_amd64.deb"
        ;;
    rpm) cargo generate-rpm -p cli --arch x86_64 --payload-compress gzip --output "$out/vgpu-$version.x86_64.rpm" ;;
    tar)
        tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@"${SOURCE_DATE_EPOCH:-0}" \
            --transform "s,^\.,vgpu-$version," -C "$stage" --exclude ./scripts \
            -czf "$out/vgpu-$version-x86_64.tar.gz" .
        ;;
    image)
        builder=$(command -v docker || command -v podman)
        "$builder" build -f packaging/image/Containerfile -t "vgpu:$version" packaging
        ;;
    *)
        echo "usage: $0 [deb|rpm|tar|image]..." >&2
        exit 2
        ;;
    esac
done

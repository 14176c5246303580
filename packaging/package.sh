#!/bin/sh
# package.sh [deb|rpm|tar|image]…: builds packages in packaging/out from the files that build.sh staged. Default: deb, rpm, tar.
# rpm requires cargo-generate-rpm, image requires docker or podman. cargo-deb is installed if missing.
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
    # The programs are already built and stripped.
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

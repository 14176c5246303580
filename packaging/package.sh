#!/bin/sh
# package.sh [deb|rpm|tar|image]…: builds packages in packaging/out from the files that build.sh staged. Default: deb, rpm, tar.
# cargo-deb and cargo-generate-rpm are installed if missing; image requires docker or podman.
# BASE is the image's base, pinned by digest: docker.io/library/debian@sha256:... UNPINNED=yes allows one without a digest.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
stage=packaging/stage
version=$(cat "$stage/VERSION")
out=packaging/out
mkdir -p "$out"
# Date of the files in packages: that of the last commit, so that the same sources give the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
[ $# -gt 0 ] || set -- deb rpm tar

# pinned_base: checks that BASE names an image by digest. A tag may be moved to another image.
pinned_base() {
    BASE=${BASE:-docker.io/library/debian:stable-slim}
    digest=${BASE##*@sha256:}
    if [ "$digest" != "$BASE" ] && [ ${#digest} = 64 ] && [ -z "$(echo "$digest" | tr -d 0-9a-f)" ]; then
        return
    fi
    if [ "${UNPINNED:-no}" = yes ]; then
        echo "BASE: $BASE: not pinned by digest" >&2
        return
    fi
    echo "BASE: $BASE: expected an image by digest, docker.io/library/debian@sha256:... (UNPINNED=yes: allow others)" >&2
    echo "find it with: skopeo inspect --format '{{.Digest}}' docker://docker.io/library/debian:stable-slim" >&2
    exit 1
}

for kind in "$@"; do
    case $kind in
    # The programs are already built and stripped.
    deb)
        cargo_deb
        rm -f "$out"/vgpu_*_amd64.deb
        cargo deb -p vgpu-cli --no-build --no-strip --output "$out/vgpu_${version}_amd64.deb"
        # The list of files is in cli/Cargo.toml once more.
        dpkg-deb --contents "$out/vgpu_${version}_amd64.deb" | awk '{ print $6 }' >"$out/.files"
        (cd "$stage/root" && find . ! -type d) | grep --line-regexp --invert-match --fixed-strings --file="$out/.files" >&2 && {
            echo "vgpu_${version}_amd64.deb: expected these files, too" >&2
            exit 1
        }
        rm "$out/.files"
        ;;
    rpm)
        cargo_generate_rpm
        rm -f "$out"/vgpu-*.rpm
        cargo generate-rpm -p cli --arch x86_64 --payload-compress gzip --output "$out/vgpu-$version.x86_64.rpm"
        ;;
    tar)
        tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@"$SOURCE_DATE_EPOCH" \
            --transform "s,^\.,vgpu-$version," -C "$stage" --exclude ./scripts \
            -cf - . | gzip -9n >"$out/vgpu-$version-x86_64.tar.gz"
        ;;
    image)
        pinned_base
        builder=$(command -v docker || command -v podman)
        "$builder" build --build-arg "BASE=$BASE" -f packaging/image/Containerfile -t "vgpu:$version" packaging
        ;;
    *)
        echo "usage: $0 [deb|rpm|tar|image]..." >&2
        exit 2
        ;;
    esac
done
(
    cd "$out"
    find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%f\n' | sort | xargs -r sha256sum >SHA256SUMS
)

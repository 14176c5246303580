#!/bin/sh
# reproducible.sh [static|library|packages]…: builds parts of a release twice, in folders of different names, and compares the bytes.
#   static     vgpu-runtime and vgpu-hook
#   library    libvgpu.so
#   packages   everything: packaging/build.sh and package.sh deb tar (takes long)
# Default: static, library. Builds what git would commit: tracked files, and new ones that it does not ignore.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
zigbuild
[ $# -gt 0 ] || set -- static library
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH VGPU_RELEASE=yes

# build FOLDER PART: builds a part in a copy of the tree, with its own target folder, and lists the digests of the results.
build() {
    (
        cd "$1"
        unset CARGO_TARGET_DIR
        case $2 in
        static) scripts/build.sh static >/dev/null && cd target/kit && sha256sum vgpu-runtime vgpu-hook ;;
        library) scripts/build.sh library >/dev/null && cd target/kit && sha256sum libvgpu.so ;;
        packages)
            packaging/build.sh >&2
            packaging/package.sh deb tar >&2
            cd packaging
            find stage out -type f | LC_ALL=C sort | xargs sha256sum
            ;;
        *) echo "usage: $0 [static|library|packages]..." >&2 && exit 2 ;;
        esac
    )
}

for folder in one another/with-a-longer-name; do
    mkdir -p "$folders/$folder"
    git ls-files -z --cached --others --exclude-standard | tar --null -T - --ignore-failed-read -cf - 2>/dev/null | tar -xf - -C "$folders/$folder"
done
failed=0
for part in "$@"; do
    build "$folders/one" "$part" >"$folders/one.sums"
    build "$folders/another/with-a-longer-name" "$part" >"$folders/another.sums"
    if cmp -s "$folders/one.sums" "$folders/another.sums"; then
        echo "$part: $(wc -l <"$folders/one.sums") files, the same bytes"
        cat "$folders/one.sums"
    else
        echo "$part: different bytes" >&2
        diff "$folders/one.sums" "$folders/another.sums" >&2 || true
        failed=1
    fi
done
exit $failed

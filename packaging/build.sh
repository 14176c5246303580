#!/bin/sh
# build.sh: builds all files for x86-64 machines of any distribution, in packaging/stage:
#   root/       the files at their paths on a machine
#   install.sh  installs them
#   VERSION
# Installs missing tools on Debian and Ubuntu, as the other scripts do.
# BUILT is a folder with vgpu, vgpu-dra and vgpu-webhook, which are then not built again; for tests of the packages.
set -eu
cd "$(dirname "$0")/.."
# Programs of a release are the same in whatever folder they are built.
VGPU_RELEASE=${VGPU_RELEASE:-$([ -n "${BUILT:-}" ] && echo no || echo yes)}
export VGPU_RELEASE
. scripts/tools.sh
zigbuild
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
stage=packaging/stage
rm -rf "$stage"
mkdir -p "$stage/root"

# The files for containers, and the programs of the host, which require glibc 2.17 (CentOS 7).
kit=$(scripts/build.sh)
built=${BUILT:-}
if [ -z "$built" ]; then
    CARGO_ENCODED_RUSTFLAGS=$remap cargo zigbuild --quiet --release --target x86_64-unknown-linux-gnu.2.17 -p vgpu-cli -p vgpu-dra
    built=$target/x86_64-unknown-linux-gnu/release
fi

# file MODE FROM TO: copies a file into the stage.
file() {
    mkdir -p "$stage/root$(dirname "$3")"
    cp "$2" "$stage/root$3"
    chmod "$1" "$stage/root$3"
}
file 755 "$built/vgpu" /usr/bin/vgpu
file 755 "$built/vgpu-dra" /usr/bin/vgpu-dra
file 755 "$built/vgpu-webhook" /usr/bin/vgpu-webhook
file 755 "$kit/vgpu-runtime" /usr/bin/vgpu-runtime
file 755 "$kit/vgpu-hook" /usr/bin/vgpu-hook
[ -z "${BUILT:-}" ] || strip "$stage"/root/usr/bin/*
file 644 "$kit/libvgpu.so" "/usr/lib/vgpu/libvgpu.so.$version"
ln -s "libvgpu.so.$version" "$stage/root/usr/lib/vgpu/libvgpu.so"
for front in libcuda.so.1 libnvidia-ml.so.1; do
    file 644 "$kit/front/$front" "/usr/lib/vgpu/front/$front"
done
scripts/sbom.py "$stage/sbom.cdx.json"
file 644 "$stage/sbom.cdx.json" /usr/share/vgpu/sbom.cdx.json
file 644 packaging/config.toml /etc/vgpu/config.toml
file 644 packaging/systemd/vgpu-monitor.service /usr/lib/systemd/system/vgpu-monitor.service
file 644 packaging/grafana/vgpu.json /usr/share/vgpu/grafana-dashboard.json

"$built/vgpu" generate "$stage/generated"
file 644 "$stage/generated/completions/vgpu.bash" /usr/share/bash-completion/completions/vgpu
file 644 "$stage/generated/completions/_vgpu" /usr/share/zsh/vendor-completions/_vgpu
file 644 "$stage/generated/completions/vgpu.fish" /usr/share/fish/vendor_completions.d/vgpu.fish
cp packaging/man/*.1 "$stage/generated/man"
for page in "$stage"/generated/man/*.1; do
    gzip -9n "$page"
    file 644 "$page.gz" "/usr/share/man/man1/$(basename "$page").gz"
done
rm -r "$stage/generated"
cp packaging/install.sh LICENSE "$stage/"
mkdir "$stage/scripts"
for script in packaging/scripts/*; do
    sed "s/@VERSION@/$version/" "$script" > "$stage/scripts/$(basename "$script")"
done
echo "$version" > "$stage/VERSION"
find "$stage" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH:-0}" {} +

#!/bin/sh
# test-repository.sh BASE: makes the repositories of the packages in packaging/out, signed with a key made for this, and installs vgpu from
# the apt one on a copy of the clean system in the folder BASE (debootstrap --variant=minbase). Requires root.
set -eu
base=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'gpgconf --kill all; rm -rf "$work"' EXIT
chmod 755 "$work"
export GNUPGHOME="$work/keys"
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-gen-key 'vgpu test <test@example.org>' default default never 2>/dev/null
KEY=$(gpg --batch --quiet --list-keys --with-colons | awk -F: '/^fpr/ { print $10; exit }')
export KEY
packaging/repository.sh

root=$work/root
cp -a "$base" "$root"
cp -r packaging/out/repository/apt "$root/srv/vgpu"
mkdir -p "$root/etc/apt/keyrings"
cp "$root/srv/vgpu/vgpu.asc" "$root/etc/apt/keyrings/"
# Nothing else is fetched: the machine may have no network, and the package needs nothing that the system lacks.
rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
echo 'deb [signed-by=/etc/apt/keyrings/vgpu.asc] file:/srv/vgpu ./' >"$root/etc/apt/sources.list.d/vgpu.list"
in_root() { chroot "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
in_root apt-get -qq update
in_root apt-get -qq install --no-install-recommends vgpu >/dev/null 2>"$work/install" || { cat "$work/install" >&2; exit 1; }
in_root dpkg-query --show vgpu

# A repository that somebody changed is refused.
echo >>"$root/srv/vgpu/Packages"
rm -r "$root/srv/vgpu/Packages.gz" "$root/var/lib/apt/lists"
if in_root apt-get -qq update >"$work/changed" 2>&1; then
    echo "FAILED: a changed repository was accepted" >&2
    cat "$work/changed" >&2
    exit 1
fi
echo "the apt repository installs, and is refused when it was changed"

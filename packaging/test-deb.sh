#!/bin/bash
# test-deb.sh DEB BASE: installs the package on a copy of the clean system in the folder BASE (debootstrap --variant=minbase),
# checks it, runs a limited container, upgrades and removes the package while the container runs, and checks that no file is
# left. Requires root, runc, busybox-static and jq.
set -euo pipefail
deb=$(realpath "$1")
base=$(realpath "$2")
work=$(mktemp -d)
root=$work/root
id=vgpu-deb-$$
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
cleanup() {
    runc delete --force "$id" 2>/dev/null || true
    umount "$root/proc" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
chmod 755 "$work"

cp -a "$base" "$root"
mount -t proc proc "$root/proc"
in_root() { chroot "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
# dpkg's own files are ignored.
listing() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./var/lib/dpkg -o -path ./var/log \) -prune -o -print | sort); }
listing > "$work/before"

# The low-level runtime that replaces vgpu-runtime after removal.
ln -s /bin/true "$root/usr/sbin/runc"
cp "$deb" "$root/tmp/new.deb"
in_root dpkg -i /tmp/new.deb
rm "$root/tmp/new.deb"
in_root vgpu check --json > "$work/check.json" || true
for part in policy vgpu-runtime vgpu-hook library; do
    [ "$(jq -r ".checks[] | select(.check == \"$part\") | .state" "$work/check.json")" = ok ] || fail "vgpu check: $(cat "$work/check.json")"
done
# Registrations that the removal must undo.
mkdir -p "$root/etc/docker"
echo '{"log-driver": "local"}' > "$root/etc/docker/daemon.json"
in_root vgpu configure docker --set-as-default
in_root vgpu configure containerd

# A container with a limit, run by the installed package.
bundle=$work/bundle
mkdir -p "$bundle/rootfs/bin" "$bundle/rootfs/etc" "$bundle/rootfs/proc"
cp /bin/busybox "$bundle/rootfs/bin/"
ln -s busybox "$bundle/rootfs/bin/sh"
(cd "$bundle" && runc spec)
jq '.process.terminal = false | del(.process.rlimits) | .process.args = ["/bin/busybox", "sleep", "1000"]
    | .annotations = {"nvidia.com/gpumem": "1024"} | .mounts |= map(select(.type == "proc"))
    | .linux.namespaces |= map(select(.type != "cgroup" and .type != "network"))' \
    "$bundle/config.json" > "$work/config.json" && mv "$work/config.json" "$bundle/config.json"
printf 'state_dir = "%s/run/vgpu"\nlibrary = "%s/usr/lib/vgpu/libvgpu.so"\nruntimes = ["runc"]\n' "$root" "$root" > "$work/policy.toml"
# The policy names runc, because this script uses runc to inspect the container.
VGPU_CONFIG=$work/policy.toml "$root/usr/bin/vgpu-runtime" run --detach --bundle "$bundle" "$id" > "$work/log" 2>&1 < /dev/null || fail "$(cat "$work/log")"
sum() { runc exec "$id" /bin/busybox md5sum /usr/local/vgpu/libvgpu.so | cut -d' ' -f1; }
before=$(sum)
[ -n "$before" ] || fail "no library in the container"

# Upgrade to a version with a different library.
dpkg-deb -R "$deb" "$work/next"
old=$(sed -n 's/^Version: //p' "$work/next/DEBIAN/control")
new=$old.next
sed -i "s/^Version: .*/Version: $new/" "$work/next/DEBIAN/control"
sed -i "s/libvgpu\.so\.$old/libvgpu.so.$new/g" "$work/next/DEBIAN/postinst"
sed -i "s/libvgpu\.so\.$old/libvgpu.so.$new/" "$work/next/DEBIAN/md5sums" 2>/dev/null || true
mv "$work/next/usr/lib/vgpu/libvgpu.so.$old" "$work/next/usr/lib/vgpu/libvgpu.so.$new"
echo next >> "$work/next/usr/lib/vgpu/libvgpu.so.$new"
ln -sfn "libvgpu.so.$new" "$work/next/usr/lib/vgpu/libvgpu.so"
dpkg-deb -Znone -b "$work/next" "$root/tmp/next.deb" > /dev/null
in_root dpkg -i /tmp/next.deb
rm "$root/tmp/next.deb"
[ "$(readlink "$root/usr/lib/vgpu/libvgpu.so")" = "libvgpu.so.$new" ] || fail "the link to the library was not replaced"
[ "$(sum)" = "$before" ] || fail "the running container's library changed"

# Removal: the container keeps running, and can be stopped through the link that replaces the runtime.
in_root dpkg -r vgpu
[ "$(sum)" = "$before" ] || fail "the running container's library is gone"
[ "$(jq -c . "$root/etc/docker/daemon.json")" = '{"log-driver":"local"}' ] || fail "vgpu is still registered with Docker"
[ ! -e "$root/etc/containerd/config.toml" ] || fail "vgpu is still registered with containerd"
[ "$(readlink "$root/usr/bin/vgpu-runtime")" = /usr/sbin/runc ] || fail "vgpu-runtime was not replaced by a link"
[ -L "$root/usr/bin/vgpu-hook" ] || fail "vgpu-hook was not replaced by a link"
# runc runs on the host and calls the hook by its path there.
runc delete --force "$id"
rm "$root/usr/bin/vgpu-runtime" "$root/usr/bin/vgpu-hook" "$root/usr/sbin/runc"
umount --lazy "$root"/run/vgpu/containers/*/shared
rm -rf "$root/run/vgpu" "$root/etc/docker" "$root/etc/containerd"
listing > "$work/after"
left=$(comm -13 "$work/before" "$work/after" | tr '\n' ' ')
[ "$left" = "./etc/vgpu ./etc/vgpu/config.toml " ] || fail "removal leaves $left"
in_root dpkg -P vgpu
listing > "$work/after"
cmp "$work/before" "$work/after" || fail "purging leaves $(comm -13 "$work/before" "$work/after")"
echo "ok: installed, checked, upgraded and removed under a running container; purged without leftovers"

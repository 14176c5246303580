#!/bin/bash
# test-deb.sh DEB BASE: installs the package on a copy of the clean system in the folder BASE (debootstrap --variant=minbase),
# checks it, runs a limited container from it, upgrades and removes the package beneath that container, and looks at what is
# left. Needs root, runc, busybox-static and jq.
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
# What dpkg keeps for itself does not count.
listing() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./var/lib/dpkg -o -path ./var/log \) -prune -o -print | sort); }
listing > "$work/before"

# A runtime to stand in for ours after removal.
ln -s /bin/true "$root/usr/sbin/runc"
cp "$deb" "$root/tmp/new.deb"
in_root dpkg -i /tmp/new.deb
rm "$root/tmp/new.deb"
in_root vgpu check --json > "$work/check.json" || true
for part in policy vgpu-runtime vgpu-hook library; do
    [ "$(jq -r ".checks[] | select(.check == \"$part\") | .state" "$work/check.json")" = ok ] || fail "vgpu check: $(cat "$work/check.json")"
done
# Registered, so that removal has something to undo.
mkdir -p "$root/etc/docker"
echo '{"log-driver": "local"}' > "$root/etc/docker/daemon.json"
in_root vgpu configure docker --set-as-default
in_root vgpu configure containerd

# A container with a limit, from the package's files.
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
# The default policy's runtime is not the one whose folders we look at.
VGPU_CONFIG=$work/policy.toml "$root/usr/bin/vgpu-runtime" run --detach --bundle "$bundle" "$id" > "$work/log" 2>&1 < /dev/null || fail "$(cat "$work/log")"
sum() { runc exec "$id" /bin/busybox md5sum /usr/local/vgpu/libvgpu.so | cut -d' ' -f1; }
before=$(sum)
[ -n "$before" ] || fail "no library in the container"

# An upgrade to a version with another library.
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
[ "$(readlink "$root/usr/lib/vgpu/libvgpu.so")" = "libvgpu.so.$new" ] || fail "the link was not switched"
[ "$(sum)" = "$before" ] || fail "the running container's library changed"

# Removal beneath it: it lives on, and can be ended through what is left in the runtime's place.
in_root dpkg -r vgpu
[ "$(sum)" = "$before" ] || fail "the running container's library is gone"
[ "$(jq -c . "$root/etc/docker/daemon.json")" = '{"log-driver":"local"}' ] || fail "Docker still knows vgpu"
[ ! -e "$root/etc/containerd/config.toml" ] || fail "containerd still knows vgpu"
[ "$(readlink "$root/usr/bin/vgpu-runtime")" = /usr/sbin/runc ] || fail "nothing stands in for the runtime"
[ -L "$root/usr/bin/vgpu-hook" ] || fail "nothing stands in for the hook"
# The hook is called by its path outside of the copy.
runc delete --force "$id"
rm "$root/usr/bin/vgpu-runtime" "$root/usr/bin/vgpu-hook" "$root/usr/sbin/runc"
rm -rf "$root/run/vgpu" "$root/etc/docker" "$root/etc/containerd"
listing > "$work/after"
left=$(comm -13 "$work/before" "$work/after" | tr '\n' ' ')
[ "$left" = "./etc/vgpu ./etc/vgpu/config.toml " ] || fail "removal leaves $left"
in_root dpkg -P vgpu
listing > "$work/after"
cmp "$work/before" "$work/after" || fail "purging leaves $(comm -13 "$work/before" "$work/after")"
echo "ok: installed, checked, upgraded and removed beneath a running container, and purged without a trace"

#!/bin/bash
# test-quickstarts.sh DEB FOLDER [SYSTEM…]: runs the commands of the book's quickstarts (packaging/quickstarts.py), as they are, on copies
# of the clean system in FOLDER (packaging/clean.sh), with the package DEB and a simulated GPU. Default: all systems. Requires root, and
# scripts/build.sh before. VERBOSE=yes prints what the commands print.
set -euo pipefail
deb=$(realpath "$1")
folder=$(realpath "$2")
shift 2
cd "$(dirname "$0")/.."
kit=${CARGO_TARGET_DIR:-target}/kit
work=$(mktemp -d)
trap 'umount --lazy "$work" 2>/dev/null; rmdir "$work"' EXIT
# In memory: dpkg waits for the disk after each file.
mount -t tmpfs -o mode=755 quickstarts "$work"
packaging/quickstarts.py --check
[ $# -gt 0 ] || read -ra systems < <(packaging/quickstarts.py systems)
[ $# = 0 ] || systems=("$@")

# The image `ubuntu`, in the form that docker, podman and ctr load: busybox, and the libraries of the clean system for the driver.
image() {
    mkdir -p "$work"/image/rootfs/{bin,etc,proc,sys,dev,tmp,usr/bin,usr/lib/x86_64-linux-gnu,lib64}
    cp /bin/busybox "$work/image/rootfs/bin"
    for applet in sh cat sed sleep env; do ln -s busybox "$work/image/rootfs/bin/$applet"; done
    ln -s usr/lib "$work/image/rootfs/lib"
    for library in libc.so.6 libdl.so.2 libpthread.so.0 libm.so.6 ld-linux-x86-64.so.2; do
        cp -L "$folder/root/usr/lib/x86_64-linux-gnu/$library" "$work/image/rootfs/usr/lib/x86_64-linux-gnu"
    done
    ln -s ../usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$work/image/rootfs/lib64"
    echo 'root:x:0:0:root:/:/bin/sh' >"$work/image/rootfs/etc/passwd"
    tar -C "$work/image/rootfs" --owner=0 --group=0 -cf "$work/image/layer.tar" .
    digest=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
    cat >"$work/image/config.json" <<END
{"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["sh"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
    echo '[{"Config":"config.json","RepoTags":["docker.io/library/ubuntu:latest"],"Layers":["layer.tar"]}]' >"$work/image/manifest.json"
    tar -C "$work/image" -cf "$work/image.tar" manifest.json config.json layer.tar
}

# prepare SYSTEM: lays a writable layer over the clean system, with the stand-ins, the driver, the package and the commands.
prepare() {
    root=$work/$1/root
    mkdir -p "$work/$1"/{upper,scratch,root,archives,scratch-archives,lists,scratch-lists}
    mount -t overlay -o "lowerdir=$folder/root,upperdir=$work/$1/upper,workdir=$work/$1/scratch" overlay "$root"
    packaging/quickstarts.py "$1" "$root/quickstart"
    mkdir -p "$root/stand-ins"
    cp packaging/stand-ins/{run,image} "$work/image.tar" "$root/stand-ins"
    cp packaging/stand-ins/{systemctl,curl} packaging/stand-ins/nvidia-* "$kit/programs/fill" "$root/usr/bin"
    cp "$kit"/simgpu/lib*.so.1 "$root/usr/lib/x86_64-linux-gnu"
    ln -s /stand-ins/run "$root/usr/sbin/init"
    cp "$deb" "$root/root"
    printf 'APT::Get::Assume-Yes "true";\nAPT::Sandbox::User "root";\n' >"$root/etc/apt/apt.conf.d/stand-in"
    cp packaging/stand-ins/preferences "$root/etc/apt/preferences.d/stand-in"
    chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash user
}

# within ROOT FOLDER CTL: becomes process 1 of the system, in namespaces of its own. Rootless engines need pivot_root: a process in a chroot may
# create no user namespace.
within='
    mount --make-rprivate /
    ip link set lo up
    # apt locks both folders.
    mount -t overlay -o "lowerdir=$2/archives,upperdir=$1/../archives,workdir=$1/../scratch-archives" overlay "$1/var/cache/apt/archives"
    mount -t overlay -o "lowerdir=$2/lists,upperdir=$1/../lists,workdir=$1/../scratch-lists" overlay "$1/var/lib/apt/lists"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    mount --rbind /sys/fs/cgroup "$1/sys/fs/cgroup"
    # crun refuses a version 2 beside version 1 that has controllers.
    [ ! -d "$1/sys/fs/cgroup/unified" ] || umount "$1/sys/fs/cgroup/unified"
    mount -t tmpfs -o mode=755 dev "$1/dev"
    mkdir "$1/dev/pts" "$1/dev/shm" "$1/dev/net"
    while read -r node major minor; do mknod -m 666 "$1/dev/$node" c "$major" "$minor"; done <<<"null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
net/tun 10 200"
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$1/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$1/dev/shm"
    ln -s pts/ptmx "$1/dev/ptmx"
    ln -s /proc/self/fd "$1/dev/fd"
    SIMGPU_STATE=$1/dev/simgpu "$3" create >/dev/null
    chmod 666 "$1/dev/simgpu"
    mount -t tmpfs -o mode=755 run "$1/run"
    mkdir -p "$1/run/lock" "$1/run/systemd/system" "$1/run/user/1000"
    # What engines store in overlays of their own may not be on an overlay.
    for storage in var/lib/docker var/lib/containerd var/lib/containers home/user; do
        mkdir -p "$1/$storage"
        mount -t tmpfs -o mode=755 storage "$1/$storage"
    done
    chown 1000:1000 "$1/run/user/1000" "$1/home/user"
    cd "$1"
    mkdir -p .old
    pivot_root . .old
    umount --lazy .old
    mount --make-rshared /
    exec /stand-ins/run
'

image
status=0
for system in "${systems[@]}"; do
    prepare "$system"
    (
        exec timeout --kill-after=10 600 unshare --mount --pid --fork --kill-child --net --uts --ipc bash -euc "$within" - \
            "$work/$system/root" "$folder" "$kit/simgpu/simgpu-ctl" </dev/null
    ) >"$work/$system/log" 2>&1 &
    pids+=($!)
done
for i in "${!systems[@]}"; do
    wait "${pids[$i]}" || status=1
    echo "quickstart: ${systems[$i]}"
    cat "$work/${systems[$i]}/log"
done
[ $status = 0 ] && echo "ok: the quickstarts work as the book shows them"
exit $status

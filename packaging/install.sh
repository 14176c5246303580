#!/bin/sh
# install.sh [install|uninstall]: puts vgpu on a machine, from the files beside this script. Used by the tarball as it is,
# and by the container image, where ROOT is the node's file system.
#
# Safe while jobs run: nothing is ever written in place. A running container holds the library's file by its mount, and a
# running process its program, until they end; what starts meanwhile finds the old file or the new one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${ROOT:-}
files=$here/root
version=$(cat "$here/VERSION")

# put MODE PATH: copies PATH from the files to the machine, under another name first.
put() {
    new="$root$2.vgpu-new"
    mkdir -p "$root$(dirname "$2")"
    cp "$files$2" "$new"
    chmod "$1" "$new"
    mv -f "$new" "$root$2"
}

# every: each file of the package but the configuration, as a path on the machine.
every() {
    (cd "$files" && find . -type f ! -path './etc/*' | sed 's/^\.//' | sort)
}

install() {
    # The library before its link, and both before the programs that go by them.
    put 644 "/usr/lib/vgpu/libvgpu.so.$version"
    put 644 /usr/lib/vgpu/front/libcuda.so.1
    put 644 /usr/lib/vgpu/front/libnvidia-ml.so.1
    ln -sfn "libvgpu.so.$version" "$root/usr/lib/vgpu/libvgpu.so.vgpu-new"
    mv -fT "$root/usr/lib/vgpu/libvgpu.so.vgpu-new" "$root/usr/lib/vgpu/libvgpu.so"
    every | while read -r path; do
        case $path in
        /usr/bin/*) put 755 "$path" ;;
        /usr/lib/vgpu/*) ;;
        *) put 644 "$path" ;;
        esac
    done
    if [ ! -e "$root/etc/vgpu/config.toml" ]; then
        put 644 /etc/vgpu/config.toml
    fi
}

# The configuration stays: it is the operator's. So do the runtime and its hook while there are containers that it started:
# they are stopped and deleted through them.
uninstall() {
    rm -f "$root"/usr/lib/vgpu/libvgpu.so* "$root"/usr/lib/vgpu/front/lib*
    rmdir "$root/usr/lib/vgpu/front" 2>/dev/null || true
    every | while read -r path; do
        case $path in
        /usr/bin/vgpu-runtime | /usr/bin/vgpu-hook)
            if [ -n "$(ls "$root/run/vgpu/containers" 2>/dev/null)" ]; then
                echo "$path stays for the containers that it started; remove it when they are gone" >&2
                continue
            fi
            ;;
        esac
        rm -f "$root$path"
    done
    rmdir "$root/usr/lib/vgpu" 2>/dev/null || true
}

case ${1:-install} in
install) install ;;
uninstall) uninstall ;;
*)
    echo "usage: $0 [install|uninstall]" >&2
    exit 2
    ;;
esac

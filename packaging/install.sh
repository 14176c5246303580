#!/bin/sh
# install.sh [install|uninstall]: installs vgpu from the files next to this script. Used by the tarball and by the container
# image, where ROOT is the node's file system.
#
# Safe while jobs run: files are replaced by rename. A running container keeps the library that it has mounted, and a running
# process its program. New ones get either the old file or the new one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${ROOT:-}
files=$here/root
version=$(cat "$here/VERSION")

# put MODE PATH: copies PATH to the machine under a temporary name, and renames it.
put() {
    new="$root$2.vgpu-new"
    mkdir -p "$root$(dirname "$2")"
    cp "$files$2" "$new"
    chmod "$1" "$new"
    mv -f "$new" "$root$2"
}

# program_files: lists all files but the configuration, as paths on the machine.
program_files() {
    (cd "$files" && find . -type f ! -path './etc/*' | sed 's/^\.//' | sort)
}

install() {
    # The library is installed before its link, and both before the programs that use them.
    put 644 "/usr/lib/vgpu/libvgpu.so.$version"
    put 644 /usr/lib/vgpu/front/libcuda.so.1
    put 644 /usr/lib/vgpu/front/libnvidia-ml.so.1
    ln -sfn "libvgpu.so.$version" "$root/usr/lib/vgpu/libvgpu.so.vgpu-new"
    mv -fT "$root/usr/lib/vgpu/libvgpu.so.vgpu-new" "$root/usr/lib/vgpu/libvgpu.so"
    program_files | while read -r path; do
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

# The configuration belongs to the operator and stays. The runtime and its hook stay while they have containers, because these
# are stopped and deleted through them.
uninstall() {
    rm -f "$root"/usr/lib/vgpu/libvgpu.so* "$root"/usr/lib/vgpu/front/lib*
    rmdir "$root/usr/lib/vgpu/front" 2>/dev/null || true
    program_files | while read -r path; do
        case $path in
        /usr/bin/vgpu-runtime | /usr/bin/vgpu-hook)
            if [ -n "$(ls "$root/run/vgpu/containers" 2>/dev/null)" ]; then
                echo "$path stays until its containers have stopped; remove it then" >&2
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

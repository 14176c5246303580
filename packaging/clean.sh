#!/bin/bash
# clean.sh SUITE FOLDER: makes a clean system of this release of Debian or Ubuntu in FOLDER/root, without anything installed on it, and
# downloads the packages that the book's quickstarts install into FOLDER/archives. Requires root, debootstrap and a mirror. MIRROR is the
# archive; default: that of the distribution.
set -euo pipefail
suite=$1 folder=$2
cd "$(dirname "$0")/.."
case $suite in
bookworm | trixie | forky | sid) mirror=${MIRROR:-http://deb.debian.org/debian} components=main compose=docker-compose options=() ;;
*)
    # The script for Ubuntu's releases is the same for all. Without Ubuntu's keys on this machine, its first packages are not verified.
    mirror=${MIRROR:-http://archive.ubuntu.com/ubuntu} components=main,universe compose=docker-compose-v2
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    options=(--no-check-gpg)
    [ ! -e $keys ] || options=(--keyring=$keys)
    ;;
esac
rm -rf "$folder"
mkdir -p "$folder/archives/partial" "$folder/lists/partial"
script=()
# netavark of Ubuntu 24.04 calls iptables, which every Ubuntu but the smallest has.
[ "$components" = main ] || { script=(gutsy) && options+=(--include=iptables); }
debootstrap --variant=minbase --components=$components "${options[@]}" "$suite" "$folder/root" "$mirror" "${script[@]}"
rm -f "$folder"/root/var/cache/apt/archives/*.deb
unshare --mount bash -euc '
    mount --bind "$1/archives" "$1/root/var/cache/apt/archives"
    mount --bind "$1/lists" "$1/root/var/lib/apt/lists"
    mount -t tmpfs preferences "$1/root/etc/apt/preferences.d"
    cp packaging/stand-ins/preferences "$1/root/etc/apt/preferences.d/stand-in"
    apt="chroot $1/root env PATH=/usr/sbin:/usr/bin:/sbin:/bin apt-get -o APT::Sandbox::User=root"
    apt="$apt -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
    $apt -qq update
    for each in docker.io containerd podman "$2"; do $apt -qq install --yes --download-only $each; done
' - "$(realpath "$folder")" $compose
touch "$folder/done"

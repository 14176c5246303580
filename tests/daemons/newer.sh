#!/bin/bash
# newer.sh SUITE FOLDER PACKAGE…: unpacks packages of another Debian suite into FOLDER without installing them.
# List such folders in VGPU_TEST_RELEASES, separated by colons, to run the daemon tests with them as well:
#   tests/daemons/newer.sh trixie /var/tmp/trixie containerd docker.io docker-cli
set -euo pipefail
suite=$1
mkdir -p "$2/.apt/lists/partial" "$2/.apt/packages"
folder=$(realpath "$2")
shift 2

# Uses the mirror and key of this machine, from either format of sources.list.
sources=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null | grep -v '^#' || true)
mirror=$(grep -oE 'https?://[^ ]+' <<< "$sources" | grep -v security | head -1 || true)
key=$(sed -nE 's/^Signed-By: *(\/.*)/\1/p' <<< "$sources" | head -1)
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
    "${mirror:-http://deb.debian.org/debian}" "$suite" "${key:-/usr/share/keyrings/debian-archive-keyring.gpg}" > "$folder/.apt/debian.sources"
options=(
    -o Dir::Etc::sourcelist="$folder/.apt/debian.sources" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$folder/.apt/lists" -o Dir::State::status=/dev/null
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root
)
apt-get "${options[@]}" update -qq
cd "$folder/.apt/packages"
apt-get "${options[@]}" download -qq "$@"
for package in *.deb; do dpkg-deb -x "$package" "$folder"; done
rm -rf "$folder/.apt"

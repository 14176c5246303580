#!/bin/sh
# monitor.sh ARGS…: runs the node's own "vgpu monitor" in the node's mount namespace, once the version of this image is there.
#   WAIT=no  takes whichever version is there
set -eu
here=$(dirname "$0")
host=${HOST:-/host}
if [ "${WAIT:-yes}" = yes ]; then
    until cmp -s "$here/root/usr/bin/vgpu" "$host/usr/bin/vgpu"; do
        sleep 1
    done
fi
# shellcheck disable=SC2086
exec ${ENTER:-nsenter --target 1 --mount --} /usr/bin/vgpu monitor "$@"

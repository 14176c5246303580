#!/bin/sh
# monitor.sh ARGS…: waits until this image's vgpu is installed on the node, then runs the node's "vgpu monitor" in the node's
# mount namespace.
#   WAIT=no  runs whatever version is installed
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

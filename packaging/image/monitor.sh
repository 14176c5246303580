#!/bin/sh
# monitor.sh ARGS…: waits until this image's vgpu is installed on the node, then runs the node's "vgpu monitor" in the node's
# mount namespace.
#   WAIT=no           runs whatever version is installed
#   TOKEN_DIR=FOLDER  of this container: requires the token in its file "token" for /metrics, and makes one if there is none
#   TLS_DIR=FOLDER    of this container: serves HTTPS with its files "tls.crt" and "tls.key"
set -eu
here=$(dirname "$0")
host=${HOST:-/host}
if [ "${WAIT:-yes}" = yes ]; then
    until cmp -s "$here/root/usr/bin/vgpu" "$host/usr/bin/vgpu"; do
        sleep 1
    done
fi
# The node's mount namespace lacks this container's volumes, but an open folder leads to them. Renewed files are found through it, too.
if [ -n "${TOKEN_DIR:-}" ]; then
    if [ ! -s "$TOKEN_DIR/token" ]; then
        (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$TOKEN_DIR/.new" && mv "$TOKEN_DIR/.new" "$TOKEN_DIR/token")
    fi
    exec 3<"$TOKEN_DIR"
    set -- "$@" --token-file=/proc/self/fd/3/token
fi
if [ -n "${TLS_DIR:-}" ]; then
    exec 4<"$TLS_DIR"
    set -- "$@" --tls-cert=/proc/self/fd/4/tls.crt --tls-key=/proc/self/fd/4/tls.key
fi
# shellcheck disable=SC2086
exec ${ENTER:-nsenter --target 1 --mount --} /usr/bin/vgpu monitor "$@"

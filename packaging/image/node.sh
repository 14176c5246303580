#!/bin/sh
# node.sh: installs vgpu on the node whose file system is at HOST and whose processes we see, registers it with RUNTIME
# (containerd or crio), and stays, so that the DaemonSet is ready when the node is.
#   RESTART=no    leaves it to the operator to restart the runtime
#   UNINSTALL=yes takes vgpu out again, and stays
set -eu
here=$(dirname "$0")
host=${HOST:-/host}
runtime=${RUNTIME:-containerd}

# on_node COMMAND…: runs a program of the node's in the node's mount namespace. vgpu needs nothing from this image.
on_node() {
    ${ENTER:-nsenter --target 1 --mount --} "$@"
}

# settle: has the runtime take up its configuration. Restarting containerd or CRI-O leaves the pods running.
settle() {
    if [ "${RESTART:-yes}" = yes ]; then
        on_node systemctl restart "$runtime"
    fi
}

# configure ARGS…: registers, and restarts the runtime if anything has changed.
configure() {
    changed=$(on_node /usr/bin/vgpu configure "$runtime" "$@" --dry-run)
    on_node /usr/bin/vgpu configure "$runtime" "$@"
    if [ -n "$changed" ]; then
        settle
    fi
}

if [ "${UNINSTALL:-no}" = yes ]; then
    if [ -x "$host/usr/bin/vgpu" ]; then
        configure --undo
        ROOT=$host "$here/install.sh" uninstall
    fi
else
    ROOT=$host "$here/install.sh" install
    configure
    on_node /usr/bin/vgpu check || true
fi

if [ "${STAY:-yes}" = yes ]; then
    trap 'exit 0' TERM INT
    while :; do sleep 3600 & wait $!; done
fi

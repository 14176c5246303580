#!/bin/sh
# node.sh: installs vgpu on the node whose file system is at HOST, registers it with RUNTIME (containerd or crio), and keeps
# running, so that the DaemonSet is ready when the node is. Requires the node's PID namespace.
#   RESTART=no    does not restart the runtime
#   UNINSTALL=yes removes vgpu instead, and keeps running
#   CDI_DIR       the node's folder of CDI specifications, from which those of vgpu are removed
#   POLICY        file to install as the node's /etc/vgpu/config.toml, if it exists
#   STAY=no       exits when done
set -eu
here=$(dirname "$0")
host=${HOST:-/host}
runtime=${RUNTIME:-containerd}

# on_node COMMAND…: runs a program of the node in the node's mount namespace.
on_node() {
    ${ENTER:-nsenter --target 1 --mount --} "$@"
}

# restart_runtime: makes the runtime read its configuration. Pods keep running while containerd or CRI-O restarts.
restart_runtime() {
    if [ "${RESTART:-yes}" = yes ]; then
        on_node systemctl restart "$runtime"
    fi
}

# configure ARGS…: runs "vgpu configure", and restarts the runtime if its configuration has changed.
configure() {
    changed=$(on_node /usr/bin/vgpu configure "$runtime" "$@" --dry-run)
    on_node /usr/bin/vgpu configure "$runtime" "$@"
    if [ -n "$changed" ]; then
        restart_runtime
    fi
}

if [ "${UNINSTALL:-no}" = yes ]; then
    if [ -x "$host/usr/bin/vgpu" ]; then
        configure --undo
        ROOT=$host "$here/install.sh" uninstall
    fi
    # They name the hook, which is gone.
    rm -f "$host${CDI_DIR:-/var/run/cdi}"/vgpu.io-*.json
else
    if [ -e "${POLICY:-/policy/config.toml}" ]; then
        mkdir -p "$host/etc/vgpu"
        cp "${POLICY:-/policy/config.toml}" "$host/etc/vgpu/.config.toml.new"
        mv "$host/etc/vgpu/.config.toml.new" "$host/etc/vgpu/config.toml"
    fi
    ROOT=$host "$here/install.sh" install
    configure
    on_node /usr/bin/vgpu check || true
fi

if [ "${STAY:-yes}" = yes ]; then
    trap 'exit 0' TERM INT
    while :; do sleep 3600 & wait $!; done
fi

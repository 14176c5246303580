#!/bin/sh
# driver.sh PROGRAM ARGS…: runs a program of this image with the NVML of the node whose file system is at HOST. The node's other
# libraries are not on the search path, because they may not match this image's C library. The driver may be installed later or be
# replaced, as by the GPU Operator: it is looked for every LOOK seconds (default: 5).
set -eu
host=${HOST:-/host}
folder=$(mktemp -d)

# place: makes the folder's link lead to the node's NVML, or removes it if the node has none.
place() {
    for path in ${NVML_PLACES:-usr/lib/x86_64-linux-gnu usr/lib64 usr/lib usr/lib/wsl/lib home/kubernetes/bin/nvidia/lib64 run/nvidia/driver/usr/lib/x86_64-linux-gnu run/nvidia/driver/usr/lib64}; do
        if [ -e "$host/$path/libnvidia-ml.so.1" ]; then
            ln -sfn "$host/$path/libnvidia-ml.so.1" "$folder/.new"
            mv -fT "$folder/.new" "$folder/libnvidia-ml.so.1"
            return
        fi
    done
    rm -f "$folder/libnvidia-ml.so.1"
}

place
program=$$
while sleep "${LOOK:-5}" && kill -0 "$program" 2>/dev/null; do place; done >/dev/null 2>&1 &
export LD_LIBRARY_PATH="$folder"
exec "$@"

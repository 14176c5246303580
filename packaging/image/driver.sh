#!/bin/sh
# driver.sh PROGRAM ARGS…: runs a program of this image with the NVML of the node whose file system is at HOST. The node's other
# libraries are not on the search path, because they may not match this image's C library.
set -eu
host=${HOST:-/host}
folder=$(mktemp -d)
for path in ${NVML_PLACES:-usr/lib/x86_64-linux-gnu usr/lib64 usr/lib usr/lib/wsl/lib home/kubernetes/bin/nvidia/lib64 run/nvidia/driver/usr/lib/x86_64-linux-gnu run/nvidia/driver/usr/lib64}; do
    if [ -e "$host/$path/libnvidia-ml.so.1" ]; then
        ln -s "$host/$path/libnvidia-ml.so.1" "$folder/libnvidia-ml.so.1"
        break
    fi
done
export LD_LIBRARY_PATH="$folder"
exec "$@"

#!/bin/sh
# driver.sh PROGRAM ARGS…: runs a program of this image with the NVML of the node whose file system is at HOST. Of the node's libraries
# only that one is shown: the others are not for this image's C library.
set -eu
host=${HOST:-/host}
folder=$(mktemp -d)
for place in ${NVML_PLACES:-usr/lib/x86_64-linux-gnu usr/lib64 usr/lib usr/lib/wsl/lib home/kubernetes/bin/nvidia/lib64 run/nvidia/driver/usr/lib/x86_64-linux-gnu run/nvidia/driver/usr/lib64}; do
    if [ -e "$host/$place/libnvidia-ml.so.1" ]; then
        ln -s "$host/$place/libnvidia-ml.so.1" "$folder/libnvidia-ml.so.1"
        break
    fi
done
export LD_LIBRARY_PATH="$folder"
exec "$@"

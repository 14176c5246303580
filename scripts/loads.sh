#!/bin/sh
# loads.sh FOLDER DRIVER: builds the programs that reach the driver in one certain way each (tests/programs/src/load.c), for glibc 2.17.
# DRIVER is a libcuda.so.1 to link to, of which only the names count; the simulated one does.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
zigbuild
folder=$1
cc() {
    out=$1
    shift
    python3 -m ziglang cc -target x86_64-linux-gnu.2.17 -O1 -o "$folder/.$out.new" tests/programs/src/load.c "$@"
    mv "$folder/.$out.new" "$folder/$out"
}
cc load -ldl
cc linked -DLINKED "$2"
cc plugin.so -DLINKED -DPLUGIN -shared -fPIC "$2"

#!/bin/sh
# loads.sh FOLDER DRIVER: builds the programs that each load the driver in a different way (tests/programs/src/load.c), one that uses it as
# the CUDA runtime does (runtime.c), and a library with an ioctl of its own, for glibc 2.17. DRIVER is the libcuda.so.1 to link to. Only its symbol names matter, so the simulated one suffices.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
zigbuild
folder=$1
cc() {
    out=$1
    shift
    python3 -m ziglang cc -target x86_64-linux-gnu.2.17 -O1 -o "$folder/.$out.new" "$@"
    mv "$folder/.$out.new" "$folder/$out"
}
source=tests/programs/src/load.c
cc load $source -ldl
cc linked $source -DLINKED "$2"
cc plugin.so $source -DLINKED -DPLUGIN -shared -fPIC "$2"
cc runtime tests/programs/src/runtime.c -ldl
cc ioctl.so tests/programs/src/ioctl.c -shared -fPIC

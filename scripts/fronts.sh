#!/bin/sh
# fronts.sh FOLDER: builds the two libraries that are mounted over the driver's (policy intercept = "replace" or "both").
# They contain no code. Each has the name of a driver library, and depends on libvgpu.so and then on the driver's own library,
# by their paths in a container. A program that loads a front gets vgpu's functions first, then the driver's others.
#
# For link editors a front defines the driver's functions: a module that is compiled in a container (Triton does that for each program) and
# linked with --as-needed depends on the library only if that defines a function which the module calls. For the dynamic loader it defines
# none: the loader looks names up in the hash table, whose buckets are emptied here, and link editors read the symbol table.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
zigbuild
folder=$1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Folder of the libraries in a container, as in region/src/paths.rs.
inside=/usr/local/vgpu

# link SONAME ARGUMENT…: the classic hash table is the only one, as loaders prefer GNU's.
link() {
    soname=$1
    shift
    python3 -m ziglang cc -target x86_64-linux-gnu.2.17 -shared -nostdlib -Wl,--no-as-needed -Wl,--hash-style=sysv -s \
        "-Wl,-soname,$soname" "$@"
}

# functions NAMES: the assembly of a library that defines what tests/surface lists of the driver, all in one place.
functions() {
    echo .text
    cut -d ' ' -f 1 "tests/surface/driver-580/$1.txt" "tests/surface/cuda-13.5/$1.txt" | LC_ALL=C sort -u |
        sed 's/.*/.globl &\n.type &, @function\n&:/'
    echo ud2
}

# empty_buckets LIBRARY: zeroes the buckets of its hash table. The table is two counts, the buckets and the chains, 32 bits each.
empty_buckets() {
    python3 - "$1" <<'END'
import struct, sys
with open(sys.argv[1], "r+b") as file:
    elf = file.read()
    sections, size, count = (struct.unpack_from(form, elf, at)[0] for form, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    (table,) = (struct.unpack_from("<Q", elf, at + 24)[0] for at in range(sections, sections + size * count, size)
                if struct.unpack_from("<I", elf, at + 4)[0] == 5)  # SHT_HASH
    file.seek(table + 8)
    file.write(bytes(4 * struct.unpack_from("<I", elf, table)[0]))
END
}

echo >"$made/nothing.c"
mkdir -p "$folder"
# Empty libraries to link to; only their names matter.
link "$inside/libvgpu.so" -o "$made/libvgpu.so" "$made/nothing.c"
for library in libcuda.so.1:cuda libnvidia-ml.so.1:nvml; do
    name=${library%%:*}
    link "$inside/driver/$name" -o "$made/driver-$name" "$made/nothing.c"
    functions "${library##*:}" >"$made/functions.s"
    link "$name" -o "$folder/.$name.new" "$made/libvgpu.so" "$made/driver-$name" "$made/functions.s"
    empty_buckets "$folder/.$name.new"
    mv "$folder/.$name.new" "$folder/$name"
done

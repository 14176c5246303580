#!/bin/sh
# check-library.sh LIBVGPU: whether the library is one that can be loaded into every process of every container: nothing newer than
# glibc 2.17, nothing but libc.so.6, no code that runs at loading, and every symbol that it asks for in glibc 2.17.
set -eu
cd "$(dirname "$0")/.."
library=$1
failed=0
wrong() {
    echo "$library: $1" >&2
    failed=1
}

newest=$(objdump -T "$library" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -1)
[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -1)" = 2.17 ] || wrong "asks for GLIBC_$newest; 2.17 is the newest that it may"
needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
[ "$needed" = "libc.so.6 " ] || wrong "needs $needed; only libc.so.6 may be needed"
for section in .init_array .ctors .preinit_array .fini_array .dtors; do
    readelf -SW "$library" | grep -q " \\$section " && wrong "has code that runs by itself ($section)"
done
readelf -dW "$library" | grep -qE '\((INIT|FINI|INIT_ARRAY|FINI_ARRAY)\)' && wrong "has code that runs by itself (DT_INIT or DT_FINI)"
readelf -dW "$library" | grep -qE 'TEXTREL|RPATH|RUNPATH' && wrong "has text relocations or a search path of its own"
[ "$(readelf -lW "$library" | grep -c '^ *LOAD ')" = 2 ] || wrong "makes more mappings than two, which every process pays for (preload/link.ld)"
pages=$(readelf -rW "$library" | sed -n 's/^\([0-9a-f]*\)[0-9a-f]\{3\} .*R_X86_64_.*/\1/p' | sort -u | wc -l)
[ "$pages" = 1 ] || wrong "is relocated in $pages pages; each but the first costs every process a copy (preload/link.ld)"
readelf -lW "$library" | grep -q 'GNU_STACK.*RWE' && wrong "asks for an executable stack"
if [ $failed = 0 ]; then echo "$library: glibc ${newest:-none} at most, needs ${needed% }, runs nothing at loading"; fi
exit $failed

#!/bin/sh
# check-library.sh LIBVGPU: checks that the library can be loaded into every process of every container. It requires only
# libc.so.6 of glibc 2.17, and has no code that runs when it is loaded.
set -eu
cd "$(dirname "$0")/.."
library=$1
failed=0
fail() {
    echo "$library: $1" >&2
    failed=1
}

newest=$(objdump -T "$library" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -1)
[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -1)" = 2.17 ] || fail "requires GLIBC_$newest: expected 2.17 or older"
needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
[ "$needed" = "libc.so.6 " ] || fail "requires $needed: expected libc.so.6 only"
for section in .init_array .ctors .preinit_array .fini_array .dtors; do
    readelf -SW "$library" | grep -q " \\$section " && fail "has code that runs when it is loaded ($section)"
done
readelf -dW "$library" | grep -qE '\((INIT|FINI|INIT_ARRAY|FINI_ARRAY)\)' && fail "has code that runs when it is loaded (DT_INIT, DT_FINI)"
readelf -dW "$library" | grep -qE 'TEXTREL|RPATH|RUNPATH' && fail "has text relocations or a search path (RPATH, RUNPATH)"
[ "$(readelf -lW "$library" | grep -c '^ *LOAD ')" = 2 ] || fail "expected two LOAD segments; each costs a mapping per process (preload/link.ld)"
pages=$(readelf -rW "$library" | sed -n 's/^\([0-9a-f]*\)[0-9a-f]\{3\} .*R_X86_64_.*/\1/p' | sort -u | wc -l)
[ "$pages" = 1 ] || fail "has relocations in $pages pages: expected 1; each further page costs a copy per process (preload/link.ld)"
readelf -lW "$library" | grep -q 'GNU_STACK.*RWE' && fail "requires an executable stack"
if [ $failed = 0 ]; then echo "$library: glibc ${newest:-none} or later, requires ${needed% }, runs no code when loaded"; fi
exit $failed

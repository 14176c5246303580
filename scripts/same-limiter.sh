#!/bin/sh
# same-limiter.sh BASE [SEEDS]: proves that the compute limiter behaves as it did at the git revision BASE. Builds the recorder
# (`records_what_programs_use`) there and in this tree, runs the same random programs on the simulated GPU with both (10000 seeds by default),
# and compares the records line by line. Exits with 0 if they are identical; else with 1, after the first lines that differ.
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { echo "usage: $0 BASE [SEEDS]" >&2; exit 2; }
base=$(git rev-parse --verify "$1^{commit}")
count=${2:-10000}
. scripts/tools.sh

test=records_what_programs_use
folder=$target/same-limiter
# Every program leaks what the library never frees, too: a process records no more seeds than fit into its memory.
chunk=1000

# record TREE NAME: writes the records of the sources in TREE to $folder/NAME.txt. The crate is found by the test, as it may have another name.
record() {
    source=$(git -C "$1" grep --untracked --full-name -l "fn $test" -- '*.rs' | head -n 1)
    [ -n "$source" ] || { echo "$2: no test $test" >&2; return 2; }
    crate=$1/$(dirname "$source")
    while [ ! -e "$crate/Cargo.toml" ]; do crate=$(dirname "$crate"); done
    echo "$2: building $(basename "$crate")" >&2
    # Two trees must not share a folder: cargo would take the build of one for the other's.
    CARGO_TARGET_DIR=$folder/target-$2 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo test --quiet --release --lib --no-run --message-format=json --manifest-path "$crate/Cargo.toml" >"$folder/$2.json"
    binary=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$folder/$2.json")
    echo "$2: recording $count seeds" >&2
    rm -rf "$folder/$2" && mkdir "$folder/$2"
    seq 0 $chunk $((count - 1)) | xargs -P "$(nproc)" -I FROM sh -euc '
        from=$1 to=$(($1 + $2))
        [ $to -le $3 ] || to=$3
        part=$4/$(printf %010d "$from")
        VGPU_RECORD_SEEDS=$from..$to VGPU_RECORD=$part.txt "$5" "$6" --include-ignored >"$part.log" 2>&1 || { cat "$part.log" >&2; exit 255; }
    ' sh FROM $chunk "$count" "$folder/$2" "$binary" $test
    cat "$folder/$2"/*.txt >"$folder/$2.txt"
    [ "$(wc -l <"$folder/$2.txt")" -eq "$count" ] || { echo "$2: expected $count lines" >&2; return 2; }
}

remove() {
    git worktree remove --force "$folder/tree" 2>/dev/null || rm -rf "$folder/tree"
}

mkdir -p "$folder"
remove
trap remove EXIT
git worktree add --quiet --force --detach "$folder/tree" "$base"
record "$folder/tree" base
record "$PWD" now
if cmp -s "$folder/base.txt" "$folder/now.txt"; then
    echo "$count seeds: identical"
else
    echo "$count seeds: $(diff "$folder/base.txt" "$folder/now.txt" | grep -c '^>') differ, first:"
    diff "$folder/base.txt" "$folder/now.txt" | head -n 20
    exit 1
fi

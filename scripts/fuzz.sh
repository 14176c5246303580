#!/bin/sh
# fuzz.sh [-s SECONDS] [-n EXECUTIONS] [TARGET...]: fuzzes the targets of tests/fuzz with libFuzzer, two at a time; all of them by default.
# Each target stops after SECONDS (60 by default) or EXECUTIONS, or at a failure, whose input is then in target/fuzz/artifacts/TARGET.
#   scripts/fuzz.sh -m [TARGET...]    minimizes the collected inputs into tests/fuzz/corpus
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages g++:g++
PATH="$target/fuzz/bin:$PATH"
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "installing cargo-fuzz into $target/fuzz" >&2
    cargo install --quiet --locked --root "$target/fuzz" cargo-fuzz
fi

seconds=60 executions= minimize=
while getopts s:n:m option; do
    case $option in
    s) seconds=$OPTARG ;;
    n) executions=$OPTARG seconds=0 ;;
    m) minimize=1 ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- $(ls tests/fuzz/libfuzzer/fuzz_targets | sed 's/\.rs$//')

# Sanitizers are unstable in rustc. RUSTC_BOOTSTRAP admits them in a stable one.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$target/fuzz/build"
fuzz() {
    command=$1
    shift
    cargo fuzz "$command" --fuzz-dir tests/fuzz/libfuzzer "$@"
}
fuzz build >"$target/fuzz/build.log" 2>&1 || {
    tail -40 "$target/fuzz/build.log" >&2
    exit 1
}

# one TARGET: fuzzes it, and prints its number of executions.
one() {
    collected=$target/fuzz/corpus/$1
    artifacts=$target/fuzz/artifacts/$1
    mkdir -p "$collected" "$artifacts" "tests/fuzz/corpus/$1"
    if [ -n "$minimize" ]; then
        rm -rf "$collected.minimal"
        mkdir "$collected.minimal"
        program "$1" -merge=1 -max_len=8192 "$collected.minimal" "tests/fuzz/corpus/$1" "$collected" >"$target/fuzz/$1.log" 2>&1
        rm -rf "tests/fuzz/corpus/$1"
        cp -r "$collected.minimal" "tests/fuzz/corpus/$1"
        echo "$1: $(ls "tests/fuzz/corpus/$1" | wc -l) inputs"
        return
    fi
    dictionary=tests/fuzz/dictionaries/$1
    if program "$1" -max_total_time="$seconds" ${executions:+-runs=$executions} -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        $([ ! -e "$dictionary" ] || echo "-dict=$dictionary") -artifact_prefix="$artifacts/" \
        "$collected" "tests/fuzz/corpus/$1" $(ls -d "tests/fuzz/regressions/$1" 2>/dev/null) >"$target/fuzz/$1.log" 2>&1; then
        echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$target/fuzz/$1.log") executions"
    else
        echo "$1: FAILED; see $target/fuzz/$1.log and $artifacts" >&2
        grep -m 3 -E 'panicked|ERROR|SUMMARY|ALARM' -A 1 "$target/fuzz/$1.log" >&2
        return 1
    fi
}

# program TARGET ARGS...: runs a target's program.
program() {
    name=$1
    shift
    "$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/$name" "$@"
}

failed=$target/fuzz/failed
rm -f "$failed"
while [ $# -gt 0 ]; do
    (one "$1" || touch "$failed") &
    shift
    if [ $# -gt 0 ]; then
        (one "$1" || touch "$failed") &
        shift
    fi
    wait
done
[ ! -e "$failed" ]

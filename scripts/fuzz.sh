#!/bin/sh
# fuzz.sh [-r] [-s SECONDS] [-n EXECUTIONS] [TARGET...]: fuzzes the targets of tests/fuzz with libFuzzer, two at a time; all of them by
# default. Each target stops after SECONDS (60 by default) or EXECUTIONS, or at a failure, whose input is then in
# target/fuzz/artifacts/TARGET. -r records the number of executions in tests/fuzz/results.md.
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

seconds=60 executions= minimize= record=
while getopts rs:n:m option; do
    case $option in
    s) seconds=$OPTARG ;;
    n) executions=$OPTARG seconds=0 ;;
    m) minimize=1 ;;
    r) record=1 ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- $(ls tests/fuzz/libfuzzer/fuzz_targets | sed 's/\.rs$//')

# Targets that read memory by unsafe code run with AddressSanitizer. It finds nothing in the others, which are all safe code (loader: the
# object ends at a page that cannot be read), and costs half of the executions. Debug assertions and checks of overflow are on in both.
sanitized="account device_code"

# Sanitizers are unstable in rustc. RUSTC_BOOTSTRAP admits them in a stable one.
export RUSTC_BOOTSTRAP=1
mkdir -p "$target/fuzz"

# sanitizer TARGET: prints the sanitizer that the target is built with.
sanitizer() {
    case " $sanitized " in
    *" $1 "*) echo address ;;
    *) echo none ;;
    esac
}

# build SANITIZER: builds the programs of the targets with this sanitizer. Each sanitizer has its own folder: the other's would be built anew.
build() {
    for name in $(ls tests/fuzz/libfuzzer/fuzz_targets | sed 's/\.rs$//'); do
        case " $targets " in
        *" $name "*) [ "$(sanitizer "$name")" != "$1" ] || echo "$name" ;;
        esac
    done >"$target/fuzz/build.$1"
    while read -r name; do
        CARGO_TARGET_DIR="$target/fuzz/build-$1" cargo fuzz build -s "$1" --fuzz-dir tests/fuzz/libfuzzer "$name" </dev/null \
            >"$target/fuzz/build.log" 2>&1 || {
            tail -40 "$target/fuzz/build.log" >&2
            exit 1
        }
    done <"$target/fuzz/build.$1"
}
targets="$*"
build address
build none

# one TARGET: fuzzes it, and prints its number of executions.
one() {
    collected=$target/fuzz/corpus/$1
    artifacts=$target/fuzz/artifacts/$1
    mkdir -p "$collected" "$artifacts" "tests/fuzz/corpus/$1"
    if [ -n "$minimize" ]; then
        rm -rf "$collected.minimal"
        mkdir "$collected.minimal"
        program "$1" -merge=1 "$collected.minimal" "tests/fuzz/corpus/$1" "$collected" >"$target/fuzz/$1.log" 2>&1
        rm -rf "tests/fuzz/corpus/$1"
        cp -r "$collected.minimal" "tests/fuzz/corpus/$1"
        echo "$1: $(ls "tests/fuzz/corpus/$1" | wc -l) inputs"
        return
    fi
    dictionary=tests/fuzz/dictionaries/$1
    began=$(date +%s)
    if program "$1" -max_total_time="$seconds" ${executions:+-runs=$executions} -timeout=30 -rss_limit_mb=4096 -print_final_stats=1 \
        $([ ! -e "$dictionary" ] || echo "-dict=$dictionary") -artifact_prefix="$artifacts/" \
        "$collected" "tests/fuzz/corpus/$1" $(ls -d "tests/fuzz/regressions/$1" 2>/dev/null) >"$target/fuzz/$1.log" 2>&1; then
        count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$target/fuzz/$1.log")
        rate=$((count / ($(date +%s) - began + 1)))
        echo "$1: $count executions, $rate a second"
        echo "| $1 | $count | $rate | $(sanitizer "$1") | $(date +%F) |" >"$target/fuzz/$1.row"
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
    "$target/fuzz/build-$(sanitizer "$name")/x86_64-unknown-linux-gnu/release/$name" -max_len=8192 "$@"
}

failed=$target/fuzz/failed
rm -f "$failed" "$target"/fuzz/*.row
while [ $# -gt 0 ]; do
    (one "$1" || touch "$failed") &
    shift
    if [ $# -gt 0 ]; then
        (one "$1" || touch "$failed") &
        shift
    fi
    wait
done
if [ -n "$record" ]; then
    results=tests/fuzz/results.md rows='^\| [a-z_]+ \| [0-9]'
    # Of two rows of a target, the first one stays: the new one.
    { cat "$target"/fuzz/*.row; grep -E "$rows" "$results"; } 2>/dev/null | sort -s -u -t '|' -k 2,2 >"$target/fuzz/rows"
    { grep -v -E "$rows" "$results"; cat "$target/fuzz/rows"; } >"$target/fuzz/results.md"
    cat "$target/fuzz/results.md" >"$results"
fi
[ ! -e "$failed" ]

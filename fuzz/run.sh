#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a bounded time. Ends with 1 if one of them found something.
#
#   fuzz/run.sh [--build] [--seconds N] [TARGET…]
#
# --build only builds. Without targets all of them run, 20 s each. What was found lies in fuzz/artifacts/TARGET;
# fuzz/README.md says how to run it again. Needs Rust and a C++ compiler, and nothing that is not on stable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'fuzz: %s\n' "$*"; }
die() { printf 'fuzz: error: %s\n' "$*" >&2; exit 2; }

seconds=20 only_build=false targets=()
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
        --build) only_build=true; shift ;;
        -*) die "unknown option '$1'. Usage: fuzz/run.sh [--build] [--seconds N] [TARGET…]" ;;
        *) targets+=("$1"); shift ;;
    esac
done
[ ${#targets[@]} -gt 0 ] || for file in targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
for target in "${targets[@]}"; do
    [ -e "targets/$target.rs" ] || die "there is no target '$target'. There are: $(cd targets && echo *.rs)"
done
command -v c++ >/dev/null || die "no C++ compiler; on Debian, tools/setup.sh --fuzz installs g++"

# What cargo-fuzz would pass, so that neither it nor a nightly compiler is needed. With an explicit target
# the flags do not reach build scripts and macros.
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
export CARGO_TARGET_DIR=$PWD/target
say "building"
cargo build --quiet --release --target "$host" "${targets[@]/#/--bin=}"
if $only_build; then exit 0; fi

# Seeds are text that people can read; those that end in .hex become bytes.
bytes() { sed 's/#.*//' "$1" | perl -0777 -ne 's/\s//g; print pack("H*", $_)'; }
plant() { # TARGET FILE…
    local file folder=target/seeds/$1
    shift
    rm -rf "$folder"
    mkdir -p "$folder"
    for file in "$@"; do
        case $file in
            *.hex) bytes "$file" >"$folder/$(basename "$file" .hex)" ;;
            *) cp "$file" "$folder/" ;;
        esac
    done
}

failed=()
for target in "${targets[@]}"; do
    case $target in
        request) plant request ../crates/protocol/tests/golden/*.hex ;;
        *) plant "$target" seeds/"$target"/* ;;
    esac
    mkdir -p "corpus/$target" "artifacts/$target"
    log=target/$target.log
    say "$target: running for $seconds s"
    if "target/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="artifacts/$target/" "corpus/$target" "target/seeds/$target" >"$log" 2>&1 </dev/null; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        coverage=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
        say "$target: nothing found in ${runs:-?} runs, ${coverage:-?} places reached"
    else
        tail -n 40 "$log"
        say "$target: FOUND SOMETHING (above; all of it in fuzz/$log, the input in fuzz/artifacts/$target)"
        failed+=("$target")
    fi
done
[ ${#failed[@]} = 0 ] || { say "failed: ${failed[*]}"; exit 1; }

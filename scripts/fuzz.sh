#!/usr/bin/env bash
# Coverage-guided fuzzing of what reads files, on stable Rust (docs/testing.md):
#
#     scripts/fuzz.sh [SECONDS] [TARGET...]       60 seconds for each of file, folder and config, if not told otherwise
#
# Cases that were found stay in target/fuzz/corpus/TARGET, where the next run begins. What fails is left in
# target/fuzz/failed/TARGET-*; give that to the binary again: target/fuzz/.../TARGET FILE. Needs g++ for libFuzzer.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]     60 seconds for each of file, folder and config, if not told otherwise"; }
case ${1:-} in -h | --help) usage; exit 0 ;; esac
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(file folder config)
# libFuzzer would take another word as 0, which is no end.
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: $seconds is no number of seconds" >&2; usage >&2; exit 2; }
for target in "${targets[@]}"; do
    case $target in file | folder | config) ;; *) echo "fuzz.sh: $target is no target" >&2; usage >&2; exit 2 ;; esac
done

host=$(rustc -vV | sed -n 's/^host: //p')
# What cargo-fuzz passes, less the sanitizer, which needs a nightly compiler. With --target it does not reach build scripts.
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters'
flags+=' -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing'
RUSTFLAGS=$flags cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz

mkdir -p target/fuzz/failed
failed=0
for target in "${targets[@]}"; do
    corpus=target/fuzz/corpus/$target
    mkdir -p "$corpus"
    echo "=== $target, $seconds s"
    # A case has one second of CPU time by the harness, and ten by the wall clock here, where machines are busy.
    "target/fuzz/$host/release/$target" "$corpus" "fuzz/corpus/$target" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=1024 -max_len=4096 -len_control=0 -dict=fuzz/words.dict -artifact_prefix="target/fuzz/failed/$target-" \
        -print_final_stats=1 -verbosity=1 2> "target/fuzz/$target.log" || failed=1
    grep -E 'ERROR|panicked|assertion|SUMMARY|stat::number_of_executed_units' "target/fuzz/$target.log" || true
    tail -n 1 "target/fuzz/$target.log"
done
# The files of cases are in memory, one folder a process; those of processes that ended stay behind.
for folder in /dev/shm/scaled-gemm-fuzz-* "${TMPDIR:-/tmp}"/scaled-gemm-fuzz-*; do
    [ -d "$folder" ] && [ ! -d "/proc/${folder##*-}" ] && rm -r "$folder"
done
exit "$failed"

#!/usr/bin/env bash
# Runs a bundle made by scripts/bundle.sh on a GPU machine.
# usage: run.sh test [NAME...] | bench [NAME...] | sanitize [TOOL...] | nvrtc | all      results under $OUT (default: ./out)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD/out}
mkdir -p "$out"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export SCALED_GEMM_REQUIRE_GPU=1 SCALED_GEMM_CACHE=${SCALED_GEMM_CACHE:-/tmp/scaled-gemm-cache}
export SCALED_GEMM_COMMIT="$(tr '\n' ' ' <"$here/commit" 2>/dev/null)"
failed=0
run_tests() { # wrapper..., then names after --
    local wrapper=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do wrapper+=("$1"); shift; done
    [ $# -gt 0 ] && shift
    local names=("$@")
    [ ${#names[@]} -gt 0 ] || names=($(cd "$here/tests" && ls))
    for name in "${names[@]}"; do
        # The tests read files relative to the package.
        if (cd "$here" && "${wrapper[@]}" "tests/$name" --test-threads="${TEST_THREADS:-4}") >"$logs/$name.log" 2>&1; then
            echo "ok      $name: $(grep -h '^test result' "$logs/$name.log" | tail -1)"
        else
            echo "FAILED  $name"; grep -E 'panicked|FAILED|ERROR SUMMARY|must be|skipped' -A2 "$logs/$name.log" | tail -40; failed=1
        fi
    done
    cat "$logs"/*.log >>"$out/tests.txt" 2>/dev/null
}
run_benches() {
    local names=("$@")
    [ ${#names[@]} -gt 0 ] || names=($(cd "$here/benches" && ls | grep -v '^cpu$'))
    for name in "${names[@]}"; do
        export SCALED_GEMM_COMMAND="run.sh bench $name"
        "$here/benches/$name" --bench 2>&1 | tee "$out/bench-$name.md" || failed=1
    done
}
what=${1:-all}; shift || true
case $what in
    test) run_tests -- "$@" ;;
    bench) run_benches "$@" ;;
    nvrtc) SCALED_GEMM_KERNELS=nvrtc run_tests -- "${@:-gpu_quantize}" ;;
    sanitize)
        for tool in "${@:-memcheck racecheck synccheck initcheck}"; do
            for tool in $tool; do
                echo "## compute-sanitizer --tool $tool"
                TEST_THREADS=1 SCALED_GEMM_SANITIZER=1 run_tests compute-sanitizer --tool "$tool" --error-exitcode 9 -- $(cd "$here/tests" && ls | grep '^gpu_')
                grep -h 'ERROR SUMMARY' "$logs"/gpu_*.log
            done
        done ;;
    all) run_tests --; SCALED_GEMM_KERNELS=nvrtc run_tests -- gpu_quantize; run_benches ;;
    *) echo "usage: run.sh test | bench | sanitize | nvrtc | all" >&2; exit 2 ;;
esac
exit $failed

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
        # memcheck sees every kernel; the others ours only: they know nothing of the barriers in cuBLASLt's. The suites
        # that cross everything would take hours under them, so these run the tests that reach each kernel once.
        for tool in ${@:-memcheck racecheck synccheck initcheck}; do
            echo "## compute-sanitizer --tool $tool"
            for name in gpu_epilogue gpu_quantize gpu_gemm gpu_graph gpu_threads gpu_tune gpu_memory; do
                only=() tests=()
                if [ "$tool" != memcheck ]; then
                    only=(--kernel-regex "kns=quantize|epilogue|amax|repeat")
                    case $name in
                        gpu_quantize) tests=(strided given amax_of dequantize refusals) ;;
                        gpu_gemm) tests=(e4m3 every_epilogue_row every_epilogue_1x128_by_128x128) ;;
                        gpu_graph | gpu_threads | gpu_memory) continue ;;
                    esac
                fi
                (cd "$here" && compute-sanitizer --tool "$tool" --error-exitcode 9 "${only[@]}" "tests/$name" --test-threads 1 "${tests[@]}") >"$logs/$name.log" 2>&1 || { echo "FAILED  $name"; failed=1; grep -E '^=========' "$logs/$name.log" | head -20; }
                echo "$tool $name: $(grep -hE 'SUMMARY|^test result' "$logs/$name.log" | tr '\n' ' ')"
            done
        done ;;
    all) run_tests --; SCALED_GEMM_KERNELS=nvrtc run_tests -- gpu_quantize; run_benches ;;
    *) echo "usage: run.sh test | bench | sanitize | nvrtc | all" >&2; exit 2 ;;
esac
exit $failed

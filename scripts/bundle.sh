#!/usr/bin/env bash
# Packs the GPU suites, the unit tests, the benchmarks and the program, stripped, with a runner, for a GPU machine that
# has no toolchain.
# usage: scripts/bundle.sh [DIR=.bundle]      then there: DIR/run.sh test | bench | sanitize | all
# Kernels: machine code where nvcc is found here (see build.rs), else NVRTC compiles them on that machine.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-.bundle}
rm -rf "$dir"
mkdir -p "$dir/tests" "$dir/benches"
executables() { # kind of target, cargo's arguments
    local kind=$1; shift
    cargo build --release --message-format=json-render-diagnostics "$@" |
        python3 -c '
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["reason"] == "compiler-artifact" and sys.argv[1] in m["target"]["kind"]:
        print(m["executable"], m["target"]["name"])' "$kind"
}
pack() { while read -r file name; do case $name in $3) strip -o "$2/$1$name" "$file" ;; esac; done; }
executables test --tests -p scaled-gemm | pack "" "$dir/tests" 'gpu_*'
executables lib --lib --tests -p scaled-gemm | pack unit- "$dir/tests" 'scaled_gemm'
executables test --tests -p scaled-gemm-cli | pack "" "$dir/tests" 'cli_gpu'
executables bench --benches -p scaled-gemm | pack "" "$dir/benches" '*'
executables bin --bins -p scaled-gemm-cli | pack "" "$dir" 'scaled-gemm'
cp scripts/bundle-run.sh "$dir/run.sh"
cp -r tests/data "$dir/" 2>/dev/null || true
git rev-parse HEAD >"$dir/commit" 2>/dev/null || true
[ -z "$(git status --porcelain 2>/dev/null)" ] || echo "with uncommitted changes" >>"$dir/commit"
du -sh "$dir"

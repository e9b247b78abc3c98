#!/usr/bin/env bash
# Packs the GPU suites, the unit tests, the benchmarks and the program, stripped, with a runner, for a GPU machine that
# has no toolchain.
# usage: scripts/bundle.sh [DIR=.bundle]      then there: DIR/run.sh test | bench | exhaustive | sanitize | nvrtc | all | where
# Kernels: machine code where nvcc is found here (see build.rs), else NVRTC compiles them on that machine.
# The executables hold the same kernels, so they travel as one archive whose window spans several of them.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-.bundle}
rm -rf "$dir"
tree=$dir/tree
mkdir -p "$tree/tests" "$tree/benches"
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
executables test --tests -p scaled-gemm | pack "" "$tree/tests" 'gpu_*'
executables lib --lib --tests -p scaled-gemm | pack unit- "$tree/tests" 'scaled_gemm'
executables test --tests -p scaled-gemm-cli | pack "" "$tree/tests" 'cli_gpu'
executables bench --benches -p scaled-gemm | pack "" "$tree/benches" '*'
executables bin --bins -p scaled-gemm-cli | pack "" "$tree" 'scaled-gemm'
cp scripts/bundle-run.sh "$dir/run.sh"
cp -r tests/data "$tree/" 2>/dev/null || true
git rev-parse HEAD >"$tree/commit" 2>/dev/null || true
[ -z "$(git status --porcelain 2>/dev/null)" ] || echo "with uncommitted changes" >>"$tree/commit"
du -sh "$tree"
tar -C "$tree" -c . | xz --lzma2=preset=2,dict=64MiB >"$dir/bundle.tar.xz"
rm -rf "$tree"
du -sh "$dir"

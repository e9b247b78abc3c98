#!/usr/bin/env bash
# Packs the GPU suites, the unit tests, the benchmarks and the program, stripped, with a runner, for a GPU machine that
# has no toolchain.
# usage: scripts/bundle.sh [--gpus 90a[,100a...] | --all-gpus] [DIR=.bundle]
#        then there: DIR/run.sh test | bench | exhaustive | hunt | soak | sanitize | nvrtc | portable | all | where
# Kernels: machine code for sm_90a, or the GPUs named, by nvcc (see build.rs: NVCC, CUDA_HOME, CUDA_PATH, PATH). With SCALED_GEMM_NVCC=off NVRTC compiles them there, in each process anew or from its cache.
# The executables hold the same kernels, so they travel as one archive whose window spans several of them.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n 's/^# usage: /usage: /p' scripts/bundle.sh; }
wrong() { usage >&2; exit 2; }
gpus=90a dir=
while [ $# -gt 0 ]; do
    case $1 in
        --gpus) gpus=${2:-}; [ -n "$gpus" ] || wrong; shift ;;
        --all-gpus) gpus= ;;
        -h | --help) usage; exit 0 ;;
        -*) wrong ;;
        *) [ -z "$dir" ] || wrong; dir=$1 ;;
    esac
    shift
done
dir=${dir:-.bundle}
# Before anything is deleted: build.rs would refuse them behind that, and only where there is an nvcc.
known=$(sed -n 's/^ *([0-9]*, "compute_[0-9a-z]*", "sm_\([0-9a-z]*\)"),$/\1/p' build.rs)
[ -n "$known" ] || { echo "bundle.sh: no list of GPUs in build.rs" >&2; exit 1; }
if [ -n "$gpus" ]; then
    # As build.rs reads them: spaces beside a comma are nothing, and behind a last comma there is one more word.
    while read -r gpu; do
        grep -qxF -e "$gpu" <<<"$known" || { echo "bundle.sh: --gpus $gpus: '$gpu' is not one of ${known//$'\n'/, }" >&2; exit 2; }
    done <<<"${gpus//,/$'\n'}"
fi
# Where build.rs looks. Without one the bundle is built in silence, and there hours of NVRTC come before the first test.
has_nvcc() {
    [ -z "${NVCC:-}" ] || return 0
    local folder folders=()
    IFS=: read -ra folders <<<"${CUDA_HOME:+$CUDA_HOME/bin:}${CUDA_PATH:+$CUDA_PATH/bin:}$PATH"
    for folder in "${folders[@]}"; do case $folder in /*) [ ! -f "$folder/nvcc" ] || return 0 ;; esac; done
    return 1
}
[ "${SCALED_GEMM_NVCC:-}" = off ] || has_nvcc || {
    echo "bundle.sh: no nvcc by NVCC, CUDA_HOME, CUDA_PATH or PATH: eval \"\$(scripts/cuda-toolchain.sh)\" brings one, or SCALED_GEMM_NVCC=off makes a bundle whose kernels NVRTC compiles there" >&2
    exit 1
}
export SCALED_GEMM_GPUS=$gpus
rm -rf "$dir"
tree=$dir/tree
mkdir -p "$tree/tests" "$tree/benches"
# One build for all, so that nothing is compiled twice: each executable, whether it is a test, its kind and its name.
cargo test --no-run --release --message-format=json-render-diagnostics -p scaled-gemm -p scaled-gemm-cli \
    --lib --test 'gpu_*' --test cli_gpu --benches 2>&1 >"$dir/messages" | tee "$dir/said" >&2
# A file without an image would be compiled by NVRTC there, and what is measured would be another compiler's.
if grep -E 'kernels/\S+\.cu: ' "$dir/said" >&2; then
    echo "bundle.sh: nvcc is here, and made no image of these files: mend them, or hide nvcc (SCALED_GEMM_NVCC=off) for a bundle whose kernels NVRTC compiles" >&2
    exit 1
fi
python3 - "$dir/messages" >"$dir/executables" <<'PY'
import json
import sys

for line in open(sys.argv[1]):
    m = json.loads(line)
    if m["reason"] == "compiler-artifact" and m.get("executable"):
        # The program's own tests have its name and kind.
        if m["target"]["kind"] == ["bin"] and m["profile"]["test"]:
            continue
        print(m["executable"], m["target"]["kind"][0], m["target"]["name"])
PY
while read -r file kind name; do
    case $kind:$name in
        lib:scaled_gemm) to=tests/unit-scaled_gemm ;;
        test:*) to=tests/$name ;;
        bench:*) to=benches/$name ;;
        bin:scaled-gemm) to=scaled-gemm ;;
        *) continue ;;
    esac
    strip -o "$tree/$to" "$file"
done <"$dir/executables"
[ -x "$tree/scaled-gemm" ] && [ -x "$tree/tests/unit-scaled_gemm" ] || { echo "bundle.sh: cargo built no program" >&2; exit 1; }
rm "$dir/messages" "$dir/said" "$dir/executables"
cp scripts/bundle-run.sh "$dir/run.sh"
cp -r tests/data "$tree/" 2>/dev/null || true
git rev-parse HEAD >"$tree/commit" 2>/dev/null || true
[ -z "$(git status --porcelain 2>/dev/null)" ] || echo "with uncommitted changes" >>"$tree/commit"
du -sh "$tree"
tar -C "$tree" -c . | xz --lzma2=preset=2,dict=64MiB >"$dir/bundle.tar.xz"
rm -rf "$tree"
du -sh "$dir"

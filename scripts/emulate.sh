#!/usr/bin/env bash
# Runs GPU suites on this machine's processors: kernels as NVRTC compiles them, interpreted by the crate emulator/.
#     scripts/emulate.sh [--gpu 9.0|8.0|...] SUITE... [-- FILTER and other arguments of the test programs]
# Needs NVRTC (SCALED_GEMM_NVRTC, or scripts/cuda-toolchain.sh). There is no cuBLASLt: suites that ask for it fail, or skip.
set -euo pipefail
cd "$(dirname "$0")/.."
gpu=9.0
suites=()
while [ $# -gt 0 ]; do
    case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --) shift; break ;;
    -*) sed -n '2,4p' "$0" >&2; exit 2 ;;
    *) suites+=(--test "$1"); shift ;;
    esac
done
if [ ${#suites[@]} -eq 0 ]; then
    sed -n '2,4p' "$0" >&2
    exit 2
fi
target=${CARGO_TARGET_DIR:-target}
cargo build --release --quiet -p scaled-gemm-emulator
# In a folder of its own: cargo's has other libraries. NVRTC looks for libcuda.so.1, and would ask it for what it does not have.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$(realpath "$target/release/libcuda.so")" "$folder/libcuda.so"
SCALED_GEMM_NVCC=off cargo test --quiet --no-run -p scaled-gemm "${suites[@]}"
SCALED_GEMM_NVCC=off LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SCALED_GEMM_EMULATED=$gpu SCALED_GEMM_KERNELS=nvrtc \
    SCALED_GEMM_CUBLASLT=off SCALED_GEMM_TEST_BARE=1 SCALED_GEMM_REQUIRE_GPU=1 \
    cargo test -p scaled-gemm "${suites[@]}" -- "$@"

#!/usr/bin/env bash
# Runs GPU suites on this machine's processors: kernels as NVRTC compiles them, interpreted by the crate emulator/.
#     scripts/emulate.sh [--gpu 9.0|8.0|...] SUITE... [-- FILTER and other arguments of the test programs]
# Needs NVRTC (SCALED_GEMM_NVRTC, or scripts/cuda-toolchain.sh). There is no cuBLASLt: tests that multiply by it fail.
set -euo pipefail
cd "$(dirname "$0")/.."
gpu=9.0
suites=()
while [ $# -gt 0 ]; do
    case $1 in
    --gpu)
        gpu=${2:?"--gpu wants a compute capability, as 9.0"}
        shift 2
        ;;
    --)
        shift
        break
        ;;
    -*)
        sed -n '2,4p' "$0" >&2
        exit 2
        ;;
    *)
        suites+=(--test "$1")
        shift
        ;;
    esac
done
if [ ${#suites[@]} -eq 0 ]; then
    sed -n '2,4p' "$0" >&2
    exit 2
fi
cargo build --release --quiet --package scaled-gemm-emulator
library=$(realpath "${CARGO_TARGET_DIR:-target}/release/libemulated_cuda.so")
# In a folder of its own, under this name alone: NVRTC asks a libcuda.so.1 for what is in no documentation, and goes on without one.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$library" "$folder/libcuda.so"
# By a runner, behind cargo, which puts its own folders first. The packages are those
# that `cargo test` takes, so that nothing is built anew for other features.
SCALED_GEMM_EMULATED=$gpu SCALED_GEMM_KERNELS=nvrtc SCALED_GEMM_CUBLASLT=off SCALED_GEMM_TEST_BARE=1 SCALED_GEMM_REQUIRE_GPU=1 \
    cargo test --config "target.'cfg(all())'.runner = ['env', 'LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}']" \
    "${suites[@]}" -- "$@"

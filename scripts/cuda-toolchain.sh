#!/usr/bin/env bash
# Makes a folder with nvcc, NVRTC and cuBLASLt from Python packages, and prints the exports that put it to use:
#     eval "$(scripts/cuda-toolchain.sh)"            # default folder: .cuda/toolchain
# Does nothing but print where the folder is complete already. All else goes to standard error.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then
    echo "usage: scripts/cuda-toolchain.sh [DIR]" >&2
    exit 2
fi
folder=${1:-$root/.cuda/toolchain}

# One toolkit, every part of it by exact version: nvcc's own parts must not run ahead of it. The disassembler is no part of it, and
# there is none as old.
packages=("cuda-toolkit[nvcc,cublas,nvrtc,cudart,cccl]==13.0.2" nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)
stamp=$folder/scaled-gemm-packages.txt
if [ "$(cat "$stamp" 2>/dev/null || true)" != "${packages[*]}" ]; then
    echo "installing ${packages[*]} into $folder" >&2
    python3 -m venv --clear "$folder" >&2
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" >&2
    home=$(echo "$folder"/lib/python3*/site-packages/nvidia/cu13)
    # -lcudart and friends want unversioned names, and nvcc looks for lib64.
    ln -sfn lib "$home/lib64"
    for file in "$home"/lib/lib*.so.*; do
        ln -sf "$(basename "$file")" "${file%%.so.*}.so"
    done
    echo "${packages[*]}" > "$stamp"
fi

folder=$(cd "$folder" && pwd)
home=$(echo "$folder"/lib/python3*/site-packages/nvidia/cu13)
for file in bin/nvcc bin/cuobjdump bin/nvdisasm lib/libcublasLt.so.13 lib/libnvrtc.so.13; do
    if [ ! -e "$home/$file" ]; then
        echo "$home/$file is missing: remove $folder and run this again" >&2
        exit 1
    fi
done
printf 'export CUDA_HOME=%q\n' "$home"
printf 'export PATH=%q:"$PATH"\n' "$home/bin"
printf 'export SCALED_GEMM_CUBLASLT=%q\n' "$home/lib/libcublasLt.so.13"
printf 'export SCALED_GEMM_NVRTC=%q\n' "$home/lib/libnvrtc.so.13"

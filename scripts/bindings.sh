#!/usr/bin/env bash
# Makes sys/src/bindings.rs from the pinned header packages; with --check, fails if the committed file differs.
set -euo pipefail
cd "$(dirname "$0")/.."

check=
case "${1:-}" in
    "") ;;
    --check) check=1 ;;
    *) echo "usage: scripts/bindings.sh [--check]" >&2; exit 2 ;;
esac

# The newest headers, and the libclang that reads them: the output depends on nothing else of this machine.
packages=(
    nvidia-cublas==13.10.0.20
    nvidia-cuda-runtime==13.5.37
    nvidia-cuda-crt==13.5.37
    nvidia-cuda-cccl==13.3.5.0.6
    libclang==18.1.1
)
home=$PWD/.cuda/bindings
stamp=$home/packages.txt
if [ "$(cat "$stamp" 2>/dev/null || true)" != "${packages[*]}" ]; then
    rm -rf "$home"
    mkdir -p "$home/wheels"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$home/wheels" "${packages[@]}"
    python3 - "$home" <<'PY'
import pathlib, sys, zipfile
home = pathlib.Path(sys.argv[1])
for wheel in (home / "wheels").glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/include/" in name or name.endswith("libclang.so"):
                archive.extract(name, home)
    wheel.unlink()
PY
    echo "${packages[*]}" > "$stamp"
fi

cublas=$(dirname "$(find "$home" -name cublasLt.h | head -1)")
libclang=$(dirname "$(find "$home" -name libclang.so | head -1)")
# The libclang package has no stddef.h of its own: gcc's serves.
export CUBLASLT_INCLUDE=$cublas:$(gcc -print-file-name=include):/usr/include/$(gcc -print-multiarch):/usr/include
export LIBCLANG_PATH=$libclang
fresh=$home/bindings.rs
rm -f "$fresh"
# Removing the file alone does not make cargo run build.rs again.
touch sys/build.rs
# What counts is that build.rs wrote the file: the crate itself may not compile with bindings that are out of date.
log=$home/build.log
CUBLASLT_BINDINGS=$fresh cargo build --quiet -p cublaslt-sys --features bindgen > "$log" 2>&1 || true
[ -s "$fresh" ] || { cat "$log" >&2; exit 1; }

if [ -n "$check" ]; then
    if ! diff -u sys/src/bindings.rs "$fresh" > "$home/bindings.diff"; then
        head -40 "$home/bindings.diff" >&2
        echo "sys/src/bindings.rs is not what the headers give: run scripts/bindings.sh and commit the result" >&2
        exit 1
    fi
    echo "sys/src/bindings.rs is what cublasLt.h of ${packages[0]} gives"
elif ! cmp -s "$fresh" sys/src/bindings.rs; then
    cp "$fresh" sys/src/bindings.rs
    echo "sys/src/bindings.rs made again"
fi

"""Reads quantized files with Python's safetensors and checks them against the model: another reader, other codecs.

    real_model_check.py MODEL.safetensors FOLDER

FOLDER holds the files and the report.json that tests/real_model.rs wrote. For every matrix of every file: the scale
lies under the published name with the published shape, the values decoded with ml_dtypes have the SQNR that Rust
reported, and the metadata name the recipe.
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors

CODES = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
FORMATS = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}


def tensors(path):
    """Name -> (dtype name, array) of the tensors that are floating point, and the metadata."""
    data = path.read_bytes()
    arrays = {}
    for name, tensor in safetensors.deserialize(data):
        kind = CODES.get(tensor["dtype"]) or PLAIN.get(tensor["dtype"])
        if kind is not None:
            arrays[name] = (tensor["dtype"], np.frombuffer(tensor["data"], kind).reshape(tensor["shape"]))
    length = int.from_bytes(data[:8], "little")
    return arrays, json.loads(data[8 : 8 + length]).get("__metadata__", {})


def scale_tensor(scheme, rows, cols):
    """Suffix and shape under which the scales are published."""
    blocks = -(-cols // 128)
    return {
        "fp8-tensor": ("_scale", (1,)),
        "fp8-row": ("_scale", (rows, 1)),
        "fp8-1x128": ("_scale_inv", (rows, blocks)),
        "fp8-128x128": ("_scale_inv", (-(-rows // 128), blocks)),
    }[scheme]


def spread(scheme, scale, rows, cols):
    """One scale for each element."""
    if scheme == "fp8-tensor":
        return np.broadcast_to(scale.reshape(1, 1), (rows, cols))
    if scheme == "fp8-row":
        return np.broadcast_to(scale, (rows, cols))
    if scheme == "fp8-128x128":
        scale = np.repeat(scale, 128, axis=0)[:rows]
    return np.repeat(scale, 128, axis=1)[:, :cols]


def sqnr_db(want, got):
    want, got = want.astype(np.float64), got.astype(np.float64)
    return 10 * np.log10(np.sum(want**2) / np.sum((want - got) ** 2))


def main(model_path, folder):
    model, _ = tensors(Path(model_path))
    report = json.loads((Path(folder) / "report.json").read_text())
    assert report, "the report names no file"
    checked = 0
    for file_name, noises in sorted(report.items()):
        arrays, metadata = tensors(Path(folder) / file_name)
        least = np.inf
        assert len(arrays) == 2 * len(noises), f"{file_name}: {len(arrays)} tensors for {len(noises)} matrices"
        for name, expected in noises.items():
            recipe = json.loads(metadata[f"scaled_gemm.{name}"])
            scheme = recipe["scheme"]
            dtype, codes = arrays[name]
            where = f"{file_name}: {name}"
            assert dtype == FORMATS[recipe["format"]], f"{where}: {dtype}"
            suffix, shape = scale_tensor(scheme, *codes.shape)
            scale_dtype, scale = arrays[name + suffix]
            assert (scale_dtype, scale.shape) == ("F32", shape), f"{where}: scale {scale_dtype} {scale.shape}"
            assert np.all(np.isfinite(scale)) and np.all(scale > 0), f"{where}: a scale is not a positive number"
            if recipe["rounding"] == "power-of-two":
                assert np.all(np.frexp(scale)[0] == 0.5), f"{where}: a scale is not a power of two"
            values = codes.astype(np.float32) * spread(scheme, scale, *codes.shape)
            original = model[name][1]
            assert original.shape == values.shape, f"{where}: {original.shape} became {values.shape}"
            found = sqnr_db(original, values)
            assert abs(found - expected) < 1e-6, f"{where}: {found} dB here, {expected} dB in Rust"
            least = min(least, found)
            checked += 1
        print(f"{file_name:<56} {len(noises)} matrices, at least {least:.2f} dB")
    print(f"{checked} matrices agree")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: real_model_check.py MODEL.safetensors FOLDER")
    main(sys.argv[1], sys.argv[2])
